//! Records the results of job runs.

use std::{collections::HashMap, sync::Arc};

use postrider_model::jobs::JobRunStatus;
use postrider_store::{
    StoreError,
    jobs::runs::{self, End, EndedRun, Ending, RunRef},
};

use super::Shared;
use crate::common::{recorder::Ledger, round::within};

/// The results of runs under the claims of this runner. Heartbeats renew the claims until the results are recorded.
pub(super) struct Settler {
    shared: Arc<Shared>,
}

impl Settler {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self { shared }
    }

    fn release(&self, run: &EndedRun) {
        self.shared.held.release(run.run(), run.claim());
    }
}

impl Ledger for Settler {
    type Entry = EndedRun;
    type Receipt = HashMap<RunRef, Ending>;

    const BATCH_MAX: usize = 500;
    const NAME: &'static str = "job run results";

    async fn write(&mut self, entries: &mut Vec<EndedRun>) -> Result<Self::Receipt, StoreError> {
        within(runs::end(&self.shared.pool, &self.shared.name, entries)).await
    }

    fn recorded(&mut self, entries: Vec<EndedRun>, endings: Self::Receipt) {
        for run in &entries {
            report(run, endings.get(&run.run()).copied());
            self.release(run);
        }
        self.shared.end_hints.send();
    }

    /// Fails a run whose result the database refuses to store.
    async fn refused(&mut self, run: EndedRun, error: StoreError) -> Option<EndedRun> {
        tracing::error!(job_id = %run.run().id.0, "the database refused the result of a run: {error}");
        let End::Completed(_) = run.end() else {
            self.release(&run);
            return None;
        };
        let error = format!("the database refused to store the result: {error}");
        Some(run.instead(End::Failed { error, retryable: false }))
    }
}

/// Logs and counts the end of a run. Without an ending another runner holds the run, or it was cancelled.
fn report(run: &EndedRun, ending: Option<Ending>) {
    let job_id = run.run().id.0;
    let count = |name: &'static str| metrics::counter!("postrider_job_runs_total", "as" => name).increment(1);
    match (ending, run.end()) {
        (None, _) => {
            count("late");
            tracing::warn!(%job_id, "the end of a run came too late: the run was cancelled, or another runner holds it");
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
