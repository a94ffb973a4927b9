//! The campaign contract, in raw SQL, as an ordinary client in any language would use it.
//!
//! Each call is made by the role that may make it: the app deploys and resolves, the worker claims, reserves, settles and
//! completes. The superuser only sets the stage: it makes leads and moves times, so that nothing is ever waited for.

mod begin;
pub mod calls;
mod claim;
mod complete;
mod computed;
mod contract;
mod create;
mod deploy;
mod facts;
mod finalize;
mod importing;
mod keys;
mod launch;
mod limits;
mod people;
mod phases;
mod plans;
mod reports;
mod resolve;
mod resolving;
mod retaining;
mod same_ids;
mod states;
mod together;
mod turns;
mod versions;

use calls::{Begun, Job, Windows, claim, complete, finalize, reserve_all};
use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, PgExecutor, PgPool, Postgres, Transaction, postgres::PgRow};
use uuid::Uuid;

use crate::{
    sql::{acting_as, execute, number, tenant, texts},
    world::World,
};

/// No ids.
pub const NOTHING: [Uuid; 0] = [];

/// A database with one tenant that can send, and the clients of the three who act.
pub struct Stage {
    pub world: World,
    pub admin: PgPool,
    pub app: PgPool,
    pub worker: PgPool,
    pub own: Tenant,
}

/// A tenant with a workspace, and an account called `mail`.
#[derive(Debug, Clone, Copy)]
pub struct Tenant {
    pub id: Uuid,
    pub workspace: Uuid,
}

impl Stage {
    pub async fn new() -> anyhow::Result<Self> {
        let world = World::new().await?;
        let admin = world.client("postgres").await?;
        let (app, worker) = (world.client("postrider_app").await?, world.client("postrider_worker").await?);
        let own = Tenant::create(&admin, "own").await?;
        Ok(Self { world, admin, app, worker, own })
    }

    /// A transaction of the app in the tenant's context.
    pub async fn acting_for(&self, tenant: Tenant) -> Result<Transaction<'static, Postgres>, sqlx::Error> {
        let mut transaction = self.app.begin().await?;
        execute(&mut *transaction, acting_as(tenant.id)).await?;
        Ok(transaction)
    }

    /// One question of the app in the tenant's context, committed when it was answered.
    pub async fn ask<T>(&self, tenant: Tenant, sql: impl Into<String>) -> Result<T, sqlx::Error>
    where
        T: for<'r> sqlx::Decode<'r, Postgres> + sqlx::Type<Postgres> + Send + Unpin,
    {
        let mut transaction = self.acting_for(tenant).await?;
        match sqlx::query_scalar(AssertSqlSafe(sql.into())).fetch_one(&mut *transaction).await {
            Ok(answer) => transaction.commit().await.map(|()| answer),
            Err(error) => transaction.rollback().await.and(Err(error)),
        }
    }

    /// An asset of this channel.
    pub async fn asset(&self, tenant: Tenant, channel: &str) -> Result<Uuid, sqlx::Error> {
        let sql = format!(
            "select id from execution.create_asset(tenancy.current_tenant_id(), gen_random_uuid(), '{}', '{channel} ' || gen_random_uuid(), '{channel}',
                                                   '{{\"text\": \"hello\"}}', 'a test')",
            tenant.workspace
        );
        self.ask(tenant, sql).await
    }

    /// A list with this many leads, each with addresses of its own.
    pub async fn list(&self, tenant: Tenant, name: &str, leads: usize) -> Result<Uuid, sqlx::Error> {
        let list = Uuid::now_v7();
        let Tenant { id, workspace } = tenant;
        let sql = format!(
            "insert into execution.lead_lists (id, tenant_id, workspace_id, name) values ('{list}', '{id}', '{workspace}', '{name}');
             with made as (
                 insert into execution.leads (id, tenant_id, workspace_id, identity, email, phone)
                 select gen_random_uuid(), '{id}', '{workspace}', '{list} ' || at, at || '@{list}.example', '+1555' || at
                   from generate_series(1, {leads}) as at
              returning id)
             insert into execution.lead_list_members (tenant_id, list_id, lead_id) select '{id}', '{list}', id from made"
        );
        execute(&self.admin, sql).await.map(|()| list)
    }

    /// A campaign of these phases.
    pub async fn campaign(&self, tenant: Tenant, phases: &Value) -> Result<Uuid, sqlx::Error> {
        let id = Uuid::now_v7();
        let sql = format!(
            "select execution.create_campaign(tenancy.current_tenant_id(), '{id}', '{}', 'campaign {id}', true, '{}', 'a test')::text",
            tenant.workspace,
            phases.to_string().replace('\'', "''")
        );
        self.ask::<String>(tenant, sql).await.map(|_| id)
    }

    /// An e-mail phase to a new list of this many leads; `more` is added to it.
    pub async fn phase(&self, tenant: Tenant, leads: usize, more: &Value) -> anyhow::Result<Value> {
        let list = format!("list {}", Uuid::now_v7());
        self.list(tenant, &list, leads).await?;
        let mut phase = json!({
            "id": Uuid::now_v7(), "phase": "first", "channel": "email", "list": list, "provider_account": "mail",
        });
        let more = more.as_object().cloned().unwrap_or_default();
        let channel = more.get("channel").and_then(Value::as_str).unwrap_or("email").to_owned();
        phase["asset_id"] = json!(self.asset(tenant, &channel).await?);
        for (name, value) in more {
            phase[name] = value;
        }
        Ok(phase)
    }

    /// Deploys a campaign, with jobs of this size.
    pub async fn deploy(&self, tenant: Tenant, campaign: Uuid, job_size: usize) -> Result<Uuid, sqlx::Error> {
        let sql = format!(
            "select execution.deploy_campaign(tenancy.current_tenant_id(), '{campaign}', null, 'a test', null, {job_size})"
        );
        self.ask(tenant, sql).await
    }

    /// The whole of it: an e-mail campaign of the own tenant to this many leads, deployed in jobs of this size.
    pub async fn run(&self, leads: usize, job_size: usize) -> anyhow::Result<Uuid> {
        self.run_of(self.own, leads, job_size, &json!({})).await
    }

    /// The same for any tenant, with something more to say about the phase.
    pub async fn run_of(
        &self,
        tenant: Tenant,
        leads: usize,
        job_size: usize,
        more: &Value,
    ) -> anyhow::Result<Uuid> {
        let phase = self.phase(tenant, leads, more).await?;
        let campaign = self.campaign(tenant, &json!([phase])).await?;
        Ok(self.deploy(tenant, campaign, job_size).await?)
    }

    /// A run with one job of this many items, claimed by this worker.
    pub async fn job(&self, worker: &str, items: usize) -> anyhow::Result<Job> {
        let run = self.run(items, 10_000).await?;
        let mut jobs = claim(&self.worker, worker, 10).await?;
        anyhow::ensure!(jobs.len() == 1 && jobs[0].run_id == run, "the claim took {jobs:?}");
        Ok(jobs.remove(0))
    }

    /// Makes a lock older, as if its worker had been silent for so long.
    pub async fn age_lock(&self, job: &Job, age: &str) -> Result<(), sqlx::Error> {
        let sql = format!(
            "update execution.job_queue set locked_at = now() - interval '{age}' where id = '{}'",
            job.job_id
        );
        execute(&self.admin, sql).await
    }

    /// Lets a worker die: its lock goes stale, and `heir` takes the job.
    pub async fn take_over(&self, job: &Job, heir: &str) -> anyhow::Result<Job> {
        self.age_lock(job, "5 minutes 1 second").await?;
        let mut jobs = claim(&self.worker, heir, 1).await?;
        anyhow::ensure!(jobs.len() == 1 && jobs[0].job_id == job.job_id, "the claim took {jobs:?}");
        Ok(jobs.remove(0))
    }

    /// A column of one row, as text; `null` where there is nothing.
    pub async fn look(&self, column: &str, table: &str, id: Uuid) -> Result<String, sqlx::Error> {
        let sql =
            format!("select coalesce(({column})::text, 'null') from execution.{table} where id = '{id}'");
        Ok(texts(&self.admin, sql).await?.join(" "))
    }

    /// The audit log of a send job or an item, in order.
    pub async fn log_of(&self, id: Uuid) -> Result<Vec<String>, sqlx::Error> {
        let sql = format!(
            "select action || ' by ' || actor from execution.campaign_audit_log \
              where coalesce(outbox_id, job_id, run_id) = '{id}' order by id"
        );
        texts(&self.admin, sql).await
    }

    /// How many rows there are in each table of the schema.
    pub async fn census(&self) -> Result<Vec<String>, sqlx::Error> {
        let tables = "select relname::text from pg_class where relnamespace = 'execution'::regnamespace and relkind = 'r' order by 1";
        let mut counts = Vec::new();
        for table in texts(&self.admin, tables).await? {
            let count = number(&self.admin, format!("select count(*) from execution.{table}")).await?;
            counts.push(format!("{table}: {count}"));
        }
        Ok(counts)
    }
}

impl Tenant {
    pub async fn create(admin: &PgPool, name: &str) -> anyhow::Result<Self> {
        let (id, workspace) = tenant(admin, name).await?;
        let account = format!(
            "insert into tenancy.provider_accounts (id, tenant_id, workspace_id, name, provider, sealed_secret)
             values (gen_random_uuid(), '{id}', '{workspace}', 'mail', 'sim', 'sealed')"
        );
        execute(admin, account).await?;
        Ok(Self { id, workspace })
    }
}

/// A row of a query without parameters.
pub async fn row(client: impl PgExecutor<'_>, sql: impl Into<String>) -> Result<PgRow, sqlx::Error> {
    sqlx::query(AssertSqlSafe(sql.into())).fetch_one(client).await
}
