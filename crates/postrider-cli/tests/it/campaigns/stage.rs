//! Fixtures of a campaign: a tenant with an account at the sim, a list of leads, content, phases.

use std::collections::BTreeMap;

use anyhow::Context;
use postrider_model::{
    ids::{TenantId, WorkspaceId},
    seal::MasterKey,
};
use postrider_store::{Pool, postgres::pool, tenancy::accounts};
use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, PgPool};
use uuid::Uuid;

use crate::{
    sql::{execute, tenant, texts},
    world::{MASTER_KEY, Sim, World, eventually},
};

/// A tenant on a database, ready for campaigns.
pub struct Stage {
    pub admin: PgPool,
    pub tenant: Uuid,
    pub workspace: Uuid,
}

impl Stage {
    pub async fn new(world: &World, name: &str) -> anyhow::Result<Self> {
        let admin = world.client("postgres").await?;
        let (tenant, workspace) = tenant(&admin, name).await?;
        Ok(Self { admin, tenant, workspace })
    }

    /// With an account called `sim` at the sim, and a list called `all` of so many leads.
    pub async fn with_sim(world: &World, sim: &Sim, leads: usize) -> anyhow::Result<Self> {
        let stage = Self::new(world, &format!("tenant {}", Uuid::now_v7())).await?;
        stage.account(world, "sim", "sim", &json!({ "url": sim.http_url }), "").await?;
        stage.leads("all", leads).await?;
        Ok(stage)
    }

    pub async fn account(
        &self,
        world: &World,
        name: &str,
        provider: &str,
        settings: &Value,
        secret: &str,
    ) -> anyhow::Result<Uuid> {
        self.account_through(&world.pool("postrider_app").await?, name, provider, settings, secret).await
    }

    /// The same through a pool of the app's role, on whatever server.
    pub async fn account_through(
        &self,
        pool: &Pool,
        name: &str,
        provider: &str,
        settings: &Value,
        secret: &str,
    ) -> anyhow::Result<Uuid> {
        let tenant = TenantId(self.tenant);
        let mut transaction = pool::begin_as(pool, tenant).await?;
        let workspace = WorkspaceId(self.workspace);
        let account =
            accounts::NewAccount { tenant, workspace, name, provider, settings, secret: &secret.into() };
        let key: MasterKey = MASTER_KEY.parse()?;
        let id = accounts::create(&mut transaction, &key, &account, "a test").await?;
        pool::commit(transaction).await?;
        Ok(id.0)
    }

    /// Leads `lead0@example.com`, `+491700000000`, … on a list, with attributes `name` and `n`.
    pub async fn leads(&self, list: &str, count: usize) -> anyhow::Result<()> {
        let Self { tenant, workspace, .. } = self;
        let sql = format!(
            "with list as (insert into execution.lead_lists (id, tenant_id, workspace_id, name)
                           values (gen_random_uuid(), '{tenant}', '{workspace}', '{list}') returning id),
                  people as (insert into execution.leads (id, tenant_id, workspace_id, identity, email, phone, attributes)
                             select gen_random_uuid(), '{tenant}', '{workspace}', '{list}:' || n,
                                    '{list}' || n || '@example.com', '+49170' || lpad(n::text, 7, '0'),
                                    jsonb_build_object('name', 'Person ' || n, 'n', n)
                               from generate_series(0, {count} - 1) as n returning id)
             insert into execution.lead_list_members (tenant_id, list_id, lead_id)
             select '{tenant}', list.id, people.id from list, people"
        );
        execute(&self.admin, sql).await?;
        Ok(())
    }

    /// Runs a statement in the tenant's context and answers with its single text.
    pub async fn ask(&self, sql: &str) -> anyhow::Result<String> {
        let mut transaction = self.admin.begin().await?;
        execute(&mut *transaction, format!("set local app.current_tenant_id = '{}'", self.tenant)).await?;
        let answer = sqlx::query_scalar(AssertSqlSafe(sql)).fetch_one(&mut *transaction).await;
        match answer {
            Ok(answer) => {
                transaction.commit().await?;
                Ok(answer)
            }
            Err(error) => {
                transaction.rollback().await?;
                Err(error).with_context(|| sql.to_owned())
            }
        }
    }

    /// A campaign of one phase per entry: phase name, channel, list, account. Quiet times are two seconds.
    pub async fn campaign(
        &self,
        name: &str,
        phases: &[(&str, &str, Option<&str>, &str)],
    ) -> anyhow::Result<Uuid> {
        let content = |channel: &str| match channel {
            "email" => json!({ "subject": "Hello {{ name }}", "text": "You are number {{ n }}." }),
            "voice" => json!({ "script": "Hello {{ name }}" }),
            _ => json!({ "text": "Hello everybody" }),
        };
        self.campaign_with(name, phases, content).await
    }

    /// The same with other content, which doubles its single quotes.
    async fn campaign_with(
        &self,
        name: &str,
        phases: &[(&str, &str, Option<&str>, &str)],
        content: impl Fn(&str) -> Value,
    ) -> anyhow::Result<Uuid> {
        let mut described = Vec::new();
        for (phase, channel, list, account) in phases {
            let content = content(channel);
            let asset = self
                .ask(&format!(
                    "select id::text from execution.create_asset(tenancy.current_tenant_id(), gen_random_uuid(), '{}', '{name} {phase}', '{channel}', '{content}', 'a test')",
                    self.workspace
                ))
                .await?;
            described.push(json!({
                "id": Uuid::now_v7(), "phase": phase, "channel": channel, "asset_id": asset, "list": list,
                "provider_account": account, "quiet_time_seconds": 2,
            }));
        }
        let id = Uuid::now_v7();
        let phases = Value::from(described);
        self.ask(&format!(
            "select execution.create_campaign(tenancy.current_tenant_id(), '{id}', '{}', '{name}', true, '{phases}', 'a test')::text",
            self.workspace
        ))
        .await?;
        Ok(id)
    }

    pub async fn deploy(&self, campaign: Uuid, phase: &str) -> anyhow::Result<Uuid> {
        Ok(self
            .ask(&format!(
                "select execution.deploy_campaign(tenancy.current_tenant_id(), '{campaign}', '{phase}')::text"
            ))
            .await?
            .parse()?)
    }

    /// Deploys one phase of one channel to the list `all` through the account `sim`.
    pub async fn deploy_one(&self, name: &str, channel: &str) -> anyhow::Result<Uuid> {
        let list = (channel != "social").then_some("all");
        let campaign = self.campaign(name, &[("only", channel, list, "sim")]).await?;
        self.deploy(campaign, "only").await
    }

    /// Deploys one phase that mails this content to the list `all` through the account `sim`. The content doubles its single quotes.
    pub async fn deploy_content(&self, name: &str, content: &Value) -> anyhow::Result<Uuid> {
        let phases = [("only", "email", Some("all"), "sim")];
        let campaign = self.campaign_with(name, &phases, |_| content.clone()).await?;
        self.deploy(campaign, "only").await
    }

    /// How many items of a run are in each state.
    pub async fn items(&self, run: Uuid) -> anyhow::Result<BTreeMap<String, usize>> {
        let sql = format!(
            "select case when in_doubt_since is null then status else 'in doubt' end from execution.channel_outbox where run_id = '{run}'"
        );
        let mut counts = BTreeMap::new();
        for state in texts(&self.admin, sql).await? {
            *counts.entry(state).or_default() += 1;
        }
        Ok(counts)
    }

    pub async fn run_status(&self, run: Uuid) -> anyhow::Result<String> {
        self.ask(&format!("select status from execution.campaign_runs where id = '{run}'")).await
    }

    /// Waits until a run has ended, and says how.
    pub async fn ended(&self, run: Uuid) -> anyhow::Result<String> {
        eventually("the run ends", || async {
            Ok(["completed", "partial", "failed"].contains(&self.run_status(run).await?.as_str()))
        })
        .await?;
        self.run_status(run).await
    }

    /// Waits until the server has noticed that every worker is gone: a COMMIT may still be on its way.
    pub async fn no_worker_runs(&self) -> anyhow::Result<()> {
        eventually("every worker's connection is gone", || async {
            let sql = "select count(*)::text from pg_stat_activity where datname = current_database() and usename = 'postrider_worker'";
            Ok(self.ask(sql).await? == "0")
        })
        .await
    }

    /// Makes locks look so much older, as if time had passed.
    pub async fn age_locks(&self, by: &str) -> anyhow::Result<()> {
        let sql = format!(
            "update execution.job_queue set locked_at = locked_at - interval '{by}' where status = 'locked'"
        );
        execute(&self.admin, sql).await?;
        Ok(())
    }

    /// Makes retries due.
    pub async fn make_due(&self) -> anyhow::Result<()> {
        execute(&self.admin, "update execution.job_queue set run_after = now() where status = 'failed'")
            .await?;
        Ok(())
    }
}
