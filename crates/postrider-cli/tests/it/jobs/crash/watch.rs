//! Watches runs while processes die: none is kept from everybody for longer than its lease, and no two share a key.

use std::{sync::Arc, time::Duration};

use sqlx::{AssertSqlSafe, PgPool};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// Looks again and again until it is told that it is over.
pub struct Watch {
    over: CancellationToken,
    looking: JoinHandle<anyhow::Result<Seen>>,
}

/// The watcher's observations.
#[derive(Debug, Default)]
pub struct Seen {
    pub looks: usize,
    pub wrong: Vec<String>,
}

impl Watch {
    /// Nothing may be silent for longer than this.
    pub fn start(admin: &PgPool, longest: Duration) -> Self {
        let over = CancellationToken::new();
        let sql = format!(
            "select id || ' has been silent for ' || now() - heartbeat_at from jobs.job_runs
              where heartbeat_at < now() - interval '{} milliseconds'
              union all
             select lock_key || ' has ' || count(*) || ' active runs' from jobs.job_runs
              where status = 'running' or retry_at is not null group by tenant_id, lock_key having count(*) > 1",
            longest.as_millis()
        );
        let looking = tokio::spawn(look(admin.clone(), Arc::from(sql), over.clone()));
        Self { over, looking }
    }

    pub async fn end(self) -> anyhow::Result<Seen> {
        self.over.cancel();
        self.looking.await?
    }
}

async fn look(admin: PgPool, sql: Arc<str>, over: CancellationToken) -> anyhow::Result<Seen> {
    let mut seen = Seen::default();
    while !over.is_cancelled() {
        let wrong: Vec<String> = sqlx::query_scalar(AssertSqlSafe(sql.to_string())).fetch_all(&admin).await?;
        seen.looks += 1;
        seen.wrong.extend(wrong);
        tokio::time::sleep(Duration::from_millis(100)).await; // between two looks, never instead of one
    }
    Ok(seen)
}
