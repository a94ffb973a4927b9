//! Scheduled jobs.
//!
//! | module | what it does |
//! |---|---|
//! | [`functions`] | functions of a tenant: behind a URL, in the database, or in the program itself |
//! | [`schedules`] | schedules of functions: set by people, fired by whichever scheduler comes first |
//! | [`runs`] | job runs: acquired under a lock key, claimed by a runner, ended under the claim |
//! | [`sync_errors`] | dead letters: failures that need a person |
//! | [`alerts`], [`notifications`] | alerts, and the notifications about them |

pub mod alerts;
pub mod functions;
pub mod notifications;
pub mod runs;
pub mod schedules;
pub mod sync_errors;
