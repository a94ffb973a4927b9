//! The states of runs, firings, alerts, cards and notifications: every pair is tried in raw SQL by the superuser, and the database
//! allows exactly what the model allows.

use std::fmt::Debug;

use postrider_model::jobs::{AlertStatus, CardStatus, FiringOutcome, JOB_RUN_MACHINE, JobRunStatus};
use uuid::Uuid;

use super::stage::Stage;
use crate::{
    postgres::transitions::{Machine, StateSql, disagreements},
    sql::{execute, texts},
};

fn machine<S: Copy>(
    table: &'static str,
    state: &'static str,
    states: impl IntoIterator<Item = (S, &'static str, String, &'static str)>,
) -> Machine<S> {
    let states = states.into_iter().map(|(state, name, insert, set)| StateSql {
        state,
        name,
        insert,
        then: String::new(),
        set,
    });
    Machine { table, state, states: states.collect() }
}

fn runs(tenant: Uuid) -> Machine<JobRunStatus> {
    let row = |state: JobRunStatus, end: &str| {
        format!(
            "(tenant_id, function_name, lock_key, grain, grain_start, status, completed_at)
             values ('{tenant}', 'f', 'key', 'day', now(), '{state}', {end})"
        )
    };
    let state = |state: JobRunStatus, end, set| (state, state.as_str(), row(state, end), set);
    machine(
        "jobs.job_runs",
        "status",
        [
            state(
                JobRunStatus::Running,
                "null",
                "status = 'running', completed_at = null, retry_count = retry_count + (status = 'failed')::integer",
            ),
            state(JobRunStatus::Completed, "now()", "status = 'completed', completed_at = now()"),
            state(JobRunStatus::Failed, "now()", "status = 'failed', completed_at = now()"),
            state(JobRunStatus::Cancelled, "now()", "status = 'cancelled', completed_at = now()"),
        ],
    )
}

fn cards(tenant: Uuid, alert: Uuid) -> Machine<CardStatus> {
    let row = |state: CardStatus| {
        format!(
            "(tenant_id, alert_instance_id, metric_code, period_start, title, recommendation, status, decided_by)
             values ('{tenant}', '{alert}', 'm', now(), 't', 'r', '{state}', 'me')"
        )
    };
    let state = |state: CardStatus, set| (state, state.as_str(), row(state), set);
    machine(
        "jobs.decision_cards",
        "status",
        [
            state(CardStatus::Open, "status = 'OPEN'"),
            state(CardStatus::InProgress, "status = 'IN_PROGRESS'"),
            state(CardStatus::Resolved, "status = 'RESOLVED'"),
            state(CardStatus::Dismissed, "status = 'DISMISSED'"),
        ],
    )
}

fn alerts(tenant: Uuid) -> Machine<AlertStatus> {
    let row = |state: AlertStatus| {
        format!(
            "(tenant_id, alert_config_id, title, status, resolved_at)
             values ('{tenant}', 'state', 't', '{state}', case when '{state}' = 'resolved' then now() end)"
        )
    };
    let state = |state: AlertStatus, set| (state, state.as_str(), row(state), set);
    machine(
        "jobs.alert_instances",
        "status",
        [
            state(AlertStatus::Active, "status = 'active', resolved_at = null"),
            state(AlertStatus::Open, "status = 'open', resolved_at = null"),
            state(AlertStatus::Triggered, "status = 'triggered', resolved_at = null"),
            state(AlertStatus::Resolved, "status = 'resolved', resolved_at = now()"),
        ],
    )
}

fn firings(tenant: Uuid, schedule: Uuid) -> Machine<FiringOutcome> {
    let row = |state: FiringOutcome, decided: &str| {
        format!(
            "(tenant_id, schedule_id, fire_at, outcome, job_run_id, decided_at)
             values ('{tenant}', '{schedule}', now(), '{state}', gen_random_uuid(), {decided})"
        )
    };
    let state = |state: FiringOutcome, decided, set| (state, state.as_str(), row(state, decided), set);
    machine(
        "jobs.schedule_firings",
        "outcome",
        [
            state(FiringOutcome::Started, "now()", "outcome = 'started', decided_at = now()"),
            state(FiringOutcome::Waiting, "null", "outcome = 'waiting', decided_at = null"),
            state(FiringOutcome::Skipped, "now()", "outcome = 'skipped', decided_at = now()"),
        ],
    )
}

fn notifications(tenant: Uuid, alert: Uuid) -> Machine<&'static str> {
    let row = |state: &str| {
        format!(
            "(tenant_id, alert_instance_id, account_id, recipient, about, subject, body, status)
             values ('{tenant}', '{alert}', gen_random_uuid(), 'r', 'raised', 's', 'b', '{state}')"
        )
    };
    let state = |state: &'static str, set| (state, state, row(state), set);
    machine(
        "jobs.alert_notifications",
        "status",
        [
            state("queued", "status = 'queued'"),
            state("sent", "status = 'sent'"),
            state("failed", "status = 'failed'"),
        ],
    )
}

/// A schedule and an alert, of which the others are.
async fn scene(stage: &Stage) -> anyhow::Result<(Uuid, Uuid)> {
    let (schedule, alert, own) = (Uuid::now_v7(), Uuid::now_v7(), stage.own);
    let sql = format!(
        "insert into jobs.schedules (id, tenant_id, function_name, cron, timezone) values ('{schedule}', '{own}', 'f', '0 0 * * *', 'UTC');
         insert into jobs.alert_instances (id, tenant_id, alert_config_id, title) values ('{alert}', '{own}', 'scene', 't')"
    );
    execute(&stage.admin, sql).await?;
    Ok((schedule, alert))
}

fn covers<S: Copy + Debug + PartialEq>(machine: &Machine<S>, all: &[S]) -> bool {
    machine.states.iter().map(|state| state.state).collect::<Vec<_>>() == all
}

/// Everything in which the database and the model differ. A row that stays in its state changes nothing.
async fn all_disagreements(stage: &Stage, schedule: Uuid, alert: Uuid) -> anyhow::Result<Vec<String>> {
    use CardStatus::{InProgress, Open};
    let (admin, own) = (&stage.admin, stage.own);
    let mut wrong =
        disagreements(admin, &runs(own), |from, to| from == to || JOB_RUN_MACHINE.contains(&(from, to)))
            .await?;
    wrong.extend(
        disagreements(admin, &cards(own, alert), |from, to| from == to || [Open, InProgress].contains(&from))
            .await?,
    );
    // A resolved alert or a decided firing does not even change from its state to itself.
    wrong.extend(disagreements(admin, &alerts(own), |from, _| from != AlertStatus::Resolved).await?);
    wrong.extend(
        disagreements(admin, &firings(own, schedule), |from, _| from == FiringOutcome::Waiting).await?,
    );
    let queued = |from, to| from == to || from == "queued";
    wrong.extend(disagreements(admin, &notifications(own, alert), queued).await?);
    Ok(wrong)
}

#[tokio::test(flavor = "multi_thread")]
async fn everything_about_jobs_changes_its_state_exactly_as_the_model_says() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let (schedule, alert) = scene(&stage).await?;
    assert!(covers(&runs(stage.own), JobRunStatus::ALL));
    assert!(covers(&cards(stage.own, alert), CardStatus::ALL));
    assert!(covers(&alerts(stage.own), AlertStatus::ALL));
    assert!(covers(&firings(stage.own, schedule), FiringOutcome::ALL));
    assert_eq!(all_disagreements(&stage, schedule, alert).await?, [""; 0]);

    // Every guard of a state is missed when it is gone.
    for (table, trigger) in [
        ("job_runs", "job_runs_change_as_they_may"),
        ("decision_cards", "decision_cards_change_as_they_may"),
        ("alert_instances", "alert_instances_resolved_for_ever"),
        ("schedule_firings", "schedule_firings_are_decided_once"),
        ("alert_notifications", "alert_notifications_change_as_they_may"),
    ] {
        let definition = format!("select pg_get_triggerdef(oid) from pg_trigger where tgname = '{trigger}'");
        let definition = texts(&stage.admin, definition).await?.join("");
        execute(&stage.admin, format!("drop trigger {trigger} on jobs.{table}")).await?;
        assert_ne!(all_disagreements(&stage, schedule, alert).await?, [""; 0], "{trigger}");
        execute(&stage.admin, definition).await?;
    }
    assert_eq!(all_disagreements(&stage, schedule, alert).await?, [""; 0]);
    Ok(())
}
