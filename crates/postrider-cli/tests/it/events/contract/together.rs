//! Optimisations change no answer: completing many at once, and claims that begin where the last one did.

use std::collections::BTreeSet;

use sqlx::{PgExecutor, PgPool};

use super::{claim, complete, insert, publish};
use crate::{
    sql::{execute, number, refusal, texts},
    world::World,
};

/// Completes many events at once; an error of `None` is a success.
async fn complete_all(
    client: impl PgExecutor<'_>,
    processor: &str,
    done: &[(i64, Option<&str>)],
) -> Result<(), sqlx::Error> {
    let (ids, errors): (Vec<i64>, Vec<Option<&str>>) = done.iter().copied().unzip();
    let sql = "select events.complete_outbox_events($1, array_fill(tenancy.system_tenant_id(), array[cardinality($2)]), $2, $3)";
    sqlx::query(sql).bind(processor).bind(ids).bind(errors).execute(client).await.map(drop)
}

/// Everything that tells how an event stands, without the moments.
async fn standing(admin: &PgPool) -> Result<Vec<String>, sqlx::Error> {
    let sql = "select format('%s processed %s failures %s waits %s by %s because %s', aggregate_id, processed_at is not null,
                             retry_count, round(extract(epoch from process_after - created_at)), claimed_by, last_error)
                 from m10_recovery.outbox order by id";
    texts(admin, sql).await
}

#[tokio::test(flavor = "multi_thread")]
async fn completing_many_at_once_is_the_same_as_completing_each() -> anyhow::Result<()> {
    let outcomes = [None, Some("refused"), None, Some("no answer"), None];
    let mut standings = Vec::new();
    for together in [true, false] {
        let world = World::new().await?;
        let (worker, admin) = (world.client("postrider_worker").await?, world.client("postgres").await?);
        for number in 0..outcomes.len() {
            publish(&worker, &number.to_string()).await?;
        }
        let ids = claim(&worker, "p", 10).await?;
        let done: Vec<(i64, Option<&str>)> = ids.into_iter().zip(outcomes).collect();
        if together {
            complete_all(&worker, "p", &done).await?;
        } else {
            for (id, error) in done {
                complete(&worker, id, "p", error).await?;
            }
        }
        standings.push(standing(&admin).await?);
    }
    assert_eq!(standings[0], standings[1]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn one_claim_that_is_not_held_refuses_all_and_changes_none() -> anyhow::Result<()> {
    let world = World::new().await?;
    let (worker, admin) = (world.client("postrider_worker").await?, world.client("postgres").await?);
    for number in 0..4 {
        publish(&worker, &number.to_string()).await?;
    }
    let ours = claim(&worker, "ours", 3).await?;
    let foreign = claim(&worker, "foreign", 1).await?[0];
    let before = standing(&admin).await?;

    let unknown = 999_999;
    for (other, code) in [(foreign, "PR001"), (unknown, "P0002")] {
        for error in [None, Some("refused")] {
            let done = [(ours[0], None), (ours[1], Some("refused")), (other, error), (ours[2], None)];
            assert_eq!(refusal(complete_all(&worker, "ours", &done).await)?.code, code);
            assert_eq!(standing(&admin).await?, before);
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn telling_successes_twice_is_the_same_as_once_and_nothing_is_nothing() -> anyhow::Result<()> {
    let world = World::new().await?;
    let (worker, admin) = (world.client("postrider_worker").await?, world.client("postgres").await?);
    for number in 0..3 {
        publish(&worker, &number.to_string()).await?;
    }
    let ids = claim(&worker, "p", 3).await?;
    let done: Vec<(i64, Option<&str>)> = ids.iter().map(|id| (*id, None)).collect();
    complete_all(&worker, "p", &[]).await?;
    complete_all(&worker, "p", &done[..2]).await?;
    complete_all(&worker, "p", &done).await?;
    complete_all(&worker, "p", &[done[0], done[0]]).await?;
    assert_eq!(
        number(&admin, "select count(*) from m10_recovery.outbox where processed_at is null").await?,
        0
    );
    let late = [(ids[0], Some("too late"))];
    assert_eq!(refusal(complete_all(&worker, "p", &late).await)?.code, "PR001");
    Ok(())
}

/// A session with a backlog behind it, which remembers where its last claim began.
async fn session_in_a_backlog(world: &World) -> anyhow::Result<sqlx::pool::PoolConnection<sqlx::Postgres>> {
    let mut session = world.client("postrider_worker").await?.acquire().await?;
    for number in 0..40 {
        publish(&mut *session, &number.to_string()).await?;
    }
    assert_eq!(claim(&mut *session, "p", 10).await?.len(), 10);
    Ok(session)
}

/// Ages the memory of the session by more than a second.
const A_SECOND_LATER: &str = "select set_config('m10_recovery.claims_begin', regexp_replace(
    current_setting('m10_recovery.claims_begin'), '^[^,]+', ((extract(epoch from now()) - 2) * 1000000)::bigint::text), false)";
/// Sets the memory of the session as a clock does that was set back by an hour.
const AN_HOUR_AHEAD: &str = "select set_config('m10_recovery.claims_begin', regexp_replace(
    current_setting('m10_recovery.claims_begin'), '^[^,]+', ((extract(epoch from now()) + 3600) * 1000000)::bigint::text), false)";

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_begins_where_the_last_one_did_still_finds_what_came_late() -> anyhow::Result<()> {
    let world = World::new().await?;
    let admin = world.client("postgres").await?;
    let mut session = session_in_a_backlog(&world).await?;
    // A late commit and a claim gone stale: both lie before the place where this session begins.
    let late = insert(&admin, "process_after", "now() - interval '1 hour'").await?;
    let stale_columns = "process_after, claimed_at, claimed_by";
    let stale =
        insert(&admin, stale_columns, "now() - interval '1 hour', now() - interval '6 minutes', 'dead'")
            .await?;

    let at_once: BTreeSet<i64> = claim(&mut *session, "p", 10).await?.into_iter().collect();
    assert_eq!(at_once.len(), 10);
    assert!(!at_once.contains(&late), "or the memory is of no use");
    execute(&mut *session, A_SECOND_LATER).await?;
    let swept: BTreeSet<i64> = claim(&mut *session, "p", 10).await?.into_iter().collect();
    assert!(swept.is_superset(&[late, stale].into()), "{swept:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_memory_of_the_future_or_of_nonsense_is_no_memory() -> anyhow::Result<()> {
    for spoil in [
        AN_HOUR_AHEAD,
        "set m10_recovery.claims_begin = 'nonsense'",
        "set m10_recovery.claims_begin = '1,2'",
        "set m10_recovery.claims_begin = '99999999999999999999,1,1'",
        "set m10_recovery.claims_begin = ''",
    ] {
        let world = World::new().await?;
        let mut session = session_in_a_backlog(&world).await?;
        let late =
            insert(&world.client("postgres").await?, "process_after", "now() - interval '1 hour'").await?;
        execute(&mut *session, spoil).await?;
        assert!(claim(&mut *session, "p", 10).await?.contains(&late), "{spoil}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn claims_go_on_under_any_settings_of_the_session() -> anyhow::Result<()> {
    let world = World::new().await?;
    let mut session = session_in_a_backlog(&world).await?;
    for settings in ["datestyle = 'German, DMY'", "datestyle = 'SQL, MDY'", "timezone = 'Asia/Makassar'"] {
        execute(&mut *session, format!("set {settings}")).await?;
        assert_eq!(claim(&mut *session, "p", 5).await?.len(), 5, "{settings}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_that_is_given_back_has_not_failed() -> anyhow::Result<()> {
    let world = World::new().await?;
    let (worker, admin) = (world.client("postrider_worker").await?, world.client("postgres").await?);
    for number in 0..3 {
        publish(&worker, &number.to_string()).await?;
    }
    let ids = claim(&worker, "ours", 2).await?;
    let foreign = claim(&worker, "foreign", 1).await?[0];
    let release = "select events.release_outbox_events('ours', array_fill(tenancy.system_tenant_id(), array[3]), $1, $2)";
    sqlx::query(release)
        .bind(vec![ids[0], ids[1], foreign])
        .bind(vec![0_i64, 3_600_000, 0])
        .execute(&worker)
        .await?;
    assert_eq!(number(&admin, "select sum(retry_count) from m10_recovery.outbox").await?, 0);
    assert_eq!(
        claim(&worker, "next", 10).await?,
        [ids[0]],
        "one is ready, one waits an hour, one is not ours to give"
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_would_come_back_short_looks_from_the_head() -> anyhow::Result<()> {
    let world = World::new().await?;
    let admin = world.client("postgres").await?;
    let mut session = session_in_a_backlog(&world).await?;
    let late = insert(&admin, "process_after", "now() - interval '1 hour'").await?;
    let rest: BTreeSet<i64> = claim(&mut *session, "p", 100).await?.into_iter().collect();
    assert_eq!(rest.len(), 31);
    assert!(rest.contains(&late));
    assert_eq!(claim(&mut *session, "p", 100).await?, [0; 0]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_memory_of_a_session_ends_with_a_rolled_back_claim() -> anyhow::Result<()> {
    let world = World::new().await?;
    let mut session = session_in_a_backlog(&world).await?;
    let memory = "select current_setting('m10_recovery.claims_begin')";
    let before = texts(&mut *session, memory).await?;
    execute(&mut *session, "begin").await?;
    let undone = claim(&mut *session, "p", 10).await?;
    assert_ne!(texts(&mut *session, memory).await?, before);
    execute(&mut *session, "rollback").await?;
    assert_eq!(texts(&mut *session, memory).await?, before);
    assert_eq!(claim(&mut *session, "p", 10).await?, undone);
    Ok(())
}
