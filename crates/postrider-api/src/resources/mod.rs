//! The resources under `/api/v2`, one file each.

pub(crate) mod accounts;
pub(crate) mod assets;
pub(crate) mod audit;
pub(crate) mod campaigns;
pub(crate) mod channels;
pub(crate) mod events;
pub(crate) mod in_doubt;
pub(crate) mod jobs;
pub(crate) mod keys;
pub(crate) mod leads;
pub(crate) mod limits;
pub(crate) mod phases;
pub(crate) mod runs;
pub(crate) mod words;

use jiff::Timestamp;
use postrider_model::ids::{TenantId, WorkspaceId};
use postrider_store::{PgConnection, tenants};
use serde::de::DeserializeOwned;

use crate::{
    error::{ApiError, ApiResult},
    paging,
};

/// The workspace of a new resource: the one that is named, or the tenant's first.
pub(crate) async fn workspace(
    connection: &mut PgConnection,
    tenant: TenantId,
    wanted: Option<WorkspaceId>,
) -> ApiResult<WorkspaceId> {
    let found = tenants::workspace(connection, tenant, wanted).await?;
    found.ok_or_else(|| ApiError::unprocessable("workspace_id", "there is no such workspace"))
}

/// The start of a page of a list in the order of time. The server makes no cursor with a time before 1970, and the database may not
/// know such a time.
pub(crate) fn by_age<T: DeserializeOwned>(cursor: Option<&str>) -> ApiResult<Option<(Timestamp, T)>> {
    let after: Option<(Timestamp, T)> = paging::decode(cursor)?;
    match after {
        Some((at, _)) if at < Timestamp::UNIX_EPOCH => Err(ApiError::invalid(
            "cursor",
            "is not one of this list; take `next_cursor` of the page before, as it is",
        )),
        after => Ok(after),
    }
}
