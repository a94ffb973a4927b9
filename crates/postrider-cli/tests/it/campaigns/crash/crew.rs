//! The workers of a run: some at work, some stopped, some starting, and the names of the dead.

use std::{
    collections::{BTreeMap, BTreeSet},
    process::Command,
    sync::Arc,
    time::Instant,
};

use anyhow::Context;
use serde_json::Value;
use tokio::task::JoinHandle;

use super::plan::Dice;
use crate::world::{PATIENCE, Process};

/// How a worker is started.
pub type Start = Arc<dyn Fn() -> Command + Send + Sync>;

pub struct Worker {
    /// Under which name it reserves.
    pub name: String,
    process: Process,
}

impl Worker {
    /// Starts one and waits until it works. While the database is away it ends, and is started again.
    pub fn start(start: &Start) -> anyhow::Result<Self> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let process = Process::start(&mut start())?;
            // Other roles begin after it; a start that fails in between is one that failed.
            let running = process.wait_for_line("the campaign worker is running");
            match running.and_then(|line| process.wait_for_line("postrider is serving at").map(|_| line)) {
                Ok(line) => {
                    let at = line.find('{').with_context(|| line.clone())?;
                    let line: Value = serde_json::from_str(&line[at..])?;
                    let name = line["worker"].as_str().context("it has no name")?.to_owned();
                    return Ok(Self { name, process });
                }
                Err(error) if Instant::now() > deadline => return Err(error),
                Err(_) => {}
            }
        }
    }

    pub fn kill(mut self) -> anyhow::Result<String> {
        self.process.child.kill()?;
        self.process.child.wait()?;
        Ok(self.name)
    }

    /// Stops it where it is. When this returns it does nothing any more.
    pub fn freeze(&self) -> anyhow::Result<()> {
        self.process.signal("STOP")?;
        let deadline = Instant::now() + PATIENCE;
        while !self.is_frozen()? {
            anyhow::ensure!(Instant::now() < deadline, "it does not stop");
            std::thread::yield_now();
        }
        Ok(())
    }

    fn is_frozen(&self) -> anyhow::Result<bool> {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.process.child.id()))?;
        for task in tasks {
            let stat = std::fs::read_to_string(task?.path().join("stat"))?;
            let state = stat.rsplit_once(") ").context("no state")?.1;
            if !state.starts_with('T') {
                return Ok(false);
            }
        }
        Ok(true)
    }

    pub fn thaw(&self) -> anyhow::Result<()> {
        self.process.signal("CONT")
    }

    /// Lets it finish, and checks that it ends well.
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

pub struct Crew {
    start: Start,
    pub ready: Vec<Worker>,
    /// With the round after which they may go on.
    frozen: Vec<(Worker, usize)>,
    starting: Vec<JoinHandle<anyhow::Result<Worker>>>,
    pub dead: BTreeSet<String>,
    /// How often each was killed or stopped.
    pub struck: BTreeMap<String, usize>,
}

impl Crew {
    pub async fn new(start: Start, workers: usize) -> anyhow::Result<Self> {
        let (dead, struck) = (BTreeSet::new(), BTreeMap::new());
        let mut crew =
            Self { start, ready: Vec::new(), frozen: Vec::new(), starting: Vec::new(), dead, struck };
        for _ in 0..workers {
            crew.begin_start();
        }
        crew.complete_starts(workers).await?;
        Ok(crew)
    }

    fn begin_start(&mut self) {
        let start = Arc::clone(&self.start);
        self.starting.push(tokio::task::spawn_blocking(move || Worker::start(&start)));
    }

    /// Takes in who has started, and waits until so many are at work.
    pub async fn complete_starts(&mut self, ready_min: usize) -> anyhow::Result<()> {
        let mut n = 0;
        while n < self.starting.len() {
            if self.starting[n].is_finished() {
                self.ready.push(self.starting.swap_remove(n).await??);
            } else {
                n += 1;
            }
        }
        while self.ready.len() < ready_min && !self.starting.is_empty() {
            let started = self.starting.swap_remove(0);
            self.ready.push(started.await??);
        }
        for worker in &mut self.ready {
            let ended = worker.process.child.try_wait()?;
            anyhow::ensure!(ended.is_none(), "{} ended by itself: {ended:?}\n{}", worker.name, worker.log());
        }
        Ok(())
    }

    /// One of those at work, and rather one that holds a job.
    fn pick(&mut self, dice: &mut Dice, holders: &[String]) -> Worker {
        let holds: Vec<usize> =
            (0..self.ready.len()).filter(|n| holders.contains(&self.ready[*n].name)).collect();
        let n = if holds.is_empty() { dice.below(self.ready.len()) } else { holds[dice.below(holds.len())] };
        self.ready.swap_remove(n)
    }

    pub fn kill_one(&mut self, dice: &mut Dice, holders: &[String]) -> anyhow::Result<String> {
        let name = self.pick(dice, holders).kill()?;
        *self.struck.entry(name.clone()).or_default() += 1;
        self.dead.insert(name.clone());
        self.begin_start();
        Ok(name)
    }

    pub fn freeze_one(&mut self, dice: &mut Dice, holders: &[String], until: usize) -> anyhow::Result<()> {
        let worker = self.pick(dice, holders);
        worker.freeze()?;
        *self.struck.entry(worker.name.clone()).or_default() += 1;
        self.frozen.push((worker, until));
        Ok(())
    }

    /// Lets one go on whose round has come, and says who it is.
    pub fn thaw_one(&mut self, round: usize) -> anyhow::Result<Option<String>> {
        let Some(n) = self.frozen.iter().position(|(_, until)| *until <= round) else { return Ok(None) };
        let (worker, _) = self.frozen.swap_remove(n);
        worker.thaw()?;
        let name = worker.name.clone();
        self.ready.push(worker);
        Ok(Some(name))
    }

    /// Those who will not be heard of for a while.
    pub fn silent(&self) -> Vec<String> {
        let frozen = self.frozen.iter().map(|(worker, _)| worker.name.clone());
        self.dead.iter().cloned().chain(frozen).collect()
    }

    /// How many can work.
    pub fn at_work(&self) -> usize {
        self.ready.len()
    }

    /// Lets everybody finish what is under way.
    pub async fn drain(mut self) -> anyhow::Result<()> {
        while self.thaw_one(usize::MAX)?.is_some() {}
        self.complete_starts(usize::MAX).await?;
        for worker in self.ready {
            tokio::task::spawn_blocking(move || worker.drain()).await??;
        }
        Ok(())
    }
}
