//! Campaigns before they are created: the lists, assets and accounts that they name must exist and fit together. An error names the phase
//! and the field, so that the author finds the mistake in a file or in a form.

use jiff::Timestamp;
use postrider_model::{
    Channel,
    ids::{TenantId, WorkspaceId},
};
use postrider_providers::Adapters;
use postrider_store::{
    PgConnection, StoreError,
    campaigns::{Mistake, NewCampaign, NewPhase, assets, leads},
    tenancy::accounts::{self, ProviderAccount},
};

use super::render;

/// The mistakes of a campaign, at most one per phase. A campaign that contradicts itself has one.
pub async fn mistakes(
    connection: &mut PgConnection,
    tenant: TenantId,
    workspace: WorkspaceId,
    campaign: &NewCampaign,
    adapters: &Adapters,
) -> Result<Vec<Mistake>, StoreError> {
    if let Err(mistake) = campaign.check() {
        return Ok(vec![mistake]);
    }
    let accounts: Vec<ProviderAccount> = accounts::list(connection, tenant)
        .await?
        .into_iter()
        .filter(|account| account.workspace_id == workspace)
        .collect();
    let mut mistakes = Vec::new();
    for (at, phase) in campaign.phases.iter().enumerate() {
        if let Some((field, problem)) =
            problem_of(connection, tenant, workspace, phase, &accounts, adapters).await?
        {
            mistakes.push(Mistake::in_phase(at, &phase.phase, field, problem));
        }
    }
    Ok(mistakes)
}

/// The first problem of a phase, with its field.
async fn problem_of(
    connection: &mut PgConnection,
    tenant: TenantId,
    workspace: WorkspaceId,
    phase: &NewPhase,
    accounts: &[ProviderAccount],
    adapters: &Adapters,
) -> Result<Option<(&'static str, String)>, StoreError> {
    if let Err(problem) = check_time(phase) {
        return Ok(Some(problem));
    }
    let Some(channel) = phase.channel else { return Ok(None) };
    for (field, account) in
        [("provider_account", &phase.provider_account), ("failover_account", &phase.failover_account)]
    {
        if let Some(account) = account
            && let Err(problem) = check_account(channel, account, accounts, adapters)
        {
            return Ok(Some((field, problem)));
        }
    }
    if let Some(problem) = asset_problem(connection, tenant, workspace, channel, phase).await? {
        return Ok(Some(("asset_id", problem)));
    }
    if let Some(list) = &phase.list
        && !leads::has_list(connection, tenant, workspace, list).await?
    {
        let problem = format!(
            "there is no list `{}`; import one with `postrider campaign import --list NAME FILE`, or with \
             `POST /leads/import?list=NAME`",
            list.escape_debug()
        );
        return Ok(Some(("list", problem)));
    }
    Ok(None)
}

/// That it does not begin before it was thought of, nor after the years that a key can spell.
fn check_time(phase: &NewPhase) -> Result<(), (&'static str, String)> {
    let Some(at) = phase.scheduled_for else { return Ok(()) };
    let problem = if at <= Timestamp::now() {
        format!("scheduled_for lies in the past ({at}); leave it out to begin as soon as it is deployed")
    } else if at.to_string().as_str() >= "9999" {
        format!("scheduled_for lies too far ahead ({at}); the year 9998 is the last")
    } else {
        return Ok(());
    };
    Err(("scheduled_for", problem))
}

/// That the account exists, and that this binary can reach the channel through it.
fn check_account(
    channel: Channel,
    account: &str,
    accounts: &[ProviderAccount],
    adapters: &Adapters,
) -> Result<(), String> {
    let Some(account) = accounts.iter().find(|candidate| candidate.name == account) else {
        let known: Vec<&str> = accounts.iter().map(|account| account.name.as_str()).collect();
        let known =
            if known.is_empty() { "has none".to_owned() } else { format!("has {}", known.join(", ")) };
        return Err(format!(
            "there is no provider account `{}`; the tenant {known}, and `postrider accounts add` adds one",
            account.escape_debug()
        ));
    };
    if account.retired_at.is_some() {
        return Err(format!("account `{}` is retired; name another one", account.name));
    }
    let Some(adapter) = adapters.get(&account.provider) else {
        return Err(format!(
            "account `{}` is at `{}`, which this version cannot call; it can call {}",
            account.name,
            account.provider,
            adapters.names()
        ));
    };
    let carried = adapter.manifest().channels;
    if carried.contains(&channel) {
        return Ok(());
    }
    let carried: Vec<&str> = carried.iter().map(|channel| channel.as_str()).collect();
    let names = adapters.names();
    let carries = |name: &&str| {
        adapters.get(name).is_some_and(|adapter| adapter.manifest().channels.contains(&channel))
    };
    let fit: Vec<&str> = names.split(", ").filter(carries).collect();
    let fit = if fit.is_empty() { "no provider of this version".to_owned() } else { fit.join(", ") };
    Err(format!(
        "account `{}` is at `{}`, which carries {}, not {channel}; {channel} is carried by {fit}",
        account.name,
        account.provider,
        carried.join(", "),
    ))
}

/// Checks that the asset of a phase exists, fits the channel and compiles.
async fn asset_problem(
    connection: &mut PgConnection,
    tenant: TenantId,
    workspace: WorkspaceId,
    channel: Channel,
    phase: &NewPhase,
) -> Result<Option<String>, StoreError> {
    let Some(id) = phase.asset_id else { return Ok(None) };
    let found = assets::read(connection, tenant, id).await?;
    let Some((asset, content)) = found.filter(|(asset, _)| asset.workspace_id == workspace) else {
        return Ok(Some(format!("there is no asset {}; create it first, and name its id", id.0)));
    };
    let name = format!("asset `{}@{}`", asset.name, asset.version);
    if asset.channel != channel {
        return Ok(Some(format!(
            "{name} is for channel {}, the phase for {channel}; choose an asset of the phase's channel",
            asset.channel
        )));
    }
    let unfit = render::check(channel, &content).err();
    Ok(unfit.map(|error| format!("{name}: {error}; create the next version of it")))
}
