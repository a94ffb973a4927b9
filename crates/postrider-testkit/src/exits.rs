//! Ends of a process at a place that a test has chosen.
#![cfg(debug_assertions)]

use std::{os::unix::process::ExitStatusExt, sync::Arc};

use tokio::{sync::Semaphore, task::JoinSet};

use crate::world::Process;

/// The way in which the process ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// The process is killed.
    Kill,
    /// A task panics without which the process must end.
    Panic,
    /// A task panics that works on one thing; the process goes on.
    PanicOfOne,
}

impl Exit {
    /// The variables for the process.
    pub fn environment(self, point: &str) -> Vec<(&'static str, &str)> {
        let at = ("CRASH_AT", point);
        if self == Self::Kill { vec![at] } else { vec![at, ("CRASH_BY", "panic")] }
    }

    /// Waits for the chosen end of the process; after `PanicOfOne`, sends SIGTERM first.
    pub fn ended(self, process: &mut Process) -> anyhow::Result<()> {
        let expected = match self {
            Self::Kill => (None, Some(9)),
            Self::Panic => (Some(1), None),
            Self::PanicOfOne => {
                tokio::task::block_in_place(|| process.wait_for_line("panicked"))?;
                process.signal("TERM")?;
                (Some(0), None)
            }
        };
        let status = tokio::task::block_in_place(|| process.wait())?;
        anyhow::ensure!(
            (status.code(), status.signal()) == expected,
            "{self:?} expects another end of the process: {status}\n{}",
            process.lines().join("\n")
        );
        Ok(())
    }
}

/// So many cases at a time: two cores are busy with starting processes.
const AT_ONCE: usize = 4;

/// Nothing is left out.
pub fn all_are_tried(points: &[&str], cases: impl Iterator<Item = &'static str>) {
    let cases: Vec<&str> = cases.collect();
    assert_eq!(points, cases, "every place is tried, in order");
}

/// Runs cases side by side; the first that fails is the result.
pub async fn all<C: Future<Output = anyhow::Result<()>> + Send + 'static>(
    cases: impl Iterator<Item = (String, C)>,
) -> anyhow::Result<()> {
    let (mut running, permits) = (JoinSet::new(), Arc::new(Semaphore::new(AT_ONCE)));
    for (name, case) in cases {
        let permits = Arc::clone(&permits);
        running.spawn(async move {
            let _permit = permits.acquire().await?;
            case.await.map_err(|error| error.context(name))
        });
    }
    while let Some(case) = running.join_next().await {
        case??;
    }
    Ok(())
}
