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
use postrider_model::{Manifest, Message, Outcome};
use postrider_store::Reservation;
use secrecy::SecretString;

use crate::{GuardedClient, email::SmtpAdapter, sim::SimAdapter};

/// One account at one vendor, ready to be called.
#[async_trait]
pub trait Provider: Send + Sync {
    /// Makes the one call of this reservation. Nothing is ever sent a second time in here, and what may have left and was
    /// not answered is [`Outcome::Unknown`].
    ///
    /// The worker bounds the time of this call; when the time is up the future is dropped and the item is in doubt.
    async fn call(&self, reservation: &Reservation, message: &Message) -> Outcome;
}

/// An account of a tenant, with its secret open.
#[derive(Debug)]
pub struct Account<'a> {
    /// What is not secret.
    pub settings: &'a serde_json::Value,
    /// What is.
    pub secret: &'a SecretString,
}

/// An account that cannot work as it is set up.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidAccount(pub String);

/// A vendor.
pub trait Adapter: Send + Sync {
    /// What it says about itself.
    fn manifest(&self) -> &'static Manifest;

    /// Checks an account, and makes it callable. Unknown settings are refused; nothing is sent.
    fn open(&self, account: &Account<'_>) -> Result<Arc<dyn Provider>, InvalidAccount>;
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
        Self::none().with(Arc::new(SimAdapter::new(client))).with(Arc::new(SmtpAdapter::new(client)))
    }

    /// With one more, which replaces one of the same name.
    #[must_use]
    pub fn with(mut self, adapter: Arc<dyn Adapter>) -> Self {
        self.0.insert(adapter.manifest().name, adapter);
        self
    }

    /// The vendor of this name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Arc<dyn Adapter>> {
        self.0.get(name)
    }

    /// All names, for messages.
    #[must_use]
    pub fn names(&self) -> String {
        self.0.keys().copied().collect::<Vec<_>>().join(", ")
    }
}
