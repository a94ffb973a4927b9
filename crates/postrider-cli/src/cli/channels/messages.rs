//! Incoming messages, and the complete history of each.

use std::str::FromStr;

use anyhow::Context;
use postrider_model::{
    channels::MessageStatus,
    ids::{ChannelMessageId, OutboxId, TenantId},
};
use postrider_store::{
    PgConnection,
    channels::{
        messages::{self, ChannelMessage, MessageFilter},
        replies::{self, ReplyFilter, ReplyState},
    },
    postgres::pool,
    tenancy::audit::{self, Entry},
};
use serde_json::{Value, json};
use uuid::Uuid;

use super::{
    super::{ForTenant, actor, output},
    Listing, Names, maybe_account,
    outbox::ReplyId,
};
use crate::installation::Installation;

/// Maximum length of a text in a table.
const TEXT_SHOWN: usize = 40;
/// Maximum number of log lines in a history.
const LOG_LINES: i64 = 200;

pub struct MessageSelection {
    pub status: Option<MessageStatus>,
    pub account: Option<String>,
    pub sender: Option<String>,
}

/// The id of a message or of a reply.
#[derive(Debug, Clone, Copy)]
pub enum MessageOrReply {
    Message(Uuid),
    Reply(Uuid),
    Unprefixed(Uuid),
}

impl FromStr for MessageOrReply {
    type Err = String;

    fn from_str(input: &str) -> Result<Self, String> {
        let (kind, bare): (fn(Uuid) -> Self, &str) = match input.split_once('_') {
            Some(("message", bare)) => (Self::Message, bare),
            Some(("reply", bare)) => (Self::Reply, bare),
            _ => (Self::Unprefixed, input),
        };
        bare.parse().map(kind).map_err(|_: uuid::Error| {
            format!(
                "`{input}` is not the id of a message or a reply; expected a UUID, with or without the prefix `message_` or `reply_`"
            )
        })
    }
}

pub async fn list(
    of: &ForTenant,
    selection: &MessageSelection,
    listing: &Listing,
    installation: &Installation,
) -> anyhow::Result<()> {
    let pool = installation.admin_pool().await?;
    let (mut transaction, tenant) = of.begin(&pool, installation).await?;
    let account = maybe_account(&mut transaction, tenant.id, selection.account.as_deref()).await?;
    let filter =
        MessageFilter { id: None, status: selection.status, account, sender: selection.sender.as_deref() };
    let messages = messages::page(&mut transaction, tenant.id, filter, None, listing.limit).await?;
    if listing.json {
        return output::json(&messages);
    }
    let names = Names::read(&mut transaction, tenant.id).await?;
    let rows = messages
        .into_iter()
        .map(|message| {
            [
                message.id.to_string(),
                message.status.to_string(),
                names.of(message.account_id),
                message.sender_id,
                message.user_id.unwrap_or_else(|| "-".to_owned()),
                output::time(message.created_at),
                output::beginning(&message.text, TEXT_SHOWN),
                message.last_error.unwrap_or_else(|| "-".to_owned()),
            ]
        })
        .collect();
    output::table(
        ["message", "status", "account", "sender", "user", "came", "text", "reason"],
        rows,
        "no such messages",
    )
}

pub async fn show(
    of: &ForTenant,
    id: MessageOrReply,
    json: bool,
    installation: &Installation,
) -> anyhow::Result<()> {
    let pool = installation.admin_pool().await?;
    let (mut transaction, tenant) = of.begin(&pool, installation).await?;
    let (message, reply) = find(&mut transaction, tenant.id, id).await?.with_context(|| {
        format!(
            "tenant `{}` has no such message or reply; `postrider channels messages` and `postrider channels outbox` list them",
            tenant.name
        )
    })?;
    let mut log =
        audit::about(&mut transaction, tenant.id, &format!("message:{}", message.id.0), LOG_LINES).await?;
    if let Some(reply) = &reply {
        let subject = format!("reply:{}", reply.id.0);
        log.extend(audit::about(&mut transaction, tenant.id, &subject, LOG_LINES).await?);
    }
    if json {
        let log: Vec<Value> = log.iter().map(about_line).collect();
        return output::json(&json!({ "message": message, "reply": reply, "log": log }));
    }
    let names = Names::read(&mut transaction, tenant.id).await?;
    print(&message, reply.as_ref(), &log, &names)
}

async fn find(
    connection: &mut PgConnection,
    tenant: TenantId,
    id: MessageOrReply,
) -> anyhow::Result<Option<(ChannelMessage, Option<ReplyState>)>> {
    let mut reply = match id {
        MessageOrReply::Message(_) => None,
        MessageOrReply::Reply(id) | MessageOrReply::Unprefixed(id) => {
            one_reply(connection, tenant, OutboxId(id)).await?
        }
    };
    let message = match (id, &reply) {
        (_, Some(reply)) => reply.channel_message_id,
        (MessageOrReply::Reply(_), None) => return Ok(None),
        (MessageOrReply::Message(id) | MessageOrReply::Unprefixed(id), None) => ChannelMessageId(id),
    };
    let only = MessageFilter { id: Some(message), ..MessageFilter::default() };
    let Some(message) = messages::page(connection, tenant, only, None, 1).await?.pop() else {
        return Ok(None);
    };
    if let (None, Some(id)) = (&reply, message.reply_id) {
        reply = one_reply(connection, tenant, id).await?;
    }
    Ok(Some((message, reply)))
}

async fn one_reply(
    connection: &mut PgConnection,
    tenant: TenantId,
    id: OutboxId,
) -> anyhow::Result<Option<ReplyState>> {
    let only = ReplyFilter { id: Some(id), ..ReplyFilter::default() };
    Ok(replies::page(connection, tenant, only, None, 1).await?.pop())
}

fn about_line(line: &Entry) -> Value {
    json!({ "at": line.at, "actor": line.actor, "action": line.action, "note": line.note })
}

fn print(
    message: &ChannelMessage,
    reply: Option<&ReplyState>,
    log: &[Entry],
    names: &Names,
) -> anyhow::Result<()> {
    let account = names.of(message.account_id);
    output::line(format_args!(
        "{}  {} via {}, account {account}",
        message.id, message.status, message.provider
    ))?;
    let mut facts = vec![format!("from {}{}", message.sender_id, who(message))];
    facts.push(format!(
        "came {}, delivered {}, executed {}",
        output::time(message.created_at),
        times(message.deliveries),
        times(message.executions)
    ));
    facts.push(format!("the provider calls it {}", message.provider_message_id));
    facts.push(format!("correlation id {}", message.correlation_id));
    facts.extend(message.last_error.iter().map(|error| format!("reason: {error}")));
    for fact in &facts {
        output::line(format_args!("│  {fact}"))?;
    }
    quote("│  ", &message.text)?;
    if let Some(kept) = message.reply.as_ref().and_then(|kept| kept["text"].as_str()) {
        output::line("└─ a reply that could not be queued in the outbox yet")?;
        quote("   ", kept)?;
    }
    if let Some(reply) = reply {
        print_reply(reply)?;
    }
    output::log(log)
}

fn print_reply(reply: &ReplyState) -> anyhow::Result<()> {
    output::line(format_args!("└─ {}  {} to {}", ReplyId(reply.id), reply.status, reply.recipient_id))?;
    let failed = (reply.attempt_count > 0)
        .then(|| format!("{} of {} attempts have failed", reply.attempt_count, reply.max_attempts));
    let held = reply.locked_by.as_ref().map(|holder| format!("held by {holder}"));
    let sent = reply.sent_at.map(|at| format!("sent {}", output::time(at)));
    let named = reply.provider_message_id.as_ref().map(|id| format!("the provider calls it {id}"));
    let told = reply.delivery_status.as_ref().map(|status| {
        let error = reply.delivery_error.as_ref().map(|error| format!(": {error}")).unwrap_or_default();
        let at = reply.delivery_status_at.map(|at| format!(" at {}", output::time(at))).unwrap_or_default();
        format!("the provider says {status}{at}{error}")
    });
    let doubt = reply
        .in_doubt_since
        .map(|since| format!("in doubt since {}: it may have arrived", output::time(since)));
    let next = (reply.status == postrider_model::channels::ReplyStatus::Pending)
        .then(|| format!("next attempt {}", output::time(reply.next_attempt_at)));
    let error = reply.last_error.as_ref().map(|error| format!("last error: {error}"));
    for fact in [failed, held, sent, named, told, doubt, next, error].into_iter().flatten() {
        output::line(format_args!("   {fact}"))?;
    }
    quote("   ", reply.payload["text"].as_str().unwrap_or_default())
}

/// Prints a text as a quotation, line by line.
fn quote(margin: &str, text: &str) -> anyhow::Result<()> {
    text.lines().try_for_each(|line| output::line(format_args!("{margin}> {line}")))
}

fn who(message: &ChannelMessage) -> String {
    match (&message.user_id, &message.role) {
        (Some(user), Some(role)) => format!(", who is {user} ({role})"),
        _ => String::new(),
    }
}

fn times(count: i32) -> String {
    match count {
        1 => "once".to_owned(),
        count => format!("{count} times"),
    }
}

/// Retries a message whose execution failed.
pub async fn retry(
    of: &ForTenant,
    id: ChannelMessageId,
    json: bool,
    installation: &Installation,
) -> anyhow::Result<()> {
    let pool = installation.admin_pool().await?;
    let (mut transaction, tenant) = of.begin(&pool, installation).await?;
    let only = MessageFilter { id: Some(id), ..MessageFilter::default() };
    if !messages::retry(&mut transaction, tenant.id, id, &actor()).await? {
        match messages::page(&mut transaction, tenant.id, only, None, 1).await?.pop() {
            None => anyhow::bail!(
                "tenant `{}` has no message {}; `postrider channels messages --status dispatch_failed` lists what failed",
                tenant.name,
                id.0
            ),
            Some(message) => anyhow::bail!(
                "message {} is {} or is being executed now; only a failed message can be retried",
                id.0,
                message.status
            ),
        }
    }
    let retried = messages::page(&mut transaction, tenant.id, only, None, 1).await?.pop();
    pool::commit(transaction).await?;
    if json {
        return output::json(&retried);
    }
    message!("a process with the role `dispatcher` executes the message again in a moment");
    Ok(())
}
