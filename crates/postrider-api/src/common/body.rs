//! Extractors for bodies, queries and paths. They refuse input that cannot be read and name the field, so that handlers and the
//! database see only valid input.

use std::{fmt, marker::PhantomData, str};

use axum::{
    body::Bytes,
    extract::{FromRequest, FromRequestParts, RawPathParams, Request},
    http::{HeaderMap, Method, header, request::Parts},
};
use postrider_model::{
    ids::{
        ApiKeyId, AssetId, CampaignId, ChannelMessageId, DecisionCardId, EventId, ExecutorId, JobRunId,
        LeadId, LinkId, OutboxId, ProviderAccountId, RunId, ScheduleId, SessionId, SingleMessageId,
        SyncErrorId,
    },
    seal::MasterKey,
};
use serde::{
    Deserialize, Deserializer,
    de::{DeserializeOwned, MapAccess, Visitor, value::MapAccessDeserializer},
};
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::{App, common::error::ApiError};

/// Most bytes of an ordinary body.
pub(crate) const BODY_BYTES_MAX: usize = 1024 * 1024;
/// Deepest nesting of a body.
const DEPTH_MAX: usize = 64;
/// Largest exponent of a number, either way: more than a double or a column takes.
const EXPONENT_MAX: u32 = 400;

/// A JSON body, and the fingerprint of the request it came with.
pub(crate) struct Body<T> {
    pub(crate) value: T,
    pub(crate) fingerprint: Fingerprint,
}

/// A JSON body that may be left out.
pub(crate) struct MaybeBody<T> {
    pub(crate) value: Option<T>,
    pub(crate) fingerprint: Fingerprint,
}

impl<T: DeserializeOwned> FromRequest<App> for Body<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, app: &App) -> Result<Self, ApiError> {
        let (bytes, fingerprint, headers) = read(request, app).await?;
        must_be_json(&headers)?;
        let Object(value) = parse(&bytes)?;
        Ok(Self { value, fingerprint })
    }
}

impl<T: DeserializeOwned> FromRequest<App> for MaybeBody<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, app: &App) -> Result<Self, ApiError> {
        let (bytes, fingerprint, headers) = read(request, app).await?;
        if bytes.is_empty() {
            return Ok(Self { value: None, fingerprint });
        }
        must_be_json(&headers)?;
        let Object(value) = parse(&bytes)?;
        Ok(Self { value: Some(value), fingerprint })
    }
}

/// A value that must be a JSON object. Serde alone also accepts an array of a struct's values, in the order of its fields, which is
/// not part of the API contract.
#[derive(Debug)]
pub(crate) struct Object<T>(pub(crate) T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Fields<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for Fields<T> {
            type Value = T;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a JSON object")
            }

            fn visit_map<A: MapAccess<'de>>(self, fields: A) -> Result<T, A::Error> {
                T::deserialize(MapAccessDeserializer::new(fields))
            }
        }

        deserializer.deserialize_map(Fields(PhantomData)).map(Self)
    }
}

/// Identifies a request: a hash of method, path, query and body. With the key under which the caller may repeat the request, if
/// there is one.
#[derive(Debug, Clone)]
pub(crate) struct Fingerprint {
    pub(crate) idempotency_key: Option<String>,
    pub(crate) hash: [u8; 32],
}

impl Fingerprint {
    fn new(method: &Method, uri: &str, headers: &HeaderMap, body: &[u8]) -> Result<Self, ApiError> {
        let mut hash = Sha256::new();
        for part in [method.as_str().as_bytes(), uri.as_bytes()] {
            hash.update(part.len().to_be_bytes());
            hash.update(part);
        }
        hash.update(body);
        Ok(Self { idempotency_key: idempotency_key(headers)?, hash: hash.finalize().into() })
    }
}

impl Fingerprint {
    /// Keys the hash, for a body with a secret that must not be guessed from the stored hash.
    pub(crate) fn keyed(self, key: &MasterKey) -> Self {
        Self { hash: key.keyed_hash(&self.hash), ..self }
    }
}

/// The fingerprint of a request whose body is not read here, or has none.
impl FromRequestParts<App> for Fingerprint {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &App) -> Result<Self, ApiError> {
        Self::new(&parts.method, &full_path(parts), &parts.headers, &[])
    }
}

/// `Idempotency-Key`, 1 to 255 printable characters.
fn idempotency_key(headers: &HeaderMap) -> Result<Option<String>, ApiError> {
    const NAME: &str = "idempotency-key";
    let mut values = headers.get_all(NAME).iter();
    let Some(value) = values.next() else { return Ok(None) };
    let text = value.to_str().unwrap_or_default();
    let printable = text.bytes().all(|byte| (0x20..0x7f).contains(&byte));
    if values.next().is_some() || !printable || !(1..=255).contains(&text.len()) {
        return Err(ApiError::invalid(
            "Idempotency-Key",
            "must be one header with 1 to 255 printable ASCII characters; a new UUID per request will do",
        ));
    }
    Ok(Some(text.to_owned()))
}

/// The path with the prefix that nesting removed.
fn full_path(parts: &Parts) -> String {
    let uri = parts.extensions.get::<axum::extract::OriginalUri>().map_or(&parts.uri, |original| &original.0);
    uri.path_and_query().map_or("/", axum::http::uri::PathAndQuery::as_str).to_owned()
}

async fn read(request: Request, app: &App) -> Result<(Bytes, Fingerprint, HeaderMap), ApiError> {
    let (parts, body) = request.into_parts();
    let encoded = parts.headers.get(header::CONTENT_ENCODING).is_some_and(|encoding| encoding != "identity");
    if encoded {
        return Err(ApiError::UnsupportedMediaType(
            "send the body as it is, without a `Content-Encoding`".to_owned(),
        ));
    }
    let (method, uri, headers) = (parts.method.clone(), full_path(&parts), parts.headers.clone());
    let bytes =
        Bytes::from_request(Request::from_parts(parts, body), app).await.map_err(
            |rejection| match rejection.status() {
                axum::http::StatusCode::PAYLOAD_TOO_LARGE => ApiError::TooLarge(BODY_BYTES_MAX),
                _ => ApiError::BadRequest("the body ended before it was complete".to_owned()),
            },
        )?;
    let fingerprint = Fingerprint::new(&method, &uri, &headers, &bytes)?;
    Ok((bytes, fingerprint, headers))
}

fn must_be_json(headers: &HeaderMap) -> Result<(), ApiError> {
    let content_type =
        headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let (essence, parameters) = content_type.split_once(';').unwrap_or((content_type, ""));
    let charset = parameters
        .split(';')
        .filter_map(|parameter| parameter.split_once('='))
        .find(|(name, _)| name.trim().eq_ignore_ascii_case("charset"))
        .is_none_or(|(_, value)| value.trim().trim_matches('"').eq_ignore_ascii_case("utf-8"));
    if essence.trim().eq_ignore_ascii_case("application/json") && charset {
        return Ok(());
    }
    Err(ApiError::UnsupportedMediaType(
        "send JSON in UTF-8, and say so: `Content-Type: application/json`".to_owned(),
    ))
}

/// Reads a body. The error says what is wrong with the body.
fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, ApiError> {
    let text = str::from_utf8(bytes).map_err(|error| {
        ApiError::BadRequest(format!("the body is not UTF-8, from byte {} on", error.valid_up_to()))
    })?;
    check_shape(text)?;
    // Check the whole body, also the parts that a handler takes as raw JSON: half a character, a malformed number.
    let value: Value = serde_json::from_str(text).map_err(|error| {
        if text.trim().is_empty() {
            return ApiError::BadRequest("the body is empty; send a JSON object".to_owned());
        }
        ApiError::BadRequest(format!("the body is not JSON: {error}"))
    })?;
    check_text("", &value)?;
    let reader = &mut serde_json::Deserializer::from_str(text);
    serde_path_to_error::deserialize(reader).map_err(|error| {
        let path = error.path().to_string();
        let field = if path == "." { String::new() } else { path };
        ApiError::invalid(field, without_place(&error.inner().to_string()))
    })
}

/// Depth and numbers, without recursion and before anything is built.
fn check_shape(text: &str) -> Result<(), ApiError> {
    let (mut depth, mut in_string, mut escaped) = (0_usize, false, false);
    let mut exponent: Option<u32> = None;
    for byte in text.bytes() {
        if in_string {
            match byte {
                _ if escaped => escaped = false,
                b'\\' => escaped = true,
                b'"' => in_string = false,
                _ => {}
            }
            continue;
        }
        exponent = match (byte, exponent) {
            (b'e' | b'E', None) => Some(0),
            (b'+' | b'-', Some(0)) => Some(0),
            (b'0'..=b'9', Some(so_far)) => {
                Some(so_far.saturating_mul(10).saturating_add(u32::from(byte - b'0')))
            }
            _ => None,
        };
        if exponent.is_some_and(|exponent| exponent > EXPONENT_MAX) {
            return Err(ApiError::BadRequest(format!(
                "the body holds a number whose exponent is larger than {EXPONENT_MAX}"
            )));
        }
        match byte {
            b'"' => in_string = true,
            b'[' | b'{' => depth += 1,
            b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth > DEPTH_MAX {
            return Err(ApiError::BadRequest(format!("the body is nested deeper than {DEPTH_MAX} levels")));
        }
    }
    Ok(())
}

/// Refuses NUL in every text: the database cannot store it.
pub(crate) fn check_text(path: &str, value: &Value) -> Result<(), ApiError> {
    const NUL: &str = "holds the character NUL, which cannot be stored";
    match value {
        Value::String(text) if text.contains('\0') => Err(ApiError::invalid(path, NUL)),
        Value::Array(items) => {
            items.iter().enumerate().try_for_each(|(at, item)| check_text(&format!("{path}[{at}]"), item))
        }
        Value::Object(fields) => fields.iter().try_for_each(|(name, field)| {
            if name.contains('\0') {
                return Err(ApiError::invalid(path, format!("a name in it {NUL}")));
            }
            let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
            check_text(&path, field)
        }),
        _ => Ok(()),
    }
}

/// Removes the column that serde_json names; the field's name is more useful.
fn without_place(message: &str) -> &str {
    message.rsplit_once(" at line ").map_or(message, |(message, _)| message)
}

/// The query, of which every parameter must be known.
pub(crate) struct Query<T>(pub(crate) T);

impl<T: DeserializeOwned + Send> FromRequestParts<App> for Query<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &App) -> Result<Self, ApiError> {
        let raw = parts.uri.query().unwrap_or_default();
        let decoded: Vec<u8> = percent_encoding::percent_decode_str(raw).collect();
        match str::from_utf8(&decoded) {
            Err(_) => return Err(ApiError::BadRequest("the query is not UTF-8".to_owned())),
            Ok(text) if text.contains('\0') => {
                return Err(ApiError::BadRequest("the query holds the character NUL".to_owned()));
            }
            Ok(_) => {}
        }
        let pairs: Vec<(String, String)> = serde_urlencoded::from_str(raw)
            .map_err(|error| ApiError::BadRequest(format!("the query cannot be read: {error}")))?;
        // The message about a value of a wrong type does not name the parameter, so each parameter is tried alone.
        serde_urlencoded::from_str(raw).map(Self).map_err(|error: serde_urlencoded::de::Error| {
            let message = error.to_string();
            let missing = message.strip_prefix("missing field `").and_then(|rest| rest.strip_suffix('`'));
            if let Some(name) = missing {
                return ApiError::invalid(name, "is missing");
            }
            // The first name in the message is the refused parameter; the others are the known ones.
            let first = message.split('`').nth(1);
            let named = pairs.iter().map(|(name, _)| name).find(|name| Some(name.as_str()) == first);
            let culprit = named.or_else(|| culprit::<T>(&pairs));
            ApiError::invalid(culprit.cloned().unwrap_or_default(), message)
        })
    }
}

/// The first parameter that cannot be read even by itself.
fn culprit<T: DeserializeOwned>(pairs: &[(String, String)]) -> Option<&String> {
    pairs
        .iter()
        .find(|pair| {
            let alone = serde_urlencoded::to_string([pair]).unwrap_or_default();
            let error = serde_urlencoded::from_str::<T>(&alone).err().map(|error| error.to_string());
            error.is_some_and(|message| !message.starts_with("missing field"))
        })
        .map(|(name, _)| name)
}

/// The parameters of a path. A text that is not an id is answered like an unknown id.
pub(crate) struct Path<T>(pub(crate) T);

impl<T: Named + Send> FromRequestParts<App> for Path<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, ApiError> {
        let raw =
            RawPathParams::from_request_parts(parts, app).await.map_err(|_| ApiError::NotFound(T::NAME))?;
        if raw.iter().any(|(_, value)| value.contains('\0')) {
            return Err(ApiError::NotFound(T::NAME));
        }
        let axum::extract::Path(value) = axum::extract::Path::<T>::from_request_parts(parts, app)
            .await
            .map_err(|_| ApiError::NotFound(T::NAME))?;
        Ok(Self(value))
    }
}

/// The name of the resource of a path, for the 404 response.
pub(crate) trait Named: DeserializeOwned {
    const NAME: &'static str;
}

macro_rules! named {
    ($($id:ty => $name:literal),* $(,)?) => {$(
        impl Named for $id {
            const NAME: &'static str = $name;
        }
    )*};
}

named!(
    ApiKeyId => "key",
    AssetId => "asset",
    CampaignId => "campaign",
    ChannelMessageId => "message",
    DecisionCardId => "decision card",
    EventId => "event",
    ExecutorId => "executor",
    JobRunId => "job run",
    LeadId => "lead",
    LinkId => "link",
    OutboxId => "item",
    SingleMessageId => "message",
    ProviderAccountId => "provider account",
    RunId => "run",
    ScheduleId => "schedule",
    SessionId => "session",
    SyncErrorId => "sync error",
);

impl<T: Named, U: DeserializeOwned> Named for (T, U) {
    const NAME: &'static str = T::NAME;
}

impl<T: Named, U: DeserializeOwned, V: DeserializeOwned> Named for (T, U, V) {
    const NAME: &'static str = T::NAME;
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Order {
        #[expect(dead_code, reason = "only read")]
        lines: Vec<Line>,
    }

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Line {
        #[expect(dead_code, reason = "only read")]
        count: u8,
        #[expect(dead_code, reason = "only read")]
        #[serde(default)]
        note: Value,
    }

    fn refusal(text: &str) -> ApiError {
        parse::<Object<Order>>(text.as_bytes()).unwrap_err()
    }

    fn field(text: &str) -> String {
        match refusal(text) {
            ApiError::Invalid(errors) => errors[0].field.clone(),
            other => format!("{other:?}"),
        }
    }

    #[test]
    fn the_field_is_named() {
        assert_eq!(field(r#"{"lines": [{"count": 1}, {"count": 256}]}"#), "lines[1].count");
        assert_eq!(field(r#"{"lines": [{"count": 1, "tenant_id": 7}]}"#), "lines[0].tenant_id");
        assert_eq!(field(r#"{"lines": [{"count": 1, "note": {"a": "\u0000"}}]}"#), "lines[0].note.a");
        assert_eq!(field(r#"{"lines": 7}"#), "lines");
        assert_eq!(field("{}"), "");
    }

    #[test]
    fn an_array_of_the_values_is_no_object() {
        assert!(parse::<Order>(b"[[]]").is_ok(), "serde would take it");
        assert_eq!(field("[[]]"), "");
        assert_eq!(field("null"), "");
    }

    #[test]
    fn malformed_text_and_numbers_are_refused_at_any_depth() {
        for note in [
            r#""\ud800""#,
            r#""\udc00x""#,
            "1e999",
            "1e-99999999999",
            "-1E+401",
            r#"{"\u0000": 1}"#,
            "01",
            "nan",
        ] {
            let text = format!(r#"{{"lines": [{{"count": 1, "note": {note}}}]}}"#);
            assert!(parse::<Order>(text.as_bytes()).is_err(), "{note}");
        }
        assert!(parse::<Order>(b"{\"lines\": [], \"\xff\": 1}").is_err());
        for note in
            ["1e300", "\"e99999\"", r#""\"e99999""#, "123456789012345678901234567890", r#""\ud83d\ude00""#]
        {
            let text = format!(r#"{{"lines": [{{"count": 1, "note": {note}}}]}}"#);
            assert!(parse::<Order>(text.as_bytes()).is_ok(), "{note}");
        }
    }

    #[test]
    fn depth_is_bounded_and_brackets_in_text_do_not_count() {
        let nested = |depth: usize| {
            let note = format!("{}{}", "[".repeat(depth), "]".repeat(depth));
            parse::<Order>(format!(r#"{{"lines": [{{"count": 1, "note": {note}}}]}}"#).as_bytes())
        };
        assert!(nested(DEPTH_MAX - 3).is_ok() && nested(DEPTH_MAX - 2).is_err() && nested(500_000).is_err());
        let text = format!(r#"{{"lines": [{{"count": 1, "note": "{}"}}]}}"#, "[{".repeat(100));
        assert!(parse::<Order>(text.as_bytes()).is_ok());
    }
}
