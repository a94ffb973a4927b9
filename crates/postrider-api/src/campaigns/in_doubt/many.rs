//! Settles many items in doubt with one finding.

use axum::{extract::State, http::StatusCode, response::Response};
use postrider_model::ids::OutboxId;
use postrider_store::campaigns::doubts::{self, Found, RESOLVED_MAX, Resolution, Settlement};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

use super::{Resolved, ResolvedAs, check_message_id, check_note, wake_workers};
use crate::{
    App,
    common::{
        auth::Operator,
        body::{Body, Object},
        error::{ApiError, ApiResult},
        requests::{Repeatable, Writing},
    },
};

/// A finding about many items in doubt.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Verdicts {
    /// Result of the items.
    r#as: ResolvedAs,
    /// Evidence for the finding; the log keeps it with each item.
    #[schema(min_length = 1, max_length = 2000, pattern = r"\S")]
    note: String,
    /// The items.
    #[schema(value_type = Vec<FoundItem>, min_items = 1, max_items = 1000)]
    items: Vec<Object<FoundItem>>,
}

/// An item that the finding is about.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct FoundItem {
    /// Id of the item.
    outbox_id: Uuid,
    /// The provider's own id of the message. Only for one that was sent.
    #[serde(default)]
    #[schema(min_length = 1, max_length = 500)]
    provider_message_id: Option<String>,
}

/// Result of a finding about many items.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ManyResolved {
    /// The settled items.
    resolved: Vec<Resolved>,
    /// The items that stay as they are.
    refused: Vec<RefusedItem>,
}

/// An item that could not be settled.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct RefusedItem {
    /// Id of the item.
    outbox_id: Uuid,
    /// The reason: the item is unknown or has ended, its worker is at work, or as `failed` it is too early.
    reason: String,
}

/// Settles up to 1,000 items with one finding from the provider. The refusal of one item leaves the others settled.
#[utoipa::path(
    post,
    path = "/in-doubt/resolve",
    operation_id = "resolve_many_in_doubt",
    tag = "in doubt",
    params(Repeatable),
    request_body = Verdicts,
    responses((status = 200, description = "Each item is settled, or was refused with a reason", body = ManyResolved)),
)]
pub(crate) async fn resolve(
    State(app): State<App>,
    Operator(caller): Operator,
    Body { value: verdicts, fingerprint }: Body<Verdicts>,
) -> ApiResult<Response> {
    verdicts.check()?;
    let resolution = match verdicts.r#as {
        ResolvedAs::Sent => Resolution::Sent { message_id: None },
        ResolvedAs::Failed => Resolution::Failed,
    };
    let found: Vec<Found> = verdicts
        .items
        .into_iter()
        .map(|Object(item)| Found { id: OutboxId(item.outbox_id), message_id: item.provider_message_id })
        .collect();
    let (tenant, actor) = (caller.tenant_id, caller.actor());
    let mut writing = Writing::begin(&app, caller, &fingerprint).await?;
    let settlements =
        doubts::resolve_many(writing.connection(), tenant, &found, resolution, &verdicts.note, &actor)
            .await?;
    let answer = ManyResolved::from(settlements);
    let response = writing.answer(StatusCode::OK, &answer).await?;
    if !answer.resolved.is_empty() {
        wake_workers(&app).await;
    }
    Ok(response)
}

impl Verdicts {
    fn check(&self) -> ApiResult<()> {
        check_note(&self.note)?;
        if !(1..=RESOLVED_MAX).contains(&self.items.len()) {
            return Err(ApiError::unprocessable("items", format!("has 1 to {RESOLVED_MAX} items")));
        }
        for (n, Object(item)) in self.items.iter().enumerate() {
            let field = format!("items[{n}].provider_message_id");
            check_message_id(&field, self.r#as, item.provider_message_id.as_deref())?;
        }
        Ok(())
    }
}

impl From<Vec<Settlement>> for ManyResolved {
    fn from(settlements: Vec<Settlement>) -> Self {
        let mut answer = Self { resolved: Vec::new(), refused: Vec::new() };
        for Settlement { id, settled } in settlements {
            match settled {
                Ok(status) => answer.resolved.push(Resolved { outbox_id: id.0, status }),
                Err(reason) => answer.refused.push(RefusedItem { outbox_id: id.0, reason }),
            }
        }
        answer
    }
}
