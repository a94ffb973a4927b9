//! Registers Rust functions for scheduled jobs.
//!
//! ```
//! use std::sync::Arc;
//!
//! use postrider::{
//!     async_trait,
//!     functions::{Function, FunctionError, Functions, Invoked},
//! };
//!
//! struct CloseMonth;
//!
//! #[async_trait]
//! impl Function for CloseMonth {
//!     async fn call(&self, invoked: &Invoked<'_>) -> Result<serde_json::Value, FunctionError> {
//!         Ok(serde_json::json!({ "closed": invoked.input["month"] }))
//!     }
//! }
//!
//! let functions = Functions::default().with("close-month", Arc::new(CloseMonth));
//! ```
//!
//! A process that [`serve`](crate::serve())s the role [`Scheduler`](crate::Role::Scheduler) with these functions registers their names
//! in the database. While it runs, `PUT /api/v2/functions/{name}` with `{"target": {"builtin": "close-month"}}` and
//! `postrider jobs function put NAME --builtin close-month` are accepted, from any process. Runs of a function wait for a process that
//! provides it. `examples/function.rs` is a whole program.

pub use postrider_engine::jobs::{Function, FunctionError, Functions, Invoked};
