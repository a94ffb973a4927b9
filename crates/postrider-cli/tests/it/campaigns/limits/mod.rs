//! Limits of accounts, their circuits, and fail-over: real workers, and providers that keep their own count.

mod circuit;
mod failover;
mod patience;
pub mod provider;
mod rate;
mod vendors;
mod waiting;

use provider::Provider;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::{
    campaigns::stage::Stage,
    sql::execute,
    world::{Server, World},
};

/// A server that only works on campaigns, and may reach providers on this machine.
fn worker(world: &World, more: &str) -> anyhow::Result<Server> {
    Server::start(
        world,
        "campaigns",
        &format!("[outbound]\nallow_private = true\n[campaigns]\npoll_interval_ms = 50\n{more}\n"),
    )
}

/// An account at this provider.
async fn account(
    world: &World,
    stage: &Stage,
    name: &str,
    provider: &Provider,
    limits: &Value,
) -> anyhow::Result<Uuid> {
    let id = stage.account(world, name, "sim", &json!({ "url": provider.url() }), "").await?;
    limit(stage, id, limits).await?;
    Ok(id)
}

/// Sets what an account may be asked.
async fn limit(stage: &Stage, account: Uuid, limits: &Value) -> anyhow::Result<()> {
    let known = stage
        .ask(&format!(
            "select tenancy.limit_provider_account('{}', '{account}', '{limits}', 'a test')::text",
            stage.tenant
        ))
        .await?;
    anyhow::ensure!(known == "true", "there is no account {account}");
    Ok(())
}

/// Deploys an e-mail to the list `all` through this account, in jobs of this size; with another one to fail over to.
async fn deploy(
    stage: &Stage,
    account: &str,
    failover: Option<&str>,
    job_size: usize,
) -> anyhow::Result<Uuid> {
    let campaign = Uuid::now_v7();
    let asset = stage
        .ask(&format!(
            "select id::text from execution.create_asset(tenancy.current_tenant_id(), gen_random_uuid(), '{}', '{campaign}', 'email',
                                                         '{{\"subject\": \"Hello\", \"text\": \"Hello\"}}', 'a test')",
            stage.workspace
        ))
        .await?;
    let phases = json!([{
        "id": Uuid::now_v7(), "phase": "only", "channel": "email", "asset_id": asset, "list": "all",
        "provider_account": account, "failover_account": failover, "quiet_time_seconds": 2,
    }]);
    stage
        .ask(&format!(
            "select execution.create_campaign(tenancy.current_tenant_id(), '{campaign}', '{}', '{campaign}', true, '{phases}', 'a test')::text",
            stage.workspace
        ))
        .await?;
    let run = stage
        .ask(&format!(
            "select execution.deploy_campaign(tenancy.current_tenant_id(), '{campaign}', 'only', 'a test', null, {job_size})::text"
        ))
        .await?;
    Ok(run.parse()?)
}

/// One text about the jobs of a run, where they agree; all of them, where they do not.
async fn jobs(stage: &Stage, run: Uuid, column: &str) -> anyhow::Result<String> {
    let sql = format!(
        "select coalesce(string_agg(distinct coalesce(({column})::text, 'null'), ','), '') from execution.job_queue where run_id = '{run}'"
    );
    stage.ask(&sql).await
}

/// Makes what waits due, as if its time had come.
async fn make_due(stage: &Stage) -> anyhow::Result<()> {
    execute(&stage.admin, "update execution.job_queue set run_after = now() where status = 'queued'").await?;
    Ok(())
}
