//! Mastodon: `POST {url}/api/v1/statuses`, classified by the tables in `http.rs`, with these differences:
//!
//! | answer | to a call | to a repeat |
//! |---|---|---|
//! | 200 with an `id` | delivered | done: for a known key the server returns the existing post |
//! | 422 with a JSON object | rejected | absent: it refuses this very post |
//! | 401, 403, 404: the token, the account, the address | account refused | unclear |
//! | 429 | not sent, until `X-RateLimit-Reset` | unclear |
//!
//! Mastodon 4.6.0 to 4.7.0 answers a repeated key with 500, although it has the post. After such an answer of such a server the adapter
//! reads the account's posts: the only post of that time with the same text is the item's.
//!
//! A server recognises an `Idempotency-Key` for an hour. After that the adapter reads the account's posts: a post with the
//! same text, made between the reservation and the end of the quiet time, may be the item's. A list without such a post
//! proves that it was not sent only if it was read back to before the reservation and the server cannot have changed the text.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use jiff::Timestamp;
use postrider_model::{Channel, DoubtClass, Finding, IdempotencyKey, Manifest, Message, Outcome, Rate};
use postrider_store::{HeldDoubt, Reservation};
use reqwest::{Request, StatusCode, header::HeaderValue};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use url::Url;

use crate::{
    Description,
    guard::{Answer, Ending, GuardedClient},
    http,
    provider::{Account, Adapter, InvalidAccount, Provider},
};

const MANIFEST: Manifest = Manifest {
    doubt: DoubtClass::Key,
    key_lifetime: Some(Duration::from_secs(60 * 60)),
    rate: Some(Rate { calls: 300, per: Duration::from_secs(5 * 60) }),
    quota: Some(Rate { calls: 300, per: Duration::from_secs(3 * 60 * 60) }),
    ..Manifest::new("mastodon", &[Channel::Social])
};

const EXAMPLE: &str = r#"{"url": "https://mastodon.example", "visibility": "unlisted"}"#;

/// Posts in one page of the list. A post with the data of its author takes a few kilobytes, and the client reads an answer
/// up to 64 KiB; if a page is longer, the adapter requests smaller pages.
const PAGE: usize = 10;
/// Maximum pages of one look-up.
const PAGES_MAX: usize = 20;
/// Maximum skew of the server's clock.
const SKEW: Duration = Duration::from_secs(60);

http::adapter!(MastodonAdapter opens Mastodon);

fn description() -> Description {
    Description::new("Mastodon", "Posts of one account at a Mastodon server.")
        .settings::<Settings>()
        .secret("Access token", "An access token with write:statuses, read:statuses and read:accounts")
}

/// Settings of an account.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Settings {
    /// Address of the server.
    url: Url,
    /// Visibility of every post.
    #[serde(default)]
    visibility: Visibility,
}

/// Visibility of a post.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum Visibility {
    #[default]
    Public,
    Unlisted,
    Private,
}

/// An account at a server.
struct Mastodon {
    client: GuardedClient,
    api: Url,
    token: HeaderValue,
    visibility: Visibility,
}

impl Mastodon {
    fn new(client: &GuardedClient, account: &Account<'_>) -> Result<Self, InvalidAccount> {
        let settings: Settings = http::settings(account, "mastodon", EXAMPLE)?;
        Ok(Self {
            client: client.clone(),
            api: http::below(&http::base(client, settings.url)?, &["api", "v1"]),
            token: http::bearer(
                account.secret,
                "an access token with `write:statuses`, `read:statuses` and `read:accounts`",
            )?,
            visibility: settings.visibility,
        })
    }

    /// Builds the request. The same post always has the same bytes.
    fn request(&self, key: &IdempotencyKey, message: &Message) -> Result<Request, Outcome> {
        #[derive(Serialize)]
        struct Post<'a> {
            status: &'a str,
            visibility: Visibility,
        }
        let Message::Social { text } = message else {
            return Err(http::wrong_channel("mastodon", "posts", message));
        };
        let post = Post { status: text, visibility: self.visibility };
        let url = http::below(&self.api, &["statuses"]);
        http::with_key(http::post(url, Some(&self.token), &post)?, key)
    }

    /// Reads the account's posts back to before `made.from`. The error is the finding if they could not be read.
    async fn search(&self, made: Period, text: &str) -> Result<Finding, Finding> {
        #[derive(Deserialize)]
        struct Me {
            id: String,
        }
        let (_, me) = self.read::<Me>(http::below(&self.api, &["accounts", "verify_credentials"])).await?;
        let me = me.ok_or_else(|| unclear("the answer about the account is not complete"))?;
        let list = http::below(&self.api, &["accounts", &me.id, "statuses"]);
        let (mut posts, mut is_complete, mut page_size) = (Vec::<Post>::new(), false, PAGE);
        for _ in 0..PAGES_MAX {
            let mut url = list.clone();
            url.query_pairs_mut()
                .append_pair("exclude_reblogs", "true")
                .append_pair("limit", &page_size.to_string());
            if let Some(last) = posts.last() {
                url.query_pairs_mut().append_pair("max_id", &last.id);
            }
            let (ending, page) = self.read::<Vec<Post>>(url).await?;
            if ending == Ending::TooLong && page_size > 1 {
                page_size /= 2;
                continue;
            }
            let page = page.ok_or_else(|| unclear("the list of the account's posts is not complete"))?;
            is_complete = page.last().is_none_or(|last| last.created_at < made.from - SKEW);
            posts.extend(page);
            if is_complete {
                break;
            }
        }
        Ok(conclude(&posts, is_complete, made, text))
    }

    /// Repeats the call, and reads the account's posts where the server answers a known key with 500.
    async fn repeat_once(&self, key: &IdempotencyKey, message: &Message, made: Period) -> Finding {
        let sent = http::send(&self.client, self.request(key, message)).await;
        let failed = sent.as_ref().is_ok_and(|answer| answer.status == StatusCode::INTERNAL_SERVER_ERROR);
        let finding = http::finding(sent, judge);
        let Message::Social { text } = message else { return finding };
        if !failed || !self.answers_repeats_with_500().await {
            return finding;
        }
        match self.search(made, text).await {
            Ok(Finding::Done { message_id, evidence }) => Finding::Done {
                message_id,
                evidence: format!(
                    "{evidence}, and the server answers the repeat with 500, as its version does for a key that it knows"
                ),
            },
            _ => finding,
        }
    }

    /// Whether the server has a version that answers a known key with 500.
    async fn answers_repeats_with_500(&self) -> bool {
        #[derive(Deserialize)]
        struct Instance {
            version: String,
        }
        let instance = self.read::<Instance>(http::below(&self.api, &["instance"])).await;
        matches!(instance, Ok((_, Some(Instance { version }))) if fails_on_known_keys(&version))
    }

    async fn read<T: DeserializeOwned>(&self, url: Url) -> Result<(Ending, Option<T>), Finding> {
        let answer = http::ask(&self.client, url, Some(&self.token)).await?;
        match answer.status {
            StatusCode::OK => Ok((answer.ending, http::json(&answer))),
            _ => Err(unclear(&http::describe(&answer))),
        }
    }
}

#[async_trait]
impl Provider for Mastodon {
    async fn call(&self, reservation: &Reservation, message: &Message) -> Outcome {
        http::outcome(http::send(&self.client, self.request(reservation.key(), message)).await, judge)
    }

    async fn repeat(&self, doubt: &HeldDoubt, message: &Message) -> Finding {
        let made = Period { from: doubt.reserved_at(), until: doubt.quiet_until() };
        self.repeat_once(doubt.key(), message, made).await
    }

    async fn look_up(&self, doubt: &HeldDoubt, message: Option<&Message>) -> Finding {
        let Some(Message::Social { text }) = message else {
            return unclear("the post cannot be rendered as it was, so it cannot be recognised");
        };
        let made = Period { from: doubt.reserved_at(), until: doubt.quiet_until() };
        match self.search(made, text).await.unwrap_or_else(|unclear| unclear) {
            // Two items may have the same text, so a post cannot be assigned to one of them.
            Finding::Done { message_id, .. } => {
                unclear(&format!("post {message_id} has the same text, and may be this item's or another's"))
            }
            found => found,
        }
    }
}

fn judge(answer: &Answer, now: Timestamp) -> Outcome {
    match answer.status {
        // No server without this address is a Mastodon server.
        StatusCode::NOT_FOUND => http::account_refused(&http::describe(answer)),
        StatusCode::TOO_MANY_REQUESTS => {
            let reset = answer.headers.get("x-ratelimit-reset").and_then(|reset| reset.to_str().ok());
            let reset = reset.and_then(|reset| reset.parse::<Timestamp>().ok());
            let wait = http::until(reset, now).unwrap_or(http::RATE_LIMIT_WAIT);
            http::rate_limited(answer, now, http::describe(answer), wait)
        }
        _ => http::judge(answer, now, |answer| http::named(answer, "id")),
    }
}

/// Versions from 4.6.0 to 4.7.0, such as `4.6.2+glitch`.
fn fails_on_known_keys(version: &str) -> bool {
    let mut numbers = version.split(|c: char| !c.is_ascii_digit()).map(|part| part.parse::<u32>().ok());
    let mut next = || numbers.next().flatten();
    matches!((next(), next(), next()), (Some(4), Some(6), Some(_)) | (Some(4), Some(7), Some(0)))
}

/// A post on the server.
#[derive(Debug, Deserialize)]
struct Post {
    id: String,
    created_at: Timestamp,
    /// HTML.
    content: String,
}

/// The period in which the post of the item must have been made.
#[derive(Debug, Clone, Copy)]
struct Period {
    from: Timestamp,
    until: Timestamp,
}

/// The finding from the account's posts. `is_complete`: the list reaches back to before the reservation.
fn conclude(posts: &[Post], is_complete: bool, made: Period, text: &str) -> Finding {
    let wanted = letters(text);
    // Servers report times in milliseconds.
    let from = Timestamp::from_millisecond(made.from.as_millisecond()).unwrap_or(made.from);
    let same: Vec<&Post> = posts
        .iter()
        .filter(|post| post.created_at >= from - SKEW && letters(&plain(&post.content)) == wanted)
        .collect();
    match same[..] {
        [post] if post.created_at >= from && post.created_at <= made.until => Finding::Done {
            message_id: post.id.clone(),
            evidence: format!("post {} has the same text and was made at {}", post.id, post.created_at),
        },
        [] if !is_complete => unclear("there are too many posts since then to read them all"),
        // The server shows `@ada@example.com` as `@ada`, so the text of the post may differ.
        [] if text.contains('@') => {
            unclear("no post has the same text, but servers change the text of a mention")
        }
        [] => Finding::Absent {
            evidence: "none of the account's posts since the reservation has the same text".to_owned(),
        },
        _ => unclear("posts with the same text were made at other times, or more than once"),
    }
}

/// The text without white space, because servers add and remove line breaks and spaces.
fn letters(text: &str) -> String {
    text.chars().filter(|c| !c.is_whitespace()).collect()
}

/// HTML without its tags. Servers hide parts of long links by styles only, so links are complete.
fn plain(html: &str) -> String {
    let mut text = String::with_capacity(html.len());
    for part in html.split('<').enumerate().map(|(position, part)| match (position, part.split_once('>')) {
        (0, _) => part,
        (_, Some((_, after))) => after,
        (_, None) => "",
    }) {
        text.push_str(part);
    }
    [
        ("&lt;", "<"),
        ("&gt;", ">"),
        ("&quot;", "\""),
        ("&#39;", "'"),
        ("&apos;", "'"),
        ("&nbsp;", " "),
        ("&amp;", "&"),
    ]
    .iter()
    .fold(text, |text, (entity, character)| text.replace(entity, character))
}

fn unclear(reason: &str) -> Finding {
    Finding::Unclear { reason: reason.to_owned() }
}

#[cfg(test)]
mod tests;
