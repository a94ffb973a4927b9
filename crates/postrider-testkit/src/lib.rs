//! Fixtures shared by the end-to-end tests.
//!
//! | module | content |
//! |---|---|
//! | [`world`] | one private cluster per test run, one database per test, processes that end with their test |
//! | [`postgres`] | a PostgreSQL server of one test, which it may stop, kill and configure |
//! | [`sql`] | raw SQL of an ordinary client, and how the server refuses it |
//! | [`http`] | HTTP/1.1 by hand, and a receiver of webhooks that answers when the test says so |
//! | [`server`] | an HTTP server that answers by script and records what it received |
//! | [`crash`] | the harness of the crash proofs: plan of faults, processes, loop, outcome and verdict |
//! | `exits` | ends a process at a place that a test has chosen (debug builds) |
#![expect(missing_docs, reason = "its users are the tests of this repository")]

pub mod crash;
pub mod exits;
pub mod http;
pub mod postgres;
pub mod server;
pub mod sql;
pub mod world;
