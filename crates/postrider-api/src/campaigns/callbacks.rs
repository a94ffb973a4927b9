//! Callbacks: reports that providers send about their calls.
//!
//! A callback has no API key: the provider signs it with the account's own secret. Evidence that the provider acted settles an
//! item in doubt, and its words become the delivery status of the item.
//!
//! A provider may send thousands of callbacks at once. So many of them use the database at a time that other requests get connections,
//! too; the others wait, each in its connection, whose number is bounded.

use std::{sync::Arc, time::Duration};

use axum::{
    body::Bytes,
    extract::{OriginalUri, Path, State},
    http::{HeaderMap, StatusCode, Uri},
};
use jiff::Timestamp;
use postrider_model::{
    ids::{ProviderAccountId, TenantId},
    seal::{MasterKey, Place},
};
use postrider_providers::{Account, Adapters, Callback, CallbackRefused, Echo};
use postrider_store::{
    campaigns::{
        callbacks::{self, CallbackAccount, NewCallback, Recorded, Verdict},
        send_jobs,
    },
    postgres::pool,
};
use tokio::sync::Semaphore;
use uuid::Uuid;

use crate::{App, common::error::ApiError};

/// Adapters and master key, which verify callbacks.
#[derive(Clone)]
pub struct CallbackKeys {
    /// The adapters of the vendors.
    pub adapters: Adapters,
    /// Opens the secrets that the vendors sign with.
    pub master_key: MasterKey,
    /// Limits the callbacks that use the database.
    at_a_time: Arc<Semaphore>,
}

impl CallbackKeys {
    /// Callbacks use at most half of so many database connections.
    #[must_use]
    pub fn new(adapters: Adapters, master_key: MasterKey, connections_max: u32) -> Self {
        let at_a_time = usize::try_from(connections_max / 2).unwrap_or(1).max(1);
        Self { adapters, master_key, at_a_time: Arc::new(Semaphore::new(at_a_time)) }
    }
}

/// Maximum size of a callback, far above what any provider sends.
const BODY_BYTES_MAX: usize = 64 * 1024;

/// How long a callback waits for its turn at the database. Providers send it again later.
const WAIT_MAX: Duration = Duration::from_secs(20);
/// `Retry-After` of a callback that waited in vain, in seconds.
const RETRY_AFTER: u64 = 10;

/// One answer for everything that does not exist, an account of another tenant included. A caller that knows the ids of an account
/// and its tenant may learn that the account exists: a wrong signature is reported as such, so that an operator can set a provider up.
const UNKNOWN: ApiError = ApiError::NotFound("callback address");

/// Reads the tenant and the account of an address. The nil tenant is the server itself and has no accounts.
pub(crate) fn place(tenant: &str, account: &str) -> Option<Place> {
    let tenant = tenant.parse::<Uuid>().ok().filter(|tenant| !tenant.is_nil()).map(TenantId)?;
    let account = account.parse::<Uuid>().ok().map(ProviderAccountId)?;
    Some(Place { tenant, account })
}

/// Receives a provider's report about a call. The request has no API key; the provider's signature authenticates it.
#[utoipa::path(
    post,
    path = "/tenants/{tenant}/providers/{provider}/{account}/callback/{key}",
    operation_id = "receive_callback",
    tag = "callbacks",
    security(()),
    params(
        ("tenant" = String, Path, description = "The tenant's id"),
        ("provider" = String, Path, description = "The provider, such as `twilio`"),
        ("account" = String, Path, description = "The account's id"),
        ("key" = String, Path, description = "The idempotency key of the call"),
    ),
    request_body(content = String, description = "The report as the provider sends it", content_type = "application/octet-stream"),
    responses(
        (status = 204, description = "The report was verified and recorded"),
        (status = 400, description = "The report cannot be read"),
        (status = 403, description = "The report's signature is not valid"),
        (status = 404, description = "The callback address does not exist"),
        (status = 413, description = "The report is too large"),
        (status = 503, description = "Too many reports arrive at once, the database does not answer, or the process has no master key; try again later"),
        (status = 504, description = "The request timed out"),
    ),
)]
pub(crate) async fn receive(
    State(app): State<App>,
    OriginalUri(uri): OriginalUri,
    Path((tenant, provider, account, key)): Path<(String, String, String, String)>,
    headers: HeaderMap,
    body: Bytes,
) -> Result<StatusCode, ApiError> {
    // No key has a NUL character, and the database would refuse the statement.
    if key.contains('\0') {
        return Err(UNKNOWN);
    }
    let request = Received { uri: &uri, key: Some(&key), headers: &headers, body: &body };
    take(&app, [&tenant, &provider, &account], &request).await
}

/// Receives the reports of a provider that has one address for all items of an account. The request has no API key; the provider's
/// signature authenticates it. A verified report about a message that this installation did not send is ignored.
#[utoipa::path(
    post,
    path = "/tenants/{tenant}/providers/{provider}/{account}/callback",
    operation_id = "receive_account_callback",
    tag = "callbacks",
    security(()),
    params(
        ("tenant" = String, Path, description = "The tenant's id"),
        ("provider" = String, Path, description = "The provider, such as `resend`"),
        ("account" = String, Path, description = "The account's id"),
    ),
    request_body(content = String, description = "The report as the provider sends it", content_type = "application/octet-stream"),
    responses(
        (status = 204, description = "The report was verified and recorded, or is about no item of the account"),
        (status = 400, description = "The report cannot be read"),
        (status = 403, description = "The report's signature is not valid"),
        (status = 404, description = "The callback address does not exist"),
        (status = 413, description = "The report is too large"),
        (status = 503, description = "Too many reports arrive at once, the database does not answer, or the process has no master key; try again later"),
        (status = 504, description = "The request timed out"),
    ),
)]
pub(crate) async fn receive_for_account(
    State(app): State<App>,
    OriginalUri(uri): OriginalUri,
    Path((tenant, provider, account)): Path<(String, String, String)>,
    headers: HeaderMap,
    body: Bytes,
) -> Result<StatusCode, ApiError> {
    let request = Received { uri: &uri, key: None, headers: &headers, body: &body };
    take(&app, [&tenant, &provider, &account], &request).await
}

/// A callback as it arrived.
struct Received<'a> {
    uri: &'a Uri,
    /// The key in the path. An address without one is that of an account.
    key: Option<&'a str>,
    headers: &'a HeaderMap,
    body: &'a [u8],
}

/// Verifies a callback and records it.
async fn take(
    app: &App,
    [tenant, provider, account]: [&str; 3],
    request: &Received<'_>,
) -> Result<StatusCode, ApiError> {
    let keys = app.callbacks.as_ref().ok_or_else(|| {
        ApiError::NotReady("this process has no master key, so it cannot verify callbacks".to_owned())
    })?;
    let place = place(tenant, account).ok_or(UNKNOWN)?;
    if request.body.len() > BODY_BYTES_MAX {
        return Err(ApiError::TooLarge(BODY_BYTES_MAX));
    }
    let _permit = match tokio::time::timeout(WAIT_MAX, keys.at_a_time.acquire()).await {
        Ok(permit) => permit.map_err(|error| ApiError::Internal(error.to_string()))?,
        Err(_) => {
            let detail = "the server processes too many callbacks";
            return Err(ApiError::NoRoom { detail, is_full: true, retry_after: RETRY_AFTER });
        }
    };
    let mut transaction = pool::begin_as(&app.pool, place.tenant).await?;
    let versions = callbacks::account(&mut transaction, &keys.master_key, place).await?;
    let account = versions.first().filter(|account| account.provider == provider).ok_or(UNKNOWN)?;
    let Some(echo) = read(keys, place, &versions, request)? else {
        return Ok(StatusCode::NO_CONTENT);
    };
    let new = NewCallback {
        account: place.account,
        key: &echo.key,
        message_id: &echo.message_id,
        status: &echo.status,
        proves_action: echo.proves_action,
        delivery: echo.delivery.as_ref(),
    };
    let recorded = callbacks::record(&mut transaction, place.tenant, &new).await?;
    pool::commit(transaction).await?;
    report(app, place, &account.provider, &echo, recorded).await?;
    match (recorded.verdict, request.key) {
        // A report about an item that retention deleted, or about a message of another installation that shares the provider's account.
        (Verdict::Unknown, None) => Ok(StatusCode::NO_CONTENT),
        (Verdict::Unknown, Some(_)) => Err(UNKNOWN),
        _ => Ok(StatusCode::NO_CONTENT),
    }
}

/// Verifies the signature of a callback and reads it. The signature tells which version of the account was called.
fn read(
    keys: &CallbackKeys,
    place: Place,
    versions: &[CallbackAccount],
    request: &Received<'_>,
) -> Result<Option<Echo>, ApiError> {
    let account = versions.first().ok_or(UNKNOWN)?;
    let adapter = keys.adapters.get(&account.provider).ok_or(UNKNOWN)?;
    let headers: Vec<(String, String)> = request
        .headers
        .iter()
        .map(|(name, value)| {
            (name.as_str().to_owned(), String::from_utf8_lossy(value.as_bytes()).into_owned())
        })
        .collect();
    let path_and_query = request.uri.path_and_query().map_or("/", axum::http::uri::PathAndQuery::as_str);
    let Received { key, body, .. } = *request;
    let callback = Callback { path_and_query, key, headers: &headers, body, now: Timestamp::now() };
    let read_as = |account: &CallbackAccount| {
        let opened = Account { id: place.account, settings: &account.settings, secret: &account.secret };
        adapter.read_callback(&opened, &callback)
    };
    let mut echo = read_as(account);
    for earlier in versions.iter().skip(1) {
        if !matches!(echo, Err(CallbackRefused::Forged(_))) {
            break;
        }
        if let Ok(verified) = read_as(earlier) {
            echo = Ok(verified);
        }
    }
    echo.map_err(|refused| match refused {
        CallbackRefused::NotTaken => UNKNOWN,
        CallbackRefused::Forged(why) => {
            tracing::warn!(account.id = %place.account, provider = account.provider, "a callback was refused: {why}");
            metrics::counter!("postrider_callbacks_refused_total", "provider" => account.provider.clone())
                .increment(1);
            ApiError::Forbidden(why)
        }
        CallbackRefused::Malformed(why) => ApiError::BadRequest(why),
    })
}

/// Logs and counts a recorded callback, and wakes the workers if it settled an item.
async fn report(
    app: &App,
    place: Place,
    provider: &str,
    echo: &Echo,
    recorded: Recorded,
) -> Result<(), ApiError> {
    let id = place.account;
    match recorded.verdict {
        Verdict::Unknown => {
            tracing::debug!(account.id = %id, provider, "a callback is about no item of its account");
            return Ok(());
        }
        Verdict::Settled => {
            // The send job may be able to end now. If the hint fails, the poll finds the send job.
            let mut transaction = pool::begin(&app.pool).await?;
            send_jobs::hint(&mut transaction).await?;
            pool::commit(transaction).await?;
            tracing::info!(account.id = %id, provider, "a callback settled an item in doubt");
        }
        Verdict::Contradicted => {
            tracing::warn!(account.id = %id, provider, message_id = echo.message_id, "the provider acted, although the item was resolved as failed");
        }
        Verdict::Recorded => {}
    }
    let provider = provider.to_owned();
    metrics::counter!("postrider_callbacks_total", "provider" => provider.clone()).increment(1);
    if let Some(delivery) = echo.delivery.as_ref().filter(|_| recorded.is_delivery_new) {
        metrics::counter!("postrider_deliveries_total", "provider" => provider, "status" => delivery.status.as_str())
            .increment(1);
    }
    if recorded.is_suppressed {
        tracing::info!(account.id = %id, status = echo.status, "a callback suppressed a lead");
    }
    Ok(())
}
