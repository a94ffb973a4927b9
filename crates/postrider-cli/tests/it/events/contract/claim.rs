//! Which events a claim takes, in which order, and that no two claims take the same.

use std::{collections::BTreeSet, sync::Arc};

use serde_json::{Value, json};
use tokio::sync::Barrier;

use super::{claim, complete, insert, publish};
use crate::{
    sql::{execute, number, refusal},
    world::World,
};

/// `processed_at`, and whether the contract lets such a row be claimed.
const PROCESSED: &[(&str, bool)] = &[("null", true), ("now()", false), ("now() - interval '1 day'", false)];
const PROCESS_AFTER: &[(&str, bool)] = &[
    ("null", true),
    ("now() - interval '1 day'", true),
    ("now()", true),
    ("now() + interval '1 microsecond'", false),
    ("now() + interval '17 minutes'", false),
];
const CLAIMED_AT: &[(&str, bool)] = &[
    ("null", true),
    ("now()", false),
    ("now() - interval '4 minutes 59 seconds'", false),
    ("now() - interval '5 minutes'", false),
    ("now() - interval '5 minutes 0.000001 seconds'", true),
    ("now() - interval '5 minutes 1 second'", true),
    ("now() - interval '1 day'", true),
];

/// Every combination of the three conditions, as values to insert.
fn combinations() -> Vec<(String, bool)> {
    let mut all = Vec::new();
    for (processed_at, open) in PROCESSED {
        for (process_after, ready) in PROCESS_AFTER {
            for (claimed_at, free) in CLAIMED_AT {
                let holder = if *claimed_at == "null" { "null" } else { "'another'" };
                let values = format!("{processed_at}, {process_after}, {claimed_at}, {holder}");
                all.push((values, *open && *ready && *free));
            }
        }
    }
    all
}

const TIMES: &str = "processed_at, process_after, claimed_at, claimed_by";

#[tokio::test(flavor = "multi_thread")]
async fn an_event_alone_is_claimed_exactly_when_the_three_conditions_hold() -> anyhow::Result<()> {
    let admin = World::new().await?.client("postgres").await?;
    for (values, claimable) in combinations() {
        let mut transaction = admin.begin().await?;
        let id = insert(&mut *transaction, TIMES, &values).await?;
        execute(&mut *transaction, "set local role postrider_worker").await?;

        let claimed = claim(&mut *transaction, "p", 10).await?;

        assert_eq!(claimed, if claimable { vec![id] } else { vec![] }, "{values}");
        transaction.rollback().await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn among_all_combinations_exactly_the_claimable_ones_are_claimed_and_nothing_else_is_touched()
-> anyhow::Result<()> {
    let admin = World::new().await?.client("postgres").await?;
    let mut transaction = admin.begin().await?;
    let mut expected = BTreeSet::new();
    for (values, claimable) in combinations() {
        let id = insert(&mut *transaction, TIMES, &values).await?;
        if claimable {
            expected.insert(id);
        }
    }
    execute(&mut *transaction, "create temp table before on commit drop as table m10_recovery.outbox")
        .await?;
    execute(&mut *transaction, "set local role postrider_worker").await?;

    let claimed = claim(&mut *transaction, "p", 10_000).await?;

    execute(&mut *transaction, "reset role").await?;
    assert_eq!(claimed.iter().copied().collect::<BTreeSet<_>>(), expected);
    assert_eq!(claimed.len(), expected.len());
    let unexpected = "select count(*) from m10_recovery.outbox as now join before using (id) \
                       where (now.* is distinct from before.*) <> (now.claimed_by is not distinct from 'p')";
    assert_eq!(number(&mut *transaction, unexpected).await?, 0);
    let held = "select count(*) from m10_recovery.outbox where claimed_by = 'p' and claimed_at = now()";
    assert_eq!(usize::try_from(number(&mut *transaction, held).await?)?, expected.len());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_gives_the_event_as_it_was_published_with_its_retries() -> anyhow::Result<()> {
    let world = World::new().await?;
    let (worker, admin) = (world.client("postrider_worker").await?, world.client("postgres").await?);
    let id = publish(&worker, "42").await?;
    execute(&admin, "update m10_recovery.outbox set retry_count = 3").await?;

    let claimed: Vec<(i64, String, String, String, Value, i32)> =
        sqlx::query_as("select * from m10_recovery.claim_outbox_events('p')").fetch_all(&worker).await?;

    let (kind, event_type) = ("order".to_owned(), "order.placed".to_owned());
    assert_eq!(claimed, [(id, kind, "42".to_owned(), event_type, json!({ "total": 12 }), 3)]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_takes_at_most_its_batch_and_ten_by_default() -> anyhow::Result<()> {
    let worker = World::new().await?.client("postrider_worker").await?;
    for at in 0..25 {
        publish(&worker, &at.to_string()).await?;
    }
    let default = "select count(*) from m10_recovery.claim_outbox_events('p')";
    assert_eq!(number(&worker, default).await?, 10);
    assert_eq!(claim(&worker, "p", 1).await?.len(), 1);
    assert_eq!(claim(&worker, "p", 13).await?.len(), 13);
    assert_eq!(claim(&worker, "p", 10_000).await?.len(), 1);
    assert_eq!(claim(&worker, "p", 10).await?.len(), 0);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_without_a_name_or_with_an_odd_batch_is_refused_and_takes_nothing() -> anyhow::Result<()> {
    let world = World::new().await?;
    let (worker, admin) = (world.client("postrider_worker").await?, world.client("postgres").await?);
    publish(&worker, "1").await?;
    for (arguments, message) in [
        ("null", "a processor must name itself to claim events"),
        ("''", "a processor must name itself to claim events"),
        ("'  '", "a processor must name itself to claim events"),
        ("'p', null", "the batch size must lie between 1 and 10000, not null"),
        ("'p', 0", "the batch size must lie between 1 and 10000, not 0"),
        ("'p', -1", "the batch size must lie between 1 and 10000, not -1"),
        ("'p', 10001", "the batch size must lie between 1 and 10000, not 10001"),
    ] {
        let call = format!("select * from m10_recovery.claim_outbox_events({arguments})");
        let refused = refusal(execute(&worker, &call).await)?;
        assert_eq!((refused.code.as_str(), refused.message.as_str()), ("22023", message), "{call}");
    }
    assert_eq!(
        number(&admin, "select count(*) from m10_recovery.outbox where claimed_at is not null").await?,
        0
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_event_that_became_ready_first_is_claimed_first() -> anyhow::Result<()> {
    let world = World::new().await?;
    let (worker, admin) = (world.client("postrider_worker").await?, world.client("postgres").await?);
    let mut by_time = Vec::new();
    for (place, process_after) in [
        (4, "now() - interval '1 minute'"),
        (6, "now() - interval '1 second'"),
        (1, "null"),
        (3, "now() - interval '1 hour'"),
        (5, "now() - interval '1 second'"),
        (2, "null"),
    ] {
        // Two pairs are equal: then the lower id goes first.
        by_time.push((place, insert(&admin, "process_after", process_after).await?));
    }
    by_time.sort_unstable();
    let mut expected: Vec<i64> = by_time.into_iter().map(|(_, id)| id).collect();
    // `now()` moved on between the two that are a second old, so the one inserted first is the older one.
    expected[4..].sort_unstable();

    let mut claimed = Vec::new();
    for _ in &expected {
        claimed.extend(claim(&worker, "p", 1).await?);
    }

    assert_eq!(claimed, expected);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_is_five_minutes_old_goes_to_another_processor_who_alone_can_complete_it()
-> anyhow::Result<()> {
    let world = World::new().await?;
    let (worker, admin) = (world.client("postrider_worker").await?, world.client("postgres").await?);
    let id = publish(&worker, "42").await?;
    assert_eq!(claim(&worker, "dead", 10).await?, [id]);
    assert_eq!(claim(&worker, "alive", 10).await?, [0; 0]);

    execute(&admin, "update m10_recovery.outbox set claimed_at = claimed_at - interval '5 minutes 1 second'")
        .await?;

    assert_eq!(claim(&worker, "alive", 10).await?, [id]);
    let refused = refusal(complete(&worker, id, "dead", None).await)?;
    assert_eq!((refused.code.as_str(), refused.detail.as_str()), ("PR001", "Another processor holds it."));
    complete(&worker, id, "alive", None).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stale_claim_without_a_new_holder_is_completed_by_its_old_one() -> anyhow::Result<()> {
    let world = World::new().await?;
    let (worker, admin) = (world.client("postrider_worker").await?, world.client("postgres").await?);
    let id = publish(&worker, "42").await?;
    claim(&worker, "slow", 10).await?;
    execute(&admin, "update m10_recovery.outbox set claimed_at = claimed_at - interval '1 hour'").await?;

    complete(&worker, id, "slow", None).await?;

    assert_eq!(claim(&worker, "another", 10).await?, [0; 0]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_steps_around_what_an_open_transaction_holds_and_a_rolled_back_claim_frees_it()
-> anyhow::Result<()> {
    let worker = World::new().await?.client("postrider_worker").await?;
    let (first, second) = (publish(&worker, "1").await?, publish(&worker, "2").await?);
    let mut open = worker.begin().await?;
    assert_eq!(claim(&mut *open, "open", 1).await?, [first]);

    let mut other = worker.acquire().await?;
    execute(&mut *other, "set lock_timeout = '10s'").await?; // a claim that waits would wait for ever
    assert_eq!(claim(&mut *other, "other", 10).await?, [second]);

    open.rollback().await?;
    assert_eq!(claim(&worker, "other", 10).await?, [first]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn thirty_two_claimers_at_once_share_no_event_and_together_get_all() -> anyhow::Result<()> {
    const CLAIMERS: usize = 32;
    const COMPLETE_ALL: &str =
        "select count(m10_recovery.complete_outbox_event(id, $2, true)) from unnest($1) as id";
    let worker = World::new().await?.client("postrider_worker").await?;
    let publish_all = "select m10_recovery.publish_outbox('order', at::text, 'order.placed', '{}') from generate_series(1, 3000) as at";
    let published: Vec<i64> = sqlx::query_scalar(publish_all).fetch_all(&worker).await?;

    let start = Arc::new(Barrier::new(CLAIMERS));
    let claimers: Vec<_> = (0..CLAIMERS)
        .map(|number| {
            let (worker, start) = (worker.clone(), Arc::clone(&start));
            tokio::spawn(async move {
                let mut client = worker.acquire().await?;
                let (name, batch) = (format!("claimer {number}"), 1 + i32::try_from(number)? % 13);
                let mut mine = Vec::new();
                start.wait().await;
                loop {
                    let claimed = claim(&mut *client, &name, batch).await?;
                    if claimed.is_empty() {
                        return anyhow::Ok((name, mine));
                    }
                    // Some complete what they have, so that rows change under the others' claims.
                    let (now, _): (Vec<i64>, Vec<i64>) = claimed.iter().partition(|id| *id % 3 == 0);
                    sqlx::query(COMPLETE_ALL).bind(now).bind(&name).execute(&mut *client).await?;
                    mine.extend(claimed);
                }
            })
        })
        .collect();
    let mut all = Vec::new();
    for claimer in claimers {
        let (name, mine) = claimer.await??;
        // All of them again: nobody else may have taken one.
        sqlx::query(COMPLETE_ALL).bind(&mine).bind(name).execute(&worker).await?;
        all.extend(mine);
    }

    assert_eq!(all.len(), published.len(), "an event was claimed twice, or never");
    assert_eq!(BTreeSet::from_iter(all), BTreeSet::from_iter(published));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_of_a_long_transaction_is_delivered_although_later_ids_went_first() -> anyhow::Result<()> {
    let world = World::new().await?;
    let (app, worker) = (world.client("postrider_app").await?, world.client("postrider_worker").await?);
    let mut long = app.begin().await?;
    let late = publish(&mut *long, "late").await?;
    let mut others = Vec::new();
    for at in 0..20 {
        others.push(publish(&app, &at.to_string()).await?);
    }
    assert!(others.iter().all(|id| *id > late));
    assert_eq!(claim(&worker, "p", 100).await?, others);
    for id in &others {
        complete(&worker, *id, "p", None).await?;
    }
    assert_eq!(claim(&worker, "p", 100).await?, [0; 0]);

    long.commit().await?;

    assert_eq!(claim(&worker, "p", 100).await?, [late]);
    Ok(())
}
