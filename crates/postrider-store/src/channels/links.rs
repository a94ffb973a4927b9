//! Links of senders to users.

use jiff::Timestamp;
use postrider_model::{
    ids::{LinkId, ProviderAccountId, TenantId},
    tenancy::Role,
};
use serde::Serialize;
use sqlx::PgConnection;

use crate::{StoreError, postgres::unprepared::unprepared};

/// A sender at one account, and the user it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Link {
    /// Its id.
    pub id: LinkId,
    /// The account.
    pub account_id: ProviderAccountId,
    /// The provider's name for the sender.
    pub sender_id: String,
    /// The product's name for the user.
    pub user_id: String,
    /// Role of the user.
    pub role: Role,
    /// Time of creation.
    pub created_at: Timestamp,
    /// Time of the last change.
    pub updated_at: Timestamp,
}

/// A new link.
#[derive(Debug, Clone, Copy)]
pub struct NewLink<'a> {
    /// The account.
    pub account: ProviderAccountId,
    /// The provider's name for the sender.
    pub sender_id: &'a str,
    /// The product's name for the user.
    pub user_id: &'a str,
    /// Role of the user.
    pub role: Role,
}

/// Sets the user and role of a sender of a tenant, in place of the earlier ones.
pub async fn put(
    connection: &mut PgConnection,
    tenant: TenantId,
    link: &NewLink<'_>,
    actor: &str,
) -> Result<LinkId, StoreError> {
    let id = sqlx::query_scalar!(
        r#"select channels.link_sender($1, $2, $3, $4, $5, $6, $7) as "id!""#,
        tenant.0,
        LinkId::new().0,
        link.account.0,
        link.sender_id,
        link.user_id,
        link.role.as_str(),
        actor,
    )
    .fetch_one(unprepared(connection))
    .await
    .map_err(|error| match StoreError::constraint(&error) {
        Some("channel_links_names_are_given") => StoreError::Refused {
            message: "sender_id and user_id need 1 to 255 bytes".to_owned(),
            hint: None,
        },
        Some("channel_links_are_of_an_account") => {
            StoreError::Refused { message: "there is no such account".to_owned(), hint: None }
        }
        _ => StoreError::on("linking the sender")(error),
    })?;
    Ok(LinkId(id))
}

/// Removes the link of a sender. False when the tenant has no such link.
pub async fn remove(
    connection: &mut PgConnection,
    tenant: TenantId,
    id: LinkId,
    actor: &str,
) -> Result<bool, StoreError> {
    sqlx::query_scalar!(r#"select channels.unlink_sender($1, $2, $3) as "known!""#, tenant.0, id.0, actor)
        .fetch_one(unprepared(connection))
        .await
        .map_err(StoreError::on("unlinking the sender"))
}

/// Up to so many links of a tenant, newest first, below this one; of one account and one sender where they are given.
pub async fn page(
    connection: &mut PgConnection,
    tenant: TenantId,
    account: Option<ProviderAccountId>,
    sender: Option<&str>,
    below: Option<LinkId>,
    limit: i64,
) -> Result<Vec<Link>, StoreError> {
    let rows = sqlx::query!(
        r#"
        select id,
               account_id,
               sender_id,
               user_id,
               role,
               created_at as "created_at: jiff_sqlx::Timestamp",
               updated_at as "updated_at: jiff_sqlx::Timestamp"
          from channels.channel_links
         where tenant_id = $1
           and ($2::uuid is null or account_id = $2)
           and ($3::text is null or sender_id = $3)
           and ($4::uuid is null or id < $4)
         order by id desc
         limit $5
        "#,
        tenant.0,
        account.map(|id| id.0),
        sender,
        below.map(|id| id.0),
        limit,
    )
    .fetch_all(unprepared(connection))
    .await
    .map_err(StoreError::on("listing the links"))?;
    rows.into_iter()
        .map(|row| {
            Ok(Link {
                id: LinkId(row.id),
                account_id: ProviderAccountId(row.account_id),
                sender_id: row.sender_id,
                user_id: row.user_id,
                role: row.role.parse().map_err(|error| StoreError::Unfit(format!("{error}")))?,
                created_at: row.created_at.to_jiff(),
                updated_at: row.updated_at.to_jiff(),
            })
        })
        .collect()
}
