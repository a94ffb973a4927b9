//! Events in a NATS JetStream stream.
//!
//! The subject is the configured prefix, a dot, and the event type. Event types may hold characters that a subject
//! cannot: white space, control characters, `*` and `>` become `_`, and so does each empty part between dots
//! (`order..placed` goes to `order._.placed`). Refusing them instead would leave an event that can never be delivered;
//! the body has the type as it was published.
//!
//! `Nats-Msg-Id` is the event id, and the stream drops repeats inside its duplicate window (two minutes unless it is
//! configured otherwise). Ids are unique inside one database only, so two installations need two streams.

use std::{error::Error, time::Duration};

use async_nats::{
    Client, ConnectOptions, ServerAddr,
    connection::State,
    jetstream::{
        Context,
        context::{ContextBuilder, PublishError, PublishErrorKind},
        message::PublishMessage,
    },
};
use async_trait::async_trait;
use postrider_model::{Destination, Event, EventSink, SinkError};
use secrecy::{ExposeSecret, SecretString};
use tokio::{
    sync::{OnceCell, watch},
    time::timeout,
};
use url::Url;

use super::{InvalidSink, body};
use crate::{text, tls};

/// How long the first connection may take.
const CONNECT_WITHIN: Duration = Duration::from_secs(5);

/// Time for which a delivery waits for a lost connection. The client reconnects automatically.
const RECONNECT_WITHIN: Duration = Duration::from_secs(2);

/// Time limit of the acknowledgement by the stream.
const ACK_WITHIN: Duration = Duration::from_secs(10);

/// Servers, subject and credentials of a stream.
#[derive(Clone)]
pub struct NatsSinkConfig {
    /// One or more servers of a cluster, `nats://` or `tls://`.
    pub servers: Vec<Url>,
    /// Prefix of subjects; a dot and the event type follow.
    pub subject: String,
    /// Credentials, if the servers require them.
    pub credentials: Option<NatsCredentials>,
}

/// Credentials of a NATS client.
#[derive(Clone)]
pub enum NatsCredentials {
    /// A token.
    Token(SecretString),
    /// A name and a password.
    UserPassword {
        /// The name.
        user: String,
        /// The password.
        password: SecretString,
    },
    /// The content of a `.creds` file (a JWT and a seed).
    Creds(SecretString),
}

/// Publishes each event and waits until the stream has it.
pub struct NatsSink {
    servers: Vec<ServerAddr>,
    subject: String,
    credentials: Option<NatsCredentials>,
    link: OnceCell<Link>,
}

/// A connection that the client reconnects automatically.
struct Link {
    client: Client,
    stream: Context,
    up: watch::Receiver<bool>,
}

impl NatsSink {
    /// Checks the configuration without connecting, so that Postrider starts while NATS is down.
    pub fn new(config: NatsSinkConfig) -> Result<Self, InvalidSink> {
        check_subject(&config.subject)?;
        if config.servers.is_empty() {
            return Err(InvalidSink::NatsServer { problem: "none is configured" });
        }
        let servers = config.servers.into_iter().map(check_server).collect::<Result<_, _>>()?;
        let sink =
            Self { servers, subject: config.subject, credentials: config.credentials, link: OnceCell::new() };
        sink.options()?;
        Ok(sink)
    }

    fn options(&self) -> Result<ConnectOptions, InvalidSink> {
        let options = ConnectOptions::new().name("postrider").connection_timeout(CONNECT_WITHIN);
        Ok(match &self.credentials {
            None => options,
            Some(NatsCredentials::Token(token)) => options.token(token.expose_secret().to_owned()),
            Some(NatsCredentials::UserPassword { user, password }) => {
                options.user_and_password(user.clone(), password.expose_secret().to_owned())
            }
            Some(NatsCredentials::Creds(creds)) => {
                options.credentials(creds.expose_secret()).map_err(|_| InvalidSink::NatsCredentials)?
            }
        })
    }

    /// A connection that is up, or the reason why there is none.
    async fn link(&self) -> Result<&Link, SinkError> {
        let link = match timeout(CONNECT_WITHIN, self.link.get_or_try_init(|| self.connect())).await {
            Ok(link) => link?,
            Err(_) => return Err(unreachable("no connection to NATS within 5 s")),
        };
        // The state decides; the events only trigger a check, and an event may precede the state.
        if link.client.connection_state() != State::Connected {
            let mut up = link.up.clone();
            if !matches!(timeout(RECONNECT_WITHIN, up.wait_for(|up| *up)).await, Ok(Ok(_))) {
                return Err(unreachable("the connection to NATS is lost; the client is reconnecting"));
            }
        }
        Ok(link)
    }

    async fn connect(&self) -> Result<Link, SinkError> {
        tls::choose_provider();
        let (is_up, up) = watch::channel(false);
        let options = self.options().map_err(|error| unreachable(&error.to_string()))?;
        let options = options.event_callback(move |event| {
            match &event {
                async_nats::Event::Connected => drop(is_up.send_replace(true)),
                async_nats::Event::Disconnected => drop(is_up.send_replace(false)),
                other => tracing::warn!("event of the NATS client: {}", text::excerpt(&other.to_string())),
            }
            std::future::ready(())
        });
        let client = options
            .connect(&self.servers[..])
            .await
            .map_err(|error| unreachable(&format!("no connection to NATS: {}", text::causes(&error))))?;
        let stream = ContextBuilder::new().timeout(ACK_WITHIN).build(client.clone());
        Ok(Link { client, stream, up })
    }
}

#[async_trait]
impl EventSink for NatsSink {
    async fn deliver(&self, event: &Event) -> Result<(), SinkError> {
        let link = self.link().await?;
        let subject = format!("{}.{}", self.subject, subject_of(&event.event_type));
        let message = PublishMessage::build().payload(body(event)).message_id(event.id.to_string());
        let publish = async {
            // The second await is the acknowledgement: the stream has the event, from this or an earlier attempt.
            link.stream.send_publish(subject.clone(), message).await?.await
        };
        tokio::select! {
            answer = timeout(ACK_WITHIN, publish) => match answer {
                Ok(Ok(_ack)) => Ok(()),
                Ok(Err(error)) => Err(self.explain(&error, &subject)),
                Err(_) => Err(unanswered("no acknowledgement from the stream within 10 s")),
            },
            () = lost(link) => Err(unanswered("the connection to NATS was lost before the acknowledgement")),
        }
    }

    fn destination(&self) -> Destination {
        let mut servers: Vec<String> =
            self.servers.iter().map(|server| format!("{}:{}", server.host(), server.port())).collect();
        servers.sort();
        Destination {
            kind: "nats".to_owned(),
            target: format!("{} subject {}", servers.join(","), self.subject),
        }
    }
}

impl NatsSink {
    fn explain(&self, error: &PublishError, subject: &str) -> SinkError {
        let reason = text::causes(error);
        match error.kind() {
            PublishErrorKind::StreamNotFound => SinkError::Refused {
                reason: format!(
                    "no stream takes `{subject}`; create one with `nats stream add EVENTS --subjects '{}.>' --defaults` \
                     (the server must run with JetStream, `nats-server -js`)",
                    self.subject
                ),
            },
            PublishErrorKind::MaxAckPending => SinkError::Refused { reason },
            PublishErrorKind::MaxPayloadExceeded => SinkError::Refused { reason },
            // An error of the stream itself: it is full, sealed, or has no leader.
            _ if error.source().is_some_and(<dyn Error>::is::<async_nats::jetstream::Error>) => {
                SinkError::Refused { reason }
            }
            _ => SinkError::Unanswered { reason },
        }
    }
}

/// Completes when the connection is lost after this call.
async fn lost(link: &Link) {
    let mut up = link.up.clone();
    up.mark_unchanged();
    while up.changed().await.is_ok() {
        if !*up.borrow() {
            return;
        }
    }
    // No further events will come; the time limit ends the delivery.
    std::future::pending::<()>().await;
}

fn unanswered(reason: &str) -> SinkError {
    SinkError::Unanswered { reason: reason.to_owned() }
}

fn unreachable(reason: &str) -> SinkError {
    SinkError::Unreachable { reason: reason.to_owned() }
}

fn check_server(url: Url) -> Result<ServerAddr, InvalidSink> {
    let problem = match url.scheme() {
        "nats" | "tls" if url.host_str().is_none_or(str::is_empty) => "it has no host",
        "nats" | "tls" if !url.username().is_empty() || url.password().is_some() => {
            "it has a user name or password in it, which belong into the credentials"
        }
        "nats" | "tls" => {
            return ServerAddr::from_url(url)
                .map_err(|_| InvalidSink::NatsServer { problem: "it is not an address" });
        }
        _ => "its scheme is neither `nats` nor `tls`",
    };
    Err(InvalidSink::NatsServer { problem })
}

fn check_subject(subject: &str) -> Result<(), InvalidSink> {
    let problem = if subject.is_empty() {
        "is empty"
    } else if subject.starts_with('$') || subject.starts_with("_INBOX") {
        "begins with a name that NATS keeps for itself"
    } else if subject.split('.').any(str::is_empty) {
        "has an empty part between its dots"
    } else if subject.chars().any(is_special) {
        "has white space, `*` or `>` in it"
    } else {
        return Ok(());
    };
    Err(InvalidSink::NatsSubject { subject: text::excerpt(subject), problem })
}

/// The event type as the end of a subject.
fn subject_of(event_type: &str) -> String {
    let parts = event_type.split('.').map(|part| match part {
        "" => "_".to_owned(),
        part => part.replace(is_special, "_"),
    });
    parts.collect::<Vec<_>>().join(".")
}

fn is_special(c: char) -> bool {
    c.is_whitespace() || c.is_control() || matches!(c, '*' | '>')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_event_type_has_a_subject() {
        let cases = [
            ("order.placed", "order.placed"),
            ("Order-Placed_2", "Order-Placed_2"),
            ("order placed\tnow", "order_placed_now"),
            ("order.*", "order._"),
            (">", "_"),
            (".a..b.", "_.a._.b._"),
            (".", "_._"),
            ("été\u{a0}\u{2003}x", "été__x"),
        ];
        for (event_type, subject) in cases {
            assert_eq!(subject_of(event_type), subject, "{event_type:?}");
        }
    }

    #[test]
    fn an_invalid_configuration_is_refused_with_the_reason() {
        let invalid = |server: &str, subject: &str| {
            let config = NatsSinkConfig {
                servers: vec![server.parse().unwrap()],
                subject: subject.to_owned(),
                credentials: None,
            };
            NatsSink::new(config).err().map(|error| error.to_string()).unwrap_or_default()
        };
        for good in ["events", "postrider.events", "été.x-y_z"] {
            assert_eq!(invalid("nats://localhost", good), "");
            assert_eq!(invalid("tls://nats.example.com:4443", good), "");
        }
        for bad in ["", ".", "a.", ".a", "a..b", "a b", "a.*", "a.>", "$SYS.x", "_INBOX.x", "a\n"] {
            assert!(invalid("nats://localhost", bad).contains("NATS subject"), "{bad:?}");
        }
        assert!(invalid("http://localhost", "a").contains("scheme"));
        let message = invalid("nats://bob:hunter2@localhost", "a");
        assert!(message.contains("credentials") && !message.contains("hunter2"), "{message}");
        let config = NatsSinkConfig { servers: vec![], subject: "a".to_owned(), credentials: None };
        assert!(NatsSink::new(config).is_err());
        let creds = NatsCredentials::Creds("hunter2".into());
        let servers = vec!["nats://localhost".parse().unwrap()];
        let config = NatsSinkConfig { servers, subject: "a".to_owned(), credentials: Some(creds) };
        assert_eq!(NatsSink::new(config).err(), Some(InvalidSink::NatsCredentials));
    }
}
