//! Adapters and providers: a provider can only be called with a reservation.
//!
//! An [`Adapter`] knows a vendor; with the account of a tenant it makes a [`Provider`], which can be called. A program that
//! uses Postrider as a library adds adapters of its own to the standard ones:
//!
//! ```no_run
//! # use std::sync::Arc;
//! # use postrider_providers::{Adapter, Adapters, GuardedClient};
//! # fn example(client: &GuardedClient, fax: Arc<dyn Adapter>) -> Adapters {
//! Adapters::standard(client).with(fax)
//! # }
//! ```
//!
//! A call takes a reservation by reference, and settling consumes it, so a second call does not compile:
//!
//! ```no_run
//! use postrider_model::Message;
//! use postrider_providers::Provider;
//! use postrider_store::{Reservation, Settlement};
//!
//! async fn send(provider: &dyn Provider, reservation: Reservation, message: &Message) -> Settlement {
//!     let outcome = provider.call(&reservation, message).await;
//!     reservation.settle(outcome)
//! }
//! ```

use std::{collections::BTreeMap, sync::Arc};

use async_trait::async_trait;
use jiff::Timestamp;
use postrider_model::{
    Finding, Manifest, Message, Outcome,
    channels::{DeliveryReport, InboundMessage},
    ids::ProviderAccountId,
};
use postrider_store::{HeldDoubt, Reservation};
use secrecy::{ExposeSecret, SecretString};

use crate::{
    Description, GuardedClient,
    chat::{SlackAdapter, TelegramAdapter, WhatsappAdapter},
    email::{ResendAdapter, SmtpAdapter},
    guard::URL_BYTES_MAX,
    sim::SimAdapter,
    social::{BlueskyAdapter, MastodonAdapter},
    voice::TwilioAdapter,
    webhook::WebhookAdapter,
};

/// One account at one vendor, ready to be called.
#[async_trait]
pub trait Provider: Send + Sync {
    /// Makes the one call of this reservation. The implementation never sends the message twice, and reports a request that may
    /// have been sent and was not answered as [`Outcome::Unknown`].
    ///
    /// The worker bounds the time of this call; when the time is up the future is dropped and the item is in doubt.
    async fn call(&self, reservation: &Reservation, message: &Message) -> Outcome;

    /// Sends the same message under the same key once more, because the vendor guarantees that this is harmless.
    /// The resolver calls it only if the class of the manifest is [`DoubtClass::Key`](postrider_model::DoubtClass::Key), within
    /// the key's lifetime and after the quiet time, or [`DoubtClass::Natural`](postrider_model::DoubtClass::Natural).
    ///
    /// [`Finding::Done`]: the vendor has acted exactly once by now. [`Finding::Absent`]: the vendor refuses this very message; then the
    /// resolver looks the item up, or leaves it to a person. A refusal of the account or a rate limit is unclear.
    async fn repeat(&self, _doubt: &HeldDoubt, _message: &Message) -> Finding {
        Finding::Unclear { reason: "this provider takes no repeats".to_owned() }
    }

    /// Looks an item up at the vendor. Sends no message. `message` is present if it could be rendered exactly as for the
    /// call.
    async fn look_up(&self, _doubt: &HeldDoubt, _message: Option<&Message>) -> Finding {
        Finding::CannotTell { reason: "this provider cannot be asked".to_owned() }
    }
}

/// An account of a tenant, with its secret open.
#[derive(Debug)]
pub struct Account<'a> {
    /// Id of the account, for the addresses of status callbacks.
    pub id: ProviderAccountId,
    /// Settings, without secrets.
    pub settings: &'a serde_json::Value,
    /// The secret.
    pub secret: &'a SecretString,
}

/// The error of an account with invalid settings or an invalid secret.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidAccount(pub String);

/// Maximum bytes of a secret.
pub const SECRET_BYTES_MAX: usize = 64 * 1024;

/// Maximum bytes of the settings of an account, as JSON.
pub const SETTINGS_BYTES_MAX: usize = 16 * 1024;

/// An account that cannot be added.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AccountRefused {
    /// No adapter has this name.
    #[error("there is no provider `{provider}`; this version knows {known}")]
    UnknownProvider {
        /// The requested name.
        provider: String,
        /// The names of all adapters.
        known: String,
    },
    /// The adapter refuses the account.
    #[error("the account is not valid: {0}")]
    Invalid(InvalidAccount),
}

/// A vendor.
pub trait Adapter: Send + Sync {
    /// The description of the vendor.
    fn manifest(&self) -> &'static Manifest;

    /// The vendor in words, and the forms of its accounts.
    fn describe(&self) -> Description {
        Description::new(self.manifest().name, "")
    }

    /// Checks an account and opens it for calls. Unknown settings are refused; nothing is sent.
    fn open(&self, account: &Account<'_>) -> Result<Arc<dyn Provider>, InvalidAccount>;

    /// Verifies the signature of a status callback and reads it.
    fn read_callback(
        &self,
        _account: &Account<'_>,
        _callback: &Callback<'_>,
    ) -> Result<Echo, CallbackRefused> {
        Err(CallbackRefused::NotTaken)
    }

    /// Reads a webhook with inbound messages and delivery reports. The signature is checked over the raw body before
    /// the body is parsed.
    fn receive(
        &self,
        _account: &Account<'_>,
        _webhook: &InboundWebhook<'_>,
    ) -> Result<Received, CallbackRefused> {
        Err(CallbackRefused::NotTaken)
    }
}

/// A request to a chat account's webhook.
#[derive(Debug)]
pub struct InboundWebhook<'a> {
    /// Whether the request is a GET, by which some vendors verify the address before they use it.
    pub is_get: bool,
    /// The query, unchanged.
    pub query: &'a str,
    /// Headers with lower-case names, including repeated ones.
    pub headers: &'a [(String, String)],
    /// The raw body.
    pub body: &'a [u8],
    /// The current time, against which signatures are checked.
    pub now: Timestamp,
}

impl InboundWebhook<'_> {
    /// The only header of this name. Two of them count as a forgery, because programs disagree about which one is valid.
    pub fn header(&self, name: &str) -> Result<&str, CallbackRefused> {
        let mut values = self.headers.iter().filter(|(known, _)| known == name);
        match (values.next(), values.next()) {
            (Some((_, value)), None) => Ok(value),
            (None, _) => Err(CallbackRefused::Forged(format!("the header `{name}` is missing"))),
            (Some(_), Some(_)) => Err(CallbackRefused::Forged(format!("the header `{name}` is there twice"))),
        }
    }
}

/// The content of a webhook.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Received {
    /// The vendor verifies the address: this is the response.
    Challenge(String),
    /// The vendor shows this response to the person: it is no message, and needs none.
    Answer(serde_json::Value),
    /// Events. Both lists may be empty, because vendors also send events that need no reaction.
    Happened {
        /// Inbound messages, in the vendor's order.
        messages: Vec<InboundMessage>,
        /// Delivery reports of replies.
        reports: Vec<DeliveryReport>,
    },
}

/// A request to a status callback address, not verified yet.
#[derive(Debug)]
pub struct Callback<'a> {
    /// Path and query, unchanged.
    pub path_and_query: &'a str,
    /// The key at the end of the path.
    pub key: &'a str,
    /// Headers by lower-case name.
    pub headers: &'a [(String, String)],
    /// The raw body.
    pub body: &'a [u8],
}

/// A verified status callback about an item.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Echo {
    /// The vendor's id of the message.
    pub message_id: String,
    /// The delivery status, in the vendor's words.
    pub status: String,
    /// Whether the callback proves that the vendor acted.
    pub proves_action: bool,
}

/// A callback or webhook that is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CallbackRefused {
    /// The vendor has no such callback.
    #[error("this provider has no such callback")]
    NotTaken,
    /// The signature is missing or wrong.
    #[error("{0}")]
    Forged(String),
    /// The signature is right, but the content is invalid.
    #[error("{0}")]
    Malformed(String),
}

/// Adapters by name.
#[derive(Clone, Default)]
pub struct Adapters(BTreeMap<&'static str, Arc<dyn Adapter>>);

impl Adapters {
    /// No adapters.
    #[must_use]
    pub fn none() -> Self {
        Self::default()
    }

    /// The adapters that are part of Postrider.
    #[must_use]
    pub fn standard(client: &GuardedClient) -> Self {
        Self::none()
            .with(Arc::new(BlueskyAdapter::new(client)))
            .with(Arc::new(MastodonAdapter::new(client)))
            .with(Arc::new(ResendAdapter::new(client)))
            .with(Arc::new(SimAdapter::new(client)))
            .with(Arc::new(SlackAdapter::new(client)))
            .with(Arc::new(SmtpAdapter::new(client)))
            .with(Arc::new(TelegramAdapter::new(client)))
            .with(Arc::new(TwilioAdapter::new(client)))
            .with(Arc::new(WebhookAdapter::new(client)))
            .with(Arc::new(WhatsappAdapter::new(client)))
    }

    /// Adds an adapter; it replaces one of the same name.
    #[must_use]
    pub fn with(mut self, adapter: Arc<dyn Adapter>) -> Self {
        self.0.insert(adapter.manifest().name, adapter);
        self
    }

    /// Adds all of these adapters. Each replaces the one of the same name.
    #[must_use]
    pub fn with_all(mut self, others: &Self) -> Self {
        self.0.extend(others.0.iter().map(|(name, adapter)| (*name, Arc::clone(adapter))));
        self
    }

    /// The adapter of this name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Arc<dyn Adapter>> {
        self.0.get(name)
    }

    /// The adapter of this name, or an error that lists the known ones.
    pub fn require(&self, provider: &str) -> Result<&Arc<dyn Adapter>, AccountRefused> {
        self.get(provider).ok_or_else(|| AccountRefused::UnknownProvider {
            provider: provider.to_owned(),
            known: self.names(),
        })
    }

    /// Checks that the adapter exists and accepts the account. Used for new accounts and for new secrets. Sends nothing.
    pub fn check(&self, provider: &str, account: &Account<'_>) -> Result<(), AccountRefused> {
        let adapter = self.require(provider)?;
        check_settings(account.settings).map_err(AccountRefused::Invalid)?;
        let bytes = account.secret.expose_secret().len();
        if bytes > SECRET_BYTES_MAX {
            return Err(AccountRefused::Invalid(InvalidAccount(format!(
                "the secret is longer than {SECRET_BYTES_MAX} bytes"
            ))));
        }
        adapter.open(account).map(drop).map_err(AccountRefused::Invalid)
    }

    /// All adapters, by name.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<dyn Adapter>> {
        self.0.values()
    }

    /// The manifests of all adapters.
    pub fn manifests(&self) -> impl Iterator<Item = &'static Manifest> {
        self.0.values().map(|adapter| adapter.manifest())
    }

    /// All names, for error messages.
    #[must_use]
    pub fn names(&self) -> String {
        self.0.keys().copied().collect::<Vec<_>>().join(", ")
    }
}

/// Checks that no setting is longer than a URL may be or holds a line break, which an address or a header must not have.
fn check_settings(settings: &serde_json::Value) -> Result<(), InvalidAccount> {
    let bytes = settings.to_string().len();
    if bytes > SETTINGS_BYTES_MAX {
        return Err(InvalidAccount(format!(
            "the settings have {bytes} bytes; the limit is {SETTINGS_BYTES_MAX}"
        )));
    }
    let mut left = vec![("settings", settings)];
    while let Some((name, value)) = left.pop() {
        match value {
            serde_json::Value::String(text) if text.len() > URL_BYTES_MAX => {
                return Err(InvalidAccount(format!("`{name}` is longer than {URL_BYTES_MAX} bytes")));
            }
            serde_json::Value::String(text) if text.contains(char::is_control) => {
                return Err(InvalidAccount(format!(
                    "`{name}` holds a line break or another control character; remove it"
                )));
            }
            serde_json::Value::Object(members) => {
                left.extend(members.iter().map(|(name, value)| (name.as_str(), value)));
            }
            serde_json::Value::Array(entries) => left.extend(entries.iter().map(|entry| (name, entry))),
            _ => {}
        }
    }
    Ok(())
}
