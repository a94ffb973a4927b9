//! Conversations: messages are executed, and their replies are sent.

pub mod dispatcher;
pub mod executor;
