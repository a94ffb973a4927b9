//! Webhooks of chat vendors, which deliver people's messages.
//!
//! ```text
//! webhook ──verify──▶ reports are recorded ──▶ each message: receive ──commit──▶ execute ──▶ 200
//! ```
//!
//! A webhook has no API key: the vendor signs it with the account's own secret. The server acknowledges a message that was
//! delivered before and does not execute it again. 200 says that the vendor need not do anything more; any other status asks the
//! vendor to deliver again, which is harmless.

mod capacity;
mod messages;

use axum::{
    Json,
    body::Bytes,
    extract::{FromRequest, OriginalUri, Path, Request, State},
    http::{HeaderMap, StatusCode, Uri, header},
    response::{IntoResponse, Response},
};
use jiff::Timestamp;
use postrider_engine::Executing;
use postrider_model::{
    channels::DeliveryReport,
    seal::{MasterKey, Place},
};
use postrider_providers::{Account, Adapters, CallbackRefused, InboundWebhook, Received};
use postrider_store::{
    campaigns::callbacks::{self, CallbackAccount},
    channels::messages::Receiving,
    postgres::pool,
};
use tokio_util::task::TaskTracker;

use self::{
    capacity::Capacity,
    messages::{Delivery, ReceivedMessages},
};
use crate::{
    App,
    campaigns::callbacks::place,
    common::{body::BODY_BYTES_MAX, error::ApiError},
};

/// Most executions for one webhook at a time.
const EXECUTIONS_PER_WEBHOOK_MAX: usize = 8;
/// `Retry-After` of a webhook that exceeds the capacity, in seconds.
const RETRY_AFTER: u64 = 5;

/// Receives messages.
#[derive(Clone)]
pub struct Ingress {
    adapters: Adapters,
    master_key: MasterKey,
    executing: Executing,
    receiving: Receiving,
    /// Capacity for executions.
    capacity: Capacity,
    /// Tracks executions, which go on when the vendor disconnects.
    under_way: TaskTracker,
}

impl Ingress {
    /// `master_key` opens the secrets that the vendors sign with.
    #[must_use]
    pub fn new(
        adapters: Adapters,
        master_key: MasterKey,
        executing: Executing,
        receiving: Receiving,
    ) -> Self {
        let (capacity, under_way) = (Capacity::default(), TaskTracker::new());
        Self { adapters, master_key, executing, receiving, capacity, under_way }
    }

    /// Waits for the executions that are under way. There are no new ones once the process drains.
    pub(crate) async fn drain(&self) {
        self.under_way.close();
        self.under_way.wait().await;
    }
}

/// One answer for everything that does not exist, an account of another tenant included. A caller that knows the ids of an account
/// and its tenant may learn that the account exists: a wrong signature is reported as such, so that an operator can set a vendor up.
const UNKNOWN: ApiError = ApiError::NotFound("webhook address");

/// Receives a webhook of a chat vendor: people's messages, and delivery reports about replies. The request has no API key; the
/// vendor's signature authenticates it.
#[utoipa::path(
    post,
    path = "/tenants/{tenant}/channels/{provider}/{account}/webhook",
    operation_id = "receive_channel_webhook",
    tag = "channels",
    security(()),
    params(
        ("tenant" = String, Path, description = "The tenant's id"),
        ("provider" = String, Path, description = "The vendor, such as `slack`"),
        ("account" = String, Path, description = "The account's id"),
    ),
    request_body(content = String, description = "The webhook as the vendor sends it", content_type = "application/octet-stream"),
    responses(
        (status = 200, description = "The webhook was verified and processed, or the vendor's question is answered",
         content((ReceivedMessages = "application/json"), (String = "text/plain"))),
        (status = 400, description = "The webhook cannot be read"),
        (status = 403, description = "The webhook's signature is not valid"),
        (status = 404, description = "The webhook address does not exist"),
        (status = 413, description = "The webhook is too large"),
        (status = 415, description = "The webhook is compressed"),
        (status = 422, description = "The webhook can be read, and a message in it cannot be stored"),
        (status = 500, description = "A message was not executed, or its reply not put into the outbox; deliver it again"),
        (status = 503, description = "The capacity is used up, nothing executes the account's messages, the database does not answer, or the process has no master key; deliver it again later"),
        (status = 504, description = "The request timed out; the executions go on, and the webhook may be delivered again"),
    ),
)]
pub(crate) async fn receive(
    State(app): State<App>,
    Path((tenant, provider, account)): Path<(String, String, String)>,
    OriginalUri(uri): OriginalUri,
    request: Request,
) -> Result<Response, ApiError> {
    let ingress = ready(&app)?;
    refuse_encoded(request.headers())?;
    let (place, account) = known(&app, ingress, [&tenant, &provider, &account]).await?;
    let headers = request.headers().clone();
    let body = Bytes::from_request(request, &app).await.map_err(|rejection| match rejection.status() {
        StatusCode::PAYLOAD_TOO_LARGE => ApiError::TooLarge(BODY_BYTES_MAX),
        _ => ApiError::BadRequest("the body ended before it was complete".to_owned()),
    })?;
    match read(ingress, place, &account, false, &uri, &headers, &body)? {
        Received::Challenge(answer) => Ok(answer.into_response()),
        Received::Answer(answer) => Ok(Json(answer).into_response()),
        Received::Happened { messages, reports } => {
            record(&app, place, &account, &reports).await?;
            let Place { tenant, account } = place;
            let delivery = Delivery { pool: app.pool.clone(), tenant, account, provider };
            Ok(Json(ingress.execute(delivery, messages).await?).into_response())
        }
    }
}

/// Answers a chat vendor's check of the webhook address.
#[utoipa::path(
    get,
    path = "/tenants/{tenant}/channels/{provider}/{account}/webhook",
    operation_id = "verify_channel_webhook",
    tag = "channels",
    security(()),
    params(
        ("tenant" = String, Path, description = "The tenant's id"),
        ("provider" = String, Path, description = "The vendor, such as `whatsapp`"),
        ("account" = String, Path, description = "The account's id"),
    ),
    responses(
        (status = 200, description = "The answer to the vendor's check", body = String, content_type = "text/plain"),
        (status = 400, description = "The check cannot be read"),
        (status = 403, description = "The vendor does not know the account's secret"),
        (status = 404, description = "The webhook address does not exist, or the vendor has no such check"),
        (status = 503, description = "The database does not answer, or the process has no master key; try again later"),
        (status = 504, description = "The request timed out"),
    ),
)]
pub(crate) async fn verify(
    State(app): State<App>,
    Path((tenant, provider, account)): Path<(String, String, String)>,
    OriginalUri(uri): OriginalUri,
    headers: HeaderMap,
) -> Result<String, ApiError> {
    let ingress = ready(&app)?;
    let (place, account) = known(&app, ingress, [&tenant, &provider, &account]).await?;
    match read(ingress, place, &account, true, &uri, &headers, &[])? {
        Received::Challenge(answer) => Ok(answer),
        Received::Answer(_) | Received::Happened { .. } => Err(UNKNOWN),
    }
}

/// Refuses webhooks once the process drains.
fn ready(app: &App) -> Result<&Ingress, ApiError> {
    let not_ready = |why: &str| ApiError::NotReady(why.to_owned());
    if app.draining.is_cancelled() {
        return Err(not_ready("the process is shutting down; deliver it again"));
    }
    app.ingress
        .as_ref()
        .ok_or_else(|| not_ready("this process has no master key, so it cannot verify webhooks"))
}

/// A signature is over the bytes as they came, and a small body must not unpack into a large one.
fn refuse_encoded(headers: &HeaderMap) -> Result<(), ApiError> {
    if headers.get_all(header::CONTENT_ENCODING).iter().all(|encoding| encoding == "identity") {
        return Ok(());
    }
    Err(ApiError::UnsupportedMediaType("send the body as it is, without a `Content-Encoding`".to_owned()))
}

/// The account of an address: its tenant, its provider and its id.
async fn known(
    app: &App,
    ingress: &Ingress,
    [tenant, provider, account]: [&str; 3],
) -> Result<(Place, CallbackAccount), ApiError> {
    let place = place(tenant, account).ok_or(UNKNOWN)?;
    let mut transaction = pool::begin_as(&app.pool, place.tenant).await?;
    let account = callbacks::account(&mut transaction, &ingress.master_key, place).await?;
    pool::commit(transaction).await?;
    let account = account.filter(|account| account.provider == provider).ok_or(UNKNOWN)?;
    Ok((place, account))
}

/// Verifies a webhook, and reads it.
fn read(
    ingress: &Ingress,
    place: Place,
    account: &CallbackAccount,
    is_get: bool,
    uri: &Uri,
    headers: &HeaderMap,
    body: &[u8],
) -> Result<Received, ApiError> {
    let adapter = ingress.adapters.get(&account.provider).ok_or(UNKNOWN)?;
    // A header that is not text counts, too: two headers of one name are a forgery.
    let headers: Vec<(String, String)> = headers
        .iter()
        .map(|(name, value)| {
            (name.as_str().to_owned(), String::from_utf8_lossy(value.as_bytes()).into_owned())
        })
        .collect();
    let query = uri.query().unwrap_or_default();
    let webhook = InboundWebhook { is_get, query, headers: &headers, body, now: Timestamp::now() };
    let opened = Account { id: place.account, settings: &account.settings, secret: &account.secret };
    adapter.receive(&opened, &webhook).map_err(|refused| match refused {
        CallbackRefused::NotTaken => UNKNOWN,
        CallbackRefused::Forged(why) => {
            tracing::warn!(account.id = %place.account, provider = account.provider, "a webhook was refused: {why}");
            ApiError::Forbidden(why)
        }
        CallbackRefused::Malformed(why) => ApiError::BadRequest(why),
    })
}

/// Records the vendor's delivery reports about replies.
async fn record(
    app: &App,
    place: Place,
    account: &CallbackAccount,
    reports: &[DeliveryReport],
) -> Result<(), ApiError> {
    if reports.is_empty() {
        return Ok(());
    }
    let mut transaction = pool::begin_as(&app.pool, place.tenant).await?;
    for report in reports {
        let Place { tenant, account: id } = place;
        let known =
            postrider_store::channels::messages::record_delivery(&mut transaction, tenant, id, report)
                .await?;
        tracing::debug!(account.id = %id, provider = account.provider, known, status = report.status, "a delivery was reported");
    }
    pool::commit(transaction).await?;
    Ok(())
}
