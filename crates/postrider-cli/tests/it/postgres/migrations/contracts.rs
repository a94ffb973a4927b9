//! The frozen contracts as closed lists: a step that breaks one is undone, and a change by hand is found.

use anyhow::Context;
use postrider_store::postgres::{
    doctor::{self, Severity},
    migrate::{self, Tree},
};

use super::recorded;
use crate::{sql::execute, world::World};

/// The words of `doctor` about a table that is gone. It looks for lost tables before it checks the contracts.
const INCOMPLETE: &str = "the installation is incomplete";

/// A change, and what is said about it.
const BREACHES: &[(&str, &str)] = &[
    (
        "alter table execution.job_queue add extra integer",
        "execution.job_queue has a column extra, which the contract does not list",
    ),
    (
        "alter table m10_recovery.outbox add next_retry_at timestamptz",
        "m10_recovery.outbox has a column next_retry_at",
    ),
    (
        "alter table jobs.sync_errors drop column resolution_note",
        "jobs.sync_errors has no column resolution_note",
    ),
    (
        "alter table jobs.sync_errors alter column error_code type varchar(9)",
        "jobs.sync_errors.error_code is character varying(9); the contract says text",
    ),
    ("alter table jobs.decision_cards rename to cards", INCOMPLETE),
    (
        "alter table channels.channel_outbox drop constraint channel_outbox_status_check, add constraint channel_outbox_status_check \
         check (status in ('pending', 'sending', 'sent', 'dead', 'lost'))",
        "channels.channel_outbox.status allows lost, which the contract does not list",
    ),
    (
        "alter table execution.job_queue drop constraint job_queue_type_check, add constraint job_queue_type_check \
         check (job_type in ('email_send_batch', 'voice_call_batch'))",
        "execution.job_queue.job_type does not allow social_post_batch",
    ),
    (
        "alter table execution.campaign_runs drop constraint campaign_runs_status_check",
        "execution.campaign_runs.status has no check constraint that lists its words",
    ),
    (
        "create function m10_recovery.publish_outbox(p_event text) returns bigint language sql return 1",
        "m10_recovery.publish_outbox has 2 signatures instead of one",
    ),
    (
        "drop function execution.claim_queued_jobs",
        "execution.claim_queued_jobs has 0 signatures instead of one",
    ),
];

#[tokio::test(flavor = "multi_thread")]
async fn a_column_a_function_or_a_word_more_or_less_is_found_by_doctor() -> anyhow::Result<()> {
    let world = World::new().await?;
    let admin = world.client("postgres").await?;
    let contracts = async |transaction: &mut sqlx::PgConnection| -> anyhow::Result<doctor::Finding> {
        let findings = doctor::examine(transaction).await?;
        // A table that is gone ends the checks before those of the contracts.
        let found =
            findings.into_iter().find(|finding| finding.check == "contracts" || finding.is_missing_schema());
        found.context("doctor does not check the contracts")
    };
    let fine = contracts(&mut *admin.acquire().await?).await?;
    assert_eq!((fine.severity, fine.found.as_str()), (Severity::Ok, "frozen version 1 holds"));
    for (breach, expected) in BREACHES {
        let mut transaction = admin.begin().await?;
        execute(&mut *transaction, *breach).await?;
        let found = contracts(&mut transaction).await?;
        assert_eq!(found.severity, Severity::Failure, "{breach}");
        assert!(found.found.contains(expected), "{breach}: {}", found.found);
        transaction.rollback().await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_migration_that_would_break_a_contract_is_undone() -> anyhow::Result<()> {
    let world = World::new().await?;
    let admin = world.client("postgres").await?;
    let before = recorded(&admin).await?;
    for (breach, expected) in BREACHES {
        let tree = Tree::current().with_step("upgrades/0001_breach.sql", &format!("{breach};\n"));
        let error = migrate::apply(&world.admin_url(), &tree).await.unwrap_err().to_string();
        assert!(error.starts_with("the migration would break the frozen contracts: "), "{breach}: {error}");
        let expected = if *expected == INCOMPLETE { "jobs.decision_cards is missing" } else { expected };
        assert!(error.contains(expected), "{breach}: {error}");
        assert_eq!(recorded(&admin).await?, before);
    }
    Ok(())
}
