//! Who the senders are.

use postrider_model::{ids::LinkId, tenancy::Role};
use postrider_store::{
    links::{self, NewLink},
    pool,
};

use super::{
    super::{ForTenant, actor, output},
    Listing, Names, account, maybe_account,
};
use crate::installation::Installation;

pub async fn link(
    of: &ForTenant,
    wanted: &str,
    sender: &str,
    user: &str,
    role: Role,
    installation: &Installation,
) -> anyhow::Result<()> {
    let pool = installation.admin_pool().await?;
    let (mut transaction, tenant) = of.begin(&pool, installation).await?;
    let account = account(&mut transaction, tenant.id, wanted).await?;
    let link = NewLink { account, sender_id: sender, user_id: user, role };
    let id = links::put(&mut transaction, &link, &actor()).await?;
    pool::commit(transaction).await?;
    output::line(id.0)?;
    Ok(())
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
        "nobody is linked; `postrider channels link ACCOUNT SENDER --user U --role R` says who a sender is",
    )
}

pub async fn unlink(of: &ForTenant, id: LinkId, installation: &Installation) -> anyhow::Result<()> {
    let pool = installation.admin_pool().await?;
    let (mut transaction, tenant) = of.begin(&pool, installation).await?;
    let is_known = links::remove(&mut transaction, id, &actor()).await?;
    anyhow::ensure!(
        is_known,
        "tenant `{}` has no link {}; `postrider channels links` shows them",
        tenant.name,
        id.0
    );
    pool::commit(transaction).await?;
    tell!("forgot {id}; further messages of this sender are denied");
    Ok(())
}
