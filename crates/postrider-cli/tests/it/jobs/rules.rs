//! Changes of job rows that no statement can make: every constraint by its name, immutable columns, counts, and rows that must stay.

use std::collections::BTreeSet;

use uuid::Uuid;

use super::stage::{End, Stage};
use crate::sql::{execute, refusal, texts};

/// A row in each table.
async fn rows_everywhere(stage: &Stage) -> anyhow::Result<()> {
    let (schedule, alert, own) = (Uuid::now_v7(), Uuid::now_v7(), stage.own);
    let sql = format!(
        "insert into jobs.schedules (id, tenant_id, function_name, cron, timezone) values ('{schedule}', '{own}', 'f', '0 0 * * *', 'UTC');
         insert into jobs.schedule_firings (tenant_id, schedule_id, fire_at, outcome) values ('{own}', '{schedule}', now(), 'waiting');
         insert into jobs.alert_instances (id, tenant_id, alert_config_id, title) values ('{alert}', '{own}', 'c', 't');
         insert into jobs.decision_cards (tenant_id, alert_instance_id, metric_code, period_start, title, recommendation)
         values ('{own}', '{alert}', 'm', now(), 't', 'r');
         insert into jobs.alert_notifications (tenant_id, alert_instance_id, account_id, recipient, about, subject, body)
         values ('{own}', '{alert}', '{alert}', 'r', 'raised', 's', 'b');
         insert into jobs.sync_errors (tenant_id, error_type, error_code, error_message, source_entity_type, source_entity_id)
         values ('{own}', 'job_failure', 'EXECUTION_ERROR', 'why', 'job_run', '{alert}');
         insert into jobs.provided_functions (name, runner, expires_at) values ('f', 'r', now())"
    );
    execute(&stage.admin, sql).await?;
    stage.run(stage.own, "f").await?;
    Ok(())
}

/// A change that only this constraint of the table refuses.
const BREACHES: &[(&str, &str, &[&str])] = &[
    (
        "functions",
        "functions_name_is_plain",
        &["name = 'a:b'", "name = ''", "name = '-a'", "name = repeat('a', 101)", "name = 'a b'"],
    ),
    ("functions", "functions_kind_check", &["kind = 'shell'"]),
    ("functions", "functions_target_is_given", &["target = ' '", "target = repeat('a', 2049)"]),
    ("functions", "functions_requests_are_signed", &["kind = 'http'", "sealed_secret = 's'"]),
    ("functions", "functions_grain_check", &["grain = 'week'"]),
    ("functions", "functions_timeout_is_bounded", &["timeout_seconds = 0", "timeout_seconds = 901"]),
    (
        "functions",
        "functions_retries_are_bounded",
        &[
            "max_retries = -1",
            "max_retries = 101",
            "initial_delay_ms = -1",
            "initial_delay_ms = 86400001",
            "backoff_multiplier = 0.9",
            "backoff_multiplier = 'NaN'",
            "backoff_multiplier = 101",
            "max_delay_ms = -1",
            "max_delay_ms = 86400001",
        ],
    ),
    ("schedules", "schedules_cron_is_given", &["cron = ' '", "cron = repeat('a', 256)"]),
    ("schedules", "schedules_timezone_is_given", &["timezone = ''", "timezone = repeat('a', 256)"]),
    ("schedules", "schedules_grain_check", &["grain = 'minute'"]),
    ("schedules", "schedules_misfire_check", &["misfire = 'later'"]),
    ("schedules", "schedules_input_is_bounded", &["input = to_jsonb(repeat('a', 1048577))"]),
    (
        "schedules",
        "schedules_entities_have_their_hash",
        &[
            "entities = '{}'",
            "entity_hash = 'a'",
            "entities = to_json(repeat('a', 65537)), entity_hash = 'a'",
        ],
    ),
    ("schedules", "schedules_dependencies_are_few", &["depends_on = array_fill('f'::text, array[21])"]),
    ("job_runs", "job_runs_status_check", &["status = 'done', completed_at = now()"]),
    ("job_runs", "job_runs_grain_check", &["grain = 'week'"]),
    (
        "job_runs",
        "job_runs_only_running_has_no_end",
        &["completed_at = now()", "status = 'completed'", "status = 'failed'"],
    ),
    (
        "job_runs",
        "job_runs_only_running_is_held",
        &["status = 'failed', completed_at = now(), locked_by = 'w', heartbeat_at = now()"],
    ),
    ("job_runs", "job_runs_held_has_a_heartbeat", &["locked_by = 'w'", "heartbeat_at = now()"]),
    (
        "job_runs",
        "job_runs_only_failed_is_retried",
        &["retry_at = now()", "status = 'completed', completed_at = now(), retry_at = now()"],
    ),
    (
        "job_runs",
        "job_runs_only_completed_has_a_result",
        &["result = '{}'", "status = 'failed', completed_at = now(), result = '{}'"],
    ),
    ("job_runs", "job_runs_retries_are_counted", &["retry_count = -1", "claims = -1"]),
    ("job_runs", "job_runs_input_is_bounded", &["input_params = to_jsonb(repeat('a', 1048577))"]),
    (
        "job_runs",
        "job_runs_result_is_bounded",
        &["status = 'completed', completed_at = now(), result = to_jsonb(repeat('a', 1048577))"],
    ),
    ("schedule_firings", "schedule_firings_outcome_check", &["outcome = 'done', decided_at = now()"]),
    ("schedule_firings", "schedule_firings_started_have_a_run", &["outcome = 'started', decided_at = now()"]),
    (
        "schedule_firings",
        "schedule_firings_waiting_are_not_decided",
        &["decided_at = now()", "outcome = 'skipped'"],
    ),
    ("sync_errors", "sync_errors_code_check", &["error_code = 'OTHER'"]),
    ("sync_errors", "sync_errors_details_are_an_object", &["error_details = '[]'", "error_details = 'null'"]),
    (
        "sync_errors",
        "sync_errors_resolved_say_by_whom",
        &[
            "is_resolved = true",
            "is_resolved = true, resolved_at = now()",
            "resolved_by = 'me'",
            "is_resolved = true, resolved_by = 'me'",
        ],
    ),
    (
        "alert_instances",
        "alert_instances_names_are_given",
        &[
            "alert_config_id = ' '",
            "external_object_id = repeat('a', 256)",
            "title = ''",
            "title = repeat('a', 1001)",
        ],
    ),
    ("alert_instances", "alert_instances_severity_check", &["severity = 'fatal'"]),
    ("alert_instances", "alert_instances_status_check", &["status = 'closed'"]),
    (
        "alert_instances",
        "alert_instances_only_resolved_have_their_time",
        &["status = 'resolved'", "resolved_at = now()"],
    ),
    (
        "alert_instances",
        "alert_instances_evidence_is_an_object",
        &["evidence = '[]'", "evidence = jsonb_build_object('a', repeat('a', 65537))"],
    ),
    ("decision_cards", "decision_cards_status_check", &["status = 'open', decided_by = 'me'"]),
    (
        "decision_cards",
        "decision_cards_decided_say_by_whom",
        &["status = 'DISMISSED'", "status = 'IN_PROGRESS'"],
    ),
    ("alert_notifications", "alert_notifications_about_check", &["about = 'other'"]),
    ("alert_notifications", "alert_notifications_status_check", &["status = 'called'"]),
    (
        "alert_notifications",
        "alert_notifications_recipient_is_bounded",
        &["recipient = ''", "recipient = repeat('a', 256)"],
    ),
    (
        "provided_functions",
        "provided_functions_name_is_plain",
        &["name = 'a:b'", "name = ''", "name = '-a'", "name = repeat('a', 101)", "name = 'a b'"],
    ),
    (
        "provided_functions",
        "provided_functions_runner_is_given",
        &["runner = ''", "runner = ' '", "runner = repeat('a', 256)"],
    ),
];

#[tokio::test(flavor = "multi_thread")]
async fn every_constraint_refuses_what_it_is_named_after() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    rows_everywhere(&stage).await?;
    for (table, constraint, changes) in BREACHES {
        for change in *changes {
            // Without the guards of changes and the names that others refer to, the constraint alone must refuse.
            let mut transaction = stage.admin.begin().await?;
            execute(&mut *transaction, format!("alter table jobs.{table} disable trigger all")).await?;
            let refused =
                refusal(execute(&mut *transaction, format!("update jobs.{table} set {change}")).await)
                    .map_err(|error| error.context(format!("{table}: {change}")))?;
            assert_eq!(refused.code, "23514", "{table}: {change}: {refused:?}");
            assert!(refused.message.contains(&format!("\"{constraint}\"")), "{change}: {refused:?}");
            transaction.rollback().await?;
        }
    }
    let all =
        "select conname::text from pg_constraint where contype = 'c' and connamespace = 'jobs'::regnamespace";
    let all: BTreeSet<String> = texts(&stage.admin, all).await?.into_iter().collect();
    let tried: BTreeSet<String> =
        BREACHES.iter().map(|(_, constraint, _)| (*constraint).to_owned()).collect();
    assert_eq!(tried, all);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn facts_stay_and_retry_count_cannot_lie() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    rows_everywhere(&stage).await?;
    stage.function(stage.own, "failed").await?;
    execute(&stage.admin, "update jobs.job_runs set locked_by = 'v', heartbeat_at = now()").await?;
    stage.ended(stage.own, "failed", End::Refused).await?;
    for (table, guard, changes) in [
        (
            "job_runs",
            "job_runs_are_facts",
            &[
                "id = gen_random_uuid()",
                "tenant_id = gen_random_uuid()",
                "function_name = 'g'",
                "lock_key = 'other'",
                "input_params = '{}'",
                "created_at = now()",
                "schedule_id = gen_random_uuid()",
                "scheduled_for = now()",
                "grain = 'hour'",
                "grain_start = now()",
                "is_forced = true",
                // Even as it was.
                "lock_key = lock_key",
            ][..],
        ),
        (
            "job_runs",
            "job_runs_retries_are_true",
            &[
                "retry_count = retry_count + 1",
                "retry_count = 2",
                "retry_count = -1",
                "status = 'running', completed_at = null, retry_count = retry_count + 2 - (status = 'running')::integer",
                "status = 'failed', completed_at = now(), retry_count = retry_count + 1",
            ],
        ),
        (
            "alert_instances",
            "alert_instances_are_facts",
            &[
                "id = gen_random_uuid()",
                "alert_config_id = 'd'",
                "external_object_id = 'x'",
                "created_at = now()",
                "tenant_id = tenant_id",
            ],
        ),
        (
            "schedule_firings",
            "schedule_firings_are_decided_once",
            &["fire_at = now() + interval '1 day'", "schedule_id = gen_random_uuid()"],
        ),
    ] {
        for change in changes {
            let refused = refusal(execute(&stage.admin, format!("update jobs.{table} set {change}")).await)
                .map_err(|error| error.context(format!("{table}: {change}")))?;
            assert_eq!(refused.code, "23514", "{table}: {change}: {refused:?}");
            assert!(
                refused.message.starts_with(&format!("jobs.{table}: ")),
                "{guard}: {change}: {refused:?}"
            );
        }
    }
    // A retry that does not count is a lie, too.
    let silent = "update jobs.job_runs set status = 'running', completed_at = null where status = 'failed'";
    assert!(refusal(execute(&stage.admin, silent).await)?.message.contains("retry_count says how often"));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn unfinished_rows_cannot_be_removed_and_no_table_can_be_truncated() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let running = stage.run(stage.own, "f").await?;
    for name in ["again", "dead", "done", "given-up"] {
        stage.function(stage.own, name).await?;
    }
    execute(&stage.admin, "update jobs.job_runs set locked_by = 'v', heartbeat_at = now()").await?;
    let again = stage.ended(stage.own, "again", End::Failed).await?;
    let dead = stage.ended(stage.own, "dead", End::Refused).await?;
    let done = stage.ended(stage.own, "done", End::Done).await?;
    let given_up = stage.run(stage.own, "given-up").await?;
    stage
        .ask::<String>(
            stage.own,
            format!("select jobs.cancel_run(tenancy.current_tenant_id(), '{given_up}', null, 'me')"),
        )
        .await?;

    let errors = "delete from jobs.sync_errors";
    assert!(
        refusal(execute(&stage.admin, errors).await)?
            .message
            .contains("an unresolved error cannot be removed")
    );
    for id in [running, again] {
        let refused =
            refusal(execute(&stage.admin, format!("delete from jobs.job_runs where id = '{id}'")).await)?;
        assert_eq!(refused.code, "23514");
        assert!(refused.message.contains("a run that is not over cannot be removed"), "{refused:?}");
    }
    for id in [dead, done, given_up] {
        execute(&stage.admin, format!("delete from jobs.job_runs where id = '{id}'")).await?;
    }
    for emptied in ["jobs.job_runs", "jobs.sync_errors", "jobs.job_runs, jobs.sync_errors cascade"] {
        let refused = refusal(execute(&stage.admin, format!("truncate {emptied}")).await)?;
        assert!(refused.message.contains("are removed by prune_runs"), "{refused:?}");
    }
    // A resolved error stays as it was resolved, and may go.
    execute(
        &stage.admin,
        "update jobs.sync_errors set is_resolved = true, resolved_at = now(), resolved_by = 'me'",
    )
    .await?;
    let rewrite = "update jobs.sync_errors set resolution_note = 'another'";
    assert!(refusal(execute(&stage.admin, rewrite).await)?.message.contains("never changes"));
    execute(&stage.admin, errors).await?;
    Ok(())
}
