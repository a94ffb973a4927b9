//! Chat, for operators: links of senders, executors, received messages, and replies.
pub(crate) mod executors;
pub(crate) mod ingress;
pub(crate) mod links;
pub(crate) mod messages;
pub(crate) mod outbox;

use postrider_model::ids::{ProviderAccountId, TenantId};
use postrider_store::{PgConnection, tenancy::accounts};
use uuid::Uuid;

use crate::common::error::{ApiError, ApiResult};

const SEVERAL: &str = "several workspaces have an account of this name; give the account's id";

/// The account that a body means, by name or by id.
async fn account(
    connection: &mut PgConnection,
    tenant: TenantId,
    wanted: &str,
) -> ApiResult<ProviderAccountId> {
    match accounts::named(connection, tenant, wanted).await?[..] {
        [account] => Ok(account),
        [] => Err(ApiError::unprocessable("account", "there is no such account")),
        _ => Err(ApiError::unprocessable("account", SEVERAL)),
    }
}

/// The account that a list is asked for, if one is.
async fn listed_account(
    connection: &mut PgConnection,
    tenant: TenantId,
    wanted: Option<&str>,
) -> ApiResult<Option<ProviderAccountId>> {
    let Some(wanted) = wanted else { return Ok(None) };
    match accounts::named(connection, tenant, wanted).await?[..] {
        [account] => Ok(Some(account)),
        // No account has this id, so nothing is found.
        [] => Ok(Some(ProviderAccountId(Uuid::nil()))),
        _ => Err(ApiError::invalid("account", SEVERAL)),
    }
}
