//! One item with everything that is known about it.

use axum::{Json, extract::State};
use jiff::Timestamp;
use postrider_engine::campaigns::{
    reserved,
    resolver::{SettledBy, settled_at},
};
use postrider_model::{
    Channel, Message,
    campaigns::{JobOutcome, JobStatus},
    ids::OutboxId,
};
use postrider_providers::Adapters;
use postrider_store::campaigns::item::{self, AccountName, Callback, ItemDoubt, Job, Whole};
use serde::Serialize;
use utoipa::ToSchema;
use uuid::Uuid;

use super::{
    leads::LeadBody,
    runs::{AuditLineBody, ItemBody, RunBody},
};
use crate::{
    App,
    common::{
        auth::Viewer,
        body::Path,
        error::{ApiError, ApiResult},
        requests::Reading,
        words,
    },
};

/// An item with its lead, run, send job and doubt, the provider's callbacks, and the log.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ItemDetails {
    item: WholeItem,
    /// The lead. A post to the public has none.
    lead: Option<LeadBody>,
    run: RunBody,
    /// The name of the list that its phase addresses.
    list: Option<String>,
    job: ItemJob,
    /// The doubt, if the item is in doubt.
    doubt: Option<DoubtBody>,
    /// The provider's callbacks about it, oldest first.
    callbacks: Vec<CallbackBody>,
    /// The log about the item, its send job and its run, oldest line first: at most 200 lines, those about the item before others.
    audit: Vec<AuditLineBody>,
}

/// An item, its accounts and its message.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct WholeItem {
    #[serde(flatten)]
    item: ItemBody,
    #[schema(value_type = words::Channel)]
    channel: Channel,
    /// The account of its run, unless it was removed.
    account: Option<ItemAccount>,
    /// The failover account, if the item was moved to it because the first account provably did not send it.
    moved_to_account: Option<ItemAccount>,
    /// The version of the asset that the message was made from. A single message may have content of its own.
    asset: Option<ItemAsset>,
    /// The single message, if the item is one.
    single_message_id: Option<Uuid>,
    /// The variables that the template used for this recipient. Absent if no message was rendered, or the person was erased.
    #[schema(value_type = Option<Object>)]
    payload: Option<serde_json::Value>,
    /// The message, rendered again from the asset and `payload`. Absent if it would not be the one that was reserved.
    message: Option<MessageBody>,
    /// Whether the message, rendered again, is the one that was reserved. Absent where no fingerprint was stored.
    message_matches: Option<bool>,
    /// The beginning of the provider's last response: `status` and `body`, at most 1 kB, without headers.
    #[schema(value_type = Option<Object>)]
    result: Option<serde_json::Value>,
}

/// A version of an asset, by name.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ItemAsset {
    id: Uuid,
    name: String,
    version: i32,
}

/// A message as the provider got it. Each channel has its own members.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = SentMessage)]
pub(crate) struct MessageBody {
    /// The address. A post has none.
    to: Option<String>,
    /// Subject of an e-mail.
    subject: Option<String>,
    /// Text of an e-mail or a post.
    text: Option<String>,
    /// HTML of an e-mail.
    html: Option<String>,
    /// Spoken text of a call.
    script: Option<String>,
}

impl From<Message> for MessageBody {
    fn from(message: Message) -> Self {
        let none = Self { to: None, subject: None, text: None, html: None, script: None };
        match message {
            Message::Email { to, subject, text, html } => {
                Self { to: Some(to), subject: Some(subject), text, html, script: None }
            }
            Message::Voice { to, script } => Self { to: Some(to), script: Some(script), ..none },
            Message::Social { text } => Self { text: Some(text), ..none },
            Message::Chat { to, text, .. } => Self { to: Some(to), text: Some(text), ..none },
        }
    }
}

/// A provider account, by name.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ItemAccount {
    id: Uuid,
    name: String,
    /// The vendor.
    provider: String,
}

/// The send job of an item.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ItemJob {
    id: Uuid,
    /// Its place in the run, from 1.
    position: i32,
    /// Type of the send job.
    job_type: String,
    #[schema(value_type = words::JobStatus)]
    status: JobStatus,
    /// Result of the send job.
    #[schema(value_type = Option<words::JobOutcome>)]
    outcome: Option<JobOutcome>,
    /// Attempts that began.
    attempts: i32,
    max_attempts: i32,
    /// Earliest time at which a worker may claim it; absent while its phase is paused.
    run_after: Option<Timestamp>,
    /// Worker that holds it.
    locked_by: Option<String>,
    /// Time of its worker's last heartbeat.
    locked_at: Option<Timestamp>,
    /// Reason why it was put off.
    last_error: Option<String>,
    created_at: Timestamp,
    finished_at: Option<Timestamp>,
}

/// The doubt about an item.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ItemDoubt)]
pub(crate) struct DoubtBody {
    /// Number of look-ups by the resolver.
    looks: i32,
    /// Time of the next look-up. Absent while the silence of its worker is not recorded.
    next_look_at: Option<Timestamp>,
    /// Whether the resolver has given up on it.
    is_for_person: bool,
    /// How the item will be settled.
    #[schema(value_type = words::SettledBy)]
    settled_by: SettledBy,
    /// Result of the resolver's last look-up.
    note: Option<String>,
    /// From then on it may be resolved as `failed`: nothing can arrive any more.
    quiet_until: Timestamp,
    /// Whether that time has come.
    is_quiet: bool,
}

/// A report of the provider about the call of an item.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ItemCallback)]
pub(crate) struct CallbackBody {
    /// The provider's id of the message, call or post.
    message_id: String,
    /// The status, in the provider's words.
    status: String,
    /// Whether it proves that the provider acted.
    proves_action: bool,
    received_at: Timestamp,
}

impl ItemDetails {
    fn of(
        whole: Whole,
        message: Option<Message>,
        message_matches: Option<bool>,
        adapters: &Adapters,
    ) -> Self {
        Self {
            item: WholeItem {
                item: whole.item.into(),
                channel: whole.channel,
                account: whole.account.map(ItemAccount::from),
                moved_to_account: whole.moved_to.map(ItemAccount::from),
                asset: whole.asset.map(|asset| ItemAsset {
                    id: asset.id.0,
                    name: asset.name,
                    version: asset.version,
                }),
                single_message_id: whole.message.map(|id| id.0),
                payload: whole.payload,
                message: message.map(MessageBody::from),
                message_matches,
                result: whole.result,
            },
            lead: whole.lead.map(LeadBody::from),
            run: whole.run.into(),
            list: whole.list,
            job: whole.job.into(),
            doubt: whole.doubt.map(|doubt| DoubtBody::of(doubt, adapters)),
            callbacks: whole.callbacks.into_iter().map(CallbackBody::from).collect(),
            audit: whole.audit.into_iter().map(AuditLineBody::from).collect(),
        }
    }
}

impl From<AccountName> for ItemAccount {
    fn from(account: AccountName) -> Self {
        Self { id: account.id.0, name: account.name, provider: account.provider }
    }
}

impl From<Job> for ItemJob {
    fn from(job: Job) -> Self {
        Self {
            id: job.id.0,
            position: job.position,
            job_type: job.job_type,
            status: job.status,
            outcome: job.outcome,
            attempts: job.attempts,
            max_attempts: job.max_attempts,
            run_after: job.run_after,
            locked_by: job.locked_by,
            locked_at: job.locked_at,
            last_error: job.last_error,
            created_at: job.created_at,
            finished_at: job.finished_at,
        }
    }
}

impl DoubtBody {
    fn of(doubt: ItemDoubt, adapters: &Adapters) -> Self {
        Self {
            looks: doubt.looks,
            next_look_at: doubt.next_look_at,
            is_for_person: doubt.is_for_person,
            settled_by: settled_at(&doubt.provider, doubt.is_for_person, adapters),
            note: doubt.note,
            quiet_until: doubt.quiet_until,
            is_quiet: doubt.is_quiet,
        }
    }
}

impl From<Callback> for CallbackBody {
    fn from(callback: Callback) -> Self {
        Self {
            message_id: callback.message_id,
            status: callback.status,
            proves_action: callback.proves_action,
            received_at: callback.received_at,
        }
    }
}

/// One item with its lead, run, send job, doubt, callbacks and log.
#[utoipa::path(
    get,
    path = "/items/{id}",
    operation_id = "get_item",
    tag = "runs",
    params(("id" = Uuid, Path, description = "The item's id")),
    responses((status = 200, description = "The item", body = ItemDetails)),
)]
pub(crate) async fn get(
    State(app): State<App>,
    Viewer(caller): Viewer,
    Path(id): Path<OutboxId>,
) -> ApiResult<Json<ItemDetails>> {
    let mut reading = Reading::begin(&app, caller.tenant_id).await?;
    let found = item::read(reading.connection(), caller.tenant_id, id).await?;
    reading.end().await?;
    let whole = found.ok_or(ApiError::NotFound("item"))?;
    // A template may use up its budget, so it is rendered beside the requests.
    let rendered = tokio::task::spawn_blocking(move || (reserved::message_of(&whole), whole)).await;
    let ((message, matches), whole) =
        rendered.map_err(|error| ApiError::Internal(format!("rendering the item ended early: {error}")))?;
    Ok(Json(ItemDetails::of(whole, message, matches, &app.adapters)))
}
