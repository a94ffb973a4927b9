//! `detect-alerts` is invoked three times within an hour, runs once, and raises one alert.

use tokio::task::JoinSet;
use uuid::Uuid;

use super::stage::{Capacity, End, Stage, acting_for, claim, ends};
use crate::sql::{execute, number, texts};

const DETECT: &str =
    "select raised from jobs.detect_alerts(tenancy.current_tenant_id(), 5, '30 minutes', 0.1)";

/// `detect-alerts`, once a day, of a tenant of which more jobs failed than may.
async fn scene() -> anyhow::Result<Stage> {
    let stage = Stage::new().await?;
    stage.function(stage.own, "detect-alerts").await?;
    stage.fill(stage.own, 6, "status, completed_at", "'failed', now()").await?;
    Ok(stage)
}

/// Invokes it at these times of a day. The acquired job run is claimed, runs its check, all at the same moment, and is ended.
/// Answers what each invocation was told.
async fn invoke_three_times(stage: &Stage) -> anyhow::Result<Vec<String>> {
    let mut told = Vec::new();
    for at in ["00:00", "00:30", "01:00"] {
        let open = format!(
            "select outcome from jobs.open_run('{}', '{}', 'detect-alerts', 'day', '2026-02-06 {at}+00', null, null, null, false)",
            stage.own,
            Uuid::now_v7()
        );
        told.extend(texts(&stage.admin, open).await?);
    }
    let held = claim(&stage.worker, "w", &Capacity::of(10)).await?;
    let mut looking = Vec::new();
    for _ in &held {
        looking.push(acting_for(&stage.worker, stage.own).await?);
    }
    // Each sees what there is before one of the others has committed, or waits for it.
    let mut lookers = JoinSet::new();
    let all = std::sync::Arc::new(tokio::sync::Barrier::new(looking.len()));
    for mut transaction in looking {
        let all = all.clone();
        lookers.spawn(async move {
            execute(&mut *transaction, "select count(*) from jobs.alert_instances").await?;
            all.wait().await;
            execute(&mut *transaction, DETECT).await?;
            transaction.commit().await
        });
    }
    while let Some(looked) = lookers.join_next().await {
        looked??;
    }
    for run in &held {
        anyhow::ensure!(ends(&stage.worker, "w", &[(run, End::Done)]).await? == ["completed"]);
    }
    Ok(told)
}

const RUNS: &str = "select count(*) from jobs.job_runs where function_name = 'detect-alerts'";
const ALERTS: &str = "select count(*) from jobs.alert_instances";

#[tokio::test(flavor = "multi_thread")]
async fn three_invocations_within_an_hour_make_one_run_and_one_alert() -> anyhow::Result<()> {
    let stage = scene().await?;
    assert_eq!(invoke_three_times(&stage).await?, ["acquired", "running", "running"]);
    assert_eq!((number(&stage.admin, RUNS).await?, number(&stage.admin, ALERTS).await?), (1, 1));
    // The same when it has completed, and on the next day there is another run, but the alert is still the same.
    assert_eq!(invoke_three_times(&stage).await?, ["completed", "completed", "completed"]);
    let tomorrow = format!(
        "select outcome from jobs.open_run('{}', gen_random_uuid(), 'detect-alerts', 'day', '2026-02-07 00:00+00', null, null, null, false)",
        stage.own
    );
    assert_eq!(texts(&stage.admin, tomorrow).await?, ["acquired"]);
    stage.ask_as_worker::<i32>(stage.own, DETECT).await?;
    assert_eq!((number(&stage.admin, RUNS).await?, number(&stage.admin, ALERTS).await?), (2, 1));
    Ok(())
}

/// Each of the two rules is enough for one alert. Without the indexes of both there are three, as in the picture.
#[tokio::test(flavor = "multi_thread")]
async fn without_the_unique_indexes_there_are_three_runs_and_three_alerts() -> anyhow::Result<()> {
    let keys = "drop index jobs.job_runs_once_per_grain, jobs.idx_job_runs_lock_active";
    let alerts = "drop index jobs.unique_alert_instance";
    // Runners that look one after the other find the alert that is open; these look before any of them has committed.
    let hold = "create function public.hold() returns trigger language plpgsql as $$
                begin
                    perform pg_advisory_xact_lock_shared(7);
                    return new;
                end $$;
                create trigger hold before insert on jobs.alert_instances for each row execute function public.hold()";
    for (drops, expected) in [(vec![alerts], (1, 1)), (vec![keys], (3, 1)), (vec![keys, alerts], (3, 3))] {
        let stage = scene().await?;
        for dropped in &drops {
            execute(&stage.admin, *dropped).await?;
        }
        execute(&stage.admin, hold).await?;
        let mut gate = stage.admin.begin().await?;
        execute(&mut *gate, "select pg_advisory_xact_lock(7)").await?;
        let invoking = invoke_three_times(&stage);
        let opening = async {
            let waiting = "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'";
            let all = async || Ok(number(&stage.admin, waiting).await? == expected.0);
            crate::world::eventually("all of them are about to raise it", all).await?;
            gate.commit().await?;
            anyhow::Ok(())
        };
        let (invoked, opened) = tokio::join!(invoking, opening);
        opened?;
        invoked?;
        assert_eq!(
            (number(&stage.admin, RUNS).await?, number(&stage.admin, ALERTS).await?),
            expected,
            "{drops:?}"
        );
    }
    Ok(())
}
