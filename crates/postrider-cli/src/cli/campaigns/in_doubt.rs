//! `postrider in-doubt`: items that may or may not have been sent. `many.rs` resolves several items with one finding.

mod many;

use std::{path::PathBuf, process::ExitCode, time::Duration};

use clap::{Subcommand, ValueEnum};
use postrider_engine::campaigns::resolver::{SettledBy, settled_by};
use postrider_model::{Span, ids::OutboxId};
use postrider_providers::Adapters;
use postrider_store::{
    Pool,
    campaigns::{
        doubts::{self, Doubt, Doubts, Found, Resolution},
        runs::SINGLE_MESSAGES,
        send_jobs,
    },
    postgres::pool,
};
use serde::Serialize;

use crate::cli::{ForTenant, actor, output, with_installation};
use crate::{config::Config, installation::Installation, wire};

#[derive(Subcommand)]
pub enum InDoubtCommand {
    /// List items in doubt, the longest reserved first
    List {
        #[command(flatten)]
        of: ForTenant,
        /// List at most this many
        #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(i64).range(1..=10_000))]
        limit: i64,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Resolve items with the outcome that you found at the provider
    ///
    /// `--as sent` is accepted at once. `--as failed` is accepted only after the quiet time, when the message cannot arrive any
    /// more. An item is never reopened: a new run sends again. If some of several items are refused, the others are resolved,
    /// and the exit code is 1.
    Resolve {
        #[command(flatten)]
        of: ForTenant,
        /// The items, as `in-doubt list` shows them
        #[arg(value_name = "ITEM", required_unless_present = "file")]
        items: Vec<OutboxId>,
        /// Read further items from this file, one per line, with the provider's message id after it if it is known; `-` is stdin
        #[arg(long, value_name = "FILE")]
        file: Option<PathBuf>,
        /// Resolve the items with this outcome
        #[arg(long = "as", value_enum)]
        resolved_as: ResolvedAs,
        /// Explain how you know; the note is kept in the audit log
        #[arg(long)]
        note: String,
        /// Record the provider's id of the message, if it was sent; for a single item
        #[arg(long, value_name = "ID", conflicts_with = "file")]
        message_id: Option<String>,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ResolvedAs {
    /// The provider accepted the message
    Sent,
    /// The provider never received the message
    Failed,
}

pub async fn run(command: InDoubtCommand, config: &Config) -> anyhow::Result<ExitCode> {
    // The input is checked before the database is opened.
    if let InDoubtCommand::Resolve { items, resolved_as, note, message_id, .. } = &command {
        anyhow::ensure!(
            !note.trim().is_empty(),
            "--note is empty; explain how you know the outcome of the item"
        );
        anyhow::ensure!(
            *resolved_as == ResolvedAs::Sent || message_id.is_none(),
            "--message-id belongs to an item that was sent; leave it out, or resolve --as sent"
        );
        anyhow::ensure!(
            items.len() <= 1 || message_id.is_none(),
            "--message-id belongs to one item; for several, write the ids into a file and give it with --file"
        );
    }
    let adapters = wire::adapters(config)?;
    with_installation(config, async |installation| act(command, installation, &adapters).await).await
}

async fn act(
    command: InDoubtCommand,
    installation: &Installation,
    adapters: &Adapters,
) -> anyhow::Result<ExitCode> {
    let pool = installation.admin_pool().await?;
    match command {
        InDoubtCommand::List { of, limit, json } => {
            let (mut transaction, tenant) = of.begin(&pool, installation).await?;
            let doubts = doubts::list(&mut transaction, tenant.id, limit).await?;
            if json { show_json(&doubts, adapters)? } else { show(&doubts, adapters)? }
        }
        InDoubtCommand::Resolve { of, items, file, resolved_as, note, message_id, json } => {
            let mut found: Vec<Found> =
                items.into_iter().map(|id| Found { id, message_id: message_id.clone() }).collect();
            if let Some(file) = &file {
                found.extend(many::read(file, resolved_as)?);
            }
            let (mut transaction, tenant) = of.begin(&pool, installation).await?;
            let (item, message_id) = match (found.as_slice(), &file) {
                ([Found { id, message_id }], None) => (*id, message_id.clone()),
                _ => {
                    pool::rollback(transaction).await?;
                    return many::resolve(&pool, tenant.id, &found, resolved_as, &note, json).await;
                }
            };
            let resolution = match resolved_as {
                ResolvedAs::Sent => Resolution::Sent { message_id: message_id.as_deref() },
                ResolvedAs::Failed => Resolution::Failed,
            };
            let status =
                doubts::resolve(&mut transaction, tenant.id, item, resolution, &note, &actor()).await?;
            pool::commit(transaction).await?;
            wake_workers(&pool).await?;
            if json {
                output::json(&serde_json::json!({ "id": item, "status": status }))?;
            } else {
                message!("{item} is now {status}");
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Wakes the workers: the send job of an item may have waited only for this item.
async fn wake_workers(pool: &Pool) -> anyhow::Result<()> {
    let mut hinting = pool::begin(pool).await?;
    send_jobs::hint(&mut hinting).await?;
    pool::commit(hinting).await?;
    Ok(())
}

/// A doubt for programs. `settled_by` is what the table shows; `is_for_person` is derived from it.
#[derive(Serialize)]
struct Shown<'a> {
    #[serde(flatten)]
    doubt: &'a Doubt,
    settled_by: SettledBy,
    is_for_person: bool,
}

fn show_json(doubts: &Doubts, adapters: &Adapters) -> anyhow::Result<()> {
    let shown = doubts.items.iter().map(|doubt| {
        let settled_by = settled_by(doubt, adapters);
        Shown { doubt, settled_by, is_for_person: settled_by == SettledBy::Person }
    });
    output::json(&shown.collect::<Vec<_>>())
}

fn show(doubts: &Doubts, adapters: &Adapters) -> anyhow::Result<()> {
    let rows = doubts.items.iter().map(|doubt| row(doubt, settled_by(doubt, adapters))).collect();
    output::table(
        ["item", "campaign", "phase", "recipient", "provider", "for", "quiet", "settled by", "reason"],
        rows,
        "no item is in doubt",
    )?;
    let shown = i64::try_from(doubts.items.len()).unwrap_or(i64::MAX);
    if shown < doubts.total {
        message!("{shown} of {} items are shown; --limit shows more", doubts.total);
    }
    if shown > 0 {
        message!(
            "for items that a person settles: check at the provider, then `postrider in-doubt resolve ITEM --as sent|failed --note …`; \
             --as failed only after the quiet time"
        );
    }
    Ok(())
}

fn row(doubt: &Doubt, settled_by: SettledBy) -> [String; 9] {
    let dash = || "-".to_owned();
    let quiet =
        if doubt.is_quiet { "yes".to_owned() } else { format!("from {}", output::time(doubt.quiet_until)) };
    [
        doubt.id.to_string(),
        doubt.campaign.clone().unwrap_or_else(|| SINGLE_MESSAGES.to_owned()),
        doubt.phase.clone().unwrap_or_else(dash),
        doubt.recipient.clone().unwrap_or_else(dash),
        doubt.provider.clone(),
        Span(Duration::from_secs(doubt.age_seconds.max(0).unsigned_abs())).to_string(),
        quiet,
        settled_by.to_string(),
        match &doubt.note {
            Some(note) => format!("{}; {note}", doubt.reason),
            None => doubt.reason.clone(),
        },
    ]
}
