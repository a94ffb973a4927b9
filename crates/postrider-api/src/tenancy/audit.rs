//! The audit logs, for admins.

use axum::{Json, extract::State};
use jiff::Timestamp;
use postrider_model::ids::{CampaignId, RunId};
use postrider_store::tenancy::audit::{self, Entry, Filter};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use uuid::Uuid;

use crate::{
    App,
    common::{
        auth::Admin,
        body::Query,
        error::{ApiError, ApiResult},
        filters,
        paging::{self, Page},
        requests::Reading,
    },
};

/// An audit log.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Source {
    /// Keys, provider accounts, leads and events.
    #[default]
    Administration,
    /// Campaigns, phases, runs, jobs, and doubts about items.
    Campaigns,
}

/// Filters for the lines of a log.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct AuditQuery {
    /// The log to read.
    #[serde(default)]
    #[param(inline, required = false)]
    source: Source,
    /// Only lines that name this campaign; with `source=campaigns`.
    campaign_id: Option<Uuid>,
    /// Only lines that name this run; with `source=campaigns`.
    run_id: Option<Uuid>,
    /// Only of this actor; the text must match exactly.
    #[param(min_length = 1, max_length = 500)]
    actor: Option<String>,
    /// Only about this action, such as `key.created`.
    #[param(min_length = 1, max_length = 500)]
    action: Option<String>,
    /// Only about this subject, such as `key:…` or `item:…`.
    #[param(min_length = 1, max_length = 500)]
    subject: Option<String>,
    /// Only lines written at this time or later.
    after: Option<Timestamp>,
    /// Only lines written before this time.
    before: Option<Timestamp>,
    /// Maximum number of items of the page.
    #[param(minimum = 1, maximum = 200, default = 50)]
    limit: Option<u32>,
    /// `next_cursor` of the page before.
    #[param(min_length = 1, max_length = 1024, pattern = "^[A-Za-z0-9_-]+$")]
    cursor: Option<String>,
}

/// One line.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct AuditEntry {
    id: i64,
    source: Source,
    at: Timestamp,
    /// `key:…` for requests, `cli:…` for people at a shell, or the name of a worker.
    actor: String,
    /// The action, such as `key.created`.
    action: String,
    /// The subject of the action, such as `key:…`.
    subject: String,
    note: Option<String>,
    campaign_id: Option<Uuid>,
    run_id: Option<Uuid>,
}

/// Lists an audit log, newest line first.
#[utoipa::path(
    get,
    path = "/audit",
    operation_id = "list_audit",
    tag = "audit",
    params(AuditQuery),
    responses((status = 200, description = "A page of the log", body = Page<AuditEntry>)),
)]
pub(crate) async fn list(
    State(app): State<App>,
    Admin(caller): Admin,
    Query(query): Query<AuditQuery>,
) -> ApiResult<Json<Page<AuditEntry>>> {
    let size = paging::size(query.limit)?;
    let cursor: Option<i64> = paging::decode(query.cursor.as_deref())?;
    let filter = Filter {
        actor: filters::text("actor", query.actor)?,
        action: filters::text("action", query.action)?,
        subject: filters::text("subject", query.subject)?,
        after: filters::time("after", query.after)?,
        before: filters::time("before", query.before)?,
    };
    let (campaign, run) = (query.campaign_id.map(CampaignId), query.run_id.map(RunId));
    let tenant = caller.tenant_id;
    let mut reading = Reading::begin(&app, tenant).await?;
    let rows = match query.source {
        Source::Administration if campaign.is_some() || run.is_some() => {
            return Err(ApiError::invalid("source", "campaigns and runs are in the log `campaigns`"));
        }
        Source::Administration => {
            audit::administration(reading.connection(), tenant, &filter, cursor, size + 1).await?
        }
        Source::Campaigns => {
            audit::campaigns(reading.connection(), tenant, (campaign, run), &filter, cursor, size + 1).await?
        }
    };
    let show = |entry: Entry| AuditEntry {
        id: entry.id,
        source: query.source,
        at: entry.at,
        actor: entry.actor,
        action: entry.action,
        subject: entry.subject,
        note: entry.note,
        campaign_id: entry.campaign_id,
        run_id: entry.run_id,
    };
    reading.page(rows, size, |entry| entry.id, show).await
}
