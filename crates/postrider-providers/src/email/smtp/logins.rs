//! The logins of accounts in this process. A server may lock an account after a few wrong passwords, so the first login of an account is
//! made alone, and a refused one is not repeated by the calls that are already on their way.

use std::{
    collections::HashMap,
    sync::{Arc, PoisonError},
    time::Duration,
};

use postrider_model::Outcome;
use secrecy::ExposeSecret;
use sha2::{Digest, Sha256};
use tokio::{sync::Mutex, time::Instant};

use crate::provider::Account;

/// Time for which a refusal is the answer to all calls of this process. After that the circuit of the account is known to be open.
const REFUSAL_AGE_MAX: Duration = Duration::from_secs(10);

/// A login under one password.
pub(super) type Slot = Mutex<Known>;

/// The last known result of a login.
#[derive(Default)]
pub(super) enum Known {
    /// No login has ended yet.
    #[default]
    Nothing,
    /// The server accepted it.
    Accepted,
    /// The server refused it.
    Refused(Instant, Outcome),
}

impl Known {
    /// The outcome of a call that must not try the login again.
    pub(super) fn refusal(&self) -> Option<Outcome> {
        match self {
            Self::Refused(at, outcome) if at.elapsed() < REFUSAL_AGE_MAX => Some(outcome.clone()),
            _ => None,
        }
    }
}

/// The logins by account, settings and password.
#[derive(Default)]
pub(super) struct Logins(std::sync::Mutex<HashMap<[u8; 32], Arc<Slot>>>);

impl Logins {
    /// The login of exactly this account. Removes those that no call uses.
    pub(super) fn of(&self, account: &Account<'_>) -> Arc<Slot> {
        let Account { id, settings, secret } = account;
        let hash = Sha256::digest(format!("{id} {settings} {}", secret.expose_secret()));
        let mut slots = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        slots.retain(|_, slot| {
            Arc::strong_count(slot) > 1 || slot.try_lock().is_ok_and(|known| known.refusal().is_some())
        });
        Arc::clone(slots.entry(hash.into()).or_default())
    }
}

/// Signs in by `attempt`. The first login is made alone; none is made within a moment after a refusal.
pub(super) async fn sign_in(
    slot: &Slot,
    attempt: impl AsyncFnOnce() -> Result<(), Outcome>,
) -> Result<(), Outcome> {
    let mut known = slot.lock().await;
    if let Some(refusal) = known.refusal() {
        return Err(refusal);
    }
    let result = if matches!(*known, Known::Accepted) {
        drop(known);
        let result = attempt().await;
        known = slot.lock().await;
        result
    } else {
        attempt().await
    };
    match &result {
        Ok(()) => *known = Known::Accepted,
        Err(refused @ Outcome::AccountRefused { is_login: true, .. }) => {
            *known = Known::Refused(Instant::now(), refused.clone());
        }
        Err(_) => {}
    }
    result
}
