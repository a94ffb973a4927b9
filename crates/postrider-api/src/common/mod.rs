//! Code that the handlers of every area share.

pub(crate) mod auth;
pub(crate) mod body;
pub(crate) mod cookie;
pub(crate) mod docs;
pub(crate) mod error;
pub(crate) mod filters;
pub(crate) mod health;
pub(crate) mod listener;
pub(crate) mod paging;
pub(crate) mod peers;
pub(crate) mod requests;
pub(crate) mod throttle;
pub(crate) mod words;
