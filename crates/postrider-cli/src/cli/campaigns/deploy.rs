//! `postrider campaign deploy`: deploys a phase.

use std::process::ExitCode;

use clap::Args;
use postrider_store::{
    Pool,
    campaigns::{self, Campaign, Deployed, JOB_SIZE, JOB_SIZE_MAX, RunState, send_jobs},
    postgres::pool,
    tenancy::tenants::Tenant,
};

use super::{target, watch};
use crate::{
    cli::{ForTenant, actor, output, with_installation},
    config::Config,
    installation::Installation,
};

#[derive(Args)]
pub struct DeployArgs {
    #[command(flatten)]
    of: ForTenant,
    /// The campaign, by name or id
    campaign: String,
    /// Deploy this phase [default: the phase in progress, or else the next]
    #[arg(long, value_name = "PHASE")]
    phase: Option<String>,
    /// Put at most this many items into a send job
    #[arg(long, value_name = "N", default_value_t = JOB_SIZE, value_parser = clap::value_parser!(i32).range(1..=i64::from(JOB_SIZE_MAX)))]
    job_size: i32,
    /// Show the progress until the run ends
    #[arg(long)]
    watch: bool,
    /// Print JSON
    #[arg(long, conflicts_with = "watch")]
    json: bool,
}

pub async fn run(args: DeployArgs, config: &Config) -> anyhow::Result<ExitCode> {
    with_installation(config, async |installation| {
        let pool = installation.admin_pool().await?;
        let (tenant, campaign, deployed) = deploy(&args, &pool, installation).await?;
        let state = read_state(&pool, &tenant, deployed).await?;
        print(&args, &campaign, deployed, &state)?;
        if args.watch {
            return watch::one_run::follow(&pool, &tenant, deployed.run_id, false).await;
        }
        Ok(ExitCode::SUCCESS)
    })
    .await
}

async fn deploy(
    args: &DeployArgs,
    pool: &Pool,
    installation: &Installation,
) -> anyhow::Result<(Tenant, Campaign, Deployed)> {
    let (mut transaction, tenant) = args.of.begin(pool, installation).await?;
    let campaign = target::campaign(&mut transaction, tenant.id, &args.campaign).await?;
    let deployed = campaigns::deploy(
        &mut transaction,
        tenant.id,
        campaign.id,
        args.phase.as_deref(),
        args.job_size,
        &actor(),
    )
    .await?;
    pool::commit(transaction).await?;
    // After the commit, so that the workers find the send jobs when they wake up.
    let mut hinting = pool::begin(pool).await?;
    send_jobs::hint(&mut hinting).await?;
    pool::commit(hinting).await?;
    Ok((tenant, campaign, deployed))
}

async fn read_state(pool: &Pool, tenant: &Tenant, deployed: Deployed) -> anyhow::Result<RunState> {
    let mut transaction = pool::begin_as(pool, tenant.id).await?;
    let mut states = campaigns::run_states(&mut transaction, tenant.id, &[deployed.run_id]).await?;
    states.remove(&deployed.run_id).ok_or_else(|| {
        anyhow::anyhow!("run {} was deployed and cannot be found; run `postrider doctor`", deployed.run_id)
    })
}

fn print(args: &DeployArgs, campaign: &Campaign, deployed: Deployed, state: &RunState) -> anyhow::Result<()> {
    let run = &state.run;
    if args.json {
        return output::json(
            &serde_json::json!({ "run_id": run.id, "is_new": deployed.is_new, "run": state }),
        );
    }
    output::line(run.id.0)?;
    if deployed.is_new {
        let (items, jobs) =
            (plural(run.intended.into(), "item"), plural(state.progress.jobs.total(), "send job"));
        message!("deployed phase `{}` of `{}`: {items} in {jobs}", run.phase_name(), campaign.name);
    } else {
        message!(
            "phase `{}` of `{}` was deployed before as this run; nothing was changed",
            run.phase_name(),
            campaign.name
        );
    }
    if deployed.is_new && run.same_address > 0 {
        message!(
            "{} left out, because another one has the same address",
            plural(run.same_address.into(), "lead")
        );
    }
    if let Some(at) = run.scheduled_for {
        message!("the phase begins at {}", output::time(at));
    }
    if !args.watch {
        message!("`{}` shows its progress", args.of.command(&["campaign", "watch", &campaign.name]));
    }
    Ok(())
}

fn plural(count: i64, noun: &str) -> String {
    if count == 1 { format!("{count} {noun}") } else { format!("{count} {noun}s") }
}
