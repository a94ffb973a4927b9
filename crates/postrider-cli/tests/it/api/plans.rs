//! A page costs what is on it, however much there is: what the lists read is counted while they run, under the policies that the
//! app has to live with.

use postrider_model::{
    Channel,
    campaigns::{EventType, ItemStatus, PhaseStatus, RunCause, RunStatus},
    ids::{CampaignId, LeadId, OutboxId, RunId, TenantId},
};
use postrider_store::{
    PgConnection,
    campaigns::{
        self, assets, doubts, failures, history, item, items,
        leads::{self, Filter},
        runs,
    },
    postgres::pool,
    tenancy::{audit, overview},
};
use uuid::Uuid;

use super::Stage;
use crate::sql::{execute, number, texts};

/// Rows of a page in these tests.
const SIZE: i64 = 20;

/// The counts of this transaction so far: tables read from end to end, and rows fetched.
async fn counted(connection: &mut PgConnection) -> Result<(Vec<String>, i64), sqlx::Error> {
    // There are few lists and doubts, and no callbacks: reading all of them may be cheaper than an index.
    let whole = "select relname || ' ' || seq_scan from pg_stat_xact_user_tables \
                  where schemaname = 'execution' and relname not in ('lead_lists', 'doubts', 'run_archives', 'provider_callbacks') order by 1";
    let fetched = "select coalesce(sum(idx_tup_fetch + seq_tup_read), 0)::bigint from pg_stat_xact_user_tables \
                    where schemaname = 'execution'";
    Ok((texts(&mut *connection, whole).await?, number(&mut *connection, fetched).await?))
}

/// That a list reads no table from end to end, and few rows.
async fn assert_cheap<T>(
    stage: &Stage,
    what: &str,
    rows: usize,
    fetched_max: i64,
    read: impl AsyncFnOnce(&mut PgConnection, TenantId) -> Result<Vec<T>, postrider_store::StoreError>,
) -> anyhow::Result<()> {
    let app = stage.world.pool("postrider_app").await?;
    let mut transaction = pool::begin_as(&app, stage.acme.id).await?;
    let before = counted(&mut transaction).await?;
    let page = read(&mut transaction, stage.acme.id).await?;
    let after = counted(&mut transaction).await?;
    assert_eq!(page.len(), rows, "{what}");
    assert_eq!(after.0, before.0, "{what}: tables that were read from end to end, and how often");
    let fetched = after.1 - before.1;
    assert!(fetched <= fetched_max, "{what}: {fetched} rows were fetched for a page of {}", page.len());
    Ok(())
}

/// Two tenants with the same: many leads on a list, campaigns, assets, and runs of which one has many jobs with many items.
async fn fill(stage: &Stage) -> anyhow::Result<Vec<Uuid>> {
    let beta = stage.tenant("beta").await?;
    let mut runs = Vec::new();
    for tenant in [&stage.acme, &beta] {
        let (id, workspace, list, run) = (tenant.id.0, tenant.workspace_id.0, Uuid::now_v7(), Uuid::now_v7());
        runs.push(run);
        let sql = format!(
            "insert into execution.lead_lists (id, tenant_id, workspace_id, name) values ('{list}', '{id}', '{workspace}', 'all');
             insert into execution.leads (id, tenant_id, workspace_id, identity, external_id, email, phone, suppressed_at, suppression_reason)
             select gen_random_uuid(), '{id}', '{workspace}', 'id:' || n, n::text, n || '@example.org', '+1555' || n,
                    case when n % 3 = 0 then now() end, case when n % 3 = 0 then 'bounced' end
               from generate_series(1, 20000) as n;
             insert into execution.lead_list_members (tenant_id, list_id, lead_id)
             select tenant_id, '{list}', id from execution.leads where tenant_id = '{id}';
             insert into execution.assets (id, tenant_id, workspace_id, name, version, channel, content, created_at)
             select gen_random_uuid(), '{id}', '{workspace}', 'asset ' || n, 1, 'email', '{{}}', now() - n * interval '1 second'
               from generate_series(1, 5000) as n;
             insert into tenancy.provider_accounts (id, tenant_id, workspace_id, name, provider, sealed_secret)
             values ('{list}', '{id}', '{workspace}', 'mail', 'sim', 'sealed');
             insert into execution.campaigns (id, tenant_id, workspace_id, name, created_at)
             select gen_random_uuid(), '{id}', '{workspace}', 'campaign ' || n, now() - n * interval '1 second'
               from generate_series(1, 5000) as n;
             insert into execution.campaign_phases (id, tenant_id, workspace_id, campaign_id, position, phase, kind)
             select gen_random_uuid(), '{id}', '{workspace}', id, 1, 'print', 'external'
               from execution.campaigns where tenant_id = '{id}';
             insert into execution.campaign_runs (id, tenant_id, workspace_id, campaign_id, phase_id, channel, asset_id,
                    provider_account_id, provider, quiet_time, key_part, intended, correlation_id, created_at, status)
             select case phase.row when 1 then '{run}' else gen_random_uuid() end, '{id}', '{workspace}', phase.campaign_id, phase.id,
                    'email', (select id from execution.assets where tenant_id = '{id}' limit 1), '{list}', 'sim',
                    interval '11 minutes', 'a', 20000, gen_random_uuid(), now() - phase.row * interval '1 second',
                    case phase.row when 1 then 'running' else 'completed' end
               from (select *, row_number() over () as row from execution.campaign_phases where tenant_id = '{id}') as phase;
             insert into execution.job_queue (id, tenant_id, workspace_id, run_id, position, job_type, status, outcome, attempts,
                    succeeded, failed, skipped, item_ids, locked_by, locked_at)
             select gen_random_uuid(), '{id}', '{workspace}', '{run}', n, 'email_send_batch',
                    case when n = 400 then 'locked' else 'completed' end, case when n < 400 then 'completed' end, 1,
                    case when n < 400 then case n when 300 then 49 else 50 end end,
                    case when n < 400 then case n when 300 then 1 else 0 end end, case when n < 400 then 0 end,
                    array(select gen_random_uuid() from generate_series(1, 50)),
                    case when n = 400 then 'w' end, case when n = 400 then now() end
               from generate_series(1, 400) as n;
             insert into execution.job_queue (id, tenant_id, workspace_id, run_id, position, job_type, status, outcome, attempts,
                    succeeded, failed, skipped, item_ids)
             select gen_random_uuid(), '{id}', '{workspace}', other.id, n, 'email_send_batch', 'completed', 'completed', 1, 1, 0, 0,
                    array[gen_random_uuid()]
               from (select id from execution.campaign_runs where tenant_id = '{id}' and id <> '{run}' limit 1) as other,
                    generate_series(1, 10000) as n;
             insert into execution.channel_outbox (id, tenant_id, workspace_id, run_id, job_id, channel, provider, idempotency_key,
                    status, reserved_by, attempt, finalized_at, in_doubt_since)
             select gen_random_uuid(), '{id}', '{workspace}', '{run}', job.id, 'email', 'sim', job.id || ' ' || n,
                    case when job.position = 300 and n = 7 then 'failed' when job.position = 400 then 'queued' else 'sent' end,
                    'w', 1, case when job.position < 400 then now() end,
                    case when job.position = 400 and n <= 30 then now() end
               from execution.job_queue as job, generate_series(1, 50) as n
              where job.run_id = '{run}';
             update execution.channel_outbox set recipient = 'r', error = 'Refused.'
              where run_id = '{run}' and status = 'failed';
             insert into execution.deliveries (tenant_id, outbox_id, run_id, status, message_id, reported_at)
             select tenant_id, id, run_id, 'delivered', 'm', now() from execution.channel_outbox
              where run_id = '{run}' and status = 'sent';
             insert into execution.campaign_events (tenant_id, campaign_id, sequence, type, phase, at, payload)
             select '{id}', (select campaign_id from execution.campaign_runs where id = '{run}'), n,
                    case when n % 10 = 0 then 'phase_paused' else 'campaign_progress' end, 'print', now(), '{{}}'
               from generate_series(1, 5000) as n;
             insert into execution.campaign_audit_log (tenant_id, run_id, outbox_id, actor, action)
             select '{id}', case when n % 200 = 0 then '{run}'::uuid end,
                    case when n % 200 = 0 then (select id from execution.channel_outbox where run_id = '{run}' and status = 'failed') end,
                    'somebody', case when n % 2 = 0 then 'frequent' else 'other' end
               from generate_series(1, 10000) as n"
        );
        let sql = format!("set session_replication_role = replica; {sql}; reset session_replication_role");
        execute(&stage.admin, sql).await?;
    }
    execute(&stage.admin, "analyze").await?;
    Ok(runs)
}

fn named(text: &str) -> campaigns::Filter {
    campaigns::Filter { name_contains: Some(text.to_owned()), ..campaigns::Filter::default() }
}

fn in_state(status: PhaseStatus) -> campaigns::Filter {
    campaigns::Filter { phase_statuses: vec![status], ..campaigns::Filter::default() }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_costs_what_is_on_it() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let run = RunId(fill(&stage).await?[0]);
    let full = usize::try_from(SIZE)?;
    let middle = LeadId(Uuid::from_u128(u128::MAX / 2));

    for (what, filter, after, rows, most) in [
        ("leads", Filter::default(), None, full, SIZE),
        ("leads from the middle", Filter::default(), Some(middle), full, SIZE),
        ("suppressed", Filter { suppressed: Some(true), ..Filter::default() }, Some(middle), full, SIZE),
        (
            "not suppressed",
            Filter { suppressed: Some(false), ..Filter::default() },
            Some(middle),
            full,
            3 * SIZE,
        ),
        (
            "by list",
            Filter { list: Some("all".to_owned()), ..Filter::default() },
            Some(middle),
            full,
            3 * SIZE,
        ),
        ("by e-mail", Filter { email: Some("77@example.org".to_owned()), ..Filter::default() }, None, 1, 2),
        ("by number", Filter { phone: Some("+155577".to_owned()), ..Filter::default() }, None, 1, 2),
        ("by external id", Filter { external_id: Some("77".to_owned()), ..Filter::default() }, None, 1, 2),
    ] {
        assert_cheap(&stage, what, rows, most, async |connection, tenant| {
            leads::page(connection, tenant, &filter, after, SIZE).await
        })
        .await?;
    }
    let ago = jiff::Timestamp::now() - jiff::SignedDuration::from_mins(30);
    assert_cheap(&stage, "assets", full, SIZE, async |connection, tenant| {
        let after = Some((ago, postrider_model::ids::AssetId(Uuid::max())));
        assets::page(connection, tenant, &assets::Filter::default(), after, SIZE).await
    })
    .await?;
    assert_cheap(&stage, "campaigns", full, 3 * SIZE, async |connection, tenant| {
        let filter = campaigns::Filter::default();
        campaigns::page(connection, tenant, &filter, Some((ago, CampaignId(Uuid::max()))), SIZE).await
    })
    .await?;
    // A rare name or state is looked for in the tenant's campaigns, each with its phases, and in no one else's.
    for (what, filter, rows, most) in [
        ("campaigns by a frequent name", named("campaign"), full, 3 * SIZE),
        ("campaigns by a rare name", named("campaign 4999"), 1, 10_050),
        ("campaigns by a frequent state", in_state(PhaseStatus::NotStarted), full, 3 * SIZE),
        ("campaigns by a rare state", in_state(PhaseStatus::Paused), 0, 10_050),
    ] {
        assert_cheap(&stage, what, rows, most, async |connection, tenant| {
            campaigns::page(connection, tenant, &filter, None, SIZE).await
        })
        .await?;
    }
    let campaign = Uuid::parse_str(
        &texts(
            &stage.admin,
            format!("select campaign_id::text from execution.campaign_runs where id = '{}'", run.0),
        )
        .await?[0],
    )?;
    for (what, filter, after, rows) in [
        ("runs", runs::Filter::default(), Some((ago, RunId(Uuid::max()))), full),
        (
            "runs of a campaign",
            runs::Filter { campaign: Some(CampaignId(campaign)), ..runs::Filter::default() },
            None,
            1,
        ),
        (
            "runs by status",
            runs::Filter { status: Some(RunStatus::Completed), ..runs::Filter::default() },
            None,
            full,
        ),
        (
            "runs by channel, vendor and cause",
            runs::Filter {
                channel: Some(Channel::Email),
                provider: Some("sim".to_owned()),
                cause: Some(RunCause::Start),
                ..runs::Filter::default()
            },
            None,
            full,
        ),
        (
            "runs of a time",
            runs::Filter {
                created_after: Some(ago - jiff::SignedDuration::from_mins(10)),
                created_before: Some(ago),
                ..runs::Filter::default()
            },
            None,
            full,
        ),
    ] {
        assert_cheap(&stage, what, rows, 5 * SIZE, async |connection, tenant| {
            runs::page(connection, tenant, &filter, after, SIZE).await
        })
        .await?;
    }
    // A job or two with all their items, or the 400 jobs and one of them with all its items.
    let from = Some((200, OutboxId(Uuid::nil())));
    let state = |state| items::Filter { state: Some(state), ..items::Filter::default() };
    let of_job = |position: i32| {
        let sql = format!(
            "select id from execution.job_queue where run_id = '{}' and position = {position}",
            run.0
        );
        sqlx::query_scalar::<_, Uuid>(sqlx::AssertSqlSafe(sql)).fetch_one(&stage.admin)
    };
    let job = Some(postrider_model::ids::JobId(of_job(200).await?));
    let error = Some("refused".to_owned());
    for (what, filter, after, rows, most) in [
        ("items", items::Filter::default(), from, full, 110 + SIZE),
        ("failed items", state(items::State::Is(ItemStatus::Failed)), None, 1, 510),
        ("items in doubt", state(items::State::InDoubt), None, full, 510),
        ("items at work", state(items::State::Is(ItemStatus::Queued)), None, full, 510),
        ("items of a job", items::Filter { job, ..items::Filter::default() }, None, full, 110 + SIZE),
        ("items by error", items::Filter { error_contains: error, ..items::Filter::default() }, None, 1, 610),
        // Every item of the run, and none of another.
        (
            "items by recipient",
            items::Filter { recipient: Some("r".to_owned()), ..items::Filter::default() },
            None,
            1,
            20_500,
        ),
    ] {
        assert_cheap(&stage, what, rows, most, async |connection, tenant| {
            items::page(connection, tenant, run, &filter, after, SIZE).await
        })
        .await?;
    }
    assert_cheap(&stage, "failures", 1, 610, async |connection, tenant| {
        failures::list(connection, tenant, run).await
    })
    .await?;
    let failed = "select id::text from execution.channel_outbox where status = 'failed'";
    let failed =
        OutboxId(texts(&stage.admin, format!("{failed} and run_id = '{}'", run.0)).await?[0].parse()?);
    // Fifty of them are lines of the log.
    assert_cheap(&stage, "one item", 1, 70, async |connection, tenant| {
        Ok(item::read(connection, tenant, failed).await?.into_iter().collect::<Vec<_>>())
    })
    .await?;
    for (what, types, before) in [
        ("history", vec![], None),
        ("history from the middle", vec![], Some(3_000)),
        ("history of controls", vec![EventType::PhasePaused], None),
    ] {
        assert_cheap(&stage, what, full, 11 * SIZE, async |connection, tenant| {
            history::page(connection, tenant, CampaignId(campaign), &types, before, SIZE).await
        })
        .await?;
    }
    for (what, filter, most) in [
        ("the log of campaigns", audit::Filter::default(), SIZE),
        (
            "the log by action",
            audit::Filter { action: Some("frequent".to_owned()), ..audit::Filter::default() },
            2 * SIZE,
        ),
        // Every line about the item is read and sorted: there are fifty.
        (
            "the log about an item",
            audit::Filter { subject: Some(format!("item:{}", failed.0)), ..audit::Filter::default() },
            3 * SIZE,
        ),
    ] {
        assert_cheap(&stage, what, full, most, async |connection, tenant| {
            audit::campaigns(connection, tenant, (None, None), &filter, None, SIZE).await
        })
        .await?;
    }
    let quiet = |is_quiet| doubts::Filter { is_quiet: Some(is_quiet), ..doubts::Filter::default() };
    let settled = doubts::Settled {
        by_vendors: vec!["sim".to_owned()],
        without_person: vec!["sim".to_owned()],
        by_person: false,
    };
    for (what, filter, rows) in [
        ("doubts", doubts::Filter::default(), full),
        ("doubts of a run", doubts::Filter { run: Some(run), ..doubts::Filter::default() }, full),
        (
            "doubts of a campaign",
            doubts::Filter { campaign: Some(CampaignId(campaign)), ..doubts::Filter::default() },
            full,
        ),
        (
            "doubts of a vendor",
            doubts::Filter { provider: Some("smtp".to_owned()), ..doubts::Filter::default() },
            0,
        ),
        ("doubts by their end", doubts::Filter { settled: Some(settled), ..doubts::Filter::default() }, full),
        ("doubts that are quiet", quiet(true), 0),
        ("doubts that are not quiet", quiet(false), full),
    ] {
        assert_cheap(&stage, what, rows, 700, async |connection, tenant| {
            Ok(doubts::page(connection, tenant, &filter, None, SIZE).await?.items)
        })
        .await?;
    }
    Ok(())
}

/// Much of everything that the overview counts, most of it over, and the same for another tenant.
async fn fill_the_rest(stage: &Stage) -> anyhow::Result<()> {
    for tenant in
        crate::sql::texts(&stage.admin, "select id::text from tenancy.tenants where name in ('acme', 'beta')")
            .await?
    {
        let account =
            format!("(select id from tenancy.provider_accounts where tenant_id = '{tenant}' limit 1)");
        let sql = format!(
            "set session_replication_role = replica;
             insert into execution.doubts (outbox_id, tenant_id, account_id, provider, campaign_id, in_doubt_since)
             select item.id, '{tenant}', {account}, 'sim', run.campaign_id, item.in_doubt_since
               from execution.channel_outbox as item
                    join execution.campaign_runs as run on run.tenant_id = item.tenant_id and run.id = item.run_id
              where item.tenant_id = '{tenant}' and item.in_doubt_since is not null;
             insert into m10_recovery.outbox (aggregate_type, aggregate_id, event_type, payload, tenant_id, processed_at, retry_count)
             select 'order', n::text, 'order.placed', '{{}}', '{tenant}', case when n % 1000 > 0 then now() end, n % 7
               from generate_series(1, 50000) as n;
             insert into jobs.functions (id, tenant_id, name, kind, target)
             values (gen_random_uuid(), '{tenant}', 'noop', 'builtin', 'noop');
             insert into jobs.job_runs (tenant_id, function_name, lock_key, status, completed_at, created_at, grain, grain_start)
             select '{tenant}', 'noop', n::text, 'completed', now(),
                    now() - case when n <= 1440 then interval '1 hour' else n * interval '2 minutes' end, 'day', now()
               from generate_series(1, 30000) as n;
             insert into jobs.sync_errors (tenant_id, error_type, error_code, error_message, source_entity_type, source_entity_id,
                    is_resolved, resolved_at, resolved_by)
             select '{tenant}', 'job', 'EXECUTION_ERROR', 'broken', 'job_run', gen_random_uuid(), n > 30,
                    case when n > 30 then now() end, case when n > 30 then 'test' end
               from generate_series(1, 20000) as n;
             insert into channels.channel_messages (id, tenant_id, account_id, provider, provider_message_id, sender_id, recipient_id,
                    text, status, correlation_id)
             select gen_random_uuid(), '{tenant}', {account}, 'sim', n::text, 's', 'r', 'hello',
                    case when n % 1000 = 0 then 'dispatch_failed' else 'executed' end, gen_random_uuid()
               from generate_series(1, 30000) as n;
             insert into channels.channel_outbox (tenant_id, channel_message_id, account_id, provider, recipient_id, payload, status,
                    sent_at, correlation_id)
             select '{tenant}', id, account_id, 'sim', 'r', '{{}}', case when status = 'executed' then 'sent' else 'dead' end,
                    case when status = 'executed' then now() end, gen_random_uuid()
               from channels.channel_messages where tenant_id = '{tenant}';
             set session_replication_role = default"
        );
        execute(&stage.admin, sql).await?;
    }
    for table in ["execution.campaign_phases", "execution.job_queue", "jobs.job_runs", "m10_recovery.outbox"]
    {
        execute(&stage.admin, format!("vacuum analyze {table}")).await?;
    }
    Ok(execute(&stage.admin, "analyze").await?)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_overview_reads_few_rows_however_much_there_is() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    // Before anything is there, so that a plan that the session keeps from then on is tried, too.
    let app = stage.world.pool("postrider_app").await?;
    let mut session = app.acquire().await?;
    let read = async |connection: &mut PgConnection| {
        crate::sql::execute(&mut *connection, crate::sql::acting_as(stage.acme.id.0)).await?;
        anyhow::Ok(overview::read_in(connection, stage.acme.id, 5, &["sim".to_owned()]).await?)
    };
    let mut empty = sqlx::Connection::begin(&mut *session).await?;
    assert_eq!(read(&mut empty).await?.items_in_doubt, 0);
    empty.commit().await?;
    fill(&stage).await?;
    fill_the_rest(&stage).await?;

    let tables = "select relname || ' ' || seq_scan from pg_stat_xact_user_tables
                   where schemaname in ('execution', 'channels', 'jobs', 'm10_recovery', 'tenancy')
                     -- It has one row, with the key of the signature.
                     and relname <> 'context_keys'
                   order by 1";
    let fetched = "select relname || ' ' || coalesce(idx_tup_fetch, 0) from pg_stat_xact_user_tables
                    where schemaname in ('execution', 'channels', 'jobs', 'm10_recovery') and idx_tup_fetch > 0";
    let mut transaction = sqlx::Connection::begin(&mut *session).await?;
    let scans = texts(&mut *transaction, tables).await?;
    let counts = read(&mut transaction).await?;
    assert_eq!(texts(&mut *transaction, tables).await?, scans, "tables that were read from end to end");
    assert_eq!(
        (counts.phases_not_started, counts.items_in_doubt, counts.jobs_locked, counts.items_begun),
        (5000, 30, 1, 50)
    );
    assert_eq!((counts.items_in_flight, counts.items_in_doubt_for_person), (20, 0));
    assert_eq!((counts.sync_errors, counts.replies_dead, counts.messages_dispatch_failed), (30, 30, 30));
    assert_eq!((counts.events_pending, counts.job_runs_total_24h), (50, 1440));
    for line in texts(&mut *transaction, fetched).await? {
        let (table, rows) = line.split_once(' ').unwrap_or_default();
        // The runs of a day are read as rows, and the doubts; everything else in its index, or as few rows.
        let most = if table == "job_runs" { 1600 } else { 300 };
        assert!(rows.parse::<i64>()? <= most, "{table}: {rows} rows were read");
    }
    Ok(())
}
