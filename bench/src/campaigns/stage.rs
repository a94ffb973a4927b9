//! The data of a campaign: a tenant with an account at the null provider, a list of leads, and content.

use std::time::{Duration, Instant};

use anyhow::Context;
use postrider_model::{
    Channel,
    campaigns::PhaseKind,
    ids::{ListId, RunId, TenantId, WorkspaceId},
};
use postrider_store::{
    campaigns::{self, JOB_SIZE, NewCampaign, NewPhase, assets},
    postgres::pool,
    tenancy::{accounts, tenants},
};
use sqlx::{Connection, PgConnection};

use super::null;
use crate::place::Database;

const LIST: &str = "everybody";
const ACCOUNT: &str = "nowhere";
const ACTOR: &str = "bench";
const TEXT: &str = "Hello {{ first_name }},\n\nthis is the news from {{ city }}, as every week. You have {{ points }} points \
                    by now.\nWe write to you at {{ lead.email }} because you asked for it.\n";
const HTML: &str = "<p>Hello {{ first_name }},</p><p>this is the news from {{ city }}, as every week. You have <b>{{ points }}</b> \
                    points by now.</p><p>We write to you at {{ lead.email }} because you asked for it.</p>";

/// Tenant, workspace and list of the campaigns of a database, valid for every copy of it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Stage {
    pub(super) tenant: TenantId,
    pub(super) workspace: WorkspaceId,
    pub(super) list: ListId,
}

impl Stage {
    /// Creates the data, with this many leads on the list.
    pub(super) async fn set(database: &Database<'_>, people: i64) -> anyhow::Result<Self> {
        let mut admin = database.admin().await?;
        let (tenant, workspace) = tenants::create(&mut admin, "bench", ACTOR).await?;
        let stage = Self { tenant, workspace, list: ListId::new() };
        let mut transaction = admin.begin().await?;
        pool::act_as(&mut transaction, tenant).await?;
        let account = accounts::NewAccount {
            tenant,
            workspace,
            name: ACCOUNT,
            provider: null::MANIFEST.name,
            settings: &serde_json::json!({}),
            secret: &"".into(),
        };
        accounts::create(&mut transaction, &null::master_key()?, &account, ACTOR).await?;
        transaction.commit().await?;
        stage.add_leads(&mut admin, people).await?;
        admin.close().await?;
        Ok(stage)
    }

    /// Adds leads to the list, without the foreign key checks.
    async fn add_leads(&self, admin: &mut PgConnection, people: i64) -> anyhow::Result<()> {
        sqlx::query("set session_replication_role = replica").execute(&mut *admin).await?;
        sqlx::query(
            "insert into execution.lead_lists (id, tenant_id, workspace_id, name) values ($1, $2, $3, $4)",
        )
        .bind(self.list.0)
        .bind(self.tenant.0)
        .bind(self.workspace.0)
        .bind(LIST)
        .execute(&mut *admin)
        .await?;
        sqlx::query(include_str!("../../sql/campaigns/leads.sql"))
            .bind(self.tenant.0)
            .bind(self.workspace.0)
            .bind(self.list.0)
            .bind(people)
            .execute(&mut *admin)
            .await
            .context("making leads")?;
        sqlx::raw_sql("vacuum analyze").execute(admin).await?;
        Ok(())
    }

    /// Sets a rate limit that is never reached, so that the worker requests call tokens.
    pub(super) async fn limit(&self, database: &Database<'_>) -> anyhow::Result<()> {
        let mut admin = database.admin().await?;
        sqlx::query("update tenancy.provider_accounts set limits = $2 where tenant_id = $1")
            .bind(self.tenant.0)
            .bind(serde_json::json!({ "rate_per_second": 1_000_000 }))
            .execute(&mut admin)
            .await
            .context("limiting the account")?;
        admin.close().await?;
        Ok(())
    }

    /// Adds items of runs that have ended.
    pub(super) async fn add_finished(&self, database: &Database<'_>, items: i64) -> anyhow::Result<()> {
        let mut admin = database.admin().await?;
        sqlx::query(include_str!("../../sql/campaigns/finished.sql"))
            .bind(self.tenant.0)
            .bind(self.workspace.0)
            .bind(items)
            .execute(&mut admin)
            .await
            .context("making finished items")?;
        sqlx::raw_sql("vacuum analyze").execute(&mut admin).await?;
        admin.close().await?;
        Ok(())
    }

    /// Creates a campaign for the whole list and deploys it. Returns the duration of the deployment. Sends no hint to the workers.
    pub(super) async fn deploy(
        &self,
        database: &Database<'_>,
        name: &str,
    ) -> anyhow::Result<(RunId, Duration)> {
        let app = database.app_pool(pool::Settings { connections_max: 1, ..Default::default() }).await?;
        let mut transaction = pool::begin_as(&app, self.tenant).await?;
        let content =
            serde_json::json!({ "subject": "News for {{ first_name }}", "text": TEXT, "html": HTML });
        let (asset_id, _) = assets::create(
            &mut transaction,
            self.tenant,
            self.workspace,
            "news",
            Channel::Email,
            &content,
            ACTOR,
        )
        .await?;
        let phase = NewPhase {
            phase: "only".to_owned(),
            kind: PhaseKind::Delivery,
            channel: Some(Channel::Email),
            asset_id: Some(asset_id),
            list: Some(LIST.to_owned()),
            provider_account: Some(ACCOUNT.to_owned()),
            failover_account: None,
            failure_tolerance: None,
            scheduled_for: None,
            quiet_time_seconds: None,
        };
        let campaign = NewCampaign { name: name.to_owned(), auto_advance: true, phases: vec![phase] };
        let campaign =
            campaigns::create(&mut transaction, self.tenant, self.workspace, &campaign, ACTOR).await?;
        transaction.commit().await?;

        let begun = Instant::now();
        let mut transaction = pool::begin_as(&app, self.tenant).await?;
        let deployed =
            campaigns::deploy(&mut transaction, self.tenant, campaign, None, JOB_SIZE, ACTOR).await?;
        transaction.commit().await?;
        let took = begun.elapsed();
        app.close().await;
        Ok((deployed.run_id, took))
    }
}
