//! Raw SQL of an ordinary client, and how the server refuses it.

use std::fmt::Debug;

use anyhow::Context;
use sqlx::{AssertSqlSafe, PgExecutor, PgPool, postgres::PgDatabaseError};
use uuid::Uuid;

use crate::world::eventually;

/// A refusal, as a client sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    pub code: String,
    pub message: String,
    pub detail: String,
    pub hint: String,
}

/// The server's refusal of a statement. An error if the server executed it.
pub fn refusal<T: Debug>(outcome: Result<T, sqlx::Error>) -> anyhow::Result<Refusal> {
    let error = match outcome {
        Ok(value) => anyhow::bail!("it was allowed, and answered {value:?}"),
        Err(error) => error,
    };
    let said = error.as_database_error().and_then(|error| error.try_downcast_ref::<PgDatabaseError>());
    let said = said.with_context(|| format!("the error is not the server's: {error}"))?;
    Ok(Refusal {
        code: said.code().to_owned(),
        message: said.message().to_owned(),
        detail: said.detail().unwrap_or_default().to_owned(),
        hint: said.hint().unwrap_or_default().to_owned(),
    })
}

/// Runs one or more statements that have no parameters.
pub async fn execute(client: impl PgExecutor<'_>, sql: impl Into<String>) -> Result<(), sqlx::Error> {
    sqlx::raw_sql(AssertSqlSafe(sql.into())).execute(client).await.map(drop)
}

/// Statements that let a transaction of any login act for a tenant, in a database that was made from the template.
pub fn acting_as(tenant: Uuid) -> String {
    let signature = crate::world::signature(tenant);
    format!("set local app.current_tenant_id = '{tenant}'; set local app.tenant_signature = '{signature}'")
}

/// The only column of every row, as text.
pub async fn texts(client: impl PgExecutor<'_>, sql: impl Into<String>) -> Result<Vec<String>, sqlx::Error> {
    sqlx::query_scalar(AssertSqlSafe(sql.into())).fetch_all(client).await
}

/// A single number.
pub async fn number(client: impl PgExecutor<'_>, sql: impl Into<String>) -> Result<i64, sqlx::Error> {
    sqlx::query_scalar(AssertSqlSafe(sql.into())).fetch_one(client).await
}

/// Waits until a session of this database waits for a lock of another.
pub async fn someone_waits(admin: &PgPool) -> anyhow::Result<()> {
    let waiting = "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'";
    eventually("a session waits for a lock", async || Ok(number(admin, waiting).await? > 0)).await
}

/// A new tenant, with its workspace.
pub async fn tenant(admin: &PgPool, name: &str) -> anyhow::Result<(Uuid, Uuid)> {
    let (tenant, workspace) = (Uuid::now_v7(), Uuid::now_v7());
    sqlx::query("select tenancy.create_tenant($1, $2, $3, 'a test')")
        .bind(tenant)
        .bind(workspace)
        .bind(name)
        .execute(admin)
        .await?;
    Ok((tenant, workspace))
}
