//! `postrider tenants`, `keys`, `master-key`, `accounts` and `adopt`.

pub mod accounts;
pub mod adopt;
pub mod keys;
pub mod master_key;
mod removal;
pub mod tenants;
