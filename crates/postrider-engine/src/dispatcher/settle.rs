//! Records what became of replies: whatever has gathered while the last statement ran goes into the next one.

use std::{sync::Arc, time::Duration};

use postrider_model::{
    chat::ReplyStatus,
    ids::{ChannelMessageId, OutboxId},
};
use postrider_store::{
    Pool, StoreError,
    replies::{self, ClaimedReply, SettledReply, Verdict},
};
use tokio::sync::mpsc;
use uuid::Uuid;

use super::Shared;
use crate::step::within;

const BATCH_MAX: usize = 1000;
const PAUSE: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// What logs say about a reply.
pub(super) struct About {
    pub id: OutboxId,
    pub message_id: ChannelMessageId,
    pub correlation_id: Uuid,
    pub provider: String,
    pub attempt: i32,
}

impl About {
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

/// A result, and what it is about.
pub(super) struct Settled {
    pub reply: SettledReply,
    pub about: About,
}

pub(super) struct Settler {
    pool: Pool,
    dispatcher: String,
}

impl Settler {
    pub(super) fn new(shared: &Arc<Shared>) -> Self {
        Self { pool: shared.pool.clone(), dispatcher: shared.name.clone() }
    }

    /// Works until the last attempt has handed in its result.
    pub(super) async fn run(self, mut receiver: mpsc::Receiver<Settled>) {
        let mut gathered = Vec::with_capacity(BATCH_MAX);
        while receiver.recv_many(&mut gathered, BATCH_MAX).await > 0 {
            let (replies, about): (Vec<SettledReply>, Vec<About>) =
                gathered.drain(..).map(|settled| (settled.reply, settled.about)).unzip();
            self.record_for_sure(&replies, &about).await;
        }
    }

    /// A result is never dropped because the database is away. How many wait is bounded by how many are under way.
    async fn record_for_sure(&self, settled: &[SettledReply], about: &[About]) {
        let mut pause = PAUSE;
        loop {
            match within(replies::settle(&self.pool, &self.dispatcher, settled)).await {
                Ok(states) => {
                    for (reply, about) in settled.iter().zip(about) {
                        tell(reply.verdict(), about, states.get(&about.id).copied());
                    }
                    return;
                }
                // One of them spoils the statement for all: find it by telling them one by one.
                Err(StoreError::Refused { .. }) if settled.len() > 1 => {
                    for (reply, about) in settled.iter().zip(about) {
                        let alone = (std::slice::from_ref(reply), std::slice::from_ref(about));
                        Box::pin(self.record_for_sure(alone.0, alone.1)).await;
                    }
                    return;
                }
                Err(error @ StoreError::Refused { .. }) => {
                    tracing::error!(
                        ?error,
                        "a result is refused by the database, and its reply is tried again: {error}"
                    );
                    return;
                }
                Err(error) => {
                    tracing::warn!(
                        ?error,
                        count = settled.len(),
                        "results are not recorded yet: {error}; trying again"
                    );
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(PAUSE_MAX);
                }
            }
        }
    }
}

/// Says what became of a reply. Without a state it was not ours any more.
fn tell(verdict: &Verdict, about: &About, state: Option<ReplyStatus>) {
    let About { id, message_id, correlation_id, provider, attempt } = about;
    let (id, message_id) = (id.0, message_id.0);
    let count = |what: &'static str| {
        metrics::counter!("postrider_replies_total", "provider" => provider.clone(), "as" => what)
            .increment(1);
    };
    match (verdict, state) {
        (_, None) => {
            count("late");
            tracing::warn!(%correlation_id, channel_message_id = %message_id, outbox_id = %id, provider, attempt, "the result of an attempt came too late: the reply was taken from this dispatcher");
        }
        (Verdict::Sent { message_id: name }, _) => {
            count("sent");
            tracing::info!(%correlation_id, channel_message_id = %message_id, outbox_id = %id, provider, attempt, provider_message_id = name, "a reply was sent");
        }
        (_, Some(ReplyStatus::Sent)) => {
            count("sent");
            tracing::info!(%correlation_id, channel_message_id = %message_id, outbox_id = %id, provider, attempt, "an attempt failed, and the provider tells that the reply has arrived");
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
            tracing::info!(%correlation_id, channel_message_id = %message_id, outbox_id = %id, provider, reason, "a reply waits for {pause:.1?}, and nothing is counted");
        }
    }
}
