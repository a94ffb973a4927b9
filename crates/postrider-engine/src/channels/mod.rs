//! Conversations. The executor executes messages; the dispatcher sends their replies.

pub mod dispatcher;
pub mod executor;
