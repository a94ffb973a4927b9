//! `postrider jobs list`, `retry` and `cancel`: job runs.

use std::str::FromStr;

use clap::Args;
use postrider_model::{
    ids::{JobRunId, SyncErrorId},
    jobs::JobRunStatus,
};
use postrider_store::{
    PgConnection,
    jobs::{
        runs::{self, Cancelled, Retried, RunFilter, RunState},
        sync_errors,
    },
    postgres::{pool, wakeups},
    tenancy::tenants::Tenant,
};
use uuid::Uuid;

use super::{
    super::{ForTenant, actor, output, with_installation},
    Listing,
};
use crate::config::Config;

/// Maximum length of a result or an error in a table.
const TEXT_SHOWN: usize = 60;

#[derive(Args)]
pub struct ListArgs {
    #[command(flatten)]
    of: ForTenant,
    /// List only runs of this function
    #[arg(long, value_name = "NAME")]
    function: Option<String>,
    /// List only runs with this status: running, completed, failed or cancelled
    #[arg(long)]
    status: Option<JobRunStatus>,
    #[command(flatten)]
    listing: Listing,
}

#[derive(Args)]
pub struct RetryArgs {
    #[command(flatten)]
    of: ForTenant,
    /// The run, as `jobs list` shows it, or its error, as `jobs errors` does
    id: RunOrError,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
pub struct CancelArgs {
    #[command(flatten)]
    of: ForTenant,
    /// The run, as `jobs list` shows it
    id: JobRunId,
    /// Keep this reason with the run
    #[arg(long, value_name = "TEXT")]
    note: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The id of a run, or of its error.
#[derive(Debug, Clone, Copy)]
pub enum RunOrError {
    Run(Uuid),
    Error(Uuid),
    Unprefixed(Uuid),
}

impl FromStr for RunOrError {
    type Err = String;

    fn from_str(input: &str) -> Result<Self, String> {
        let (kind, bare): (fn(Uuid) -> Self, &str) = match input.rsplit_once('_') {
            Some(("job_run", bare)) => (Self::Run, bare),
            Some(("sync_error", bare)) => (Self::Error, bare),
            _ => (Self::Unprefixed, input),
        };
        bare.parse().map(kind).map_err(|_: uuid::Error| {
            format!(
                "`{input}` is not the id of a run or an error; expected a UUID, with or without the prefix `job_run_` or `sync_error_`"
            )
        })
    }
}

pub async fn list(args: &ListArgs, config: &Config) -> anyhow::Result<()> {
    let ListArgs { of, function, status, listing } = args;
    let filter = RunFilter { function: function.as_deref(), status: *status, ..RunFilter::default() };
    let runs = with_installation(config, async |installation| {
        let pool = installation.admin_pool().await?;
        let (mut transaction, tenant) = of.begin(&pool, installation).await?;
        Ok(runs::page(&mut transaction, tenant.id, filter, None, listing.limit).await?)
    })
    .await?;
    if listing.json {
        return output::json(&runs);
    }
    let rows = runs
        .iter()
        .map(|run| {
            [
                run.id.to_string(),
                run.function_name.clone(),
                run.status.to_string(),
                run.grain.label(run.grain_start),
                output::time(run.created_at),
                run.duration_ms.map_or_else(|| "-".to_owned(), took),
                run.retry_count.to_string(),
                output::beginning(&standing(run), TEXT_SHOWN),
            ]
        })
        .collect();
    output::table(
        ["run", "function", "status", "grain", "invoked", "took", "retries", "how it stands"],
        rows,
        "no such runs",
    )
}

/// The state of a run in words, such as `tries again 2026-02-06 14:05:01Z: no answer`.
pub fn standing(run: &RunState) -> String {
    let error = run.error_message.as_deref().unwrap_or("-");
    match (run.status, run.retry_at, &run.locked_by) {
        (JobRunStatus::Running, _, None) => "waits for a runner".to_owned(),
        (JobRunStatus::Running, _, Some(runner)) => format!("held by {runner}"),
        (JobRunStatus::Completed, ..) => {
            run.result.as_ref().map_or_else(|| "null".to_owned(), ToString::to_string)
        }
        (JobRunStatus::Failed, Some(at), _) => format!("tries again {}: {error}", output::time(at)),
        (JobRunStatus::Failed, None, _) => format!("for good: {error}"),
        (JobRunStatus::Cancelled, ..) => error.to_owned(),
    }
}

/// A duration in milliseconds, seconds or minutes.
pub fn took(milliseconds: i32) -> String {
    match milliseconds {
        ..1000 => format!("{milliseconds} ms"),
        1000..60_000 => format!("{:.1} s", f64::from(milliseconds) / 1000.0),
        60_000.. => format!("{} m {} s", milliseconds / 60_000, milliseconds / 1000 % 60),
    }
}

pub async fn retry(args: &RetryArgs, config: &Config) -> anyhow::Result<()> {
    let of = &args.of;
    with_installation(config, async |installation| {
        let pool = installation.admin_pool().await?;
        let (mut transaction, tenant) = of.begin(&pool, installation).await?;
        let id = resolve_id(&mut transaction, of, &tenant, args.id).await?;
        let show = |id: JobRunId| of.command(&["jobs", "show", &id.to_string()]);
        match runs::retry(&mut transaction, tenant.id, id, &actor()).await? {
            Some(Retried::Retried) => {}
            None => return Err(unknown(of, &tenant, id.0)),
            Some(Retried::NotFailed(status)) => {
                let advice = match status {
                    JobRunStatus::Completed => "`postrider jobs invoke NAME --force` runs the function once more".to_owned(),
                    JobRunStatus::Cancelled => "that is final; `postrider jobs invoke NAME` creates a new run".to_owned(),
                    JobRunStatus::Running | JobRunStatus::Failed => format!("`{}` shows its progress", show(id)),
                };
                anyhow::bail!("{id} is {status}, and only a failed run can be retried; {advice}");
            }
            Some(Retried::KeyTaken(other)) => anyhow::bail!(
                "run {other} holds the lock key of {id} now, so a retry would run the function twice; `{}` shows that run",
                show(other)
            ),
        }
        let run = runs::find(&mut transaction, tenant.id, id).await?;
        pool::commit(transaction).await?;
        wakeups::notify(&pool, runs::HINT_CHANNEL).await?;
        if args.json {
            return output::json(&run);
        }
        message!("{id} runs again; `{}` shows its progress", show(id));
        Ok(())
    })
    .await
}

/// The run with this id, or with an error of this id.
async fn resolve_id(
    connection: &mut PgConnection,
    of: &ForTenant,
    tenant: &Tenant,
    id: RunOrError,
) -> anyhow::Result<JobRunId> {
    let (RunOrError::Run(id) | RunOrError::Error(id) | RunOrError::Unprefixed(id), kind) = (id, id);
    let is_run = match kind {
        RunOrError::Run(_) => true,
        RunOrError::Error(_) => false,
        RunOrError::Unprefixed(_) => runs::find(connection, tenant.id, JobRunId(id)).await?.is_some(),
    };
    if is_run {
        return Ok(JobRunId(id));
    }
    let error = sync_errors::find(connection, tenant.id, SyncErrorId(id)).await?;
    let error = error.filter(|error| error.source_entity_type == "job_run");
    error.map(|error| JobRunId(error.source_entity_id)).ok_or_else(|| unknown(of, tenant, id))
}

/// The error for a run that the tenant does not have.
pub fn unknown(of: &ForTenant, tenant: &Tenant, id: Uuid) -> anyhow::Error {
    anyhow::anyhow!(
        "tenant `{}` has no run {id}; `{}` lists them",
        tenant.name,
        of.command(&["jobs", "list"])
    )
}

pub async fn cancel(args: &CancelArgs, config: &Config) -> anyhow::Result<()> {
    let CancelArgs { of, id, note, json } = args;
    with_installation(config, async |installation| {
        let pool = installation.admin_pool().await?;
        let (mut transaction, tenant) = of.begin(&pool, installation).await?;
        let cancelled = runs::cancel(&mut transaction, tenant.id, *id, note.as_deref(), &actor()).await?;
        match cancelled.ok_or_else(|| unknown(of, &tenant, id.0))? {
            Cancelled::Cancelled => {}
            Cancelled::Completed => anyhow::bail!(
                "{id} is completed, and a completed run cannot be cancelled; `{}` shows its result",
                of.command(&["jobs", "show", &id.to_string()])
            ),
        }
        let run = runs::find(&mut transaction, tenant.id, *id).await?;
        pool::commit(transaction).await?;
        wakeups::notify(&pool, runs::CANCEL_CHANNEL).await?;
        if *json {
            return output::json(&run);
        }
        message!("{id} is cancelled; its lock key is free");
        Ok(())
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_is_shown_in_milliseconds_seconds_or_minutes() {
        let spans = [0, 999, 1000, 59_949, 60_000, 3_599_000].map(took);
        assert_eq!(spans, ["0 ms", "999 ms", "1.0 s", "59.9 s", "1 m 0 s", "59 m 59 s"]);
    }

    #[test]
    fn a_run_is_named_by_its_own_id_or_the_id_of_its_error() {
        let id = Uuid::now_v7();
        assert!(matches!(format!("job_run_{id}").parse(), Ok(RunOrError::Run(read)) if read == id));
        assert!(matches!(format!("sync_error_{id}").parse(), Ok(RunOrError::Error(read)) if read == id));
        assert!(matches!(id.to_string().parse(), Ok(RunOrError::Unprefixed(read)) if read == id));
        for wrong in ["seven", "run_7", &format!("card_{id}"), ""] {
            assert!(wrong.parse::<RunOrError>().is_err(), "{wrong}");
        }
    }
}
