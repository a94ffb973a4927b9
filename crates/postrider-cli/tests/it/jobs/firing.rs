//! Schedules are set, and whoever comes first fires them, once and not before their time.

use sqlx::{AssertSqlSafe, PgExecutor};
use uuid::Uuid;

use super::stage::{End, Stage};
use crate::sql::{execute, number, refusal, texts};

/// A schedule of this function, as the app sets it: due since so long, after these functions.
pub fn put(id: Uuid, function: &str, cron: &str, since: &str, depends_on: &[&str]) -> String {
    let depends_on = depends_on.join(",");
    format!(
        "select jobs.put_schedule(tenancy.current_tenant_id(), '{id}', '{function}', '{cron}', 'UTC', null, '{{\"b\": 2}}', null, null, '{{{depends_on}}}', 'once', true,
                                  now() - interval '{since}', 'me')"
    )
}

/// Sets a new schedule.
pub async fn schedule(stage: &Stage, function: &str, depends_on: &[&str]) -> anyhow::Result<Uuid> {
    let id = Uuid::now_v7();
    stage.tell(stage.own, put(id, function, "0 0 * * *", "1 minute", depends_on)).await?;
    Ok(id)
}

/// Fires a schedule as it is now, at the time that is due, and lets it be due tomorrow.
pub async fn fire(client: impl PgExecutor<'_>, stage: &Stage, id: Uuid) -> anyhow::Result<Option<i32>> {
    let (due, version): (String, i32) =
        sqlx::query_as("select next_fire_at::text, version from jobs.schedules where id = $1")
            .bind(id)
            .fetch_one(&stage.admin)
            .await?;
    fire_planned(client, stage.own, id, &due, version, "").await
}

/// Fires it by this plan; `more` are further times.
async fn fire_planned(
    client: impl PgExecutor<'_>,
    tenant: Uuid,
    id: Uuid,
    due: &str,
    version: i32,
    more: &str,
) -> anyhow::Result<Option<i32>> {
    let sql = format!(
        "select jobs.fire_schedule('{tenant}', '{id}', '{due}', {version}, array['{due}'{more}]::timestamptz[],
                                   array(select gen_random_uuid() from generate_series(1, 5)), null, null,
                                   timestamptz '{due}' + interval '1 day')"
    );
    Ok(sqlx::query_scalar(AssertSqlSafe(sql)).fetch_one(client).await?)
}

/// The outcomes of the firings of a schedule, in order.
pub async fn firings(stage: &Stage, id: Uuid) -> Result<Vec<String>, sqlx::Error> {
    let sql = format!(
        "select concat_ws(': ', outcome, reason) from jobs.schedule_firings where schedule_id = '{id}' order by fire_at"
    );
    texts(&stage.admin, sql).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_schedule_keeps_its_next_firing_while_its_times_stay() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let (own, other, id) = (stage.own, stage.another("other").await?, Uuid::now_v7());
    let row = "concat_ws(' ', cron, enabled, version, extract(hour from next_fire_at at time zone 'UTC'))";
    let is = async |expected: &str| -> anyhow::Result<()> {
        assert_eq!(stage.look(row, "schedules", id).await?, expected);
        Ok(())
    };
    let put = |cron: &str, next: &str| {
        put(id, "f", cron, "0", &[]).replace("now() - interval '0'", &format!("'{next}'"))
    };
    let (two, three) = ("2026-01-01 02:00+00", "2026-01-01 03:00+00");
    let switch = |enabled: bool, next: &str| {
        format!("select jobs.switch_schedule(tenancy.current_tenant_id(), '{id}', {enabled}, '{next}', 'me')")
    };
    stage.tell(own, put("0 0 * * *", two)).await?;
    is("0 0 * * * t 1 2").await?;
    stage.tell(own, put("0 0 * * *", three)).await?;
    is("0 0 * * * t 2 2").await?;
    stage.tell(own, put("0 1 * * *", three)).await?;
    is("0 1 * * * t 3 3").await?;
    // Switched on when it is on, it keeps what it has; switched off and on it goes by what it is told.
    assert!(stage.ask::<bool>(own, switch(true, two)).await?);
    is("0 1 * * * t 3 3").await?;
    assert!(stage.ask::<bool>(own, switch(false, two)).await?);
    is("0 1 * * * f 4 3").await?;
    assert!(stage.ask::<bool>(own, switch(true, two)).await?);
    is("0 1 * * * t 5 2").await?;
    assert!(stage.ask::<bool>(own, switch(false, two)).await?);
    stage.tell(own, put("0 1 * * *", three)).await?;
    is("0 1 * * * t 7 3").await?;
    // Another tenant does not reach it, and under the same id it has one of its own.
    let before = stage.everything().await?;
    assert!(!stage.ask::<bool>(other, switch(false, two)).await?);
    assert!(
        !stage
            .ask::<bool>(
                other,
                format!("select jobs.remove_schedule(tenancy.current_tenant_id(), '{id}', 'me')")
            )
            .await?
    );
    assert_eq!(stage.everything().await?, before);
    stage.tell(other, put("9 9 * * *", two)).await?;
    assert_eq!(number(&stage.admin, "select count(*) from jobs.schedules").await?, 2);
    assert_eq!(stage.log_of(format!("schedule:{id}")).await?.len(), 8);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_schedule_of_an_unknown_function_is_refused() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let other = stage.another("other").await?;
    stage.function(other, "theirs").await?;
    let id = Uuid::now_v7();
    for (function, depends_on, named) in [
        ("nobodys", &[][..], "nobodys"),
        ("f", &["nobodys"], "nobodys"),
        ("theirs", &[], "theirs"),
        ("f", &["theirs"], "theirs"),
    ] {
        let refused = refusal(stage.tell(stage.own, put(id, function, "0 0 * * *", "0", depends_on)).await)?;
        assert_eq!(
            (refused.code.as_str(), refused.message),
            ("23503", format!("there is no function {named}"))
        );
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_firing_happens_once_at_its_time_by_the_plan_that_still_holds() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let id = schedule(&stage, "f", &[]).await?;
    let due = "select concat_ws(' ', id, cron, timezone, misfire, version, next_fire_at < now, now = now()) from jobs.due_schedules(10, 10, '{}', '{}')";
    assert_eq!(texts(&stage.worker, due).await?, [format!("{id} 0 0 * * * UTC once 1 t t")]);
    let at = stage.look("next_fire_at", "schedules", id).await?;
    // Another plan: of a version that is gone, of another time, of another tenant, of times that have not come.
    let other = stage.another("other").await?;
    let before = stage.everything().await?;
    let fire = async |tenant, due: &str, version, more: &str| {
        fire_planned(&stage.worker, tenant, id, due, version, more).await
    };
    assert_eq!(fire(stage.own, &at, 2, "").await?, None);
    assert_eq!(fire(stage.own, "2026-01-01 00:00+00", 1, "").await?, None);
    assert_eq!(fire(other, &at, 1, "").await?, None);
    assert_eq!(fire(stage.own, &at, 1, ", now() + interval '1 minute'").await?, None);
    assert_eq!(stage.everything().await?, before);

    assert_eq!(fire(stage.own, &at, 1, "").await?, Some(1));
    assert_eq!(fire(stage.own, &at, 1, "").await?, None);
    assert_eq!(texts(&stage.worker, due).await?, [""; 0]);
    let run = "select concat_ws(' ', run.schedule_id = firing.schedule_id, run.scheduled_for = firing.fire_at, run.input_params, outcome,
                                firing.decided_at is not null, schedule.last_fire_at = firing.fire_at,
                                schedule.next_fire_at = firing.fire_at + interval '1 day', run.grain)
                 from jobs.schedule_firings as firing join jobs.job_runs as run on run.id = firing.job_run_id
                 join jobs.schedules as schedule on schedule.id = firing.schedule_id";
    assert_eq!(texts(&stage.admin, run).await?, ["t t {\"b\": 2} started t t t day"]);

    // Tomorrow's time has not come, whoever asks.
    let tomorrow = stage.look("next_fire_at", "schedules", id).await?;
    assert_eq!(fire(stage.own, &tomorrow, 1, "").await?, None);
    let skip = format!(
        "select jobs.fire_schedule('{}', '{id}', '{tomorrow}', 1, '{{}}', '{{}}', null, null, null)",
        stage.own
    );
    assert_eq!(stage.ask_as_worker::<Option<i32>>(stage.own, skip).await?, None, "nor is it left out before");
    // A schedule that is switched off does not fire.
    execute(
        &stage.admin,
        "update jobs.schedules set next_fire_at = now() - interval '1 second', enabled = false",
    )
    .await?;
    let at = stage.look("next_fire_at", "schedules", id).await?;
    assert_eq!(fire(stage.own, &at, 1, "").await?, None);
    assert_eq!(texts(&stage.worker, due).await?, [""; 0]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_grain_that_has_its_run_is_skipped_and_the_firing_says_so() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    for name in ["running", "again", "done", "dead"] {
        stage.function(stage.own, name).await?;
    }
    stage.ended(stage.own, "again", End::Failed).await?;
    stage.ended(stage.own, "done", End::Done).await?;
    stage.ended(stage.own, "dead", End::Refused).await?;
    stage.run(stage.own, "running").await?;
    for (function, outcome) in [
        ("running", "skipped: a run of this grain is running"),
        ("again", "skipped: a run of this grain waits for its retry"),
        ("done", "skipped: completed before in this grain"),
        ("dead", "started"),
        ("f", "started"),
    ] {
        let id = schedule(&stage, function, &[]).await?;
        // In the grain of the runs, whatever the time is.
        execute(&stage.admin, format!("update jobs.schedules set next_fire_at = (select max(created_at) from jobs.job_runs) where id = '{id}'")).await?;
        let started = i32::from(outcome == "started");
        assert_eq!(fire(&stage.worker, &stage, id).await?, Some(started), "{function}");
        assert_eq!(firings(&stage, id).await?, [outcome], "{function}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn several_times_fire_each_once_and_what_was_left_out_is_written_down() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    // The function runs once a day, and by this schedule once an hour.
    let id = schedule(&stage, "f", &[]).await?;
    execute(&stage.admin, "update jobs.schedules set next_fire_at = '2026-02-06 01:00+00', grain = 'hour'")
        .await?;
    let fire = "select jobs.fire_schedule(tenant_id, id, '2026-02-06 01:00+00', 1,
                           '{2026-02-06 02:00+00, 2026-02-06 02:30+00, 2026-02-06 03:00+00}',
                           array[gen_random_uuid(), gen_random_uuid(), gen_random_uuid()], '2026-02-06 01:00+00', '1 firing was missed',
                           '2026-02-06 04:00+00')
                  from jobs.schedules";
    assert_eq!(sqlx::query_scalar::<_, i32>(fire).fetch_one(&stage.admin).await?, 2);
    assert_eq!(
        firings(&stage, id).await?,
        ["skipped: 1 firing was missed", "started", "skipped: a run of this grain is running", "started"]
    );
    let times = "to_char(last_fire_at at time zone 'UTC', 'HH24:MI ') || to_char(next_fire_at at time zone 'UTC', 'HH24:MI')";
    assert_eq!(stage.look(times, "schedules", id).await?, "03:00 04:00");
    // None of them, all left out: the schedule goes on all the same, and has not fired.
    let skip = "select jobs.fire_schedule(tenant_id, id, '2026-02-06 04:00+00', 1, '{}', '{}', '2026-02-06 05:00+00', 'too late', null)
                  from jobs.schedules";
    assert_eq!(sqlx::query_scalar::<_, i32>(skip).fetch_one(&stage.admin).await?, 0);
    assert_eq!(firings(&stage, id).await?[4..], ["skipped: too late"]);
    assert_eq!(
        stage.look("to_char(last_fire_at at time zone 'UTC', 'HH24:MI')", "schedules", id).await?,
        "03:00"
    );
    assert!(
        stage
            .ask::<bool>(
                stage.own,
                format!("select jobs.remove_schedule(tenancy.current_tenant_id(), '{id}', 'me')")
            )
            .await?
    );
    assert_eq!(firings(&stage, id).await?, [""; 0]);
    assert_eq!(number(&stage.admin, "select count(*) from jobs.job_runs").await?, 2, "its runs stay");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_who_fire_at_once_one_does_and_the_other_does_not_wait() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let id = schedule(&stage, "f", &[]).await?;
    let mut first = stage.worker.begin().await?;
    assert_eq!(fire(&mut *first, &stage, id).await?, Some(1));
    assert_eq!(fire(&stage.worker, &stage, id).await?, None, "somebody is at it");
    // When the first one gives up, it is due for the next who comes.
    first.rollback().await?;
    assert_eq!(fire(&stage.worker, &stage, id).await?, Some(1));

    // Many at once, with the same plan.
    execute(&stage.admin, "update jobs.schedules set next_fire_at = '2026-01-01 00:00+00'").await?;
    let mut schedulers = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let (worker, own) = (stage.worker.clone(), stage.own);
        schedulers.spawn(async move { fire_planned(&worker, own, id, "2026-01-01 00:00+00", 1, "").await });
    }
    let mut started = Vec::new();
    while let Some(fired) = schedulers.join_next().await {
        started.extend(fired??);
    }
    assert_eq!(started, [1]);
    assert_eq!(number(&stage.admin, "select count(*) from jobs.job_runs").await?, 2);
    assert_eq!(firings(&stage, id).await?, ["started", "started"]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn due_schedules_are_taken_tenant_by_tenant_without_those_that_cannot_be_fired() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let other = stage.another("other").await?;
    for minutes in 1..=5 {
        let since = format!("{minutes} minutes");
        stage.tell(stage.own, put(Uuid::now_v7(), "f", "0 0 * * *", &since, &[])).await?;
    }
    let theirs = Uuid::now_v7();
    stage.tell(other, put(theirs, "f", "0 0 * * *", "10 seconds", &[])).await?;
    let due = async |limit: i32, per_tenant: i32, except: Vec<Uuid>| -> anyhow::Result<Vec<Uuid>> {
        // The schedule of the other tenant is an exception under its own tenant alone.
        let tenants: Vec<Uuid> =
            except.iter().map(|id| if *id == theirs { other } else { stage.own }).collect();
        let sql = "select id from jobs.due_schedules($1, $2, $3, $4)";
        let due = sqlx::query_scalar(sql).bind(limit).bind(per_tenant).bind(tenants).bind(except);
        Ok(due.fetch_all(&stage.worker).await?)
    };
    let oldest: Vec<Uuid> =
        sqlx::query_scalar("select id from jobs.schedules where tenant_id = $1 order by next_fire_at")
            .bind(stage.own)
            .fetch_all(&stage.admin)
            .await?;
    assert_eq!(due(10, 2, vec![]).await?, [oldest[0], theirs, oldest[1]]);
    assert_eq!(due(2, 2, vec![]).await?, [oldest[0], theirs]);
    assert_eq!(due(10, 2, vec![oldest[0], theirs]).await?, oldest[1..3]);
    Ok(())
}
