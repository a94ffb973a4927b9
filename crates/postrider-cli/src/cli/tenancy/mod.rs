//! `postrider tenants`, `keys`, `dashboard`, `master-key`, `accounts`, `overview` and `adopt`.

pub mod accounts;
pub mod adopt;
pub mod dashboard;
pub mod keys;
pub mod master_key;
pub mod overview;
mod removal;
pub mod tenants;
