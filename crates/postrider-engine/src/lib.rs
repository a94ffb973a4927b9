//! Postrider's loops, by area. Decisions are pure functions with tables as tests; effects are small.
//!
//! | area | loops |
//! |---|---|
//! | [`campaigns`] | the worker claims send jobs, reserves items, calls providers and settles; [`campaigns::resolver`] settles items in doubt |
//! | [`channels`] | [`channels::executor`] executes messages; [`channels::dispatcher`] sends their replies at least once |
//! | [`events`] | [`events::relay`] delivers domain events to sinks at least once |
//! | [`jobs`] | the runner runs functions and retries them; [`jobs::scheduler`] fires schedules |
//! | [`tenancy`] | [`tenancy::retention`] removes old rows; [`tenancy::witness`] keeps a restored copy from sending again |
//! | [`common`] | shared code: health, metrics, supervision, wakeups, recording of results, heartbeats |

pub mod campaigns;
pub mod channels;
pub mod common;
pub mod events;
pub mod jobs;
pub mod tenancy;

pub use campaigns::{
    CampaignSettings, CampaignWorker,
    resolver::{Resolver, ResolverSettings},
};
pub use channels::{
    dispatcher::{Dispatcher, DispatcherSettings, Sweep},
    executor::{Ended, Executing},
};
pub use common::{
    health::Health,
    wakeup::{Hints, WakeupChannel},
};
pub use events::relay::{Relay, RelayError, RelaySettings, Route, sinks_of};
pub use jobs::{
    Functions, Runner, RunnerParts, RunnerSettings,
    scheduler::{Scheduler, SchedulerSettings},
};
pub use tenancy::{
    retention::{Retention, sweep_requests, sweep_sessions},
    witness::{Place, Standing, Witness},
};
