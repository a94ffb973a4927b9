//! The statements of a job's life find what they need through indexes, whatever lies in the tables and whatever the
//! statistics say: what the functions read is counted while they run.

use sqlx::{Connection, PgConnection, PgPool};
use uuid::Uuid;

use super::{Stage, Windows, claim, complete, finalize, reserve_all};
use crate::sql::{acting_as, execute, number, texts};

/// The counts of this session so far: whole tables read, and rows fetched through indexes where there are many.
async fn counted(client: &mut PgConnection) -> Result<(Vec<String>, i64), sqlx::Error> {
    let whole = "select relname || ' ' || seq_scan from pg_stat_xact_user_tables where schemaname = 'execution' order by 1";
    let fetched = "select coalesce(sum(idx_tup_fetch), 0)::bigint from pg_stat_xact_user_tables \
                    where schemaname = 'execution' and relname in ('job_queue', 'channel_outbox')";
    Ok((texts(&mut *client, whole).await?, number(&mut *client, fetched).await?))
}

/// The whole life of a job of one item, as the worker; leaves no trace.
async fn live(client: &mut PgConnection, expect_a_job: bool) -> anyhow::Result<()> {
    execute(&mut *client, "begin").await?;
    let (whole_before, fetched_before) = counted(&mut *client).await?;
    execute(&mut *client, "set local role postrider_worker").await?;
    let jobs = claim(&mut *client, "w", 1).await?;
    anyhow::ensure!(jobs.len() == usize::from(expect_a_job), "the claim took {jobs:?}");
    let unknown = super::Job {
        job_id: Uuid::now_v7(),
        tenant_id: Uuid::nil(),
        run_id: Uuid::nil(),
        attempts: 1,
        item_ids: vec![Uuid::nil()],
    };
    let job = jobs.first().unwrap_or(&unknown);
    let windows = Windows::of(job, 1, 1);
    let begun = windows.begin(&mut *client, "w").await?;
    anyhow::ensure!(begun[0].verdict == if expect_a_job { "reserved" } else { "lost" }, "{begun:?}");
    Windows::of(job, 1, 1).begin(&mut *client, "w").await?; // and once more, where the key exists
    sqlx::query("select execution.heartbeat_jobs(array[$1], 'w', array[$2], array[1])")
        .bind(job.tenant_id)
        .bind(job.job_id)
        .execute(&mut *client)
        .await?;
    finalize(&mut *client, job.tenant_id, "w", &[(windows.ids[0], "in_doubt")]).await?;
    finalize(&mut *client, job.tenant_id, "w", &[(windows.ids[0], "sent")]).await?;
    finalize(&mut *client, job.tenant_id, "w", &[(windows.ids[0], "failed")]).await?;
    if expect_a_job {
        assert_eq!(complete(&mut *client, "w", job).await?, "completed");
    }
    execute(&mut *client, "reset role").await?;
    let (whole, fetched) = counted(&mut *client).await?;
    assert_eq!(whole, whole_before, "tables that were read from end to end, and how often");
    // A handful per step; thousands lie beside them.
    let fetched = fetched - fetched_before;
    assert!(fetched <= 60, "{fetched} rows were fetched for one item");
    execute(&mut *client, "rollback").await?;
    Ok(())
}

/// Other jobs' items, which have ended.
async fn fill_outbox(admin: &PgPool, items: usize) -> Result<(), sqlx::Error> {
    let sql = format!(
        "insert into execution.channel_outbox (tenant_id, workspace_id, run_id, job_id, channel, provider, recipient_id,
                                               idempotency_key, status, reserved_by, attempt)
         select gen_random_uuid(), gen_random_uuid(), gen_random_uuid(), gen_random_uuid(), 'email', 'sim', gen_random_uuid(),
                gen_random_uuid()::text, 'sent', 'w', 1
           from generate_series(1, {items})"
    );
    execute(admin, sql).await
}

const NO_AUTOVACUUM: &str = "alter table execution.job_queue set (autovacuum_enabled = off);
    alter table execution.channel_outbox set (autovacuum_enabled = off);
    alter table execution.campaign_runs set (autovacuum_enabled = off);
    alter table execution.leads set (autovacuum_enabled = off)";

#[tokio::test(flavor = "multi_thread")]
async fn a_job_lives_by_indexes_on_empty_and_on_never_analyzed_tables() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    execute(&stage.admin, NO_AUTOVACUUM).await?;
    let mut session = stage.admin.acquire().await?;
    // Often enough that the session keeps its plans, which were made for empty tables.
    for _ in 0..8 {
        live(&mut session, false).await?;
    }
    stage.run(3_000, 1).await?;
    fill_outbox(&stage.admin, 20_000).await?;
    let never = "select count(*) from pg_class where reltuples = -1 \
                   and oid in ('execution.job_queue'::regclass, 'execution.channel_outbox'::regclass)";
    assert_eq!(number(&stage.admin, never).await?, 2);
    for _ in 0..8 {
        live(&mut session, true).await?;
    }
    let mut new_session = stage.admin.acquire().await?;
    live(&mut new_session, true).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_lives_by_indexes_beside_many_and_on_tables_that_were_drained() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    execute(&stage.admin, NO_AUTOVACUUM).await?;
    stage.run(3_000, 1).await?;
    fill_outbox(&stage.admin, 20_000).await?;
    execute(&stage.admin, "vacuum analyze").await?;
    let mut session = stage.admin.acquire().await?;
    for _ in 0..8 {
        live(&mut session, true).await?;
    }
    // All jobs end, and the statistics are of the fullest hour.
    let drain = "update execution.job_queue set status = 'locked', locked_by = 'w', locked_at = now();
        update execution.job_queue set status = 'completed', outcome = 'completed', locked_by = null, locked_at = null";
    execute(&stage.admin, drain).await?;
    for _ in 0..8 {
        live(&mut session, false).await?;
    }
    stage.run(1, 1).await?;
    live(&mut session, true).await?;
    let mut new_session = stage.admin.acquire().await?;
    live(&mut new_session, true).await
}

/// A batch of a thousand results costs a thousand lookups. A plan that joins them to the whole index reads all items of the table, and
/// compares each item with each result.
#[tokio::test(flavor = "multi_thread")]
async fn a_large_batch_of_settlements_reads_its_own_items_in_a_table_that_was_analyzed_while_it_was_empty()
-> anyhow::Result<()> {
    let stage = Stage::new().await?;
    execute(&stage.admin, NO_AUTOVACUUM).await?;
    execute(&stage.admin, "vacuum analyze execution.channel_outbox").await?;
    stage.run(1_000, 1_000).await?;
    fill_outbox(&stage.admin, 3_000).await?;
    let mut session = stage.worker.acquire().await?;
    let job = claim(&mut *session, "w", 1).await?.remove(0);
    let items = reserve_all(&mut *session, "w", &job).await?;
    let settled: Vec<(Uuid, &str)> = items.iter().map(|item| (*item, "sent")).collect();

    let mut transaction = session.begin().await?;
    let (_, before) = counted(&mut transaction).await?;
    assert_eq!(finalize(&mut *transaction, job.tenant_id, "w", &settled).await?.len(), 1_000);
    let (_, after) = counted(&mut transaction).await?;

    assert!(after - before <= 1_100, "{} items were read", after - before);
    Ok(())
}

/// Most leads and lists that an import of a hundred new people may read: each lead and its list once, for the foreign keys of
/// their membership, and the other leads on few pages.
const READ_MAX: i64 = 400;

/// Imports a hundred new people for the tenant and returns how many leads and lists that has read; leaves no trace.
async fn leads_read_by_an_import(session: &mut PgConnection, tenant: super::Tenant) -> anyhow::Result<i64> {
    let read = "select coalesce(sum(seq_tup_read + idx_tup_fetch), 0)::bigint from pg_stat_xact_user_tables \
                 where relid in ('execution.leads'::regclass, 'execution.lead_lists'::regclass)";
    let mut client = session.begin().await?;
    let intake = Uuid::now_v7();
    execute(&mut *client, acting_as(tenant.id)).await?;
    execute(
        &mut *client,
        format!(
            "insert into execution.lead_intake (intake, line, lead_id, identity, external_id, email, phone, attributes)
             select '{intake}'::uuid, n, gen_random_uuid(), 'id:' || n, n::text, n || '@new.example', null, '{{}}'::jsonb
               from generate_series(1, 50) as n
              union all
             select '{intake}'::uuid, n, gen_random_uuid(), 'phone:+1444' || n, null, null, '+1444' || n, '{{}}'::jsonb
               from generate_series(51, 100) as n"
        ),
    )
    .await?;
    let before = number(&mut *client, read).await?;
    let import = format!(
        "select added from execution.import_leads('{}', '{intake}', '{}', 'new', gen_random_uuid())",
        tenant.id, tenant.workspace
    );
    assert_eq!(number(&mut *client, import).await?, 100);
    let after = number(&mut *client, read).await?;
    client.rollback().await?;
    Ok(after - before)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_import_reads_as_much_for_a_tenant_with_many_leads_as_for_one_with_none() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    execute(&stage.admin, NO_AUTOVACUUM).await?;
    // One session, which keeps the plans that it made for empty tables.
    let mut session = stage.admin.acquire().await?;
    let none = leads_read_by_an_import(&mut session, stage.own).await?;
    stage.list(stage.own, "all", 20_000).await?;
    let never_analyzed = leads_read_by_an_import(&mut session, stage.own).await?;
    let mut new_session = stage.admin.acquire().await?;
    let newly_planned = leads_read_by_an_import(&mut new_session, stage.own).await?;
    execute(&stage.admin, "analyze execution.leads").await?;
    let analyzed = leads_read_by_an_import(&mut session, stage.own).await?;
    let new_tenant = super::Tenant::create(&stage.admin, "new").await?;
    stage.list(new_tenant, "all", 20_000).await?;
    let unknown_to_statistics = leads_read_by_an_import(&mut session, new_tenant).await?;
    let read = [none, never_analyzed, newly_planned, analyzed, unknown_to_statistics];
    assert!(read.iter().all(|read| *read <= READ_MAX), "{read:?} rows were read");
    Ok(())
}

// An average tenant has one lead there, so that the statistics promise as little from any index as from the right one.
#[tokio::test(flavor = "multi_thread")]
async fn an_import_of_a_large_tenant_beside_many_small_ones_reads_few_leads() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    execute(&stage.admin, NO_AUTOVACUUM).await?;
    let small = "with tenants as (
                     insert into tenancy.tenants (id, name) select gen_random_uuid(), 'small ' || at from generate_series(1, 3000) as at
                  returning id
                 ), workspaces as (
                     insert into tenancy.workspaces (tenant_id, id, name) select id, id, 'main' from tenants returning id)
                 insert into execution.leads (id, tenant_id, workspace_id, identity, email)
                 select gen_random_uuid(), id, id, 'one', id || '@small.example' from workspaces;
                 analyze execution.leads, execution.lead_lists";
    execute(&stage.admin, small).await?;
    stage.list(stage.own, "all", 20_000).await?;
    let mut session = stage.admin.acquire().await?;
    let read = leads_read_by_an_import(&mut session, stage.own).await?;
    assert!(read <= READ_MAX, "{read} rows were read");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_import_reads_few_leads_of_a_table_that_was_analyzed_before_it_grew() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    execute(&stage.admin, NO_AUTOVACUUM).await?;
    stage.list(stage.own, "few", 3).await?;
    execute(&stage.admin, "vacuum analyze execution.leads, execution.lead_lists").await?;
    let mut session = stage.admin.acquire().await?;
    // The session keeps the plans that it made for three leads.
    let few = leads_read_by_an_import(&mut session, stage.own).await?;
    stage.list(stage.own, "many", 20_000).await?;
    let many = leads_read_by_an_import(&mut session, stage.own).await?;
    assert!(few.max(many) <= READ_MAX, "{few} and {many} rows were read");
    Ok(())
}
