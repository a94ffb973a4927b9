//! Requests read schema `tenancy` through indexes, with any rows in the tables and any statistics: rows are counted while the functions run.

use anyhow::Context;
use sqlx::{PgConnection, PgPool};
use uuid::Uuid;

use crate::{
    sql::{acting_as, execute, number, tenant, texts},
    world::World,
};

const TABLES: [&str; 6] =
    ["api_keys", "sessions", "login_codes", "requests", "provider_accounts", "audit_log"];

/// Runs a step, and fails when it read more rows than this.
async fn frugal(client: &mut PgConnection, role: &str, sql: &str, most: i64) -> anyhow::Result<Vec<String>> {
    let read = format!(
        "select coalesce(sum(seq_tup_read + idx_tup_fetch), 0)::bigint from pg_stat_xact_user_tables
          where schemaname = 'tenancy' and relname in ('{}')",
        TABLES.join("', '")
    );
    let before = number(&mut *client, &read).await?;
    execute(&mut *client, format!("set local role postrider_{role}")).await?;
    let answer = texts(&mut *client, sql).await?;
    execute(&mut *client, "reset role").await?;
    let rows = number(&mut *client, &read).await? - before;
    anyhow::ensure!(rows <= most, "{sql} read {rows} rows");
    Ok(answer)
}

/// The statements of a request, in a transaction that leaves no trace.
async fn serve(client: &mut PgConnection, tenant: Uuid) -> anyhow::Result<()> {
    execute(&mut *client, format!("begin; {}", acting_as(tenant))).await?;
    let key = Uuid::now_v7();
    let hash = "sha256(''::bytea)";
    let workspace = format!("(select id from tenancy.workspaces where tenant_id = '{tenant}')");
    for (role, sql, answer, most) in [
        (
            "app",
            format!(
                "select tenancy.create_api_key('{tenant}', '{key}', 'new', 'viewer', 'h', {hash}, null, 'me')::text"
            ),
            "",
            2,
        ),
        ("app", format!("select state from tenancy.authenticate_api_key('{tenant}', {hash})"), "active", 4),
        (
            "app",
            format!(
                "select (tenancy.open_session('{tenant}', '{key}', '{key}', {hash}, 'ann', '1 hour', '1 day', 'me') > now())::text"
            ),
            "true",
            3,
        ),
        ("app", format!("select state from tenancy.authenticate_session('{tenant}', {hash})"), "active", 6),
        ("app", format!("select tenancy.end_session('{tenant}', '{key}', 'me')::text"), "true", 2),
        ("app", format!("select count(*)::text from tenancy.use_login_code('{tenant}', {hash})"), "0", 2),
        ("app", format!("select state from tenancy.begin_request('{tenant}', 'new', {hash})"), "fresh", 2),
        (
            "app",
            format!("select tenancy.finish_request('{tenant}', 'new', 200::smallint, null, 'b')::text"),
            "",
            3,
        ),
        ("app", format!("select state from tenancy.begin_request('{tenant}', 'new', {hash})"), "answered", 3),
        (
            "app",
            format!(
                "select tenancy.create_provider_account('{tenant}', '{key}', {workspace}, 'new', 'sim', '{{}}', 'x', 'me')::text"
            ),
            "",
            2,
        ),
        ("app", format!("select provider from tenancy.account_of_callback('{tenant}', '{key}')"), "sim", 2),
        (
            "worker",
            format!(
                "select provider from tenancy.provider_accounts where tenant_id = '{tenant}' and id = '{key}'"
            ),
            "sim",
            2,
        ),
        (
            "app",
            format!("select tenancy.rotate_provider_account('{tenant}', '{key}', 'y', 'me')::text"),
            "true",
            3,
        ),
        (
            "app",
            format!("select tenancy.remove_provider_account('{tenant}', '{key}', 'me')::text"),
            "true",
            3,
        ),
        ("app", format!("select tenancy.revoke_api_key('{tenant}', '{key}', 'me')::text"), "true", 4),
        ("worker", format!("select tenancy.prune_requests('{tenant}', 10)::text"), "0", 3),
        ("worker", format!("select tenancy.prune_sessions('{tenant}', 10)::text"), "0", 3),
    ] {
        let said = frugal(client, role, &sql, most).await?;
        anyhow::ensure!(said == [answer], "{sql}: {said:?}");
    }
    for old in ["tenants_with_old_requests", "tenants_with_old_sessions"] {
        frugal(client, "worker", &format!("select id::text from tenancy.{old}() as old (id)"), 6).await?;
    }
    execute(&mut *client, "rollback").await?;
    Ok(())
}

async fn serve_often(admin: &PgPool, session: &mut PgConnection, tenant: Uuid) -> anyhow::Result<()> {
    for _ in 0..7 {
        serve(session, tenant).await?;
    }
    let mut new_session = admin.acquire().await?;
    serve(&mut new_session, tenant).await
}

/// Keys, accounts and answered requests of a tenant.
async fn fill(admin: &PgPool, tenant: Uuid) -> Result<(), sqlx::Error> {
    let sql = format!(
        "insert into tenancy.api_keys (id, tenant_id, name, role, hint, key_hash)
         select gen_random_uuid(), '{tenant}', at::text, 'viewer', 'h', sha256(at::text::bytea) from generate_series(1, 5000) as at;
         insert into tenancy.sessions (id, tenant_id, key_id, token_hash, idle_for, expires_at)
         select gen_random_uuid(), '{tenant}', id, key_hash, '1 hour', now() + interval '1 day' from tenancy.api_keys where tenant_id = '{tenant}';
         insert into tenancy.login_codes (tenant_id, code_hash, key_id, expires_at)
         select '{tenant}', key_hash, id, now() + interval '1 minute' from tenancy.api_keys where tenant_id = '{tenant}';
         insert into tenancy.provider_accounts (id, tenant_id, workspace_id, name, provider, sealed_secret)
         select gen_random_uuid(), '{tenant}', workspace.id, at::text, 'sim', 'x'
           from generate_series(1, 5000) as at, tenancy.workspaces as workspace where workspace.tenant_id = '{tenant}';
         insert into tenancy.requests (tenant_id, idempotency_key, fingerprint, status)
         select '{tenant}', at::text, sha256(''), 200 from generate_series(1, 20000) as at"
    );
    execute(admin, sql).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_is_served_by_indexes_under_any_statistics() -> anyhow::Result<()> {
    let admin = World::new().await?.client("postgres").await?;
    let (own, other) = (tenant(&admin, "own").await?.0, tenant(&admin, "other").await?.0);
    for table in TABLES {
        execute(&admin, format!("alter table tenancy.{table} set (autovacuum_enabled = off)")).await?;
    }
    let mut session = admin.acquire().await?;
    serve_often(&admin, &mut session, own).await.context("empty")?;
    fill(&admin, other).await?;
    serve_often(&admin, &mut session, own).await.context("never analyzed")?;
    execute(&admin, "vacuum analyze").await?;
    serve_often(&admin, &mut session, own).await.context("the tenant is not in the statistics")?;
    fill(&admin, own).await?;
    serve_often(&admin, &mut session, own)
        .await
        .context("many rows of the tenant that is not in the statistics")?;
    execute(&admin, "vacuum analyze").await?;
    serve_often(&admin, &mut session, own).await.context("analyzed")?;
    execute(&admin, "delete from tenancy.requests").await?;
    serve_often(&admin, &mut session, own).await.context("drained")
}
