//! Running a function now, and waiting for what it says.

use std::{
    process::ExitCode,
    time::{Duration, Instant},
};

use clap::Args;
use postrider_model::{ids::JobRunId, job::JobRunStatus};
use postrider_store::{
    Pool,
    job_runs::{self, Acquired, Invocation, RunState},
    pool, sync_errors,
    tenants::Tenant,
    wakeups,
};

use super::{
    super::{ForTenant, actor, output, with_installation},
    function,
    given::{Given, InputArgs},
    runs,
};
use crate::{config::Config, installation::Installation, shutdown};

/// Between two looks at the run: quick ones at first.
const LOOK_AFTER: Duration = Duration::from_millis(10);
const LOOK_AFTER_MAX: Duration = Duration::from_millis(200);
/// A runner that is there takes a run up sooner than this.
const PICKED_UP_WITHIN: Duration = Duration::from_secs(3);

#[derive(Args)]
pub struct InvokeArgs {
    #[command(flatten)]
    of: ForTenant,
    /// The function's name
    name: String,
    #[command(flatten)]
    with: InputArgs,
    /// Run it although it was completed in this grain; that is logged
    #[arg(long)]
    force: bool,
    /// How long to wait for its end; 0 prints the run's id at once
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(0..=86_400))]
    wait: u64,
    /// The whole run as JSON, and not only its result
    #[arg(long)]
    json: bool,
}

pub async fn invoke(args: &InvokeArgs, config: &Config) -> anyhow::Result<ExitCode> {
    let given = args.with.read()?;
    with_installation(config, async |installation| {
        let pool = installation.admin_pool().await?;
        let (tenant, id) = acquire(args, &given, &pool, installation).await?;
        let waiting = Waiting { args, pool: &pool, tenant: &tenant, id };
        let (run, code) = waiting.wait(Duration::from_secs(args.wait)).await?;
        match code {
            None => waiting.tell_end(&run).await,
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

/// Acquires the lock key and hints.
async fn acquire(
    args: &InvokeArgs,
    given: &Given,
    pool: &Pool,
    installation: &Installation,
) -> anyhow::Result<(Tenant, JobRunId)> {
    let InvokeArgs { of, name, force, .. } = args;
    let (mut transaction, tenant) = of.begin(pool, installation).await?;
    let grain = function(&mut transaction, of, &tenant, name).await?.grain;
    let invocation = Invocation {
        function: name,
        input: given.input.as_ref(),
        entities: given.entities.as_ref().map(|entities| &entities.hash),
        force: *force,
    };
    let command = |verb: &str, id: JobRunId| of.command(&["jobs", verb, &id.to_string()]);
    let id = match job_runs::acquire(&mut transaction, tenant.id, invocation, &actor()).await? {
        Acquired::Run(id) => id,
        Acquired::Running(id) => anyhow::bail!(
            "`{name}` is running already, as {id}; wait for it, `{}` says how it goes",
            command("show", id)
        ),
        Acquired::RetryPending(id) => anyhow::bail!(
            "`{name}` failed in this grain ({grain}), as {id}, and waits for its next try; wait for it, or try at once with `{}`",
            command("retry", id)
        ),
        Acquired::Completed(id) => anyhow::bail!(
            "`{name}` was completed in this grain ({grain}), as {id}; `{}` shows its result, --force runs it once more",
            command("show", id)
        ),
        Acquired::UnknownFunction => {
            anyhow::bail!(
                "somebody has just removed the function `{name}`; `postrider jobs function put` makes it"
            )
        }
    };
    pool::commit(transaction).await?;
    wakeups::notify(pool, job_runs::HINT_CHANNEL).await?;
    Ok((tenant, id))
}

/// A run that somebody waits for.
struct Waiting<'a> {
    args: &'a InvokeArgs,
    pool: &'a Pool,
    tenant: &'a Tenant,
    id: JobRunId,
}

impl Waiting<'_> {
    /// Waits until the run is over; with an exit code, if it is not.
    async fn wait(&self, patience: Duration) -> anyhow::Result<(RunState, Option<ExitCode>)> {
        let stop = shutdown::on_signal()?;
        let began = Instant::now();
        let (mut is_told, mut failures_told, mut pause) = (false, 0, LOOK_AFTER);
        loop {
            let run = self.look().await?;
            if run.status != JobRunStatus::Running && run.retry_at.is_none() {
                return Ok((run, None));
            }
            if let (Some(at), Some(error)) = (run.retry_at, &run.error_message)
                && failures_told <= run.retry_count
            {
                failures_told = run.retry_count + 1;
                let error = output::printable(error);
                tell!("attempt {failures_told} failed: {error}; it is tried again {}", output::time(at));
            }
            let is_late = began.elapsed() >= patience;
            let nobody_came = run.locked_by.is_none() && run.status == JobRunStatus::Running;
            if nobody_came
                && !is_told
                && (began.elapsed() >= PICKED_UP_WITHIN || is_late && !patience.is_zero())
            {
                is_told = true;
                tell!("nobody has picked it up yet: is a process with the role scheduler running?");
            }
            if is_late || stop.is_cancelled() {
                let again = self.args.of.command(&["jobs", "show", &self.id.to_string()]);
                tell!("{} is not over, and goes on by itself; `{again}` says how it goes", self.id);
                let code = match (is_late, patience.is_zero()) {
                    (false, _) => ExitCode::from(130),
                    // Nobody wanted to wait.
                    (true, true) => ExitCode::SUCCESS,
                    (true, false) => ExitCode::from(2),
                };
                return Ok((run, Some(code)));
            }
            tokio::select! {
                () = stop.cancelled() => {}
                () = tokio::time::sleep(pause.min(patience.saturating_sub(began.elapsed()))) => {}
            }
            pause = (pause * 2).min(LOOK_AFTER_MAX);
        }
    }

    async fn look(&self) -> anyhow::Result<RunState> {
        let mut transaction = pool::begin_as(self.pool, self.tenant.id).await?;
        let run = job_runs::find(&mut transaction, self.tenant.id, self.id).await?;
        run.ok_or_else(|| runs::unknown(&self.args.of, self.tenant, self.id.0))
    }

    /// Shows what became of it.
    async fn tell_end(&self, run: &RunState) -> anyhow::Result<ExitCode> {
        if self.args.json {
            output::json(run)?;
        } else if run.status == JobRunStatus::Completed {
            output::json(&run.result)?;
        }
        if run.status == JobRunStatus::Completed {
            return Ok(ExitCode::SUCCESS);
        }
        let error = output::printable(run.error_message.as_deref().unwrap_or("it does not say why"));
        if run.status == JobRunStatus::Cancelled {
            anyhow::bail!("{} was cancelled: {error}; invoke it again to have a new one", self.id);
        }
        let mut transaction = pool::begin_as(self.pool, self.tenant.id).await?;
        let letters = sync_errors::of_run(&mut transaction, self.tenant.id, self.id).await?;
        let letter = letters.first().map(|letter| format!(" as {}", letter.id)).unwrap_or_default();
        anyhow::bail!(
            "{} failed for good{letter}: {error}; mend that, then `{}` runs it again",
            self.id,
            self.args.of.command(&["jobs", "retry", &self.id.to_string()])
        )
    }
}
