//! The private Postgres cluster.
