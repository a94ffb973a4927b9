//! `postrider serve`: runs the HTTP API and the workers until a signal.

use std::{net::SocketAddr, process::ExitCode};

use clap::{Args, ValueEnum};
use postrider::{Config, Error, Role, Server};

use crate::shutdown;

#[derive(Args)]
pub struct ServeArgs {
    /// Run only these roles [default: all roles]
    #[arg(long, value_enum, value_delimiter = ',')]
    roles: Vec<ServeRole>,
    /// Serve HTTP at this address; port 0 picks a free port
    #[arg(long, value_name = "ADDRESS")]
    pub listen: Option<SocketAddr>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ServeRole {
    /// The HTTP API
    Api,
    /// Campaigns: send jobs, reservations, provider calls
    Campaigns,
    /// Items in doubt: settles them without a person if the provider can be queried
    Resolver,
    /// Chat replies: sends them, and recovers those of dead processes
    Dispatcher,
    /// Domain events: delivers them to their sinks
    Relay,
    /// Job runs: fires schedules, and runs functions
    Scheduler,
}

impl From<ServeRole> for Role {
    fn from(role: ServeRole) -> Self {
        match role {
            ServeRole::Api => Self::Api,
            ServeRole::Campaigns => Self::Campaigns,
            ServeRole::Resolver => Self::Resolver,
            ServeRole::Dispatcher => Self::Dispatcher,
            ServeRole::Relay => Self::Relay,
            ServeRole::Scheduler => Self::Scheduler,
        }
    }
}

/// Without a sink a relay would deliver nothing, so it does not run. Named with --roles, that is a mistake.
pub const NO_SINKS: &str = "no sinks are configured, so the relay that --roles names would deliver nothing; set relay.sinks, or leave `relay` out of --roles";

/// The selected roles; all roles if none is selected.
pub fn roles(selected: &[ServeRole]) -> Vec<Role> {
    if selected.is_empty() { Role::ALL.to_vec() } else { selected.iter().copied().map(Role::from).collect() }
}

/// Whether the selection names the relay, and the configuration has no sinks for it.
pub fn is_relay_without_sinks(selected: &[ServeRole], config: &Config) -> bool {
    selected.contains(&ServeRole::Relay) && config.relay.sinks.is_empty()
}

pub async fn run(args: ServeArgs, config: &Config) -> anyhow::Result<ExitCode> {
    anyhow::ensure!(!is_relay_without_sinks(&args.roles, config), NO_SINKS);
    let shutdown = shutdown::on_signal()?;
    let server = Server { roles: roles(&args.roles), ..Server::new(config.clone()) };
    server.run(shutdown).await.map_err(Error::into_inner)?;
    Ok(ExitCode::SUCCESS)
}
