//! The database itself: connections, the schema, checks, and the cluster that Postrider runs when no database URL is given.
//!
//! | module | what it does |
//! |---|---|
//! | [`pool`] | connections that are never handed out inside another caller's transaction |
//! | [`context`] | the signature that lets a login act for a tenant |
//! | [`migrate`] | brings the schema forward, and refuses one it does not know |
//! | [`doctor`] | checks of a database, with advice |
//! | [`capacity`] | how many connections a server, a database and a login allow |
//! | [`wakeups`] | hints that there is work; the poll is the guarantee |
//! | [`crash`] | points at which a test can end the process |
//! | [`embedded`] | runs real Postgres under a data directory when no database URL is given |
//! | [`provision`] | makes the database of a private cluster |

pub mod capacity;
pub mod context;
mod contract;
pub mod crash;
pub mod doctor;
pub mod embedded;
pub mod migrate;
pub mod pool;
pub mod provision;
pub(crate) mod unprepared;
pub(crate) mod values;
pub mod wakeups;
