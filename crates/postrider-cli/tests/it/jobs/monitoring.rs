//! Three thresholds, alerts that resolve themselves, and cards that ask once.

use uuid::Uuid;

use super::stage::{Stage, acting_for, ask};
use crate::sql::{execute, number, refusal, texts};

/// Looks by these thresholds, and says how many were raised, resolved, and are open.
async fn detect_by(stage: &Stage, failed: i32, running: &str, retried: f64) -> Result<String, sqlx::Error> {
    let sql = format!(
        "select concat_ws(' ', raised, resolved, open) from jobs.detect_alerts(tenancy.current_tenant_id(), {failed}, '{running}', {retried})"
    );
    stage.ask_as_worker(stage.own, sql).await
}

/// With the default limits of `detect-alerts` (docs/jobs.md).
async fn detect(stage: &Stage) -> Result<String, sqlx::Error> {
    detect_by(stage, 5, "30 minutes", 0.1).await
}

/// The open alerts, in order.
async fn open(stage: &Stage) -> Result<Vec<String>, sqlx::Error> {
    let sql = "select concat_ws(' ', alert_config_id, severity, title) from jobs.alert_instances where status = 'active' order by 1";
    texts(&stage.admin, sql).await
}

const FAILED: (&str, &str) = ("status, completed_at", "'failed', now()");
const DONE: (&str, &str) = ("status, completed_at", "'completed', now()");
const RETRIED: (&str, &str) = ("status, completed_at, retry_count", "'completed', now(), 1");

#[tokio::test(flavor = "multi_thread")]
async fn more_than_five_failed_jobs_in_a_day_are_an_alert_until_they_are_fewer() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let other = stage.another("other").await?;
    assert_eq!(detect(&stage).await?, "0 0 0");
    stage.fill(stage.own, 4, FAILED.0, FAILED.1).await?;
    stage.fill(stage.own, 1, "status, completed_at, retry_at", "'failed', now(), now()").await?;
    // Older ones and those of others count not at all.
    stage
        .fill(
            stage.own,
            9,
            "status, completed_at, created_at",
            "'failed', now(), now() - interval '24 hours'",
        )
        .await?;
    stage.fill(other, 9, FAILED.0, FAILED.1).await?;
    assert_eq!(detect(&stage).await?, "0 0 0");
    stage.fill(stage.own, 1, FAILED.0, FAILED.1).await?;
    assert_eq!(detect(&stage).await?, "1 0 1");
    assert_eq!(open(&stage).await?, ["failed-jobs critical 6 jobs failed in the last 24 hours"]);
    let evidence = "select evidence::text from jobs.alert_instances";
    assert_eq!(
        texts(&stage.admin, evidence).await?,
        ["{\"failed\": 6, \"threshold\": 5, \"by_function\": {\"f\": 6}}"]
    );
    // The same alert goes on, with what is true now.
    stage.fill(stage.own, 1, FAILED.0, FAILED.1).await?;
    assert_eq!(detect(&stage).await?, "0 0 1");
    assert_eq!(open(&stage).await?, ["failed-jobs critical 7 jobs failed in the last 24 hours"]);
    // It resolves itself, and what happens again is a new one, also on the same day.
    assert_eq!(detect_by(&stage, 7, "30 minutes", 0.1).await?, "0 1 0");
    assert_eq!(open(&stage).await?, [""; 0]);
    assert_eq!(detect(&stage).await?, "1 0 1");
    assert_eq!(number(&stage.admin, "select count(*) from jobs.alert_instances").await?, 2);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_runs_longer_than_half_an_hour_is_an_alert_of_its_own() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let other = stage.another("other").await?;
    let since = |age: &str| format!("now() - interval '{age}'");
    stage.fill(stage.own, 1, "started_at", &since("29 minutes")).await?;
    stage
        .fill(
            stage.own,
            1,
            "started_at, status, completed_at",
            &format!("{}, 'completed', now()", since("1 hour")),
        )
        .await?;
    stage.fill(other, 1, "started_at", &since("2 hours")).await?;
    assert_eq!(detect(&stage).await?, "0 0 0");
    for age in ["31 minutes", "26 hours"] {
        stage.fill(stage.own, 1, "started_at, created_at", &format!("{0}, {0}", since(age))).await?;
    }
    assert_eq!(detect(&stage).await?, "2 0 2");
    let about = "select count(*) from jobs.alert_instances as alert join jobs.job_runs as run on run.id::text = alert.external_object_id
                  where alert.alert_config_id = 'long-running-jobs' and alert.severity = 'warning'
                    and alert.evidence ->> 'lock_key' = run.lock_key and alert.evidence ->> 'threshold_minutes' like '30%'
                    and alert.title like 'f has been running since %'";
    assert_eq!(number(&stage.admin, about).await?, 2);
    execute(
        &stage.admin,
        "update jobs.job_runs set status = 'cancelled', completed_at = now() where started_at < now() - interval '1 day'",
    )
    .await?;
    assert_eq!(detect(&stage).await?, "0 1 1");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn more_than_a_tenth_of_retried_jobs_is_an_alert() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    stage.fill(stage.own, 27, DONE.0, DONE.1).await?;
    stage.fill(stage.own, 3, RETRIED.0, RETRIED.1).await?;
    stage
        .fill(
            stage.own,
            9,
            "status, completed_at, retry_count, created_at",
            "'completed', now(), 1, now() - interval '25 hours'",
        )
        .await?;
    assert_eq!(detect(&stage).await?, "0 0 0", "a tenth is not more than a tenth");
    stage.fill(stage.own, 1, RETRIED.0, RETRIED.1).await?;
    assert_eq!(detect(&stage).await?, "1 0 1");
    assert_eq!(
        open(&stage).await?,
        ["retry-rate warning 12.9 % of the jobs of the last 24 hours were retried"]
    );
    stage.fill(stage.own, 9, DONE.0, DONE.1).await?;
    assert_eq!(detect(&stage).await?, "0 1 0");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_alert_that_is_open_since_yesterday_is_not_raised_again() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let (own, other) = (stage.own, stage.another("other").await?);
    let raise = |object: &str, title: &str| {
        format!(
            "select jobs.raise_alert(tenancy.current_tenant_id(), 'stock', {object}, '{title}', 'info', '{{\"n\": 1}}')"
        )
    };
    let insert = |status: &str, age: &str| {
        format!(
            "insert into jobs.alert_instances (tenant_id, alert_config_id, title, status, created_at)
             values ('{own}', 'stock', 'old', '{status}', now() - interval '{age}') returning id"
        )
    };
    let yesterday: Uuid =
        sqlx::query_scalar(sqlx::AssertSqlSafe(insert("triggered", "1 day"))).fetch_one(&stage.admin).await?;
    assert_eq!(stage.ask::<Uuid>(own, raise("null", "new")).await?, yesterday);
    assert_eq!(stage.ask::<Uuid>(own, raise("''", "newer")).await?, yesterday, "no object is no object");
    let row = "concat_ws(' ', title, severity, status, evidence)";
    assert_eq!(stage.look(row, "alert_instances", yesterday).await?, "newer info triggered {\"n\": 1}");
    // Other objects, and other tenants, have their own.
    let of_object: Uuid = stage.ask(own, raise("'sku'", "new")).await?;
    assert_ne!(of_object, yesterday);
    assert_ne!(stage.ask_as_worker::<Uuid>(other, raise("null", "new")).await?, yesterday);
    // Two that were raised on both sides of midnight: the newer one goes on.
    let today: Uuid =
        sqlx::query_scalar(sqlx::AssertSqlSafe(insert("open", "0"))).fetch_one(&stage.admin).await?;
    assert_eq!(stage.ask::<Uuid>(own, raise("null", "newest")).await?, today);
    assert_eq!(stage.look("title", "alert_instances", yesterday).await?, "newer");

    let resolve =
        |object: &str| format!("select jobs.resolve_alert(tenancy.current_tenant_id(), 'stock', {object})");
    assert!(stage.ask::<bool>(own, resolve("null")).await?);
    assert!(!stage.ask::<bool>(own, resolve("null")).await?);
    for (id, status) in [(yesterday, "resolved"), (today, "resolved"), (of_object, "active")] {
        assert_eq!(stage.look("status", "alert_instances", id).await?, status);
    }
    assert!(stage.ask::<bool>(other, resolve("null")).await?, "theirs was not resolved with ours");
    let again: Uuid = stage.ask(own, raise("null", "again")).await?;
    assert!(![yesterday, today].contains(&again));
    // detect_alerts reads the tenant's own job runs only, and makes one alert of two of one kind on both sides of midnight.
    stage.fill(own, 6, FAILED.0, FAILED.1).await?;
    assert_eq!(detect(&stage).await?, "1 0 1");
    let twin = format!(
        "insert into jobs.alert_instances (tenant_id, alert_config_id, title, created_at) values ('{own}', 'failed-jobs', 't', now() - interval '1 day')"
    );
    execute(&stage.admin, twin).await?;
    assert_eq!(detect(&stage).await?, "0 1 1");
    assert_eq!(stage.look("status", "alert_instances", again).await?, "active");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_card_is_asked_once_per_alert_and_closed_with_it() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let (own, other) = (stage.own, stage.another("other").await?);
    let generate = "select concat_ws(' ', opened, closed) from jobs.generate_decision_cards(tenancy.current_tenant_id())";
    let card_of = async |alert: Uuid| -> anyhow::Result<Uuid> {
        let sql = "select id from jobs.decision_cards where alert_instance_id = $1";
        Ok(sqlx::query_scalar(sql).bind(alert).fetch_one(&stage.admin).await?)
    };
    let raise = |name: &str| {
        format!("select jobs.raise_alert(tenancy.current_tenant_id(), '{name}', null, 'title of {name}')")
    };
    let (dismissed, taken, left): (Uuid, Uuid, Uuid) = (
        stage.ask(own, raise("failed-jobs")).await?,
        stage.ask(own, raise("taken")).await?,
        stage.ask(own, raise("left")).await?,
    );
    stage.ask::<Uuid>(other, raise("theirs")).await?;
    // Two at once make one of each.
    let mut first = acting_for(&stage.worker, own).await?;
    assert_eq!(texts(&mut *first, generate).await?, ["3 0"]);
    let worker = stage.worker.clone();
    let second = tokio::spawn(async move { ask::<String>(&worker, own, generate).await });
    stage.someone_waits().await?;
    first.commit().await?;
    assert_eq!(second.await??, "0 0");
    assert_eq!(stage.ask_as_worker::<String>(own, generate).await?, "0 0");
    let cards =
        "select concat_ws(' ', metric_code, status, title, period_start = (now() at time zone 'UTC')::date,
                                  left(recommendation, 7)) from jobs.decision_cards order by 1";
    assert_eq!(
        texts(&stage.admin, cards).await?,
        [
            "failed-jobs OPEN title of failed-jobs t Look at",
            "left OPEN title of left t Look at",
            "taken OPEN title of taken t Look at"
        ]
    );

    let decide = |card: Uuid, status: &str| {
        format!(
            "select concat_ws(' ', decided, status) from jobs.decide_card(tenancy.current_tenant_id(), '{card}', '{status}', 'why', 'me')"
        )
    };
    let (dismissed_card, taken_card) = (card_of(dismissed).await?, card_of(taken).await?);
    let before = stage.everything().await?;
    for (tenant, card) in [(other, dismissed_card), (own, Uuid::now_v7())] {
        let none = format!(
            "select count(*) from jobs.decide_card(tenancy.current_tenant_id(), '{card}', 'DISMISSED', null, 'me')"
        );
        assert_eq!(stage.ask::<i64>(tenant, none).await?, 0);
    }
    assert_eq!(refusal(stage.ask::<String>(own, decide(taken_card, "DONE")).await)?.code, "23514");
    assert_eq!(stage.everything().await?, before);
    for (card, status, said) in [
        (dismissed_card, "DISMISSED", "t DISMISSED"),
        (dismissed_card, "DISMISSED", "t DISMISSED"),
        (dismissed_card, "OPEN", "f DISMISSED"),
        (dismissed_card, "RESOLVED", "f DISMISSED"),
        (taken_card, "IN_PROGRESS", "t IN_PROGRESS"),
        (taken_card, "OPEN", "t OPEN"),
        (taken_card, "IN_PROGRESS", "t IN_PROGRESS"),
    ] {
        assert_eq!(stage.ask::<String>(own, decide(card, status)).await?, said, "{status}");
    }
    assert_eq!(stage.log_of(format!("card:{dismissed_card}")).await?, ["card.dismissed by me why"]);
    assert_eq!(stage.ask_as_worker::<String>(own, generate).await?, "0 0", "nobody is asked twice");
    for name in ["failed-jobs", "taken", "left"] {
        assert!(
            stage
                .ask::<bool>(
                    own,
                    format!("select jobs.resolve_alert(tenancy.current_tenant_id(), '{name}', null)")
                )
                .await?
        );
    }
    assert_eq!(stage.ask_as_worker::<String>(own, generate).await?, "0 2");
    let row = "concat_ws(' ', status, decided_by, note)";
    let closed = "RESOLVED postrider the alert resolved itself";
    assert_eq!(stage.look(row, "decision_cards", dismissed_card).await?, "DISMISSED me why");
    assert_eq!(stage.look(row, "decision_cards", taken_card).await?, closed);
    assert_eq!(stage.look(row, "decision_cards", card_of(left).await?).await?, closed);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_health_view_counts_the_last_day_of_its_reader_and_metrics_count_all() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let other = stage.another("other").await?;
    let health = "select coalesce(string_agg(concat_ws(' ', function_name, status, count, round(avg_duration_ms), max_duration_ms, retried_count),
                                             ', ' order by function_name, status), '') from jobs.job_health";
    let took =
        |seconds: u8| format!("'completed', now(), now() - interval '{seconds} seconds', {}", seconds % 2);
    stage.fill(stage.own, 1, "status, completed_at, started_at, retry_count", &took(1)).await?;
    stage.fill(stage.own, 1, "status, completed_at, started_at, retry_count", &took(4)).await?;
    stage.fill(stage.own, 2, FAILED.0, FAILED.1).await?;
    stage
        .fill(
            stage.own,
            1,
            "status, completed_at, created_at",
            "'completed', now(), now() - interval '25 hours'",
        )
        .await?;
    stage.fill(other, 3, "started_at", "now() - interval '31 minutes'").await?;
    stage.fill(other, 1, "locked_by, heartbeat_at", "'w', now() - interval '90 seconds'").await?;
    stage.fill(other, 1, "status, completed_at, retry_at", "'failed', now(), now()").await?;
    let own = "f completed 2 2500 4000 1, f failed 2 0 0 0";
    for client in [&stage.app, &stage.worker] {
        assert_eq!(ask::<String>(client, stage.own, health).await?, own);
        assert_eq!(ask::<String>(client, other, health).await?, "f failed 1 0 0 0, f running 4 0");
        assert_eq!(texts(client, health).await?, [""], "without a tenant there is nothing");
    }
    let measured = "select format('waiting %s running %s retry %s of %s failed %s retried %s long %s heartbeat %s overdue %s firings %s letters %s alerts %s doubts %s',
                                  waiting, running, retry_pending, total_day, failed_day, retried_day, long_running,
                                  round(oldest_heartbeat_seconds::numeric, -1), round(overdue_seconds::numeric, -1), waiting_firings, open_errors,
                                  open_alerts, doubtful_notifications) from jobs.measure_jobs()";
    assert_eq!(
        texts(&stage.worker, measured).await?,
        [
            "waiting 3 running 1 retry 1 of 9 failed 3 retried 1 long 3 heartbeat 90 overdue 0 firings 0 letters 0 alerts 0 doubts 0"
        ]
    );
    assert_eq!(refusal(texts(&stage.app, measured).await)?.code, "42501");
    Ok(())
}
