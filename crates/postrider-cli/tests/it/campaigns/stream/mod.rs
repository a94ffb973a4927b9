//! The live stream of a campaign's history, as its readers meet it.

pub mod bounds;
pub mod client;
mod cutter;
mod lives;
mod order;
mod peers;
mod tenant;
mod watching;

use anyhow::Context;
use serde_json::{Value, json};
use sqlx::PgPool;
use uuid::Uuid;

use self::client::{Message, Reading};
use crate::{
    api::{self, Tenant},
    sql::{acting_as, execute, number, texts},
};

/// A server with a campaign whose only phase another service does, so that each of its controls is one event.
struct Stage {
    api: api::Stage,
    /// Connections of the application.
    app: PgPool,
    campaign: Uuid,
}

impl Stage {
    async fn new() -> anyhow::Result<Self> {
        Self::with("").await
    }

    /// With more settings of `[api]`, and what follows it.
    async fn with(more: &str) -> anyhow::Result<Self> {
        let api =
            api::Stage::with(&format!("[api]\nrate_per_second = 0\ninvalid_keys_per_second = 0\n{more}\n"))
                .await?;
        let app = api.world.client("postrider_app").await?;
        let campaign = campaign(&app, &api.acme, "spring").await?;
        Ok(Self { api, app, campaign })
    }

    fn url(&self) -> &str {
        &self.api.server.http_url
    }

    fn path(&self) -> String {
        path(self.campaign)
    }

    /// A reader of the campaign, from a position or from now on.
    async fn read(&self, after: Option<i64>) -> anyhow::Result<Reading> {
        let query = after.map(|after| format!("?after={after}")).unwrap_or_default();
        Reading::open(self.url(), &format!("{}{query}", self.path()), &self.api.acme.viewer, &[]).await
    }

    /// Writes so many events, each committed by itself, and says the number of the last.
    async fn write(&self, events: i64) -> anyhow::Result<i64> {
        let mut newest = 0;
        for _ in 0..events {
            newest = write(&self.app, &self.api.acme, self.campaign, 1).await?;
        }
        Ok(newest)
    }

    /// Writes so many events in one transaction.
    async fn write_at_once(&self, events: i64) -> anyhow::Result<i64> {
        write(&self.app, &self.api.acme, self.campaign, events).await
    }

    /// The whole history, from the rows.
    async fn history(&self) -> anyhow::Result<Vec<Value>> {
        history(&self.app, &self.api.acme, self.campaign).await
    }

    /// Makes everything that has happened old, and removes it as far as this number.
    async fn prune(&self, through: i64) -> anyhow::Result<()> {
        let sql = format!(
            "begin;
             set local session_replication_role = replica;
             update execution.campaign_events set at = at - interval '2 days' where sequence <= {through};
             commit;
             select execution.prune_campaign_events('{}', now() - interval '1 day', 100000)",
            self.api.acme.id.0
        );
        Ok(execute(&self.api.admin, sql).await?)
    }

    /// A number that the server counts.
    fn meter(&self, name: &str) -> anyhow::Result<f64> {
        let metrics = crate::http::get(self.url(), "/metrics")?;
        let line = metrics
            .body
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(' ').map(str::to_owned));
        Ok(line.map(|value| value.parse()).transpose()?.unwrap_or_default())
    }
}

fn path(campaign: Uuid) -> String {
    format!("/api/v2/campaigns/{campaign}/events")
}

/// A campaign with one phase of another service.
async fn campaign(app: &PgPool, tenant: &Tenant, name: &str) -> anyhow::Result<Uuid> {
    let id = Uuid::now_v7();
    let phases = json!([{ "id": Uuid::now_v7(), "phase": "only", "kind": "external" }]);
    let mut transaction = acting_for(app, tenant).await?;
    sqlx::query(
        "select execution.create_campaign(tenancy.current_tenant_id(), $1, $2, $3, false, $4, 'a test')",
    )
    .bind(id)
    .bind(tenant.workspace_id.0)
    .bind(name)
    .bind(phases)
    .execute(&mut *transaction)
    .await?;
    transaction.commit().await?;
    Ok(id)
}

/// Writes events by controls of the phase: it is started, and from then on paused and resumed.
async fn write(app: &PgPool, tenant: &Tenant, campaign: Uuid, events: i64) -> anyhow::Result<i64> {
    let mut transaction = acting_for(app, tenant).await?;
    let controls = format!(
        "do $$
         begin
             for i in 1..{events} loop
                 perform execution.control_phase(tenancy.current_tenant_id(), '{campaign}', 'only', phase.next, null, 'a test')
                    from (select case status when 'not_started' then 'start' when 'in_progress' then 'pause' else 'resume' end
                            from execution.campaign_phases where campaign_id = '{campaign}') as phase (next);
             end loop;
         end $$"
    );
    execute(&mut *transaction, controls).await?;
    let newest = format!("select sequence from execution.campaigns where id = '{campaign}'");
    let newest = number(&mut *transaction, newest).await?;
    transaction.commit().await?;
    Ok(newest)
}

async fn history(app: &PgPool, tenant: &Tenant, campaign: Uuid) -> anyhow::Result<Vec<Value>> {
    let mut transaction = acting_for(app, tenant).await?;
    let rows = texts(
        &mut *transaction,
        format!(
            "select jsonb_build_object('type', type, 'campaignId', campaign_id, 'phase', phase, 'sequence', sequence, 'payload', payload)::text
               from execution.campaign_events where campaign_id = '{campaign}' order by sequence"
        ),
    )
    .await?;
    rows.iter().map(|row| Ok(serde_json::from_str(row)?)).collect()
}

async fn acting_for(
    app: &PgPool,
    tenant: &Tenant,
) -> anyhow::Result<sqlx::Transaction<'static, sqlx::Postgres>> {
    let mut transaction = app.begin().await?;
    execute(&mut *transaction, acting_as(tenant.id.0)).await?;
    Ok(transaction)
}

/// The sequence of an event, which must be its id, too.
fn sequence(message: &Message) -> anyhow::Result<i64> {
    let event = message.json()?;
    let sequence = event["sequence"].as_i64().with_context(|| format!("no sequence: {message:?}"))?;
    anyhow::ensure!(message.id == Some(sequence.to_string()) && message.event.is_none(), "{message:?}");
    Ok(sequence)
}
