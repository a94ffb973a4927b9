//! The sweep recovers the work of dead processes: it reclaims replies whose lock expired, executes messages whose lease expired, and
//! enqueues kept replies. It also measures the replies for the metrics, whether or not a dispatcher runs.

use std::time::Duration;

use postrider_store::{
    Pool, StoreError,
    channels::{
        messages::{self, Expired},
        replies,
    },
    postgres::pool,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::super::executor::Executing;
use crate::common::{
    health::Health, periodic::at_interval, round::within, supervised::supervised, wakeup::Hints,
};

/// Maximum rows per transaction.
const BATCH: usize = 100;

/// Interval of the reply metrics.
const MEASURE_EVERY: Duration = Duration::from_secs(15);

/// Recovers the work of dead processes.
pub struct Sweep {
    /// Connections of the worker.
    pub pool: Pool,
    /// Executes the messages whose lease expired.
    pub executing: Executing,
    /// Hints to dispatchers that replies are due.
    pub hints: Hints,
    /// The sweep reclaims a reply that a dispatcher has held for longer.
    pub lock_timeout: Duration,
    /// Duration of the lease of an execution.
    pub lease: Duration,
    /// Maximum attempts at a reply.
    pub max_attempts: i32,
    /// Time between sweeps.
    pub every: Duration,
    /// The health of the sweep.
    pub health: Health,
}

impl Sweep {
    /// Sweeps at every interval until shutdown; then waits for the running executions.
    pub async fn run(self, shutdown: CancellationToken) {
        let executions = TaskTracker::new();
        let measuring = tokio::spawn(supervised(
            "reply meter",
            at_interval(MEASURE_EVERY, shutdown.clone(), {
                let pool = self.pool.clone();
                move || measure(pool.clone())
            }),
        ));
        while !shutdown.is_cancelled() {
            self.report([
                ("replies of dead dispatchers", self.reclaim().await),
                ("kept replies", self.enqueue_kept().await),
                ("messages with expired leases", self.execute_unfinished(&executions).await),
            ]);
            tokio::select! {
                () = shutdown.cancelled() => {}
                () = tokio::time::sleep(self.every) => {}
            }
        }
        executions.close();
        executions.wait().await;
        let _ = measuring.await;
    }

    async fn reclaim(&self) -> Result<usize, StoreError> {
        let limit = i32::try_from(BATCH).unwrap_or(i32::MAX);
        let mut count = 0;
        loop {
            let tenants = within(replies::tenants_with_stale(&self.pool, self.lock_timeout, limit)).await?;
            let mut may_have_more = tenants.len() >= BATCH;
            let before = count;
            for tenant in tenants {
                let reclaimed =
                    within(replies::reclaim(&self.pool, tenant, self.lock_timeout, limit)).await?;
                for reply in &reclaimed {
                    tracing::warn!(correlation_id = %reply.correlation_id, channel_message_id = %reply.message_id.0, outbox_id = %reply.id.0, worker = reply.worker, "a reply was reclaimed from a dispatcher that held it past the lock timeout");
                }
                metrics::counter!("postrider_replies_reclaimed_total").increment(reclaimed.len() as u64);
                count += reclaimed.len();
                may_have_more |= reclaimed.len() >= BATCH;
            }
            // Without progress, other processes have locked the remaining replies.
            if !may_have_more || count == before {
                break;
            }
        }
        if count > 0 {
            self.hints.send();
        }
        Ok(count)
    }

    async fn enqueue_kept(&self) -> Result<usize, StoreError> {
        let tenants = messages::tenants_with_expired_leases(&self.pool, Expired::KeptReply, BATCH);
        let tenants = within(tenants).await?;
        let share = BATCH.div_ceil(tenants.len().max(1));
        let mut count = 0;
        for tenant in tenants {
            let enqueued = messages::enqueue_kept(&self.pool, tenant, share, self.max_attempts);
            count += usize::try_from(within(enqueued).await?).unwrap_or_default();
        }
        if count > 0 {
            self.hints.send();
        }
        Ok(count)
    }

    async fn execute_unfinished(&self, executions: &TaskTracker) -> Result<usize, StoreError> {
        // Limited, so that new messages have precedence.
        let free = BATCH.saturating_sub(executions.len());
        if free == 0 {
            return Ok(0);
        }
        let tenants = messages::tenants_with_expired_leases(&self.pool, Expired::Execution, free);
        let tenants = within(tenants).await?;
        // The tenants share the capacity, so that one tenant's failures do not delay the messages of the others.
        let share = i32::try_from(free.div_ceil(tenants.len().max(1))).unwrap_or(i32::MAX);
        let mut count = 0;
        for tenant in tenants {
            let taken = within(messages::claim_unfinished(&self.pool, tenant, share, self.lease)).await?;
            count += taken.len();
            for execution in taken {
                let executing = self.executing.clone();
                executions.spawn(async move {
                    executing.run(execution).await;
                });
            }
        }
        Ok(count)
    }

    /// Reports one pass. It failed if any step did, so that a step that works does not hide one that fails.
    fn report(&self, steps: [(&str, Result<usize, StoreError>); 3]) {
        let mut failure = None;
        for (rows, swept) in steps {
            match swept {
                Ok(0) => {}
                Ok(count) => tracing::warn!(count, "the sweep recovered {count} {rows}"),
                Err(error) => {
                    tracing::warn!(?error, "failed to recover {rows}; retrying next time: {error}");
                    failure = Some(error);
                }
            }
        }
        match failure {
            None => self.health.passed(),
            Some(error) => self.health.failed(&error),
        }
    }
}

async fn measure(pool: Pool) {
    if let Err(error) = within(measure_once(&pool)).await {
        tracing::debug!(?error, "failed to measure the replies");
    }
}

async fn measure_once(pool: &Pool) -> Result<(), StoreError> {
    let mut transaction = pool::begin(pool).await?;
    let standing = replies::measure(&mut transaction).await?;
    pool::commit(transaction).await?;
    let by_age = [
        ("0", standing.pending + standing.sending),
        ("60", standing.over_a_minute),
        ("600", standing.over_ten_minutes),
        ("3600", standing.over_an_hour),
    ];
    for (seconds, count) in by_age {
        metrics::gauge!("postrider_replies_pending", "older_than_seconds" => seconds).set(count as f64);
    }
    metrics::gauge!("postrider_replies_due").set(standing.due as f64);
    metrics::gauge!("postrider_replies_retrying").set(standing.tried_before as f64);
    metrics::gauge!("postrider_replies_in_doubt").set(standing.in_doubt as f64);
    metrics::gauge!("postrider_replies_dead").set(standing.dead as f64);
    metrics::gauge!("postrider_replies_oldest_seconds").set(standing.oldest_seconds);
    metrics::gauge!("postrider_messages_unfinished").set(standing.unfinished_messages as f64);
    Ok(())
}
