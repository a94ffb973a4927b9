//! Versions of accounts: an item keeps the version that was called, new reservations use the newest, and no new run uses a retired account.

use serde_json::json;
use sqlx::Row;

use super::{Stage, Windows, claim, finalize, row};
use crate::sql::{execute, number, refusal, texts};

/// Gives the account `mail` these settings; the number of the version.
async fn update(stage: &Stage, settings: &str, secret: &str) -> Result<i64, sqlx::Error> {
    let sql = format!(
        "select tenancy.update_provider_account(tenancy.current_tenant_id(), account.id, '{settings}', {secret}, 'a test')::bigint
           from tenancy.provider_accounts as account where account.name = 'mail'"
    );
    stage.ask(stage.own, sql).await
}

async fn settings_of_doubts(stage: &Stage) -> Result<Vec<String>, sqlx::Error> {
    execute(
        &stage.admin,
        "update execution.doubts set next_look_at = now() - interval '1 second', held_until = null",
    )
    .await?;
    let sql = format!(
        "select settings::text || ' ' || encode(sealed_secret, 'escape') from execution.claim_doubts('{}', 'r', array['sim'], 10, '1 minute')
          order by settings ->> 'sender' nulls first",
        stage.own.id
    );
    texts(&stage.worker, sql).await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_item_in_doubt_keeps_the_version_that_was_called() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let job = stage.job("w", 4).await?;
    let read = format!(
        "select settings::text from execution.read_accounts('{}', 'w', '{}', {})",
        job.tenant_id, job.job_id, job.attempts
    );
    let first = Windows::of(&job, 1, 1);
    first.begin(&stage.worker, "w").await?;
    assert_eq!(update(&stage, r#"{"sender": "two"}"#, "null").await?, 2);
    // This attempt still has the settings that it read, and reserves nothing more with them.
    assert_eq!(texts(&stage.worker, read).await?, ["{}"]);
    assert_eq!(Windows::of(&job, 2, 1).begin(&stage.worker, "w").await?[0].verdict, "paused");
    finalize(&stage.worker, stage.own.id, "w", &[(first.ids[0], "in_doubt")]).await?;
    let release =
        format!("select execution.release_job('{}', '{}', 'w', {})", job.tenant_id, job.job_id, job.attempts);
    execute(&stage.worker, release).await?;

    let job = claim(&stage.worker, "w", 1).await?.remove(0);
    assert_eq!(job.attempts, 1, "a new version uses no attempt");
    let read = format!(
        "select settings ->> 'sender' from execution.read_accounts('{}', 'w', '{}', {})",
        job.tenant_id, job.job_id, job.attempts
    );
    assert_eq!(texts(&stage.worker, read).await?, ["two"]);
    let second = Windows::of(&job, 2, 1);
    assert_eq!(second.begin(&stage.worker, "w").await?[0].verdict, "reserved");
    finalize(&stage.worker, stage.own.id, "w", &[(second.ids[0], "in_doubt")]).await?;
    // Look-ups use the version of each item, also after a third one with a secret of its own.
    assert_eq!(update(&stage, r#"{"sender": "three"}"#, "'other'").await?, 3);
    assert_eq!(settings_of_doubts(&stage).await?, ["{} sealed", r#"{"sender": "two"} sealed"#]);
    // Callbacks are verified against the current version first, and then against earlier ones.
    let callbacks = format!(
        "select settings::text || ' ' || encode(sealed_secret, 'escape')
           from tenancy.account_of_callback('{}', (select id from tenancy.provider_accounts where name = 'mail'))",
        stage.own.id
    );
    assert_eq!(stage.ask::<i64>(stage.own, format!("select count(*) from ({callbacks}) as found")).await?, 3);
    assert_eq!(stage.ask::<String>(stage.own, callbacks).await?, r#"{"sender": "three"} other"#);
    // The same settings again are no new version, and a version is a fact.
    assert_eq!(update(&stage, r#"{"sender": "three"}"#, "null").await?, 3);
    for sql in [
        "update tenancy.provider_account_versions set settings = '{}' where version = 2",
        "update execution.channel_outbox set account_version = 9",
    ] {
        assert_eq!(refusal(execute(&stage.admin, sql).await)?.code, "23514", "{sql}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_secret_replaces_that_of_the_versions_that_share_it() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    update(&stage, r#"{"n": 2}"#, "'other'").await?;
    update(&stage, r#"{"n": 3}"#, "null").await?;
    let rotate = "select tenancy.rotate_provider_account(tenancy.current_tenant_id(), account.id, 'newest', 'a test')::text
                    from tenancy.provider_accounts as account where account.name = 'mail'";
    assert_eq!(stage.ask::<String>(stage.own, rotate).await?, "true");
    let secrets = "select version || ' ' || encode(sealed_secret, 'escape') from tenancy.provider_account_versions order by 1";
    assert_eq!(texts(&stage.admin, secrets).await?, ["1 sealed", "2 newest"]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn no_new_run_uses_a_retired_account_and_a_run_under_way_finishes() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let retire = |is_retired: bool| {
        format!(
            "select tenancy.retire_provider_account(tenancy.current_tenant_id(), account.id, {is_retired}, 'a test')::text
               from tenancy.provider_accounts as account where account.name = 'mail'"
        )
    };
    let job = stage.job("w", 2).await?;
    let waiting = stage.phase(stage.own, 2, &json!({})).await?;
    let waiting = stage.campaign(stage.own, &json!([waiting])).await?;
    for _ in 0..2 {
        assert_eq!(stage.ask::<String>(stage.own, retire(true)).await?, "true");
    }
    let logged = "select count(*) from tenancy.audit_log where action = 'account.retired'";
    assert_eq!(number(&stage.admin, logged).await?, 1);
    let begun = Windows::of(&job, 1, 2).begin(&stage.worker, "w").await?;
    assert!(begun.iter().all(|item| item.verdict == "reserved"), "the run under way goes on: {begun:?}");
    let refused = refusal(stage.deploy(stage.own, waiting, 500).await)?;
    assert!(refused.message.contains("`mail` of phase `first` is retired"), "{refused:?}");
    let phase = stage.phase(stage.own, 2, &json!({})).await?;
    let refused = refusal(stage.campaign(stage.own, &json!([phase])).await)?;
    assert_eq!(refused.message, "phase `first`: the provider account `mail` is retired");
    stage.ask::<String>(stage.own, retire(false)).await?;
    stage.deploy(stage.own, waiting, 500).await?;

    // Another tenant changes nothing.
    let other = super::Tenant::create(&stage.admin, "other").await?;
    let own = row(
        &stage.admin,
        format!("select id::text from tenancy.provider_accounts where tenant_id = '{}'", stage.own.id),
    )
    .await?;
    let own: String = own.get(0);
    let retire = format!(
        "select tenancy.retire_provider_account(tenancy.current_tenant_id(), '{own}', true, 'me')::text"
    );
    assert_eq!(stage.ask::<String>(other, retire).await?, "false");
    let update = format!(
        "select coalesce(tenancy.update_provider_account(tenancy.current_tenant_id(), '{own}', '{{}}', 'x', 'me'), 0)"
    );
    assert_eq!(stage.ask::<i32>(other, update).await?, 0);
    Ok(())
}
