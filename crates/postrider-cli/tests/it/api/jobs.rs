//! Scheduled jobs, as their callers and operators meet them. Runs end because these tests end them, as a runner would.

mod answers;
mod browsers;
mod dead_letters;
mod functions;
mod health;
mod invoking;
mod runs;
mod schedules;

use anyhow::Context;
use postrider_store::{jobs::runs::ENDS_CHANNEL, postgres::wakeups};
use serde_json::{Value, json};
use uuid::Uuid;

use super::{Call, Reply, Stage, Tenant};

/// The end of a job run: its result, or its error and whether a retry is allowed.
pub type End = Result<Value, (String, bool)>;

/// A function of this name that does nothing, and more.
pub fn noop(stage: &Stage, name: &str, more: &Value) -> anyhow::Result<()> {
    let mut body = json!({ "target": { "builtin": "noop" } });
    for (member, value) in more.as_object().into_iter().flatten() {
        body[member] = value.clone();
    }
    stage
        .call("PUT", &format!("/functions/{name}"))
        .key(&stage.acme.admin)
        .json(&body)
        .send()?
        .expect(201)?;
    Ok(())
}

/// An invocation by an operator. Its query and body are whatever they are.
pub fn invocation(stage: &Stage, tenant: &Tenant, path: &str, body: &Value) -> Call {
    stage.call("POST", &format!("/functions/{path}")).key(&tenant.operator).json(body)
}

/// Invokes without waiting: the id of the run.
pub fn begin(stage: &Stage, name: &str) -> anyhow::Result<String> {
    let made =
        invocation(stage, &stage.acme, &format!("{name}/invoke?wait=0"), &json!({})).send()?.expect(202)?;
    job_id(&made)
}

pub fn job_id(answer: &Value) -> anyhow::Result<String> {
    Ok(answer["job_id"].as_str().with_context(|| answer.to_string())?.to_owned())
}

/// A run that was taken: its tenant, its id and the claim.
pub type Held = (Uuid, Uuid, i32);

/// Takes every run that waits, of whomever.
pub async fn claim_all(stage: &Stage) -> anyhow::Result<Vec<Held>> {
    let worker = stage.world.client("postrider_worker").await?;
    let claim = "select claimed.tenant_id, claimed.id, claimed.claims
                   from jobs.tenants_with_due_runs(1000, 1000, '{}', '{}', '{http,sql,builtin}', '{noop}', null) as due
                  cross join lateral jobs.claim_runs(due.tenant_id, 'w', due.runs, '{http,sql,builtin}', '{noop}') as claimed";
    Ok(sqlx::query_as(claim).fetch_all(&worker).await?)
}

/// Takes every run of a tenant that waits.
pub async fn claim_all_of(stage: &Stage, tenant: Uuid) -> anyhow::Result<Vec<Held>> {
    let worker = stage.world.client("postrider_worker").await?;
    let claim =
        "select tenant_id, id, claims from jobs.claim_runs($1, 'w', 1000, '{http,sql,builtin}', '{noop}')";
    Ok(sqlx::query_as(claim).bind(tenant).fetch_all(&worker).await?)
}

/// Ends runs that were taken, without telling anybody.
pub async fn end(stage: &Stage, held: &[Held], end: &End) -> anyhow::Result<()> {
    let worker = stage.world.client("postrider_worker").await?;
    let (mut tenants, mut ids, mut claims) = (Vec::new(), Vec::new(), Vec::new());
    for (tenant, id, claim) in held {
        tenants.push(*tenant);
        ids.push(*id);
        claims.push(*claim);
    }
    let (result, error, again) = match end {
        Ok(result) => (Some(result.clone()), None, false),
        Err((error, again)) => (None, Some(error.clone()), *again),
    };
    let ended: Vec<(Uuid,)> = sqlx::query_as("select id from jobs.end_runs($1, $2, $3, 'w', $4, $5, $6)")
        .bind(&tenants)
        .bind(&ids)
        .bind(&claims)
        .bind(vec![result; ids.len()])
        .bind(vec![error; ids.len()])
        .bind(vec![again; ids.len()])
        .fetch_all(&worker)
        .await?;
    anyhow::ensure!(ended.len() == held.len(), "{ended:?} of {held:?}");
    Ok(())
}

/// Takes every run that waits and ends it so, and says so.
pub async fn end_all(stage: &Stage, how: &End) -> anyhow::Result<()> {
    let held = claim_all(stage).await?;
    anyhow::ensure!(!held.is_empty(), "nothing waits");
    end(stage, &held, how).await?;
    Ok(wakeups::notify(&stage.admin, ENDS_CHANNEL).await?)
}

/// The same once somebody has invoked something.
pub async fn end_what_comes(stage: &Stage, how: &End) -> anyhow::Result<()> {
    crate::world::eventually("a run", || async {
        Ok(stage
            .count("select count(*) from jobs.job_runs where status = 'running' and locked_by is null")
            .await?
            > 0)
    })
    .await?;
    end_all(stage, how).await
}

/// Sends a call while something else happens.
pub fn meanwhile(call: Call) -> tokio::task::JoinHandle<anyhow::Result<Reply>> {
    tokio::task::spawn_blocking(move || call.send())
}
