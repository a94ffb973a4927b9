//! Look-ups within Slack's limit: one `conversations.history` a minute for an app outside the marketplace. A reply whose answer was lost waits
//! for its look-up, and is never posted twice; and a vendor that asks for patience without a time gets it from every process.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use postrider_testkit::server::{Reaction, Received, Script, ScriptedServer};
use serde_json::{Value, json};
use url::form_urlencoded;

use super::{
    bots::{Bots, OFTEN, Serving},
    ingress::vendors::Vendor,
};
use crate::{sql::execute, world::eventually};

/// Chat vendors that keep count.
struct Vendors {
    server: ScriptedServer,
    shared: Arc<Shared>,
}

struct Shared {
    state: Mutex<State>,
    /// Time between two look-ups.
    every: Duration,
}

#[derive(Default)]
struct State {
    /// Time that has passed beside that of the clock.
    passed: Duration,
    posts: Vec<Value>,
    looked_up_at: Option<(Instant, Duration)>,
    look_ups: usize,
    limited: usize,
    /// It refuses every message by its rate limit, without a time.
    is_busy: bool,
    /// The answers to first posts arrive.
    answers: bool,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `chat.postMessage`: it posts, and the answer to the first post of a key is lost.
    fn post(&self, request: &Received) -> Reaction {
        let mut state = self.state();
        if state.is_busy {
            return Reaction::json("429 Too Many Requests", r#"{"ok": false, "error": "ratelimited"}"#);
        }
        let mut message = request.json();
        let ts = format!("{}.{:06}", jiff::Timestamp::now().as_second(), state.posts.len());
        message["ts"] = json!(ts);
        message["bot_id"] = json!("B1");
        let key = message["metadata"]["event_payload"]["key"].clone();
        let is_first = !state.posts.iter().any(|post| post["metadata"]["event_payload"]["key"] == key);
        let answer = json!({ "ok": true, "channel": message["channel"], "ts": ts });
        state.posts.push(message);
        if is_first && !state.answers {
            return Reaction::close_after("");
        }
        Reaction::json("200 OK", &answer.to_string())
    }

    /// `conversations.history` and `conversations.replies`, within the limit.
    fn list(&self, request: &Received) -> Reaction {
        let mut state = self.state();
        let (now, passed) = (Instant::now(), state.passed);
        let since = state.looked_up_at.map(|(at, had_passed)| now - at + (passed - had_passed));
        if let Some(since) = since.filter(|since| *since < self.every) {
            state.limited += 1;
            let wait = (self.every - since).as_secs() + 1;
            let headers = format!("retry-after: {wait}\r\ncontent-type: application/json\r\n");
            return Reaction::answer(
                "429 Too Many Requests",
                &headers,
                r#"{"ok": false, "error": "ratelimited"}"#,
            );
        }
        state.looked_up_at = Some((now, passed));
        state.look_ups += 1;
        let query = request.path().split_once('?').map_or("", |(_, query)| query);
        let field = |name: &str| {
            form_urlencoded::parse(query.as_bytes())
                .find(|(known, _)| known == name)
                .map(|(_, value)| value.into_owned())
        };
        let (channel, thread) = (field("channel"), field("ts"));
        let listed: Vec<&Value> = state
            .posts
            .iter()
            .filter(|post| post["channel"].as_str() == channel.as_deref())
            .filter(|post| thread.is_none() || post["thread_ts"].as_str() == thread.as_deref())
            .collect();
        Reaction::json("200 OK", &json!({ "ok": true, "messages": listed, "has_more": false }).to_string())
    }
}

impl Script for Shared {
    fn react(&self, request: &Received) -> Reaction {
        let path = request.path();
        if path.contains("/conversations.") {
            return self.list(request);
        }
        if path.starts_with("/slack/") {
            return self.post(request);
        }
        let mut state = self.state();
        if path.starts_with("/whatsapp/") && state.is_busy {
            let busy = json!({ "error": { "code": 130_429, "message": "Rate limit hit" } });
            return Reaction::json("400 Bad Request", &busy.to_string());
        }
        state.posts.push(request.json());
        let answer = if path.starts_with("/whatsapp/") {
            json!({ "messages": [{ "id": "wamid.1" }] })
        } else {
            json!({ "ok": true, "result": { "message_id": 1, "chat": { "id": 1 } } })
        };
        Reaction::json("200 OK", &answer.to_string())
    }
}

impl Vendors {
    fn start(every: Duration) -> anyhow::Result<Self> {
        let shared = Arc::new(Shared { state: Mutex::default(), every });
        Ok(Self { server: ScriptedServer::start_shared(shared.clone())?, shared })
    }

    /// How often each text was posted.
    fn posted(&self) -> BTreeMap<String, usize> {
        let mut posted = BTreeMap::new();
        for post in &self.shared.state().posts {
            let text = post["text"].as_str().or_else(|| post["text"]["body"].as_str()).unwrap_or_default();
            *posted.entry(text.to_owned()).or_default() += 1;
        }
        posted
    }
}

/// The look-ups of the Slack account are limited like this; by its vendor's limit, when nothing is given.
async fn limit(bots: &Bots, limits: &Value) -> anyhow::Result<()> {
    let account = bots.account(Vendor::Slack).0;
    let sql = format!("update tenancy.provider_accounts set limits = '{limits}' where id = '{account}'");
    Ok(execute(&bots.admin, sql).await?)
}

async fn sent(bots: &Bots) -> anyhow::Result<i64> {
    bots.count("select count(*) from channels.channel_outbox where status = 'sent'").await
}

// Six replies whose first answer was lost, at the default settings.
#[tokio::test(flavor = "multi_thread")]
async fn replies_in_doubt_wait_for_their_look_ups_and_none_is_posted_twice() -> anyhow::Result<()> {
    const MINUTE: Duration = Duration::from_secs(61);
    let vendors = Vendors::start(Duration::from_secs(60))?;
    let bots = Bots::new(&vendors.server.url()).await?;
    limit(&bots, &json!({})).await?;
    let dispatcher = Serving::start(&bots.world, "dispatcher", "")?;
    for n in 1..=6 {
        bots.reply(Vendor::Slack, n).await?;
    }
    let doubted = "select count(*) from channels.channel_outbox where in_doubt_since is not null";
    eventually("all are in doubt", async || Ok(bots.count(doubted).await? == 6)).await?;
    // A minute after the other: the vendor first, so that it never answers for an earlier time.
    let minute_passes = "update channels.channel_outbox set next_attempt_at = next_attempt_at - interval '61 seconds' where status = 'pending';
                         update execution.account_states set next_look_up_at = next_look_up_at - interval '61 seconds'";
    let held = "select count(*) from channels.channel_outbox where status = 'sending'";
    eventually("all are sent", async || {
        if bots.count(held).await? == 0 {
            vendors.shared.state().passed += MINUTE;
            execute(&bots.admin, minute_passes).await?;
        }
        Ok(sent(&bots).await? == 6)
    })
    .await?;
    let posted = vendors.posted();
    assert_eq!((posted.len(), posted.values().max()), (6, Some(&1)), "{posted:?}");
    let attempts = "select max(attempt_count)::bigint from channels.channel_outbox";
    assert_eq!(bots.count(attempts).await?, 1, "waiting counts no attempt");
    dispatcher.stop()
}

// Three processes share the limit.
#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_replies_in_doubt_share_the_look_ups_of_all_processes() -> anyhow::Result<()> {
    const REPLIES: u32 = 100;
    // Scaled: ten a second instead of one a minute. The vendor measures when they arrive, so it is lenient by half.
    let vendors = Vendors::start(Duration::from_millis(50))?;
    let bots = Bots::new(&vendors.server.url()).await?;
    limit(&bots, &json!({ "look_ups_per_minute": 600 })).await?;
    for n in 1..=REPLIES {
        bots.reply(Vendor::Slack, n).await?;
    }
    let dispatchers =
        (0..3).map(|_| Serving::start(&bots.world, "dispatcher", "")).collect::<Result<Vec<_>, _>>()?;
    eventually("all are sent", async || Ok(sent(&bots).await? == i64::from(REPLIES))).await?;
    let posted = vendors.posted();
    assert_eq!((posted.len(), posted.values().max()), (REPLIES as usize, Some(&1)), "none twice");
    let counted = "select count(*) from channels.channel_outbox where attempt_count > 1 or status <> 'sent'";
    assert_eq!(bots.count(counted).await?, 0, "waiting counts no attempt");
    let (look_ups, limited) = {
        let state = vendors.shared.state();
        (state.look_ups, state.limited)
    };
    assert!(limited * 4 <= look_ups, "{limited} of {look_ups} look-ups were over the limit");
    dispatchers.into_iter().try_for_each(Serving::stop)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rate_limit_without_a_time_counts_no_attempt_and_every_process_waits() -> anyhow::Result<()> {
    let vendors = Vendors::start(Duration::ZERO)?;
    let bots = Bots::new(&vendors.server.url()).await?;
    vendors.shared.state().is_busy = true;
    vendors.shared.state().answers = true;
    let first = Serving::start(&bots.world, "dispatcher", OFTEN)?;
    let limited = [Vendor::Slack, Vendor::Whatsapp];
    let mut replies = Vec::new();
    for vendor in limited {
        let reply = bots.reply(vendor, 1).await?;
        let row = bots.until(reply, "it waits", |row| row.claims == 1 && row.status == "pending").await?;
        assert_eq!((row.attempt_count, row.is_in_doubt), (0, false), "{row:?}");
        assert!((30.0..60.0).contains(&row.waits_seconds), "{row:?}");
        let account = bots.account(vendor).0;
        let waits = format!(
            "select count(*) from execution.account_states
              where account_id = '{account}' and wait_until between now() + interval '20 seconds' and now() + interval '60 seconds'"
        );
        assert_eq!(bots.count(&waits).await?, 1, "{vendor:?}");
        replies.push(reply);
    }
    first.stop()?;
    // Another process knows it, and everything else goes on.
    let second = Serving::start(&bots.world, "dispatcher", OFTEN)?;
    for vendor in limited {
        replies.push(bots.reply(vendor, 2).await?);
    }
    let other = bots.reply(Vendor::Telegram, 3).await?;
    bots.ends(other, "sent").await?;
    for reply in &replies[2..] {
        assert_eq!(bots.row(*reply).await?.claims, 0, "the account was called");
    }
    vendors.shared.state().is_busy = false;
    execute(&bots.admin, "update execution.account_states set wait_until = now()").await?;
    bots.make_due().await?;
    for reply in replies {
        let row = bots.ends(reply, "sent").await?;
        assert_eq!(row.attempt_count, 0, "{row:?}");
    }
    let posted = vendors.posted();
    assert_eq!((posted.len(), posted.values().max()), (5, Some(&1)), "{posted:?}");
    second.stop()
}
