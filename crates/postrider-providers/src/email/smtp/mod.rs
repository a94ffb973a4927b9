//! SMTP: one connection per mail, and a verdict for each way it can end.
//!
//! ```text
//! connect ─ greeting ─ EHLO ─ [STARTTLS ─ EHLO] ─ [AUTH] ─ MAIL ─ RCPT ─ DATA ─ text ═ dot ═ reply ─ QUIT
//! └──────────── the session ───────────────────────────┘└── the envelope ──┘     └ the answer ┘
//! ```
//!
//! | what comes back | session | envelope | text | answer |
//! |---|---|---|---|---|
//! | 2xx (354 to `DATA`) | go on | go on | – | delivered |
//! | 4xx | not sent | not sent | – | not sent |
//! | 5xx | not sent | rejected | – | rejected |
//! | 530 to the envelope | – | not sent | – | rejected |
//! | the connection breaks while we write | not sent | not sent | not sent | not sent |
//! | another reply, garbage, the end, nothing in time | not sent | not sent | not sent | **unknown** |
//!
//! Until the dot has left there is no mail, whatever breaks (RFC 5321, 4.1.1.4). From then on only a reply tells: 4yz
//! and 5yz mean that the server did not take it (4.2.1), and silence means nothing. `QUIT` changes no verdict.
//!
//! What fails in the session is the fault of the account or the server and says nothing about this mail, so it is
//! never a rejection. That includes a wrong password (535): nothing was sent, somebody may correct the account while
//! the worker tries again, and a server whose own list of users is out of order says the same.

mod compose;
mod wire;

use std::{
    sync::{Arc, OnceLock},
    time::{Duration, SystemTime},
};

use async_trait::async_trait;
use base64::{Engine, engine::general_purpose::STANDARD};
use postrider_model::{Channel, IdempotencyKey, Manifest, Message, Outcome, Span};
use postrider_store::Reservation;
use rustls::pki_types::ServerName;
use secrecy::{ExposeSecret, SecretString};
use serde::Deserialize;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_rustls::TlsConnector;
use url::Host;

pub(super) use self::compose::mailbox;
use self::{
    compose::{Mail, Sender, compose},
    wire::{Lost, Reply, Wire},
};
use crate::{
    guard::GuardedClient,
    provider::{Account, Adapter, InvalidAccount, Provider},
    text,
};

const MANIFEST: Manifest = Manifest::new("smtp", &[Channel::Email]);

/// The share of a call's time in which the mail must be handed over; the rest is for the answer. Servers look for spam and
/// viruses before they answer, and to give up too early is to put a mail in doubt that was taken.
const HAND_OVER_SHARE: u32 = 3;
/// How long a server may take to say goodbye. Nobody needs to hear it.
const GOODBYE_WITHIN: Duration = Duration::from_secs(1);

/// The vendor; `docs/providers.md` says what it takes.
pub struct SmtpAdapter {
    client: GuardedClient,
    tls: OnceLock<Result<TlsConnector, rustls::Error>>,
}

impl SmtpAdapter {
    /// Reaches what this client may reach, in the time that it has.
    #[must_use]
    pub fn new(client: &GuardedClient) -> Self {
        Self { client: client.clone(), tls: OnceLock::new() }
    }
}

impl Adapter for SmtpAdapter {
    fn manifest(&self) -> &'static Manifest {
        &MANIFEST
    }

    fn open(&self, account: &Account<'_>) -> Result<Arc<dyn Provider>, InvalidAccount> {
        Ok(Arc::new(self.server(account)?))
    }
}

/// What an account may set.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Settings {
    host: String,
    port: Option<u16>,
    #[serde(default)]
    security: Security,
    user: Option<String>,
    from: String,
    reply_to: Option<String>,
    hello: Option<String>,
}

/// How a connection is kept from being read and changed on its way.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Security {
    /// TLS from the first byte.
    #[default]
    Tls,
    /// TLS after `STARTTLS`, and no word more without it.
    StartTls,
    /// Not at all, for development.
    None,
}

impl Security {
    const fn port(self) -> u16 {
        match self {
            Self::Tls => 465,
            Self::StartTls => 587,
            Self::None => 25,
        }
    }
}

impl SmtpAdapter {
    fn server(&self, account: &Account<'_>) -> Result<Server, InvalidAccount> {
        let settings = Settings::deserialize(account.settings).map_err(|error| {
            let example =
                r#"{"host": "smtp.example.com", "user": "mailer", "from": "News <news@example.com>"}"#;
            invalid(format!("{error}; the settings of `smtp` are like {example}"))
        })?;
        let security = settings.security;
        if security == Security::None && !self.client.policy().allow_private {
            return Err(invalid(
                "`security` = `none` sends mails and passwords in the clear; use `tls` or `starttls`, or set \
                 `outbound.allow_private = true` for development",
            ));
        }
        let host = Host::parse(&settings.host)
            .map_err(|_| invalid("`host` is not the name of a server, like smtp.example.com"))?;
        self.client.check_host(&host).map_err(|error| invalid(error.to_string()))?;
        let port = settings.port.unwrap_or(security.port());
        if port == 0 {
            return Err(invalid("`port` is 0; usual are 465 with `tls` and 587 with `starttls`"));
        }
        let mailbox = |name: &str, given: &str| {
            compose::mailbox(given).map_err(|wrong| invalid(format!("`{name}` {wrong}")))
        };
        let from = mailbox("from", &settings.from)?;
        let reply_to = settings.reply_to.map(|given| mailbox("reply_to", &given)).transpose()?;
        let hello = settings.hello.unwrap_or_else(|| from.email.domain().to_owned());
        if hello.is_empty() || !hello.chars().all(|c| c.is_ascii_alphanumeric() || ".-_:[]".contains(c)) {
            return Err(invalid("`hello` is not the name of a machine, like mail.example.com"));
        }
        let tls = match security {
            Security::None => None,
            Security::Tls | Security::StartTls => Some(self.connector()?),
        };
        Ok(Server {
            client: self.client.clone(),
            host,
            port,
            security,
            tls,
            login: login(settings.user, account.secret)?,
            sender: Sender { from, reply_to },
            hello,
        })
    }

    /// Made once: it reads the certificates of this machine.
    fn connector(&self) -> Result<TlsConnector, InvalidAccount> {
        self.tls.get_or_init(wire::tls_connector).clone().map_err(|error| {
            invalid(format!(
                "no TLS is possible ({error}); are root certificates installed (`apt-get install ca-certificates`)?"
            ))
        })
    }
}

fn login(user: Option<String>, password: &SecretString) -> Result<Option<Login>, InvalidAccount> {
    let bad = |text: &str| text.is_empty() || text.contains(char::is_control);
    match user {
        None if password.expose_secret().is_empty() => Ok(None),
        None => Err(invalid("there is a password and no `user`; set it, or store an empty password")),
        Some(user) if bad(&user) => Err(invalid("`user` is empty or holds a control character")),
        Some(_) if bad(password.expose_secret()) => Err(invalid(
            "`user` needs a password without control characters; store it as the account's secret",
        )),
        Some(user) => Ok(Some(Login { user, password: password.clone() })),
    }
}

struct Login {
    user: String,
    password: SecretString,
}

/// An account at a mail server.
struct Server {
    client: GuardedClient,
    host: Host,
    port: u16,
    security: Security,
    tls: Option<TlsConnector>,
    login: Option<Login>,
    sender: Sender,
    hello: String,
}

#[async_trait]
impl Provider for Server {
    async fn call(&self, reservation: &Reservation, message: &Message) -> Outcome {
        self.send(reservation.key(), message).await
    }
}

impl Server {
    async fn send(&self, key: &IdempotencyKey, message: &Message) -> Outcome {
        let mail = match compose(&self.sender, key, message) {
            Ok(mail) => mail,
            Err(reason) => return Outcome::Rejected { reason },
        };
        let total = self.client.limits().total;
        let patience = total / HAND_OVER_SHARE;
        let (begun, begun_at) = (Instant::now(), SystemTime::now());
        let deadline = begun + patience;
        let late = || not_sent(format!("{} did not ask for the mail within {}", self.host, Span(patience)));
        let (mut wire, features) = match timeout_at(deadline, self.begin()).await {
            Ok(Ok(begun)) => begun,
            Ok(Err(outcome)) => return outcome,
            Err(_) => return late(),
        };
        match timeout_at(deadline, self.address(&mut wire, &features, &mail)).await {
            Ok(Ok(())) => {}
            Ok(Err(outcome)) => {
                say_goodbye(wire);
                return outcome;
            }
            Err(_) => return late(),
        }
        match timeout_at(deadline, wire.write_text(&mail.bytes)).await {
            Ok(Ok(())) => {}
            Ok(Err(lost)) => return not_sent(self.lost(&lost)),
            Err(_) => {
                return not_sent(format!("{} did not read the mail within {}", self.host, Span(patience)));
            }
        }
        // A process that stood still wakes up here. By now somebody may have concluded that the mail was never sent, so the
        // dot that would send it stays unsaid. One clock stands still with the machine, the other can be set back.
        if begun.elapsed().max(begun_at.elapsed().unwrap_or_default()) > total {
            return not_sent("the worker was held up before the end of the mail".to_owned());
        }
        self.end(wire, &mail, begun + total).await
    }

    /// The envelope, up to the point where the server waits for the text.
    async fn address(&self, wire: &mut Wire, features: &Features, mail: &Mail) -> Result<(), Outcome> {
        if let Some(login) = &self.login {
            self.sign_in(wire, features, login).await?;
        }
        let parameters = self.parameters(features, mail)?;
        judge_envelope(&self.host, wire.ask(&format!("MAIL FROM:<{}>{parameters}", mail.from)).await, 2)?;
        judge_envelope(&self.host, wire.ask(&format!("RCPT TO:<{}>", mail.to)).await, 2)?;
        judge_envelope(&self.host, wire.ask("DATA").await, 3)?;
        Ok(())
    }

    /// The dot and the answer.
    async fn end(&self, mut wire: Wire, mail: &Mail, deadline: Instant) -> Outcome {
        if let Err(lost) = wire.is_silent() {
            return not_sent(self.lost(&lost));
        }
        // From here on the server may have all of it.
        let Ok(answer) = timeout_at(deadline, wire.end_text()).await else {
            let reason = format!("{} did not answer in time; the mail may have been taken", self.host);
            return Outcome::Unknown { reason };
        };
        say_goodbye(wire);
        judge_answer(&self.host, &mail.id, &answer)
    }

    /// A connection, secured as the account wants it, and what the server says it can do.
    async fn begin(&self) -> Result<(Wire, Features), Outcome> {
        let within = self.client.limits().connect;
        let connected = timeout(within, self.connect(within)).await;
        let mut wire = connected
            .unwrap_or_else(|_| Err(format!("it took longer than {}", Span(within))))
            .map_err(|why| not_sent(format!("could not reach {}: {why}", self.host)))?;
        judge_session(&self.host, wire.reply().await, 2)?;
        let features = self.hello(&mut wire).await?;
        if self.security != Security::StartTls {
            return Ok((wire, features));
        }
        if !features.has("STARTTLS") {
            return Err(not_sent(format!(
                "{} does not offer STARTTLS, and nothing is sent in the clear",
                self.host
            )));
        }
        judge_session(&self.host, wire.ask("STARTTLS").await, 2)?;
        let mut wire = self.encrypt(wire).await.map_err(|lost| not_sent(self.lost(&lost)))?;
        let features = self.hello(&mut wire).await?;
        Ok((wire, features))
    }

    /// Name, TCP and TLS. Only addresses that were checked are connected to.
    async fn connect(&self, within: Duration) -> Result<Wire, String> {
        let addresses =
            self.client.resolve(&self.host, self.port).await.map_err(|error| text::causes(&error))?;
        let wire = Wire::connect(&addresses, within).await.map_err(|error| text::causes(&error))?;
        match self.security {
            Security::Tls => self.encrypt(wire).await.map_err(|lost| text::causes(&lost)),
            Security::StartTls | Security::None => Ok(wire),
        }
    }

    /// TLS with the name that the account has, whatever address it led to.
    async fn encrypt(&self, wire: Wire) -> Result<Wire, Lost> {
        let name = match &self.host {
            Host::Domain(name) => ServerName::try_from(name.clone()).ok(),
            Host::Ipv4(address) => Some(std::net::IpAddr::from(*address).into()),
            Host::Ipv6(address) => Some(std::net::IpAddr::from(*address).into()),
        };
        match (&self.tls, name) {
            (Some(tls), Some(name)) => wire.encrypt(tls, name).await,
            _ => Err(Lost::Garbage("its name cannot be in a certificate".to_owned())),
        }
    }

    async fn hello(&self, wire: &mut Wire) -> Result<Features, Outcome> {
        let reply = judge_session(&self.host, wire.ask(&format!("EHLO {}", self.hello)).await, 2)?;
        Ok(Features::of(&reply))
    }

    async fn sign_in(&self, wire: &mut Wire, features: &Features, login: &Login) -> Result<(), Outcome> {
        let (user, password) = (&login.user, login.password.expose_secret());
        let last = if features.offers("AUTH", "PLAIN") {
            wire.ask(&format!("AUTH PLAIN {}", STANDARD.encode(format!("\0{user}\0{password}")))).await
        } else if features.offers("AUTH", "LOGIN") {
            for command in ["AUTH LOGIN", &STANDARD.encode(user)] {
                let reply = wire.ask(command).await;
                judge_session(&self.host, reply, 3)?;
            }
            wire.ask(&STANDARD.encode(password)).await
        } else {
            return Err(not_sent(format!(
                "{} offers no way to sign in that we know (PLAIN, LOGIN)",
                self.host
            )));
        };
        judge_session(&self.host, last, 2).map(drop)
    }

    /// What `MAIL` has to say about the mail, or why the server cannot take it.
    fn parameters(&self, features: &Features, mail: &Mail) -> Result<String, Outcome> {
        let mut parameters = String::new();
        if mail.needs_utf8() {
            if !features.has("SMTPUTF8") {
                let reason = format!(
                    "an address has letters beyond ASCII, and {} cannot take that (no SMTPUTF8)",
                    self.host
                );
                return Err(Outcome::Rejected { reason });
            }
            parameters.push_str(" SMTPUTF8");
            if features.has("8BITMIME") {
                parameters.push_str(" BODY=8BITMIME");
            }
        }
        if let Some(size_max) = features.size_max().filter(|size_max| mail.bytes.len() as u64 > *size_max) {
            let reason =
                format!("the mail has {} bytes, and {} takes {size_max}", mail.bytes.len(), self.host);
            return Err(Outcome::Rejected { reason });
        }
        Ok(parameters)
    }

    fn lost(&self, lost: &Lost) -> String {
        format!("{}: {}", self.host, text::causes(lost))
    }
}

/// Ends a session in order, while the verdict is already on its way: it does not depend on this.
fn say_goodbye(mut wire: Wire) {
    tokio::spawn(async move { timeout(GOODBYE_WITHIN, wire.ask("QUIT")).await });
}

/// The column `session` of the [module](self).
fn judge_session(host: &Host, heard: Result<Reply, Lost>, wanted: u16) -> Result<Reply, Outcome> {
    match heard {
        Ok(reply) if reply.class() == wanted => Ok(reply),
        Ok(reply) => Err(not_sent(format!("{host}: {}", reply.text()))),
        Err(lost) => Err(not_sent(format!("{host}: {}", text::causes(&lost)))),
    }
}

/// The column `envelope`.
fn judge_envelope(host: &Host, heard: Result<Reply, Lost>, wanted: u16) -> Result<Reply, Outcome> {
    match heard {
        // 530: sign in first, or encrypt first. That is about the account.
        Ok(reply) if reply.class() == 5 && reply.code != 530 => {
            Err(Outcome::Rejected { reason: format!("{host}: {}", reply.text()) })
        }
        heard => judge_session(host, heard, wanted),
    }
}

/// The column `answer`.
fn judge_answer(host: &Host, id: &str, heard: &Result<Reply, Lost>) -> Outcome {
    let reason = |what: String| format!("{host}: {what}");
    match heard {
        Ok(reply) => match reply.class() {
            2 => Outcome::Delivered { message_id: format!("{id} {}", reply.text()) },
            4 => not_sent(reason(reply.text())),
            5 => Outcome::Rejected { reason: reason(reply.text()) },
            _ => Outcome::Unknown { reason: reason(format!("no answer to a mail: {}", reply.text())) },
        },
        // Less than all of the dot has left, so there is no mail.
        Err(lost @ Lost::Unsaid(_)) => not_sent(reason(text::causes(lost))),
        Err(lost) => Outcome::Unknown {
            reason: reason(format!("{}; the mail may have been taken", text::causes(lost))),
        },
    }
}

/// What a server says it can do.
struct Features(Vec<String>);

impl Features {
    /// The lines after the first, which is its name.
    fn of(reply: &Reply) -> Self {
        Self(reply.lines.iter().skip(1).map(|line| line.to_ascii_uppercase()).collect())
    }

    fn words<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        let lines = self.0.iter().map(|line| line.split_ascii_whitespace());
        lines.filter_map(move |mut words| (words.next() == Some(name)).then_some(words)).flatten()
    }

    fn has(&self, name: &str) -> bool {
        self.0.iter().any(|line| line.split_ascii_whitespace().next() == Some(name))
    }

    fn offers(&self, name: &str, word: &str) -> bool {
        self.words(name).any(|offered| offered == word)
    }

    /// `SIZE 0` means that there is no limit.
    fn size_max(&self) -> Option<u64> {
        self.words("SIZE").next()?.parse().ok().filter(|size_max| *size_max > 0)
    }
}

fn not_sent(reason: String) -> Outcome {
    Outcome::NotSent { reason, retry_after: None }
}

fn invalid(reason: impl Into<String>) -> InvalidAccount {
    InvalidAccount(reason.into())
}

#[cfg(test)]
mod tests;
