//! What the end-to-end tests share.
//!
//! | module | content |
//! |---|---|
//! | [`world`] | one private cluster per test run, one database per test, processes that end with their test |
//! | [`postgres`] | a PostgreSQL server of one test, which it may stop, kill and configure |
//! | [`sql`] | raw SQL of an ordinary client, and how the server refuses it |
//! | [`http`] | HTTP/1.1 by hand, and a scripted receiver of webhooks |
//! | `dying` | ends a process at a place that a test has chosen (debug builds) |
#![expect(missing_docs, reason = "its users are the tests of this repository")]

pub mod dying;
pub mod http;
pub mod postgres;
pub mod sql;
pub mod world;
