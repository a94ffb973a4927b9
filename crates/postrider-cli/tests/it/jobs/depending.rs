//! Chains: what waits for what, in words, and when it goes on.

use uuid::Uuid;

use super::{
    firing::{fire, firings, put, schedule},
    stage::{Capacity, End, Stage, acting_for, claim, ends},
};
use crate::sql::{execute, number, refusal, texts};

/// Goes on with what waits for nothing any more.
async fn go_on(stage: &Stage) -> Result<i64, sqlx::Error> {
    number(&stage.worker, "select coalesce(sum(jobs.fire_waiting(tenant_id, firings, '1 day')), 0)::bigint from jobs.tenants_with_waiting_firings(100)").await
}

/// The reason why a firing waits, as the tenant reads it.
async fn why(stage: &Stage, schedule: Uuid) -> Result<Option<String>, sqlx::Error> {
    let sql = format!(
        "select jobs.why_waiting(tenancy.current_tenant_id(), schedule_id, fire_at) from jobs.schedule_firings where schedule_id = '{schedule}' and outcome = 'waiting'"
    );
    stage.ask(stage.own, sql).await
}

#[tokio::test(flavor = "multi_thread")]
async fn functions_never_wait_for_each_other() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    for name in ["a", "b", "c", "d"] {
        stage.function(stage.own, name).await?;
    }
    let set = async |id: Uuid, function: &str, after: &[&str]| {
        stage.tell(stage.own, put(id, function, "0 0 * * *", "0", after)).await
    };
    let refused = async |id: Uuid, function: &str, after: &[&str], circle: &str| -> anyhow::Result<()> {
        let before = stage.everything().await?;
        let refused = refusal(set(id, function, after).await)?;
        assert_eq!(refused.code, "23514");
        assert_eq!(refused.message, format!("the functions would wait for each other: {circle}"));
        assert_eq!(stage.everything().await?, before);
        Ok(())
    };
    let [of_a, of_b, of_c, new] = std::array::from_fn(|_| Uuid::now_v7());
    refused(new, "a", &["a"], "a → a").await?;
    refused(new, "a", &["b", "a"], "a → a").await?;
    set(of_a, "a", &["b"]).await?;
    refused(new, "b", &["a"], "b → a → b").await?;
    set(of_b, "b", &["c", "d"]).await?;
    refused(new, "c", &["a"], "c → a → b → c").await?;
    refused(new, "d", &["c", "a"], "d → a → b → d").await?;
    // One that is switched off may be switched on.
    assert!(
        stage
            .ask::<bool>(
                stage.own,
                format!(
                    "select jobs.switch_schedule(tenancy.current_tenant_id(), '{of_b}', false, null, 'me')"
                )
            )
            .await?
    );
    refused(new, "c", &["b"], "c → b → c").await?;
    // A schedule that is changed is seen as it will be: its own old way counts no more.
    set(of_c, "c", &["d"]).await?;
    refused(of_c, "d", &["b"], "d → b → d").await?;
    refused(of_b, "d", &["c"], "d → c → d").await?;
    set(of_b, "b", &[]).await?;
    set(new, "c", &["a"]).await?;
    set(of_a, "b", &["a"]).await?;
    // Those of other tenants are no part of it.
    let other = stage.another("other").await?;
    stage.function(other, "a").await?;
    stage.function(other, "b").await?;
    stage.tell(other, put(Uuid::now_v7(), "b", "0 0 * * *", "0", &["a"])).await?;
    Ok(())
}

/// There are more ways through these layers than anyone could go.
#[tokio::test(flavor = "multi_thread")]
async fn many_functions_that_depend_on_many_are_looked_through_at_once() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let layers = format!(
        "insert into jobs.functions (id, tenant_id, name, kind, target)
         select gen_random_uuid(), '{own}', layer || '-' || place, 'sql', 'public.f'
           from generate_series(0, 8) as layer, generate_series(1, 20) as place;
         insert into jobs.schedules (id, tenant_id, function_name, cron, timezone, depends_on)
         select gen_random_uuid(), '{own}', layer || '-' || place, '0 0 * * *', 'UTC',
                array(select layer + 1 || '-' || needed from generate_series(1, 20) as needed)
           from generate_series(0, 7) as layer, generate_series(1, 20) as place",
        own = stage.own
    );
    execute(&stage.admin, layers).await?;
    let mut transaction = acting_for(&stage.app, stage.own).await?;
    execute(&mut *transaction, "set local statement_timeout = '20s'").await?;
    execute(&mut *transaction, put(Uuid::now_v7(), "f", "0 0 * * *", "0", &["0-1", "0-2"])).await?;
    let circle = put(Uuid::now_v7(), "8-1", "0 0 * * *", "0", &["0-3"]);
    let refused = refusal(execute(&mut *transaction, circle).await)?;
    assert_eq!((refused.code.as_str(), refused.message.matches(" → ").count()), ("23514", 9));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn two_who_set_schedules_at_once_cannot_close_a_circle() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    stage.function(stage.own, "g").await?;
    let mut first = acting_for(&stage.app, stage.own).await?;
    execute(&mut *first, put(Uuid::now_v7(), "f", "0 0 * * *", "0", &["g"])).await?;
    let (app, own) = (stage.app.clone(), stage.own);
    let second = tokio::spawn(async move {
        let mut second = acting_for(&app, own).await?;
        execute(&mut *second, put(Uuid::now_v7(), "g", "0 0 * * *", "0", &["f"])).await
    });
    stage.someone_waits().await?;
    first.commit().await?;
    assert_eq!(refusal(second.await?)?.message, "the functions would wait for each other: g → f → g");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dependency_is_met_by_a_completed_run_whose_grain_overlaps() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let at = "2026-02-06 14:07+00";
    // The grain of the firing at 14:07, the grain and the moment of the run, and whether they overlap.
    for (own, theirs, moment, met) in [
        ("day", "day", "2026-02-06 00:00+00", true),
        ("day", "day", "2026-02-06 23:59+00", true),
        ("day", "day", "2026-02-05 23:59+00", false),
        ("day", "day", "2026-02-07 00:00+00", false),
        ("day", "hour", "2026-02-06 23:59+00", true),
        ("day", "hour", "2026-02-05 23:59+00", false),
        ("day", "5min", "2026-02-06 00:00+00", true),
        ("day", "5min", "2026-02-07 00:00+00", false),
        ("hour", "day", "2026-02-06 01:00+00", true),
        ("hour", "day", "2026-02-05 23:00+00", false),
        ("hour", "hour", "2026-02-06 14:59+00", true),
        ("hour", "hour", "2026-02-06 13:59+00", false),
        ("hour", "hour", "2026-02-06 15:00+00", false),
        ("hour", "5min", "2026-02-06 14:59+00", true),
        ("hour", "5min", "2026-02-06 13:59+00", false),
        ("5min", "day", "2026-02-06 23:59+00", true),
        ("5min", "day", "2026-02-07 00:00+00", false),
        ("5min", "hour", "2026-02-06 14:59+00", true),
        ("5min", "hour", "2026-02-06 13:59+00", false),
        ("5min", "5min", "2026-02-06 14:09+00", true),
        ("5min", "5min", "2026-02-06 14:04+00", false),
        ("5min", "5min", "2026-02-06 14:10+00", false),
    ] {
        let mut transaction = stage.admin.begin().await?;
        let run = |status: &str| {
            format!(
                "insert into jobs.job_runs (tenant_id, function_name, lock_key, grain, grain_start, status, completed_at)
                 values ('{}', 'g', gen_random_uuid()::text, '{theirs}', jobs.grain_start('{theirs}', '{moment}'), '{status}',
                         case when '{status}' <> 'running' then now() end)",
                stage.own
            )
        };
        let unmet = format!(
            "select count(*) from jobs.unmet_dependencies('{}', '{{g}}', '{own}', '{at}')",
            stage.own
        );
        for status in ["running", "failed", "cancelled"] {
            execute(&mut *transaction, run(status)).await?;
        }
        assert_eq!(number(&mut *transaction, &unmet).await?, 1);
        execute(&mut *transaction, run("completed")).await?;
        let are_met = unmet
            .replace("select count(*) from jobs.unmet_dependencies", "select jobs.are_dependencies_met")
            + "::integer::bigint";
        assert_eq!(
            number(&mut *transaction, &are_met).await?,
            i64::from(met),
            "{own} after {theirs} at {moment}"
        );
        assert_eq!(
            number(&mut *transaction, &unmet).await?,
            i64::from(!met),
            "{own} after {theirs} at {moment}"
        );
        // Another tenant's run meets nothing.
        let nobody = Uuid::now_v7().to_string();
        for (question, answer) in [(&unmet, 1), (&are_met, 0)] {
            let theirs = question.replace(&stage.own.to_string(), &nobody);
            assert_eq!(number(&mut *transaction, theirs).await?, answer);
        }
        transaction.rollback().await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_chain_stops_at_the_one_that_failed_and_goes_on_after_the_manual_retry() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    for name in ["first", "second", "third"] {
        stage.function(stage.own, name).await?;
    }
    let first = schedule(&stage, "first", &[]).await?;
    let second = schedule(&stage, "second", &["first"]).await?;
    let third = schedule(&stage, "third", &["second", "f"]).await?;
    // The last one fires first, and waits.
    for (id, started) in [(third, 0), (second, 0), (first, 1)] {
        // All in one grain, whatever the time is.
        execute(
            &stage.admin,
            format!(
                "update jobs.schedules set next_fire_at = jobs.grain_start('day', now()) where id = '{id}'"
            ),
        )
        .await?;
        assert_eq!(fire(&stage.worker, &stage, id).await?, Some(started));
    }
    let run_of = async |function: &str| -> anyhow::Result<Uuid> {
        let sql = "select id from jobs.job_runs where function_name = $1";
        Ok(sqlx::query_scalar(sql).bind(function).fetch_one(&stage.admin).await?)
    };
    let ends_next = async |end: End| -> anyhow::Result<()> {
        let held = claim(&stage.worker, "w", &Capacity::of(1)).await?.remove(0);
        ends(&stage.worker, "w", &[(&held, end)]).await?;
        Ok(())
    };
    let first_run = run_of("first").await?;
    assert_eq!(
        why(&stage, second).await?.unwrap(),
        format!("waits for first: it is running (run {first_run})")
    );
    assert_eq!(
        why(&stage, third).await?.unwrap(),
        "waits for f: it has not run yet; waits for second: it has not run yet"
    );
    assert_eq!(go_on(&stage).await?, 0);
    ends_next(End::Done).await?;
    assert_eq!(go_on(&stage).await?, 1);
    assert_eq!(firings(&stage, second).await?, ["started"]);
    assert_eq!(go_on(&stage).await?, 0);

    stage.run(stage.own, "f").await?;
    let second_run = run_of("second").await?;
    let waits_for = |why: &str| format!("waits for second: {why} (run {second_run})");
    // The second one fails, at first for a while, then for good; the third one does not run.
    let held = claim(&stage.worker, "w", &Capacity::of(2)).await?;
    let (of_f, of_second): (Vec<_>, Vec<_>) = held.iter().partition(|run| run.function_name == "f");
    ends(&stage.worker, "w", &[(of_f[0], End::Done), (of_second[0], End::Failed)]).await?;
    assert_eq!(go_on(&stage).await?, 0);
    assert_eq!(why(&stage, third).await?.unwrap(), waits_for("it failed and waits for its retry"));
    execute(&stage.admin, "update jobs.job_runs set retry_at = now() where retry_at is not null").await?;
    ends_next(End::Refused).await?;
    assert_eq!(go_on(&stage).await?, 0);
    assert_eq!(why(&stage, third).await?.unwrap(), waits_for("it failed"));
    assert_eq!(firings(&stage, third).await?, ["waiting"]);

    stage
        .tell(stage.own, format!("select jobs.retry_run(tenancy.current_tenant_id(), '{second_run}', 'me')"))
        .await?;
    assert_eq!(why(&stage, third).await?.unwrap(), waits_for("it is running"));
    ends_next(End::Done).await?;
    assert_eq!(go_on(&stage).await?, 1);
    assert_eq!(firings(&stage, third).await?, ["started"]);
    ends_next(End::Done).await?;
    let completed = "select count(*) from jobs.job_runs where status = 'completed'";
    assert_eq!(number(&stage.admin, completed).await?, 4);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_firing_that_waits_too_long_or_whose_schedule_was_disabled_is_given_up() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    for name in ["late", "off", "patient"] {
        stage.function(stage.own, name).await?;
    }
    let mut ids = Vec::new();
    for name in ["late", "off", "patient"] {
        let id = schedule(&stage, name, &["f"]).await?;
        assert_eq!(fire(&stage.worker, &stage, id).await?, Some(0));
        ids.push(id);
    }
    let cancelled = stage.run(stage.own, "f").await?;
    execute(
        &stage.admin,
        format!("update jobs.schedule_firings set created_at = now() - interval '25 hours' where schedule_id = '{}'", ids[0]),
    )
    .await?;
    assert!(
        stage
            .ask::<bool>(
                stage.own,
                format!(
                    "select jobs.switch_schedule(tenancy.current_tenant_id(), '{}', false, null, 'me')",
                    ids[1]
                )
            )
            .await?
    );
    assert_eq!(go_on(&stage).await?, 0);
    assert_eq!(
        firings(&stage, ids[0]).await?,
        ["skipped: a function it depends on did not complete in time"]
    );
    assert_eq!(firings(&stage, ids[1]).await?, ["skipped: the schedule was disabled while it waited"]);
    assert_eq!(firings(&stage, ids[2]).await?, ["waiting"]);
    stage
        .tell(
            stage.own,
            format!("select jobs.cancel_run(tenancy.current_tenant_id(), '{cancelled}', null, 'me')"),
        )
        .await?;
    // Not before midnight, unless the firing was on the other side of it.
    if let Some(why) = why(&stage, ids[2]).await? {
        assert!(
            why.ends_with(&format!("it was cancelled (run {cancelled})"))
                || why.ends_with("it has not run yet"),
            "{why}"
        );
    }
    // Another tenant is told nothing about it.
    let other = stage.another("other").await?;
    let spy = format!("select jobs.why_waiting(tenancy.current_tenant_id(), '{}', now())", ids[2]);
    assert_eq!(stage.ask::<Option<String>>(other, spy).await?, None);
    assert_eq!(
        texts(&stage.admin, "select outcome from jobs.schedule_firings where decided_at is null").await?,
        ["waiting"]
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn of_one_grain_one_firing_waits() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    stage.function(stage.own, "needed").await?;
    let id = schedule(&stage, "f", &["needed"]).await?;
    for at in ["2026-02-06 00:00+00", "2026-02-06 00:05+00", "2026-02-06 23:55+00", "2026-02-07 00:00+00"] {
        execute(&stage.admin, format!("update jobs.schedules set next_fire_at = '{at}'")).await?;
        assert_eq!(fire(&stage.worker, &stage, id).await?, Some(0));
    }
    let another = "skipped: another firing of this grain waits already";
    assert_eq!(firings(&stage, id).await?, ["waiting", another, another, "waiting"]);
    Ok(())
}
