//! Controls of phases, in raw SQL: the table, its events, and what a delivery does at each of them.

mod canceling;
mod deliveries;
mod machine;
mod pausing;
mod progress;

use serde_json::{Value, json};
use sqlx::Row;
use uuid::Uuid;

use super::{Stage, Tenant, row};
use crate::sql::{execute, number, texts};

/// The answer of control_phase.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    pub outcome: String,
    pub status: String,
    pub reason: Option<String>,
    pub sequence: i64,
    pub run_id: Option<Uuid>,
    pub items: Option<i64>,
    pub second_messages: Option<i64>,
}

/// A trigger on a phase of a campaign.
pub async fn control(
    stage: &Stage,
    campaign: Uuid,
    phase: &str,
    trigger: &str,
    expected: Option<&str>,
) -> Result<Answer, sqlx::Error> {
    let expected = expected.map_or("null".to_owned(), |state| format!("'{state}'"));
    let sql = format!(
        "select * from execution.control_phase(tenancy.current_tenant_id(), '{campaign}', '{phase}', '{trigger}', {expected}, 'a test', null, 2)"
    );
    let mut transaction = stage.acting_for(stage.own).await?;
    let answer = row(&mut *transaction, sql).await?;
    transaction.commit().await?;
    Ok(Answer {
        outcome: answer.try_get("outcome")?,
        status: answer.try_get("status")?,
        reason: answer.try_get("reason")?,
        sequence: answer.try_get("sequence")?,
        run_id: answer.try_get("run_id")?,
        items: answer.try_get("items")?,
        second_messages: answer.try_get("second_messages")?,
    })
}

/// A campaign with one phase that another service does.
pub async fn external(stage: &Stage) -> Result<Uuid, sqlx::Error> {
    stage.campaign(stage.own, &json!([external_phase("only")])).await
}

pub fn external_phase(name: &str) -> Value {
    json!({ "id": Uuid::now_v7(), "phase": name, "kind": "external" })
}

/// A campaign with one e-mail phase to so many leads.
pub async fn delivery(stage: &Stage, leads: usize, more: &Value) -> anyhow::Result<Uuid> {
    let phase = stage.phase(stage.own, leads, more).await?;
    Ok(stage.campaign(stage.own, &json!([phase])).await?)
}

/// The history of a campaign, as `sequence type phase`.
pub async fn history(stage: &Stage, campaign: Uuid) -> Result<Vec<String>, sqlx::Error> {
    let sql = format!(
        "select sequence || ' ' || type || ' ' || phase
                || case when type = 'campaign_progress' then ' ' || (payload ->> 'progressPercentage') else '' end
           from execution.campaign_events where campaign_id = '{campaign}' order by sequence"
    );
    texts(&stage.admin, sql).await
}

/// The types of what went out to the world about a campaign.
pub async fn published(stage: &Stage, tenant: Tenant, campaign: Uuid) -> Result<Vec<String>, sqlx::Error> {
    let sql = format!(
        "select event_type || ' ' || (payload ->> 'sequence') from m10_recovery.outbox
          where aggregate_type = 'campaign' and aggregate_id = '{campaign}' and tenant_id = '{}' order by id",
        tenant.id
    );
    texts(&stage.admin, sql).await
}

/// Puts a phase into a state, whatever it was, as nobody but the most powerful client can.
pub async fn force(stage: &Stage, campaign: Uuid, status: &str) -> Result<(), sqlx::Error> {
    let sql = format!(
        "set session_replication_role = replica;
         update execution.campaign_phases set status = '{status}' where campaign_id = '{campaign}';
         reset session_replication_role"
    );
    execute(&stage.admin, sql).await
}

pub async fn status(stage: &Stage, campaign: Uuid, phase: &str) -> Result<String, sqlx::Error> {
    let sql = format!(
        "select status from execution.campaign_phases where campaign_id = '{campaign}' and phase = '{phase}'"
    );
    Ok(texts(&stage.admin, sql).await?.concat())
}

/// Advances due phases, as workers do.
pub async fn advance(stage: &Stage) -> Result<(), sqlx::Error> {
    let advance = "select coalesce(bool_or(tended), false)
                  from execution.tenants_with_due_phases(1) as due, execution.tend_phase(due.tenant_id, 'w') as tended";
    while sqlx::query_scalar(advance).fetch_one(&stage.worker).await? {}
    Ok(())
}

/// How many rows the history has.
pub async fn events(stage: &Stage, campaign: Uuid) -> Result<i64, sqlx::Error> {
    number(
        &stage.admin,
        format!("select count(*) from execution.campaign_events where campaign_id = '{campaign}'"),
    )
    .await
}
