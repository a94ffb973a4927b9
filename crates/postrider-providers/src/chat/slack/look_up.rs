//! Look-ups: the conversation, or the thread, is read for a message with the item's key, one page in a look-up.
//!
//! Slack permits apps outside its marketplace one request a minute and 15 messages a page. So a look-up makes one request, and the next
//! one of the item goes on with the next page. Only messages around the call are listed, so the number of pages does not grow with time.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use jiff::Timestamp;
use postrider_model::{Finding, IdempotencyKey};
use reqwest::StatusCode;
use secrecy::ExposeSecret;
use serde::{Deserialize, de::IgnoredAny};
use url::Url;

use super::{EVENT_TYPE, RATE_LIMITED, Slack, markup};
use crate::{
    guard::{Answer, Ending},
    http, text,
};

/// Messages in one page of a list: the maximum for an app that is not in Slack's marketplace. The client reads an answer up to
/// 64 KiB; if a page is longer, the adapter requests smaller pages.
const PAGE: usize = 15;
/// Maximum requests for one item.
pub(super) const PAGES_MAX: usize = 20;
/// Most items whose look-up is remembered between two pages.
const BEGUN_MAX: usize = 10_000;
/// Time to wait after a rate limit whose end Slack does not name: its limit is one request a minute.
const LIMITED_WAIT: Duration = Duration::from_secs(60);

/// The conversation and thread of a message.
#[derive(Clone, Copy)]
pub(super) struct Place<'a> {
    pub(super) channel: &'a str,
    pub(super) thread: Option<&'a str>,
}

/// The time around the call.
#[derive(Clone, Copy)]
pub(super) struct Period {
    pub(super) from: Timestamp,
    pub(super) until: Timestamp,
}

/// Look-ups that have read some pages. Without this memory, another process begins again with the first page.
#[derive(Default)]
pub(super) struct Begun(Mutex<HashMap<String, Progress>>);

#[derive(Debug, Clone)]
struct Progress {
    period_until: Timestamp,
    cursor: Option<String>,
    page_size: usize,
    requests: usize,
    /// A message may be the item's, and shows no metadata.
    may_be_ours: bool,
}

impl Begun {
    fn items(&self) -> MutexGuard<'_, HashMap<String, Progress>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The progress of this item's look-up, after its last call.
    fn of(&self, key: &IdempotencyKey, period: Period) -> Progress {
        let known = self.items().remove(key.as_str());
        known.filter(|known| known.period_until == period.until).unwrap_or(Progress {
            period_until: period.until,
            cursor: None,
            page_size: PAGE,
            requests: 0,
            may_be_ours: false,
        })
    }

    fn keep(&self, key: &IdempotencyKey, progress: Progress) {
        let mut items = self.items();
        if items.len() >= BEGUN_MAX {
            items.clear();
        }
        items.insert(key.as_str().to_owned(), progress);
    }
}

impl Slack {
    /// Reads the next page of a conversation, or of a thread of it. The error is the finding if the list could not be read.
    pub(super) async fn search(
        &self,
        place: Place<'_>,
        period: Period,
        key: &IdempotencyKey,
        text: &str,
    ) -> Result<Finding, Finding> {
        let mut progress = self.begun.of(key, period);
        let url = self.page(place, period, &progress);
        let answer = http::ask(&self.client, url, Some(&self.token)).await?;
        if let Some(retry_after) = limited(&answer) {
            self.begun.keep(key, progress);
            let reason = "Slack's limit of look-ups is used up".to_owned();
            return Err(Finding::Later { reason, retry_after });
        }
        progress.requests += 1;
        let go_on = |progress: Progress| {
            if progress.requests >= PAGES_MAX {
                return Err(unclear("there are too many messages since then to read them all"));
            }
            let reason = format!("{} pages of the conversation were read", progress.requests);
            self.begun.keep(key, progress);
            Err(Finding::Later { reason, retry_after: Duration::ZERO })
        };
        if answer.ending == Ending::TooLong && progress.page_size > 1 {
            progress.page_size /= 2;
            return go_on(progress);
        }
        let page = listed(&http::without(answer, self.bot_token.expose_secret()))?;
        if let Some(ours) = page.messages.iter().find(|posted| posted.carries(key)) {
            return Ok(Finding::Done {
                message_id: text::excerpt(&format!("{}:{}", place.channel, ours.ts)),
                evidence: "the conversation has a message with this key in its metadata".to_owned(),
            });
        }
        progress.may_be_ours |= page.messages.iter().any(|posted| posted.may_say(text));
        match page.next() {
            Some(next) => go_on(Progress { cursor: Some(next), ..progress }),
            None if page.has_more => Err(unclear("Slack sent no cursor for the next page of its list")),
            None if progress.may_be_ours => Err(unclear(
                "a bot's message has the same text, and Slack shows no metadata of it; check that the app has the scope `metadata.message:read`",
            )),
            None => {
                let evidence = "no message since the reservation has this key in its metadata".to_owned();
                Ok(Finding::Absent { evidence })
            }
        }
    }

    fn page(&self, place: Place<'_>, period: Period, progress: &Progress) -> Url {
        let method = if place.thread.is_some() { "conversations.replies" } else { "conversations.history" };
        let mut url = http::below(&self.api, &[method]);
        let mut query = url.query_pairs_mut();
        query.append_pair("channel", place.channel);
        if let Some(thread) = place.thread {
            query.append_pair("ts", thread);
        }
        let ts = |at: Timestamp| format!("{}.{:06}", at.as_second(), at.subsec_microsecond());
        query
            .append_pair("oldest", &ts(period.from))
            .append_pair("latest", &ts(period.until))
            .append_pair("include_all_metadata", "true")
            .append_pair("limit", &progress.page_size.to_string());
        if let Some(cursor) = &progress.cursor {
            query.append_pair("cursor", cursor);
        }
        drop(query);
        url
    }
}

/// The time to wait, if the answer is that of a rate limit.
fn limited(answer: &Answer) -> Option<Duration> {
    #[derive(Deserialize)]
    struct Body {
        error: String,
    }
    let says = || http::json::<Body>(answer).is_some_and(|body| RATE_LIMITED.contains(&&*body.error));
    (answer.status == StatusCode::TOO_MANY_REQUESTS || says())
        .then(|| answer.retry_after(Timestamp::now()).unwrap_or(LIMITED_WAIT))
}

/// A page of a list.
#[derive(Deserialize)]
struct Page {
    #[serde(default)]
    messages: Vec<Posted>,
    #[serde(default)]
    has_more: bool,
    response_metadata: Option<Cursor>,
}

#[derive(Deserialize)]
struct Cursor {
    next_cursor: Option<String>,
}

/// A message in it.
#[derive(Deserialize)]
struct Posted {
    ts: String,
    text: Option<String>,
    bot_id: Option<IgnoredAny>,
    /// Metadata of any app, so of any shape.
    #[serde(default)]
    metadata: serde_json::Value,
}

impl Page {
    fn next(&self) -> Option<String> {
        self.response_metadata.as_ref()?.next_cursor.clone().filter(|cursor| !cursor.is_empty())
    }
}

impl Posted {
    fn carries(&self, key: &IdempotencyKey) -> bool {
        self.metadata["event_type"] == EVENT_TYPE && self.metadata["event_payload"]["key"] == key.as_str()
    }

    /// Whether it may be the message of the item although it shows no key.
    fn may_say(&self, text: &str) -> bool {
        // Slack puts links between these characters; those of the text itself are escaped.
        let letters = |text: &str| -> String {
            text.chars().filter(|c| !c.is_whitespace() && !matches!(c, '<' | '>')).collect()
        };
        self.bot_id.is_some()
            && self.metadata["event_type"].is_null()
            && self.text.as_ref().is_some_and(|posted| letters(posted) == letters(&markup::escaped(text)))
    }
}

/// Errors that mean that this bot can never read the conversation.
pub(super) const UNREADABLE: &[&str] = &[
    "missing_scope",
    "no_permission",
    "not_in_channel",
    "channel_not_found",
    "thread_not_found",
    "method_not_supported_for_channel_type",
];

/// Parses a complete page of a list.
fn listed(answer: &Answer) -> Result<Page, Finding> {
    #[derive(Deserialize)]
    struct Body {
        ok: bool,
        error: Option<String>,
    }
    let body: Option<Body> = if answer.status == StatusCode::OK { http::json(answer) } else { None };
    match body {
        Some(Body { ok: true, .. }) => {
            http::json(answer).ok_or_else(|| unclear("the list of messages is not what Slack documents"))
        }
        // Another request would get the same error.
        Some(Body { error: Some(error), .. }) if UNREADABLE.contains(&&*error) => Err(Finding::CannotTell {
            reason: text::excerpt(&format!("the conversation cannot be read: Slack says `{error}`")),
        }),
        Some(Body { error: Some(error), .. }) => {
            Err(unclear(&text::excerpt(&format!("the messages cannot be listed: Slack says `{error}`"))))
        }
        _ => Err(unclear(&format!("the messages cannot be listed: {}", http::describe(answer)))),
    }
}

pub(super) fn unclear(reason: &str) -> Finding {
    Finding::Unclear { reason: reason.to_owned() }
}
