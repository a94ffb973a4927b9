//! Alerts, and decision cards about them.

use clap::Args;
use postrider_model::{ids::DecisionCardId, jobs::CardStatus};
use postrider_store::{
    jobs::alerts::{self, Alert},
    postgres::pool,
};

use super::{
    super::{ForTenant, actor, output, with_installation},
    Listing, count,
};
use crate::config::Config;

#[derive(Args)]
pub struct AlertsArgs {
    #[command(flatten)]
    of: ForTenant,
    /// Include alerts that ended
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    listing: Listing,
}

#[derive(Args)]
pub struct CardsArgs {
    #[command(flatten)]
    of: ForTenant,
    /// Include resolved and dismissed cards
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    listing: Listing,
}

#[derive(Args)]
pub struct DecideArgs {
    #[command(flatten)]
    of: ForTenant,
    /// The card, as `jobs cards` shows it
    id: DecisionCardId,
    /// The new status: OPEN, IN_PROGRESS, RESOLVED or DISMISSED
    #[arg(value_parser = status)]
    status: CardStatus,
    /// Keep this note with the decision
    #[arg(long, value_name = "TEXT")]
    note: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Reads a status in any case, also with hyphens, such as `in-progress`.
fn status(input: &str) -> Result<CardStatus, String> {
    input.to_ascii_uppercase().replace('-', "_").parse().map_err(|_| {
        format!("`{input}` is not a card status; choose OPEN, IN_PROGRESS, RESOLVED or DISMISSED")
    })
}

pub async fn list(args: &AlertsArgs, config: &Config) -> anyhow::Result<()> {
    let AlertsArgs { of, all, listing } = args;
    let alerts = with_installation(config, async |installation| {
        let pool = installation.admin_pool().await?;
        let (mut transaction, tenant) = of.begin(&pool, installation).await?;
        let is_open = if *all { None } else { Some(true) };
        Ok(alerts::page(&mut transaction, tenant.id, is_open, None, listing.limit).await?)
    })
    .await?;
    if listing.json {
        return output::json(&alerts);
    }
    let rows = alerts
        .iter()
        .map(|alert| {
            [
                alert.id.to_string(),
                alert.alert_config_id.clone(),
                alert.severity.clone(),
                alert.status.to_string(),
                output::time(alert.created_at),
                output::time_or_dash(alert.resolved_at),
                alert.title.clone(),
                notification_counts(alert),
            ]
        })
        .collect();
    output::table(
        ["alert", "rule", "severity", "status", "since", "over", "what", "told"],
        rows,
        if *all { "there were no alerts" } else { "there are no active alerts" },
    )
}

/// Such as `1 sent, 1 in doubt`.
fn notification_counts(alert: &Alert) -> String {
    let notifications = alert.notifications.as_array().map(Vec::as_slice).unwrap_or_default();
    let state = |notification: &serde_json::Value| match notification["status"].as_str() {
        Some("queued") if !notification["in_doubt_since"].is_null() => "in doubt",
        Some("queued") => "waiting",
        Some("sent") => "sent",
        _ => "failed",
    };
    let words: Vec<String> = ["sent", "waiting", "in doubt", "failed"]
        .into_iter()
        .map(|word| (word, notifications.iter().filter(|notification| state(notification) == word).count()))
        .filter(|(_, so_many)| *so_many > 0)
        .map(|(word, so_many)| count(so_many, word, word))
        .collect();
    if words.is_empty() { "no recipient".to_owned() } else { words.join(", ") }
}

pub async fn cards(args: &CardsArgs, config: &Config) -> anyhow::Result<()> {
    let CardsArgs { of, all, listing } = args;
    let cards = with_installation(config, async |installation| {
        let pool = installation.admin_pool().await?;
        let (mut transaction, tenant) = of.begin(&pool, installation).await?;
        let statuses: &[_] =
            if *all { &[None] } else { &[Some(CardStatus::Open), Some(CardStatus::InProgress)] };
        let mut cards = Vec::new();
        for status in statuses {
            cards.extend(alerts::cards(&mut transaction, tenant.id, *status, None, listing.limit).await?);
        }
        cards.sort_by_key(|card| std::cmp::Reverse(card.id));
        cards.truncate(usize::try_from(listing.limit)?);
        Ok(cards)
    })
    .await?;
    if listing.json {
        return output::json(&cards);
    }
    let rows = cards
        .iter()
        .map(|card| {
            let decided = match (&card.decided_by, &card.note) {
                (Some(by), Some(note)) => format!("by {by}: {note}"),
                (Some(by), None) => format!("by {by}"),
                (None, _) => "-".to_owned(),
            };
            [
                card.id.to_string(),
                card.status.to_string(),
                card.period_start.clone(),
                card.title.clone(),
                card.recommendation.clone(),
                decided,
            ]
        })
        .collect();
    output::table(
        ["card", "status", "day", "condition", "recommendation", "decided"],
        rows,
        if *all { "there were no cards" } else { "no card waits for a decision" },
    )
}

pub async fn decide(args: &DecideArgs, config: &Config) -> anyhow::Result<()> {
    let DecideArgs { of, id, status, note, json } = args;
    with_installation(config, async |installation| {
        let pool = installation.admin_pool().await?;
        let (mut transaction, tenant) = of.begin(&pool, installation).await?;
        match alerts::decide_card(&mut transaction, tenant.id, *id, *status, note.as_deref(), &actor())
            .await?
        {
            Some(Ok(())) => {}
            Some(Err(before)) => anyhow::bail!(
                "{id} is {before}, and its status cannot change any more; a new alert gets a new card"
            ),
            None => anyhow::bail!(
                "tenant `{}` has no card {}; `{}` lists them",
                tenant.name,
                id.0,
                of.command(&["jobs", "cards", "--all"])
            ),
        }
        let card = alerts::card(&mut transaction, tenant.id, *id).await?;
        pool::commit(transaction).await?;
        if *json {
            return output::json(&card);
        }
        message!("{id} is {status}");
        Ok(())
    })
    .await
}
