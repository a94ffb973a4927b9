//! The trait of a destination of events. HTTP and NATS are in `postrider-providers`; a library user
//! implements [`EventSink`] for a type of their own, or wraps an async closure with [`handler`].

use std::{future::Future, time::Duration};

use async_trait::async_trait;

use crate::Event;

/// A destination of events. It may see an event more than once and recognises it by its id.
#[async_trait]
pub trait EventSink: Send + Sync {
    /// Delivers one event. `Ok` means that the destination has taken responsibility for it.
    ///
    /// The relay bounds the time of this call; when the time is up the future is dropped.
    async fn deliver(&self, event: &Event) -> Result<(), SinkError>;

    /// Identifies where events go. Two relays whose sinks have the same name, destination and patterns are interchangeable.
    ///
    /// The default suits a handler that is identified by its name alone. Override it where the same name can lead to two
    /// destinations. The text is stored in the database and shown, so it must not hold a secret.
    fn destination(&self) -> Destination {
        Destination { kind: "handler".to_owned(), target: String::new() }
    }
}

/// Where a sink's events go, without secrets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Destination {
    /// The kind of sink, such as `http`.
    pub kind: String,
    /// The address, as far as it can be shown.
    pub target: String,
}

/// An event that was not delivered. The relay retries it in every case; the kind is for people and metrics.
#[derive(Debug, thiserror::Error)]
pub enum SinkError {
    /// The destination refused the event.
    #[error("refused: {reason}")]
    Refused {
        /// The reason of the destination, shortened.
        reason: String,
    },
    /// Nothing could be delivered: name, address, connection or TLS failed, or the address is not allowed.
    #[error("unreachable: {reason}")]
    Unreachable {
        /// The failure.
        reason: String,
    },
    /// The event may have arrived, but the relay received no usable response.
    #[error("no answer: {reason}")]
    Unanswered {
        /// The failure.
        reason: String,
    },
    /// The relay did not send the event: too many events wait for this destination, or the relay is stopping.
    #[error("busy: {reason}")]
    Busy {
        /// The reason.
        reason: String,
        /// Time to wait before the retry.
        retry_after: Duration,
    },
}

impl SinkError {
    /// Label for metrics.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Refused { .. } => "refused",
            Self::Unreachable { .. } => "unreachable",
            Self::Unanswered { .. } => "unanswered",
            Self::Busy { .. } => "busy",
        }
    }
}

/// Wraps an async function as a sink, for programs that use Postrider as a library.
pub fn handler<F, Fut>(function: F) -> impl EventSink
where
    F: Fn(&Event) -> Fut + Send + Sync,
    Fut: Future<Output = Result<(), SinkError>> + Send,
{
    Handler(function)
}

struct Handler<F>(F);

#[async_trait]
impl<F, Fut> EventSink for Handler<F>
where
    F: Fn(&Event) -> Fut + Send + Sync,
    Fut: Future<Output = Result<(), SinkError>> + Send,
{
    async fn deliver(&self, event: &Event) -> Result<(), SinkError> {
        (self.0)(event).await
    }
}
