//! The target of a command: a campaign, by name or id, or a run.

use anyhow::Context;
use postrider_model::ids::{CampaignId, RunId, TenantId};
use postrider_store::{
    PgConnection,
    campaigns::{
        self, Campaign,
        runs::{self, Run},
    },
};

pub enum Target {
    Campaign(Campaign),
    Run(Box<Run>),
}

/// The campaign of this name or id, or the run of this id.
pub async fn find(connection: &mut PgConnection, tenant: TenantId, wanted: &str) -> anyhow::Result<Target> {
    if let Some(campaign) = campaigns::find(connection, tenant, wanted).await? {
        return Ok(Target::Campaign(campaign));
    }
    if let Ok(id) = wanted.parse::<RunId>()
        && let Some(run) = runs::find(connection, tenant, id).await?
    {
        return Ok(Target::Run(Box::new(run)));
    }
    anyhow::bail!("there is no campaign or run `{wanted}`; `postrider campaign status` lists the campaigns")
}

/// The campaign of this name or id.
pub async fn campaign(
    connection: &mut PgConnection,
    tenant: TenantId,
    wanted: &str,
) -> anyhow::Result<Campaign> {
    campaigns::find(connection, tenant, wanted).await?.with_context(|| not_there(wanted))
}

fn not_there(wanted: &str) -> String {
    let kind = if wanted.parse::<CampaignId>().is_ok() { "with the id " } else { "" };
    format!("there is no campaign {kind}`{wanted}`; `postrider campaign status` lists them")
}
