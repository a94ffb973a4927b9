//! Links between senders and users.

use postrider_model::{
    ids::{LinkId, TenantId},
    tenancy::Role,
};
use postrider_store::{
    PgConnection,
    channels::links::{self, NewLink},
    postgres::pool,
};
use uuid::Uuid;

use super::{
    super::{ForTenant, actor, output},
    Listing, Names, account, maybe_account,
};
use crate::installation::Installation;

/// A sender, and the user and role to link it to.
pub struct NewSender<'a> {
    pub account: &'a str,
    pub sender: &'a str,
    pub user: &'a str,
    pub role: Role,
}

pub async fn link(
    of: &ForTenant,
    new: NewSender<'_>,
    json: bool,
    installation: &Installation,
) -> anyhow::Result<()> {
    let pool = installation.admin_pool().await?;
    let (mut transaction, tenant) = of.begin(&pool, installation).await?;
    let account = account(&mut transaction, tenant.id, new.account).await?;
    let link = NewLink { account, sender_id: new.sender, user_id: new.user, role: new.role };
    let id = links::put(&mut transaction, tenant.id, &link, &actor()).await?;
    let made = find(&mut transaction, tenant.id, id).await?;
    pool::commit(transaction).await?;
    if json {
        return output::json(&made);
    }
    output::line(id.0)?;
    Ok(())
}

async fn find(
    connection: &mut PgConnection,
    tenant: TenantId,
    id: LinkId,
) -> anyhow::Result<Option<links::Link>> {
    // A page contains ids below its start.
    let above = LinkId(Uuid::from_u128(id.0.as_u128().saturating_add(1)));
    let found = links::page(connection, tenant, None, None, Some(above), 1).await?;
    Ok(found.into_iter().find(|link| link.id == id))
}

pub async fn list(
    of: &ForTenant,
    wanted: Option<&str>,
    sender: Option<&str>,
    listing: &Listing,
    installation: &Installation,
) -> anyhow::Result<()> {
    let pool = installation.admin_pool().await?;
    let (mut transaction, tenant) = of.begin(&pool, installation).await?;
    let account = maybe_account(&mut transaction, tenant.id, wanted).await?;
    let links = links::page(&mut transaction, tenant.id, account, sender, None, listing.limit).await?;
    if listing.json {
        return output::json(&links);
    }
    let names = Names::read(&mut transaction, tenant.id).await?;
    let rows = links
        .into_iter()
        .map(|link| {
            [
                link.id.to_string(),
                names.of(link.account_id),
                link.sender_id,
                link.user_id,
                link.role.to_string(),
                output::time(link.updated_at),
            ]
        })
        .collect();
    output::table(
        ["link", "account", "sender", "user", "role", "since"],
        rows,
        "no sender is linked; `postrider channels link ACCOUNT SENDER --user U --role R` links one to a user",
    )
}

pub async fn unlink(
    of: &ForTenant,
    id: LinkId,
    json: bool,
    installation: &Installation,
) -> anyhow::Result<()> {
    let pool = installation.admin_pool().await?;
    let (mut transaction, tenant) = of.begin(&pool, installation).await?;
    let removed = find(&mut transaction, tenant.id, id).await?;
    let is_known = links::remove(&mut transaction, tenant.id, id, &actor()).await?;
    anyhow::ensure!(
        is_known,
        "tenant `{}` has no link {}; `postrider channels links` shows them",
        tenant.name,
        id.0
    );
    pool::commit(transaction).await?;
    if json {
        return output::json(&removed);
    }
    message!("removed {id}; further messages of this sender are denied");
    Ok(())
}
