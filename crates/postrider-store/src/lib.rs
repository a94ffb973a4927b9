//! Every SQL call of Postrider, the migrator, and the private Postgres cluster.
//!
//! | area | what its modules do |
//! |---|---|
//! | [`postgres`] | connections, the migrator, checks of a database, wakeups, the private cluster |
//! | [`tenancy`] | tenants, keys and accounts, the audit logs, the identity of the database and its restored copies |
//! | [`events`] | domain events and the sinks they are delivered to |
//! | [`campaigns`] | leads, campaigns, their runs and send jobs, reservations, items in doubt |
//! | [`channels`] | chat: received messages and their replies |
//! | [`jobs`] | functions, schedules, job runs, dead letters, alerts |
//!
//! The modules of an area call the functions of its schema in the database, and `sql/` has the longer queries, by the same areas.
//!
//! Statements run inside explicit transactions and are never kept prepared, so that everything works behind a pooler in transaction
//! mode. Functions take `&mut PgConnection`: the caller that begins a transaction commits it.

pub mod campaigns;
pub mod channels;
mod error;
pub mod events;
pub mod jobs;
pub mod postgres;
pub mod tenancy;

pub use campaigns::{
    reservation::{Reservation, Settlement},
    resolving::HeldDoubt,
};
pub use error::{Advice, DATABASE_URL, StoreError};
pub use postgres::{
    context::ContextKey,
    pool::{Pool, Transaction},
};
pub use sqlx::PgConnection;
