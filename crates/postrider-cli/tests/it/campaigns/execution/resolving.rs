//! Doubts in the hands of resolvers: one at a time, fenced; and what providers tell without being asked.

use serde_json::json;
use sqlx::PgPool;
use uuid::Uuid;

use super::{Stage, Tenant, claim, finalize, reserve_all};
use crate::sql::{execute, number, refusal, texts};

/// A doubt as its holder knows it.
#[derive(Debug, Clone, sqlx::FromRow)]
struct Doubt {
    outbox_id: Uuid,
    tenant_id: Uuid,
    provider: String,
    account_id: Uuid,
    idempotency_key: String,
    look: i32,
    echo: Option<String>,
}

async fn claim_doubts(client: &PgPool, resolver: &str) -> Result<Vec<Doubt>, sqlx::Error> {
    let sql = "select claimed.outbox_id, claimed.tenant_id, provider, account_id, idempotency_key, look, echo
                 from execution.tenants_with_due_doubts('{sim}', 100) as due,
                      execution.claim_doubts(due.tenant_id, $1, '{sim}', due.doubts, interval '1 minute') as claimed
                order by claimed.outbox_id";
    sqlx::query_as(sql).bind(resolver).fetch_all(client).await
}

async fn settle(client: &PgPool, resolver: &str, doubt: &Doubt, word: &str) -> Result<String, sqlx::Error> {
    sqlx::query_scalar("select execution.settle_doubt($1, $2, $3, $4, $5, 'theirs', 'asked them')")
        .bind(doubt.tenant_id)
        .bind(resolver)
        .bind(doubt.outbox_id)
        .bind(doubt.look)
        .bind(word)
        .fetch_one(client)
        .await
}

async fn put_off(
    client: &PgPool,
    resolver: &str,
    doubt: &Doubt,
    next: &str,
    person: bool,
) -> Result<(), sqlx::Error> {
    sqlx::query("select execution.put_off_doubt($1, $2, $3, $4, now() + $5::interval, $6, 'they are busy')")
        .bind(doubt.tenant_id)
        .bind(resolver)
        .bind(doubt.outbox_id)
        .bind(doubt.look)
        .bind(next)
        .bind(person)
        .execute(client)
        .await
        .map(drop)
}

/// Items of one job that are all in doubt by an unknown answer, in the order of their ids.
async fn doubtful(stage: &Stage, items: usize) -> anyhow::Result<Vec<Uuid>> {
    doubtful_of(stage, stage.own, items).await
}

async fn doubtful_of(stage: &Stage, tenant: Tenant, items: usize) -> anyhow::Result<Vec<Uuid>> {
    stage.run_of(tenant, items, 10_000, &json!({ "quiet_time_seconds": 630 })).await?;
    let job = claim(&stage.worker, "w", 1).await?.remove(0);
    let mut ids = reserve_all(&stage.worker, "w", &job).await?;
    let settled: Vec<(Uuid, &str)> = ids.iter().map(|id| (*id, "in_doubt")).collect();
    finalize(&stage.worker, tenant.id, "w", &settled).await?;
    ids.sort_unstable();
    Ok(ids)
}

async fn end_of_lease(stage: &Stage) -> Result<(), sqlx::Error> {
    execute(&stage.admin, "update execution.doubts set held_until = now() - interval '1 second'").await
}

fn ids(doubts: &[Doubt]) -> Vec<Uuid> {
    doubts.iter().map(|doubt| doubt.outbox_id).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_doubt_has_one_resolver_at_a_time_and_a_late_one_changes_nothing() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let all = doubtful(&stage, 3).await?;

    let first = claim_doubts(&stage.worker, "one").await?;
    assert_eq!(ids(&first), all);
    assert!(first.iter().all(|doubt| doubt.look == 1 && doubt.provider == "sim" && doubt.echo.is_none()));
    assert!(claim_doubts(&stage.worker, "two").await?.is_empty(), "they are held");

    end_of_lease(&stage).await?;
    let second = claim_doubts(&stage.worker, "two").await?;
    assert_eq!(ids(&second), all);
    assert_eq!(second[0].look, 2);
    for late in [
        settle(&stage.worker, "one", &first[0], "sent").await.map(drop),
        put_off(&stage.worker, "one", &first[0], "0", true).await,
        // Under the other's look, or the other's name.
        settle(&stage.worker, "one", &second[0], "sent").await.map(drop),
        settle(&stage.worker, "two", &first[0], "sent").await.map(drop),
    ] {
        assert_eq!(refusal(late)?.code, "PR001");
    }
    assert_eq!(settle(&stage.worker, "two", &second[0], "sent").await?, "sent");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn two_resolvers_at_once_share_what_there_is() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let all = doubtful(&stage, 60).await?;
    let (one, two) =
        tokio::try_join!(claim_doubts(&stage.worker, "one"), claim_doubts(&stage.worker, "two"))?;
    let mut both = [ids(&one), ids(&two)].concat();
    both.sort_unstable();
    assert_eq!(both, all);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn done_counts_at_once_and_not_done_after_the_quiet_time() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    doubtful(&stage, 2).await?;
    let doubts = claim_doubts(&stage.worker, "r").await?;
    assert_eq!(settle(&stage.worker, "r", &doubts[0], "sent").await?, "sent");
    let id = doubts[0].outbox_id;
    assert_eq!(stage.look("provider_message_id", "channel_outbox", id).await?, "theirs");
    assert_eq!(stage.log_of(id).await?, ["item.in_doubt by w", "item.resolved_as_sent by r"]);

    let refused = refusal(settle(&stage.worker, "r", &doubts[1], "failed").await)?;
    assert!(refused.message.contains("may still arrive until"), "{refused:?}");
    execute(&stage.admin, "update execution.channel_outbox set in_doubt_since = now() - interval '1 hour' where status = 'queued'")
        .await?;
    assert_eq!(settle(&stage.worker, "r", &doubts[1], "failed").await?, "failed");
    assert_eq!(stage.look("error", "channel_outbox", doubts[1].outbox_id).await?, "asked them");
    assert_eq!(
        number(&stage.admin, "select count(*) from execution.doubts").await?,
        0,
        "nothing is left to look after"
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_late_answer_ends_the_doubt() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let all = doubtful(&stage, 1).await?;
    let held = claim_doubts(&stage.worker, "r").await?;
    assert_eq!(finalize(&stage.worker, stage.own.id, "w", &[(all[0], "sent")]).await?, all);
    assert_eq!(number(&stage.admin, "select count(*) from execution.doubts").await?, 0);
    assert_eq!(refusal(settle(&stage.worker, "r", &held[0], "sent").await)?.code, "PR001");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_postponed_doubt_comes_again_and_one_left_to_a_person_does_not() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    doubtful(&stage, 2).await?;
    let doubts = claim_doubts(&stage.worker, "r").await?;
    put_off(&stage.worker, "r", &doubts[0], "1 hour", false).await?;
    put_off(&stage.worker, "r", &doubts[1], "0", true).await?;
    assert!(claim_doubts(&stage.worker, "r").await?.is_empty(), "it is not time yet");
    execute(&stage.admin, "update execution.doubts set next_look_at = now() - interval '1 second'").await?;
    let again = claim_doubts(&stage.worker, "r").await?;
    assert_eq!(ids(&again), [doubts[0].outbox_id]);
    assert_eq!(
        stage.log_of(doubts[1].outbox_id).await?,
        ["item.in_doubt by w", "item.left_to_a_person by r"]
    );

    // The person decides.
    let sql = format!(
        "select execution.resolve_in_doubt(tenancy.current_tenant_id(), '{}', 'sent', null, 'they say so', 'ann')",
        doubts[1].outbox_id
    );
    assert_eq!(stage.ask::<String>(stage.own, sql).await?, "sent");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn other_providers_and_bad_questions() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    doubtful(&stage, 1).await?;
    let tenant = stage.own.id;
    let chosen = "select tenant_id::text from execution.tenants_with_due_doubts('{smtp,twilio}', 10)";
    assert!(texts(&stage.worker, chosen).await?.is_empty());
    let other = format!(
        "select outbox_id::text
           from execution.claim_doubts('{tenant}', 'r', '{{smtp,twilio}}', 10, interval '1 minute')"
    );
    assert!(texts(&stage.worker, other).await?.is_empty());
    for bad in [
        "'', '{sim}', 10",
        "null, '{sim}', 10",
        "'r', '{sim}', 0",
        "'r', '{sim}', 1001",
        "'r', '{sim}', null",
    ] {
        let sql = format!(
            "select outbox_id::text from execution.claim_doubts('{tenant}', {bad}, interval '1 minute')"
        );
        assert_eq!(refusal(texts(&stage.worker, sql).await)?.code, "22023", "{bad}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_item_that_moved_is_looked_for_where_it_went() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let second = Uuid::now_v7();
    let Tenant { id, workspace } = stage.own;
    execute(
        &stage.admin,
        format!(
            "insert into tenancy.provider_accounts (id, tenant_id, workspace_id, name, provider, sealed_secret)
             values ('{second}', '{id}', '{workspace}', 'other', 'sim', 'sealed')"
        ),
    )
    .await?;
    let job = stage.job("w", 1).await?;
    let ids = reserve_all(&stage.worker, "w", &job).await?;
    execute(&stage.admin, format!("update execution.channel_outbox set moved_to_account_id = '{second}'"))
        .await?;
    finalize(&stage.worker, stage.own.id, "w", &[(ids[0], "in_doubt")]).await?;
    assert_eq!(claim_doubts(&stage.worker, "r").await?[0].account_id, second);
    Ok(())
}

async fn call_back(
    stage: &Stage,
    tenant: Tenant,
    account: Uuid,
    key: &str,
    proves: bool,
) -> Result<String, sqlx::Error> {
    let sql = format!(
        "select verdict from execution.record_callback(tenancy.current_tenant_id(), '{account}', '{key}', 'CA1', 'ringing', {proves})"
    );
    stage.ask(tenant, sql).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_callback_that_proves_the_call_settles_the_doubt_once() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let all = doubtful(&stage, 2).await?;
    let doubts = claim_doubts(&stage.worker, "r").await?;
    let (key, account) = (&doubts[0].idempotency_key, doubts[0].account_id);
    assert_eq!(call_back(&stage, stage.own, account, key, false).await?, "recorded");
    assert_eq!(stage.look("status", "channel_outbox", all[0]).await?, "queued", "it proves nothing");
    // A redelivery says the same; what it proves was decided when it first came.
    execute(&stage.admin, "alter table execution.provider_callbacks disable trigger user; delete from execution.provider_callbacks").await?;
    assert_eq!(call_back(&stage, stage.own, account, key, true).await?, "settled");
    assert_eq!(call_back(&stage, stage.own, account, key, true).await?, "recorded");
    let row = "status || ' ' || provider_message_id";
    assert_eq!(stage.look(row, "channel_outbox", doubts[0].outbox_id).await?, "sent CA1");
    assert_eq!(
        stage.log_of(doubts[0].outbox_id).await?,
        ["item.in_doubt by w", "item.resolved_as_sent by callback-sim"]
    );
    assert_eq!(refusal(settle(&stage.worker, "r", &doubts[0], "sent").await)?.code, "PR001");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_callback_that_came_before_the_doubt_is_there_for_the_resolver() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let job = stage.job("w", 1).await?;
    let ids = reserve_all(&stage.worker, "w", &job).await?;
    let key = stage.look("idempotency_key", "channel_outbox", ids[0]).await?;
    let account: Uuid =
        sqlx::query_scalar("select id from tenancy.provider_accounts").fetch_one(&stage.admin).await?;
    assert_eq!(call_back(&stage, stage.own, account, &key, true).await?, "recorded", "its worker is at work");
    finalize(&stage.worker, stage.own.id, "w", &[(ids[0], "in_doubt")]).await?;
    assert_eq!(claim_doubts(&stage.worker, "r").await?[0].echo.as_deref(), Some("CA1"));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_callback_against_a_person_s_verdict_is_flagged_and_changes_nothing() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    doubtful(&stage, 1).await?;
    let doubt = claim_doubts(&stage.worker, "r").await?.remove(0);
    execute(&stage.admin, "update execution.channel_outbox set in_doubt_since = now() - interval '1 day'")
        .await?;
    let sql = format!(
        "select execution.resolve_in_doubt(tenancy.current_tenant_id(), '{}', 'failed', null, 'not in their log', 'ann')",
        doubt.outbox_id
    );
    stage.ask::<String>(stage.own, sql).await?;
    for expected in ["contradicted", "recorded"] {
        assert_eq!(
            call_back(&stage, stage.own, doubt.account_id, &doubt.idempotency_key, true).await?,
            expected
        );
    }
    assert_eq!(stage.look("status", "channel_outbox", doubt.outbox_id).await?, "failed");
    assert_eq!(
        stage.log_of(doubt.outbox_id).await?,
        ["item.in_doubt by w", "item.resolved_as_failed by ann", "item.contradicted by callback-sim"]
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_callback_about_another_tenants_item_changes_nothing() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let other = Tenant::create(&stage.admin, "other").await?;
    doubtful(&stage, 1).await?;
    doubtful_of(&stage, other, 1).await?;
    let doubts = claim_doubts(&stage.worker, "r").await?;
    let own = doubts.iter().find(|doubt| doubt.tenant_id == stage.own.id).unwrap();
    let foreign = doubts.iter().find(|doubt| doubt.tenant_id == other.id).unwrap();
    for (tenant, account, key) in [
        (stage.own, foreign.account_id, &foreign.idempotency_key),
        (stage.own, own.account_id, &foreign.idempotency_key),
        (stage.own, foreign.account_id, &own.idempotency_key),
        (other, own.account_id, &own.idempotency_key),
        (stage.own, own.account_id, &"0".repeat(64)),
    ] {
        assert_eq!(call_back(&stage, tenant, account, key, true).await?, "unknown");
    }
    assert_eq!(number(&stage.admin, "select count(*) from execution.provider_callbacks").await?, 0);
    assert_eq!(number(&stage.admin, "select count(*) from execution.doubts").await?, 2);
    Ok(())
}

async fn take_call_token(client: &PgPool, resolver: &str, doubt: &Doubt) -> Result<(bool, f64), sqlx::Error> {
    sqlx::query_as(
        "select granted, wait_seconds from execution.take_call_token_for_doubt($1, $2, $3, $4, 100000)",
    )
    .bind(doubt.tenant_id)
    .bind(resolver)
    .bind(doubt.outbox_id)
    .bind(doubt.look)
    .fetch_one(client)
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repeat_takes_its_turn_at_the_account() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    doubtful(&stage, 1).await?;
    let doubt = claim_doubts(&stage.worker, "r").await?.remove(0);
    assert_eq!(take_call_token(&stage.worker, "r", &doubt).await?, (true, 0.0), "where nothing is limited");

    // One every hundred seconds, and one at once; a call token is given at most a second ahead.
    execute(&stage.admin, "update tenancy.provider_accounts set limits = '{\"rate_per_second\": 0.01}'; delete from execution.account_states")
        .await?;
    assert_eq!(take_call_token(&stage.worker, "r", &doubt).await?, (true, 0.0));
    let (granted, wait) = take_call_token(&stage.worker, "r", &doubt).await?;
    assert!(!granted && (90.0..100.0).contains(&wait), "{granted} {wait}");
    assert_eq!(number(&stage.admin, "select used_today from execution.account_states").await?, 1);

    // Left alone by its own wish, or because it fails.
    for column in ["wait_until", "circuit_open_until"] {
        execute(
            &stage.admin,
            format!(
                "update execution.account_states set refilled_at = null, {column} = now() + interval '1 hour'"
            ),
        )
        .await?;
        let (granted, wait) = take_call_token(&stage.worker, "r", &doubt).await?;
        assert!(!granted && (3500.0..=3600.0).contains(&wait), "{column}: {granted} {wait}");
    }
    let stranger = take_call_token(&stage.worker, "somebody else", &doubt).await;
    assert_eq!(refusal(stranger)?.code, "PR001");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paused_phase_repeats_nothing_until_it_is_resumed() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    doubtful(&stage, 1).await?;
    let doubt = claim_doubts(&stage.worker, "r").await?.remove(0);
    execute(&stage.admin, "update execution.campaign_phases set status = 'paused'").await?;
    assert_eq!(take_call_token(&stage.worker, "r", &doubt).await?, (false, 30.0));
    let noted = "select count(*) from execution.doubts where repeated_at is not null";
    assert_eq!(number(&stage.admin, noted).await?, 0, "nothing was repeated");
    execute(&stage.admin, "update execution.campaign_phases set status = 'in_progress'").await?;
    assert!(take_call_token(&stage.worker, "r", &doubt).await?.0);
    Ok(())
}
