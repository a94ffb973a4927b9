//! Every SQL call of Postrider, the migrations, and the private Postgres cluster.
//!
//! | module | what it does |
//! |---|---|
//! | [`embedded`] | runs real Postgres under a data directory when no database URL is given |
//! | [`migrate`] | brings the schema forward, and refuses one it does not know |
//! | [`provision`] | makes the database of a private cluster |
//! | [`pool`] | connections that are never handed out inside somebody else's transaction |
//! | [`doctor`] | what is right and wrong with a database, and what to do about it |
//! | [`tenants`], [`keys`], [`accounts`] | who the rows belong to |
//! | [`events`] | domain events: publish, claim, complete, operate, retain |
//! | [`wakeups`] | hints that there is work; the poll is the guarantee |
//!
//! Statements run inside explicit transactions and are never kept prepared, so that everything works behind a
//! pooler in transaction mode. Functions take `&mut PgConnection`: who begins a transaction commits it.

pub mod accounts;
pub mod doctor;
pub mod embedded;
mod error;
pub mod events;
pub mod keys;
pub mod migrate;
pub mod pool;
pub mod provision;
pub mod tenants;
mod unnamed;
pub mod wakeups;

pub use error::StoreError;
pub use pool::{Pool, Transaction};
pub use sqlx::PgConnection;
