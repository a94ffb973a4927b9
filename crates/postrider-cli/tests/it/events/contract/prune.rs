//! Retention: what is processed and old goes, in small steps; nothing else ever does.

use sqlx::{AssertSqlSafe, PgExecutor};

use super::insert;
use crate::{
    sql::{execute, number, refusal, texts},
    world::World,
};

/// One step: how many were removed, where it ended, and whether nothing old follows.
async fn prune(
    client: impl PgExecutor<'_>,
    before: &str,
    rest: &str,
) -> Result<(i64, i64, bool), sqlx::Error> {
    sqlx::query_as(AssertSqlSafe(format!(
        "select * from events.prune_outbox(tenancy.system_tenant_id(), {before}{rest})"
    )))
    .fetch_one(client)
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn only_processed_events_past_the_limit_are_removed_with_their_notes() -> anyhow::Result<()> {
    let world = World::new().await?;
    let (worker, admin) = (world.client("postrider_worker").await?, world.client("postgres").await?);
    let mut kept = Vec::new();
    for (columns, values, stays) in [
        ("created_at, processed_at", "now() - interval '9 days', now() - interval '8 days'", false),
        ("created_at, process_after", "now() - interval '9 days', now() - interval '9 days'", true),
        (
            "created_at, claimed_at, claimed_by",
            "now() - interval '9 days', now() - interval '9 days', 'p'",
            true,
        ),
        ("created_at, processed_at", "now() - interval '9 days', now() - interval '6 days'", true),
        ("created_at, retry_count", "now() - interval '9 days', 99", true),
        ("created_at, processed_at", "now() - interval '8 days', now() - interval '8 days'", false),
        ("created_at, processed_at", "now(), now()", true),
    ] {
        let id = insert(&admin, columns, values).await?;
        execute(
            &admin,
            format!("insert into events.outbox_deliveries values (tenancy.system_tenant_id(), {id}, 'sink')"),
        )
        .await?;
        if stays {
            kept.push(id.to_string());
        }
    }

    let (removed, _, done) = prune(&worker, "now() - interval '7 days'", "").await?;

    assert_eq!((removed, done), (2, true));
    assert_eq!(texts(&admin, "select id::text from m10_recovery.outbox order by id").await?, kept);
    assert_eq!(texts(&admin, "select event_id::text from events.outbox_deliveries order by 1").await?, kept);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn unprocessed_events_survive_even_a_limit_in_the_future() -> anyhow::Result<()> {
    let world = World::new().await?;
    let (worker, admin) = (world.client("postrider_worker").await?, world.client("postgres").await?);
    let (waiting, done) =
        (insert(&admin, "retry_count", "5").await?, insert(&admin, "processed_at", "now()").await?);

    assert_eq!(prune(&worker, "'infinity'", "").await?, (1, done, true));
    assert_eq!(prune(&worker, "null", "").await?, (0, waiting, true));

    assert_eq!(texts(&admin, "select id::text from m10_recovery.outbox").await?, [waiting.to_string()]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn each_step_looks_at_one_window_and_the_next_goes_on_from_its_end() -> anyhow::Result<()> {
    let world = World::new().await?;
    let (worker, admin) = (world.client("postrider_worker").await?, world.client("postgres").await?);
    execute(
        &admin,
        "insert into m10_recovery.outbox (aggregate_type, aggregate_id, event_type, payload, created_at, processed_at)
         select 'a', at::text, 'e', '{}', now() - interval '9 days',
                case when at % 5 > 0 then now() - interval '8 days' end
           from generate_series(1, 250) as at",
    )
    .await?;

    let (mut after, mut steps) = (0, Vec::new());
    loop {
        let (removed, last, done) =
            prune(&worker, "now() - interval '7 days'", &format!(", {after}, 100")).await?;
        steps.push((removed, last, done));
        after = last;
        if done {
            break;
        }
    }

    assert_eq!(steps, [(80, 100, false), (80, 200, false), (40, 250, true)]);
    let left = "select count(*) from m10_recovery.outbox where processed_at is null";
    assert_eq!(number(&admin, left).await?, 50);
    assert_eq!(number(&admin, "select count(*) from m10_recovery.outbox").await?, 50);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn pruning_stops_where_the_young_events_begin() -> anyhow::Result<()> {
    let world = World::new().await?;
    let (worker, admin) = (world.client("postrider_worker").await?, world.client("postgres").await?);
    execute(
        &admin,
        "insert into m10_recovery.outbox (aggregate_type, aggregate_id, event_type, payload, created_at, processed_at)
         select 'a', at::text, 'e', '{}', moment, moment
           from generate_series(1, 100) as at, lateral (select now() - make_interval(days => 100 - at) as moment) as aged",
    )
    .await?;

    // Events 1 to 89 are older than ten days and a half; the tenth window is the first that ends with a young one.
    assert_eq!(prune(&worker, "now() - interval '10 days 12 hours'", ", 80, 9").await?, (9, 89, false));
    assert_eq!(prune(&worker, "now() - interval '10 days 12 hours'", ", 89, 5").await?, (0, 94, true));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_worker_prunes() -> anyhow::Result<()> {
    let world = World::new().await?;
    for role in ["postrider_app", "postrider_read"] {
        let client = world.client(role).await?;
        assert_eq!(refusal(prune(&client, "now()", "").await)?.code, "42501", "{role}");
    }
    Ok(())
}
