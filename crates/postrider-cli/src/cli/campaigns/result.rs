//! Results of the items of a phase, and the exit code for them.

use std::process::ExitCode;

use postrider_model::{
    campaigns::{ItemStatus, RunCause},
    ids::{PhaseId, RunId, TenantId},
};
use postrider_store::{
    PgConnection,
    campaigns::runs::{self, Certificate, Run},
};
use serde::Serialize;

/// Help text of the commands that end with a result.
pub const EXIT_CODES: &str = "\
Exit codes:
  0  launched, and no item failed
  1  the command itself failed
  3  launched, and some items failed
  4  launched, and every item that was tried failed; or another service reported its phase as failed
  5  not launched: a run has not ended, or items are in doubt or missing";

/// From best to worst.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LaunchResult {
    /// The certificate's conditions hold, and no item failed.
    Launched,
    /// The certificate's conditions hold, and some items failed.
    SomeFailed,
    /// The certificate's conditions hold, and no item succeeded.
    AllFailed,
    /// The certificate's conditions do not hold.
    NotLaunched,
}

impl LaunchResult {
    /// As [`EXIT_CODES`] describes. 2 means a wrong command line.
    pub fn exit_code(self) -> ExitCode {
        ExitCode::from(match self {
            Self::Launched => 0,
            Self::SomeFailed => 3,
            Self::AllFailed => 4,
            Self::NotLaunched => 5,
        })
    }

    /// The result for these counts, if the certificate's conditions hold.
    pub fn of_launched(succeeded: i64, failed: i64) -> Self {
        match (succeeded, failed) {
            (_, ..=0) => Self::Launched,
            (..=0, _) => Self::AllFailed,
            _ => Self::SomeFailed,
        }
    }
}

/// Counts of the items of a phase: of one run, or of the run of the whole list together with its retries.
#[derive(Debug, Clone, Serialize)]
pub struct PhaseResult {
    pub phase: String,
    pub intended: i64,
    pub succeeded: i64,
    /// Without the items that a retry sent again.
    pub failed: i64,
    pub skipped: i64,
    pub in_doubt: i64,
    pub missing: i64,
    pub result: LaunchResult,
    /// The newest run.
    pub run_id: RunId,
    /// The status of a successful item of the channel.
    #[serde(skip)]
    success: ItemStatus,
    #[serde(skip)]
    runs: usize,
}

impl PhaseResult {
    /// From the runs of one phase, oldest first, with their certificates. `None` without a run.
    pub fn of(runs: &[(Run, Certificate)]) -> Option<Self> {
        let ((first, whole), (newest, _)) = (runs.first()?, runs.last()?);
        let sum =
            |of: fn(&Certificate) -> i64| runs.iter().map(|(_, certificate)| of(certificate)).sum::<i64>();
        // Every item of a retry is one that failed before.
        let is_retry = |run: &Run| run.cause == RunCause::Retry && run.id != first.id;
        let retried: i64 =
            runs.iter().filter(|(run, _)| is_retry(run)).map(|(_, certificate)| certificate.intended).sum();
        let succeeded = sum(|one| one.sent + one.called + one.posted);
        let failed = sum(|one| one.failed) - retried;
        let result = if runs.iter().all(|(_, certificate)| certificate.launched) {
            LaunchResult::of_launched(succeeded, failed)
        } else {
            LaunchResult::NotLaunched
        };
        Some(Self {
            phase: first.phase_name().to_owned(),
            intended: whole.intended,
            succeeded,
            failed,
            skipped: sum(|one| one.skipped),
            in_doubt: sum(|one| one.in_doubt),
            missing: sum(|one| one.missing),
            result,
            run_id: newest.id,
            success: first.channel.success(),
            runs: runs.len(),
        })
    }

    /// One sentence, with the command that shows details.
    pub fn sentence(&self) -> String {
        let Self { phase, intended, succeeded, failed, in_doubt, run_id, success, .. } = self;
        match self.result {
            LaunchResult::NotLaunched if *in_doubt > 0 => {
                format!("{phase}: not launched, {in_doubt} in doubt; `postrider in-doubt list` shows them")
            }
            LaunchResult::NotLaunched => {
                format!("{phase}: not launched; `postrider campaign verify {run_id}` says why")
            }
            LaunchResult::AllFailed if *failed == *intended => {
                format!("{phase}: every item failed; `postrider trace {run_id}` says why")
            }
            LaunchResult::AllFailed => {
                format!(
                    "{phase}: every item that was tried failed, {failed} of {intended}; `postrider trace {run_id}` says why"
                )
            }
            LaunchResult::SomeFailed => {
                format!(
                    "{phase}: launched, {failed} of {intended} failed; `postrider trace {run_id}` says why"
                )
            }
            LaunchResult::Launched if self.runs > 1 => {
                format!("{phase}: {succeeded} of {intended} {success}, in {} runs", self.runs)
            }
            LaunchResult::Launched => format!("{phase}: launched"),
        }
    }
}

/// The newest run of a phase's whole list and its retries, with their certificates, oldest first.
pub async fn certify_phase(
    connection: &mut PgConnection,
    tenant: TenantId,
    phase: PhaseId,
) -> anyhow::Result<Vec<(Run, Certificate)>> {
    // The certificate of a retry covers only the items of the retry.
    let runs = runs::since_all(connection, tenant, phase).await?;
    certify(connection, tenant, runs).await
}

/// Runs with their certificates.
pub async fn certify(
    connection: &mut PgConnection,
    tenant: TenantId,
    runs: Vec<Run>,
) -> anyhow::Result<Vec<(Run, Certificate)>> {
    let mut certified = Vec::with_capacity(runs.len());
    for run in runs {
        let certificate = runs::verify(connection, tenant, run.id).await?;
        certified.push((run, certificate));
    }
    Ok(certified)
}
