//! The processes of a run: ready, starting, frozen and dead ones.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    process::Command,
    sync::Arc,
    time::Instant,
};

use anyhow::Context;
use serde_json::Value;
use tokio::task::JoinHandle;

use super::SeededRandom;
use crate::world::{PATIENCE, Process, postrider};

/// How the processes of a group are started.
#[derive(Clone)]
pub struct Launch {
    pub command: Arc<dyn Fn() -> Command + Send + Sync>,
    /// The log line with the name under which a process claims, and the field of the name. Without it, the name is the address.
    pub named_by: Option<(&'static str, &'static str)>,
    /// Whether a start is repeated when it fails, because Postgres crashes.
    pub repeats: bool,
}

impl Launch {
    /// `postrider serve` with this role.
    pub fn role(config: PathBuf, role: &'static str) -> Self {
        let command = Arc::new(move || {
            let mut command = postrider();
            command.arg("--config").arg(&config).args(["serve", "--roles", role]);
            command
        });
        let named_by = match role {
            "dispatcher" => Some(("the dispatcher is running", "dispatcher")),
            "scheduler" => Some(("the runner is running", "runner")),
            "relay" => Some(("the relay is running", "processor")),
            _ => None,
        };
        Self { command, named_by, repeats: false }
    }

    /// Starts a process, and waits until it serves.
    pub fn start(&self) -> anyhow::Result<Member> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            match self.start_once() {
                Err(_) if self.repeats && Instant::now() < deadline => {}
                started => return started,
            }
        }
    }

    fn start_once(&self) -> anyhow::Result<Member> {
        let process = Process::start(&mut (self.command)())?;
        // All roles have started when this line is written.
        let line = fields(&process.wait_for_line("postrider is serving at ")?)?;
        let http_url = line["message"].as_str().and_then(|message| message.split(' ').next_back());
        let http_url = http_url.context("the log line has no address")?.to_owned();
        let name = match self.named_by {
            Some((text, field)) => {
                let line = fields(&process.wait_for_line(text)?)?;
                line[field].as_str().with_context(|| format!("the log line has no {field}"))?.to_owned()
            }
            None => http_url.clone(),
        };
        Ok(Member { name, http_url, process })
    }
}

/// The fields of a log line, which other output may precede.
fn fields(line: &str) -> anyhow::Result<Value> {
    let at = line.find('{').with_context(|| line.to_owned())?;
    Ok(serde_json::from_str(&line[at..])?)
}

/// A process of a group.
pub struct Member {
    /// The name under which it claims, or its address.
    pub name: String,
    pub http_url: String,
    pub process: Process,
}

impl Member {
    /// Stops it in good order, and checks that it ends without an error.
    pub fn drain(mut self) -> anyhow::Result<()> {
        self.process.signal("TERM")?;
        let status = self.process.wait()?;
        anyhow::ensure!(status.success(), "{} ended with {status}:\n{}", self.name, self.log());
        Ok(())
    }

    fn log(&self) -> String {
        let lines = self.process.lines();
        lines[lines.len().saturating_sub(40)..].join("\n")
    }
}

/// Stops a process, and waits until none of its threads runs.
pub fn freeze(process: &Process) -> anyhow::Result<()> {
    process.signal("STOP")?;
    let deadline = Instant::now() + PATIENCE;
    while !is_frozen(process)? {
        anyhow::ensure!(Instant::now() < deadline, "the process does not stop");
        std::thread::yield_now();
    }
    Ok(())
}

fn is_frozen(process: &Process) -> anyhow::Result<bool> {
    for task in std::fs::read_dir(format!("/proc/{}/task", process.child.id()))? {
        let stat = std::fs::read_to_string(task?.path().join("stat"))?;
        let state = stat.rsplit_once(") ").context("the task has no state")?.1;
        if !state.starts_with('T') {
            return Ok(false);
        }
    }
    Ok(true)
}

/// A process that is stopped.
pub struct Frozen {
    pub member: Member,
    pub since: Instant,
    /// Number of the fault before which it goes on, for a workload that decides by this.
    pub until: usize,
}

/// A group of processes of one kind.
pub struct Processes {
    launch: Launch,
    pub ready: Vec<Member>,
    pub frozen: Vec<Frozen>,
    starting: Vec<JoinHandle<anyhow::Result<Member>>>,
    /// Names of the processes that were killed.
    pub dead: BTreeSet<String>,
    /// How often each process was killed or frozen.
    pub struck: BTreeMap<String, usize>,
}

impl Processes {
    /// Starts so many, and waits until all of them are ready.
    pub async fn start(launch: Launch, number: usize) -> anyhow::Result<Self> {
        let mut processes = Self {
            launch,
            ready: Vec::new(),
            frozen: Vec::new(),
            starting: Vec::new(),
            dead: BTreeSet::new(),
            struck: BTreeMap::new(),
        };
        for _ in 0..number {
            processes.begin_start();
        }
        processes.complete_starts(number).await?;
        Ok(processes)
    }

    fn begin_start(&mut self) {
        let launch = self.launch.clone();
        self.starting.push(tokio::task::spawn_blocking(move || launch.start()));
    }

    /// Adds the processes that have started, and waits until so many are ready. Returns the addresses of the new ones. An error if
    /// a process ended by itself.
    pub async fn complete_starts(&mut self, ready_min: usize) -> anyhow::Result<Vec<String>> {
        let mut new = Vec::new();
        let mut n = 0;
        while n < self.starting.len() {
            if self.starting[n].is_finished() || self.ready.len() < ready_min {
                let member = self.starting.swap_remove(n).await??;
                new.push(member.http_url.clone());
                self.ready.push(member);
            } else {
                n += 1;
            }
        }
        for member in &mut self.ready {
            let ended = member.process.child.try_wait()?;
            anyhow::ensure!(ended.is_none(), "{} ended by itself: {ended:?}\n{}", member.name, member.log());
        }
        Ok(new)
    }

    /// Takes out a ready process, preferably a busy one.
    fn pick(&mut self, random: &mut SeededRandom, is_busy: impl Fn(&Member) -> bool) -> Member {
        let busy: Vec<usize> = (0..self.ready.len()).filter(|n| is_busy(&self.ready[*n])).collect();
        let n = if busy.is_empty() { random.below(self.ready.len()) } else { busy[random.below(busy.len())] };
        self.ready.swap_remove(n)
    }

    /// Kills a process, preferably a busy one, and starts another in its place. Returns its name.
    pub fn kill_one(
        &mut self,
        random: &mut SeededRandom,
        is_busy: impl Fn(&Member) -> bool,
    ) -> anyhow::Result<String> {
        let mut victim = self.pick(random, is_busy);
        victim.process.child.kill()?;
        victim.process.child.wait()?;
        *self.struck.entry(victim.name.clone()).or_default() += 1;
        self.dead.insert(victim.name.clone());
        self.begin_start();
        Ok(victim.name)
    }

    /// Freezes a process, preferably a busy one. Returns its name.
    pub fn freeze_one(
        &mut self,
        random: &mut SeededRandom,
        is_busy: impl Fn(&Member) -> bool,
        until: usize,
    ) -> anyhow::Result<String> {
        let member = self.pick(random, is_busy);
        freeze(&member.process)?;
        let name = member.name.clone();
        *self.struck.entry(name.clone()).or_default() += 1;
        self.frozen.push(Frozen { member, since: Instant::now(), until });
        Ok(name)
    }

    /// Continues the frozen processes that are due. Returns their names.
    pub fn thaw(&mut self, is_due: impl Fn(&Frozen) -> bool) -> anyhow::Result<Vec<String>> {
        let (due, frozen) = std::mem::take(&mut self.frozen).into_iter().partition(|one| is_due(one));
        self.frozen = frozen;
        let due: Vec<Frozen> = due;
        let mut names = Vec::new();
        for Frozen { member, .. } in due {
            member.process.signal("CONT")?;
            names.push(member.name.clone());
            self.ready.push(member);
        }
        Ok(names)
    }

    /// Names of the processes that send no heartbeat: dead and frozen ones.
    pub fn silent(&self) -> Vec<String> {
        let frozen = self.frozen.iter().map(|one| one.member.name.clone());
        self.dead.iter().cloned().chain(frozen).collect()
    }

    /// Stops all processes in good order, and checks that each ends without an error.
    pub async fn drain(&mut self) -> anyhow::Result<()> {
        self.thaw(|_| true)?;
        self.complete_starts(usize::MAX).await?;
        for member in std::mem::take(&mut self.ready) {
            tokio::task::spawn_blocking(move || member.drain()).await??;
        }
        Ok(())
    }
}
