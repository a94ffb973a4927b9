//! A tenant whose functions run at the sim, in the database and in the program, and the processes that run them.

use anyhow::Context;
use postrider_model::{
    ids::TenantId,
    jobs::{
        RetryPolicy, Target,
        lock_key::{EntityHash, Grain},
    },
    seal::MasterKey,
};
use postrider_store::{
    Pool,
    jobs::{
        functions::{self, NewFunction},
        runs::{self, Acquired, Invocation},
    },
    postgres::pool,
};
use serde_json::{Value, json};
use sqlx::PgPool;
use uuid::Uuid;

use crate::{
    sql::{execute, number, tenant},
    world::{MASTER_KEY, Process, World, postrider},
};

/// The key that signs requests to functions at the sim.
pub const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

/// The settings of processes: functions behind URLs of this machine, and a poll several times a second.
pub const OFTEN: &str =
    "[outbound]\nallow_private = true\n[jobs]\npoll_interval_ms = 50\nsql_schemas = ['work']\n";

/// A function in the database, whose every effect is a row with the transaction that made it. Its input decides its behaviour: it takes up
/// to `sleep` seconds, fails as often as `fail` says, and refuses with `refuse`.
const EFFECTS: &str = "
    create schema work;
    grant usage on schema work to postrider_worker;
    create table work.effects (xid bigint not null default pg_current_xact_id()::text::bigint, input jsonb);
    create function work.effect(p_input jsonb) returns jsonb language plpgsql security definer as $$
    begin
        insert into work.effects (input) values (p_input);
        perform pg_sleep(random() * coalesce((p_input ->> 'sleep')::float8, 0));
        if p_input ? 'refuse' then
            raise exception 'not this one' using errcode = 'PR400';
        elsif random() < coalesce((p_input ->> 'fail')::float8, 0) then
            raise exception 'not this time';
        end if;
        return p_input;
    end $$;
    grant execute on function work.effect to postrider_worker";

/// A tenant, and the database it is in.
pub struct TenantDatabase {
    pub world: World,
    pub admin: PgPool,
    pub tenant: TenantId,
    app: Pool,
}

/// A schedule to be set.
#[derive(Debug, Clone, Copy)]
pub struct Schedule<'a> {
    pub function: &'a str,
    pub cron: &'a str,
    pub misfire: &'a str,
    pub input: &'a Value,
    pub depends_on: &'a [&'a str],
    /// When it is due first: a SQL expression.
    pub first: &'a str,
}

impl TenantDatabase {
    pub async fn new() -> anyhow::Result<Self> {
        let world = World::new().await?;
        let admin = world.client("postgres").await?;
        let (tenant, _) = tenant(&admin, "acme").await?;
        execute(&admin, EFFECTS).await?;
        let app = world.pool("postrider_app").await?;
        Ok(Self { world, admin, tenant: TenantId(tenant), app })
    }

    /// Sets a function. It may take a second.
    pub async fn function(
        &self,
        name: &str,
        target: &Target,
        grain: Grain,
        retry: RetryPolicy,
    ) -> anyhow::Result<()> {
        let secret = SECRET.into();
        let function = NewFunction { name, target, grain, timeout_seconds: 1, retry, secret: Some(&secret) };
        let key: MasterKey = MASTER_KEY.parse().context("the master key")?;
        let mut transaction = pool::begin_as(&self.app, self.tenant).await?;
        functions::put(&mut transaction, Some(&key), self.tenant, &function, "a test").await?;
        Ok(pool::commit(transaction).await?)
    }

    /// Invokes a function about something.
    pub async fn invoke(
        &self,
        function: &str,
        about: u32,
        input: &Value,
        force: bool,
    ) -> anyhow::Result<Acquired> {
        let entities = EntityHash::of(&json!({ "n": about }).to_string())?;
        let invocation = Invocation { function, input: Some(input), entities: Some(&entities), force };
        let mut transaction = pool::begin_as(&self.app, self.tenant).await?;
        let acquired = runs::acquire(&mut transaction, self.tenant, invocation, "a test").await?;
        pool::commit(transaction).await?;
        Ok(acquired)
    }

    /// Sets a schedule on the clocks of UTC, whose runs are about the schedule itself.
    pub async fn schedule(&self, schedule: &Schedule<'_>) -> anyhow::Result<Uuid> {
        let id = Uuid::now_v7();
        let entities = json!({ "schedule": id }).to_string();
        let sql = format!(
            "select jobs.put_schedule(tenancy.current_tenant_id(), $1, $2, $3, 'UTC', null, $4, $5::json, $6, $7, $8, true, {}, 'a test')",
            schedule.first
        );
        let mut transaction = pool::begin_as(&self.app, self.tenant).await?;
        sqlx::query(sqlx::AssertSqlSafe(sql))
            .bind(id)
            .bind(schedule.function)
            .bind(schedule.cron)
            .bind(schedule.input)
            .bind(&entities)
            .bind(EntityHash::of(&entities)?.as_str())
            .bind(schedule.depends_on)
            .bind(schedule.misfire)
            .execute(&mut *transaction)
            .await?;
        pool::commit(transaction).await?;
        Ok(id)
    }

    pub async fn count(&self, sql: impl Into<String>) -> anyhow::Result<i64> {
        Ok(number(&self.admin, sql).await?)
    }

    /// A process that fires and runs, whether or not it will ever serve.
    pub fn launch(
        &self,
        settings: &str,
        environment: &[(&str, &str)],
    ) -> anyhow::Result<(Process, tempfile::NamedTempFile)> {
        let config = self.world.config(settings)?;
        let process = launch(&config, environment)?;
        Ok((process, config))
    }
}

/// A process that fires and runs with this configuration.
pub fn launch(config: &tempfile::NamedTempFile, environment: &[(&str, &str)]) -> anyhow::Result<Process> {
    let mut command = postrider();
    command.envs(environment.iter().copied());
    Process::start(command.arg("--config").arg(config.path()).args(["serve", "--roles", "scheduler"]))
}

/// Lets a process finish, and checks that it ends well.
pub fn stop(mut process: Process) -> anyhow::Result<()> {
    process.signal("TERM")?;
    let status = tokio::task::block_in_place(|| process.wait())?;
    anyhow::ensure!(status.success(), "{status}: {}", process.lines().join("\n"));
    Ok(())
}

/// Tries again soon, so often.
pub fn soon(max_retries: u32) -> RetryPolicy {
    RetryPolicy { max_retries, initial_delay_ms: 20, backoff_multiplier: 2.0, max_delay_ms: 250 }
}
