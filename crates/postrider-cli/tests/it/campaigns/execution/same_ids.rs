//! Ids are unique within a tenant only: another tenant may have the same ids in every table. Each function acts for one tenant,
//! and neither reads nor changes the rows of the other.

use std::collections::BTreeSet;

use anyhow::Context;
use serde_json::{Value, json};
use sqlx::PgConnection;
use uuid::Uuid;

use super::{Stage, Tenant, claim, finalize, reserve_all};
use crate::sql::{execute, texts};

/// The rows that the calls name: a run of two jobs with two items each. The worker `w` holds the first job and has reserved its items, of
/// which the first is in doubt. Its phase can fail over to another account; the next one belongs to another service.
struct Subject {
    stage: Stage,
    twin: Tenant,
    names: Vec<(&'static str, String)>,
}

/// Tables whose rows the twin has under the same ids, in the order of their references.
const TABLES: &[&str] = &[
    "tenancy.provider_accounts",
    "execution.leads",
    "execution.lead_lists",
    "execution.lead_list_members",
    "execution.assets",
    "execution.campaigns",
    "execution.campaign_phases",
    "execution.campaign_runs",
    "execution.job_queue",
    "execution.claim_order",
    "execution.channel_outbox",
    "execution.doubts",
    "execution.provider_callbacks",
    "execution.deliveries",
    "execution.account_states",
    "execution.campaign_audit_log",
    "execution.campaign_events",
    "execution.run_archives",
    "execution.suppression_keys",
    "execution.list_suppressions",
];

const CLAIM_SECOND_JOB: &str = "select from execution.claim_queued_jobs('{t}', 'v')";
const CLAIM_DOUBT: &str = "select from execution.claim_doubts('{t}', 'r', '{sim}', 10, '1 minute')";
const OPEN_CIRCUIT: &str = "select execution.open_circuit('{t}', 'w', '{job}', 1, false, 'away');
    update execution.account_states set circuit_open_until = now() where tenant_id = '{t}'";
const SETTLE_SECOND_ITEM: &str =
    "select execution.finalize_outbox_items(array['{t}']::uuid[], 'w', array['{item1}']::uuid[],
                                         array['sent'], array['m'], array[null::text])";
const PROGRESS: &str =
    "select execution.finalize_outbox_items(array['{t}']::uuid[], 'w', array['{item1}']::uuid[],
                                         array['sent'], array['m'], array[null::text]);
    update execution.campaigns set progress_at = null where tenant_id = '{t}'";
const AGE_EVENTS: &str = "set local session_replication_role = replica;
    update execution.campaign_events set at = at - interval '1 day' where tenant_id = '{t}';
    set local session_replication_role = origin";
const RESERVE: &str = "(array['{t}']::uuid[], 'v', array['{job2}']::uuid[], array[1], array[1], array[2],
    array[gen_random_uuid(), gen_random_uuid()], array['a', 'b'], array[null, null]::bytea[], array[null, null]::text[],
    array[null, null]::text[])";

/// A run that ended long ago.
const AGE_RUN: &str = "set local session_replication_role = replica;
    update execution.campaign_runs set status = 'completed', created_at = now() - interval '3 days',
           started_at = now() - interval '3 days', finished_at = now() - interval '2 days' where tenant_id = '{t}' and id = '{run}';
    update execution.job_queue set status = 'completed', outcome = 'completed', succeeded = 1, failed = 0, skipped = 0,
           locked_by = null, locked_at = null, finished_at = now() where tenant_id = '{t}' and run_id = '{run}';
    update execution.channel_outbox set status = 'sent', in_doubt_since = null, finalized_at = now()
     where tenant_id = '{t}' and run_id = '{run}';
    delete from execution.doubts where tenant_id = '{t}';
    set local session_replication_role = origin";
const ARCHIVE_RUN: &str = "set local session_replication_role = replica;
    insert into execution.run_archives (tenant_id, run_id, jobs_completed, jobs_dead, sent, called, posted, failed, skipped, missing)
    values ('{t}', '{run}', 2, 0, 2, 0, 0, 0, 0, 0);
    update execution.job_queue set status = 'completed', outcome = 'completed', succeeded = 1, failed = 0, skipped = 0,
           locked_by = null, locked_at = null, finished_at = now() where tenant_id = '{t}' and run_id = '{run}';
    set local session_replication_role = origin";

/// Functions that change rows: what happens before, and the arguments.
const CHANGES: &[(&str, &str, &str)] = &[
    ("claim_queued_jobs", "", "('{t}', 'v')"),
    (
        "requeue_overdue_jobs",
        "update execution.job_queue set locked_at = now() - interval '6 minutes' where status = 'locked' and tenant_id = '{t}'",
        "('{t}', 'v')",
    ),
    (
        "requeue_overdue_jobs",
        "select execution.fail_job('{t}', '{job}', 'w', 1, 'why', interval '0')",
        "('{t}', 'v')",
    ),
    (
        "heartbeat_jobs",
        "update execution.job_queue set locked_at = now() - interval '1 minute' where status = 'locked' and tenant_id = '{t}'",
        "(array['{t}']::uuid[], 'w', array['{job}']::uuid[], array[1])",
    ),
    ("begin_windows", CLAIM_SECOND_JOB, RESERVE),
    ("begin_outbox_items", CLAIM_SECOND_JOB, RESERVE),
    (
        "finalize_outbox_items",
        "",
        "(array['{t}']::uuid[], 'w', array['{item1}']::uuid[], array['sent'], array['m'], array[null::text])",
    ),
    (
        "finalize_outbox_items",
        "",
        "(array['{t}']::uuid[], 'w', array['{item1}']::uuid[], array['in_doubt'], array[null::text], array['why'])",
    ),
    (
        "finalize_outbox_items",
        SETTLE_SECOND_ITEM,
        "(array['{t}']::uuid[], 'w', array['{item1}']::uuid[], array['failed'], array[null::text], array['why'])",
    ),
    ("move_outbox_items", "", "(array['{t}']::uuid[], 'w', array['{item1}']::uuid[])"),
    ("complete_job", SETTLE_SECOND_ITEM, "('{t}', '{job}', 'w', 1)"),
    ("fail_job", "", "('{t}', '{job}', 'w', 1, 'why')"),
    ("release_job", "", "('{t}', '{job}', 'w', 1)"),
    ("put_off_job", "", "('{t}', '{job}', 'w', 1, '1 hour', 'daily', 'why', true)"),
    ("take_call_tokens", "", "('{t}', 'w', '{job}', 1, 1)"),
    ("hold_account", "", "('{t}', 'w', '{job}', 1, false, 10, 'why')"),
    ("open_circuit", "", "('{t}', 'w', '{job}', 1, false, 'why')"),
    ("close_circuit", OPEN_CIRCUIT, "('{t}', 'w', '{job}', 1, false)"),
    ("claim_doubts", "", "('{t}', 'r', '{sim}', 10, '1 minute')"),
    ("put_off_doubt", CLAIM_DOUBT, "('{t}', 'r', '{item0}', 1, now(), true, 'why')"),
    ("settle_doubt", CLAIM_DOUBT, "('{t}', 'r', '{item0}', 1, 'sent', 'm', 'they say so')"),
    ("take_call_token_for_doubt", CLAIM_DOUBT, "('{t}', 'r', '{item0}', 1)"),
    ("resolve_in_doubt", "", "('{t}', '{item0}', 'sent', 'm', 'they say so', 'me')"),
    (
        "resolve_many_in_doubt",
        "",
        "('{t}', array['{item0}']::uuid[], 'sent', array['m'], 'they say so', 'me')",
    ),
    ("record_callback", "", "('{t}', '{account}', '{key0}', 'm', 'done', true)"),
    (
        "record_callback",
        "",
        "('{t}', '{account}', '{key0}', 'm', 'done', true, 'bounced', 'why', now(), 'hard bounce', true)",
    ),
    ("note_progress", PROGRESS, "('{t}', 'w')"),
    (
        "tend_phase",
        "update execution.campaign_phases set due = 'end' where tenant_id = '{t}' and id = '{phase}'",
        "('{t}', 'w')",
    ),
    ("prune_campaign_events", AGE_EVENTS, "('{t}', now(), 1000)"),
    ("control_phase", "", "('{t}', '{campaign}', 'first', 'pause', null, 'me')"),
    (
        "control_phase",
        "select execution.control_phase('{t}', '{campaign}', 'first', 'pause', null, 'me')",
        "('{t}', '{campaign}', 'first', 'resume', null, 'me')",
    ),
    ("control_phase", "", "('{t}', '{campaign}', 'first', 'cancel', null, 'me')"),
    (
        "tend_phase",
        "select execution.control_phase('{t}', '{next}', 'first', 'start', null, 'me');
         select execution.control_phase('{t}', '{next}', 'first', 'cancel', null, 'me')",
        "('{t}', 'w')",
    ),
    (
        "report_progress",
        "select execution.control_phase('{t}', '{campaign}', 'theirs', 'start', null, 'me')",
        "('{t}', '{campaign}', 'theirs', 50, 'me')",
    ),
    ("deploy_campaign", "", "('{t}', '{next}')"),
    ("create_asset", "", "('{t}', gen_random_uuid(), '{workspace}', 'new', 'email', '{}', 'me')"),
    (
        "create_campaign",
        "",
        r#"('{t}', gen_random_uuid(), '{workspace}', 'new', true,
            '[{"id": "019a0000-0000-7000-8000-000000000000", "phase": "only", "kind": "external"}]', 'me')"#,
    ),
    ("suppress_lead", "", "('{t}', '{lead}', 'why', 'me')"),
    (
        "unsuppress_lead",
        "select execution.suppress_lead('{t}', '{lead}', 'why', 'me')",
        "('{t}', '{lead}', 'asked for it', 'me')",
    ),
    ("suppress_on_list", "", "('{t}', '{lead}', '{list}', 'why', 'me')"),
    (
        "unsuppress_on_list",
        "select execution.suppress_on_list('{t}', '{lead}', '{list}', 'why', 'me')",
        "('{t}', '{lead}', '{list}', 'asked for it', 'me')",
    ),
    ("unsubscribe", "", "('{t}', '{token}', 'list', 'why')"),
    ("unsubscribe", "", "('{t}', '{token}', 'workspace', 'why')"),
    ("begin_erasure", "", "('{t}', '{lead}')"),
    (
        "erase_lead",
        "update execution.leads set erasing_since = now() - interval '1 minute', suppressed_at = now() - interval '1 minute',
                suppression_reason = 'erased' where tenant_id = '{t}' and id = '{lead2}'",
        "('{t}', '{lead2}', 'me')",
    ),
    ("archive_run", AGE_RUN, "('{t}', '{run}', now() - interval '25 hours', null, 'me')"),
    ("prune_run", ARCHIVE_RUN, "('{t}', '{run}', 1000)"),
    (
        "import_leads",
        "insert into execution.lead_intake (intake, line, lead_id, identity, email, attributes)
         select '{run}', 1, gen_random_uuid(), identity, email, '{\"known\": true}' from execution.leads
          where tenant_id = '{t}' and id = '{lead}'",
        "('{t}', '{run}', '{workspace}', 'new', gen_random_uuid())",
    ),
];

/// Functions that only read: what happens before, and the arguments.
const READS: &[(&str, &str, &str)] = &[
    ("read_job", OPEN_CIRCUIT, "('{t}', 'w', '{job}', 1)"),
    ("read_accounts", OPEN_CIRCUIT, "('{t}', 'w', '{job}', 1)"),
    ("read_audience", OPEN_CIRCUIT, "('{t}', 'w', '{job}', 1, true)"),
    ("read_account_states", OPEN_CIRCUIT, "(array['{t}']::uuid[], 'w', array['{job}']::uuid[])"),
    ("await_reservations", OPEN_CIRCUIT, "('{t}', '{campaign}', 'first')"),
    ("run_progress", OPEN_CIRCUIT, "('{t}', array['{run}']::uuid[])"),
    ("verify_launch", OPEN_CIRCUIT, "('{t}', '{run}')"),
    ("launch_evidence", OPEN_CIRCUIT, "('{t}', '{run}')"),
    ("old_runs", AGE_RUN, "('{t}', now() - interval '25 hours')"),
    ("find_leads", OPEN_CIRCUIT, "('{t}', '{email}')"),
    ("unsubscribe_tokens", OPEN_CIRCUIT, "('{t}', '{run}', array['{lead}']::uuid[])"),
    ("unsubscribe_subject", OPEN_CIRCUIT, "('{t}', '{token}')"),
    ("count_audience", OPEN_CIRCUIT, "('{t}', '{audience}', 'email', 100)"),
    ("sample_audience", OPEN_CIRCUIT, "('{t}', '{audience}', 'email', 100, 1)"),
];

impl Subject {
    async fn new() -> anyhow::Result<Self> {
        let stage = Stage::new().await?;
        let own = stage.own;
        let twin = Tenant::create(&stage.admin, "twin").await?;
        let second = format!(
            "insert into tenancy.provider_accounts (id, tenant_id, workspace_id, name, provider, sealed_secret)
             values (gen_random_uuid(), '{}', '{}', 'second', 'sim', 'sealed')",
            own.id, own.workspace
        );
        execute(&stage.admin, second).await?;
        let first = stage.phase(own, 4, &json!({ "failover_account": "second" })).await?;
        let phase = first["id"].as_str().unwrap_or_default().to_owned();
        let theirs = json!({ "id": Uuid::now_v7(), "phase": "theirs", "kind": "external" });
        let campaign = stage.campaign(own, &json!([first, theirs])).await?;
        let next: Value = stage.phase(own, 2, &json!({})).await?;
        let next = stage.campaign(own, &json!([next])).await?;
        let run = stage.deploy(own, campaign, 2).await?;
        let job = claim(&stage.worker, "w", 1).await?.remove(0);
        let items = reserve_all(&stage.worker, "w", &job).await?;
        finalize(&stage.worker, own.id, "w", &[(items[0], "in_doubt")]).await?;
        let job2 =
            format!("select id::text from execution.job_queue where status = 'queued' and run_id = '{run}'");
        let token = format!(
            "select (execution.unsubscribe_tokens('{}', '{run}', array['{}'::uuid]))[1]",
            own.id, job.item_ids[0]
        );
        let list = format!(
            "select list.name from execution.campaign_runs as run
                    join execution.campaign_phases as phase on phase.id = run.phase_id
                    join execution.lead_lists as list on list.id = phase.list_id
              where run.id = '{run}'"
        );
        let names = vec![
            ("token", texts(&stage.admin, token).await?.concat()),
            ("list", texts(&stage.admin, list).await?.concat()),
            ("t", own.id.to_string()),
            ("workspace", own.workspace.to_string()),
            ("campaign", campaign.to_string()),
            ("audience", stage.look("list_id", "campaign_phases", phase.parse()?).await?),
            ("phase", phase),
            ("next", next.to_string()),
            ("run", run.to_string()),
            ("job", job.job_id.to_string()),
            ("job2", texts(&stage.admin, job2).await?.concat()),
            ("item0", items[0].to_string()),
            ("item1", items[1].to_string()),
            ("key0", stage.look("idempotency_key", "channel_outbox", items[0]).await?),
            ("lead", job.item_ids[0].to_string()),
            ("lead2", texts(&stage.admin, format!("select item_ids[1]::text from execution.job_queue where status = 'queued' and run_id = '{run}'")).await?.concat()),
            ("email", stage.look("email", "leads", job.item_ids[0]).await?),
            ("account", stage.look("provider_account_id", "campaign_runs", run).await?),
        ];
        Ok(Self { stage, twin, names })
    }

    /// A statement with the names that it mentions.
    fn filled(&self, sql: &str) -> String {
        self.names
            .iter()
            .fold(sql.to_owned(), |sql, (name, value)| sql.replace(&format!("{{{name}}}"), value))
    }

    /// Gives the twin a copy of every row, under the same ids.
    async fn copy(&self, client: &mut PgConnection) -> anyhow::Result<()> {
        let (own, Tenant { id, workspace }) = (self.stage.own.id, self.twin);
        let mut sql = format!(
            "set local session_replication_role = replica;
             delete from tenancy.provider_accounts where tenant_id = '{id}';"
        );
        for table in TABLES {
            // The audit log numbers its lines itself, unless it is told otherwise.
            sql.push_str(&format!(
                "insert into {table} overriding system value
                 select (jsonb_populate_record(null::{table}, to_jsonb(own)
                         || jsonb_build_object('tenant_id', '{id}', 'workspace_id', '{workspace}'))).*
                   from {table} as own where own.tenant_id = '{own}';"
            ));
        }
        sql.push_str("set local session_replication_role = origin");
        Ok(execute(&mut *client, sql).await?)
    }
}

/// Every row of a tenant.
async fn rows(client: &mut PgConnection, tenant: Uuid) -> Result<Vec<String>, sqlx::Error> {
    let tables = TABLES.iter().chain(&["tenancy.audit_log", "m10_recovery.outbox"]);
    let rows = tables.map(|table| {
        format!(
            "select '{table} ' || to_jsonb(whole)::text as line from {table} as whole where tenant_id = '{tenant}'"
        )
    });
    let all = rows.collect::<Vec<_>>().join(" union all ");
    texts(&mut *client, format!("select line from ({all}) as lines order by 1")).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_function_changes_no_row_of_another_tenant_with_the_same_ids() -> anyhow::Result<()> {
    let subject = Subject::new().await?;
    let mut problems = Vec::new();
    for (name, before, arguments) in CHANGES {
        let call = subject.filled(&format!("select * from execution.{name}{arguments}"));
        match changed(&subject, &subject.filled(before), &call).await {
            Ok((true, false)) => {}
            Ok((false, _)) => problems.push(format!("{call} did nothing")),
            Ok((_, true)) => problems.push(format!("{call} changed the other tenant")),
            Err(error) => problems.push(format!("{call}: {error:#}")),
        }
    }
    assert!(problems.is_empty(), "{problems:#?}");
    Ok(())
}

/// Whether a call changes rows of the tenant, and rows of its twin. Leaves no trace.
async fn changed(subject: &Subject, before: &str, call: &str) -> anyhow::Result<(bool, bool)> {
    let (own, twin) = (subject.stage.own.id, subject.twin.id);
    let mut client = subject.stage.admin.begin().await?;
    if !before.is_empty() {
        execute(&mut *client, before).await.context("before it")?;
    }
    subject.copy(&mut client).await?;
    let rows_before = (rows(&mut client, own).await?, rows(&mut client, twin).await?);
    execute(&mut *client, call).await?;
    let rows_after = (rows(&mut client, own).await?, rows(&mut client, twin).await?);
    client.rollback().await?;
    Ok((rows_after.0 != rows_before.0, rows_after.1 != rows_before.1))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_function_reads_no_row_of_another_tenant_with_the_same_ids() -> anyhow::Result<()> {
    let subject = Subject::new().await?;
    for (name, before, arguments) in READS {
        let sql =
            format!("select to_jsonb(answer)::text from execution.{name}{arguments} as answer order by 1");
        let call = subject.filled(&sql);
        let mut client = subject.stage.admin.begin().await?;
        execute(&mut *client, subject.filled(before)).await?;
        let alone = texts(&mut *client, &call).await?;
        assert!(!alone.is_empty(), "{call}");
        subject.copy(&mut client).await?;
        assert_eq!(texts(&mut *client, &call).await?, alone, "{call}");
        client.rollback().await?;
    }
    Ok(())
}

/// A new function gets its case above.
#[tokio::test(flavor = "multi_thread")]
async fn every_function_that_takes_a_tenant_is_tried() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let functions = "select distinct proname::text
           from pg_proc, unnest(array['postrider_app', 'postrider_worker', 'postrider_read']) as role
          where pronamespace = 'execution'::regnamespace
            and has_function_privilege(role, oid, 'execute')
            and proargnames[1] in ('p_tenant_id', 'p_tenant_ids')";
    let functions: BTreeSet<String> = texts(&stage.admin, functions).await?.into_iter().collect();
    let tried = CHANGES.iter().chain(READS).map(|(name, ..)| *name);
    assert_eq!(functions, tried.map(str::to_owned).collect());
    Ok(())
}
