//! Records how runs ended: whatever has gathered while the last statement ran goes into the next one.

use std::{sync::Arc, time::Duration};

use postrider_model::job::JobRunStatus;
use postrider_store::{
    StoreError,
    job_runs::{self, End, EndedRun, Ending},
};
use tokio::sync::mpsc;

use super::Shared;
use crate::step::within;

const BATCH_MAX: usize = 500;
const PAUSE: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(5);

pub(super) struct Settler {
    shared: Arc<Shared>,
}

impl Settler {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self { shared }
    }

    /// Works until the last attempt has handed in its end.
    pub(super) async fn run(self, mut receiver: mpsc::Receiver<EndedRun>) {
        let mut gathered = Vec::with_capacity(BATCH_MAX);
        while receiver.recv_many(&mut gathered, BATCH_MAX).await > 0 {
            self.record_for_sure(&gathered).await;
            gathered.iter().for_each(|ended| self.shared.held.let_go(ended.run(), ended.claim()));
            gathered.clear();
            self.shared.ends.send();
        }
    }

    /// An end is never dropped because the database is away: the runs are kept alive meanwhile, by whoever can reach it.
    async fn record_for_sure(&self, ended: &[EndedRun]) {
        let mut pause = PAUSE;
        loop {
            match within(job_runs::end(&self.shared.pool, &self.shared.name, ended)).await {
                Ok(endings) => {
                    ended.iter().for_each(|run| tell(run, endings.get(&run.run()).copied()));
                    return;
                }
                // One of them spoils the statement for all: find it by telling them one by one.
                Err(StoreError::Refused { .. }) if ended.len() > 1 => {
                    for alone in ended {
                        Box::pin(self.record_for_sure(std::slice::from_ref(alone))).await;
                    }
                    return;
                }
                Err(StoreError::Refused { message, .. }) => {
                    self.refused(ended, &message).await;
                    return;
                }
                Err(error) => {
                    tracing::warn!(
                        ?error,
                        count = ended.len(),
                        "ends are not recorded yet: {error}; trying again"
                    );
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(PAUSE_MAX);
                }
            }
        }
    }

    /// The database does not take a result, whatever it is: then the run failed, and says so.
    async fn refused(&self, ended: &[EndedRun], message: &str) {
        for run in ended {
            tracing::error!(job_id = %run.run().id.0, "the end of a run is refused by the database: {message}");
            if let End::Completed(_) = run.end() {
                let error = format!("the result cannot be stored: {message}");
                Box::pin(self.record_for_sure(&[run.instead(End::Failed { error, retryable: false })])).await;
            }
        }
    }
}

/// Says what became of a run. Without an ending it was not ours any more.
fn tell(run: &EndedRun, ending: Option<Ending>) {
    let job_id = run.run().id.0;
    let count = |what: &'static str| metrics::counter!("postrider_job_runs_total", "as" => what).increment(1);
    match (ending, run.end()) {
        (None, _) => {
            count("late");
            tracing::warn!(%job_id, "the end of a run came too late: it was cancelled, or taken from this runner");
        }
        (Some(Ending { status: JobRunStatus::Completed, .. }), _) => {
            count("completed");
            tracing::info!(%job_id, "a run is completed");
        }
        (Some(Ending { retry_at: Some(retry_at), .. }), End::Failed { error, .. }) => {
            count("retry");
            tracing::warn!(%job_id, reason = error, "a run failed and is tried again at {retry_at}");
        }
        (Some(_), End::Failed { error, .. }) => {
            count("failed");
            tracing::error!(%job_id, reason = error, "a run failed for good");
        }
        (Some(_), End::Completed(_)) => {}
    }
}
