//! Chat.
//!
//! | module | what it does |
//! |---|---|
//! | [`messages`] | received messages: recorded, executed, and ended with their reply in the outbox |
//! | [`links`] | the users of senders |
//! | [`executors`] | what executes the messages of an account |
//! | [`replies`] | replies on their way: claim, settle, requeue |

pub mod executors;
pub mod links;
pub mod messages;
pub mod replies;
