//! Every SQL call of Postrider, the migrator, and the private Postgres cluster.
//!
//! | module | what it does |
//! |---|---|
//! | [`embedded`] | runs real Postgres under a data directory when no database URL is given |
//! | [`migrate`] | brings the schema forward, and refuses one it does not know |
//! | [`provision`] | makes the database of a private cluster |
//! | [`pool`] | connections that are never handed out inside somebody else's transaction |
//! | [`doctor`] | what is right and wrong with a database, and what to do about it |
//! | [`installation`] | which database this is, the marks of its processes, and the adoption of a restored copy |
//! | [`fence`] | lets a process reserve only where it has found nothing missing |
//! | [`witness`] | what processes know to be committed, kept in a second database |
//! | [`tenants`], [`keys`], [`accounts`] | who the rows belong to |
//! | [`master_key`] | which key their secrets are sealed under, and its rotation |
//! | [`audit`] | who did what |
//! | [`requests`] | what was answered to requests that may be repeated |
//! | [`leads`] | leads and lists of them: import, list, suppress |
//! | [`events`] | domain events: publish, claim, complete, operate, retain |
//! | [`campaigns`], [`assets`] | what is sent to whom: create, deploy, and how it stands |
//! | [`phases`], [`history`] | controls of phases, and what happened to a campaign, in order |
//! | [`runs`], [`items`], [`trace`] | how far a run is, whether it is launched, its items, its whole story |
//! | [`doubts`], [`resolving`] | items of which nobody knows: list and resolve, by a person and by the resolver |
//! | [`callbacks`] | what providers tell about their calls without being asked |
//! | [`jobs`], [`outbox`] | campaigns at work: claim jobs, reserve and settle items, end jobs |
//! | [`messages`], [`links`], [`executors`] | chat: messages that come in, who their senders are, what executes them |
//! | [`replies`] | chat: replies on their way: claim, settle, requeue |
//! | [`functions`], [`schedules`] | scheduled jobs: what can be run, and when it runs by itself |
//! | [`job_runs`], [`sync_errors`] | scheduled jobs: runs under their lock keys, and what people must look at |
//! | [`alerts`], [`notifications`] | scheduled jobs: what somebody should know, and telling them |
//! | [`limits`] | turns at accounts, their circuits, and jobs that wait for them |
//! | [`wakeups`] | hints that there is work; the poll is the guarantee |
//!
//! Statements run inside explicit transactions and are never kept prepared, so that everything works behind a
//! pooler in transaction mode. Functions take `&mut PgConnection`: who begins a transaction commits it.

pub mod accounts;
pub mod alerts;
pub mod assets;
pub mod audit;
pub mod callbacks;
pub mod campaigns;
pub mod capacity;
pub mod context;
mod contract;
pub mod crash;
pub mod doctor;
pub mod doubts;
pub mod embedded;
mod error;
pub mod events;
pub mod executors;
pub mod fence;
pub mod functions;
pub mod history;
pub mod installation;
pub mod items;
pub mod job_runs;
pub mod jobs;
pub mod keys;
pub mod leads;
pub mod limits;
pub mod links;
pub mod master_key;
pub mod messages;
pub mod migrate;
pub mod notifications;
pub mod outbox;
pub mod phases;
pub mod pool;
pub mod provision;
pub mod replies;
pub mod requests;
mod reservation;
pub mod resolving;
pub mod runs;
pub mod schedules;
pub mod sinks;
pub mod sync_errors;
pub mod tenants;
pub mod trace;
mod unnamed;
pub mod wakeups;
pub mod witness;

pub use context::ContextKey;
pub use error::{Advice, DATABASE_URL, StoreError};
pub use pool::{Pool, Transaction};
pub use reservation::{Reservation, Settlement};
pub use resolving::HeldDoubt;
pub use sqlx::PgConnection;
