//! How a claim ends: success is final, failure waits longer each time, and only the holder may say so.

use std::collections::BTreeMap;

use postrider_model::events::backoff;
use serde_json::Value;

use super::{claim, complete, insert, publish};
use crate::{
    sql::{Refusal, execute, number, refusal},
    world::World,
};

#[tokio::test(flavor = "multi_thread")]
async fn the_backoff_after_each_failure_is_the_contracts_formula_to_the_microsecond() -> anyhow::Result<()> {
    let admin = World::new().await?.client("postgres").await?;
    let mut waits = Vec::new();
    for retries in 0..=12_u32 {
        let mut transaction = admin.begin().await?;
        let columns = "retry_count, process_after, claimed_at, claimed_by";
        let id = insert(&mut *transaction, columns, &format!("{retries}, now(), now(), 'p'")).await?;
        execute(&mut *transaction, "set local role postrider_worker").await?;
        complete(&mut *transaction, id, "p", Some("no answer")).await?;
        execute(&mut *transaction, "reset role").await?;

        let wait: i64 = sqlx::query_scalar(
            "select (extract(epoch from process_after - now()) * 1000000)::bigint from m10_recovery.outbox \
              where id = $1 and retry_count = $2 + 1 \
                and process_after = now() + (power(2, least($2, 10)) || ' seconds')::interval",
        )
        .bind(id)
        .bind(i32::try_from(retries)?)
        .fetch_one(&mut *transaction)
        .await?;
        assert_eq!(u128::try_from(wait)?, backoff(retries).as_micros(), "after {retries} failures");
        waits.push(wait / 1_000_000);
    }
    assert_eq!(waits, [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 1024, 1024]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn success_sets_processed_at_and_changes_nothing_else() -> anyhow::Result<()> {
    let world = World::new().await?;
    let (worker, admin) = (world.client("postrider_worker").await?, world.client("postgres").await?);
    let id = publish(&worker, "42").await?;
    claim(&worker, "p", 1).await?;
    let before = row(&admin, id).await?;

    let mut transaction = worker.begin().await?;
    complete(&mut *transaction, id, "p", None).await?;
    let moment: Value = sqlx::query_scalar("select to_jsonb(now())").fetch_one(&mut *transaction).await?;
    transaction.commit().await?;

    assert_eq!(changed(&before, &row(&admin, id).await?), [("processed_at".to_owned(), moment)].into());
    assert_eq!(claim(&worker, "p", 1).await?, [0; 0]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn failure_counts_frees_the_event_for_later_and_keeps_the_reason() -> anyhow::Result<()> {
    let world = World::new().await?;
    let (worker, admin) = (world.client("postrider_worker").await?, world.client("postgres").await?);
    let id = publish(&worker, "42").await?;
    claim(&worker, "p", 1).await?;
    let before = row(&admin, id).await?;

    let mut transaction = worker.begin().await?;
    complete(&mut *transaction, id, "p", Some("503 from the sink")).await?;
    let later: Value = sqlx::query_scalar("select to_jsonb(now() + interval '1 second')")
        .fetch_one(&mut *transaction)
        .await?;
    transaction.commit().await?;

    let expected = [
        ("retry_count".to_owned(), 1.into()),
        ("process_after".to_owned(), later),
        ("claimed_at".to_owned(), Value::Null),
        ("claimed_by".to_owned(), Value::Null),
        ("last_error".to_owned(), "503 from the sink".into()),
    ];
    assert_eq!(changed(&before, &row(&admin, id).await?), expected.into());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_event_is_claimed_again_after_its_backoff_and_may_succeed() -> anyhow::Result<()> {
    let world = World::new().await?;
    let (worker, admin) = (world.client("postrider_worker").await?, world.client("postgres").await?);
    let mut transaction = admin.begin().await?;
    let id = insert(&mut *transaction, "claimed_at, claimed_by", "now(), 'p'").await?;
    complete(&mut *transaction, id, "p", Some("first")).await?;
    assert_eq!(claim(&mut *transaction, "p", 1).await?, [0; 0], "it waits");
    transaction.commit().await?;
    execute(&admin, "update m10_recovery.outbox set process_after = now()").await?;

    let again: (i64, i32) =
        sqlx::query_as("select id, retry_count from m10_recovery.claim_outbox_events('q', 1)")
            .fetch_one(&worker)
            .await?;
    assert_eq!(again, (id, 1));
    complete(&worker, id, "q", None).await?;

    let row = row(&admin, id).await?;
    assert_eq!((&row["retry_count"], &row["last_error"]), (&1.into(), &"first".into()));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_very_long_reason_is_cut_and_no_reason_is_none() -> anyhow::Result<()> {
    let world = World::new().await?;
    let (worker, admin) = (world.client("postrider_worker").await?, world.client("postgres").await?);
    let (long, none) = (publish(&worker, "1").await?, publish(&worker, "2").await?);
    claim(&worker, "p", 2).await?;

    complete(&worker, long, "p", Some(&"ü".repeat(100_000))).await?;
    execute(&worker, format!("select m10_recovery.complete_outbox_event({none}, 'p', false)")).await?;

    assert_eq!(row(&admin, long).await?["last_error"], "ü".repeat(2000));
    assert_eq!(row(&admin, none).await?["last_error"], Value::Null);
    assert_eq!(row(&admin, none).await?["retry_count"], 1);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn telling_a_success_again_changes_nothing() -> anyhow::Result<()> {
    let world = World::new().await?;
    let (worker, admin) = (world.client("postrider_worker").await?, world.client("postgres").await?);
    let id = publish(&worker, "42").await?;
    claim(&worker, "p", 1).await?;
    complete(&worker, id, "p", None).await?;
    let before = row(&admin, id).await?;

    for _ in 0..3 {
        complete(&worker, id, "p", None).await?;
    }

    assert_eq!(row(&admin, id).await?, before);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_completion_that_is_not_the_holders_is_refused_and_changes_nothing() -> anyhow::Result<()> {
    let world = World::new().await?;
    let (worker, admin) = (world.client("postrider_worker").await?, world.client("postgres").await?);
    let held = publish(&worker, "held").await?;
    claim(&worker, "holder", 1).await?;
    let failed = insert(&admin, "claimed_at, claimed_by", "now(), 'holder'").await?;
    complete(&worker, failed, "holder", Some("x")).await?;
    let done = insert(&admin, "claimed_at, claimed_by, processed_at", "now(), 'holder', now()").await?;
    let closed = insert(&admin, "processed_at", "now()").await?;
    let waiting = publish(&worker, "waiting").await?;
    let before = rows(&admin).await?;

    let not_held = |id: i64, who: &str, why: &str| Refusal {
        code: "PR001".to_owned(),
        message: format!("event {id} is not held by {who}"),
        detail: why.to_owned(),
        hint: "A claim lasts five minutes; it may have gone stale and been taken by another processor."
            .to_owned(),
    };
    let cases = [
        (held, "stranger", "Another processor holds it."),
        (waiting, "holder", "No processor holds it."),
        (failed, "holder", "No processor holds it."),
        (closed, "holder", "It is processed."),
        (done, "stranger", "It is processed."),
    ];
    for (id, who, why) in cases {
        for error in [None, Some("failed")] {
            assert_eq!(
                refusal(complete(&worker, id, who, error).await)?,
                not_held(id, who, why),
                "{error:?}"
            );
        }
    }
    let after_success = refusal(complete(&worker, done, "holder", Some("failed after all")).await)?;
    assert_eq!(after_success, not_held(done, "holder", "It is processed."));
    let nobody = refusal(
        execute(&worker, format!("select m10_recovery.complete_outbox_event({held}, null, true)")).await,
    )?;
    assert_eq!(nobody, not_held(held, "null", "Another processor holds it."));

    assert_eq!(rows(&admin).await?, before);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_event_and_an_unsaid_outcome_are_refused() -> anyhow::Result<()> {
    let worker = World::new().await?.client("postrider_worker").await?;
    let id = publish(&worker, "42").await?;
    claim(&worker, "p", 1).await?;
    for (arguments, code, message) in [
        ("999, 'p', true".to_owned(), "P0002", "there is no event 999"),
        ("999, 'p', false, 'x'".to_owned(), "P0002", "there is no event 999"),
        ("null, 'p', true".to_owned(), "P0002", "there is no event <NULL>"),
        (format!("{id}, 'p', null"), "22023", "p_success must be true or false"),
    ] {
        let refused = refusal(
            execute(&worker, format!("select m10_recovery.complete_outbox_event({arguments})")).await,
        )?;
        assert_eq!((refused.code.as_str(), refused.message.as_str()), (code, message), "{arguments}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn of_a_batch_in_one_statement_either_all_completions_count_or_none() -> anyhow::Result<()> {
    let world = World::new().await?;
    let (worker, admin) = (world.client("postrider_worker").await?, world.client("postgres").await?);
    for at in 0..5 {
        publish(&worker, &at.to_string()).await?;
    }
    let mine = claim(&worker, "p", 4).await?;
    let theirs = claim(&worker, "q", 1).await?;
    let all = "select count(m10_recovery.complete_outbox_event(id, 'p', true)) from unnest($1) as id";

    let refused = refusal(sqlx::query(all).bind([mine.clone(), theirs].concat()).execute(&worker).await)?;
    assert_eq!(refused.code, "PR001");
    let processed = "select count(*) from m10_recovery.outbox where processed_at is not null";
    assert_eq!(number(&admin, processed).await?, 0);

    sqlx::query(all).bind(mine).execute(&worker).await?;
    assert_eq!(number(&admin, processed).await?, 4);
    Ok(())
}

type Row = BTreeMap<String, Value>;

async fn rows(admin: &sqlx::PgPool) -> anyhow::Result<Vec<Row>> {
    let rows: Vec<Value> =
        sqlx::query_scalar("select to_jsonb(event) from m10_recovery.outbox as event order by id")
            .fetch_all(admin)
            .await?;
    rows.into_iter().map(|row| Ok(serde_json::from_value(row)?)).collect()
}

async fn row(admin: &sqlx::PgPool, id: i64) -> anyhow::Result<Row> {
    Ok(rows(admin).await?.into_iter().find(|row| row["id"] == id).unwrap())
}

/// The columns that differ, as they are afterwards.
fn changed(before: &Row, after: &Row) -> Row {
    after
        .iter()
        .filter(|(name, value)| before[*name] != **value)
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect()
}
