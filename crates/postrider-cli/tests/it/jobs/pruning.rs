//! Old rows that are over are removed; rows that others still need are kept.

use uuid::Uuid;

use super::stage::Stage;
use crate::sql::{execute, number, refusal, texts};

#[tokio::test(flavor = "multi_thread")]
async fn active_open_and_waiting_rows_outlive_their_retention() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let (own, schedule) = (stage.own, Uuid::now_v7());
    let old = "now() - interval '10 days'";
    let times = "created_at, started_at, completed_at, status";
    for status in ["completed", "failed", "cancelled"] {
        stage.fill(own, 2, times, &format!("{old}, {old}, {old}, '{status}'")).await?;
        // Begun long ago, and over since yesterday.
        stage.fill(own, 1, times, &format!("{old}, {old}, now() - interval '1 day', '{status}'")).await?;
    }
    stage.fill(own, 1, "created_at, started_at", &format!("{old}, {old}")).await?;
    stage
        .fill(own, 1, &format!("{times}, retry_at"), &format!("{old}, {old}, {old}, 'failed', {old}"))
        .await?;
    let letter = |is_resolved: bool, code: &str| {
        format!(
            "insert into jobs.sync_errors (tenant_id, error_type, error_code, error_message, source_entity_type, source_entity_id,
                                           is_resolved, resolved_at, resolved_by)
             select tenant_id, 'job_failure', '{code}', 'why', 'job_run', id, {is_resolved},
                    case when {is_resolved} then {old} end, case when {is_resolved} then 'me' end
               from jobs.job_runs where status = 'failed' and retry_at is null and completed_at < now() - interval '5 days'
              order by id {} limit 1;",
            if is_resolved { "desc" } else { "" }
        )
    };
    execute(&stage.admin, letter(false, "EXECUTION_ERROR") + &letter(true, "MAX_RETRIES_EXCEEDED")).await?;
    let rows = format!(
        "insert into jobs.schedules (id, tenant_id, function_name, cron, timezone) values ('{schedule}', '{own}', 'f', '0 0 * * *', 'UTC');
         insert into jobs.schedule_firings (tenant_id, schedule_id, fire_at, outcome, decided_at)
         values ('{own}', '{schedule}', {old}, 'skipped', now()), ('{own}', '{schedule}', {old} + interval '1 minute', 'waiting', null),
                ('{own}', '{schedule}', now(), 'skipped', now());
         insert into jobs.alert_instances (tenant_id, alert_config_id, title, status, created_at, resolved_at)
         values ('{own}', 'old', 't', 'resolved', {old}, {old}), ('{own}', 'lately', 't', 'resolved', {old}, now()),
                ('{own}', 'open', 't', 'active', {old}, null);
         insert into jobs.decision_cards (tenant_id, alert_instance_id, metric_code, period_start, title, recommendation)
         select tenant_id, id, 'm', now(), 't', 'r' from jobs.alert_instances;
         insert into jobs.alert_notifications (tenant_id, alert_instance_id, account_id, recipient, about, subject, body)
         select tenant_id, id, id, 'r', 'raised', 's', 'b' from jobs.alert_instances"
    );
    execute(&stage.admin, rows).await?;

    let prune = |age: &str, limit: &str| format!("select jobs.prune_runs('{own}', {age}, {limit})");
    for (age, limit) in
        [("'47 hours'", "10"), ("null", "10"), ("'3 days'", "0"), ("'3 days'", "null"), ("'-3 days'", "10")]
    {
        assert_eq!(refusal(number(&stage.worker, prune(age, limit)).await)?.code, "22023", "{age} {limit}");
    }
    // Two of the five, and then the rest: the letter that nobody has resolved keeps its run.
    assert_eq!(number(&stage.worker, prune("'5 days'", "2")).await?, 2);
    assert_eq!(number(&stage.worker, prune("'5 days'", "100")).await?, 3);
    assert_eq!(number(&stage.worker, prune("'5 days'", "100")).await?, 0);
    let left = "select concat_ws(' ', status, retry_at is not null, completed_at < now() - interval '5 days') from jobs.job_runs order by 1";
    assert_eq!(
        texts(&stage.admin, left).await?,
        ["cancelled f f", "completed f f", "failed f f", "failed f t", "failed t t", "running f"]
    );
    assert_eq!(texts(&stage.admin, "select error_code from jobs.sync_errors").await?, ["EXECUTION_ERROR"]);
    let firings = "select outcome from jobs.schedule_firings order by fire_at";
    assert_eq!(texts(&stage.admin, firings).await?, ["waiting", "skipped"]);
    for table in ["alert_instances", "decision_cards", "alert_notifications"] {
        let column = if table == "alert_instances" { "id" } else { "alert_instance_id" };
        let left = format!(
            "select alert.alert_config_id from jobs.alert_instances as alert join jobs.{table} as t on t.{column} = alert.id order by 1"
        );
        assert_eq!(texts(&stage.admin, left).await?, ["lately", "open"], "{table}");
    }
    // Resolved, the letter lets its run go.
    let resolve =
        "select jobs.resolve_sync_error(tenancy.current_tenant_id(), id, 'seen', 'me') from jobs.sync_errors";
    assert!(stage.ask::<bool>(own, resolve).await?);
    assert_eq!(number(&stage.worker, prune("'5 days'", "100")).await?, 1);
    assert_eq!(refusal(number(&stage.app, prune("'5 days'", "100")).await)?.code, "42501");
    Ok(())
}
