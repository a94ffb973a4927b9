//! API keys, sessions, accounts, the audit logs, the overview and the catalogue.

pub(crate) mod accounts;
pub(crate) mod audit;
pub(crate) mod catalogue;
pub(crate) mod keys;
pub(crate) mod overview;
pub(crate) mod sessions;
pub(crate) mod workers;

use postrider_model::ids::{TenantId, WorkspaceId};
use postrider_store::{PgConnection, tenancy::tenants};

use crate::common::error::{ApiError, ApiResult};

/// The workspace of a new resource: the one that is named, or the tenant's first.
pub(crate) async fn workspace(
    connection: &mut PgConnection,
    tenant: TenantId,
    wanted: Option<WorkspaceId>,
) -> ApiResult<WorkspaceId> {
    let found = tenants::workspace(connection, tenant, wanted).await?;
    found.ok_or_else(|| ApiError::unprocessable("workspace_id", "there is no such workspace"))
}
