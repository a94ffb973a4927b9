//! `postrider serve`: HTTP and the loops, until a signal.

use std::{net::SocketAddr, process::ExitCode};

use clap::{Args, ValueEnum};
use postrider::{Config, Error, Role, Server};

use crate::shutdown;

#[derive(Args)]
pub struct ServeArgs {
    /// What this process does [default: everything]
    #[arg(long, value_enum, value_delimiter = ',')]
    roles: Vec<ServeRole>,
    /// Where to serve HTTP; port 0 picks a free one
    #[arg(long, value_name = "ADDRESS")]
    pub listen: Option<SocketAddr>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ServeRole {
    /// The HTTP API
    Api,
    /// Campaigns: jobs, reservations, provider calls
    Campaigns,
    /// Items in doubt: settles what can be settled without a person
    Resolver,
    /// Replies in chats: sends them, and takes up what dead processes left
    Dispatcher,
    /// Domain events to their sinks
    Relay,
    /// Scheduled jobs: fires schedules, and runs functions
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

/// The roles of a process that was asked for these; all of them where it was asked for none.
pub fn roles(asked: &[ServeRole]) -> Vec<Role> {
    if asked.is_empty() { Role::ALL.to_vec() } else { asked.iter().copied().map(Role::from).collect() }
}

pub async fn run(args: ServeArgs, config: &Config) -> anyhow::Result<ExitCode> {
    let shutdown = shutdown::on_signal()?;
    let server = Server { roles: roles(&args.roles), ..Server::new(config.clone()) };
    server.run(shutdown).await.map_err(Error::into_inner)?;
    Ok(ExitCode::SUCCESS)
}
