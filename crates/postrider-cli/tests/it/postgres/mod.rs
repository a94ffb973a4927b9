//! The database itself: what its catalogue holds, migrations, pools and poolers, hints, and private clusters.

pub mod catalogue;
mod embedded_mode;
mod hints;
mod migrations;
mod pool;
mod pooler;
pub mod transitions;

pub use postrider_testkit::postgres::Postgres;
