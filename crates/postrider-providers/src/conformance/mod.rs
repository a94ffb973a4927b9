//! One suite for every adapter: the standard ones, and those of programs that use Postrider as a library.
//!
//! ```text
//! Reservations ──a committed row──▶ Provider::call ──HTTP──▶ the suite's server, which answers, or fails in one exact way
//!                                        │                            │
//!                                        └── reported outcome ──▶ Report ◀── requests at the socket
//! ```
//!
//! Each [`Case`] is one behavior of the vendor. The adapter must report the right one of the five outcomes, exactly
//! one request that acts must have arrived, and it must carry the key if the vendor takes one. If the manifest permits
//! the resolver to repeat a call or to look it up, the suite tests that as well: a repeat has the same bytes as the call.
//!
//! ```no_run
//! use postrider_model::Message;
//! use postrider_providers::{Adapter, GuardedClient, conformance::{self, Answer, Key, Reservations, Subject}};
//! use serde_json::json;
//! # type Fax = fn(&GuardedClient) -> std::sync::Arc<dyn Adapter>;
//!
//! # async fn test(fax_adapter: Fax) -> Result<(), Box<dyn std::error::Error>> {
//! let fax = fax_adapter(&conformance::client()?);
//! let message = Message::Social { text: "Hello.".to_owned() };
//! let subject = Subject::new(fax, message, |url| json!({ "url": url }))
//!     .secret("a-secret-of-the-account")
//!     .accepts(|_| Answer::json(201, &json!({ "fax": "f-1" })).with_message_id("f-1"))
//!     .refuses(Answer::json(422, &json!({ "error": "no such number" })))
//!     .key(Key::Header("idempotency-key"));
//! conformance::run(&subject, &Reservations::start().await?).await?.passed()?;
//! # Ok(())
//! # }
//! ```
//!
//! It is behind the feature `conformance`, and meant for tests.

mod case;
mod examine;
mod http;
mod private;
mod report;
mod reservations;
mod server;
mod subject;
mod trial;

use std::{io, time::Duration};

pub use self::{
    case::{Case, OutcomeKind},
    http::{Answer, Request},
    report::{CaseReport, NotConforming, Report},
    reservations::{NoReservations, Reservations},
    subject::{Key, Subject},
};
use crate::{
    guard::{GuardedClient, Limits, NoClient, Policy},
    provider::InvalidAccount,
};

/// Time limit of a call by [`client`]: short enough for tests of timeouts, long enough for a busy machine.
pub const CALL_WITHIN: Duration = Duration::from_secs(4);

/// Time after which the suite drops a call, as the worker does.
const DROPPED_AFTER: Duration = Duration::from_secs(12);

/// An error of the suite itself.
#[derive(Debug, thiserror::Error)]
pub enum CannotRun {
    /// There are no reservations to call with.
    #[error(transparent)]
    NoReservations(#[from] NoReservations),
    /// The adapter does not open the account that leads to the suite's server.
    #[error("the adapter refuses the account that leads to the suite's server")]
    Account(#[from] InvalidAccount),
    /// The subject and the manifest contradict each other.
    #[error("{0}")]
    Contradiction(String),
    /// The suite's server has no socket.
    #[error("the suite's server failed")]
    Server(#[from] io::Error),
}

/// The client to build the adapter with: it may reach the suite's server, and does not wait for long.
pub fn client() -> Result<GuardedClient, NoClient> {
    let limits = Limits { connect: CALL_WITHIN, total: CALL_WITHIN };
    GuardedClient::new(Policy { allow_private: true }, limits)
}

/// Runs every case that applies to an adapter. The error is an error of the suite itself; the problems of the adapter are in the
/// report.
pub async fn run(subject: &Subject, reservations: &Reservations) -> Result<Report, CannotRun> {
    subject.check().map_err(CannotRun::Contradiction)?;
    let needed = subject.cases().map(trial::calls).sum();
    let mut free = reservations.take(&subject.message, needed).await?;
    let mut cases = Vec::new();
    for case in subject.cases() {
        let own = free.split_off(free.len().saturating_sub(trial::calls(case)));
        let trial = trial::run(subject, case, own, reservations).await?;
        cases.push(examine::examine(subject, case, &trial));
    }
    Ok(Report { adapter: subject.adapter.manifest().name, cases })
}
