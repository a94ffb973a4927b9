//! Postrider's loops. Deciding is pure and stands in a table; doing is small.
//!
//! | module | what it does |
//! |---|---|
//! | [`drafts`] | what is wrong with a campaign before it is created |
//! | [`campaigns`] | the worker: claims jobs, reserves items, calls providers, settles |
//! | [`resolver`] | settles what is in doubt, where the provider allows it |
//! | [`executor`] | executes messages, and puts their replies into the outbox |
//! | [`dispatcher`] | sends replies, at least once, and takes up what dead processes left |
//! | [`health`] | whether the roles of a process can work |
//! | [`hints`] | tells this process and others that there may be work |
//! | [`jobs`] | the runner: performs runs of functions, retries them, and takes up what dead processes left |
//! | [`scheduler`] | fires schedules whose time has come |
//! | [`meters`] | every metric: name, labels, kind and help text |
//! | [`render`] | from an asset and a lead to a message |
//! | [`relay`] | empties the event outbox into its sinks, at least once |
//! | [`retention`] | removes old processed events in small steps |
//! | [`witness`] | keeps a restored database from sending again what the original has sent |
//! | `step` | what these loops have in common |
//! | [`mod@vital`] | tasks that a process must not live without |

pub mod campaigns;
pub mod dispatcher;
pub mod drafts;
pub mod executor;
pub mod health;
pub mod hints;
pub mod jobs;
pub mod meters;
pub mod relay;
pub mod render;
pub mod resolver;
pub mod retention;
pub mod scheduler;
mod step;
pub mod vital;
pub mod witness;

pub use campaigns::{CampaignSettings, CampaignWorker};
pub use dispatcher::{Dispatcher, DispatcherSettings, Sweep};
pub use executor::{Ended, Executing};
pub use health::Health;
pub use hints::{Bell, Hints};
pub use jobs::{Functions, Runner, RunnerParts, RunnerSettings};
pub use relay::{Relay, RelayError, RelaySettings, Route, sinks_of};
pub use resolver::{Resolver, ResolverSettings};
pub use retention::{Retention, sweep_requests};
pub use scheduler::{Scheduler, SchedulerSettings};
pub use witness::{Place, Standing, Witness};
