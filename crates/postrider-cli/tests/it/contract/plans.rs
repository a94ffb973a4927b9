//! Claiming reads its index and nothing else, whatever lies in the table and whatever the statistics say.

use sqlx::{PgConnection, PgPool};

use super::claim;
use crate::{
    sql::{execute, texts},
    world::World,
};

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_on_an_empty_or_never_analyzed_table_uses_the_index() -> anyhow::Result<()> {
    let admin = World::new().await?.client("postgres").await?;
    execute(&admin, "alter table m10_recovery.outbox set (autovacuum_enabled = off)").await?;

    assert_claims_by_index(&admin, 0).await?;
    fill(&admin, 20_000, "now()").await?;
    fill(&admin, 300, "null").await?;
    assert_eq!(
        texts(&admin, "select reltuples::text from pg_class where oid = 'm10_recovery.outbox'::regclass")
            .await?,
        ["-1"]
    );
    assert_claims_by_index(&admin, 100).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_beside_processed_events_uses_the_index_and_reads_none_of_them() -> anyhow::Result<()> {
    let admin = World::new().await?.client("postgres").await?;
    fill(&admin, 20_000, "now()").await?;
    fill(&admin, 300, "null").await?;
    execute(&admin, "vacuum analyze m10_recovery.outbox").await?;

    assert_claims_by_index(&admin, 100).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_on_a_drained_table_whose_statistics_are_of_its_fullest_uses_the_index() -> anyhow::Result<()>
{
    let admin = World::new().await?.client("postgres").await?;
    execute(&admin, "alter table m10_recovery.outbox set (autovacuum_enabled = off)").await?;
    fill(&admin, 20_000, "null").await?;
    execute(&admin, "analyze m10_recovery.outbox").await?;
    execute(&admin, "update m10_recovery.outbox set processed_at = now()").await?;

    assert_claims_by_index(&admin, 0).await?;
    fill(&admin, 5, "null").await?;
    assert_claims_by_index(&admin, 5).await
}

async fn fill(admin: &PgPool, events: i64, processed_at: &str) -> Result<(), sqlx::Error> {
    let insert = format!(
        "insert into m10_recovery.outbox (aggregate_type, aggregate_id, event_type, payload, process_after, processed_at)
         select 'order', at::text, 'order.placed', '{{}}', now(), {processed_at} from generate_series(1, {events}) as at"
    );
    execute(admin, insert).await
}

/// Claims up to 100 events and looks at what the server did for it, in a transaction that leaves no trace.
async fn assert_claims_by_index(admin: &PgPool, expected: usize) -> anyhow::Result<()> {
    let mut transaction = admin.begin().await?;
    let plan = plan_of_claim(&mut transaction).await?;
    assert!(plan.contains("Index Scan using outbox_ready_to_claim"), "{plan}");
    assert!(!plan.contains("Seq Scan") && !plan.contains("Bitmap") && !plan.contains("Sort"), "{plan}");
    // Where the claim begins is a place in the index, not a filter behind it.
    let condition = plan.lines().find(|line| line.contains("Index Cond")).unwrap_or_default();
    assert!(condition.contains(">= ROW("), "{plan}");

    let counters = "select seq_scan, coalesce(idx_tup_fetch, 0) from pg_stat_xact_user_tables where relid = 'm10_recovery.outbox'::regclass";
    let (scans_before, fetched_before): (i64, i64) =
        sqlx::query_as(counters).fetch_one(&mut *transaction).await?;
    execute(&mut *transaction, "set local role postrider_worker").await?;
    let claimed = claim(&mut *transaction, "p", 100).await?.len();
    execute(&mut *transaction, "reset role").await?;
    let (scans, fetched): (i64, i64) = sqlx::query_as(counters).fetch_one(&mut *transaction).await?;

    assert_eq!(claimed, expected);
    assert_eq!(scans - scans_before, 0, "it read the whole table");
    // Each event is found once to be chosen and once to be changed, and the first once more to be remembered.
    assert_eq!(usize::try_from(fetched - fetched_before)?, 2 * expected + expected.min(1));
    Ok(())
}

/// The plan of the statement inside the function, under the settings that the function brings along.
async fn plan_of_claim(transaction: &mut PgConnection) -> anyhow::Result<String> {
    let (source, settings): (String, Vec<String>) = sqlx::query_as(
        "select prosrc, proconfig from pg_proc where oid = 'm10_recovery.claim_outbox_events(text, integer)'::regprocedure",
    )
    .fetch_one(&mut *transaction)
    .await?;
    let (_, statement) = source.split_once("v_ids := array(").unwrap();
    let (statement, _) = statement.split_once(");").unwrap();
    let begin = [("v_begin_at", "now() - interval '1 hour'"), ("v_begin_id", "7"), ("p_batch_size", "100")];
    let statement = begin.iter().fold(statement.to_owned(), |text, (name, value)| text.replace(name, value));

    for setting in &settings {
        let (name, value) = setting.split_once('=').unwrap();
        execute(&mut *transaction, format!("set local {name} = {value}")).await?;
    }
    let plan = texts(&mut *transaction, format!("explain (costs off) {statement}")).await?;
    for setting in &settings {
        let (name, _) = setting.split_once('=').unwrap();
        execute(&mut *transaction, format!("set local {name} to default")).await?;
    }
    Ok(plan.join("\n"))
}
