//! Vendors by their published APIs, scripted: they act, refuse as they document it, and keep their own limit.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use jiff::Timestamp;
use postrider_testkit::server::{Reaction, Received, Script, ScriptedServer};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::{campaigns::stage::Stage, world::World};

/// A vendor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Resend,
    Twilio,
    Mastodon,
    Bluesky,
}

impl Kind {
    pub fn name(self) -> &'static str {
        match self {
            Self::Resend => "resend",
            Self::Twilio => "twilio",
            Self::Mastodon => "mastodon",
            Self::Bluesky => "bluesky",
        }
    }

    fn channel(self) -> &'static str {
        match self {
            Self::Resend => "email",
            Self::Twilio => "voice",
            Self::Mastodon | Self::Bluesky => "social",
        }
    }

    fn accepted(self) -> Reaction {
        match self {
            Self::Resend | Self::Mastodon => Reaction::json("200 OK", r#"{"id": "1"}"#),
            Self::Twilio => Reaction::json("201 Created", r#"{"sid": "CA1"}"#),
            Self::Bluesky => Reaction::json("200 OK", r#"{"uri": "at://1", "cid": "1"}"#),
        }
    }

    /// The item of a request.
    fn item(self, request: &Received) -> String {
        match self {
            Self::Resend | Self::Mastodon => request.header("idempotency-key").unwrap_or_default().to_owned(),
            Self::Bluesky => request.json()["rkey"].as_str().unwrap_or_default().to_owned(),
            Self::Twilio => {
                let form = String::from_utf8_lossy(&request.body).into_owned();
                form.split('&').find(|field| field.starts_with("To=")).unwrap_or_default().to_owned()
            }
        }
    }

    /// The refusal of a call above the vendor's limit, and the seconds that the account should wait.
    pub fn limited(self) -> (Reaction, Duration) {
        let answer = |headers: &str, body: Value| {
            let headers = format!("{headers}content-type: application/json\r\n");
            Reaction::answer("429 Too Many Requests", &headers, &body.to_string())
        };
        let hours = |hours: i64| Duration::from_secs(hours.unsigned_abs() * 3600);
        let in_hours = |count: i64| Timestamp::now() + hours(count);
        match self {
            // It names no time.
            Self::Resend => (
                answer("", json!({ "statusCode": 429, "name": "daily_quota_exceeded", "message": "No" })),
                hours(1),
            ),
            Self::Twilio => (answer("", json!({ "code": 20429, "status": 429 })), Duration::from_secs(30)),
            Self::Mastodon => {
                let reset = format!("x-ratelimit-reset: {}\r\n", in_hours(3));
                (answer(&reset, json!({ "error": "Too many requests" })), hours(3))
            }
            Self::Bluesky => {
                let reset = format!("ratelimit-reset: {}\r\n", in_hours(20).as_second());
                (answer(&reset, json!({ "error": "RateLimitExceeded" })), hours(20))
            }
        }
    }
}

/// The behavior of a vendor.
#[derive(Clone)]
pub enum Mode {
    /// It acts.
    Acts,
    /// It acts on so many calls and refuses the others by its limit.
    ActsOn(usize),
    /// It acts on so many calls in a span of this length, and refuses the others by its limit.
    Limits(usize, Duration),
    /// It refuses every call like this.
    Refuses(&'static str, Value),
}

pub struct Vendor {
    pub kind: Kind,
    server: ScriptedServer,
    calls: Arc<Calls>,
}

struct Calls {
    kind: Kind,
    state: Mutex<State>,
}

struct State {
    mode: Mode,
    acted: Vec<(Instant, String)>,
    refused: usize,
}

impl Calls {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Script for Calls {
    fn react(&self, request: &Received) -> Reaction {
        if request.path().ends_with("createSession") {
            return Reaction::json("200 OK", r#"{"accessJwt": "jwt", "did": "did:plc:1"}"#);
        }
        let mut state = self.state();
        let acts = match &state.mode {
            Mode::Acts => true,
            Mode::ActsOn(most) => state.acted.len() < *most,
            Mode::Limits(most, span) => {
                state.acted.iter().filter(|(at, _)| at.elapsed() < *span).count() < *most
            }
            Mode::Refuses(..) => false,
        };
        if acts {
            state.acted.push((Instant::now(), self.kind.item(request)));
            return self.kind.accepted();
        }
        state.refused += 1;
        match &state.mode {
            Mode::Refuses(status, body) => Reaction::json(status, &body.to_string()),
            _ => self.kind.limited().0,
        }
    }
}

impl Vendor {
    pub fn start(kind: Kind, mode: Mode) -> anyhow::Result<Self> {
        let state = Mutex::new(State { mode, acted: Vec::new(), refused: 0 });
        let calls = Arc::new(Calls { kind, state });
        Ok(Self { kind, server: ScriptedServer::start_shared(calls.clone())?, calls })
    }

    pub fn set(&self, mode: Mode) {
        self.calls.state().mode = mode;
    }

    /// How many calls it refused.
    pub fn refused(&self) -> usize {
        self.calls.state().refused
    }

    /// How often it acted on each item.
    pub fn acted(&self) -> BTreeMap<String, usize> {
        let mut acted = BTreeMap::new();
        for (_, item) in &self.calls.state().acted {
            *acted.entry(item.clone()).or_default() += 1;
        }
        acted
    }

    /// An account at it, called like the vendor.
    pub async fn account(&self, world: &World, stage: &Stage, limits: &Value) -> anyhow::Result<Uuid> {
        let (name, url) = (self.kind.name(), self.server.url());
        let settings = match self.kind {
            Kind::Resend => json!({ "url": url, "from": "news@example.com" }),
            Kind::Twilio => {
                json!({ "url": url, "account_sid": format!("AC{}", "0".repeat(32)), "from": "+15005550006",
                                    "callback_url": url })
            }
            Kind::Mastodon => json!({ "url": url }),
            Kind::Bluesky => json!({ "url": url, "identifier": "news.example.com" }),
        };
        let id = stage.account(world, name, name, &settings, "hunter2").await?;
        super::limit(stage, id, limits).await?;
        Ok(id)
    }

    /// Deploys a phase of its channel to the list `all` through its account.
    pub async fn deploy(&self, stage: &Stage) -> anyhow::Result<Uuid> {
        let name = self.kind.name();
        let campaign = stage.campaign(name, &[("only", self.kind.channel(), Some("all"), name)]).await?;
        stage.deploy(campaign, "only").await
    }
}
