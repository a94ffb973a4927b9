//! The cookie of a session, and the requests that may carry it.
//!
//! A browser adds a cookie to a request whichever page makes the request. So a request with a session cookie counts only when a page of
//! this server made it: the browser says so in `Sec-Fetch-Site`. A browser without that header names the page's origin in `Origin`,
//! which must be the host of the request. A browser sends neither with a GET over plain HTTP to a host other than this machine; such a
//! request changes nothing, and no other page can read its response, so it is let through.

use axum::http::{HeaderMap, HeaderValue, Method, header};
use jiff::Timestamp;
use postrider_model::tenancy::SessionToken;

use crate::common::error::{ApiError, ApiResult};

/// Name of the cookie where the dashboard was opened by https. Browsers accept the prefix only with `Secure` and `Path=/`, and without
/// a domain: no other host can set such a cookie.
const SECURE_NAME: &str = "__Host-postrider_session";
/// Name of the cookie over plain HTTP.
pub(crate) const NAME: &str = "postrider_session";

const SEC_FETCH_SITE: &str = "sec-fetch-site";

/// The text of the session cookie.
pub(crate) fn session(headers: &HeaderMap) -> ApiResult<Option<&str>> {
    let mut found = [None; 2];
    let pairs = headers
        .get_all(header::COOKIE)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(';'))
        .filter_map(|pair| pair.trim().split_once('='));
    for (name, value) in pairs {
        let Some(at) = [SECURE_NAME, NAME].iter().position(|known| *known == name) else { continue };
        if found[at].replace(value).is_some() {
            return Err(ApiError::NotAKey(
                "the request has more than one session cookie; delete the cookies of this host",
            ));
        }
    }
    // The first one cannot be set by another host.
    let [secure, plain] = found;
    Ok(secure.or(plain))
}

/// Whether a page of this server made the request, or a person typed its address.
pub(crate) fn is_same_origin(method: &Method, headers: &HeaderMap) -> bool {
    let reads = [Method::GET, Method::HEAD].contains(method);
    match (one(headers, SEC_FETCH_SITE), one(headers, header::ORIGIN.as_str())) {
        (Sent::Twice, _) | (_, Sent::Twice) => false,
        (Sent::Once(site), _) => site == "same-origin" || reads && site == "none",
        (Sent::Never, Sent::Once(origin)) => is_own(origin, headers),
        (Sent::Never, Sent::Never) => reads,
    }
}

/// Whether a request to sign in may be answered. A program that is no browser sends neither header.
pub(crate) fn may_sign_in(headers: &HeaderMap) -> bool {
    match (one(headers, SEC_FETCH_SITE), one(headers, header::ORIGIN.as_str())) {
        (Sent::Never, Sent::Never) => true,
        _ => is_same_origin(&Method::POST, headers),
    }
}

/// The refusal of a request that is not [`is_same_origin`].
pub(crate) fn foreign() -> ApiError {
    ApiError::Forbidden(
        "a request with a session must come from a page of this server, as `Sec-Fetch-Site` or `Origin` says; programs send an \
         API key instead. Behind a proxy, pass the `Host` header on"
            .to_owned(),
    )
}

enum Sent<'a> {
    Never,
    Once(&'a str),
    Twice,
}

fn one<'a>(headers: &'a HeaderMap, name: &str) -> Sent<'a> {
    let mut values = headers.get_all(name).iter();
    match (values.next(), values.next()) {
        (None, _) => Sent::Never,
        (Some(value), None) => Sent::Once(value.to_str().unwrap_or_default()),
        (Some(_), Some(_)) => Sent::Twice,
    }
}

/// Whether an origin is that of the host to which the request was sent.
fn is_own(origin: &str, headers: &HeaderMap) -> bool {
    let Sent::Once(host) = one(headers, header::HOST.as_str()) else { return false };
    let Some((scheme, authority)) = origin.split_once("://") else { return false };
    ["http", "https"].contains(&scheme) && authority.eq_ignore_ascii_case(host)
}

/// Whether the page that made the request was opened by https.
pub(crate) fn is_secure(headers: &HeaderMap) -> bool {
    matches!(one(headers, header::ORIGIN.as_str()), Sent::Once(origin) if origin.starts_with("https://"))
}

/// The header that sets the cookie.
pub(crate) fn set(token: &SessionToken, expires_at: Timestamp, is_secure: bool) -> ApiResult<HeaderValue> {
    let seconds = Timestamp::now()
        .until(expires_at)
        .map_or(0, |span| span.total(jiff::Unit::Second).unwrap_or(0.0) as i64);
    written(token.expose(), seconds, is_secure)
}

/// The headers that remove the cookie, under either name.
pub(crate) fn unset() -> ApiResult<[HeaderValue; 2]> {
    Ok([written("", 0, true)?, written("", 0, false)?])
}

fn written(value: &str, seconds: i64, is_secure: bool) -> ApiResult<HeaderValue> {
    let (name, secure) = if is_secure { (SECURE_NAME, "; Secure") } else { (NAME, "") };
    let cookie =
        format!("{name}={value}; Path=/; HttpOnly; SameSite=Strict; Max-Age={}{secure}", seconds.max(0));
    let mut header = HeaderValue::from_str(&cookie)
        .map_err(|error| ApiError::Internal(format!("a cookie cannot be written: {error}")))?;
    header.set_sensitive(true);
    Ok(header)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(*name, HeaderValue::from_static(value));
        }
        headers
    }

    #[test]
    fn a_request_counts_as_same_origin_by_what_its_browser_says() {
        let (get, post) = (Method::GET, Method::POST);
        for (sent, reads, writes) in [
            (&[("sec-fetch-site", "same-origin")][..], true, true),
            (&[("sec-fetch-site", "none")], true, false),
            (&[("sec-fetch-site", "same-site")], false, false),
            (&[("sec-fetch-site", "cross-site")], false, false),
            (&[("sec-fetch-site", "")], false, false),
            (&[("sec-fetch-site", "same-origin"), ("sec-fetch-site", "cross-site")], false, false),
            // The browser's own word counts before an origin, which a proxy that changes the host would make look foreign.
            (&[("sec-fetch-site", "cross-site"), ("origin", "http://desk:8080")], false, false),
            (&[("origin", "http://desk:8080")], true, true),
            (&[("origin", "https://DESK:8080")], true, true),
            (&[("origin", "http://desk")], false, false),
            (&[("origin", "http://desk:8080.evil.example")], false, false),
            (&[("origin", "http://evil.example")], false, false),
            (&[("origin", "desk:8080")], false, false),
            (&[("origin", "null")], false, false),
            (&[("origin", "http://desk:8080"), ("origin", "http://desk:8080")], false, false),
            (&[], true, false),
        ] {
            let mut all = headers(sent);
            all.insert(header::HOST, HeaderValue::from_static("desk:8080"));
            assert_eq!(
                (is_same_origin(&get, &all), is_same_origin(&post, &all)),
                (reads, writes),
                "{sent:?}"
            );
            assert_eq!(may_sign_in(&all), writes || sent.is_empty(), "{sent:?}");
        }
    }

    #[test]
    fn the_session_is_found_among_other_cookies() {
        let found = |value: &'static str| {
            session(&headers(&[("cookie", value)])).map(|found| found.map(str::to_owned))
        };
        assert_eq!(found("theme=dark").ok(), Some(None));
        assert_eq!(found("a=b; postrider_session=x; c=d").ok(), Some(Some("x".to_owned())));
        assert_eq!(found("postrider_session=x; __Host-postrider_session=y").ok(), Some(Some("y".to_owned())));
        assert!(found("postrider_session=x; postrider_session=y").is_err());
        assert!(
            session(&headers(&[("cookie", "postrider_session=x"), ("cookie", "postrider_session=y")]))
                .is_err()
        );
    }

    #[test]
    fn a_cookie_is_secure_if_and_only_if_its_page_is() {
        let token = SessionToken::generate(postrider_model::ids::TenantId::new()).unwrap();
        let in_an_hour = Timestamp::now() + jiff::SignedDuration::from_hours(1);
        let cookie = |is_secure| set(&token, in_an_hour, is_secure).unwrap().to_str().unwrap().to_owned();
        let (plain, secure) = (cookie(false), cookie(true));
        assert!(plain.starts_with(&format!(
            "postrider_session={}; Path=/; HttpOnly; SameSite=Strict; Max-Age=3",
            token.expose()
        )));
        assert!(!plain.contains("Secure") && secure.ends_with("; Secure"));
        assert!(secure.starts_with("__Host-postrider_session=prs_") && !secure.contains("Domain"));
    }
}
