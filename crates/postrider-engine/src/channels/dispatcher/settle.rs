//! Records the results of attempts at replies.

use std::{collections::HashMap, sync::Arc};

use postrider_model::{
    channels::ReplyStatus,
    ids::{ChannelMessageId, OutboxId},
};
use postrider_store::{
    Pool, StoreError,
    channels::replies::{self, ClaimedReply, SettledReply, Verdict},
};
use uuid::Uuid;

use super::Shared;
use crate::common::{recorder::Ledger, round::within};

/// The fields of log lines about a reply.
pub(super) struct ReplyFields {
    pub id: OutboxId,
    pub message_id: ChannelMessageId,
    pub correlation_id: Uuid,
    pub provider: String,
    pub attempt: i32,
}

impl ReplyFields {
    pub(super) fn new(reply: &ClaimedReply) -> Self {
        Self {
            id: reply.id(),
            message_id: reply.message_id,
            correlation_id: reply.correlation_id,
            provider: reply.provider.clone(),
            attempt: reply.attempt_count + 1,
        }
    }
}

/// The result of an attempt.
pub(super) struct Settled {
    pub reply: SettledReply,
    pub fields: ReplyFields,
}

/// Results under the locks of this dispatcher.
pub(super) struct Settler {
    pool: Pool,
    dispatcher: String,
}

impl Settler {
    pub(super) fn new(shared: &Arc<Shared>) -> Self {
        Self { pool: shared.pool.clone(), dispatcher: shared.name.clone() }
    }
}

impl Ledger for Settler {
    type Entry = Settled;
    /// The states of the replies that this dispatcher still held.
    type Receipt = HashMap<OutboxId, ReplyStatus>;

    const BATCH_MAX: usize = 1000;
    const NAME: &'static str = "reply results";

    async fn write(&mut self, entries: &mut Vec<Settled>) -> Result<Self::Receipt, StoreError> {
        let replies: Vec<&SettledReply> = entries.iter().map(|settled| &settled.reply).collect();
        within(replies::settle(&self.pool, &self.dispatcher, &replies)).await
    }

    fn recorded(&mut self, entries: Vec<Settled>, states: Self::Receipt) {
        for Settled { reply, fields } in entries {
            report(reply.verdict(), &fields, states.get(&fields.id).copied());
        }
    }

    async fn refused(&mut self, _entry: Settled, error: StoreError) -> Option<Settled> {
        tracing::error!(
            ?error,
            "the database refused a result, and its reply is retried after the lock timeout: {error}"
        );
        None
    }
}

/// Logs and counts the result of an attempt. Without a state another dispatcher holds the reply.
fn report(verdict: &Verdict, fields: &ReplyFields, state: Option<ReplyStatus>) {
    let ReplyFields { id, message_id, correlation_id, provider, attempt } = fields;
    let (id, message_id) = (id.0, message_id.0);
    let count = |result: &'static str| {
        metrics::counter!("postrider_replies_total", "provider" => provider.clone(), "as" => result)
            .increment(1);
    };
    match (verdict, state) {
        (_, None) => {
            count("late");
            tracing::warn!(%correlation_id, channel_message_id = %message_id, outbox_id = %id, provider, attempt, "the result of an attempt came too late: this dispatcher no longer holds the reply");
        }
        (Verdict::Sent { message_id: name }, _) => {
            count("sent");
            tracing::info!(%correlation_id, channel_message_id = %message_id, outbox_id = %id, provider, attempt, provider_message_id = name, "a reply was sent");
        }
        (_, Some(ReplyStatus::Sent)) => {
            count("sent");
            tracing::info!(%correlation_id, channel_message_id = %message_id, outbox_id = %id, provider, attempt, "an attempt failed, but the provider had reported the delivery of the reply");
        }
        (Verdict::Retry { error, .. } | Verdict::Dead { error }, Some(ReplyStatus::Dead)) => {
            count("dead");
            tracing::error!(%correlation_id, channel_message_id = %message_id, outbox_id = %id, provider, attempt, reason = error, "a reply is dead");
        }
        (Verdict::Retry { error, pause, in_doubt }, _) => {
            count("retry");
            tracing::warn!(%correlation_id, channel_message_id = %message_id, outbox_id = %id, provider, attempt, in_doubt, reason = error, "a reply failed and is tried again in {pause:.1?}");
        }
        (Verdict::Dead { .. }, _) => {}
        (Verdict::Release { pause, reason }, _) => {
            count("released");
            tracing::info!(%correlation_id, channel_message_id = %message_id, outbox_id = %id, provider, reason, "a reply waits for {pause:.1?} without counting an attempt");
        }
    }
}
