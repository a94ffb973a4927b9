//! Takes up what dead processes left: locks that are too old, messages whose execution was not ended, replies that were kept. And tells
//! how replies stand, also while none are sent.

use std::time::Duration;

use postrider_store::{
    Pool, StoreError,
    messages::{self, Expired},
    pool, replies,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::super::executor::Executing;
use crate::common::{
    health::Health, periodic::at_interval, round::within, supervised::supervised, wakeup::Hints,
};

/// Rows taken in one transaction.
const BATCH: usize = 100;

/// How often the backlog is measured for the metrics.
const MEASURE_EVERY: Duration = Duration::from_secs(15);

/// What it takes to go on with what others began.
pub struct Sweep {
    /// Connections of the worker.
    pub pool: Pool,
    /// What executes messages.
    pub executing: Executing,
    /// To say that there are replies.
    pub hints: Hints,
    /// A reply that is held for longer is taken from its dispatcher.
    pub lock_timeout: Duration,
    /// How long an execution may take.
    pub lease: Duration,
    /// How often a reply may be tried.
    pub max_attempts: i32,
    /// How often to look.
    pub every: Duration,
    /// Whether it can work.
    pub health: Health,
}

impl Sweep {
    /// Looks now and then until shutdown; then waits for the executions that are under way.
    pub async fn run(self, shutdown: CancellationToken) {
        let executions = TaskTracker::new();
        let measuring =
            tokio::spawn(supervised(
                "meter of replies",
                at_interval(MEASURE_EVERY, shutdown.clone(), {
                    let pool = self.pool.clone();
                    move || measure(pool.clone())
                }),
            ));
        while !shutdown.is_cancelled() {
            self.report([
                ("replies whose dispatcher went away", self.reclaim().await),
                ("kept replies", self.enqueue_kept().await),
                ("messages whose execution was not ended", self.take_up(&executions).await),
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
                    tracing::warn!(correlation_id = %reply.correlation_id, channel_message_id = %reply.message_id.0, outbox_id = %reply.id.0, worker = reply.worker, "a reply was taken from a dispatcher that held it for too long");
                }
                metrics::counter!("postrider_replies_reclaimed_total").increment(reclaimed.len() as u64);
                count += reclaimed.len();
                may_have_more |= reclaimed.len() >= BATCH;
            }
            // Without any progress, other processes hold what is left.
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

    async fn take_up(&self, executions: &TaskTracker) -> Result<usize, StoreError> {
        // Not more at a time: what comes in has the right of way.
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

    /// Reports one pass. It failed if any step did: a step that works does not hide one that does not.
    fn report(&self, steps: [(&str, Result<usize, StoreError>); 3]) {
        let mut failure = None;
        for (what, swept) in steps {
            match swept {
                Ok(0) => {}
                Ok(count) => tracing::warn!(count, "took up {count} {what}"),
                Err(error) => {
                    tracing::warn!(?error, "{what} wait for the next round: {error}");
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
        tracing::debug!(?error, "the replies could not be measured");
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
