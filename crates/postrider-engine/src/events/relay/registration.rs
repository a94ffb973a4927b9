//! The registration of a relay's sinks (docs/decisions/0020-relays-complete-events-under-registered-sinks.md).

use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

use postrider_model::{RegisteredSink, SinkSet, events::sink_set::SameName};
use postrider_store::{
    Pool, StoreError,
    events::sinks::{self, Registered},
    postgres::pool,
};

use super::Route;

/// The reason why a relay does not start.
#[derive(Debug, thiserror::Error)]
pub enum RelayError {
    /// The relay would complete every event without delivering it.
    #[error("the relay has no sinks; configure at least one, or do not run the relay, so that events wait")]
    NoSinks,
    /// Two of the relay's sinks have the same name.
    #[error(transparent)]
    SameName(#[from] SameName),
    /// The relay would complete events that the registered sinks have not received.
    #[error(
        "the sinks of this relay are not the registered ones (generation {}, registered {} by {}); this relay has: {}; \
         correct relay.sinks, or register these sinks with `postrider relay sinks set` and restart the other relays with \
         them: until then they release their events and stop claiming", registered.generation,
         registered.registered_at.strftime("%Y-%m-%d %H:%M:%SZ"), registered.registered_by, changes.join("; ")
    )]
    OtherSinks {
        /// The registered sinks.
        registered: Box<Registered>,
        /// Differences from the registered sinks, one line per sink.
        changes: Vec<String>,
    },
    /// A task of the relay panicked, and the relay stopped.
    #[error("the task `{0}` panicked, and the relay stopped; start it again")]
    Panicked(&'static str),
    /// A statement failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Converts routes to the set of sinks that the database registers.
pub fn sinks_of(routes: &[Route]) -> Result<SinkSet, SameName> {
    SinkSet::new(
        routes.iter().map(|route| RegisteredSink::new(&route.name, route.sink.destination(), &route.events)),
    )
}

/// A relay's sinks, and the generation under which they are or were registered.
pub(super) struct Registration {
    sinks: SinkSet,
    generation: AtomicI64,
    is_registered: AtomicBool,
}

impl Registration {
    /// Registers the sinks if none are registered. Refuses sinks that differ from the registered ones.
    pub(super) async fn new(pool: &Pool, routes: &[Route], processor: &str) -> Result<Self, RelayError> {
        if routes.is_empty() {
            return Err(RelayError::NoSinks);
        }
        let sinks = sinks_of(routes)?;
        let mut transaction = pool::begin(pool).await?;
        let registered = sinks::register(&mut transaction, &sinks, processor).await?;
        pool::commit(transaction).await?;
        if registered.sinks != sinks {
            let changes = sinks.changes_from(&registered.sinks);
            return Err(RelayError::OtherSinks { registered: Box::new(registered), changes });
        }
        Ok(Self {
            sinks,
            generation: AtomicI64::new(registered.generation),
            is_registered: AtomicBool::new(true),
        })
    }

    /// The generation that the relay read last. The database compares it with the registered one and refuses an old value.
    pub(super) fn generation(&self) -> i64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Whether the relay may claim events. After other sinks were registered, queries whether these are registered again.
    pub(super) async fn is_registered(&self, pool: &Pool) -> Result<bool, StoreError> {
        if self.is_registered.load(Ordering::Acquire) {
            return Ok(true);
        }
        let mut transaction = pool::begin(pool).await?;
        let Some(registered) = sinks::registered(&mut transaction).await? else { return Ok(false) };
        if registered.sinks != self.sinks {
            return Ok(false);
        }
        self.generation.store(registered.generation, Ordering::Release);
        self.is_registered.store(true, Ordering::Release);
        tracing::info!(
            generation = registered.generation,
            "the relay resumed claiming: its sinks are registered again"
        );
        Ok(true)
    }

    /// Stops claims, after the database refused one under these sinks.
    pub(super) fn mark_replaced(&self) {
        self.is_registered.store(false, Ordering::Release);
        tracing::error!(
            generation = self.generation(),
            "the relay stopped claiming: other sinks are registered; restart it with them, or register its own with \
             `postrider relay sinks set`"
        );
    }
}
