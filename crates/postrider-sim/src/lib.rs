//! `postrider sim`: the outside world, played by a separate process on loopback.
//!
//! It takes faults on request and keeps its own receipts, so that duplicates and losses are counted by
//! someone else than the system under test.
//!
//! ```text
//!            ┌ faces: resend.rs, twilio.rs, mastodon.rs, bluesky.rs, slack.rs, telegram.rs, whatsapp.rs,       ┐
//!            │        webhook.rs, functions.rs, messages.rs; smtp.rs, mail.rs                                  │
//! request ──►│ read ─► judge ─► remember ─► draw a fault ─► act, write it down                                 │──► answer,
//!            └────────────────────┬─────────┬──────────────────────┬───────────────────────────────────────────┘  well or badly
//!               memory.rs: Memory ┘         │                      └ receipts.rs: Ledger, one fdatasync for many requests
//!          rules.rs: Rules, faults.rs: Dice ┘
//! ```
//!
//! `acting.rs` is the way of a request over HTTP; each face says what is a good request, what a repeat, and how it words
//! its answers. A receipt is on disk before anything is answered: what the sim acknowledged, it can account for. While a
//! face has an outage, `outages.rs` turns away all that comes to it.

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
mod faults;
mod functions;
mod http;
mod lists;
mod mail;
mod mastodon;
mod memory;
mod messages;
mod noted;
mod outages;
mod receipts;
mod resend;
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

use faults::{Dice, Fault, Rates, Strike};
use lists::{Index, Shelf};
use receipts::Ledger;
use rules::{Rule, Rules, Target};

/// The names of the faces, in receipts and rules.
const PROVIDERS: [&str; 11] = [
    "sim", "resend", "twilio", "mastodon", "bluesky", "slack", "telegram", "whatsapp", "webhook", "function",
    "smtp",
];
/// The longest that a fault may last: a day.
const DELAY_MS_MAX: u64 = 24 * 3600 * 1000;
/// How many requests may be stuck at once by the fault `act_late`.
const STUCK_MAX: usize = 10_000;

/// What `--help` says beside the flags.
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
GET and PUT /outages, GET and PUT /callbacks/whatsapp.
docs/sim.md explains them.";

/// Plays the providers and receivers that Postrider sends to, on loopback, with faults and receipts.
#[derive(Args, Clone, Debug)]
#[command(after_help = FACES_AND_FAULTS)]
pub struct SimArgs {
    /// Where to listen; loopback only. Port 0 picks a free one.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:0", value_parser = loopback)]
    pub listen: SocketAddr,
    /// Where to listen for mail; loopback only. Port 0 picks a free one.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:0", value_parser = loopback)]
    pub smtp_listen: SocketAddr,
    /// File that receipts are appended to, one JSON line each [default: a new file in the temp directory].
    #[arg(long, value_name = "FILE")]
    pub receipts: Option<PathBuf>,
    /// Signing secret of webhooks and of calls of functions (`whsec_…`); any of several may match. Without one, nothing
    /// is verified.
    #[arg(long = "secret", value_name = "SECRET")]
    pub secrets: Vec<SecretString>,
    /// What senders must show: a bearer token, Twilio's auth token, Bluesky's password, Telegram's token in the path.
    /// Without one, any will do.
    #[arg(long, value_name = "TOKEN")]
    pub token: Option<SecretString>,
    /// Who must sign in before giving a mail. Without a user, everybody may, under any name.
    #[arg(long, value_name = "USER", requires = "smtp_password")]
    pub smtp_user: Option<String>,
    /// The password of that user.
    #[arg(long, value_name = "PASSWORD", requires = "smtp_user")]
    pub smtp_password: Option<SecretString>,
    /// How often a fault strikes, such as `stall=0.01`; repeat for more. The rates add up to at most 1.
    #[arg(long = "fault", value_name = "NAME=PROBABILITY", value_parser = faults::parse_flag)]
    pub faults: Vec<(String, f64)>,
    /// Whom a fault strikes, such as `{"to": "a@example.com", "fault": "stall", "times": 1}`, before dice are thrown;
    /// `key` names an Idempotency-Key, webhook-id, record key or Message-ID, `provider` a face, `"on": "lookup"` means
    /// look-ups; `delay_ms` and `ending` (`well`, `silence`, `reset`) are for faults that last. Repeat for more.
    #[arg(long = "rule", value_name = "JSON", value_parser = rules::parse_flag)]
    pub rules: Vec<Rule>,
    /// Seed of the faults: the same seed strikes the same requests, counted in order [default: random].
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// How long the fault `latency` waits before it answers.
    #[arg(long, value_name = "N", default_value_t = 250)]
    pub latency_ms: u64,
    /// How long the fault `key_late` leaves a key unknown.
    #[arg(long, value_name = "N", default_value_t = 2000, value_parser = delay_ms())]
    pub key_late_ms: u64,
    /// How long the fault `lookup_early` leaves an action not to be found.
    #[arg(long, value_name = "N", default_value_t = 2000, value_parser = delay_ms())]
    pub lookup_early_ms: u64,
    /// How long the fault `act_late` keeps a request before it is acted on.
    #[arg(long, value_name = "N", default_value_t = 2000, value_parser = delay_ms())]
    pub act_late_ms: u64,
    /// How long after a call or a WhatsApp message the first report about it goes out.
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = delay_ms())]
    pub callback_delay_ms: u64,
    /// How long the fault `stall` keeps a client waiting before it hangs up without an answer.
    #[arg(long, value_name = "N", default_value_t = 600)]
    pub stall_seconds: u64,
    /// What the fault `busy` says in `Retry-After`.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub retry_after_seconds: u64,
}

/// Runs the sim until `shutdown`. Prints one JSON line on stdout once it listens.
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

/// A sim that listens, and answers once it is served.
pub struct Sim {
    world: Arc<World>,
    listener: TcpListener,
    address: SocketAddr,
    smtp_listener: TcpListener,
    smtp_address: SocketAddr,
    writer: JoinHandle<anyhow::Result<()>>,
}

/// What all faces share.
struct World {
    ledger: Ledger,
    dice: Dice,
    rules: Rules,
    pace: Pace,
    access: access::Access,
    memory: Arc<memory::Memory>,
    noted: noted::Noted,
    webhooks: webhook::Receiver,
    messages: Index<Arc<str>>,
    calls: Shelf<twilio::Call>,
    callbacks: callbacks::Callbacks,
    statuses: mastodon::Statuses,
    records: Index<bluesky::Kept>,
    conversations: conversations::Conversations,
    telegram: telegram::Numbers,
    whatsapp: whatsapp::Webhooks,
    outages: outages::Outages,
    mail: smtp::Users,
    /// Room for requests that are acted on later.
    stuck: Arc<Semaphore>,
    /// What goes on although its client may be gone.
    tasks: TaskTracker,
    shutdown: CancellationToken,
}

impl World {
    /// What this request meets, by rule or by chance.
    fn draw(&self, target: &Target<'_>) -> Option<Strike> {
        self.draw_by_rule(target).or_else(|| {
            let fault = self.dice.throw().filter(|fault| fault.strikes(target.asked))?;
            Some(Strike { fault, ending: fault.ending(), delay: self.pace.delay(fault) })
        })
    }

    /// What a rule has for this request.
    fn draw_by_rule(&self, target: &Target<'_>) -> Option<Strike> {
        self.rules.strike(target, |fault| self.pace.delay(fault))
    }

    /// Waits, but not past the shutdown. Whether the time has passed.
    async fn wait(&self, time: Duration) -> bool {
        tokio::time::timeout(time, self.shutdown.cancelled()).await.is_err()
    }
}

/// The times that faults take.
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
    /// Checks the arguments, opens the receipts and starts to listen.
    pub async fn start(args: SimArgs, shutdown: CancellationToken) -> anyhow::Result<Self> {
        let rates = Rates::new(args.faults).context("could not take the --fault rates")?;
        let webhooks = webhook::Receiver::new(&args.secrets)?;
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
            dice: Dice::new(seed, rates),
            rules: Rules::new(args.rules),
            pace,
            access: access::Access::new(args.token),
            memory: Arc::default(),
            noted: noted::Noted::default(),
            webhooks,
            messages: Index::default(),
            calls: Shelf::default(),
            callbacks: callbacks::Callbacks::new(Duration::from_millis(args.callback_delay_ms)),
            statuses: mastodon::Statuses::default(),
            records: Index::default(),
            conversations: conversations::Conversations::default(),
            telegram: telegram::Numbers::default(),
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

    /// The root of its routes, such as `http://127.0.0.1:41234`.
    pub fn http_url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// What the one line on stdout says.
    pub fn announcement(&self) -> serde_json::Value {
        serde_json::json!({
            "http_url": self.http_url(),
            "smtp_address": self.smtp_address.to_string(),
            "receipts": self.world.ledger.path(),
            "seed": self.world.dice.seed(),
            "pid": std::process::id(),
        })
    }

    /// Answers until shutdown. Ends early, with an error, if receipts can no longer be written.
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
                return ended.context("the receipts writer broke off")?.context("the sim stops: it can keep no receipts");
            }
        }
        world.tasks.close();
        world.tasks.wait().await;
        // The last handle on the ledger: the writer finishes its queue and ends.
        drop(world);
        writer.await.context("the receipts writer broke off")?
    }
}

async fn listen(flag: &str, address: SocketAddr) -> anyhow::Result<(TcpListener, SocketAddr)> {
    let listener = TcpListener::bind(address)
        .await
        .with_context(|| format!("could not listen on {address}; `{flag} 127.0.0.1:0` picks a free port"))?;
    let address = listener.local_addr().context("could not read the address the sim listens on")?;
    Ok((listener, address))
}

/// Prints the one line that whoever started the sim is waiting for.
fn announce(announcement: &serde_json::Value) -> std::io::Result<()> {
    let mut stdout = std::io::stdout().lock();
    writeln!(stdout, "{announcement}")?;
    stdout.flush()
}

/// Milliseconds, up to a day.
fn delay_ms() -> clap::builder::RangedU64ValueParser {
    clap::value_parser!(u64).range(..=DELAY_MS_MAX)
}

/// An address of this machine that no other can reach.
fn loopback(text: &str) -> anyhow::Result<SocketAddr> {
    let address: SocketAddr =
        text.parse().context("expected an IP address and a port, such as 127.0.0.1:0")?;
    ensure!(address.ip().is_loopback(), "the sim listens on loopback only, such as 127.0.0.1:0 or [::1]:0");
    Ok(address)
}
