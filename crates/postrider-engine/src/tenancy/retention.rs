//! Removes old rows in small steps, so that other transactions never wait long: processed events, the history of campaigns, the items of
//! ended campaign runs (`archive`), ended chat messages and job runs, the stored answers of requests that are a day old, and expired
//! sessions.

mod archive;

use std::{path::PathBuf, time::Duration};

use jiff::{SignedDuration, Timestamp};
use postrider_model::ids::TenantId;
use postrider_store::{
    PgConnection, Pool, StoreError,
    campaigns::{archives, history},
    channels::replies,
    events,
    jobs::runs,
    postgres::pool,
    tenancy::{requests, sessions},
};
use tokio_util::sync::CancellationToken;

/// Retention times of old rows.
#[derive(Debug, Clone)]
pub struct Retention {
    /// Retention of domain events after they were processed; `None`: for ever.
    pub events: Option<Duration>,
    /// Retention of the history of campaigns; `None`: for ever.
    pub history: Option<Duration>,
    /// Retention of the send jobs and items of campaign runs after the end of the run; `None`: for ever.
    pub items: Option<Duration>,
    /// Directory that gets the send jobs and items of a run before they are deleted; `None`: they are not exported.
    pub export_dir: Option<PathBuf>,
    /// Retention of ended chat messages and their replies; `None`: for ever.
    pub messages: Option<Duration>,
    /// Retention of ended job runs and their firings, errors and alerts; `None`: for ever.
    pub runs: Option<Duration>,
    /// Time between passes.
    pub every: Duration,
}

/// Maximum rows or ids examined per transaction.
const WINDOW: i32 = 1000;
/// Pause between two transactions, so that other transactions proceed.
const PAUSE: Duration = Duration::from_millis(20);

/// Reads the tenants that may have old rows, in a separate transaction. The rows are then removed tenant by tenant.
macro_rules! choose {
    ($pool:expr, $module:ident :: $tenants:ident ( $($argument:expr),* )) => {{
        let mut transaction = pool::begin($pool).await?;
        let tenants = $module::$tenants(&mut transaction $(, $argument)*).await?;
        pool::commit(transaction).await?;
        tenants
    }};
}

impl Retention {
    /// Removes old rows at every interval, until shutdown.
    pub async fn run(self, pool: Pool, shutdown: CancellationToken) {
        loop {
            report("processed events", self.sweep_events(&pool, &shutdown).await);
            report("events of campaigns", self.sweep_history(&pool, &shutdown).await);
            report("send jobs and items of campaign runs", self.sweep_items(&pool, &shutdown).await);
            report("messages with their replies", self.sweep_messages(&pool, &shutdown).await);
            report("job runs", self.sweep_runs(&pool, &shutdown).await);
            report("answered requests", sweep_requests(&pool, &shutdown).await);
            report("expired sessions", sweep_sessions(&pool, &shutdown).await);
            tokio::select! {
                () = shutdown.cancelled() => return,
                () = tokio::time::sleep(self.every) => {}
            }
        }
    }

    /// One pass over the domain events that may be too old. Returns how many were removed.
    pub async fn sweep_events(&self, pool: &Pool, shutdown: &CancellationToken) -> Result<i64, StoreError> {
        let Some(before) = before(self.events) else { return Ok(0) };
        let tenants = choose!(pool, events::tenants());
        sweep(pool, shutdown, tenants, |tenant| OldRows::Events { tenant, before, after_id: 0 }).await
    }

    /// One pass over the history of campaigns. Returns how many events were removed.
    pub async fn sweep_history(&self, pool: &Pool, shutdown: &CancellationToken) -> Result<i64, StoreError> {
        let Some(before) = before(self.history) else { return Ok(0) };
        let tenants = choose!(pool, history::tenants_with_old(before));
        sweep(pool, shutdown, tenants, |tenant| OldRows::History { tenant, before }).await
    }

    /// One pass over the campaign runs that ended long ago. Returns how many send jobs and items were removed.
    pub async fn sweep_items(&self, pool: &Pool, shutdown: &CancellationToken) -> Result<i64, StoreError> {
        let Some(before) = before(self.items) else { return Ok(0) };
        let tenants = choose!(pool, archives::tenants_with_old(before));
        let mut removed = 0;
        for tenant in tenants {
            removed += archive::sweep(pool, shutdown, tenant, before, self.export_dir.as_deref()).await?;
            if shutdown.is_cancelled() {
                break;
            }
        }
        Ok(removed)
    }

    /// One pass over the ended chat messages. Returns how many were removed.
    pub async fn sweep_messages(&self, pool: &Pool, shutdown: &CancellationToken) -> Result<i64, StoreError> {
        let Some(older_than) = self.messages else { return Ok(0) };
        let tenants = choose!(pool, replies::tenants_with_old(older_than));
        sweep(pool, shutdown, tenants, |tenant| OldRows::Messages { tenant, older_than }).await
    }

    /// One pass over the ended job runs. Returns how many were removed.
    pub async fn sweep_runs(&self, pool: &Pool, shutdown: &CancellationToken) -> Result<i64, StoreError> {
        let Some(older_than) = self.runs else { return Ok(0) };
        let tenants = choose!(pool, runs::tenants_with_old(older_than));
        sweep(pool, shutdown, tenants, |tenant| OldRows::Runs { tenant, older_than }).await
    }
}

/// One pass over the answers to requests that are a day old. Returns how many were removed.
pub async fn sweep_requests(pool: &Pool, shutdown: &CancellationToken) -> Result<i64, StoreError> {
    let tenants = choose!(pool, requests::tenants());
    sweep(pool, shutdown, tenants, |tenant| OldRows::Requests { tenant }).await
}

/// One pass over the expired sessions and login codes. Returns how many were removed.
pub async fn sweep_sessions(pool: &Pool, shutdown: &CancellationToken) -> Result<i64, StoreError> {
    let tenants = choose!(pool, sessions::tenants());
    sweep(pool, shutdown, tenants, |tenant| OldRows::Sessions { tenant }).await
}

/// Removes the old rows, tenant by tenant. Returns how many were removed.
async fn sweep(
    pool: &Pool,
    shutdown: &CancellationToken,
    tenants: Vec<TenantId>,
    old_rows: impl Fn(TenantId) -> OldRows,
) -> Result<i64, StoreError> {
    let mut removed = 0;
    for tenant in tenants {
        removed += old_rows(tenant).sweep(pool, shutdown).await?;
        if shutdown.is_cancelled() {
            break;
        }
    }
    Ok(removed)
}

/// The old rows of one tenant.
enum OldRows {
    Events { tenant: TenantId, before: Timestamp, after_id: i64 },
    History { tenant: TenantId, before: Timestamp },
    Messages { tenant: TenantId, older_than: Duration },
    Runs { tenant: TenantId, older_than: Duration },
    Requests { tenant: TenantId },
    Sessions { tenant: TenantId },
}

impl OldRows {
    /// Removes all old rows step by step. Returns how many were removed.
    async fn sweep(mut self, pool: &Pool, shutdown: &CancellationToken) -> Result<i64, StoreError> {
        let mut removed = 0;
        loop {
            let mut transaction = pool::begin(pool).await?;
            let (more, done) = self.step(&mut transaction).await?;
            pool::commit(transaction).await?;
            removed += more;
            if done || shutdown.is_cancelled() {
                return Ok(removed);
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Takes one step. Returns how many rows it removed, and whether it was the last step.
    async fn step(&mut self, connection: &mut PgConnection) -> Result<(i64, bool), StoreError> {
        let removed = match *self {
            Self::Events { tenant, before, ref mut after_id } => {
                let step = events::prune(connection, tenant, before, *after_id, WINDOW).await?;
                *after_id = step.last_id;
                return Ok((step.removed, step.done));
            }
            Self::History { tenant, before } => history::prune(connection, tenant, before, WINDOW).await?,
            Self::Messages { tenant, older_than } => {
                replies::prune(connection, tenant, older_than, WINDOW).await?
            }
            Self::Runs { tenant, older_than } => runs::prune(connection, tenant, older_than, WINDOW).await?,
            Self::Requests { tenant } => requests::prune(connection, tenant, WINDOW).await?,
            Self::Sessions { tenant } => sessions::prune(connection, tenant, WINDOW).await?,
        };
        Ok((removed, removed < i64::from(WINDOW)))
    }
}

fn before(keep: Option<Duration>) -> Option<Timestamp> {
    let keep = SignedDuration::try_from(keep?).unwrap_or(SignedDuration::MAX);
    Some(Timestamp::now().checked_sub(keep).unwrap_or(Timestamp::MIN))
}

fn report(rows: &str, swept: Result<i64, StoreError>) {
    match swept {
        Ok(0) => {}
        Ok(removed) => tracing::info!(removed, "retention removed {removed} {rows}"),
        Err(error) => tracing::warn!(?error, "failed to remove old {rows}; retrying next time: {error}"),
    }
}
