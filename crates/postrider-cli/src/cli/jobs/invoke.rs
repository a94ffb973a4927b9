//! `postrider jobs invoke`: runs a function now, and waits for its result.

use std::{
    process::ExitCode,
    time::{Duration, Instant},
};

use clap::Args;
use postrider_model::{ids::JobRunId, jobs::JobRunStatus};
use postrider_store::{
    Pool,
    jobs::{
        runs::{self, Acquired, Invocation, RunState},
        sync_errors,
    },
    postgres::{pool, wakeups},
    tenancy::tenants::Tenant,
};

use super::{
    super::{ForTenant, actor, output, with_installation},
    function,
    input::{Input, InputArgs},
    runs::unknown,
};
use crate::{config::Config, installation::Installation, shutdown};

/// First interval between two reads of the run. It doubles up to the maximum.
const POLL_INTERVAL: Duration = Duration::from_millis(10);
const POLL_INTERVAL_MAX: Duration = Duration::from_millis(200);
/// A working runner claims a run sooner than this.
const CLAIMED_WITHIN: Duration = Duration::from_secs(3);

#[derive(Args)]
pub struct InvokeArgs {
    #[command(flatten)]
    of: ForTenant,
    /// The function's name
    name: String,
    #[command(flatten)]
    with: InputArgs,
    /// Run the function although it completed in this grain; the audit log records it
    #[arg(long)]
    force: bool,
    /// Wait this long for the end of the run; 0 prints the run's id at once
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(0..=86_400))]
    wait: u64,
    /// Print the whole run as JSON instead of only its result
    #[arg(long)]
    json: bool,
}

pub async fn invoke(args: &InvokeArgs, config: &Config) -> anyhow::Result<ExitCode> {
    let input = args.with.read()?;
    with_installation(config, async |installation| {
        let pool = installation.admin_pool().await?;
        let (tenant, id) = acquire(args, &input, &pool, installation).await?;
        let waiting = Waiting { args, pool: &pool, tenant: &tenant, id };
        let (run, code) = waiting.wait(Duration::from_secs(args.wait)).await?;
        match code {
            None => waiting.print_end(&run).await,
            Some(code) => {
                if args.json {
                    output::json(&run)?;
                } else {
                    output::line(id.0)?;
                }
                Ok(code)
            }
        }
    })
    .await
}

/// Acquires the lock key and wakes the runners.
async fn acquire(
    args: &InvokeArgs,
    input: &Input,
    pool: &Pool,
    installation: &Installation,
) -> anyhow::Result<(Tenant, JobRunId)> {
    let InvokeArgs { of, name, force, .. } = args;
    let (mut transaction, tenant) = of.begin(pool, installation).await?;
    let grain = function(&mut transaction, of, &tenant, name).await?.grain;
    let invocation = Invocation {
        function: name,
        input: input.input.as_ref(),
        entities: input.entities.as_ref().map(|entities| &entities.hash),
        force: *force,
    };
    let command = |verb: &str, id: JobRunId| of.command(&["jobs", verb, &id.to_string()]);
    let id = match runs::acquire(&mut transaction, tenant.id, invocation, &actor()).await? {
        Acquired::Run(id) => id,
        Acquired::Running(id) => anyhow::bail!(
            "`{name}` is running already, as {id}; wait for it, `{}` shows its progress",
            command("show", id)
        ),
        Acquired::RetryPending(id) => anyhow::bail!(
            "`{name}` failed in this grain ({grain}), as {id}, and waits for its retry; wait for it, or retry at once with `{}`",
            command("retry", id)
        ),
        Acquired::Completed(id) => anyhow::bail!(
            "`{name}` completed in this grain ({grain}), as {id}; `{}` shows its result, --force runs it once more",
            command("show", id)
        ),
        Acquired::UnknownFunction => {
            anyhow::bail!(
                "another command has just removed the function `{name}`; `postrider jobs function put` creates it"
            )
        }
    };
    pool::commit(transaction).await?;
    wakeups::notify(pool, runs::HINT_CHANNEL).await?;
    Ok((tenant, id))
}

/// A run that the command waits for.
struct Waiting<'a> {
    args: &'a InvokeArgs,
    pool: &'a Pool,
    tenant: &'a Tenant,
    id: JobRunId,
}

impl Waiting<'_> {
    /// Waits until the run has ended. Returns an exit code if it has not ended.
    async fn wait(&self, timeout: Duration) -> anyhow::Result<(RunState, Option<ExitCode>)> {
        let stop = shutdown::on_signal()?;
        let began = Instant::now();
        let (mut is_warned, mut failures_printed, mut pause) = (false, 0, POLL_INTERVAL);
        loop {
            let run = self.read().await?;
            if run.status != JobRunStatus::Running && run.retry_at.is_none() {
                return Ok((run, None));
            }
            if let (Some(at), Some(error)) = (run.retry_at, &run.error_message)
                && failures_printed <= run.retry_count
            {
                failures_printed = run.retry_count + 1;
                let error = output::printable(error);
                message!(
                    "attempt {failures_printed} failed: {error}; the runner tries again at {}",
                    output::time(at)
                );
            }
            let is_late = began.elapsed() >= timeout;
            let is_unclaimed = run.locked_by.is_none() && run.status == JobRunStatus::Running;
            if is_unclaimed
                && !is_warned
                && (began.elapsed() >= CLAIMED_WITHIN || is_late && !timeout.is_zero())
            {
                is_warned = true;
                message!("no runner has claimed the run yet: is a process with the role scheduler running?");
            }
            if is_late || stop.is_cancelled() {
                let again = self.args.of.command(&["jobs", "show", &self.id.to_string()]);
                message!("{} has not ended and continues; `{again}` shows its progress", self.id);
                let code = match (is_late, timeout.is_zero()) {
                    (false, _) => ExitCode::from(130),
                    // `--wait 0` was given.
                    (true, true) => ExitCode::SUCCESS,
                    (true, false) => ExitCode::from(2),
                };
                return Ok((run, Some(code)));
            }
            tokio::select! {
                () = stop.cancelled() => {}
                () = tokio::time::sleep(pause.min(timeout.saturating_sub(began.elapsed()))) => {}
            }
            pause = (pause * 2).min(POLL_INTERVAL_MAX);
        }
    }

    async fn read(&self) -> anyhow::Result<RunState> {
        let mut transaction = pool::begin_as(self.pool, self.tenant.id).await?;
        let run = runs::find(&mut transaction, self.tenant.id, self.id).await?;
        run.ok_or_else(|| unknown(&self.args.of, self.tenant, self.id.0))
    }

    /// Prints the result, or returns the error of the run.
    async fn print_end(&self, run: &RunState) -> anyhow::Result<ExitCode> {
        if self.args.json {
            output::json(run)?;
        } else if run.status == JobRunStatus::Completed {
            output::json(&run.result)?;
        }
        if run.status == JobRunStatus::Completed {
            return Ok(ExitCode::SUCCESS);
        }
        let error =
            output::printable(run.error_message.as_deref().unwrap_or("the run recorded no error message"));
        if run.status == JobRunStatus::Cancelled {
            anyhow::bail!("{} was cancelled: {error}; invoke the function again for a new run", self.id);
        }
        let mut transaction = pool::begin_as(self.pool, self.tenant.id).await?;
        let letters = sync_errors::of_run(&mut transaction, self.tenant.id, self.id).await?;
        let letter = letters.first().map(|letter| format!(" as {}", letter.id)).unwrap_or_default();
        anyhow::bail!(
            "{} failed for good{letter}: {error}; fix the cause, then `{}` runs it again",
            self.id,
            self.args.of.command(&["jobs", "retry", &self.id.to_string()])
        )
    }
}
