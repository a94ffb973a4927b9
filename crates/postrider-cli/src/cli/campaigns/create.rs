//! `postrider campaign create`: creates a campaign from a file in one transaction.

use std::process::ExitCode;

use anyhow::Context;
use clap::Args;
use postrider_model::{campaigns::PhaseKind, ids::AssetId};
use postrider_store::{
    PgConnection,
    campaigns::{self, NewCampaign, NewPhase, assets},
    postgres::pool,
    tenancy::tenants::Tenant,
};

use super::{
    check,
    file::{self, CampaignFile, PhaseFile},
};
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
        let key = installation.master_key(config).ok();
        let checker = check::checker(&adapters, key.as_ref(), config);
        let report = checker.check(&mut transaction, tenant.id, tenant.workspace_id, &campaign).await?;
        let errors: Vec<String> = report.errors.iter().map(ToString::to_string).collect();
        anyhow::ensure!(errors.is_empty(), "{}", errors.join("; "));
        let warnings: Vec<String> = check::warnings(&report).collect();
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
pub(super) async fn complete(
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
