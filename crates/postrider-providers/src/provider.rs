//! The door to the outside: an adapter is called with a reservation, or not at all.
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
//! A call takes a reservation by reference, and settling consumes it, so that there is no second call:
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
    chat::{DeliveryReport, InboundMessage},
    ids::ProviderAccountId,
};
use postrider_store::{HeldDoubt, Reservation};
use secrecy::{ExposeSecret, SecretString};

use crate::{
    GuardedClient,
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
    /// Makes the one call of this reservation. Nothing is ever sent a second time in here, and what may have left and was
    /// not answered is [`Outcome::Unknown`].
    ///
    /// The worker bounds the time of this call; when the time is up the future is dropped and the item is in doubt.
    async fn call(&self, reservation: &Reservation, message: &Message) -> Outcome;

    /// Sends the very same message under the very same key once more, because the vendor guarantees that this is harmless.
    /// The resolver asks for it only where the manifest says [`DoubtClass::Key`](postrider_model::DoubtClass::Key), inside
    /// the key's life and after the quiet time, or [`DoubtClass::Natural`](postrider_model::DoubtClass::Natural).
    ///
    /// [`Finding::Done`]: it has been done by now, once. [`Finding::Absent`]: the vendor refuses this very message; then it is looked
    /// up, and left to a person if that tells nothing. A refusal of the account, of the moment or of the rate is unclear.
    async fn repeat(&self, _doubt: &HeldDoubt, _message: &Message) -> Finding {
        Finding::Unclear { reason: "this provider takes no repeats".to_owned() }
    }

    /// Asks the vendor what became of an item. Nothing is sent to anybody. `message` is there when it could be rendered as it
    /// was the first time.
    async fn look_up(&self, _doubt: &HeldDoubt, _message: Option<&Message>) -> Finding {
        Finding::CannotTell { reason: "this provider cannot be asked".to_owned() }
    }
}

/// An account of a tenant, with its secret open.
#[derive(Debug)]
pub struct Account<'a> {
    /// Which one, for addresses under which a vendor calls back.
    pub id: ProviderAccountId,
    /// What is not secret.
    pub settings: &'a serde_json::Value,
    /// What is.
    pub secret: &'a SecretString,
}

/// An account that cannot work as it is set up.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidAccount(pub String);

/// Far more than any vendor's secret has.
pub const SECRET_BYTES_MAX: usize = 64 * 1024;

/// Maximum bytes of the settings of an account, as JSON.
pub const SETTINGS_BYTES_MAX: usize = 16 * 1024;

/// Why an account cannot be added.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AccountRefused {
    /// Nobody here can call it.
    #[error("there is no provider `{provider}`; this version knows {known}")]
    UnknownProvider {
        /// As it was asked for.
        provider: String,
        /// What would do.
        known: String,
    },
    /// Its vendor does not take it.
    #[error("the account cannot work as it is set up: {0}")]
    Invalid(InvalidAccount),
}

/// A vendor.
pub trait Adapter: Send + Sync {
    /// What it says about itself.
    fn manifest(&self) -> &'static Manifest;

    /// Checks an account, and makes it callable. Unknown settings are refused; nothing is sent.
    fn open(&self, account: &Account<'_>) -> Result<Arc<dyn Provider>, InvalidAccount>;

    /// Reads a status callback, once it is proven that the vendor sent it.
    fn read_callback(
        &self,
        _account: &Account<'_>,
        _callback: &Callback<'_>,
    ) -> Result<Echo, CallbackRefused> {
        Err(CallbackRefused::NotTaken)
    }

    /// Reads a webhook: what people wrote, and what became of replies. The signature is checked over the raw body before
    /// anything in it is read.
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
    /// Whether it is a GET: some vendors ask whether the address is ours before they use it.
    pub is_get: bool,
    /// What stands behind the question mark, as it came.
    pub query: &'a str,
    /// Headers by lower-case name, as often as they came.
    pub headers: &'a [(String, String)],
    /// The body, as it came.
    pub body: &'a [u8],
    /// The time, to tell old signatures from new ones.
    pub now: Timestamp,
}

impl InboundWebhook<'_> {
    /// The one header of this name. Two of them are a forgery: nobody can tell which of them others look at.
    pub fn header(&self, name: &str) -> Result<&str, CallbackRefused> {
        let mut values = self.headers.iter().filter(|(given, _)| given == name);
        match (values.next(), values.next()) {
            (Some((_, value)), None) => Ok(value),
            (None, _) => Err(CallbackRefused::Forged(format!("the header `{name}` is missing"))),
            (Some(_), Some(_)) => Err(CallbackRefused::Forged(format!("the header `{name}` is there twice"))),
        }
    }
}

/// What a webhook said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Received {
    /// The vendor wants to know whether the address is ours: this is the answer.
    Challenge(String),
    /// Something happened. Both may be empty: much of what vendors tell is about nothing that we answer.
    Happened {
        /// What people wrote, in the vendor's order.
        messages: Vec<InboundMessage>,
        /// What became of replies.
        reports: Vec<DeliveryReport>,
    },
}

/// A request that came in and says that it is from a vendor.
#[derive(Debug)]
pub struct Callback<'a> {
    /// Everything after the host, as it came: path and query.
    pub path_and_query: &'a str,
    /// The key at the end of the path.
    pub key: &'a str,
    /// Headers by lower-case name.
    pub headers: &'a [(String, String)],
    /// The body, as it came.
    pub body: &'a [u8],
}

/// What a vendor says about an item without being asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Echo {
    /// The vendor's own name for what it did.
    pub message_id: String,
    /// How that goes, in the vendor's word.
    pub status: String,
    /// Whether it proves that the vendor acted.
    pub proves_action: bool,
}

/// Why a callback is not believed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CallbackRefused {
    /// This vendor has none.
    #[error("this provider does not call back")]
    NotTaken,
    /// The signature is missing or wrong.
    #[error("{0}")]
    Forged(String),
    /// It is the vendor's, and makes no sense.
    #[error("{0}")]
    Malformed(String),
}

/// Every vendor there is, by name.
#[derive(Clone, Default)]
pub struct Adapters(BTreeMap<&'static str, Arc<dyn Adapter>>);

impl Adapters {
    /// None at all.
    #[must_use]
    pub fn none() -> Self {
        Self::default()
    }

    /// Those that come with Postrider.
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

    /// With one more, which replaces one of the same name.
    #[must_use]
    pub fn with(mut self, adapter: Arc<dyn Adapter>) -> Self {
        self.0.insert(adapter.manifest().name, adapter);
        self
    }

    /// With all of these, each in place of one of the same name.
    #[must_use]
    pub fn with_all(mut self, others: &Self) -> Self {
        self.0.extend(others.0.iter().map(|(name, adapter)| (*name, Arc::clone(adapter))));
        self
    }

    /// The vendor of this name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Arc<dyn Adapter>> {
        self.0.get(name)
    }

    /// The vendor of this name, or an error that lists those there are.
    pub fn require(&self, provider: &str) -> Result<&Arc<dyn Adapter>, AccountRefused> {
        self.get(provider).ok_or_else(|| AccountRefused::UnknownProvider {
            provider: provider.to_owned(),
            known: self.names(),
        })
    }

    /// Whether there is such a vendor, and whether it takes the account as it is set up, with a new secret as with the first one. Nothing
    /// is sent.
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

    /// What all of them say about themselves.
    pub fn manifests(&self) -> impl Iterator<Item = &'static Manifest> {
        self.0.values().map(|adapter| adapter.manifest())
    }

    /// All names, for messages.
    #[must_use]
    pub fn names(&self) -> String {
        self.0.keys().copied().collect::<Vec<_>>().join(", ")
    }
}

/// No setting is longer than a URL may be, and none holds a line break, which an address or a header must not have.
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
