//! A tenant whose functions run in real processes, and what its operators do by HTTP.

use anyhow::Context;
use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, PgPool};
use uuid::Uuid;

use super::stage::acting_for;
use crate::{
    api::client::{Call, Reply},
    sql::{execute, number, texts},
    world::{Server, World, eventually},
};

/// Retries that nobody waits for: 10, 20 and 40 ms later.
pub fn soon(max_retries: u32) -> Value {
    json!({ "max_retries": max_retries, "initial_delay_ms": 10, "backoff_multiplier": 2.0, "max_delay_ms": 1000 })
}

/// Part of a configuration: how jobs are run. They are looked for often, because what a test makes by SQL is hinted by nobody.
/// Functions of the schema `shop` may be run, unless `more` says which.
pub fn jobs(more: &str) -> String {
    let schemas = if more.contains("sql_schemas") { "" } else { "sql_schemas = ['shop']\n" };
    format!("[outbound]\nallow_private = true\n[jobs]\npoll_interval_ms = 25\n{schemas}{more}\n")
}

/// A tenant on a database.
pub struct Operators {
    pub world: World,
    pub admin: PgPool,
    pub app: PgPool,
    pub tenant: Uuid,
    pub workspace: Uuid,
    pub key: String,
}

/// A run as its row has it.
#[derive(Debug, Clone, PartialEq, sqlx::FromRow)]
pub struct Run {
    pub id: Uuid,
    pub function_name: String,
    pub status: String,
    pub result: Option<Value>,
    pub error_message: Option<String>,
    pub retry_count: i32,
    pub claims: i32,
    pub waits: bool,
    pub is_held: bool,
}

impl Run {
    /// The error of the last attempt.
    pub fn error(&self) -> &str {
        self.error_message.as_deref().unwrap_or_default()
    }

    fn is_over(&self) -> bool {
        self.status != "running" && !self.waits
    }
}

impl Operators {
    pub async fn new() -> anyhow::Result<Self> {
        let world = World::new().await?;
        let made = world.postrider(&["tenants", "create", "acme", "--json"])?;
        anyhow::ensure!(made.code == 0, "{}", made.stderr);
        let made: Value = serde_json::from_str(&made.stdout)?;
        let text = |member: &str| made[member].as_str().with_context(|| made.to_string());
        let key = text("admin_key")?.to_owned();
        let (tenant, workspace) = (text("tenant_id")?.parse()?, text("workspace_id")?.parse()?);
        let (admin, app) = (world.client("postgres").await?, world.client("postrider_app").await?);
        Ok(Self { world, admin, app, tenant, workspace, key })
    }

    /// Another tenant.
    pub async fn another(&self, name: &str) -> anyhow::Result<Uuid> {
        Ok(crate::sql::tenant(&self.admin, name).await?.0)
    }

    /// A process with these roles and these settings of jobs.
    pub fn serve(&self, roles: &str, more: &str) -> anyhow::Result<Server> {
        Server::start(&self.world, roles, &jobs(more))
    }

    /// A request of the tenant's administrator.
    pub fn call(&self, server: &Server, method: &str, path: &str, body: &Value) -> anyhow::Result<Reply> {
        self.call_at(&server.http_url, method, path, body)
    }

    /// The same of whoever knows no more than the address.
    pub fn call_at(&self, http_url: &str, method: &str, path: &str, body: &Value) -> anyhow::Result<Reply> {
        let call = Call::new(http_url, method, &format!("/api/v2{path}")).key(&self.key);
        if body.is_null() { call.send() } else { call.json(body).send() }
    }

    /// Sets a function, and gives what was answered.
    pub fn put(&self, server: &Server, name: &str, function: &Value) -> anyhow::Result<Value> {
        let answer = self.call(server, "PUT", &format!("/functions/{name}"), function)?;
        anyhow::ensure!([200, 201].contains(&answer.status), "{name}: {}", answer.text());
        answer.json()
    }

    /// Invokes a function by HTTP, without waiting for its end.
    pub fn invoke(&self, server: &Server, name: &str, input: &Value) -> anyhow::Result<Uuid> {
        let path = format!("/functions/{name}/invoke?wait=0");
        let answer = self.call(server, "POST", &path, &json!({ "input": input }))?.expect(202)?;
        Ok(answer["job_id"].as_str().with_context(|| answer.to_string())?.parse()?)
    }

    /// Invokes a function in SQL: what came of it, and the run. No hint is sent.
    pub async fn acquire(&self, tenant: Uuid, name: &str, about: Option<&str>) -> anyhow::Result<Uuid> {
        let mut transaction = acting_for(&self.app, tenant).await?;
        let (outcome, run) = super::stage::acquire(&mut *transaction, name, about, false).await?;
        transaction.commit().await?;
        anyhow::ensure!(outcome == "acquired", "{name}: {outcome} {run:?}");
        run.context("no run")
    }

    /// Whether a function could be invoked now. It is not.
    pub async fn is_free(&self, name: &str) -> anyhow::Result<bool> {
        let mut transaction = acting_for(&self.app, self.tenant).await?;
        let (outcome, _) = super::stage::acquire(&mut *transaction, name, None, false).await?;
        transaction.rollback().await?;
        Ok(outcome == "acquired")
    }

    /// A function that no API would set up so.
    pub async fn force_function(
        &self,
        tenant: Uuid,
        name: &str,
        kind: &str,
        target: &str,
        max_retries: u32,
    ) -> anyhow::Result<()> {
        let sql = format!(
            "insert into jobs.functions (id, tenant_id, name, kind, target, max_retries, initial_delay_ms, timeout_seconds)
             values (gen_random_uuid(), '{tenant}', '{name}', '{kind}', '{target}', {max_retries}, 10, 60)"
        );
        Ok(execute(&self.admin, sql).await?)
    }

    pub async fn run(&self, id: Uuid) -> anyhow::Result<Run> {
        let sql = "select id, function_name, status, result, error_message, retry_count, claims, retry_at is not null as waits,
                          locked_by is not null as is_held
                     from jobs.job_runs where id = $1";
        Ok(sqlx::query_as(sql).bind(id).fetch_one(&self.admin).await?)
    }

    /// Waits until a run is so.
    pub async fn until(&self, id: Uuid, what: &str, is: impl Fn(&Run) -> bool) -> anyhow::Result<Run> {
        let reached = eventually(what, async || Ok(is(&self.run(id).await?))).await;
        let run = self.run(id).await?;
        reached.with_context(|| format!("{run:?}"))?;
        Ok(run)
    }

    /// Waits until a run is over, with all its retries.
    pub async fn over(&self, id: Uuid) -> anyhow::Result<Run> {
        self.until(id, "the run is over", Run::is_over).await
    }

    /// Waits until a run is over, and checks how it ended.
    pub async fn ends(&self, id: Uuid, status: &str) -> anyhow::Result<Run> {
        let run = self.over(id).await?;
        anyhow::ensure!(run.status == status, "not {status}: {run:?}");
        Ok(run)
    }

    /// The letters about a run: their codes, and whether somebody must still look.
    pub async fn letters(&self, id: Uuid) -> anyhow::Result<Vec<String>> {
        let sql = format!(
            "select error_code || case when is_resolved then ' resolved' else '' end
               from jobs.sync_errors where source_entity_id = '{id}' order by id"
        );
        Ok(texts(&self.admin, sql).await?)
    }

    pub async fn count(&self, sql: &str) -> anyhow::Result<i64> {
        Ok(number(&self.admin, sql).await?)
    }

    pub async fn text(&self, sql: &str) -> anyhow::Result<String> {
        Ok(sqlx::query_scalar(AssertSqlSafe(sql.to_owned())).fetch_one(&self.admin).await?)
    }
}
