//! The database calls of a worker, and their results.

use sqlx::{Acquire, PgConnection, PgExecutor, Postgres};
use uuid::Uuid;

/// A job as its holder knows it.
#[derive(Debug, Clone, sqlx::FromRow)]
pub struct Job {
    pub job_id: Uuid,
    pub tenant_id: Uuid,
    pub run_id: Uuid,
    pub attempts: i32,
    pub item_ids: Vec<Uuid>,
}

/// An answer of begin_outbox_items about one item.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, sqlx::FromRow)]
pub struct Begun {
    pub tenant_id: Uuid,
    pub job_id: Uuid,
    pub outbox_id: Option<Uuid>,
    pub item_id: Option<Uuid>,
    pub idempotency_key: Option<String>,
    pub verdict: String,
}

/// Claims jobs: chooses tenants, requeues what is overdue, and claims tenant by tenant.
pub async fn claim<'c>(
    client: impl Acquire<'c, Database = Postgres>,
    worker: &str,
    limit: i32,
) -> Result<Vec<Job>, sqlx::Error> {
    claim_on(&mut *client.acquire().await?, worker, limit).await
}

/// The same over one connection.
pub async fn claim_on(client: &mut PgConnection, worker: &str, limit: i32) -> Result<Vec<Job>, sqlx::Error> {
    let mut chosen = choose(client, limit).await?;
    if chosen.iter().any(|(_, _, is_overdue)| *is_overdue) {
        for (tenant, _, _) in chosen.iter().filter(|(_, _, is_overdue)| *is_overdue) {
            sqlx::query("select execution.requeue_overdue_jobs($1, $2)")
                .bind(tenant)
                .bind(worker)
                .execute(&mut *client)
                .await?;
        }
        chosen = choose(client, limit).await?;
    }
    let mut claimed = Vec::new();
    for (tenant, jobs, _) in chosen.into_iter().filter(|(_, jobs, _)| *jobs > 0) {
        let sql = "select job_id, tenant_id, run_id, attempts, item_ids from execution.claim_queued_jobs($1, $2, $3)";
        let of_tenant: Vec<Job> =
            sqlx::query_as(sql).bind(tenant).bind(worker).bind(jobs).fetch_all(&mut *client).await?;
        claimed.extend(of_tenant);
    }
    Ok(claimed)
}

/// Tenants with the number of their jobs to claim, and whether some are overdue.
async fn choose(client: &mut PgConnection, limit: i32) -> Result<Vec<(Uuid, i32, bool)>, sqlx::Error> {
    sqlx::query_as("select tenant_id, jobs, is_overdue from execution.tenants_with_due_jobs($1)")
        .bind(limit)
        .fetch_all(client)
        .await
}

/// The arguments of begin_outbox_items.
#[derive(Debug, Clone, Default)]
pub struct Windows {
    pub tenants: Vec<Uuid>,
    pub jobs: Vec<Uuid>,
    pub attempts: Vec<i32>,
    pub first: Vec<Option<i32>>,
    pub counts: Vec<i32>,
    pub ids: Vec<Uuid>,
    pub verdicts: Vec<Option<&'static str>>,
    pub reasons: Vec<Option<&'static str>>,
}

impl Windows {
    /// A stretch of one job, from place 1, with new ids.
    pub fn of(job: &Job, first: i32, count: i32) -> Self {
        Self::default().and(job, first, count)
    }

    /// Another stretch.
    pub fn and(mut self, job: &Job, first: i32, count: i32) -> Self {
        self.tenants.push(job.tenant_id);
        self.jobs.push(job.job_id);
        self.attempts.push(job.attempts);
        self.first.push(Some(first));
        self.counts.push(count);
        for _ in 0..count {
            self.ids.push(Uuid::now_v7());
            self.verdicts.push(None);
            self.reasons.push(None);
        }
        self
    }

    /// The item in this place of the call is not called.
    pub fn verdict(mut self, at: usize, verdict: &'static str, reason: &'static str) -> Self {
        self.verdicts[at] = Some(verdict);
        self.reasons[at] = Some(reason);
        self
    }

    /// Reserves them.
    pub async fn begin(&self, client: impl PgExecutor<'_>, worker: &str) -> Result<Vec<Begun>, sqlx::Error> {
        let recipients: Vec<Option<String>> = self.ids.iter().map(|id| Some(format!("to {id}"))).collect();
        let hashes: Vec<Option<Vec<u8>>> = self.ids.iter().map(|_| Some(vec![7; 32])).collect();
        sqlx::query_as(
            "select * from execution.begin_outbox_items($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)",
        )
        .bind(&self.tenants)
        .bind(worker)
        .bind(&self.jobs)
        .bind(&self.attempts)
        .bind(&self.first)
        .bind(&self.counts)
        .bind(&self.ids)
        .bind(recipients)
        .bind(hashes)
        .bind(&self.verdicts)
        .bind(&self.reasons)
        .fetch_all(client)
        .await
    }
}

/// Reserves all items of a job and gives the ids of the rows, in the order of the items.
pub async fn reserve_all(client: impl PgExecutor<'_>, worker: &str, job: &Job) -> anyhow::Result<Vec<Uuid>> {
    let windows = Windows::of(job, 1, i32::try_from(job.item_ids.len())?);
    let begun = windows.begin(client, worker).await?;
    anyhow::ensure!(begun.iter().all(|item| item.verdict == "reserved"), "{begun:?}");
    Ok(windows.ids)
}

/// Settles items of a tenant, each as one of the words; gives the ids that were changed.
pub async fn finalize(
    client: impl PgExecutor<'_>,
    tenant: Uuid,
    worker: &str,
    settled: &[(Uuid, &str)],
) -> Result<Vec<Uuid>, sqlx::Error> {
    let (ids, statuses): (Vec<Uuid>, Vec<&str>) = settled.iter().copied().unzip();
    let message_ids: Vec<Option<String>> = ids.iter().map(|id| Some(format!("message {id}"))).collect();
    let errors: Vec<Option<&str>> =
        statuses.iter().map(|status| matches!(*status, "failed" | "in_doubt").then_some("why")).collect();
    sqlx::query_scalar("select id from execution.finalize_outbox_items($1, $2, $3, $4, $5, $6)")
        .bind(vec![tenant; ids.len()])
        .bind(worker)
        .bind(&ids)
        .bind(statuses)
        .bind(message_ids)
        .bind(errors)
        .fetch_all(client)
        .await
}

/// Completes a job and says what it has become.
pub async fn complete(client: impl PgExecutor<'_>, worker: &str, job: &Job) -> Result<String, sqlx::Error> {
    sqlx::query_scalar("select execution.complete_job($1, $2, $3, $4)")
        .bind(job.tenant_id)
        .bind(job.job_id)
        .bind(worker)
        .bind(job.attempts)
        .fetch_one(client)
        .await
}
