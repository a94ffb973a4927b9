//! Every SQL call of Postrider, the migrator, and the private Postgres cluster.
//!
//! | module | what it does |
//! |---|---|
//! | [`embedded`] | runs real Postgres under a data directory when no database URL is given |
//! | [`migrate`] | brings the schema forward, and refuses one it does not know |
//! | [`provision`] | makes the database of a private cluster |
//! | [`pool`] | connections that are never handed out inside another caller's transaction |
//! | [`doctor`] | checks of a database, with advice |
//! | [`installation`] | the identity of the database, the marks of its processes, and the adoption of a restored copy |
//! | [`fence`] | allows a process to reserve only where it has found nothing missing |
//! | [`witness`] | what processes know to be committed, kept in a second database |
//! | [`tenants`], [`keys`], [`accounts`] | tenants, their API keys and their accounts at providers |
//! | [`master_key`] | the key that secrets are sealed under, and its rotation |
//! | [`audit`] | the audit logs |
//! | [`requests`] | responses to requests that may be repeated |
//! | [`leads`] | leads and lists of them: import, list, suppress |
//! | [`events`] | domain events: publish, claim, complete, operate, retain |
//! | [`campaigns`], [`assets`] | campaigns and their content: create, deploy, show |
//! | [`phases`], [`history`] | controls of phases, and the events of a campaign in order |
//! | [`runs`], [`items`], [`trace`] | runs: their progress, launch certificate, items and trace |
//! | [`doubts`], [`resolving`] | items in doubt: list and resolve, by a person and by the resolver |
//! | [`callbacks`] | reports that providers send about their calls |
//! | [`jobs`], [`outbox`] | campaigns at work: claim jobs, reserve and settle items, end jobs |
//! | [`messages`], [`links`], [`executors`] | chat: received messages, the users of their senders, their executors |
//! | [`replies`] | chat: replies on their way: claim, settle, requeue |
//! | [`functions`], [`schedules`] | scheduled jobs: functions, and the schedules that run them |
//! | [`job_runs`], [`sync_errors`] | scheduled jobs: runs under their lock keys, and dead letters |
//! | [`alerts`], [`notifications`] | scheduled jobs: alerts, and notifications about them |
//! | [`limits`] | turns at accounts, their circuits, and jobs that wait for them |
//! | [`wakeups`] | hints that there is work; the poll is the guarantee |
//!
//! Statements run inside explicit transactions and are never kept prepared, so that everything works behind a pooler in transaction
//! mode. Functions take `&mut PgConnection`: the caller that begins a transaction commits it.

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
mod unprepared;
pub mod wakeups;
pub mod witness;

pub use context::ContextKey;
pub use error::{Advice, DATABASE_URL, StoreError};
pub use pool::{Pool, Transaction};
pub use reservation::{Reservation, Settlement};
pub use resolving::HeldDoubt;
pub use sqlx::PgConnection;
