//! Every SQL call of Postrider, the migrations, and the private Postgres cluster.

pub mod embedded;
