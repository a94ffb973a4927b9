//! `postrider channels`: senders, executors, messages and replies.

mod executors;
mod links;
mod messages;
mod outbox;

use std::{collections::HashMap, process::ExitCode};

use anyhow::Context;
use clap::{Args, Subcommand};
use postrider_model::{
    channels::{MessageStatus, ReplyStatus},
    ids::{ChannelMessageId, LinkId, ProviderAccountId, TenantId},
    tenancy::Role,
};
use postrider_store::{PgConnection, tenancy::accounts};

use self::{executors::ExecutorCommand, messages::MessageOrReply, outbox::RequeueArgs};
use super::{ForTenant, Listing, with_installation};
use crate::{config::Config, installation::Installation};

#[derive(Subcommand)]
pub enum ChannelsCommand {
    /// List dead replies, newest first
    Dead {
        #[command(flatten)]
        of: ForTenant,
        #[command(flatten)]
        scope: ReplyScope,
        #[command(flatten)]
        listing: Listing,
    },
    /// Requeue dead replies with all their attempts: one, those that match, or all
    Requeue(RequeueArgs),
    /// List replies, newest first
    Outbox {
        #[command(flatten)]
        of: ForTenant,
        /// List only replies with this status: pending, sending, sent or dead
        #[arg(long)]
        status: Option<ReplyStatus>,
        #[command(flatten)]
        scope: ReplyScope,
        #[command(flatten)]
        listing: Listing,
    },
    /// List incoming messages, newest first
    Messages {
        #[command(flatten)]
        of: ForTenant,
        /// List only messages with this status, such as `denied_unlinked` or `dispatch_failed`
        #[arg(long)]
        status: Option<MessageStatus>,
        /// List only those of this account, by name or id
        #[arg(long, value_name = "ACCOUNT")]
        account: Option<String>,
        /// List only those of this sender
        #[arg(long, value_name = "SENDER")]
        sender: Option<String>,
        #[command(flatten)]
        listing: Listing,
    },
    /// Show the complete history of a message or a reply
    Show {
        #[command(flatten)]
        of: ForTenant,
        /// The id of a message or a reply
        id: MessageOrReply,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Retry a message whose execution failed
    Retry {
        #[command(flatten)]
        of: ForTenant,
        /// The message, as `channels messages --status dispatch_failed` shows it
        id: ChannelMessageId,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Link a sender to a user; prints the link's id
    Link {
        #[command(flatten)]
        of: ForTenant,
        /// The account, by name or id
        account: String,
        /// The provider's name for the sender, as `channels messages` shows it
        sender: String,
        /// Link the sender to this user of the product
        #[arg(long, value_name = "USER")]
        user: String,
        /// Give the user this role: viewer, operator or admin
        #[arg(long)]
        role: Role,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// List links between senders and users, newest first
    Links {
        #[command(flatten)]
        of: ForTenant,
        /// List only those of this account, by name or id
        #[arg(long, value_name = "ACCOUNT")]
        account: Option<String>,
        /// List only those of this sender
        #[arg(long, value_name = "SENDER")]
        sender: Option<String>,
        #[command(flatten)]
        listing: Listing,
    },
    /// Remove a link; further messages of its sender are denied
    Unlink {
        #[command(flatten)]
        of: ForTenant,
        /// The link, as `channels links` shows it
        id: LinkId,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Set and remove executors of messages
    #[command(subcommand)]
    Executor(ExecutorCommand),
    /// List executors of messages, without secrets
    Executors {
        #[command(flatten)]
        of: ForTenant,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

#[derive(Args)]
pub struct ReplyScope {
    /// List only replies through this account, by name or id
    #[arg(long, value_name = "ACCOUNT")]
    account: Option<String>,
    /// List only replies through this provider, such as `slack`
    #[arg(long, value_name = "PROVIDER")]
    provider: Option<String>,
}

pub async fn run(command: ChannelsCommand, config: &Config) -> anyhow::Result<ExitCode> {
    match command {
        ChannelsCommand::Executor(command) => executors::run(command, config).await?,
        command => with_installation(config, async |installation| act(command, installation).await).await?,
    }
    Ok(ExitCode::SUCCESS)
}

async fn act(command: ChannelsCommand, installation: &Installation) -> anyhow::Result<()> {
    match command {
        ChannelsCommand::Dead { of, scope, listing } => {
            outbox::dead(&of, &scope, &listing, installation).await
        }
        ChannelsCommand::Requeue(args) => outbox::requeue(&args, installation).await,
        ChannelsCommand::Outbox { of, status, scope, listing } => {
            outbox::list(&of, status, &scope, &listing, installation).await
        }
        ChannelsCommand::Messages { of, status, account, sender, listing } => {
            let selection = messages::MessageSelection { status, account, sender };
            messages::list(&of, &selection, &listing, installation).await
        }
        ChannelsCommand::Show { of, id, json } => messages::show(&of, id, json, installation).await,
        ChannelsCommand::Retry { of, id, json } => messages::retry(&of, id, json, installation).await,
        ChannelsCommand::Link { of, account, sender, user, role, json } => {
            let new = links::NewSender { account: &account, sender: &sender, user: &user, role };
            links::link(&of, new, json, installation).await
        }
        ChannelsCommand::Links { of, account, sender, listing } => {
            links::list(&of, account.as_deref(), sender.as_deref(), &listing, installation).await
        }
        ChannelsCommand::Unlink { of, id, json } => links::unlink(&of, id, json, installation).await,
        ChannelsCommand::Executors { of, json } => executors::list(&of, json, installation).await,
        // Handled in `run`.
        ChannelsCommand::Executor(_) => Ok(()),
    }
}

/// The account with this name or id.
async fn account(
    connection: &mut PgConnection,
    tenant: TenantId,
    wanted: &str,
) -> anyhow::Result<ProviderAccountId> {
    let found = accounts::named(connection, tenant, wanted).await?;
    anyhow::ensure!(
        found.len() < 2,
        "several workspaces have an account `{wanted}`; give its id, `postrider accounts list` shows it"
    );
    let found = found.first().copied();
    found.with_context(|| format!("there is no account `{wanted}`; `postrider accounts list` shows them"))
}

/// The account with this name or id, if one is named.
async fn maybe_account(
    connection: &mut PgConnection,
    tenant: TenantId,
    wanted: Option<&str>,
) -> anyhow::Result<Option<ProviderAccountId>> {
    match wanted {
        Some(wanted) => account(connection, tenant, wanted).await.map(Some),
        None => Ok(None),
    }
}

/// Names of accounts. A removed account is shown by its id.
struct Names(HashMap<ProviderAccountId, String>);

impl Names {
    async fn read(connection: &mut PgConnection, tenant: TenantId) -> anyhow::Result<Self> {
        let accounts = accounts::list(connection, tenant).await?;
        Ok(Self(accounts.into_iter().map(|account| (account.id, account.name)).collect()))
    }

    fn of(&self, account: ProviderAccountId) -> String {
        self.0.get(&account).cloned().unwrap_or_else(|| account.0.to_string())
    }
}
