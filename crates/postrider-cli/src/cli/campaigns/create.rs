//! `postrider campaign create`: creates a campaign from a file in one transaction.

use std::process::ExitCode;

use anyhow::Context;
use clap::Args;
use postrider_engine::campaigns::drafts;
use postrider_model::{
    campaigns::PhaseKind,
    ids::AssetId,
    seal::{MasterKey, Place},
};
use postrider_providers::{Account, Adapters};
use postrider_store::{
    PgConnection,
    campaigns::{self, NewCampaign, NewPhase, assets},
    postgres::pool,
    tenancy::{accounts, tenants::Tenant},
};

use super::file::{self, CampaignFile, PhaseFile};
use crate::{
    cli::{ForWorkspace, actor, output, with_installation},
    config::Config,
    wire,
};

#[derive(Args)]
pub struct CreateArgs {
    #[command(flatten)]
    of: ForWorkspace,
    /// The campaign, as TOML or JSON; `-` reads stdin
    file: String,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub async fn run(args: CreateArgs, config: &Config) -> anyhow::Result<ExitCode> {
    // The file is checked before the database is opened.
    let file = file::read(&args.file)?;
    file.check()?;
    let adapters = wire::adapters(config)?;

    let (id, warnings) = with_installation(config, async |installation| {
        let pool = installation.admin_pool().await?;
        let (mut transaction, mut tenant) = args.of.tenant.begin(&pool, installation).await?;
        tenant.workspace_id = args.of.workspace(&mut transaction, &tenant).await?;
        // One transaction: an error also rolls back the assets that were created for the campaign.
        let campaign = complete(&mut transaction, &tenant, &file).await?;
        drafts::check(&mut transaction, tenant.id, tenant.workspace_id, &campaign, &adapters).await?;
        let mut warnings = short_quiet_times(&file, config);
        // Without the master key the accounts cannot be checked here; the server checks them.
        if let Ok(key) = installation.master_key(config) {
            warnings.extend(unfit_accounts(&mut transaction, &tenant, &file, &adapters, &key).await?);
        }
        let id =
            campaigns::create(&mut transaction, tenant.id, tenant.workspace_id, &campaign, &actor()).await?;
        pool::commit(transaction).await?;
        Ok((id, warnings))
    })
    .await?;
    for warning in warnings {
        message!("warning: {warning}");
    }
    if args.json {
        output::json(&serde_json::json!({ "id": id, "name": file.name }))?;
    } else {
        output::line(id.0)?;
    }
    let plural = if file.phases.len() == 1 { "phase" } else { "phases" };
    message!(
        "created `{}` with {} {plural}; `{}` starts it",
        file.name,
        file.phases.len(),
        args.of.tenant.command(&["campaign", "deploy", &file.name])
    );
    Ok(ExitCode::SUCCESS)
}

/// Looks up the assets that the file names, and creates assets from its content.
async fn complete(
    connection: &mut PgConnection,
    tenant: &Tenant,
    file: &CampaignFile,
) -> anyhow::Result<NewCampaign> {
    let mut phases = Vec::new();
    for phase in &file.phases {
        let asset_id = match (find_asset(connection, tenant, phase).await?, phase.channel, &phase.content) {
            (None, Some(channel), Some(content)) => {
                let name = file.asset_name(phase);
                let made = assets::create(
                    connection,
                    tenant.id,
                    tenant.workspace_id,
                    &name,
                    channel,
                    content,
                    &actor(),
                )
                .await?;
                Some(made.0)
            }
            (found, _, _) => found,
        };
        phases.push(NewPhase {
            phase: phase.phase.clone(),
            kind: phase.kind,
            channel: phase.channel,
            asset_id,
            list: phase.list.clone(),
            provider_account: phase.provider_account.clone(),
            failover_account: phase.failover_account.clone(),
            failure_tolerance: phase.failure_tolerance,
            scheduled_for: phase.scheduled_for.as_ref().map(|time| time.0),
            quiet_time_seconds: phase.quiet_time_seconds,
        });
    }
    Ok(NewCampaign { name: file.name.clone(), auto_advance: file.auto_advance, phases })
}

/// The asset that a phase names; `None` when the phase has content.
async fn find_asset(
    connection: &mut PgConnection,
    tenant: &Tenant,
    phase: &PhaseFile,
) -> anyhow::Result<Option<AssetId>> {
    let (PhaseKind::Delivery, Some(wanted)) = (phase.kind, &phase.asset) else {
        return Ok(None);
    };
    let found = assets::find(connection, tenant.id, tenant.workspace_id, wanted).await?;
    let asset = found.with_context(|| {
        format!(
            "phase `{}`: there is no asset `{wanted}`; name one as ID, NAME or NAME@VERSION, or write what to send under \
             `content`",
            phase.phase
        )
    })?;
    Ok(Some(asset.id))
}

/// Warnings about accounts that cannot work with their settings, which would make every send job wait. They are no errors, because the
/// configuration of the server may differ from this command's.
async fn unfit_accounts(
    connection: &mut PgConnection,
    tenant: &Tenant,
    file: &CampaignFile,
    adapters: &Adapters,
    key: &MasterKey,
) -> anyhow::Result<Vec<String>> {
    let mut unfit = Vec::new();
    for account in accounts::list(connection, tenant.id).await? {
        let is_used = |phase: &PhaseFile| {
            [&phase.provider_account, &phase.failover_account].contains(&&Some(account.name.clone()))
        };
        let Some(adapter) = adapters.get(&account.provider).filter(|_| file.phases.iter().any(is_used))
        else {
            continue;
        };
        let place = Place { tenant: tenant.id, account: account.id };
        let opened = match accounts::open_secret(connection, key, place).await {
            Ok(Some(secret)) => adapter
                .open(&Account { id: account.id, settings: &account.settings, secret: &secret })
                .map(drop)
                .map_err(|error| error.to_string()),
            Ok(None) => Ok(()),
            Err(error) => Err(error.to_string()),
        };
        if let Err(problem) = opened {
            unfit.push(format!("account `{}` cannot work as it is set up: {problem}", account.name));
        }
    }
    Ok(unfit)
}

/// Warnings about quiet times that are shorter than a call: an operator could resolve an item as failed during its call.
fn short_quiet_times(file: &CampaignFile, config: &Config) -> Vec<String> {
    let call = config.campaigns.call_within_seconds + config.campaigns.call_timeout_seconds;
    let is_short = |phase: &&PhaseFile| phase.quiet_time_seconds.is_some_and(|quiet| u64::from(quiet) < call);
    let short = file.phases.iter().filter(is_short).map(|phase| {
        format!(
            "phase `{}`: quiet_time_seconds is shorter than a call may take ({call} seconds); an item could be resolved \
             as failed and arrive after that",
            phase.phase
        )
    });
    short.collect()
}
