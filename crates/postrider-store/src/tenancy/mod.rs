//! Tenants and the access of people and processes.
//!
//! | module | what it does |
//! |---|---|
//! | [`tenants`], [`keys`], [`accounts`] | tenants, their API keys and their accounts at providers |
//! | [`sessions`] | sessions of the dashboard, and the codes that open one |
//! | [`master_key`] | the key that secrets are sealed under, and its rotation |
//! | [`audit`] | the audit logs |
//! | [`overview`] | the numbers of a tenant's overview, and the workers that hold its work |
//! | [`requests`] | responses to requests that may be repeated |
//! | [`installation`] | the identity of the database, the marks of its processes, and the adoption of a restored copy |
//! | [`fence`] | allows a process to reserve only where it has found nothing missing |
//! | [`witness`] | what processes know to be committed, kept in a second database |

pub mod accounts;
pub mod audit;
pub mod fence;
pub mod installation;
pub mod keys;
pub mod master_key;
pub mod overview;
pub mod removal;
pub mod requests;
pub mod sessions;
pub mod tenants;
pub mod witness;
