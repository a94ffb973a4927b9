//! The states of phases, runs, jobs and items: every pair is tried in raw SQL by the superuser, and the database allows
//! exactly what the model allows.

use postrider_model::campaigns::{ItemStatus, JobOutcome, JobStatus, PhaseStatus, RunStatus};
use sqlx::PgPool;
use uuid::Uuid;

use super::Stage;
use crate::{
    postgres::transitions::{Machine, StateSql, disagreements},
    sql::{execute, refusal, texts},
};

/// Where new rows belong.
pub struct Place {
    tenant: Uuid,
    workspace: Uuid,
    campaign: String,
    phase: String,
    run: Uuid,
}

impl Place {
    pub async fn on(stage: &Stage) -> anyhow::Result<Self> {
        let run = stage.run(1, 1).await?;
        let campaign = stage.look("campaign_id", "campaign_runs", run).await?;
        let phase = stage.look("phase_id", "campaign_runs", run).await?;
        Ok(Self { tenant: stage.own.id, workspace: stage.own.workspace, campaign, phase, run })
    }

    /// The beginning of a row, and the rest.
    fn row(&self, columns: &str, values: &str) -> String {
        let Self { tenant, workspace, .. } = self;
        format!(
            "(id, tenant_id, workspace_id, {columns}) \
             values (gen_random_uuid(), '{tenant}', '{workspace}', {values})"
        )
    }

    fn phases(&self) -> Machine<PhaseStatus> {
        let state = |state: PhaseStatus, set| StateSql {
            state,
            name: state.as_str(),
            insert: self.row(
                "campaign_id, position, phase, kind, status",
                &format!("'{}', 2, 'second', 'external', '{state}'", self.campaign),
            ),
            then: String::new(),
            set,
        };
        Machine {
            table: "execution.campaign_phases",
            state: "status",
            states: vec![
                state(PhaseStatus::NotStarted, "status = 'not_started'"),
                state(PhaseStatus::InProgress, "status = 'in_progress'"),
                state(PhaseStatus::Paused, "status = 'paused'"),
                state(PhaseStatus::Completed, "status = 'completed'"),
                state(PhaseStatus::Failed, "status = 'failed'"),
            ],
        }
    }

    pub fn runs(&self) -> Machine<RunStatus> {
        let state = |state: RunStatus, set| {
            StateSql {
            state,
            name: state.as_str(),
            insert: self.row(
                "campaign_id, phase_id, channel, asset_id, provider_account_id, provider, quiet_time, key_part, intended,
                 correlation_id, number, status",
                &format!(
                    "'{}', '{}', 'email', gen_random_uuid(), gen_random_uuid(), 'sim', '1 minute', 'x', 1,
                     gen_random_uuid(), 2 + (random() * 1000000000)::integer, '{state}'",
                    self.campaign, self.phase
                ),
            ),
            then: String::new(),
            set,
        }
        };
        Machine {
            table: "execution.campaign_runs",
            state: "status",
            states: vec![
                state(RunStatus::Queued, "status = 'queued'"),
                state(RunStatus::Running, "status = 'running'"),
                state(RunStatus::Completed, "status = 'completed'"),
                state(RunStatus::Partial, "status = 'partial'"),
                state(RunStatus::Failed, "status = 'failed'"),
            ],
        }
    }

    pub fn jobs(&self) -> Machine<JobStatus> {
        let state = |state: JobStatus, more: &str, set| StateSql {
            state,
            name: state.as_str(),
            insert: self.row(
                "run_id, position, job_type, item_ids, status, locked_by, locked_at, outcome",
                &format!(
                    "'{}', 9, 'email_send_batch', array[gen_random_uuid()], '{state}', {more}",
                    self.run
                ),
            ),
            then: String::new(),
            set,
        };
        Machine {
            table: "execution.job_queue",
            state: "status",
            states: vec![
                state(
                    JobStatus::Queued,
                    "null, null, null",
                    "status = 'queued', locked_by = null, locked_at = null, outcome = null",
                ),
                state(
                    JobStatus::Locked,
                    "'w', now(), null",
                    "status = 'locked', locked_by = 'v', locked_at = now(), outcome = null",
                ),
                state(
                    JobStatus::Completed,
                    "null, null, 'completed'",
                    "status = 'completed', locked_by = null, locked_at = null, outcome = 'partial'",
                ),
                state(
                    JobStatus::Failed,
                    "null, null, null",
                    "status = 'failed', locked_by = null, locked_at = null, outcome = null",
                ),
                state(
                    JobStatus::Dead,
                    "null, null, 'failed'",
                    "status = 'dead', locked_by = null, locked_at = null, outcome = 'failed'",
                ),
            ],
        }
    }

    /// An item that is queued may be in doubt besides.
    pub fn items(&self) -> Machine<(ItemStatus, bool)> {
        let state = |state: ItemStatus, in_doubt: bool, name, set| StateSql {
            state: (state, in_doubt),
            name,
            insert: self.row(
                "run_id, job_id, channel, provider, idempotency_key, status, skipped, in_doubt_since",
                &format!(
                    "'{}', gen_random_uuid(), 'email', 'sim', gen_random_uuid()::text, '{state}', {}, {}",
                    self.run,
                    state == ItemStatus::Skipped,
                    if in_doubt { "now()" } else { "null" }
                ),
            ),
            then: String::new(),
            set,
        };
        Machine {
            table: "execution.channel_outbox",
            state: "case when in_doubt_since is null then status else status || ' in doubt' end",
            states: vec![
                state(ItemStatus::Queued, false, "queued", "status = 'queued', in_doubt_since = null"),
                state(
                    ItemStatus::Queued,
                    true,
                    "queued in doubt",
                    "status = 'queued', in_doubt_since = now()",
                ),
                state(ItemStatus::Sent, false, "sent", "status = 'sent', in_doubt_since = null"),
                state(ItemStatus::Called, false, "called", "status = 'called', in_doubt_since = null"),
                state(ItemStatus::Posted, false, "posted", "status = 'posted', in_doubt_since = null"),
                state(ItemStatus::Failed, false, "failed", "status = 'failed', in_doubt_since = null"),
                state(
                    ItemStatus::Skipped,
                    false,
                    "skipped",
                    "status = 'skipped', skipped = true, in_doubt_since = null",
                ),
            ],
        }
    }

    /// Everything in which the database and the model differ.
    async fn all_disagreements(&self, admin: &PgPool) -> anyhow::Result<Vec<String>> {
        let mut wrong = disagreements(admin, &self.phases(), PhaseStatus::may_become).await?;
        wrong.extend(disagreements(admin, &self.runs(), RunStatus::may_become).await?);
        wrong.extend(disagreements(admin, &self.jobs(), JobStatus::may_become).await?);
        wrong.extend(disagreements(admin, &self.items(), item_may_become).await?);
        Ok(wrong)
    }
}

/// The model's word, and: an item that stays queued may get into doubt, and never out of it but by its end.
fn item_may_become((from, in_doubt): (ItemStatus, bool), (to, doubted): (ItemStatus, bool)) -> bool {
    let stays_queued = from == ItemStatus::Queued && to == ItemStatus::Queued;
    from.may_become(to) || stays_queued && (doubted || !in_doubt)
}

#[tokio::test(flavor = "multi_thread")]
async fn phases_runs_jobs_and_items_change_their_state_exactly_as_the_model_says() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let place = Place::on(&stage).await?;
    fn covered<S: Copy>(machine: &Machine<S>) -> Vec<S> {
        machine.states.iter().map(|state| state.state).collect()
    }
    assert_eq!(covered(&place.phases()), PhaseStatus::ALL);
    assert_eq!(covered(&place.runs()), RunStatus::ALL);
    assert_eq!(covered(&place.jobs()), JobStatus::ALL);
    let mut items: Vec<ItemStatus> = covered(&place.items()).into_iter().map(|(status, _)| status).collect();
    items.dedup();
    assert_eq!(items, ItemStatus::ALL);

    assert_eq!(place.all_disagreements(&stage.admin).await?, [""; 0]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn every_guard_of_a_state_is_missed_when_it_is_gone() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let place = Place::on(&stage).await?;
    for (table, trigger) in [
        ("campaign_phases", "campaign_phases_change_as_the_table_says"),
        ("campaign_runs", "campaign_runs_change_as_the_table_says"),
        ("job_queue", "job_queue_changes_as_the_table_says"),
        ("channel_outbox", "channel_outbox_ends_are_final"),
        ("channel_outbox", "channel_outbox_doubts_end_with_the_item"),
    ] {
        let definition = format!("select pg_get_triggerdef(oid) from pg_trigger where tgname = '{trigger}'");
        let definition = texts(&stage.admin, definition).await?.join("");
        execute(&stage.admin, format!("drop trigger {trigger} on execution.{table}")).await?;
        assert_ne!(place.all_disagreements(&stage.admin).await?, [""; 0], "{trigger}");
        execute(&stage.admin, definition).await?;
    }
    assert_eq!(place.all_disagreements(&stage.admin).await?, [""; 0]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_state_or_outcome_that_the_model_does_not_know_is_refused() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    stage.run(1, 1).await?;
    let outcomes: Vec<&str> = JobOutcome::ALL.iter().map(|outcome| outcome.as_str()).collect();
    assert_eq!(outcomes, ["completed", "partial", "failed"]);
    for (table, column, constraint) in [
        ("campaign_phases", "status", "campaign_phases_status_check"),
        ("campaign_runs", "status", "campaign_runs_status_check"),
        ("job_queue", "status", "job_queue_status_check"),
        ("job_queue", "outcome", "job_queue_outcome_check"),
    ] {
        for word in ["sending", "", "QUEUED", "queued "] {
            // Without the guards of the change, the constraint alone must refuse.
            let mut transaction = stage.admin.begin().await?;
            execute(&mut *transaction, format!("alter table execution.{table} disable trigger user")).await?;
            let update = format!("update execution.{table} set {column} = '{word}'");
            let refused = refusal(execute(&mut *transaction, &update).await)?;
            assert_eq!(refused.code, "23514", "{update}");
            assert!(
                refused.message.contains(constraint) || refused.message.contains("job_queue_"),
                "{refused:?}"
            );
            transaction.rollback().await?;
        }
    }
    Ok(())
}
