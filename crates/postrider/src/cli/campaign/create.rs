//! `postrider campaign create`: a campaign from a file, all of it or nothing.

use std::process::ExitCode;

use clap::Args;
use postrider_engine::render;
use postrider_model::{
    Channel,
    campaign::PhaseKind,
    ids::AssetId,
    seal::{MasterKey, Place},
};
use postrider_providers::{Account, Adapters};
use postrider_store::{
    PgConnection,
    accounts::{self, ProviderAccount},
    assets,
    campaigns::{self, NewCampaign, NewPhase},
    pool,
    tenants::Tenant,
};

use super::file::{self, CampaignFile, PhaseFile};
use crate::{
    cli::{ForTenant, actor, output, with_installation},
    config::Config,
    wire,
};

#[derive(Args)]
pub struct CreateArgs {
    #[command(flatten)]
    of: ForTenant,
    /// The campaign, as TOML or JSON; `-` reads stdin
    file: String,
    /// As JSON
    #[arg(long)]
    json: bool,
}

pub async fn run(args: CreateArgs, config: &Config) -> anyhow::Result<ExitCode> {
    // What is wrong with the file is said before anything is started.
    let file = file::read(&args.file)?;
    file.check()?;
    let adapters = wire::adapters(config)?;

    let (id, warnings) = with_installation(config, async |installation| {
        let pool = installation.admin_pool().await?;
        let (mut transaction, tenant) = args.of.begin(&pool, installation).await?;
        let campaign = complete(&mut transaction, &tenant, &file, &adapters).await?;
        let mut warnings = short_quiet_times(&file, config);
        // Without the key that secrets are sealed under nothing can be said, and the server will find out.
        if let Ok(key) = installation.master_key(config) {
            warnings.extend(unfit_accounts(&mut transaction, &tenant, &file, &adapters, &key).await?);
        }
        let id = campaigns::create(&mut transaction, tenant.workspace_id, &campaign, &actor()).await?;
        pool::commit(transaction).await?;
        Ok((id, warnings))
    })
    .await?;
    for warning in warnings {
        eprintln!("warning: {warning}");
    }
    if args.json {
        output::json(&serde_json::json!({ "id": id, "name": file.name }))?;
    } else {
        println!("{}", id.0);
    }
    let plural = if file.phases.len() == 1 { "phase" } else { "phases" };
    eprintln!(
        "created `{}` with {} {plural}; `{}` starts it",
        file.name,
        file.phases.len(),
        args.of.command(&["campaign", "deploy", &file.name])
    );
    Ok(ExitCode::SUCCESS)
}

/// Looks up what the file names, checks it, and makes assets of what it says itself. Everything is checked before the first
/// asset is made.
async fn complete(
    connection: &mut PgConnection,
    tenant: &Tenant,
    file: &CampaignFile,
    adapters: &Adapters,
) -> anyhow::Result<NewCampaign> {
    let accounts: Vec<ProviderAccount> = accounts::list(connection, tenant.id)
        .await?
        .into_iter()
        .filter(|account| account.workspace_id == tenant.workspace_id)
        .collect();
    let mut found = Vec::new();
    for phase in &file.phases {
        for account in [&phase.provider_account, &phase.failover_account].into_iter().flatten() {
            if let Some(channel) = phase.channel {
                check_account(phase, channel, account, &accounts, adapters)?;
            }
        }
        found.push(find_asset(connection, tenant, phase).await?);
    }

    let mut phases = Vec::new();
    for (phase, found) in file.phases.iter().zip(found) {
        let asset_id = match (found, phase.channel, &phase.content) {
            (None, Some(channel), Some(content)) => {
                let name = file.asset_name(phase);
                Some(
                    assets::create(connection, tenant.workspace_id, &name, channel, content, &actor())
                        .await?
                        .0,
                )
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

/// That the account exists, and that this binary can reach the channel through it.
fn check_account(
    phase: &PhaseFile,
    channel: Channel,
    account: &str,
    accounts: &[ProviderAccount],
    adapters: &Adapters,
) -> anyhow::Result<()> {
    let name = &phase.phase;
    let Some(account) = accounts.iter().find(|candidate| candidate.name == account) else {
        let known: Vec<&str> = accounts.iter().map(|account| account.name.as_str()).collect();
        let known =
            if known.is_empty() { "has none".to_owned() } else { format!("has {}", known.join(", ")) };
        anyhow::bail!(
            "phase `{name}`: there is no provider account `{account}`; the tenant {known}, and `postrider accounts add` \
             adds one"
        );
    };
    let Some(adapter) = adapters.get(&account.provider) else {
        anyhow::bail!(
            "phase `{name}`: account `{}` is at `{}`, which this version cannot call; it can call {}",
            account.name,
            account.provider,
            adapters.names()
        );
    };
    let carried = adapter.manifest().channels;
    if !carried.contains(&channel) {
        let carried: Vec<&str> = carried.iter().map(|channel| channel.as_str()).collect();
        let names = adapters.names();
        let fit: Vec<&str> = names
            .split(", ")
            .filter(|name| {
                adapters.get(name).is_some_and(|adapter| adapter.manifest().channels.contains(&channel))
            })
            .collect();
        let fit = if fit.is_empty() { "no provider of this version".to_owned() } else { fit.join(", ") };
        anyhow::bail!(
            "phase `{name}`: account `{}` is at `{}`, which carries {}, not {channel}; {channel} is carried by {fit}",
            account.name,
            account.provider,
            carried.join(", "),
        );
    }
    Ok(())
}

/// The asset that a phase names, or nothing when it says itself what to send.
async fn find_asset(
    connection: &mut PgConnection,
    tenant: &Tenant,
    phase: &PhaseFile,
) -> anyhow::Result<Option<AssetId>> {
    let (PhaseKind::Delivery, Some(channel), Some(wanted)) = (phase.kind, phase.channel, &phase.asset) else {
        return Ok(None);
    };
    let name = &phase.phase;
    let Some(asset) = assets::find(connection, tenant.id, tenant.workspace_id, wanted).await? else {
        anyhow::bail!(
            "phase `{name}`: there is no asset `{wanted}`; name one as ID, NAME or NAME@VERSION, or write what to send \
             under `content`"
        );
    };
    anyhow::ensure!(
        asset.channel == channel,
        "phase `{name}`: asset `{}@{}` is for channel {}, the phase for {channel}; choose an asset of the phase's channel",
        asset.name,
        asset.version,
        asset.channel
    );
    render::check(channel, &asset.content).map_err(|error| {
        anyhow::anyhow!(
            "phase `{name}`: asset `{}@{}`: {error}; create the next version of it",
            asset.name,
            asset.version
        )
    })?;
    Ok(Some(asset.id))
}

/// An account that cannot work as it is set up makes every job wait. It is no more than a warning, because the server may be
/// configured otherwise than this command.
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

/// A worker may still make a call when its time is nearly up, and somebody could already say that it never was.
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
