//! SMTP: one connection per mail, and an outcome for each way it can end.
//!
//! ```text
//! connect ─ greeting ─ EHLO ─ [STARTTLS ─ EHLO] ─ [AUTH] ─ MAIL ─ RCPT ─ DATA ─ text ═ dot ═ reply ─ QUIT
//! └──────────── the session ───────────────────────────┘└── the envelope ──┘     └ the answer ┘
//! ```
//!
//! | reply of the server | session | envelope | text | answer |
//! |---|---|---|---|---|
//! | 2xx (354 to `DATA`) | go on | go on | – | delivered |
//! | 4xx | not sent | not sent | – | not sent |
//! | 5xx | account refused | rejected | – | rejected |
//! | 530 to the envelope | – | account refused | – | rejected |
//! | the connection breaks during a write | not sent | not sent | not sent | not sent |
//! | another reply, invalid_reply, the end, nothing in time | not sent | not sent | not sent | **unknown** |
//!
//! Until the client has sent the dot there is no mail (RFC 5321, 4.1.1.4). After it only a reply decides: 4yz
//! and 5yz mean that the server did not accept the mail (4.2.1), and silence proves nothing. `QUIT` changes no outcome.
//!
//! A failure of the session concerns the account or the server and not this mail, so it is never a rejection. A refused login (5xx to
//! `AUTH`) is not tried again before the password is changed, because servers lock accounts after a few of them (`logins.rs`).

mod compose;
mod connection;
mod logins;

use std::{
    sync::{Arc, OnceLock},
    time::{Duration, SystemTime},
};

use async_trait::async_trait;
use base64::{Engine, engine::general_purpose::STANDARD};
use postrider_model::{Channel, IdempotencyKey, Manifest, Message, Outcome, Span};
use postrider_store::Reservation;
use rustls::pki_types::ServerName;
use schemars::JsonSchema;
use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, timeout, timeout_at};
use tokio_rustls::TlsConnector;
use url::Host;

pub(super) use self::compose::mailbox;
use self::{
    compose::{Mail, Sender, compose},
    connection::{Connection, ConnectionError, Reply},
    logins::{Logins, Slot},
};
use crate::{
    Description,
    guard::GuardedClient,
    provider::{Account, Adapter, InvalidAccount, Provider},
    text,
};

const MANIFEST: Manifest = Manifest::new("smtp", &[Channel::Email]);

/// The share of a call's time for sending the mail; the rest is for the answer. Servers look for spam and viruses before they
/// answer, and a timeout that is too short would put an accepted mail in doubt.
const SEND_SHARE: u32 = 3;
/// Time limit of `QUIT`, whose reply is not needed.
const QUIT_WITHIN: Duration = Duration::from_secs(1);

/// The vendor; `docs/providers.md` says what it takes.
pub struct SmtpAdapter {
    client: GuardedClient,
    tls: OnceLock<Result<TlsConnector, rustls::Error>>,
    logins: Logins,
}

impl SmtpAdapter {
    /// Creates an adapter with the policy and the time limits of this client.
    #[must_use]
    pub fn new(client: &GuardedClient) -> Self {
        Self { client: client.clone(), tls: OnceLock::new(), logins: Logins::default() }
    }
}

impl Adapter for SmtpAdapter {
    fn manifest(&self) -> &'static Manifest {
        &MANIFEST
    }

    fn describe(&self) -> Description {
        description()
    }

    fn open(&self, account: &Account<'_>) -> Result<Arc<dyn Provider>, InvalidAccount> {
        Ok(Arc::new(self.server(account)?))
    }
}

fn description() -> Description {
    Description::new(
        "SMTP relay",
        "E-mail by any SMTP server. A person settles items in doubt with the log of the server.",
    )
    .settings::<Settings>()
    .maybe_secret("Password", "The password of the user; empty for a server without a login")
}

/// Settings of an account.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Settings {
    /// Name or address of the server.
    host: String,
    /// Port of the server. By default the one of `security`.
    port: Option<u16>,
    /// Encryption of the connection.
    #[serde(default)]
    security: Security,
    /// User name, if the server asks for a login.
    user: Option<String>,
    /// Sender of every mail, such as `News <news@example.com>`.
    from: String,
    /// Address for answers, if it is another one.
    reply_to: Option<String>,
    /// Name of this machine in `EHLO`.
    hello: Option<String>,
}

/// The encryption of a connection.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum Security {
    /// TLS from the first byte.
    #[default]
    Tls,
    /// TLS after `STARTTLS`; nothing else is sent without it.
    StartTls,
    /// No encryption, for development.
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
        let mailbox = |name: &str, input: &str| {
            compose::mailbox(input).map_err(|wrong| invalid(format!("`{name}` {wrong}")))
        };
        let from = mailbox("from", &settings.from)?;
        let reply_to = settings.reply_to.map(|input| mailbox("reply_to", &input)).transpose()?;
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
            known_login: self.logins.of(account),
            sender: Sender { from, reply_to },
            hello,
        })
    }

    /// The connector, created once because it reads the certificates of this machine.
    fn connector(&self) -> Result<TlsConnector, InvalidAccount> {
        self.tls.get_or_init(connection::tls_connector).clone().map_err(|error| {
            invalid(format!(
                "TLS is not available ({error}); install root certificates (`apt-get install ca-certificates`)"
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
    known_login: Arc<Slot>,
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
        let send_within = total / SEND_SHARE;
        let (begun, begun_at) = (Instant::now(), SystemTime::now());
        let deadline = begun + send_within;
        let late =
            || not_sent(format!("{} did not ask for the mail within {}", self.host, Span(send_within)));
        let (mut connection, features) = match timeout_at(deadline, self.begin()).await {
            Ok(Ok(begun)) => begun,
            Ok(Err(outcome)) => return outcome,
            Err(_) => return late(),
        };
        match timeout_at(deadline, self.address(&mut connection, &features, &mail)).await {
            Ok(Ok(())) => {}
            Ok(Err(outcome)) => {
                quit(connection);
                return outcome;
            }
            Err(_) => return late(),
        }
        match timeout_at(deadline, connection.write_text(&mail.bytes)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => return not_sent(self.error(&error)),
            Err(_) => {
                return not_sent(format!("{} did not read the mail within {}", self.host, Span(send_within)));
            }
        }
        // A suspended process may continue here. The resolver may have settled the item as not sent in the meantime, so the dot
        // that sends the mail must not follow. One clock stops during a suspension, the other can be set back.
        if begun.elapsed().max(begun_at.elapsed().unwrap_or_default()) > total {
            return not_sent("the worker was delayed before the end of the mail".to_owned());
        }
        self.end(connection, &mail, begun + total).await
    }

    /// The envelope, up to the point where the server waits for the text.
    async fn address(
        &self,
        connection: &mut Connection,
        features: &Features,
        mail: &Mail,
    ) -> Result<(), Outcome> {
        if let Some(login) = &self.login {
            logins::sign_in(&self.known_login, async || self.sign_in(connection, features, login).await)
                .await?;
        }
        let parameters = self.parameters(features, mail)?;
        judge_envelope(
            &self.host,
            connection.ask(&format!("MAIL FROM:<{}>{parameters}", mail.from)).await,
            2,
        )?;
        judge_envelope(&self.host, connection.ask(&format!("RCPT TO:<{}>", mail.to)).await, 2)?;
        judge_envelope(&self.host, connection.ask("DATA").await, 3)?;
        Ok(())
    }

    /// The dot and the answer.
    async fn end(&self, mut connection: Connection, mail: &Mail, deadline: Instant) -> Outcome {
        if let Err(error) = connection.is_silent() {
            return not_sent(self.error(&error));
        }
        // From here on the server may have the whole mail.
        let Ok(answer) = timeout_at(deadline, connection.end_text()).await else {
            let reason = format!("{} did not answer in time; the mail may have been accepted", self.host);
            return Outcome::Unknown { reason };
        };
        quit(connection);
        judge_answer(&self.host, &mail.id, &answer)
    }

    /// Connects with the encryption of the account, and reads the extensions of the server.
    async fn begin(&self) -> Result<(Connection, Features), Outcome> {
        let within = self.client.limits().connect;
        let connected = timeout(within, self.connect(within)).await;
        let mut connection = connected
            .unwrap_or_else(|_| Err(format!("it took longer than {}", Span(within))))
            .map_err(|why| not_sent(format!("could not reach {}: {why}", self.host)))?;
        judge_session(&self.host, connection.reply().await, 2)?;
        let features = self.hello(&mut connection).await?;
        if self.security != Security::StartTls {
            return Ok((connection, features));
        }
        if !features.has("STARTTLS") {
            return Err(account_refused(format!(
                "{} does not offer STARTTLS, and nothing is sent in the clear",
                self.host
            )));
        }
        judge_session(&self.host, connection.ask("STARTTLS").await, 2)?;
        let mut connection = self.encrypt(connection).await.map_err(|error| not_sent(self.error(&error)))?;
        let features = self.hello(&mut connection).await?;
        Ok((connection, features))
    }

    /// Resolves the name and connects with TCP and TLS, only to checked addresses.
    async fn connect(&self, within: Duration) -> Result<Connection, String> {
        let addresses =
            self.client.resolve(&self.host, self.port).await.map_err(|error| text::causes(&error))?;
        let connection =
            Connection::connect(&addresses, within).await.map_err(|error| text::causes(&error))?;
        match self.security {
            Security::Tls => self.encrypt(connection).await.map_err(|error| text::causes(&error)),
            Security::StartTls | Security::None => Ok(connection),
        }
    }

    /// Starts TLS with the host name of the account, not with the address.
    async fn encrypt(&self, connection: Connection) -> Result<Connection, ConnectionError> {
        let name = match &self.host {
            Host::Domain(name) => ServerName::try_from(name.clone()).ok(),
            Host::Ipv4(address) => Some(std::net::IpAddr::from(*address).into()),
            Host::Ipv6(address) => Some(std::net::IpAddr::from(*address).into()),
        };
        match (&self.tls, name) {
            (Some(tls), Some(name)) => connection.encrypt(tls, name).await,
            _ => Err(ConnectionError::InvalidReply("its name cannot be in a certificate".to_owned())),
        }
    }

    async fn hello(&self, connection: &mut Connection) -> Result<Features, Outcome> {
        let reply = judge_session(&self.host, connection.ask(&format!("EHLO {}", self.hello)).await, 2)?;
        Ok(Features::of(&reply))
    }

    async fn sign_in(
        &self,
        connection: &mut Connection,
        features: &Features,
        login: &Login,
    ) -> Result<(), Outcome> {
        let (user, password) = (&login.user, login.password.expose_secret());
        let last = if features.offers("AUTH", "PLAIN") {
            connection.ask(&format!("AUTH PLAIN {}", STANDARD.encode(format!("\0{user}\0{password}")))).await
        } else if features.offers("AUTH", "LOGIN") {
            for command in ["AUTH LOGIN", &STANDARD.encode(user)] {
                let reply = connection.ask(command).await;
                judge_login(&self.host, reply, 3)?;
            }
            connection.ask(&STANDARD.encode(password)).await
        } else {
            return Err(account_refused(format!("{} offers neither AUTH PLAIN nor AUTH LOGIN", self.host)));
        };
        judge_login(&self.host, last, 2).map(drop)
    }

    /// The parameters of `MAIL`, or the reason why the server cannot accept the mail.
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

    fn error(&self, error: &ConnectionError) -> String {
        format!("{}: {}", self.host, text::causes(error))
    }
}

/// Ends a session with `QUIT` in a task of its own, because the outcome does not depend on it.
fn quit(mut connection: Connection) {
    tokio::spawn(async move { timeout(QUIT_WITHIN, connection.ask("QUIT")).await });
}

/// The column `session` of the [module](self).
fn judge_session(
    host: &Host,
    received: Result<Reply, ConnectionError>,
    wanted: u16,
) -> Result<Reply, Outcome> {
    match received {
        Ok(reply) if reply.class() == wanted => Ok(reply),
        Ok(reply) if reply.class() == 5 => Err(account_refused(format!("{host}: {}", reply.text()))),
        Ok(reply) => Err(not_sent(format!("{host}: {}", reply.text()))),
        Err(error) => Err(not_sent(format!("{host}: {}", text::causes(&error)))),
    }
}

/// The column `session`, for a login.
fn judge_login(host: &Host, received: Result<Reply, ConnectionError>, wanted: u16) -> Result<Reply, Outcome> {
    judge_session(host, received, wanted).map_err(|outcome| match outcome {
        Outcome::AccountRefused { reason, .. } => Outcome::AccountRefused { reason, is_login: true },
        outcome => outcome,
    })
}

/// The column `envelope`.
fn judge_envelope(
    host: &Host,
    received: Result<Reply, ConnectionError>,
    wanted: u16,
) -> Result<Reply, Outcome> {
    match received {
        // 530 asks for a login or encryption, so it concerns the account.
        Ok(reply) if reply.class() == 5 && reply.code != 530 => {
            Err(Outcome::Rejected { reason: format!("{host}: {}", reply.text()) })
        }
        received => judge_session(host, received, wanted),
    }
}

/// The column `answer`.
fn judge_answer(host: &Host, id: &str, received: &Result<Reply, ConnectionError>) -> Outcome {
    let reason = |what: String| format!("{host}: {what}");
    match received {
        Ok(reply) => match reply.class() {
            2 => Outcome::Delivered { message_id: format!("{id} {}", reply.text()) },
            4 => not_sent(reason(reply.text())),
            5 => Outcome::Rejected { reason: reason(reply.text()) },
            _ => Outcome::Unknown { reason: reason(format!("no answer to a mail: {}", reply.text())) },
        },
        // The dot was not sent completely, so there is no mail.
        Err(error @ ConnectionError::NotWritten(_)) => not_sent(reason(text::causes(error))),
        Err(error) => Outcome::Unknown {
            reason: reason(format!("{}; the mail may have been accepted", text::causes(error))),
        },
    }
}

/// The extensions that a server announces.
struct Features(Vec<String>);

impl Features {
    /// Reads the lines after the first one, which is the name of the server.
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

fn account_refused(reason: String) -> Outcome {
    Outcome::AccountRefused { reason, is_login: false }
}

fn invalid(reason: impl Into<String>) -> InvalidAccount {
    InvalidAccount(reason.into())
}

#[cfg(test)]
mod tests;
