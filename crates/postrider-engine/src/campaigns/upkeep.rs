//! The worker's tasks beside its send jobs: heartbeats, account states, phases and metrics.

use std::{collections::HashMap, sync::Arc, time::Duration};

use postrider_store::campaigns::{limits, phases, send_jobs};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::shared::Shared;
use crate::common::{periodic::at_interval, supervised::supervised};

/// How often this process learns what other processes have found about its accounts.
const LEARN_EVERY: Duration = Duration::from_secs(1);
/// How often the progress of campaigns is recorded and their next phases are started.
const ADVANCE_EVERY: Duration = Duration::from_millis(500);
/// How often the backlog is measured for the metrics.
const MEASURE_EVERY: Duration = Duration::from_secs(15);

/// Starts the tasks. They end with the token, after the last send job.
pub(super) fn spawn(shared: &Arc<Shared>, ended: &CancellationToken) -> TaskTracker {
    let tasks = TaskTracker::new();
    let every = |interval: Duration| (interval, ended.clone(), Arc::clone(shared));
    let (interval, token, of) = every(shared.settings.heartbeat_interval);
    tasks.spawn(supervised(
        "heartbeat of send jobs",
        at_interval(interval, token, move || {
            let shared = Arc::clone(&of);
            async move { shared.heartbeat().await }
        }),
    ));
    let (interval, token, of) = every(LEARN_EVERY);
    tasks.spawn(supervised(
        "reader of account states",
        at_interval(interval, token, move || {
            let shared = Arc::clone(&of);
            async move { shared.learn_account_states().await }
        }),
    ));
    let (interval, token, of) = every(ADVANCE_EVERY);
    tasks.spawn(supervised(
        "phase advancer",
        at_interval(interval, token, move || advance_phases(Arc::clone(&of))),
    ));
    tasks.spawn(supervised("meter of send jobs", measure(Arc::clone(shared), ended.clone())));
    let (writing, token) = (Arc::clone(&shared.writing), ended.clone());
    tasks.spawn(supervised("watch of write connections", async move { writing.watch(token).await }));
    tasks.close();
    tasks
}

/// Records the progress of campaigns, and starts the next phases of those that advance automatically.
async fn advance_phases(shared: Arc<Shared>) {
    if let Err(error) = phases::note_progress(&shared.pool, &shared.worker).await {
        tracing::debug!(?error, "the progress of campaigns was not recorded");
    }
    loop {
        match phases::advance(&shared.pool, &shared.worker).await {
            Ok(false) => break,
            Ok(true) if shared.stopping.is_cancelled() => break,
            // There may be send jobs now.
            Ok(true) => shared.job_ended.notify_waiters(),
            Err(error) => {
                tracing::warn!(?error, "a phase was not ended or started: {error}; trying again");
                break;
            }
        }
    }
}

async fn measure(shared: Arc<Shared>, ended: CancellationToken) {
    let mut open_circuits = HashMap::new();
    loop {
        measure_circuits(&shared, &mut open_circuits).await;
        match send_jobs::measure(&shared.pool).await {
            Ok(backlog) => {
                metrics::gauge!("postrider_send_jobs_waiting").set(backlog.jobs_waiting as f64);
                metrics::gauge!("postrider_send_jobs_locked").set(backlog.jobs_locked as f64);
                metrics::gauge!("postrider_send_jobs_oldest_lock_seconds").set(backlog.oldest_lock_seconds);
                metrics::gauge!("postrider_items_in_doubt").set(backlog.items_in_doubt as f64);
                metrics::gauge!("postrider_items_oldest_doubt_seconds").set(backlog.oldest_doubt_seconds);
            }
            Err(error) => tracing::debug!(?error, "the send jobs could not be measured"),
        }
        tokio::select! {
            () = ended.cancelled() => return,
            () = shared.circuits_changed.notified() => {}
            () = tokio::time::sleep(MEASURE_EVERY) => {}
        }
    }
}

/// Sets one gauge per provider that ever had an open circuit. `postrider accounts list` names the accounts.
async fn measure_circuits(shared: &Shared, open_circuits: &mut HashMap<String, i64>) {
    match limits::measure_circuits(&shared.pool).await {
        Ok(open) => {
            open_circuits.values_mut().for_each(|count| *count = 0);
            open_circuits.extend(open);
            for (provider, count) in open_circuits {
                metrics::gauge!("postrider_circuit_open", "provider" => provider.clone()).set(*count as f64);
            }
        }
        Err(error) => tracing::debug!(?error, "the circuits could not be counted"),
    }
}
