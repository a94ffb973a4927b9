//! Callbacks: reports that providers send about their calls.
//!
//! A callback has no API key: the provider signs it with the account's own secret. Evidence that the provider acted settles an
//! item in doubt.

use axum::{
    body::Bytes,
    extract::{OriginalUri, Path, State},
    http::{HeaderMap, StatusCode},
};
use postrider_model::{
    ids::{ProviderAccountId, TenantId},
    seal::{MasterKey, Place},
};
use postrider_providers::{Account, Adapters, Callback, CallbackRefused};
use postrider_store::{
    campaigns::{
        callbacks::{self, CallbackAccount, NewCallback, Recorded},
        send_jobs,
    },
    postgres::pool,
};
use uuid::Uuid;

use crate::{App, common::error::ApiError};

/// Adapters and master key, which verify callbacks.
#[derive(Clone)]
pub struct CallbackKeys {
    /// The adapters of the vendors.
    pub adapters: Adapters,
    /// Opens the secrets that the vendors sign with.
    pub master_key: MasterKey,
}

/// Maximum size of a callback, far above what any provider sends.
const BODY_BYTES_MAX: usize = 64 * 1024;

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
        (status = 503, description = "The database does not answer, or the process has no master key; try again later"),
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
    // One answer for everything that does not exist, an account of another tenant included. A caller that knows the ids of an account
    // and its tenant may learn that the account exists: a wrong signature is reported as such, so that an operator can set a provider up.
    const UNKNOWN: ApiError = ApiError::NotFound("callback address");
    let keys = app.callbacks.as_ref().ok_or_else(|| {
        ApiError::NotReady("this process has no master key, so it cannot verify callbacks".to_owned())
    })?;
    let place = place(&tenant, &account).ok_or(UNKNOWN)?;
    let id = place.account;
    // No key has a NUL character, and the database would refuse the statement.
    if key.contains('\0') {
        return Err(UNKNOWN);
    }
    if body.len() > BODY_BYTES_MAX {
        return Err(ApiError::TooLarge(BODY_BYTES_MAX));
    }
    let mut transaction = pool::begin_as(&app.pool, place.tenant).await?;
    let versions = callbacks::account(&mut transaction, &keys.master_key, place).await?;
    pool::commit(transaction).await?;
    let account = versions.first().filter(|account| account.provider == provider).ok_or(UNKNOWN)?;
    let adapter = keys.adapters.get(&account.provider).ok_or(UNKNOWN)?;

    let headers: Vec<(String, String)> = headers
        .iter()
        .filter_map(|(name, value)| Some((name.as_str().to_owned(), value.to_str().ok()?.to_owned())))
        .collect();
    let path_and_query = uri.path_and_query().map_or("/", axum::http::uri::PathAndQuery::as_str);
    let callback = Callback { path_and_query, key: &key, headers: &headers, body: &body };
    let read = |account: &CallbackAccount| {
        let opened = Account { id, settings: &account.settings, secret: &account.secret };
        adapter.read_callback(&opened, &callback)
    };
    // The signature tells which version of the account was called.
    let mut echo = read(account);
    for earlier in versions.iter().skip(1) {
        if !matches!(echo, Err(CallbackRefused::Forged(_))) {
            break;
        }
        if let Ok(verified) = read(earlier) {
            echo = Ok(verified);
        }
    }
    let echo = echo.map_err(|refused| match refused {
        CallbackRefused::NotTaken => UNKNOWN,
        CallbackRefused::Forged(why) => {
            tracing::warn!(account.id = %id, provider, "a callback was refused: {why}");
            ApiError::Forbidden(why)
        }
        CallbackRefused::Malformed(why) => ApiError::BadRequest(why),
    })?;

    let mut transaction = pool::begin_as(&app.pool, place.tenant).await?;
    let new = NewCallback {
        account: id,
        key: &key,
        message_id: &echo.message_id,
        status: &echo.status,
        proves_action: echo.proves_action,
    };
    let recorded = callbacks::record(&mut transaction, place.tenant, &new).await?;
    pool::commit(transaction).await?;
    match recorded {
        Recorded::Unknown => return Err(UNKNOWN),
        Recorded::Settled => {
            // The send job may be able to end now. If the hint fails, the poll finds the send job.
            let mut transaction = pool::begin(&app.pool).await?;
            send_jobs::hint(&mut transaction).await?;
            pool::commit(transaction).await?;
            tracing::info!(account.id = %id, provider, "a callback settled an item in doubt");
        }
        Recorded::Contradicted => {
            tracing::warn!(account.id = %id, provider, message_id = echo.message_id, "the provider acted, although the item was resolved as failed");
        }
        Recorded::Recorded => {}
    }
    metrics::counter!("postrider_callbacks_total", "provider" => provider).increment(1);
    Ok(StatusCode::NO_CONTENT)
}
