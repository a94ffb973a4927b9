//! Links to unsubscribe: a page that asks, and the POST that it or the mail program sends (RFC 8058).
//!
//! A link has no API key; its token is signed. `GET` changes nothing, because mail servers and virus scanners follow the links of mails.

use axum::{
    body::Bytes,
    extract::{Path, State},
    http::{HeaderMap, HeaderValue, header},
    response::{Html, IntoResponse, Response},
};
use postrider_model::{
    Channel,
    campaigns::unsubscribe::{PublicUrl, UnsubscribeScope},
    ids::TenantId,
};
use postrider_store::{
    PgConnection, StoreError,
    campaigns::{item::Whole, unsubscribing},
    postgres::pool,
};
use uuid::Uuid;

use crate::{
    App,
    common::{error::ApiError, requests::Reading},
};

/// The public address of the installation, and the effect of one click.
#[derive(Debug, Clone)]
pub struct Unsubscribing {
    /// The address that links begin with. Without it, mails have no links.
    pub public_url: Option<PublicUrl>,
    /// The campaigns that a person unsubscribes from with one click in the mail program.
    pub one_click: UnsubscribeScope,
}

impl Unsubscribing {
    /// The link in the message of an item.
    pub(crate) async fn link(
        &self,
        connection: &mut PgConnection,
        tenant: TenantId,
        whole: &Whole,
    ) -> Result<Option<String>, StoreError> {
        let (Some(base), Some(lead), Channel::Email) = (&self.public_url, &whole.lead, whole.channel) else {
            return Ok(None);
        };
        let tokens = unsubscribing::tokens(connection, tenant, whole.run.id, &[lead.id.0]).await?;
        Ok(tokens.get(&lead.id.0).map(|token| base.unsubscribe(tenant, token)))
    }
}

/// One answer for everything that does not exist, and for a signature that is not valid.
const UNKNOWN: ApiError = ApiError::NotFound("link to unsubscribe");

/// Maximum size of a request, far above what a form or a mail program sends.
const BODY_BYTES_MAX: usize = 4 * 1024;

/// The pages load nothing and run nothing; the form goes to where it came from.
const CONTENT_SECURITY_POLICY: &str =
    "default-src 'none'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'";

/// Shows the page that asks whether to unsubscribe. It changes nothing.
#[utoipa::path(
    get,
    path = "/tenants/{tenant}/unsubscribe/{token}",
    operation_id = "show_unsubscribe_page",
    tag = "callbacks",
    security(()),
    params(
        ("tenant" = String, Path, description = "The tenant's id"),
        ("token" = String, Path, description = "The signed token of the link"),
    ),
    responses(
        (status = 200, description = "The page", body = String, content_type = "text/html"),
        (status = 400, description = "The link cannot be read"),
        (status = 404, description = "The link does not exist, or its signature is not valid"),
        (status = 503, description = "The database does not answer; try again later"),
        (status = 504, description = "The request timed out"),
    ),
)]
pub(crate) async fn show(
    State(app): State<App>,
    Path((tenant, token)): Path<(String, String)>,
) -> Result<Response, ApiError> {
    let tenant = known(&tenant, &token)?;
    let mut reading = Reading::begin(&app, tenant).await?;
    let has_list = unsubscribing::verify(reading.connection(), tenant, &token).await?.ok_or(UNKNOWN)?;
    reading.end().await?;
    let all = button("workspace", "Unsubscribe from all messages");
    let list =
        if has_list { button("list", "Unsubscribe from messages of this kind") } else { String::new() };
    let form = format!(r#"<form method="post">{list}{all}</form>"#);
    Ok(page("Unsubscribe", &format!("<p>Do you want to get no more messages?</p>{form}")))
}

/// Unsubscribes the recipient of the message that has this link. Repeating the request changes nothing.
#[utoipa::path(
    post,
    path = "/tenants/{tenant}/unsubscribe/{token}",
    operation_id = "unsubscribe",
    tag = "callbacks",
    security(()),
    params(
        ("tenant" = String, Path, description = "The tenant's id"),
        ("token" = String, Path, description = "The signed token of the link"),
    ),
    request_body(
        content = String,
        description = "`List-Unsubscribe=One-Click` of a mail program, or `scope=workspace` or `scope=list` of the page",
        content_type = "application/x-www-form-urlencoded",
    ),
    responses(
        (status = 200, description = "The recipient is unsubscribed", body = String, content_type = "text/html"),
        (status = 400, description = "The body has neither `List-Unsubscribe=One-Click` nor a scope"),
        (status = 404, description = "The link does not exist, or its signature is not valid"),
        (status = 413, description = "The body is too large"),
        (status = 503, description = "The database does not answer; try again later"),
        (status = 504, description = "The request timed out"),
    ),
)]
pub(crate) async fn unsubscribe(
    State(app): State<App>,
    Path((tenant, token)): Path<(String, String)>,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Response, ApiError> {
    let tenant = known(&tenant, &token)?;
    if body.len() > BODY_BYTES_MAX {
        return Err(ApiError::TooLarge(BODY_BYTES_MAX));
    }
    let scope = match asked(&headers, &body) {
        Some(Asked::OneClick) => app.unsubscribing.one_click,
        Some(Asked::Scope(scope)) => scope,
        None => {
            let problem =
                "the body has neither `List-Unsubscribe=One-Click` nor `scope=workspace` or `scope=list`";
            return Err(ApiError::BadRequest(problem.to_owned()));
        }
    };
    let mut transaction = pool::begin_as(&app.pool, tenant).await?;
    let done = unsubscribing::unsubscribe(&mut transaction, tenant, &token, scope).await?;
    pool::commit(transaction).await?;
    let scope = done.ok_or(UNKNOWN)?;
    metrics::counter!("postrider_unsubscribed_total", "scope" => scope.as_str()).increment(1);
    let words = match scope {
        UnsubscribeScope::Workspace => "You get no more messages.",
        UnsubscribeScope::List => "You get no more messages of this kind.",
    };
    Ok(page("Unsubscribed", &format!("<p>{words}</p>")))
}

/// The tenant of a link. The nil tenant is the server itself and sends nothing.
fn known(tenant: &str, token: &str) -> Result<TenantId, ApiError> {
    let is_token = token.len() == 64
        && token.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'));
    let tenant = tenant.parse::<Uuid>().ok().filter(|tenant| is_token && !tenant.is_nil());
    tenant.map(TenantId).ok_or(UNKNOWN)
}

/// The content of a request.
#[derive(Debug, PartialEq, Eq)]
enum Asked {
    OneClick,
    Scope(UnsubscribeScope),
}

/// Reads a form. Mail programs may send it as `multipart/form-data`, too (RFC 8058).
fn asked(headers: &HeaderMap, body: &[u8]) -> Option<Asked> {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let text = std::str::from_utf8(body).ok()?;
    if kind.trim_start().to_ascii_lowercase().starts_with("multipart/form-data") {
        let mut lines = text.lines().map(str::trim);
        lines.by_ref().find(|line| line.to_ascii_lowercase().contains("name=\"list-unsubscribe\""))?;
        return lines.any(|line| line.eq_ignore_ascii_case("One-Click")).then_some(Asked::OneClick);
    }
    let field = |wanted: &str| {
        let mut fields = text.trim().split('&').filter_map(|field| field.split_once('='));
        fields.find(|(name, _)| name.eq_ignore_ascii_case(wanted)).map(|(_, value)| value)
    };
    if field("List-Unsubscribe").is_some_and(|value| value.eq_ignore_ascii_case("One-Click")) {
        return Some(Asked::OneClick);
    }
    field("scope")?.parse().ok().map(Asked::Scope)
}

fn button(scope: &str, words: &str) -> String {
    format!(r#"<p><button name="scope" value="{scope}">{words}</button></p>"#)
}

/// A page without style and script. Nothing of a request or the database is written into it.
fn page(title: &str, content: &str) -> Response {
    let html = format!(
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width\"><title>{title}</title></head>\
         <body><main><h1>{title}</h1>{content}</main></body></html>"
    );
    let headers = [
        (header::CONTENT_SECURITY_POLICY, CONTENT_SECURITY_POLICY),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::X_FRAME_OPTIONS, "DENY"),
    ];
    let mut response = (headers, Html(html)).into_response();
    response.headers_mut().insert("x-robots-tag", HeaderValue::from_static("noindex"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_form_says_what_it_asks_for() {
        let read = |kind: &'static str, body: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
            asked(&headers, body.as_bytes())
        };
        let form = "application/x-www-form-urlencoded";
        assert_eq!(read(form, "List-Unsubscribe=One-Click"), Some(Asked::OneClick));
        assert_eq!(read("text/plain", "list-unsubscribe=one-click\r\n"), Some(Asked::OneClick));
        assert_eq!(read(form, "scope=list"), Some(Asked::Scope(UnsubscribeScope::List)));
        assert_eq!(read(form, "a=b&scope=workspace"), Some(Asked::Scope(UnsubscribeScope::Workspace)));
        let parts =
            "--x\r\nContent-Disposition: form-data; name=\"List-Unsubscribe\"\r\n\r\nOne-Click\r\n--x--\r\n";
        assert_eq!(read("multipart/form-data; boundary=x", parts), Some(Asked::OneClick));
        for (kind, body) in [
            (form, ""),
            (form, "scope="),
            (form, "scope=all"),
            (form, "List-Unsubscribe=No"),
            (form, "One-Click"),
            ("multipart/form-data; boundary=x", "One-Click"),
            ("multipart/form-data; boundary=x", &parts.replace("One-Click", "No")),
        ] {
            assert_eq!(read(kind, body), None, "{kind}: {body}");
        }
    }
}
