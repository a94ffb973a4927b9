//! Steps that meet a database at work.

use anyhow::Context;
use postrider_store::migrate::{self, MIGRATIONS};
use serde_json::json;
use uuid::Uuid;

use super::locks::before;
use crate::sql::{execute, number, tenant, texts};

#[tokio::test(flavor = "multi_thread")]
async fn campaigns_under_way_go_on_by_hand_after_phases_have_controls() -> anyhow::Result<()> {
    let controls = MIGRATIONS.iter().find(|step| step.version == 16).context("no such step")?;
    let world = before(controls).await?;
    let admin = world.client("postgres").await?;
    let (tenant, workspace) = tenant(&admin, "acme").await?;
    let (campaign, list, asset) = (Uuid::now_v7(), Uuid::now_v7(), Uuid::now_v7());
    let phase = |name: &str| {
        json!({ "id": Uuid::now_v7(), "phase": name, "channel": "email", "asset_id": asset, "list": "all",
                "provider_account": "mail" })
    };
    let phases = json!([phase("first"), phase("second")]);
    let untouched = json!([phase("only")]);
    execute(
        &admin,
        format!(
            "begin;
             set local app.current_tenant_id = '{tenant}';
             insert into tenancy.provider_accounts (id, tenant_id, workspace_id, name, provider, sealed_secret)
             values (gen_random_uuid(), '{tenant}', '{workspace}', 'mail', 'sim', 'sealed');
             insert into execution.lead_lists (id, tenant_id, workspace_id, name) values ('{list}', '{tenant}', '{workspace}', 'all');
             with made as (insert into execution.leads (id, tenant_id, workspace_id, identity, email)
                           select gen_random_uuid(), '{tenant}', '{workspace}', n::text, n || '@example.com' from generate_series(1, 4) as n
                        returning id)
             insert into execution.lead_list_members (tenant_id, list_id, lead_id) select '{tenant}', '{list}', id from made;
             select execution.create_asset('{asset}', '{workspace}', 'news', 'email', '{{}}', 'a test');
             select execution.create_campaign('{campaign}', '{workspace}', 'begun', true, '{phases}', 'a test');
             select execution.create_campaign(gen_random_uuid(), '{workspace}', 'untouched', true, '{untouched}', 'a test');
             select execution.deploy_campaign('{campaign}', 'first', 'a test', null, 2);
             select job_id from execution.claim_queued_jobs('old worker', 1);
             commit"
        ),
    )
    .await?;

    assert!(!migrate::run(&world.admin_url()).await?.is_empty());
    let advances = "select name || ' ' || auto_advance from execution.campaigns order by name";
    assert_eq!(texts(&admin, advances).await?, ["begun false", "untouched true"]);
    assert_eq!(number(&admin, "select number::bigint from execution.campaign_runs").await?, 1);
    // The phase that was under way is paused, resumed and ended like any other.
    let control = async |by: &str| -> anyhow::Result<String> {
        let mut transaction = admin.begin().await?;
        execute(&mut *transaction, format!("set local app.current_tenant_id = '{tenant}'")).await?;
        let sql = format!(
            "select outcome || ' ' || status from execution.control_phase('{campaign}', 'first', '{by}', null, 'a test')"
        );
        let answer = texts(&mut *transaction, sql).await?.concat();
        transaction.commit().await?;
        Ok(answer)
    };
    assert_eq!(control("pause").await?, "changed paused");
    assert_eq!(control("resume").await?, "changed in_progress");
    let history = "select sequence || ' ' || type from execution.campaign_events order by sequence";
    assert_eq!(texts(&admin, history).await?, ["1 phase_paused", "2 phase_resumed"]);
    Ok(())
}
