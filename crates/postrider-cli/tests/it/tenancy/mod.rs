//! Tenants, keys and restored copies.

mod master_key;
mod restored;
