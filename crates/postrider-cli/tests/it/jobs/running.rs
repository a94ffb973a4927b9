//! Runs in real processes: what functions do, and what is written down about it.

mod http;
mod rust;
mod sql;
mod stopping;
