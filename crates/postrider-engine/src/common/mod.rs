//! Shared code of the loops.
//!
//! | module | content |
//! |---|---|
//! | `answer` | the answer of an adapter within a time limit |
//! | `attempts` | the running attempts of a loop |
//! | [`health`] | whether the loops of a process can work, for `/readyz` |
//! | [`metrics`] | every metric: name, labels, kind and help text |
//! | [`supervised`] | tasks whose panic ends the process |
//! | [`wakeup`] | hints to loops, in this process and in others, that there may be work |
//! | `held` | the claims that a process holds and renews by heartbeats |
//! | `periodic` | tasks that run at an interval |
//! | `recorder` | records results, also while the database is unavailable |
//! | `round` | one step of a loop: its deadline, and the order of tenants |

pub(crate) mod answer;
pub(crate) mod attempts;
pub mod health;
pub(crate) mod held;
pub mod metrics;
pub(crate) mod periodic;
pub(crate) mod recorder;
pub(crate) mod round;
pub mod supervised;
pub mod wakeup;
