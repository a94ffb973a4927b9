//! One suite for every adapter: ours, and those of programs that use Postrider as a library.
//!
//! ```text
//! Reservations ──a committed row──▶ Provider::call ──HTTP──▶ the suite's server, which answers, or fails in one exact way
//!                                        │                            │
//!                                        └─ what the adapter says ─▶ Report ◀─ what arrived at the socket
//! ```
//!
//! Each [`Case`] is one thing that happens to a call. The adapter must say the right one of the four outcomes about it, exactly
//! one request that acts must have arrived, and it must carry the key where the vendor takes one. Where the manifest says that
//! the resolver may repeat a call or look it up, that is tried as well: a repeat has the same bytes as the call.
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
mod play;
mod private;
mod report;
mod reservations;
mod server;
mod subject;

use std::{io, time::Duration};

pub use self::{
    case::{Case, Verdict},
    http::{Answer, Request},
    report::{CaseReport, NotConforming, Report},
    reservations::{NoReservations, Reservations},
    subject::{Key, Subject},
};
use crate::{
    guard::{GuardedClient, Limits, NoClient, Policy},
    provider::InvalidAccount,
};

/// How long a call of [`client`] may take: short enough to wait for, long enough for a busy machine.
pub const CALL_WITHIN: Duration = Duration::from_secs(4);

/// When the suite gives up on a call, as the worker does.
const DROPPED_AFTER: Duration = Duration::from_secs(12);

/// Why the suite could not be run.
#[derive(Debug, thiserror::Error)]
pub enum CannotRun {
    /// There is nothing to call with.
    #[error(transparent)]
    NoReservations(#[from] NoReservations),
    /// The adapter does not open the account that leads to the suite's server.
    #[error("the adapter refuses the account that leads to the suite's server")]
    Account(#[from] InvalidAccount),
    /// What the subject says and what the manifest says do not fit together.
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

/// Runs an adapter through every case that makes sense for it. The error is that the suite itself could not go on; what is wrong
/// with the adapter is in the report.
pub async fn run(subject: &Subject, reservations: &Reservations) -> Result<Report, CannotRun> {
    subject.check().map_err(CannotRun::Contradiction)?;
    let needed = subject.cases().map(play::calls).sum();
    let mut free = reservations.take(&subject.message, needed).await?;
    let mut cases = Vec::new();
    for case in subject.cases() {
        let own = free.split_off(free.len().saturating_sub(play::calls(case)));
        let trial = play::play(subject, case, own, reservations).await?;
        cases.push(examine::examine(subject, case, &trial));
    }
    Ok(Report { adapter: subject.adapter.manifest().name, cases })
}
