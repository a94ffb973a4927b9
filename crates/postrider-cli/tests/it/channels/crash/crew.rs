//! The processes of a run: some at work, some starting, and one killed now and then.

use std::{path::PathBuf, process::Command, sync::Arc};

use anyhow::Context;
use serde_json::Value;
use tokio::task::JoinHandle;

use crate::{
    campaigns::crash::Dice,
    world::{Process, postrider},
};

/// How one is started.
type Start = Arc<dyn Fn() -> Command + Send + Sync>;

/// The line in which one says its name, and the field that has it.
type Says = (&'static str, &'static str);

pub struct Member {
    pub process: Process,
    pub http_url: String,
    /// Under which name it claims, if it does.
    pub name: Option<String>,
}

impl Member {
    fn start(start: &Start, says: Option<Says>) -> anyhow::Result<Self> {
        let process = Process::start(&mut start())?;
        let line: Value = serde_json::from_str(&process.wait_for_line("postrider is serving at ")?)?;
        let http_url = line["message"].as_str().and_then(|message| message.split(' ').next_back());
        let http_url = http_url.context("no address")?.to_owned();
        let name = match says {
            Some((says, field)) => {
                let line: Value = serde_json::from_str(&process.wait_for_line(says)?)?;
                Some(line[field].as_str().context("it has no name")?.to_owned())
            }
            None => None,
        };
        Ok(Self { process, http_url, name })
    }

    fn log(&self) -> String {
        let lines = self.process.lines();
        lines[lines.len().saturating_sub(40)..].join("\n")
    }
}

pub struct Crew {
    start: Start,
    says: Option<Says>,
    pub ready: Vec<Member>,
    starting: Vec<JoinHandle<anyhow::Result<Member>>>,
}

impl Crew {
    /// So many processes with this role.
    pub async fn new(config: PathBuf, role: &'static str, size: usize) -> anyhow::Result<Self> {
        let start: Start = Arc::new(move || {
            let mut command = postrider();
            command.arg("--config").arg(&config).args(["serve", "--roles", role]);
            command
        });
        let says = match role {
            "dispatcher" => Some(("the dispatcher is running", "dispatcher")),
            "scheduler" => Some(("the runner is running", "runner")),
            _ => None,
        };
        let mut crew = Self { start, says, ready: Vec::new(), starting: Vec::new() };
        for _ in 0..size {
            crew.begin_start();
        }
        crew.complete_starts(size).await?;
        Ok(crew)
    }

    fn begin_start(&mut self) {
        let (start, says) = (Arc::clone(&self.start), self.says);
        self.starting.push(tokio::task::spawn_blocking(move || Member::start(&start, says)));
    }

    /// Takes in who has started, and waits until so many are at work. Says where the new ones are.
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
            anyhow::ensure!(ended.is_none(), "one ended by itself: {ended:?}\n{}", member.log());
        }
        Ok(new)
    }

    /// One of those at work, and rather one that is busy.
    pub fn pick(&mut self, dice: &mut Dice, is_busy: impl Fn(&Member) -> bool) -> Member {
        let busy: Vec<usize> = (0..self.ready.len()).filter(|n| is_busy(&self.ready[*n])).collect();
        let n = if busy.is_empty() { dice.below(self.ready.len()) } else { busy[dice.below(busy.len())] };
        self.ready.swap_remove(n)
    }

    /// Kills one, and starts another in its place.
    pub fn kill(&mut self, victim: &mut Member) -> anyhow::Result<()> {
        victim.process.child.kill()?;
        victim.process.child.wait()?;
        self.begin_start();
        Ok(())
    }

    /// Lets everybody finish, and checks that they end well.
    pub async fn drain(mut self) -> anyhow::Result<()> {
        self.complete_starts(usize::MAX).await?;
        for mut member in self.ready {
            tokio::task::spawn_blocking(move || {
                member.process.signal("TERM")?;
                let status = member.process.wait()?;
                anyhow::ensure!(status.success(), "it ended with {status}:\n{}", member.log());
                anyhow::Ok(())
            })
            .await??;
        }
        Ok(())
    }
}
