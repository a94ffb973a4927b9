//! Tenants, keys, restored copies, and the removal of a tenant.

mod master_key;
mod removal;
mod restored;
