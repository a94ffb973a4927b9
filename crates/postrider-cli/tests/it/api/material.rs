//! Material of campaigns: accounts, lists, assets, runs and their items.

use anyhow::Context;
use postrider_model::ids::{CampaignId, RunId};
use postrider_store::{campaigns, postgres::pool};
use serde_json::{Value, json};
use sqlx::PgPool;
use uuid::Uuid;

use super::{Reply, Stage, Tenant};
use crate::{
    campaigns::execution::calls::{Job, claim, finalize, reserve_all},
    sql::{execute, texts},
};

/// A name that nobody has.
pub const UNKNOWN: &str = "01890a5d-ac96-774b-bcce-b302099a8057";

/// Imports CSV.
pub fn import(stage: &Stage, tenant: &Tenant, list: &str, csv: &str) -> anyhow::Result<Reply> {
    let path = format!("/leads/import?list={list}");
    stage.call("POST", &path).key(&tenant.operator).bytes("text/csv", csv.as_bytes()).send()
}

/// So many leads on a list.
pub fn leads(stage: &Stage, tenant: &Tenant, list: &str, count: usize) -> anyhow::Result<()> {
    let rows: String = (0..count).map(|n| format!("{list}-{n:06}@example.org,{n}\n")).collect();
    let summary = import(stage, tenant, list, &format!("email,number\n{rows}"))?.expect(200)?;
    anyhow::ensure!(summary["added"] == count, "{summary}");
    Ok(())
}

/// An account called `mail` at the simulated provider.
pub async fn account(stage: &Stage, tenant: &Tenant) -> anyhow::Result<()> {
    let sql = format!(
        "insert into tenancy.provider_accounts (id, tenant_id, workspace_id, name, provider, sealed_secret)
         values (gen_random_uuid(), '{}', '{}', 'mail', 'sim', 'sealed')",
        tenant.id.0, tenant.workspace_id.0
    );
    Ok(execute(&stage.admin, sql).await?)
}

/// The content of an e-mail.
pub fn email_asset(name: &str) -> Value {
    json!({ "name": name, "channel": "email", "content": { "subject": "Hello", "text": "Number {{ number }}." } })
}

/// The id of a new asset.
pub fn asset(stage: &Stage, tenant: &Tenant, name: &str) -> anyhow::Result<String> {
    let made = stage.post(&tenant.operator, "/assets", &email_asset(name))?.expect(201)?;
    id(&made)
}

/// The `id` of an answer.
pub fn id(answer: &Value) -> anyhow::Result<String> {
    Ok(answer["id"].as_str().with_context(|| answer.to_string())?.to_owned())
}

/// A campaign of one e-mail phase, as a request.
pub fn one_phase(name: &str, asset: &str, list: &str) -> Value {
    json!({
        "name": name,
        "phases": [{ "phase": "mail", "channel": "email", "asset_id": asset, "list": list, "provider_account": "mail" }],
    })
}

/// A tenant's run over so many leads, in jobs of this size: the ids of the campaign and of the run.
pub async fn run(
    stage: &Stage,
    tenant: &Tenant,
    name: &str,
    items: usize,
    job_size: i32,
) -> anyhow::Result<(String, String)> {
    leads(stage, tenant, name, items)?;
    let asset = asset(stage, tenant, name)?;
    let made = stage.post(&tenant.operator, "/campaigns", &one_phase(name, &asset, name))?.expect(201)?;
    let campaign = id(&made)?;
    let run = deploy(stage, tenant, &campaign, job_size).await?;
    Ok((campaign, run.0.to_string()))
}

async fn deploy(stage: &Stage, tenant: &Tenant, campaign: &str, job_size: i32) -> anyhow::Result<RunId> {
    let mut transaction = pool::begin_as(&stage.admin, tenant.id).await?;
    let campaign: CampaignId = campaign.parse()?;
    let deployed = campaigns::deploy(&mut transaction, tenant.id, campaign, None, job_size, "test").await?;
    pool::commit(transaction).await?;
    Ok(deployed.run_id)
}

/// A worker that has taken every job that waits and reserved every item. Items are in the order of jobs.
pub async fn take_all(stage: &Stage) -> anyhow::Result<(PgPool, Vec<(Job, Vec<Uuid>)>)> {
    let worker = stage.world.client("postrider_worker").await?;
    let in_order =
        texts(&stage.admin, "select id::text from execution.job_queue order by created_at, position").await?;
    let mut jobs = claim(&worker, "w", 1000).await?;
    jobs.sort_by_key(|job| in_order.iter().position(|id| *id == job.job_id.to_string()));
    let mut taken = Vec::new();
    for job in jobs {
        let items = reserve_all(&worker, "w", &job).await?;
        taken.push((job, items));
    }
    Ok((worker, taken))
}

/// A run of one job with an item in doubt: the run and the item.
pub async fn doubt(stage: &Stage, tenant: &Tenant, name: &str) -> anyhow::Result<(String, Uuid)> {
    let (_, run) = run(stage, tenant, name, 1, 500).await?;
    let (worker, taken) = take_all(stage).await?;
    let item = taken[0].1[0];
    finalize(&worker, tenant.id.0, "w", &[(item, "in_doubt")]).await?;
    Ok((run, item))
}

/// Every item of a list, page by page; something may happen between two pages.
pub fn walk(
    stage: &Stage,
    key: &str,
    path: &str,
    size: usize,
    mut between: impl FnMut(usize) -> anyhow::Result<()>,
) -> anyhow::Result<Vec<Value>> {
    let (mut items, mut cursor, mut pages) = (Vec::new(), String::new(), 0);
    loop {
        let join = if path.contains('?') { '&' } else { '?' };
        let page = stage.get(key, &format!("{path}{join}limit={size}{cursor}"))?.expect(200)?;
        let on_it = page["items"].as_array().with_context(|| page.to_string())?;
        anyhow::ensure!(on_it.len() <= size, "a page of {}", on_it.len());
        items.extend(on_it.iter().cloned());
        let Some(next) = page["next_cursor"].as_str() else { return Ok(items) };
        anyhow::ensure!(on_it.len() == size, "a page of {} that is not the last", on_it.len());
        cursor = format!("&cursor={next}");
        pages += 1;
        between(pages)?;
    }
}

/// The values of one member, as text.
pub fn column(items: &[Value], member: &str) -> Vec<String> {
    items
        .iter()
        .map(|item| item[member].as_str().map_or_else(|| item[member].to_string(), str::to_owned))
        .collect()
}

/// That the answer to another tenant's id is the answer to an id that nobody has.
pub fn assert_same_404(
    stage: &Stage,
    key: &str,
    calls: &[(&str, &str, Value)],
    theirs: &str,
) -> anyhow::Result<()> {
    for (method, path, body) in calls {
        let ask = |id: &str| {
            let call = stage.call(method, &path.replace("{id}", id)).key(key);
            if body.is_null() { call.send() } else { call.json(body).send() }
        };
        let mut answers = Vec::new();
        for id in [theirs, UNKNOWN, "no-id", "7"] {
            let mut problem = ask(id)?.problem(404).with_context(|| format!("{method} {path} with {id}"))?;
            problem["request_id"] = Value::Null;
            answers.push(problem);
        }
        assert!(answers.iter().all(|answer| *answer == answers[0]), "{method} {path}: {answers:?}");
    }
    Ok(())
}
