//! The face of Bluesky: sessions, and records under a key that the caller chooses.
//!
//! A second put under the same key changes the record and is no second post; `swapRecord` is only compared if the put
//! changes the record. A session is a token that contains its account, so it stays valid after a restart of the sim.

use std::sync::Arc;
use std::time::{Duration, Instant};

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use bytes::Bytes;
use hyper::body::Incoming;
use hyper::http::request::Parts;
use hyper::{HeaderMap, Request, StatusCode};
use serde::Deserialize;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::World;
use super::access::{bearer, key_in};
use super::acting::{Action, ErrorAnswer, Face, Refusal, ValidRequest, look_up};
use super::answer::{Answer, Cut, json_answer};
use super::http::{Body, query_value, read_body};
use super::memory::{Done, Identity};
use super::receipts::Receipt;

/// See the [module](self).
pub static FACE: Face = Face {
    provider: "bluesky",
    read_head,
    validate,
    error_body,
    refuses_with: StatusCode::BAD_REQUEST,
    is_natural: true,
};

/// Records are kept until the sim ends.
const REMEMBERED_FOR: Duration = Duration::from_secs(365 * 24 * 3600);
const SESSION_SECONDS: i64 = 2 * 3600;
const RECORD_BYTES_MAX: usize = 16 * 1024;
const POST: &str = "app.bsky.feed.post";
const POST_BYTES_MAX: usize = 3000;
const RKEY_CHARS_MAX: usize = 512;
const NAME_CHARS_MAX: usize = 320;

/// A stored record.
#[derive(Clone)]
pub struct Record {
    cid: String,
    value: Arc<Value>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Put {
    repo: String,
    collection: String,
    rkey: String,
    record: Value,
    /// Absent, null and a cid have different meanings.
    #[serde(default, deserialize_with = "present")]
    swap_record: Option<Option<String>>,
}

fn present<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<Option<String>>, D::Error> {
    Option::deserialize(deserializer).map(Some)
}

fn read_head(_: &World, _: &Parts, receipt: &mut Receipt) {
    receipt.channel = Some("social".to_owned());
}

fn validate(
    world: &World,
    head: &Parts,
    body: &Bytes,
    receipt: &mut Receipt,
) -> Result<ValidRequest, Refusal> {
    let did = session_of(&head.headers)?;
    let invalid = |why: &str| refusal("InvalidRequest", why);
    let put: Put = serde_json::from_slice(body).map_err(|error| invalid(&error.to_string()))?;
    if did_of(&put.repo) != did {
        return Err(invalid("the session is not that of `repo`"));
    }
    check(&put).map_err(invalid)?;
    receipt.rkey = Some(put.rkey.clone());
    receipt.key = key_in(&put.rkey).map(str::to_owned);
    receipt.from = Some(did.clone());
    let uri = format!("at://{did}/{}/{}", put.collection, put.rkey);
    let kept = Record { cid: cid_of(put.record.to_string().as_bytes()), value: Arc::new(put.record) };
    let there_is = world.records.get(&uri).map(|kept| kept.cid);
    let changes = there_is.as_ref() != Some(&kept.cid);
    if changes && put.swap_record.is_some_and(|expected| expected != there_is) {
        return Err(refusal("InvalidSwap", "the record is not what `swapRecord` says"));
    }
    let identity = Identity { name: format!("bluesky {uri}"), life: REMEMBERED_FOR, clash: None };
    Ok(ValidRequest { identity: Some(identity), action: Box::new(Putting { uri, kept }) })
}

fn check(put: &Put) -> Result<(), &'static str> {
    let is_rkey = (1..=RKEY_CHARS_MAX).contains(&put.rkey.len())
        && ![".", ".."].contains(&put.rkey.as_str())
        && put.rkey.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-_:~".contains(&byte));
    let collection = &put.collection;
    let is_collection = collection.len() <= NAME_CHARS_MAX
        && collection.split('.').count() >= 3
        && collection.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-".contains(&byte));
    let text = |name: &str| put.record[name].as_str();
    match () {
        () if !is_rkey => Err("`rkey` is not a record key"),
        () if !is_collection => Err("`collection` is not the name of a collection"),
        () if put.record.to_string().len() > RECORD_BYTES_MAX => Err("`record` is too large"),
        () if text("$type") != Some(collection.as_str()) => Err("`$type` of `record` must be `collection`"),
        () if collection != POST => Ok(()),
        () if text("text").is_none_or(|text| text.len() > POST_BYTES_MAX) => {
            Err("a post needs `text` of at most 3000 bytes")
        }
        () if text("createdAt").is_none_or(|at| at.parse::<jiff::Timestamp>().is_err()) => {
            Err("a post needs `createdAt`, a time such as 2026-02-06T14:05:00Z")
        }
        () => Ok(()),
    }
}

struct Putting {
    uri: String,
    kept: Record,
}

impl Putting {
    fn done(&self, changes: bool) -> Done {
        let cid = &self.kept.cid;
        let mut answer = json!({ "uri": self.uri, "cid": cid, "validationStatus": "valid" });
        if changes {
            let commit = cid_of(format!("{} {cid}", self.uri).as_bytes());
            answer["commit"] = json!({ "cid": commit, "rev": cid });
        }
        Done::new(Some(self.uri.clone()), StatusCode::OK, &answer)
    }
}

impl Action for Putting {
    fn perform(&self, _: &World) -> Done {
        self.done(true)
    }

    fn publish(&self, world: &Arc<World>, _: &Done, findable_at: Instant) {
        world.records.add(&self.uri, findable_at, self.kept.clone());
    }

    fn repeat(&self, world: &World, _: Done) -> Done {
        let changes = world.records.get(&self.uri).is_none_or(|kept| kept.cid != self.kept.cid);
        world.records.replace(&self.uri, self.kept.clone());
        self.done(changes)
    }
}

/// `POST /bluesky/xrpc/com.atproto.server.createSession`.
pub async fn sign_in(world: &World, request: Request<Incoming>) -> Result<Answer, Cut> {
    #[derive(Deserialize)]
    struct Given {
        identifier: String,
        password: String,
    }
    let body = match read_body(request.into_body()).await {
        Body::Whole(body) => body,
        Body::TooLarge | Body::Broken => {
            let (status, answer) = refusal("InvalidRequest", "the body is too large, or breaks off");
            return Ok(json_answer(status, &answer));
        }
    };
    look_up(world, &FACE, None, None, || match serde_json::from_slice::<Given>(&body) {
        Err(error) => refusal("InvalidRequest", &error.to_string()),
        Ok(login) if login.identifier.is_empty() || login.identifier.len() > NAME_CHARS_MAX => {
            refusal("InvalidRequest", "`identifier` is empty or too long")
        }
        Ok(login)
            if login.password.is_empty() || world.access.admits(Some(&login.password)) == Some(false) =>
        {
            let why = "Invalid identifier or password";
            (StatusCode::UNAUTHORIZED, named("AuthenticationRequired", why))
        }
        Ok(Given { identifier, .. }) => {
            let did = did_of(&identifier);
            let (access, refresh) = (token(&did, "com.atproto.access"), token(&did, "com.atproto.refresh"));
            let session = json!({
                "did": did, "handle": identifier, "accessJwt": access, "refreshJwt": refresh, "active": true,
            });
            (StatusCode::OK, session)
        }
    })
    .await
}

/// `GET /bluesky/xrpc/com.atproto.repo.getRecord?repo=&collection=&rkey=`.
pub async fn find(world: &World, request: &Request<Incoming>) -> Result<Answer, Cut> {
    let value = |name| query_value(request.uri().query(), name);
    let (repo, collection, rkey) = (value("repo"), value("collection"), value("rkey"));
    look_up(world, &FACE, None, rkey.as_deref(), || {
        let (Some(repo), Some(collection), Some(rkey)) = (&repo, &collection, &rkey) else {
            return refusal("InvalidRequest", "the query takes repo, collection and rkey");
        };
        let uri = format!("at://{}/{collection}/{rkey}", did_of(repo));
        match world.records.find(&uri) {
            Some(Record { cid, value }) => {
                (StatusCode::OK, json!({ "uri": uri, "cid": cid, "value": *value }))
            }
            None => refusal("RecordNotFound", &format!("Could not locate record: {uri}")),
        }
    })
    .await
}

/// The account of the session in the headers.
fn session_of(headers: &HeaderMap) -> Result<String, Refusal> {
    #[derive(Deserialize)]
    struct Session {
        sub: String,
        scope: String,
        exp: i64,
    }
    let Some(token) = bearer(headers) else {
        return Err((StatusCode::UNAUTHORIZED, named("AuthMissing", "Authentication Required")));
    };
    let payload = token.split('.').nth(1).and_then(|payload| URL_SAFE_NO_PAD.decode(payload).ok());
    let session = payload.and_then(|payload| serde_json::from_slice::<Session>(&payload).ok());
    match session.filter(|session| session.scope == "com.atproto.access") {
        None => Err(refusal("InvalidToken", "Token could not be verified")),
        Some(session) if session.exp <= jiff::Timestamp::now().as_second() => {
            Err(refusal("ExpiredToken", "Token has expired"))
        }
        Some(session) => Ok(session.sub),
    }
}

/// A token with the shape of a JWT and no valid signature.
fn token(did: &str, scope: &str) -> String {
    let now = jiff::Timestamp::now().as_second();
    let payload = json!({ "scope": scope, "sub": did, "iat": now, "exp": now + SESSION_SECONDS });
    let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
    format!("{}.{}.c2lt", part(&json!({ "typ": "at+jwt", "alg": "none" })), part(&payload))
}

/// The account behind a handle, an address or an identifier.
fn did_of(name: &str) -> String {
    if name.starts_with("did:") {
        return name.to_owned();
    }
    let digest = Sha256::digest(name.to_lowercase().as_bytes());
    format!("did:plc:{}", base32(&digest[..15]))
}

/// A CIDv1 of dag-cbor and SHA-256. The hashed content is JSON, so the CID is an id and no proof.
fn cid_of(content: &[u8]) -> String {
    let mut bytes = vec![0x01, 0x71, 0x12, 0x20];
    bytes.extend_from_slice(&Sha256::digest(content));
    format!("b{}", base32(&bytes))
}

/// Lower case, without padding.
fn base32(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";
    let bits = bytes.len() * 8;
    let bit = |nth: usize| bytes.get(nth / 8).is_some_and(|byte| byte >> (7 - nth % 8) & 1 == 1);
    let digit = |start: usize| (start..start + 5).fold(0, |digit, nth| digit << 1 | usize::from(bit(nth)));
    (0..bits).step_by(5).map(|start| char::from(DIGITS[digit(start)])).collect()
}

fn error_body(&ErrorAnswer { status, why, .. }: &ErrorAnswer<'_>) -> Value {
    let name = match status {
        StatusCode::TOO_MANY_REQUESTS => "RateLimitExceeded",
        StatusCode::PAYLOAD_TOO_LARGE => "PayloadTooLarge",
        status if status.is_server_error() => "InternalServerError",
        _ => "InvalidRequest",
    };
    named(name, why)
}

fn refusal(name: &str, why: &str) -> Refusal {
    (StatusCode::BAD_REQUEST, named(name, why))
}

fn named(name: &str, why: &str) -> Value {
    json!({ "error": name, "message": why })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_have_the_format_of_bluesky() {
        // The vectors of RFC 4648, in lower case and without padding.
        for (bytes, text) in [("f", "my"), ("fo", "mzxq"), ("foo", "mzxw6"), ("foobar", "mzxw6ytboi")] {
            assert_eq!(base32(bytes.as_bytes()), text);
        }
        assert!(cid_of(b"{}").starts_with("bafyrei"));
        assert_eq!(cid_of(b"{}").len(), 59);
        assert_eq!(did_of("shop.example.com").len(), "did:plc:".len() + 24);
        assert_eq!(did_of("did:plc:abc"), "did:plc:abc");
    }
}
