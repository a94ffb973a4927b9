//! `postrider sim`: the outside world, played by a separate process on loopback.
//!
//! It takes faults on request and keeps its own receipts, so that duplicates and losses are counted by
//! someone else than the system under test.
//!
//! ```text
//!            ┌ faces: webhook.rs, messages.rs, smtp.rs, mail.rs ┐
//! request ──►│ read ─► judge ─► draw a fault ─► write it down   │──► answer, well or badly
//!            └───────────────────────────────────┬──────────────┘
//!   rules.rs: Rules, faults.rs: Dice ┘            └ receipts.rs: Ledger, one fdatasync for many requests
//! ```
//!
//! A receipt is on disk before anything is answered: what the sim acknowledged, it can account for.

mod accept;
mod answer;
mod control;
mod faults;
mod http;
mod mail;
mod messages;
mod receipts;
mod rules;
mod smtp;
mod tally;
mod webhook;

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
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use faults::{Dice, Fault, Rates};
use receipts::Ledger;
use rules::{Rule, Rules};

/// Plays the providers and receivers that Postrider sends to, on loopback, with faults and receipts.
#[derive(Args, Clone, Debug)]
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
    /// Signing secret of the webhooks (`whsec_…`); any of several may match. Without one, nothing is verified.
    #[arg(long = "secret", value_name = "SECRET")]
    pub secrets: Vec<SecretString>,
    /// Bearer token that `POST /messages` must show. Without one, everybody may send.
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
    /// `key` names an Idempotency-Key, webhook-id or Message-ID. Repeat for more.
    #[arg(long = "rule", value_name = "JSON", value_parser = rules::parse_flag)]
    pub rules: Vec<Rule>,
    /// Seed of the faults: the same seed strikes the same requests, counted in order [default: random].
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// How long the fault `latency` waits before it answers.
    #[arg(long, value_name = "N", default_value_t = 250)]
    pub latency_ms: u64,
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
    eprintln!(
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
    webhooks: webhook::Receiver,
    provider: messages::Provider,
    mail: smtp::Users,
    shutdown: CancellationToken,
}

impl World {
    /// The fault that this request meets, by rule or by chance.
    fn draw(&self, to: Option<&str>, key: Option<&str>) -> Option<Fault> {
        self.rules.strike(to, key).or_else(|| self.dice.throw())
    }

    /// Waits, but not past the shutdown.
    async fn wait(&self, time: Duration) {
        // Running out of time is what this is for.
        let _ = tokio::time::timeout(time, self.shutdown.cancelled()).await;
    }
}

/// The times that faults take.
struct Pace {
    latency: Duration,
    stall: Duration,
    retry_after_seconds: u64,
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
            stall: Duration::from_secs(args.stall_seconds),
            retry_after_seconds: args.retry_after_seconds,
        };
        let world = Arc::new(World {
            ledger,
            dice: Dice::new(seed, rates),
            rules: Rules::new(args.rules),
            pace,
            webhooks,
            provider: messages::Provider::new(args.token),
            mail: smtp::Users::new(args.smtp_user.zip(args.smtp_password)),
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

/// An address of this machine that no other can reach.
fn loopback(text: &str) -> anyhow::Result<SocketAddr> {
    let address: SocketAddr =
        text.parse().context("expected an IP address and a port, such as 127.0.0.1:0")?;
    ensure!(address.ip().is_loopback(), "the sim listens on loopback only, such as 127.0.0.1:0 or [::1]:0");
    Ok(address)
}
