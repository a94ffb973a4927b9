//! `postrider leads`: the people whom campaigns address.

use std::process::ExitCode;

use clap::{Args, Subcommand};
use postrider_store::{
    campaigns::{
        leads::{self, Erasure, Filter, Lead},
        unsubscribing::{self, OfList},
    },
    postgres::pool,
};
use serde_json::{Value, json};

use super::person;
use crate::cli::{ForTenant, Listing, actor, ask, output, with_installation};
use crate::{config::Config, installation::Installation};

#[derive(Subcommand)]
pub enum LeadsCommand {
    /// List leads, newest first
    List(ListArgs),
    /// Show a person, with everything that campaigns sent, skipped or failed to send
    Show {
        #[command(flatten)]
        of: ForTenant,
        /// The lead's id, e-mail address, phone number or external id
        person: String,
        /// Show at most this many items of each lead
        #[arg(long, value_name = "N", default_value_t = 200, value_parser = clap::value_parser!(i64).range(1..=100_000))]
        limit: i64,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Suppress a person: nothing more is sent to them
    Suppress {
        #[command(flatten)]
        of: ForTenant,
        /// The lead's id, e-mail address, phone number or external id
        person: String,
        /// Record this reason with the lead and with every item that is skipped because of it
        #[arg(long, default_value = "unsubscribed")]
        reason: String,
        /// Suppress the person for campaigns over the list of this name only
        #[arg(long, value_name = "NAME")]
        list: Option<String>,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// End the suppression of a person, with a note for the audit log
    Unsuppress {
        #[command(flatten)]
        of: ForTenant,
        /// The lead's id, e-mail address, phone number or external id
        person: String,
        /// Explain why messages may be sent again
        #[arg(long)]
        note: String,
        /// End the suppression for the list of this name; without it, the one for all lists ends
        #[arg(long, value_name = "NAME")]
        list: Option<String>,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Erase a person: remove their data from every table; keys and counts stay
    ///
    /// A person who was suppressed stays suppressed when imported again. The payloads of domain events and the inputs of functions belong
    /// to the application, which erases them itself. Backups, logs and exported files are not changed.
    Erase {
        #[command(flatten)]
        of: ForTenant,
        /// The lead's id, e-mail address, phone number or external id
        person: String,
        /// Erase without a question
        #[arg(long)]
        yes: bool,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

#[derive(Args)]
pub struct ListArgs {
    #[command(flatten)]
    of: ForTenant,
    /// List only leads on the list of this name
    #[arg(long, value_name = "NAME")]
    list: Option<String>,
    /// List only suppressed leads
    #[arg(long)]
    suppressed: bool,
    /// List only leads with this e-mail address, phone number or external id
    #[arg(long, value_name = "ADDRESS")]
    recipient: Option<String>,
    /// List erased leads, too
    #[arg(long)]
    with_erased: bool,
    #[command(flatten)]
    listing: Listing,
}

pub async fn run(command: LeadsCommand, config: &Config) -> anyhow::Result<ExitCode> {
    // The input is checked before the database is opened.
    match &command {
        LeadsCommand::Suppress { reason, .. } => {
            anyhow::ensure!(!reason.trim().is_empty(), "--reason is empty; explain why nothing may be sent");
        }
        LeadsCommand::Unsuppress { note, .. } => {
            anyhow::ensure!(
                !note.trim().is_empty(),
                "--note is empty; explain why messages may be sent again"
            );
        }
        _ => {}
    }
    with_installation(config, async |installation| act(command, installation).await).await?;
    Ok(ExitCode::SUCCESS)
}

async fn act(command: LeadsCommand, installation: &Installation) -> anyhow::Result<()> {
    let pool = installation.admin_pool().await?;
    match command {
        LeadsCommand::List(args) => list(args, installation).await,
        LeadsCommand::Show { of, person: wanted, limit, json } => {
            let (mut transaction, tenant) = of.begin(&pool, installation).await?;
            let mut shown = Vec::new();
            for lead in person::require(&mut transaction, &tenant, &wanted).await? {
                let items = person::history(&mut transaction, &tenant, &lead, limit).await?;
                let lists = unsubscribing::lists(&mut transaction, tenant.id, lead.id).await?;
                if json {
                    shown.push(person::json(&lead, &items, &lists));
                } else {
                    person::show(&lead, &items, &lists, limit)?;
                }
            }
            if json { output::json(&shown) } else { Ok(()) }
        }
        LeadsCommand::Suppress { of, person: wanted, reason, list, json } => {
            let (mut transaction, tenant) = of.begin(&pool, installation).await?;
            let mut done = Vec::new();
            for lead in person::require(&mut transaction, &tenant, &wanted).await? {
                if let Some(list) = &list {
                    let connection = &mut transaction;
                    let of_list =
                        unsubscribing::suppress(connection, tenant.id, lead.id, list, &reason, &actor())
                            .await?;
                    anyhow::ensure!(of_list != OfList::NoList, "{}", no_list(&lead, list));
                } else {
                    leads::suppress(&mut transaction, tenant.id, lead.id, &reason, &actor()).await?;
                }
                done.extend(leads::find(&mut transaction, tenant.id, lead.id).await?);
            }
            pool::commit(transaction).await?;
            report(&done, json, |lead| format!("{} is suppressed{}", lead.id, for_list(list.as_deref())))
        }
        LeadsCommand::Unsuppress { of, person: wanted, note, list, json } => {
            let (mut transaction, tenant) = of.begin(&pool, installation).await?;
            let mut done = Vec::new();
            let mut others = Vec::new();
            for lead in person::require(&mut transaction, &tenant, &wanted).await? {
                if let Some(list) = &list {
                    let connection = &mut transaction;
                    let (of_list, more) =
                        unsubscribing::unsuppress(connection, tenant.id, lead.id, list, &note, &actor())
                            .await?;
                    anyhow::ensure!(of_list != OfList::NoList, "{}", no_list(&lead, list));
                    others.extend(more);
                } else {
                    let more =
                        leads::unsuppress(&mut transaction, tenant.id, lead.id, &note, &actor()).await?;
                    others.extend(more.unwrap_or_default());
                }
                done.extend(leads::find(&mut transaction, tenant.id, lead.id).await?);
            }
            pool::commit(transaction).await?;
            report(&done, json, |lead| {
                format!("{} is no longer suppressed{}", lead.id, for_list(list.as_deref()))
            })?;
            others.retain(|other| done.iter().all(|lead| lead.id != *other));
            others.sort_unstable_by_key(|other| other.0);
            others.dedup();
            for other in others {
                message!(
                    "{other} has the same address and is still suppressed, so messages to that address are skipped"
                );
            }
            Ok(())
        }
        LeadsCommand::Erase { of, person: wanted, yes, json } => {
            let (mut transaction, tenant) = of.begin(&pool, installation).await?;
            let found = person::require(&mut transaction, &tenant, &wanted).await?;
            pool::commit(transaction).await?;
            ask::confirm(
                yes,
                &format!(
                    "this erases {} of tenant `{}` for ever",
                    counted(i64::try_from(found.len()).unwrap_or(i64::MAX), "lead", "leads"),
                    tenant.name
                ),
                "nothing was erased",
            )?;
            let mut open = Vec::new();
            let mut done = Vec::new();
            for lead in found {
                let Some(erasure) = leads::erase(&pool, tenant.id, lead.id, &actor()).await? else {
                    continue;
                };
                if let Erasure::Open { open_items, open_messages } = &erasure {
                    open.push(format!(
                        "{} is suppressed but not erased yet: {} in flight or in doubt, {} being answered",
                        lead.id,
                        counted(*open_items, "item is", "items are"),
                        counted(*open_messages, "chat message is", "chat messages are")
                    ));
                }
                done.push((lead.id, erasure));
            }
            if json {
                let done: Vec<Value> =
                    done.iter().map(|(id, erasure)| json!({ "lead_id": id.0, "erasure": erasure })).collect();
                output::json(&done)?;
            }
            for (id, erasure) in done {
                if let Erasure::Done { items, messages, .. } = erasure {
                    message!(
                        "{id} is erased, from {} and {}",
                        counted(items, "item", "items"),
                        counted(messages, "chat message", "chat messages")
                    );
                }
            }
            anyhow::ensure!(
                open.is_empty(),
                "{}; resolve the items in doubt (`postrider in-doubt list`), then run the command again",
                open.join("; ")
            );
            Ok(())
        }
    }
}

async fn list(args: ListArgs, installation: &Installation) -> anyhow::Result<()> {
    let pool = installation.admin_pool().await?;
    let (mut transaction, tenant) = args.of.begin(&pool, installation).await?;
    let filter = Filter {
        list: args.list,
        suppressed: args.suppressed.then_some(true),
        recipient: args.recipient,
        with_erased: args.with_erased,
        ..Filter::default()
    };
    let found = leads::page(&mut transaction, tenant.id, &filter, None, args.listing.limit).await?;
    if args.listing.json {
        return output::json(&found.iter().map(person::lead_json).collect::<Vec<_>>());
    }
    let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    let rows = found
        .into_iter()
        .map(|lead| {
            [
                lead.id.to_string(),
                or_dash(lead.external_id),
                or_dash(lead.email),
                or_dash(lead.phone),
                or_dash(lead.suppression_reason),
                output::time(lead.created_at),
            ]
        })
        .collect();
    output::table(["lead", "external id", "email", "phone", "suppressed", "created"], rows, "no lead matches")
}

fn report(done: &[Lead], json: bool, words: impl Fn(&Lead) -> String) -> anyhow::Result<()> {
    if json {
        return output::json(&done.iter().map(person::lead_json).collect::<Vec<_>>());
    }
    for lead in done {
        message!("{}", words(lead));
    }
    Ok(())
}

/// Such as ` for list people`.
fn for_list(list: Option<&str>) -> String {
    list.map(|list| format!(" for list {list}")).unwrap_or_default()
}

fn no_list(lead: &Lead, list: &str) -> String {
    format!("the workspace of {} has no list `{list}`", lead.id)
}

fn counted(count: i64, one: &str, many: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { many })
}
