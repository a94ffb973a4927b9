//! The face of a mail server: the part of ESMTP that clients need, on its own address.
//!
//! The sim acts on a mail when it accepts the final dot. The faults over SMTP:
//!
//! | fault | time | acts | reply to the client |
//! |---|---|---|---|
//! | `latency` | after the dot | yes | 250, after a delay |
//! | `stall` | after the dot | yes | none |
//! | `fail` | after the dot | no | 451 |
//! | `fail_after` | after the dot | yes | the connection ends without a reply |
//! | `refuse` | at RCPT | no | 550 |
//! | `busy` | at RCPT | no | 451 |
//! | `reset` | after the dot | yes | RST |
//! | `reset_before` | after the dot | no | RST |
//! | `half` | after the dot | yes | half a reply, then the end |
//! | `key_late`, `lookup_early` | after the dot | yes | RST, because a mail has no key and no look-up |
//! | `act_late` | after the dot | later | RST |
//!
//! By RFC 5321, 4yz after the dot means that the server did not accept the mail, so a server that acted cannot send it:
//! `fail_after` sends no reply instead. A rule with a `key` can only match once the Message-ID was read, so its `refuse`
//! and `busy` come after the dot.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use base64::{Engine, engine::general_purpose::STANDARD};
use secrecy::{ExposeSecret, SecretString};
use sha2::{Digest, Sha256};
use tokio::net::TcpStream;

use super::World;
use super::acting::act_late;
use super::faults::{DrawnFault, Ending, Fault, RequestKind};
use super::mail::{Connection, Line, MESSAGE_BYTES_MAX, Mail, message_id};
use super::receipts::{Receipt, now};
use super::rules::Target;

const RECIPIENTS_MAX: usize = 100;
const ACCEPTED: &str = "250 2.0.0 accepted by the sim\r\n";

/// The user who may send mails.
pub struct Users(Option<(String, SecretString)>);

impl Users {
    /// Allows this user only; `None` allows every client.
    pub fn new(user: Option<(String, SecretString)>) -> Self {
        Self(user)
    }

    fn allows(&self, user: &[u8], password: &[u8]) -> bool {
        self.0.as_ref().is_none_or(|(known, secret)| {
            known.as_bytes() == user && secret.expose_secret().as_bytes() == password
        })
    }
}

/// Serves one client until it disconnects, or a fault ends the connection.
pub async fn serve_connection(world: Arc<World>, stream: TcpStream) {
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(?error, "the sim could not set TCP_NODELAY");
    }
    let session = Session {
        connection: Connection::new(stream),
        world: &world,
        greeted: false,
        signed_in: false,
        mail: None,
    };
    let ended = tokio::select! {
        ended = session.run() => ended,
        () = world.shutdown.cancelled() => Ok(()),
    };
    if let Err(error) = ended {
        tracing::debug!(?error, "a mail connection to the sim broke");
    }
}

struct Session<'a> {
    connection: Connection,
    world: &'a Arc<World>,
    greeted: bool,
    signed_in: bool,
    mail: Option<Transaction>,
}

/// The envelope of a mail.
struct Transaction {
    from: String,
    utf8: bool,
    to: Vec<String>,
    drawn: Option<DrawnFault>,
}

/// The reaction to a command.
enum Reaction {
    Reply(&'static str),
    Close,
    Reset,
}

impl Session<'_> {
    async fn run(mut self) -> io::Result<()> {
        self.connection.send("220 sim.localhost ESMTP postrider sim\r\n").await?;
        loop {
            let line = match self.connection.command().await? {
                Line::Whole(line) => line,
                Line::TooLong => {
                    self.connection.send("500 5.5.2 the line is too long\r\n").await?;
                    continue;
                }
                Line::End => return self.connection.close().await,
            };
            match self.handle(&String::from_utf8_lossy(&line)).await? {
                Reaction::Reply(reply) => self.connection.send(reply).await?,
                Reaction::Close => return self.connection.close().await,
                Reaction::Reset => return self.connection.reset(),
            }
        }
    }

    async fn handle(&mut self, line: &str) -> io::Result<Reaction> {
        let (verb, rest) = line.split_once(' ').unwrap_or((line, ""));
        let reply = match verb.to_ascii_uppercase().as_str() {
            "EHLO" | "HELO" if rest.trim().is_empty() => "501 5.5.4 EHLO and HELO need a host name\r\n",
            "EHLO" => {
                (self.greeted, self.mail) = (true, None);
                let features = format!("250-8BITMIME\r\n250-SMTPUTF8\r\n250-SIZE {MESSAGE_BYTES_MAX}\r\n");
                self.connection
                    .send(&format!("250-sim.localhost\r\n{features}250-ENHANCEDSTATUSCODES\r\n"))
                    .await?;
                "250 AUTH PLAIN LOGIN\r\n"
            }
            "HELO" => {
                (self.greeted, self.mail) = (true, None);
                "250 sim.localhost\r\n"
            }
            "AUTH" => self.sign_in(rest).await?,
            "MAIL" => self.begin(rest),
            "RCPT" => return self.address(rest).await,
            "DATA" => return self.data().await,
            "RSET" => {
                self.mail = None;
                "250 2.0.0 reset\r\n"
            }
            "NOOP" => "250 2.0.0 ok\r\n",
            "VRFY" => "252 2.0.0 the sim does not verify addresses\r\n",
            "QUIT" => {
                self.connection.send("221 2.0.0 closing the connection\r\n").await?;
                return Ok(Reaction::Close);
            }
            _ => "500 5.5.2 there is no such command\r\n",
        };
        Ok(Reaction::Reply(reply))
    }

    async fn sign_in(&mut self, rest: &str) -> io::Result<&'static str> {
        let (mechanism, initial) = rest.split_once(' ').unwrap_or((rest, ""));
        let credentials = match mechanism.to_ascii_uppercase().as_str() {
            "PLAIN" => {
                let credentials = match initial {
                    "" => self.challenge("334 \r\n").await?,
                    credentials => STANDARD.decode(credentials).ok(),
                };
                // authorization identity, user and password, with NUL between them
                credentials.and_then(|credentials| {
                    let mut parts = credentials.split(|byte| *byte == 0).skip(1).map(<[u8]>::to_vec);
                    parts.next().zip(parts.next())
                })
            }
            "LOGIN" => {
                let user = match initial {
                    "" => self.challenge("334 VXNlcm5hbWU6\r\n").await?,
                    credentials => STANDARD.decode(credentials).ok(),
                };
                let password = self.challenge("334 UGFzc3dvcmQ6\r\n").await?;
                user.zip(password)
            }
            _ => return Ok("504 5.5.4 use PLAIN or LOGIN\r\n"),
        };
        Ok(match credentials {
            None => "501 5.5.2 the credentials are not base64\r\n",
            Some((user, password)) if self.world.mail.allows(&user, &password) => {
                self.signed_in = true;
                "235 2.7.0 signed in\r\n"
            }
            Some(_) => "535 5.7.8 the user or the password is wrong\r\n",
        })
    }

    async fn challenge(&mut self, challenge: &str) -> io::Result<Option<Vec<u8>>> {
        self.connection.send(challenge).await?;
        match self.connection.command().await? {
            Line::Whole(line) => Ok(STANDARD.decode(line).ok()),
            Line::TooLong | Line::End => Ok(None),
        }
    }

    fn begin(&mut self, rest: &str) -> &'static str {
        if !self.greeted {
            return "503 5.5.1 send EHLO first\r\n";
        }
        if self.world.mail.0.is_some() && !self.signed_in {
            return "530 5.7.0 sign in first\r\n";
        }
        let Some((from, parameters)) = path(rest, "FROM:") else {
            return "501 5.5.4 expected MAIL FROM:<address>\r\n";
        };
        let mut parameters = parameters.split_ascii_whitespace();
        let utf8 = parameters.any(|parameter| parameter.eq_ignore_ascii_case("SMTPUTF8"));
        if !from.is_ascii() && !utf8 {
            return "553 5.6.7 this address needs SMTPUTF8\r\n";
        }
        self.mail = Some(Transaction { from: from.to_owned(), utf8, to: Vec::new(), drawn: None });
        "250 2.1.0 ok\r\n"
    }

    /// Adds a recipient. The first one determines the fault of the mail.
    async fn address(&mut self, rest: &str) -> io::Result<Reaction> {
        let Some(mail) = &mut self.mail else { return Ok(Reaction::Reply("503 5.5.1 send MAIL first\r\n")) };
        let Some((to, _)) = path(rest, "TO:").filter(|(to, _)| !to.is_empty()) else {
            return Ok(Reaction::Reply("501 5.5.4 expected RCPT TO:<address>\r\n"));
        };
        if !to.is_ascii() && !mail.utf8 {
            return Ok(Reaction::Reply("553 5.6.7 this address needs SMTPUTF8\r\n"));
        }
        if mail.to.len() == RECIPIENTS_MAX {
            return Ok(Reaction::Reply("452 4.5.3 too many recipients\r\n"));
        }
        mail.to.push(to.to_owned());
        if mail.to.len() == 1 {
            mail.drawn = self.world.draw(&target(Some(to), None));
        }
        match mail.drawn {
            Some(drawn) if matches!(drawn.fault, Fault::Refuse | Fault::Busy) => {
                let receipt = mail.receipt();
                self.mail = None;
                self.finish(receipt, Some(drawn)).await
            }
            _ => Ok(Reaction::Reply("250 2.1.5 ok\r\n")),
        }
    }

    async fn data(&mut self) -> io::Result<Reaction> {
        let Some(mail) = self.mail.take_if(|mail| !mail.to.is_empty()) else {
            return Ok(Reaction::Reply("503 5.5.1 send MAIL and RCPT first\r\n"));
        };
        self.connection.send("354 end with a dot\r\n").await?;
        let mut receipt = mail.receipt();
        let message = match self.connection.message().await? {
            Mail::Whole(message) => message,
            Mail::Unfit(reply) => {
                receipt.answered = Some(554);
                return Ok(if self.is_on_disk(receipt).await {
                    Reaction::Reply(reply)
                } else {
                    Reaction::Close
                });
            }
            // An incomplete mail does not count, so it has no receipt.
            Mail::End => return Ok(Reaction::Close),
        };
        receipt.at = now();
        receipt.body_sha256 = Some(hex::encode(Sha256::digest(&message)));
        receipt.bytes = Some(message.len() as u64);
        receipt.message_id = message_id(&message);
        let by_key = || {
            let to = mail.to.first().map(String::as_str);
            self.world.draw_by_rule(&target(to, receipt.message_id.as_deref()))
        };
        let drawn = mail.drawn.or_else(by_key);
        self.finish(receipt, drawn).await
    }

    /// Writes the receipt, then reacts as the fault requires.
    async fn finish(&mut self, mut receipt: Receipt, drawn: Option<DrawnFault>) -> io::Result<Reaction> {
        let fault = drawn.map(|drawn| drawn.fault);
        let sends_no_reply = fault == Some(Fault::FailAfter);
        let ending = drawn.map_or(Ending::Well, |drawn| drawn.ending);
        (receipt.fault, receipt.acted) = (fault, fault.is_none_or(Fault::acts));
        receipt.answered = match ending {
            Ending::Well | Ending::Late => Some(250),
            Ending::Error if sends_no_reply => None,
            Ending::Error | Ending::Busy => Some(451),
            Ending::Refusal => Some(550),
            Ending::Silence | Ending::Half | Ending::Reset => None,
        };
        let late = (fault == Some(Fault::ActLate)).then(|| receipt.clone());
        if !self.is_on_disk(receipt).await {
            return Ok(Reaction::Close);
        }
        if let (Some(late), Some(DrawnFault { delay, .. })) = (late, drawn) {
            act_late(self.world, delay, |world| arrive_late(world, late, delay));
        }
        Ok(match ending {
            Ending::Well => Reaction::Reply(ACCEPTED),
            Ending::Late => {
                let delay = drawn.map_or(self.world.pace.latency, |drawn| drawn.delay);
                self.world.wait_to_answer(delay, drawn.and_then(|drawn| drawn.held_by)).await;
                Reaction::Reply(ACCEPTED)
            }
            Ending::Error if sends_no_reply => Reaction::Close,
            Ending::Error => Reaction::Reply("451 4.3.0 the sim was asked to fail\r\n"),
            Ending::Refusal => Reaction::Reply("550 5.1.1 the sim was asked to refuse\r\n"),
            Ending::Busy => Reaction::Reply("451 4.3.2 the sim was asked to be busy\r\n"),
            Ending::Silence => {
                // The stall ends when the client disconnects.
                let _ = tokio::time::timeout(self.world.pace.stall, self.connection.command()).await;
                Reaction::Close
            }
            Ending::Half => {
                self.connection.send(&ACCEPTED[..ACCEPTED.len() / 2]).await?;
                Reaction::Close
            }
            Ending::Reset => Reaction::Reset,
        })
    }

    async fn is_on_disk(&self, receipt: Receipt) -> bool {
        let written = self.world.ledger.record(receipt).await;
        if let Err(error) = &written {
            tracing::error!(
                ?error,
                "the sim does not answer a mail because its receipt could not be written"
            );
        }
        written.is_ok()
    }
}

impl Transaction {
    fn receipt(&self) -> Receipt {
        Receipt {
            at: now(),
            path: "smtp".to_owned(),
            provider: Some("smtp".to_owned()),
            channel: Some("email".to_owned()),
            from: Some(self.from.clone()),
            to: Some(self.to.join(", ")),
            ..Receipt::default()
        }
    }
}

/// Writes the receipt of a mail that the fault `act_late` delayed.
async fn arrive_late(world: Arc<World>, receipt: Receipt, delay: Duration) {
    let message_id = receipt.message_id.clone();
    if let Err(error) = world.ledger.record(receipt.late(delay, message_id)).await {
        tracing::error!(?error, "the receipt of a late mail could not be written");
    }
}

fn target<'a>(to: Option<&'a str>, message_id: Option<&'a str>) -> Target<'a> {
    Target { provider: "smtp", to, keys: [message_id, None], kind: RequestKind::Action }
}

/// The address in `FROM:<address> parameters`, and the parameters.
fn path<'a>(text: &'a str, keyword: &str) -> Option<(&'a str, &'a str)> {
    let (found, rest) = text.split_at_checked(keyword.len())?;
    let rest = rest.trim_start().strip_prefix('<')?;
    found.eq_ignore_ascii_case(keyword).then(|| rest.rsplit_once('>'))?
}
