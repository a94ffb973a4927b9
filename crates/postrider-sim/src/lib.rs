//! `postrider sim`: simulates providers and receivers in a separate process on loopback.
//!
//! The sim injects faults on request and keeps its own receipts, so that duplicates and losses are not counted by the
//! system under test.
//!
//! ```text
//!            ┌ faces: resend.rs, twilio.rs, mastodon.rs, bluesky.rs, slack.rs, telegram.rs, whatsapp.rs,       ┐
//!            │        webhook.rs, functions.rs, messages.rs; smtp.rs, mail.rs                                  │
//! request ──►│ read ─► validate ─► remember ─► draw a fault ─► act, write the receipt                          │──► answer
//!            └───────────────────────┬─────────┬──────────────────────┬────────────────────────────────────────┘    or fault
//!                  memory.rs: Memory ┘         │                      └ receipts.rs: Ledger, one fdatasync for many requests
//!                  rules.rs: Rules,  ──────────┘
//!                  faults.rs: FaultSampler
//! ```
//!
//! `acting.rs` has the common path of a request over HTTP; each face defines valid requests, repeats and the bodies of its
//! answers. The sim writes a receipt to disk before it answers, so it can account for every acknowledged request. While a
//! face has an outage, `outages.rs` turns away its requests.

mod accept;
mod access;
mod acting;
mod answer;
mod arguments;
mod bluesky;
mod callbacks;
mod calls;
mod control;
mod conversations;
mod counters;
mod faults;
mod functions;
mod http;
mod lists;
mod mail;
mod mastodon;
mod memory;
mod messages;
mod outages;
mod receipts;
mod resend;
mod results;
mod rules;
mod slack;
mod smtp;
mod tally;
mod telegram;
mod twilio;
mod webhook;
mod whatsapp;

#[cfg(test)]
mod tests;

use std::hash::{BuildHasher, RandomState};
use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, ensure};
use clap::Args;
use secrecy::SecretString;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use faults::{DrawnFault, Fault, FaultSampler, Generation, Rates};
use lists::{Index, RecentList};
use receipts::Ledger;
use rules::{Rule, Rules, Target};

/// The names of the faces, in receipts and rules.
const PROVIDERS: [&str; 11] = [
    "sim", "resend", "twilio", "mastodon", "bluesky", "slack", "telegram", "whatsapp", "webhook", "function",
    "smtp",
];
/// Maximum duration of a fault: a day.
const DELAY_MS_MAX: u64 = 24 * 3600 * 1000;
/// Maximum number of requests that the fault `act_late` delays at a time.
const STUCK_MAX: usize = 10_000;

/// Text after the flags in `--help`.
const FACES_AND_FAULTS: &str = "\
Faces:
  sim       POST /messages, GET /messages?key=KEY
  resend    POST /resend/emails
  twilio    POST and GET /twilio/2010-04-01/Accounts/{sid}/Calls.json
  mastodon  POST /mastodon/api/v1/statuses
            GET /mastodon/api/v1/accounts/verify_credentials, …/accounts/{id}/statuses
  bluesky   POST /bluesky/xrpc/com.atproto.server.createSession, …/com.atproto.repo.putRecord
            GET /bluesky/xrpc/com.atproto.repo.getRecord
  slack     POST /slack/chat.postMessage
            GET and POST /slack/conversations.history, /slack/conversations.replies
  telegram  POST /telegram/bot{token}/sendMessage
  whatsapp  POST /whatsapp/{phone_number_id}/messages
  webhook   POST /hooks/{name}
  function  POST /functions/{name}
  smtp      --smtp-listen

Faults:
  latency, busy, refuse, fail, fail_after, stall, half, reset, reset_before
  key_late      acts and resets; the key is remembered only after a delay
  lookup_early  acts and resets; look-ups find nothing for a delay
  act_late      resets, and acts only after a delay

Control: GET /receipts, GET /receipts/all, GET and PUT /faults, GET, PUT and DELETE /faults/rules,
GET and PUT /outages, GET and PUT /callbacks/whatsapp, /callbacks/resend and /callbacks/results.
docs/sim.md explains them.";

/// Simulate the providers and receivers that Postrider sends to, on loopback, with faults and receipts.
#[derive(Args, Clone, Debug)]
#[command(after_help = FACES_AND_FAULTS)]
pub struct SimArgs {
    /// Listen on this loopback address. Port 0 picks a free port.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:0", value_parser = loopback)]
    pub listen: SocketAddr,
    /// Listen for mail on this loopback address. Port 0 picks a free port.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:0", value_parser = loopback)]
    pub smtp_listen: SocketAddr,
    /// Append receipts to this file, one JSON line each [default: a new file in the temp directory].
    #[arg(long, value_name = "FILE")]
    pub receipts: Option<PathBuf>,
    /// Verify webhooks and calls of functions with this signing secret (`whsec_…`); any of several may match. Without one,
    /// the sim verifies no signatures.
    #[arg(long = "secret", value_name = "SECRET")]
    pub secrets: Vec<SecretString>,
    /// Require this token of senders: as bearer token, Twilio's auth token, Bluesky's password, or Telegram's token in the path.
    /// Without one, the sim accepts any.
    #[arg(long, value_name = "TOKEN")]
    pub token: Option<SecretString>,
    /// Require this user to sign in before a mail. Without one, the sim accepts mails of every client.
    #[arg(long, value_name = "USER", requires = "smtp_password")]
    pub smtp_user: Option<String>,
    /// Password of that user.
    #[arg(long, value_name = "PASSWORD", requires = "smtp_user")]
    pub smtp_password: Option<SecretString>,
    /// Inject a fault with this probability, such as `stall=0.01`; repeat for more. The rates add up to at most 1.
    #[arg(long = "fault", value_name = "NAME=PROBABILITY", value_parser = faults::parse_flag)]
    pub faults: Vec<(String, f64)>,
    /// Inject a fault into matching requests, such as `{"to": "a@example.com", "fault": "stall", "times": 1}`, before random
    /// faults; `key` is an Idempotency-Key, webhook-id, record key or Message-ID, `provider` a face, `"on": "lookup"` selects
    /// look-ups; `delay_ms` and `ending` (`well`, `silence`, `reset`) are for faults with a delay. Repeat for more.
    #[arg(long = "rule", value_name = "JSON", value_parser = rules::parse_flag)]
    pub rules: Vec<Rule>,
    /// Use this seed for random faults: the same seed selects the same requests, counted in order [default: random].
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// Delay the answer by this time for the fault `latency`.
    #[arg(long, value_name = "N", default_value_t = 250)]
    pub latency_ms: u64,
    /// Store the key after this time for the fault `key_late`.
    #[arg(long, value_name = "N", default_value_t = 2000, value_parser = delay_ms())]
    pub key_late_ms: u64,
    /// Let look-ups find an action after this time for the fault `lookup_early`.
    #[arg(long, value_name = "N", default_value_t = 2000, value_parser = delay_ms())]
    pub lookup_early_ms: u64,
    /// Act on a request after this time for the fault `act_late`.
    #[arg(long, value_name = "N", default_value_t = 2000, value_parser = delay_ms())]
    pub act_late_ms: u64,
    /// Send the first report about a call, a mail at Resend or a WhatsApp message after this time.
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = delay_ms())]
    pub callback_delay_ms: u64,
    /// Disconnect a client after this time for the fault `stall`, without an answer.
    #[arg(long, value_name = "N", default_value_t = 600)]
    pub stall_seconds: u64,
    /// Set `Retry-After` to this for the fault `busy`.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub retry_after_seconds: u64,
}

/// Runs the sim until `shutdown`. Prints one JSON line to stdout when it listens.
pub async fn run(args: SimArgs, shutdown: CancellationToken) -> anyhow::Result<()> {
    let sim = Sim::start(args, shutdown).await?;
    announce(&sim.announcement()).context("could not announce the sim")?;
    // Whether it can be written changes nothing: its reader may be gone.
    let _ = writeln!(
        std::io::stderr().lock(),
        "sim: listening on {}, for mail on {}, receipts go to {}",
        sim.http_url(),
        sim.smtp_address,
        sim.world.ledger.path().display()
    );
    sim.serve().await
}

/// A listening sim. It answers while [`Sim::serve`] runs.
pub struct Sim {
    world: Arc<World>,
    listener: TcpListener,
    address: SocketAddr,
    smtp_listener: TcpListener,
    smtp_address: SocketAddr,
    writer: JoinHandle<anyhow::Result<()>>,
}

/// The state that all faces share.
struct World {
    ledger: Ledger,
    sampler: FaultSampler,
    rules: Rules,
    pace: Pace,
    access: access::Access,
    memory: Arc<memory::Memory>,
    counters: counters::Counters,
    webhooks: webhook::Verifier,
    messages: Index<Arc<str>>,
    calls: RecentList<twilio::Call>,
    callbacks: callbacks::Callbacks,
    resend: resend::Webhooks,
    results: results::Results,
    statuses: mastodon::Statuses,
    records: Index<bluesky::Record>,
    conversations: conversations::Conversations,
    telegram: telegram::MessageIds,
    whatsapp: whatsapp::Webhooks,
    outages: outages::Outages,
    mail: smtp::Users,
    /// Limits the requests that the fault `act_late` delays.
    stuck: Arc<Semaphore>,
    /// Tasks that continue after their client disconnected.
    tasks: TaskTracker,
    shutdown: CancellationToken,
}

impl World {
    /// Draws the fault of a request, by rule or at random.
    fn draw(&self, target: &Target<'_>) -> Option<DrawnFault> {
        self.draw_by_rule(target).or_else(|| {
            let fault = self.sampler.sample().filter(|fault| fault.applies_to(target.kind))?;
            Some(DrawnFault { fault, ending: fault.ending(), delay: self.pace.delay(fault), held_by: None })
        })
    }

    /// Draws the fault that a rule sets for a request.
    fn draw_by_rule(&self, target: &Target<'_>) -> Option<DrawnFault> {
        self.rules.draw(target, |fault| self.pace.delay(fault))
    }

    /// Waits before a late answer, at most until the shutdown.
    async fn wait_to_answer(&self, delay: Duration, held_by: Option<Generation>) {
        match held_by {
            None => {
                self.wait(delay).await;
            }
            Some(rules) => tokio::select! {
                () = self.rules.replaced(rules) => {}
                () = self.shutdown.cancelled() => {}
            },
        }
    }

    /// Waits for this time, at most until the shutdown. Returns whether the time has passed.
    async fn wait(&self, time: Duration) -> bool {
        tokio::time::timeout(time, self.shutdown.cancelled()).await.is_err()
    }
}

/// The durations of faults.
struct Pace {
    latency: Duration,
    key_late: Duration,
    lookup_early: Duration,
    act_late: Duration,
    stall: Duration,
    retry_after_seconds: u64,
}

impl Pace {
    fn delay(&self, fault: Fault) -> Duration {
        match fault {
            Fault::Latency => self.latency,
            Fault::KeyLate => self.key_late,
            Fault::LookupEarly => self.lookup_early,
            Fault::ActLate => self.act_late,
            _ => Duration::ZERO,
        }
    }
}

impl Sim {
    /// Checks the arguments, opens the receipts file and starts to listen.
    pub async fn start(args: SimArgs, shutdown: CancellationToken) -> anyhow::Result<Self> {
        let rates = Rates::new(args.faults).context("the --fault rates are not valid")?;
        let webhooks = webhook::Verifier::new(&args.secrets)?;
        // 53 bits, which every reader of JSON can hold.
        let seed = args.seed.unwrap_or_else(|| RandomState::new().hash_one(0) >> 11);
        let (ledger, writer) = match &args.receipts {
            Some(path) => Ledger::open(path)?,
            None => Ledger::in_temp_dir()?,
        };
        let (listener, address) = listen("--listen", args.listen).await?;
        let (smtp_listener, smtp_address) = listen("--smtp-listen", args.smtp_listen).await?;
        let pace = Pace {
            latency: Duration::from_millis(args.latency_ms),
            key_late: Duration::from_millis(args.key_late_ms),
            lookup_early: Duration::from_millis(args.lookup_early_ms),
            act_late: Duration::from_millis(args.act_late_ms),
            stall: Duration::from_secs(args.stall_seconds),
            retry_after_seconds: args.retry_after_seconds,
        };
        let world = Arc::new(World {
            ledger,
            sampler: FaultSampler::new(seed, rates),
            rules: Rules::new(args.rules),
            pace,
            access: access::Access::new(args.token),
            memory: Arc::default(),
            counters: counters::Counters::default(),
            webhooks,
            messages: Index::default(),
            calls: RecentList::default(),
            callbacks: callbacks::Callbacks::new(Duration::from_millis(args.callback_delay_ms)),
            resend: resend::Webhooks::default(),
            results: results::Results::default(),
            statuses: mastodon::Statuses::default(),
            records: Index::default(),
            conversations: conversations::Conversations::default(),
            telegram: telegram::MessageIds::default(),
            whatsapp: whatsapp::Webhooks::default(),
            outages: outages::Outages::default(),
            mail: smtp::Users::new(args.smtp_user.zip(args.smtp_password)),
            stuck: Arc::new(Semaphore::new(STUCK_MAX)),
            tasks: TaskTracker::new(),
            shutdown,
        });
        let writer = tokio::task::spawn_blocking(move || writer.run());
        Ok(Self { world, listener, address, smtp_listener, smtp_address, writer })
    }

    /// Base URL of the routes, such as `http://127.0.0.1:41234`.
    pub fn http_url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The JSON line on stdout.
    pub fn announcement(&self) -> serde_json::Value {
        serde_json::json!({
            "http_url": self.http_url(),
            "smtp_address": self.smtp_address.to_string(),
            "receipts": self.world.ledger.path(),
            "seed": self.world.sampler.seed(),
            "pid": std::process::id(),
        })
    }

    /// Answers until shutdown. Fails early if receipts can no longer be written.
    pub async fn serve(self) -> anyhow::Result<()> {
        let Self { world, listener, smtp_listener, mut writer, .. } = self;
        let faces = async {
            tokio::join!(
                accept::accept(&world, listener, http::serve_connection),
                accept::accept(&world, smtp_listener, smtp::serve_connection),
            )
        };
        tokio::select! {
            _ = faces => {}
            ended = &mut writer => {
                return ended.context("the receipts writer panicked")?.context("the sim stops because it cannot write receipts");
            }
        }
        world.tasks.close();
        world.tasks.wait().await;
        // This drops the last handle of the ledger: the writer finishes its queue and ends.
        drop(world);
        writer.await.context("the receipts writer panicked")?
    }
}

async fn listen(flag: &str, address: SocketAddr) -> anyhow::Result<(TcpListener, SocketAddr)> {
    let listener = TcpListener::bind(address)
        .await
        .with_context(|| format!("could not listen on {address}; `{flag} 127.0.0.1:0` picks a free port"))?;
    let address = listener.local_addr().context("could not read the address the sim listens on")?;
    Ok((listener, address))
}

/// Prints the JSON line for which the process that started the sim waits.
fn announce(announcement: &serde_json::Value) -> std::io::Result<()> {
    let mut stdout = std::io::stdout().lock();
    writeln!(stdout, "{announcement}")?;
    stdout.flush()
}

/// Milliseconds, up to a day.
fn delay_ms() -> clap::builder::RangedU64ValueParser {
    clap::value_parser!(u64).range(..=DELAY_MS_MAX)
}

/// Parses an address that only this machine can reach.
fn loopback(text: &str) -> anyhow::Result<SocketAddr> {
    let address: SocketAddr =
        text.parse().context("expected an IP address and a port, such as 127.0.0.1:0")?;
    ensure!(address.ip().is_loopback(), "the sim listens on loopback only, such as 127.0.0.1:0 or [::1]:0");
    Ok(address)
}
