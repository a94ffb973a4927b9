//! Replies in the outbox, and dead replies.

use std::str::FromStr;

use anyhow::Context;
use clap::Args;
use jiff::Timestamp;
use postrider_model::{
    channels::ReplyStatus,
    ids::{OutboxId, ProviderAccountId},
};
use postrider_store::{
    channels::replies::{self, ReplyFilter, ReplyState, Requeue},
    postgres::{pool, wakeups},
};

use super::{
    super::{ForTenant, actor, output},
    Listing, Names, ReplyScope, maybe_account,
};
use crate::installation::Installation;

/// The id of a reply, shown with its prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReplyId(pub OutboxId);

impl std::fmt::Display for ReplyId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "reply_{}", self.0.0)
    }
}

impl FromStr for ReplyId {
    type Err = String;

    fn from_str(input: &str) -> Result<Self, String> {
        let bare = input.strip_prefix("reply_").unwrap_or(input);
        bare.parse().map(|id| Self(OutboxId(id))).map_err(|_: uuid::Error| {
            format!("`{input}` is not a reply id; expected a UUID, with or without the prefix `reply_`")
        })
    }
}

#[derive(Args)]
pub struct RequeueArgs {
    #[command(flatten)]
    of: ForTenant,
    #[command(flatten)]
    selection: ReplySelection,
    /// Requeue at most this many, the longest dead first
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(i32).range(1..=10_000))]
    limit: i32,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Filters that a reply must all match. At least one is required, so that all replies are not requeued by mistake.
#[derive(Args)]
#[group(required = true, multiple = true)]
struct ReplySelection {
    /// The reply, as `channels dead` shows it
    #[arg(conflicts_with_all = ["all", "account", "provider", "error_contains", "since", "before"])]
    id: Option<ReplyId>,
    /// Requeue every dead reply
    #[arg(long, conflicts_with_all = ["account", "provider", "error_contains", "since", "before"])]
    all: bool,
    /// Requeue replies through this account, by name or id
    #[arg(long, value_name = "ACCOUNT")]
    account: Option<String>,
    /// Requeue replies through this provider, such as `slack`
    #[arg(long, value_name = "PROVIDER")]
    provider: Option<String>,
    /// Requeue replies whose last error contains this text, in any case
    #[arg(long, value_name = "TEXT")]
    error_contains: Option<String>,
    /// Requeue replies that died at this time or later, such as 2026-02-03T04:05:06Z
    #[arg(long, value_name = "TIME", value_parser = time)]
    since: Option<Timestamp>,
    /// Requeue replies that died before this time
    #[arg(long, value_name = "TIME", value_parser = time)]
    before: Option<Timestamp>,
}

fn time(input: &str) -> Result<Timestamp, String> {
    let at: Option<Timestamp> = input.parse().ok();
    // The database cannot store times long before the epoch.
    at.filter(|at| *at >= Timestamp::UNIX_EPOCH)
        .ok_or_else(|| format!("`{input}` is not a time; write it like 2026-02-03T04:05:06Z"))
}

pub async fn requeue(args: &RequeueArgs, installation: &Installation) -> anyhow::Result<()> {
    let selection = &args.selection;
    let part = selection.error_contains.as_deref();
    anyhow::ensure!(part != Some(""), "--error-contains is empty; use --all to requeue every dead reply");
    let pool = installation.admin_pool().await?;
    let (mut transaction, tenant) = args.of.begin(&pool, installation).await?;
    let requeue = Requeue {
        id: selection.id.map(|ReplyId(id)| id),
        account: maybe_account(&mut transaction, tenant.id, selection.account.as_deref()).await?,
        provider: selection.provider.as_deref(),
        error_contains: part,
        dead_before: selection.before,
        dead_since: selection.since,
    };
    let requeued = replies::requeue(&mut transaction, tenant.id, requeue, args.limit, &actor()).await?.len();
    if let (Some(id), 0) = (selection.id, requeued) {
        let only = ReplyFilter { id: Some(id.0), ..ReplyFilter::default() };
        let reply = replies::page(&mut transaction, tenant.id, only, None, 1).await?.pop();
        let reply = reply.with_context(|| {
            format!(
                "tenant `{}` has no reply {}; `postrider channels dead` lists the replies that can be requeued",
                tenant.name, id.0.0
            )
        })?;
        anyhow::bail!(
            "{id} is {}, and only a dead reply can be requeued; `postrider channels show {id}` shows its history",
            reply.status
        );
    }
    pool::commit(transaction).await?;
    wakeups::notify(&pool, replies::HINT_CHANNEL).await?;
    if args.json {
        return output::json(&serde_json::json!({ "requeued": requeued }));
    }
    match requeued {
        0 => message!("no dead reply matches; `postrider channels dead` lists the dead replies"),
        1 => message!("1 reply is requeued"),
        count => message!("{count} replies are requeued"),
    }
    if usize::try_from(args.limit).is_ok_and(|limit| requeued == limit) && selection.id.is_none() {
        message!("there may be more dead replies: run the command again");
    }
    Ok(())
}

pub async fn dead(
    of: &ForTenant,
    scope: &ReplyScope,
    listing: &Listing,
    installation: &Installation,
) -> anyhow::Result<()> {
    let Some((replies, names)) = read(of, Some(ReplyStatus::Dead), scope, listing, installation).await?
    else {
        return Ok(());
    };
    let rows: Vec<_> = replies
        .iter()
        .map(|reply| {
            [
                ReplyId(reply.id).to_string(),
                names.of(reply.account_id),
                reply.provider.clone(),
                reply.recipient_id.clone(),
                attempts(reply),
                output::time(reply.updated_at),
                error(reply),
            ]
        })
        .collect();
    let is_empty = rows.is_empty();
    let header = ["reply", "account", "provider", "to", "attempts", "died", "last error"];
    output::table(header, rows, "there are no dead replies")?;
    if !is_empty {
        message!("`postrider channels requeue ID` requeues one; --all or a filter requeues many");
    }
    Ok(())
}

pub async fn list(
    of: &ForTenant,
    status: Option<ReplyStatus>,
    scope: &ReplyScope,
    listing: &Listing,
    installation: &Installation,
) -> anyhow::Result<()> {
    let Some((replies, names)) = read(of, status, scope, listing, installation).await? else {
        return Ok(());
    };
    let rows = replies
        .iter()
        .map(|reply| {
            let next = (reply.status == ReplyStatus::Pending).then_some(reply.next_attempt_at);
            [
                ReplyId(reply.id).to_string(),
                reply.status.to_string(),
                names.of(reply.account_id),
                reply.provider.clone(),
                reply.recipient_id.clone(),
                attempts(reply),
                output::time_or_dash(next),
                output::time_or_dash(reply.sent_at),
                error(reply),
            ]
        })
        .collect();
    let header = ["reply", "status", "account", "provider", "to", "failures", "next", "sent", "last error"];
    output::table(header, rows, "no such replies")
}

/// The replies and the names of their accounts; `None` when they were shown as JSON.
async fn read(
    of: &ForTenant,
    status: Option<ReplyStatus>,
    scope: &ReplyScope,
    listing: &Listing,
    installation: &Installation,
) -> anyhow::Result<Option<(Vec<ReplyState>, Names)>> {
    let pool = installation.admin_pool().await?;
    let (mut transaction, tenant) = of.begin(&pool, installation).await?;
    let account: Option<ProviderAccountId> =
        maybe_account(&mut transaction, tenant.id, scope.account.as_deref()).await?;
    let filter = ReplyFilter { id: None, status, account, provider: scope.provider.as_deref() };
    let replies = replies::page(&mut transaction, tenant.id, filter, None, listing.limit).await?;
    if listing.json {
        output::json(&replies)?;
        return Ok(None);
    }
    Ok(Some((replies, Names::read(&mut transaction, tenant.id).await?)))
}

fn attempts(reply: &ReplyState) -> String {
    format!("{} of {}", reply.attempt_count, reply.max_attempts)
}

fn error(reply: &ReplyState) -> String {
    let error = reply.last_error.clone().unwrap_or_else(|| "-".to_owned());
    match reply.in_doubt_since {
        Some(_) => format!("{error}; it may have arrived"),
        None => error,
    }
}
