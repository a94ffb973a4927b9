//! A database with a tenant whose functions run, and what its clients call. Each call is made by the role that may make it: the app
//! invokes and operates, the worker runs and fires. The superuser only sets the stage, and moves times, so that nothing is waited for.

use sqlx::{AssertSqlSafe, PgExecutor, PgPool, Postgres, Transaction, postgres::PgPoolOptions};
use uuid::Uuid;

use crate::{
    sql::{self, acting_as, execute, tenant, texts},
    world::World,
};

/// No ids.
pub const NOTHING: [Uuid; 0] = [];

/// The database, one tenant with the function `f`, and the clients of the three who act.
pub struct Stage {
    pub world: World,
    pub admin: PgPool,
    pub app: PgPool,
    pub worker: PgPool,
    pub own: Uuid,
}

/// A run as its holder knows it.
#[derive(Debug, Clone, PartialEq, sqlx::FromRow)]
pub struct Claimed {
    pub id: Uuid,
    pub tenant_id: Uuid,
    pub function_name: String,
    pub retry_count: i32,
    pub claims: i32,
    pub kind: Option<String>,
}

/// The capacity of a runner, and the functions that it can run.
#[derive(Debug, Clone)]
pub struct Capacity {
    pub limit: i32,
    pub per_tenant: i32,
    pub tenants: Vec<(Uuid, i32)>,
    pub kinds: &'static [&'static str],
    pub builtins: &'static [&'static str],
    pub after: Option<Uuid>,
}

impl Capacity {
    /// For so many, of everything.
    pub fn of(limit: i32) -> Self {
        Self {
            limit,
            per_tenant: limit,
            tenants: Vec::new(),
            kinds: &["http", "sql", "builtin"],
            builtins: &["noop"],
            after: None,
        }
    }
}

/// How an attempt ended.
#[derive(Debug, Clone, Copy)]
pub enum End {
    Done,
    Failed,
    /// A failure that would come again.
    Refused,
}

impl Stage {
    pub async fn new() -> anyhow::Result<Self> {
        let world = World::new().await?;
        let admin = world.client("postgres").await?;
        let (app, worker) = (world.client("postrider_app").await?, world.client("postrider_worker").await?);
        let (own, _) = tenant(&admin, "own").await?;
        let stage = Self { world, admin, app, worker, own };
        stage.function(own, "f").await?;
        Ok(stage)
    }

    /// Another tenant, with the function `f`.
    pub async fn another(&self, name: &str) -> anyhow::Result<Uuid> {
        let (id, _) = tenant(&self.admin, name).await?;
        self.function(id, "f").await?;
        Ok(id)
    }

    /// A function that runs once a day.
    pub async fn function(&self, tenant: Uuid, name: &str) -> Result<(), sqlx::Error> {
        self.function_with(tenant, name, "grain", "'day'").await
    }

    /// A function with these columns.
    pub async fn function_with(
        &self,
        tenant: Uuid,
        name: &str,
        columns: &str,
        values: &str,
    ) -> Result<(), sqlx::Error> {
        let sql = format!(
            "insert into jobs.functions (id, tenant_id, name, kind, target, {columns})
             values (gen_random_uuid(), '{tenant}', '{name}', 'sql', 'public.f', {values})"
        );
        execute(&self.admin, sql).await
    }

    /// One question of the app in the tenant's context, committed when it was answered.
    pub async fn ask<T>(&self, tenant: Uuid, sql: impl Into<String>) -> Result<T, sqlx::Error>
    where
        T: for<'r> sqlx::Decode<'r, Postgres> + sqlx::Type<Postgres> + Send + Unpin,
    {
        ask(&self.app, tenant, sql).await
    }

    /// One question of the worker in the tenant's context.
    pub async fn ask_as_worker<T>(&self, tenant: Uuid, sql: impl Into<String>) -> Result<T, sqlx::Error>
    where
        T: for<'r> sqlx::Decode<'r, Postgres> + sqlx::Type<Postgres> + Send + Unpin,
    {
        ask(&self.worker, tenant, sql).await
    }

    /// A statement of the app in the tenant's context.
    pub async fn tell(&self, tenant: Uuid, sql: impl Into<String>) -> Result<(), sqlx::Error> {
        let mut transaction = acting_for(&self.app, tenant).await?;
        execute(&mut *transaction, sql).await?;
        transaction.commit().await
    }

    /// Waits until somebody in this database waits for somebody else.
    pub async fn someone_waits(&self) -> anyhow::Result<()> {
        sql::someone_waits(&self.admin).await
    }

    /// Invokes a function, and says what came of it and which run it is.
    pub async fn acquire(
        &self,
        tenant: Uuid,
        function: &str,
        force: bool,
    ) -> Result<(String, Option<Uuid>), sqlx::Error> {
        let mut transaction = acting_for(&self.app, tenant).await?;
        let answer = acquire(&mut *transaction, function, None, force).await?;
        transaction.commit().await.map(|()| answer)
    }

    /// A new run of a function, which must not have one in this grain.
    pub async fn run(&self, tenant: Uuid, function: &str) -> anyhow::Result<Uuid> {
        match self.acquire(tenant, function, false).await? {
            (word, Some(id)) if word == "acquired" => Ok(id),
            other => anyhow::bail!("{function} of {tenant}: {other:?}"),
        }
    }

    /// A new run that the runner `w` holds.
    pub async fn held(&self, tenant: Uuid, function: &str) -> anyhow::Result<Claimed> {
        let id = self.run(tenant, function).await?;
        let mut claimed = claim(&self.worker, "w", &Capacity::of(100)).await?;
        anyhow::ensure!(claimed.len() == 1 && claimed[0].id == id, "the claim took {claimed:?}");
        Ok(claimed.remove(0))
    }

    /// A new run that ended so.
    pub async fn ended(&self, tenant: Uuid, function: &str, end: End) -> anyhow::Result<Uuid> {
        let held = self.held(tenant, function).await?;
        anyhow::ensure!(ends(&self.worker, "w", &[(&held, end)]).await?.len() == 1);
        Ok(held.id)
    }

    /// Many runs of `f` under keys of their own, made as only a superuser can. `more` has further columns and their values.
    pub async fn fill(
        &self,
        tenant: Uuid,
        runs: usize,
        columns: &str,
        values: &str,
    ) -> Result<(), sqlx::Error> {
        let sql = format!(
            "insert into jobs.job_runs (tenant_id, function_name, lock_key, grain, grain_start, {columns})
             select '{tenant}', 'f', gen_random_uuid()::text, 'day', now(), {values} from generate_series(1, {runs}) as at"
        );
        execute(&self.admin, sql).await
    }

    /// So many that wait for a runner, the first one longest.
    pub async fn fill_due(&self, tenant: Uuid, runs: usize) -> Result<(), sqlx::Error> {
        self.fill(tenant, runs, "started_at", "now() - interval '1 hour' + at * interval '1 millisecond'")
            .await
    }

    /// An expression over one row, as text; `null` where there is nothing.
    pub async fn look(&self, column: &str, table: &str, id: Uuid) -> Result<String, sqlx::Error> {
        let sql = format!("select coalesce(({column})::text, 'null') from jobs.{table} where id = '{id}'");
        Ok(texts(&self.admin, sql).await?.join(" "))
    }

    /// The same of a run.
    pub async fn look_at_run(&self, column: &str, id: Uuid) -> Result<String, sqlx::Error> {
        self.look(column, "job_runs", id).await
    }

    /// Everything there is in the schema, to see that nothing changed.
    pub async fn everything(&self) -> Result<String, sqlx::Error> {
        let tables =
            "select string_agg(format('select to_jsonb(t) as x from %s as t', oid::regclass), ' union all ')
                        from pg_class where relnamespace = 'jobs'::regnamespace and relkind = 'r'";
        let rows = texts(&self.admin, tables).await?.join("");
        let all = format!("select coalesce(jsonb_agg(x order by x)::text, '') from ({rows}) as rows");
        Ok(texts(&self.admin, all).await?.join(""))
    }

    /// The audit log of a subject, in order.
    pub async fn log_of(&self, subject: String) -> Result<Vec<String>, sqlx::Error> {
        let sql = format!(
            "select concat_ws(' ', action, 'by', actor, note) from tenancy.audit_log where subject = '{subject}' order by id"
        );
        texts(&self.admin, sql).await
    }

    /// Clients of this role, so many at once.
    pub async fn clients(&self, role: &str, count: u32) -> anyhow::Result<PgPool> {
        Ok(PgPoolOptions::new().max_connections(count).connect(&self.world.url(role)).await?)
    }
}

/// A transaction of this client in the tenant's context.
pub async fn acting_for(
    client: &PgPool,
    tenant: Uuid,
) -> Result<Transaction<'static, Postgres>, sqlx::Error> {
    let mut transaction = client.begin().await?;
    execute(&mut *transaction, acting_as(tenant)).await?;
    Ok(transaction)
}

/// One question in the tenant's context, committed when it was answered.
pub async fn ask<T>(client: &PgPool, tenant: Uuid, sql: impl Into<String>) -> Result<T, sqlx::Error>
where
    T: for<'r> sqlx::Decode<'r, Postgres> + sqlx::Type<Postgres> + Send + Unpin,
{
    let mut transaction = acting_for(client, tenant).await?;
    match sqlx::query_scalar(AssertSqlSafe(sql.into())).fetch_one(&mut *transaction).await {
        Ok(answer) => transaction.commit().await.map(|()| answer),
        Err(error) => transaction.rollback().await.and(Err(error)),
    }
}

/// Invokes a function in the caller's transaction.
pub async fn acquire(
    client: impl PgExecutor<'_>,
    function: &str,
    entity_hash: Option<&str>,
    force: bool,
) -> Result<(String, Option<Uuid>), sqlx::Error> {
    sqlx::query_as("select outcome, run_id from jobs.acquire_run(tenancy.current_tenant_id(), $1, $2, $3, '{\"a\": 1}', $4, 'me')")
        .bind(Uuid::now_v7())
        .bind(function)
        .bind(entity_hash)
        .bind(force)
        .fetch_one(client)
        .await
}

/// Claims runs.
pub async fn claim(
    client: impl PgExecutor<'_>,
    worker: &str,
    capacity: &Capacity,
) -> Result<Vec<Claimed>, sqlx::Error> {
    let (tenants, capacities): (Vec<Uuid>, Vec<i32>) = capacity.tenants.iter().copied().unzip();
    let claim = "select claimed.*
                   from jobs.tenants_with_due_runs($2, $3, $4, $5, $6, $7, $8) as due
                  cross join lateral jobs.claim_runs(due.tenant_id, $1, due.runs, $6, $7) as claimed";
    sqlx::query_as(claim)
        .bind(worker)
        .bind(capacity.limit)
        .bind(capacity.per_tenant)
        .bind(tenants)
        .bind(capacities)
        .bind(capacity.kinds)
        .bind(capacity.builtins)
        .bind(capacity.after)
        .fetch_all(client)
        .await
}

/// Ends runs, and gives the state of each; what is not held under that claim any more has none.
pub async fn ends(
    client: impl PgExecutor<'_>,
    worker: &str,
    ended: &[(&Claimed, End)],
) -> Result<Vec<String>, sqlx::Error> {
    let error = |end: End| match end {
        End::Done => None,
        End::Failed => Some("it failed"),
        End::Refused => Some("it never will"),
    };
    sqlx::query_scalar(
        "select ended.status || case when ended.retry_at is not null then ' again' else '' end
           from jobs.end_runs($1, $2, $3, $4, $5, $6, $7) as ended
          order by array_position($2, ended.id)",
    )
    .bind(ended.iter().map(|(run, _)| run.tenant_id).collect::<Vec<_>>())
    .bind(ended.iter().map(|(run, _)| run.id).collect::<Vec<_>>())
    .bind(ended.iter().map(|(run, _)| run.claims).collect::<Vec<_>>())
    .bind(worker)
    .bind(ended.iter().map(|_| Some(serde_json::json!({ "sum": 3 }))).collect::<Vec<_>>())
    .bind(ended.iter().map(|(_, end)| error(*end)).collect::<Vec<_>>())
    .bind(ended.iter().map(|(_, end)| matches!(end, End::Failed)).collect::<Vec<_>>())
    .fetch_all(client)
    .await
}
