//! Posts, one file per vendor.

mod bluesky;
mod mastodon;

pub use bluesky::{BlueskyAdapter, record_key};
pub use mastodon::MastodonAdapter;
