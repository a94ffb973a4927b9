//! Bluesky, and every other server of the AT Protocol: `com.atproto.repo.putRecord`, classified by the tables in `http.rs`, with
//! these differences:
//!
//! | answer | to a call | to a repeat |
//! |---|---|---|
//! | 200 with a `uri` | delivered | done |
//! | 400 `InvalidRequest` and the like | rejected | absent: it refuses this very post |
//! | 400 `ExpiredToken` or `InvalidToken`, 401 | not sent; the session is forgotten | unclear |
//! | 429 | not sent, until `ratelimit-reset` | unclear |
//! | to `createSession`: 400, 401, 403: the identifier, the password, the account | account refused; the password is not tried again before it is changed | unclear |
//!
//! A post is a put under a name that Postrider chooses: the record key is derived from the idempotency key. It has the required
//! form (a TID), with a time before 2006, when no posts existed. The record's `createdAt` is the time in the item's id. So
//! a repeat sends the same bytes, and the server keeps its record. `getRecord` reads it back.
//!
//! The adapter exchanges the password for a session before the first call of an account, and again when the session is an hour
//! old or refused. That is one more request, which sends no message. Without a session nothing is sent.

use std::{
    collections::HashMap,
    sync::{Arc, PoisonError},
    time::{Duration, SystemTime},
};

use async_trait::async_trait;
use jiff::Timestamp;
use postrider_model::{
    Channel, DoubtClass, Finding, IdempotencyKey, Manifest, Message, Outcome, Rate, ids::OutboxId,
};
use postrider_store::{HeldDoubt, Reservation};
use reqwest::{Request, StatusCode, header::HeaderValue};
use schemars::JsonSchema;
use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tokio::{sync::Mutex, time::Instant};
use url::Url;

use crate::{
    Description,
    guard::{Answer, GuardedClient},
    http,
    provider::{Account, Adapter, InvalidAccount, Provider},
    text,
};

const MANIFEST: Manifest = Manifest {
    doubt: DoubtClass::Natural,
    // 5,000 points an hour and 35,000 a day; a put costs two.
    rate: Some(Rate { calls: 2500, per: Duration::from_secs(60 * 60) }),
    quota: Some(Rate { calls: 17_500, per: Duration::from_secs(24 * 60 * 60) }),
    ..Manifest::new("bluesky", &[Channel::Social])
};

const EXAMPLE: &str = r#"{"identifier": "news.example.com"}"#;
const COLLECTION: &str = "app.bsky.feed.post";

/// Servers end sessions after about two hours.
const SESSION_AGE_MAX: Duration = Duration::from_secs(60 * 60);
/// Time for which a refusal of the password is reused by callers that wait for the same session.
const REFUSAL_AGE_MAX: Duration = Duration::from_secs(5);
/// The share of a call's time for creating a session; the rest is for the post.
const SESSION_SHARE: u32 = 3;

/// The vendor; `docs/providers.md` says what it takes.
pub struct BlueskyAdapter {
    client: GuardedClient,
    sessions: Sessions,
}

impl BlueskyAdapter {
    /// Calls through this client.
    #[must_use]
    pub fn new(client: &GuardedClient) -> Self {
        Self { client: client.clone(), sessions: Sessions::default() }
    }
}

impl Adapter for BlueskyAdapter {
    fn manifest(&self) -> &'static Manifest {
        &MANIFEST
    }

    fn describe(&self) -> Description {
        description()
    }

    fn open(&self, account: &Account<'_>) -> Result<Arc<dyn Provider>, InvalidAccount> {
        Ok(Arc::new(Bluesky::new(&self.client, &self.sessions, account)?))
    }
}

fn description() -> Description {
    Description::new("Bluesky", "Posts of one Bluesky account.")
        .settings::<Settings>()
        .secret("App password", "An app password, like xxxx-xxxx-xxxx-xxxx")
}

/// Settings of an account.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Settings {
    /// Handle or DID of the account.
    identifier: String,
    /// Address of the server. Needed only for another one than the default.
    #[serde(default = "entryway")]
    url: Url,
}

fn entryway() -> Url {
    http::known("https://bsky.social")
}

/// An account at a server.
struct Bluesky {
    client: GuardedClient,
    xrpc: Url,
    identifier: String,
    password: SecretString,
    session: Arc<Slot>,
}

/// The sessions of all accounts, kept because servers limit new sessions per day and accounts are opened often.
#[derive(Default)]
struct Sessions(std::sync::Mutex<HashMap<[u8; 32], Arc<Slot>>>);

/// The session of one account under one password.
type Slot = Mutex<Option<CachedSession>>;

impl Sessions {
    /// The slot for the session of exactly this account. Removes unused slots without a valid session.
    fn of(&self, account: &Account<'_>) -> Arc<Slot> {
        let Account { id, settings, secret } = account;
        let hash = Sha256::digest(format!("{id} {settings} {}", secret.expose_secret()));
        let mut slots = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        slots.retain(|_, slot| Arc::strong_count(slot) > 1 || holds_valid_session(slot));
        Arc::clone(slots.entry(hash.into()).or_default())
    }
}

fn holds_valid_session(slot: &Slot) -> bool {
    slot.try_lock().is_ok_and(|cached| cached.as_ref().is_some_and(CachedSession::is_valid))
}

/// A session, which permits writes for a time.
struct Session {
    token: HeaderValue,
    did: String,
}

/// The result of creating a session. A refusal is the outcome of every call that waits for it.
struct CachedSession {
    at: Instant,
    result: Result<Arc<Session>, Outcome>,
}

impl CachedSession {
    fn is_valid(&self) -> bool {
        self.at.elapsed() < if self.result.is_ok() { SESSION_AGE_MAX } else { REFUSAL_AGE_MAX }
    }
}

impl Bluesky {
    fn new(
        client: &GuardedClient,
        sessions: &Sessions,
        account: &Account<'_>,
    ) -> Result<Self, InvalidAccount> {
        let settings: Settings = http::settings(account, "bluesky", EXAMPLE)?;
        let identifier = settings.identifier.trim_start_matches('@').to_owned();
        if identifier.is_empty() || identifier.contains(|c: char| c.is_whitespace() || c.is_control()) {
            return Err(InvalidAccount(format!(
                "`identifier` is not a handle or a DID; the settings of `bluesky` are like {EXAMPLE}"
            )));
        }
        http::present(account.secret, "an app password, like xxxx-xxxx-xxxx-xxxx")?;
        Ok(Self {
            client: client.clone(),
            xrpc: http::below(&http::base(client, settings.url)?, &["xrpc"]),
            identifier,
            password: account.secret.clone(),
            session: sessions.of(account),
        })
    }

    /// Puts the post under its name.
    async fn put(&self, post: &Post<'_>) -> Result<Answer, Outcome> {
        let (begun, begun_at) = (Instant::now(), SystemTime::now());
        let session = self.session().await?;
        // A suspended process may continue here. The resolver may have settled the item as not sent in the meantime. One clock
        // stops during a suspension, the other can be set back.
        if begun.elapsed().max(begun_at.elapsed().unwrap_or_default()) > self.client.limits().total {
            return Err(http::not_sent("the worker was delayed before the post".to_owned()));
        }
        let answer = http::send(&self.client, self.request(&session, post)).await?;
        if is_session_over(&answer) {
            self.remove_session(&session).await;
        }
        Ok(answer)
    }

    /// Builds the request. The same post always has the same bytes.
    fn request(&self, session: &Session, post: &Post<'_>) -> Result<Request, Outcome> {
        #[derive(Serialize)]
        struct Put<'a> {
            repo: &'a str,
            collection: &'a str,
            rkey: &'a str,
            record: Record<'a>,
        }
        #[derive(Serialize)]
        #[serde(rename_all = "camelCase")]
        struct Record<'a> {
            #[serde(rename = "$type")]
            kind: &'a str,
            text: &'a str,
            created_at: String,
        }
        let put = Put {
            repo: &session.did,
            collection: COLLECTION,
            rkey: &post.rkey,
            record: Record {
                kind: COLLECTION,
                text: post.text,
                created_at: format!("{:.3}", post.created_at),
            },
        };
        http::post(self.method("com.atproto.repo.putRecord"), Some(&session.token), &put)
    }

    /// Reads a record back. `text` is the expected text, if it is known.
    async fn ask(&self, rkey: &str, text: Option<&str>) -> Result<Finding, Finding> {
        let session = self.session().await.map_err(http::unclear)?;
        let mut url = self.method("com.atproto.repo.getRecord");
        url.query_pairs_mut()
            .append_pair("repo", &session.did)
            .append_pair("collection", COLLECTION)
            .append_pair("rkey", rkey);
        let answer = http::ask(&self.client, url, Some(&session.token)).await?;
        if is_session_over(&answer) {
            self.remove_session(&session).await;
        }
        Ok(found(&answer, text))
    }

    /// The current session, or a new one. Concurrent callers wait for it.
    async fn session(&self) -> Result<Arc<Session>, Outcome> {
        let mut cached = self.session.lock().await;
        if let Some(CachedSession { result, .. }) = cached.as_ref().filter(|cached| cached.is_valid()) {
            return result.clone();
        }
        let result = self.sign_in().await.map(Arc::new);
        *cached = Some(CachedSession { at: Instant::now(), result: result.clone() });
        result
    }

    /// Creates a session. Every failure means that no message was sent.
    async fn sign_in(&self) -> Result<Session, Outcome> {
        #[derive(Serialize)]
        struct Credentials<'a> {
            identifier: &'a str,
            password: &'a str,
        }
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Created {
            access_jwt: String,
            did: String,
        }
        let credentials =
            Credentials { identifier: &self.identifier, password: self.password.expose_secret() };
        let no_session = |reason: String, retry_after| {
            let reason = format!("there is no session at Bluesky: {reason}");
            Err(Outcome::NotSent { reason, retry_after })
        };
        let refuses = |status: StatusCode| {
            matches!(status, StatusCode::BAD_REQUEST | StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN)
        };
        let request = http::post(self.method("com.atproto.server.createSession"), None, &credentials);
        let request = request.map(|mut request| {
            *request.timeout_mut() = Some(self.client.limits().total / SESSION_SHARE);
            request
        });
        let answer = match http::send(&self.client, request).await {
            Ok(answer) => answer,
            Err(outcome) => return no_session(http::reason(outcome), None),
        };
        if answer.status == StatusCode::TOO_MANY_REQUESTS {
            let wait = reset(&answer, Timestamp::now()).unwrap_or(http::RATE_LIMIT_WAIT);
            return no_session(http::describe(&answer), Some(wait));
        }
        if refuses(answer.status) {
            let reason = format!("there is no session at Bluesky: {}", http::describe(&answer));
            return Err(Outcome::AccountRefused { reason, is_login: true });
        }
        if !answer.status.is_success() {
            return no_session(http::describe(&answer), None);
        }
        // The answer is a secret, so it is not shown.
        let created: Option<Created> = http::json(&answer);
        let session = created.and_then(|created| {
            let token = http::authorization(&format!("Bearer {}", created.access_jwt)).ok()?;
            Some(Session { token, did: created.did })
        });
        match session {
            Some(session) => Ok(session),
            None => no_session("the answer to createSession is not complete".to_owned(), None),
        }
    }

    /// Removes this session, unless there is a newer one by now.
    async fn remove_session(&self, session: &Arc<Session>) {
        let mut cached = self.session.lock().await;
        cached.take_if(|now| now.result.as_ref().is_ok_and(|now| Arc::ptr_eq(now, session)));
    }

    fn method(&self, name: &str) -> Url {
        http::below(&self.xrpc, &[name])
    }
}

#[async_trait]
impl Provider for Bluesky {
    async fn call(&self, reservation: &Reservation, message: &Message) -> Outcome {
        match Post::new(reservation.outbox_id(), reservation.key(), message) {
            Ok(post) => http::outcome(self.put(&post).await, judge),
            Err(outcome) => outcome,
        }
    }

    async fn repeat(&self, doubt: &HeldDoubt, message: &Message) -> Finding {
        match Post::new(doubt.outbox_id(), doubt.key(), message) {
            Ok(post) => http::finding(self.put(&post).await, judge),
            Err(outcome) => http::unclear(outcome),
        }
    }

    async fn look_up(&self, doubt: &HeldDoubt, message: Option<&Message>) -> Finding {
        let text = match message {
            Some(Message::Social { text }) => Some(text.as_str()),
            _ => None,
        };
        self.ask(&record_key(doubt.key()), text).await.unwrap_or_else(|unclear| unclear)
    }
}

/// A post to put.
struct Post<'a> {
    rkey: String,
    text: &'a str,
    created_at: Timestamp,
}

impl<'a> Post<'a> {
    fn new(id: OutboxId, key: &IdempotencyKey, message: &'a Message) -> Result<Self, Outcome> {
        let Message::Social { text } = message else {
            return Err(http::wrong_channel("bluesky", "posts", message));
        };
        Ok(Self { rkey: record_key(key), text, created_at: http::planned_at(id) })
    }
}

/// The record key of a post: the first 60 bits of the hash of its idempotency key as a TID, which is thirteen digits of five
/// bits. The first 50 of them are microseconds, so that the time in it is before 2006.
#[must_use]
pub fn record_key(key: &IdempotencyKey) -> String {
    const DIGITS: &[u8; 32] = b"234567abcdefghijklmnopqrstuvwxyz";
    let hash: [u8; 32] = Sha256::digest(key.as_str()).into();
    let bits = hash.iter().take(8).fold(0, |bits: u64, byte| bits << 8 | u64::from(*byte)) >> 4;
    (0..13).rev().map(|place| char::from(DIGITS[(bits >> (5 * place) & 31) as usize])).collect()
}

/// The tables of the [module](self).
fn judge(answer: &Answer, now: Timestamp) -> Outcome {
    if is_session_over(answer) {
        return http::not_sent(format!("the session is over: {}", http::describe(answer)));
    }
    match http::judge(answer, now, |answer| http::named(answer, "uri")) {
        Outcome::NotSent { reason, .. } if answer.status == StatusCode::TOO_MANY_REQUESTS => {
            let wait = reset(answer, now).unwrap_or(http::RATE_LIMIT_WAIT);
            Outcome::NotSent { reason, retry_after: Some(wait) }
        }
        outcome => outcome,
    }
}

fn found(answer: &Answer, text: Option<&str>) -> Finding {
    #[derive(Deserialize)]
    struct Found {
        uri: String,
        value: Value,
    }
    #[derive(Deserialize)]
    struct Value {
        text: String,
    }
    let unclear = |reason: &str| Finding::Unclear { reason: format!("{reason}: {}", http::describe(answer)) };
    match answer.status {
        StatusCode::OK => match http::json::<Found>(answer) {
            Some(Found { value, .. }) if text.is_some_and(|text| text != value.text) => {
                unclear("another record has the name of this post")
            }
            Some(Found { uri, .. }) => Finding::Done {
                message_id: text::excerpt(&uri),
                evidence: "the record of this post can be read back".to_owned(),
            },
            None => unclear("the answer is not complete"),
        },
        StatusCode::BAD_REQUEST | StatusCode::NOT_FOUND
            if error(answer).as_deref() == Some("RecordNotFound") =>
        {
            Finding::Absent { evidence: "there is no record under the name of this post".to_owned() }
        }
        _ => unclear("the record could not be read back"),
    }
}

/// The error name in an answer of an AT Protocol server.
fn error(answer: &Answer) -> Option<String> {
    if answer.status.is_success() { None } else { http::named(answer, "error") }
}

fn is_session_over(answer: &Answer) -> bool {
    answer.status == StatusCode::UNAUTHORIZED
        || matches!(error(answer).as_deref(), Some("ExpiredToken" | "InvalidToken"))
}

/// Time to wait: `Retry-After`, or the time until the limit is reset.
fn reset(answer: &Answer, now: Timestamp) -> Option<Duration> {
    let seconds = answer.headers.get("ratelimit-reset").and_then(|reset| reset.to_str().ok()?.parse().ok());
    let reset = seconds.and_then(|seconds| Timestamp::from_second(seconds).ok());
    answer.retry_after(now).or_else(|| http::until(reset, now))
}

#[cfg(test)]
mod tests;
