//! Claiming reads its index and nothing else, and what the relay, operators and retention do with an event reads that event and nothing
//! else, whatever lies in the table and whatever the statistics say.

use sqlx::{PgConnection, PgPool};
use uuid::Uuid;

use super::claim;
use crate::{
    sql::{acting_as, execute, number, tenant, texts},
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
    fill_for(admin, "tenancy.system_tenant_id()", events, processed_at).await
}

async fn fill_for(admin: &PgPool, tenant: &str, events: i64, processed_at: &str) -> Result<(), sqlx::Error> {
    let insert = format!(
        "insert into m10_recovery.outbox
                (tenant_id, aggregate_type, aggregate_id, event_type, payload, process_after, processed_at)
         select {tenant}, 'order', at::text, 'order.placed', '{{}}', now(), {processed_at} from generate_series(1, {events}) as at"
    );
    execute(admin, insert).await
}

const NO_AUTOVACUUM: &str = "alter table m10_recovery.outbox set (autovacuum_enabled = off);
    alter table events.outbox_deliveries set (autovacuum_enabled = off)";

/// Rows of events and deliveries that this transaction has read.
async fn rows_read(client: &mut PgConnection) -> Result<i64, sqlx::Error> {
    let read = "select coalesce(sum(seq_tup_read + idx_tup_fetch), 0)::bigint from pg_stat_xact_user_tables
                 where relid in ('m10_recovery.outbox'::regclass, 'events.outbox_deliveries'::regclass)";
    number(client, read).await
}

/// Runs a step as a role, and fails when it read more rows than this.
async fn frugal(
    client: &mut PgConnection,
    role: &str,
    step: &str,
    sql: &str,
    most: i64,
) -> anyhow::Result<Vec<String>> {
    let before = rows_read(client).await?;
    execute(&mut *client, format!("set local role postrider_{role}")).await?;
    let answer = texts(&mut *client, sql).await?;
    execute(&mut *client, "reset role").await?;
    let read = rows_read(client).await? - before;
    anyhow::ensure!(read <= most, "{step} read {read} rows");
    Ok(answer)
}

/// Four events of a tenant from their claim to their end, in a transaction that leaves no trace.
async fn live(client: &mut PgConnection, tenant: Uuid, name: &str) -> anyhow::Result<()> {
    let step = |step: &str| format!("{name}: {step}");
    execute(&mut *client, format!("begin; {}", acting_as(tenant))).await?;
    for _ in 0..4 {
        execute(&mut *client, "select m10_recovery.publish_outbox('order', '42', 'order.placed', '{}')")
            .await?;
    }
    // They are due before all others.
    execute(
        &mut *client,
        format!(
            "update m10_recovery.outbox set process_after = now() - interval '1 year'
              where tenant_id = '{tenant}' and aggregate_id = '42' and processed_at is null"
        ),
    )
    .await?;
    let claimed = "select concat_ws(' ', id, tenant_id) from events.claim_events(1, 'p', 4)";
    let claimed = frugal(client, "worker", &step("claiming"), claimed, 16).await?;
    let ids: Vec<&str> = claimed.iter().filter_map(|row| row.split_once(' ')).map(|(id, _)| id).collect();
    anyhow::ensure!(
        ids.len() == 4 && claimed.iter().all(|row| row.ends_with(&tenant.to_string())),
        "{claimed:?}"
    );
    let of = |count: usize| format!("array_fill('{tenant}'::uuid, array[{count}])");

    let note = format!(
        "select coalesce(events.note_deliveries('p', {}, array[{}, {}]::bigint[], array['a', 'a'])::text, '')",
        of(2),
        ids[0],
        ids[1]
    );
    frugal(client, "worker", &step("recording deliveries"), &note, 8).await?;
    let release = format!(
        "select events.release_outbox_events('p', {}, array[{}]::bigint[], array[1]::bigint[])::text",
        of(1),
        ids[0]
    );
    frugal(client, "worker", &step("releasing"), &release, 6).await?;
    let complete = format!(
        "select events.complete_events(1, 'p', {}, array[{}, {}, {}]::bigint[], array[null, null, 'no'])::text",
        of(3),
        ids[1],
        ids[2],
        ids[3]
    );
    let completed = frugal(client, "worker", &step("completing"), &complete, 9).await?;
    anyhow::ensure!(completed == ["true"], "{completed:?}");
    for (call, id, answer) in [
        ("retry", ids[0], "done"),
        ("retry", ids[1], "processed"),
        ("close", ids[3], "done"),
        ("close", ids[2], "processed"),
    ] {
        let why = if call == "close" { ", 'why'" } else { "" };
        let sql = format!("select events.{call}_outbox_event('{tenant}', {id}, 'me'{why})");
        let said = frugal(client, "app", &step(call), &sql, 3).await?;
        anyhow::ensure!(said == [answer], "{sql}: {said:?}");
    }
    frugal(
        client,
        "worker",
        &step("choosing tenants"),
        "select id::text from events.tenants_with_events() as chosen (id)",
        4,
    )
    .await?;
    let prune = format!(
        "select concat_ws(' ', removed) from events.prune_outbox('{tenant}', now() - interval '1000 years', 0, 2)"
    );
    let pruned = frugal(client, "worker", &step("pruning"), &prune, 8).await?;
    anyhow::ensure!(pruned == ["0"], "{pruned:?}");
    execute(&mut *client, "rollback").await?;
    Ok(())
}

/// The life often enough that a session keeps its plans, and once in a new session.
async fn live_often(
    admin: &PgPool,
    session: &mut PgConnection,
    tenant: Uuid,
    name: &str,
) -> anyhow::Result<()> {
    for _ in 0..7 {
        live(session, tenant, name).await?;
    }
    let mut new_session = admin.acquire().await?;
    live(&mut new_session, tenant, name).await
}

async fn prepared(admin: &PgPool) -> anyhow::Result<(Uuid, Uuid)> {
    execute(admin, NO_AUTOVACUUM).await?;
    execute(admin, "select from events.register_sinks('[{\"name\": \"a\"}]', 'me')").await?;
    Ok((tenant(admin, "own").await?.0, tenant(admin, "other").await?.0))
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_lives_by_indexes_on_empty_and_on_never_analyzed_tables() -> anyhow::Result<()> {
    let admin = World::new().await?.client("postgres").await?;
    let (own, other) = prepared(&admin).await?;
    let mut session = admin.acquire().await?;
    live_often(&admin, &mut session, own, "empty").await?;
    for tenant in [own, other] {
        fill_for(&admin, &format!("'{tenant}'"), 10_000, "now()").await?;
        fill_for(&admin, &format!("'{tenant}'"), 2_000, "null").await?;
    }
    execute(
        &admin,
        "insert into events.outbox_deliveries (tenant_id, event_id, sink) select tenant_id, id, 'a' from m10_recovery.outbox",
    )
    .await?;
    live_often(&admin, &mut session, own, "never analyzed").await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_lives_by_indexes_on_drained_tables_and_for_a_tenant_without_statistics()
-> anyhow::Result<()> {
    let admin = World::new().await?.client("postgres").await?;
    let (own, other) = prepared(&admin).await?;
    let mut session = admin.acquire().await?;
    fill_for(&admin, &format!("'{other}'"), 20_000, "null").await?;
    execute(
        &admin,
        "insert into events.outbox_deliveries (tenant_id, event_id, sink) select tenant_id, id, 'a' from m10_recovery.outbox;
         analyze m10_recovery.outbox, events.outbox_deliveries",
    )
    .await?;
    live_often(&admin, &mut session, own, "full, and the tenant is not in the statistics").await?;
    execute(&admin, "update m10_recovery.outbox set processed_at = now() where processed_at is null").await?;
    live_often(&admin, &mut session, own, "drained").await?;
    // Most events are now those of a tenant that the statistics do not know.
    fill_for(&admin, &format!("'{own}'"), 20_000, "now()").await?;
    execute(
        &admin,
        format!(
            "insert into events.outbox_deliveries (tenant_id, event_id, sink)
             select tenant_id, id, 'a' from m10_recovery.outbox where tenant_id = '{own}'"
        ),
    )
    .await?;
    live_often(&admin, &mut session, own, "many events of the tenant that is not in the statistics").await
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
