//! The face of a mail server: enough ESMTP for real clients, on an address of its own.
//!
//! A mail is acted on when its final dot is accepted. What each fault looks like here:
//!
//! | fault | when it strikes | acts | what the client sees |
//! |---|---|---|---|
//! | `latency` | after the dot | yes | 250, after a while |
//! | `stall` | after the dot | yes | nothing |
//! | `fail` | after the dot | no | 451 |
//! | `fail_after` | after the dot | yes | the connection ends without a reply |
//! | `refuse` | at RCPT | no | 550 |
//! | `busy` | at RCPT | no | 451 |
//! | `reset` | after the dot | yes | RST |
//! | `reset_before` | after the dot | no | RST |
//! | `half` | after the dot | yes | half a reply, then the end |
//! | `key_late`, `lookup_early` | after the dot | yes | RST: a mail has no key, and nobody can look it up |
//! | `act_late` | after the dot | later | RST |
//!
//! RFC 5321 has 4yz after the dot mean that the mail was not taken, so a server that acted cannot say it: `fail_after`
//! says nothing instead. A rule with a `key` is known to strike only once the Message-ID was read, so its `refuse` and
//! `busy` come after the dot.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use base64::{Engine, engine::general_purpose::STANDARD};
use secrecy::{ExposeSecret, SecretString};
use sha2::{Digest, Sha256};
use tokio::net::TcpStream;

use super::World;
use super::acting::act_late;
use super::faults::{Asked, Ending, Fault, Strike};
use super::mail::{Line, MESSAGE_BYTES_MAX, Mail, Wire, message_id};
use super::receipts::{Receipt, now};
use super::rules::Target;

const RECIPIENTS_MAX: usize = 100;
const TAKEN: &str = "250 2.0.0 taken by the sim\r\n";

/// Who may give mails.
pub struct Users(Option<(String, SecretString)>);

impl Users {
    /// This one, or everybody.
    pub fn new(user: Option<(String, SecretString)>) -> Self {
        Self(user)
    }

    fn knows(&self, user: &[u8], password: &[u8]) -> bool {
        self.0.as_ref().is_none_or(|(known, secret)| {
            known.as_bytes() == user && secret.expose_secret().as_bytes() == password
        })
    }
}

/// Serves one client until it leaves, or a fault ends the connection.
pub async fn serve_connection(world: Arc<World>, stream: TcpStream) {
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(?error, "the sim could not set TCP_NODELAY");
    }
    let session =
        Session { wire: Wire::new(stream), world: &world, greeted: false, signed_in: false, mail: None };
    let ended = tokio::select! {
        ended = session.run() => ended,
        () = world.shutdown.cancelled() => Ok(()),
    };
    if let Err(error) = ended {
        tracing::debug!(?error, "a mail connection to the sim broke");
    }
}

struct Session<'a> {
    wire: Wire,
    world: &'a Arc<World>,
    greeted: bool,
    signed_in: bool,
    mail: Option<Transaction>,
}

/// What is known about a mail before its text.
struct Transaction {
    from: String,
    utf8: bool,
    to: Vec<String>,
    strike: Option<Strike>,
}

/// How a session goes on after a command.
enum Then {
    Reply(&'static str),
    Close,
    Reset,
}

impl Session<'_> {
    async fn run(mut self) -> io::Result<()> {
        self.wire.say("220 sim.localhost ESMTP postrider sim\r\n").await?;
        loop {
            let line = match self.wire.command().await? {
                Line::Whole(line) => line,
                Line::TooLong => {
                    self.wire.say("500 5.5.2 the line is too long\r\n").await?;
                    continue;
                }
                Line::End => return self.wire.close().await,
            };
            match self.obey(&String::from_utf8_lossy(&line)).await? {
                Then::Reply(reply) => self.wire.say(reply).await?,
                Then::Close => return self.wire.close().await,
                Then::Reset => return self.wire.reset(),
            }
        }
    }

    async fn obey(&mut self, line: &str) -> io::Result<Then> {
        let (verb, rest) = line.split_once(' ').unwrap_or((line, ""));
        let reply = match verb.to_ascii_uppercase().as_str() {
            "EHLO" | "HELO" if rest.trim().is_empty() => "501 5.5.4 say who you are\r\n",
            "EHLO" => {
                (self.greeted, self.mail) = (true, None);
                let features = format!("250-8BITMIME\r\n250-SMTPUTF8\r\n250-SIZE {MESSAGE_BYTES_MAX}\r\n");
                self.wire.say(&format!("250-sim.localhost\r\n{features}250-ENHANCEDSTATUSCODES\r\n")).await?;
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
                "250 2.0.0 forgotten\r\n"
            }
            "NOOP" => "250 2.0.0 still here\r\n",
            "VRFY" => "252 2.0.0 try it\r\n",
            "QUIT" => {
                self.wire.say("221 2.0.0 goodbye\r\n").await?;
                return Ok(Then::Close);
            }
            _ => "500 5.5.2 there is no such command\r\n",
        };
        Ok(Then::Reply(reply))
    }

    async fn sign_in(&mut self, rest: &str) -> io::Result<&'static str> {
        let (mechanism, initial) = rest.split_once(' ').unwrap_or((rest, ""));
        let given = match mechanism.to_ascii_uppercase().as_str() {
            "PLAIN" => {
                let given = match initial {
                    "" => self.challenge("334 \r\n").await?,
                    given => STANDARD.decode(given).ok(),
                };
                // authorization identity, user and password, with NUL between them
                given.and_then(|given| {
                    let mut parts = given.split(|byte| *byte == 0).skip(1).map(<[u8]>::to_vec);
                    parts.next().zip(parts.next())
                })
            }
            "LOGIN" => {
                let user = match initial {
                    "" => self.challenge("334 VXNlcm5hbWU6\r\n").await?,
                    given => STANDARD.decode(given).ok(),
                };
                let password = self.challenge("334 UGFzc3dvcmQ6\r\n").await?;
                user.zip(password)
            }
            _ => return Ok("504 5.5.4 PLAIN and LOGIN are known here\r\n"),
        };
        Ok(match given {
            None => "501 5.5.2 that is not base64\r\n",
            Some((user, password)) if self.world.mail.knows(&user, &password) => {
                self.signed_in = true;
                "235 2.7.0 welcome\r\n"
            }
            Some(_) => "535 5.7.8 the user or the password is wrong\r\n",
        })
    }

    async fn challenge(&mut self, challenge: &str) -> io::Result<Option<Vec<u8>>> {
        self.wire.say(challenge).await?;
        match self.wire.command().await? {
            Line::Whole(line) => Ok(STANDARD.decode(line).ok()),
            Line::TooLong | Line::End => Ok(None),
        }
    }

    fn begin(&mut self, rest: &str) -> &'static str {
        if !self.greeted {
            return "503 5.5.1 say EHLO first\r\n";
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
        self.mail = Some(Transaction { from: from.to_owned(), utf8, to: Vec::new(), strike: None });
        "250 2.1.0 go on\r\n"
    }

    /// The first recipient decides which fault the mail meets.
    async fn address(&mut self, rest: &str) -> io::Result<Then> {
        let Some(mail) = &mut self.mail else { return Ok(Then::Reply("503 5.5.1 say MAIL first\r\n")) };
        let Some((to, _)) = path(rest, "TO:").filter(|(to, _)| !to.is_empty()) else {
            return Ok(Then::Reply("501 5.5.4 expected RCPT TO:<address>\r\n"));
        };
        if !to.is_ascii() && !mail.utf8 {
            return Ok(Then::Reply("553 5.6.7 this address needs SMTPUTF8\r\n"));
        }
        if mail.to.len() == RECIPIENTS_MAX {
            return Ok(Then::Reply("452 4.5.3 too many recipients\r\n"));
        }
        mail.to.push(to.to_owned());
        if mail.to.len() == 1 {
            mail.strike = self.world.draw(&target(Some(to), None));
        }
        match mail.strike {
            Some(strike) if matches!(strike.fault, Fault::Refuse | Fault::Busy) => {
                let receipt = mail.receipt();
                self.mail = None;
                self.conclude(receipt, Some(strike)).await
            }
            _ => Ok(Then::Reply("250 2.1.5 go on\r\n")),
        }
    }

    async fn data(&mut self) -> io::Result<Then> {
        let Some(mail) = self.mail.take_if(|mail| !mail.to.is_empty()) else {
            return Ok(Then::Reply("503 5.5.1 say MAIL and RCPT first\r\n"));
        };
        self.wire.say("354 end with a dot\r\n").await?;
        let mut receipt = mail.receipt();
        let message = match self.wire.message().await? {
            Mail::Whole(message) => message,
            Mail::Unfit(reply) => {
                receipt.answered = Some(554);
                return Ok(if self.is_on_disk(receipt).await { Then::Reply(reply) } else { Then::Close });
            }
            // Half a mail is not one: nothing was received, and nothing is written down.
            Mail::End => return Ok(Then::Close),
        };
        receipt.at = now();
        receipt.body_sha256 = Some(hex::encode(Sha256::digest(&message)));
        receipt.bytes = Some(message.len() as u64);
        receipt.message_id = message_id(&message);
        let by_key = || {
            let to = mail.to.first().map(String::as_str);
            self.world.draw_by_rule(&target(to, receipt.message_id.as_deref()))
        };
        let strike = mail.strike.or_else(by_key);
        self.conclude(receipt, strike).await
    }

    /// Writes the receipt down, then replies as the fault says.
    async fn conclude(&mut self, mut receipt: Receipt, strike: Option<Strike>) -> io::Result<Then> {
        let fault = strike.map(|strike| strike.fault);
        let says_nothing = fault == Some(Fault::FailAfter);
        let ending = strike.map_or(Ending::Well, |strike| strike.ending);
        (receipt.fault, receipt.acted) = (fault, fault.is_none_or(Fault::acts));
        receipt.answered = match ending {
            Ending::Well | Ending::Late => Some(250),
            Ending::Error if says_nothing => None,
            Ending::Error | Ending::Busy => Some(451),
            Ending::Refusal => Some(550),
            Ending::Silence | Ending::Half | Ending::Reset => None,
        };
        let late = (fault == Some(Fault::ActLate)).then(|| receipt.clone());
        if !self.is_on_disk(receipt).await {
            return Ok(Then::Close);
        }
        if let (Some(late), Some(Strike { delay, .. })) = (late, strike) {
            act_late(self.world, delay, |world| arrive_late(world, late, delay));
        }
        Ok(match ending {
            Ending::Well => Then::Reply(TAKEN),
            Ending::Late => {
                self.world.wait(strike.map_or(self.world.pace.latency, |strike| strike.delay)).await;
                Then::Reply(TAKEN)
            }
            Ending::Error if says_nothing => Then::Close,
            Ending::Error => Then::Reply("451 4.3.0 the sim was asked to fail\r\n"),
            Ending::Refusal => Then::Reply("550 5.1.1 the sim was asked to refuse\r\n"),
            Ending::Busy => Then::Reply("451 4.3.2 the sim was asked to be busy\r\n"),
            Ending::Silence => {
                // A client that hangs up frees its stall: it has nothing more to say.
                let _ = tokio::time::timeout(self.world.pace.stall, self.wire.command()).await;
                Then::Close
            }
            Ending::Half => {
                self.wire.say(&TAKEN[..TAKEN.len() / 2]).await?;
                Then::Close
            }
            Ending::Reset => Then::Reset,
        })
    }

    async fn is_on_disk(&self, receipt: Receipt) -> bool {
        let written = self.world.ledger.record(receipt).await;
        if let Err(error) = &written {
            tracing::error!(?error, "a mail was left unanswered because its receipt could not be written");
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

/// A mail comes out of the relay it was stuck in.
async fn arrive_late(world: Arc<World>, receipt: Receipt, delay: Duration) {
    let message_id = receipt.message_id.clone();
    if let Err(error) = world.ledger.record(receipt.late(delay, message_id)).await {
        tracing::error!(?error, "the receipt of a late mail could not be written");
    }
}

fn target<'a>(to: Option<&'a str>, message_id: Option<&'a str>) -> Target<'a> {
    Target { provider: "smtp", to, keys: [message_id, None], asked: Asked::ToAct }
}

/// The address in `FROM:<address> parameters`, and the parameters.
fn path<'a>(text: &'a str, keyword: &str) -> Option<(&'a str, &'a str)> {
    let (found, rest) = text.split_at_checked(keyword.len())?;
    let rest = rest.trim_start().strip_prefix('<')?;
    found.eq_ignore_ascii_case(keyword).then(|| rest.rsplit_once('>'))?
}
