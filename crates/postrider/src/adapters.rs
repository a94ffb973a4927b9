//! Types for an adapter of an application: how messages reach one provider.
//!
//! An [`Adapter`] says what it can carry ([`Manifest`]) and checks a tenant's [`Account`]; the [`Provider`] that it opens makes the calls.
//! A call needs a [`Reservation`], evidence of a committed row that no other process can have, and answers with one of five
//! [`Outcome`]s. A request that may have been sent and was not confirmed is [`Outcome::Unknown`]: then the item is in doubt, and the manifest's
//! [`DoubtClass`] says how it can be settled.
//!
//! An adapter takes part in campaigns once it is given to [`serve`](crate::serve()):
//!
//! ```no_run
//! # async fn example(spool: impl postrider::adapters::Adapter + 'static, config: postrider::Config)
//! # -> Result<(), postrider::Error> {
//! use std::sync::Arc;
//!
//! use postrider::{CancellationToken, adapters::Adapters, functions::Functions};
//!
//! let adapters = Adapters::none().with(Arc::new(spool));
//! postrider::serve(config, adapters, Functions::default(), CancellationToken::new()).await
//! # }
//! ```
//!
//! That process takes accounts of the adapter (`POST /api/v2/provider-accounts`), creates campaigns that use them, and sends. A process
//! without the adapter leaves such items to those that have it. `examples/adapter.rs` is a whole program, and `docs/conformance.md`
//! shows the suite that an adapter should pass.

pub use postrider_model::{
    Channel, DoubtClass, Finding, IdempotencyKey, Manifest, Message, Outcome,
    channels::{DeliveryReport, InboundMessage},
    provider::Rate,
};
pub use postrider_providers::{
    Account, Adapter, Adapters, Callback, CallbackRefused, Echo, GuardedClient, InboundWebhook,
    InvalidAccount, Limits, Policy, Provider, Received, Reuse, check_url,
};
pub use postrider_store::{HeldDoubt, Reservation};
pub use secrecy::{ExposeSecret, SecretString};
