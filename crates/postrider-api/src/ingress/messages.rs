//! From the messages of a webhook to what became of each.

use futures::{StreamExt, stream};
use postrider_engine::Ended;
use postrider_model::{
    chat::InboundMessage,
    ids::{ProviderAccountId, TenantId},
};
use postrider_store::{
    Pool, StoreError,
    messages::{self, Receipt},
};
use serde::Serialize;
use utoipa::ToSchema;
use uuid::Uuid;

use super::{EXECUTIONS_PER_WEBHOOK_MAX, Ingress, RETRY_AFTER};
use crate::error::ApiError;

/// What became of the messages of a webhook, in its order.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ReceivedMessages {
    messages: Vec<ReceivedMessage>,
}

/// What became of a message.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ReceivedMessage {
    /// Its id.
    message_id: Uuid,
    /// What became of it.
    status: Became,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Became {
    /// It was executed, and its reply is in the outbox.
    Executed,
    /// It had been executed before, and its reply is in the outbox now.
    Enqueued,
    /// It was delivered before, and nothing was to be done.
    Duplicate,
    /// Nobody knows who wrote it, or who did may not.
    Denied,
    /// The sentinel does not want it executed.
    DeniedSentinel,
}

impl Became {
    const fn word(self) -> &'static str {
        match self {
            Self::Executed => "executed",
            Self::Enqueued => "enqueued",
            Self::Duplicate => "duplicate",
            Self::Denied => "denied",
            Self::DeniedSentinel => "denied_sentinel",
        }
    }
}

/// Where messages come from.
pub(super) struct Delivery {
    pub(super) pool: Pool,
    pub(super) tenant: TenantId,
    pub(super) account: ProviderAccountId,
    pub(super) provider: String,
}

impl Ingress {
    /// Has the messages of a webhook executed. They go on to their end when the caller does not wait for it.
    pub(super) async fn execute(
        &self,
        delivery: Delivery,
        messages: Vec<InboundMessage>,
    ) -> Result<ReceivedMessages, ApiError> {
        if messages.is_empty() {
            return Ok(ReceivedMessages { messages: Vec::new() });
        }
        let at_once = messages.len().min(EXECUTIONS_PER_WEBHOOK_MAX);
        let places = self.room.take(delivery.account, at_once).ok_or(ApiError::NoRoom {
            detail: "too many messages are being executed",
            is_full: true,
            retry_after: RETRY_AFTER,
        })?;
        let ingress = self.clone();
        let work = self.under_way.spawn(async move {
            let _places = places;
            let one = |message| ingress.execute_one(&delivery, message);
            let became: Vec<_> = stream::iter(messages).map(one).buffered(at_once).collect().await;
            became.into_iter().collect::<Result<Vec<_>, _>>()
        });
        let messages = work
            .await
            .map_err(|error| ApiError::Internal(format!("receiving messages did not end well: {error}")))??;
        Ok(ReceivedMessages { messages })
    }

    /// Writes a message down, and has it executed if that is still to be done.
    async fn execute_one(
        &self,
        delivery: &Delivery,
        message: InboundMessage,
    ) -> Result<ReceivedMessage, ApiError> {
        let Delivery { pool, tenant, account, provider } = delivery;
        let receipt = messages::receive(pool, *tenant, *account, provider, message, self.receiving).await;
        let (id, became) = match receipt.map_err(unfit)? {
            Receipt::Duplicate(id) => (id, Became::Duplicate),
            Receipt::Denied(id) => {
                tracing::info!(account.id = %account, channel_message_id = %id.0, provider, "message {} was denied to its sender", id.0);
                (id, Became::Denied)
            }
            Receipt::Enqueued(id) => {
                self.executing.hint();
                tracing::info!(account.id = %account, channel_message_id = %id.0, provider, "the kept reply to message {} is in the outbox", id.0);
                (id, Became::Enqueued)
            }
            Receipt::Execute(execution) => {
                let id = execution.message_id;
                let became = match self.executing.run(*execution).await {
                    Ended::Executed => Became::Executed,
                    Ended::DeniedSentinel => Became::DeniedSentinel,
                    Ended::TakenUpElsewhere => Became::Duplicate,
                    Ended::Failed(reason) => {
                        count(provider, "failed");
                        return Err(ApiError::Internal(format!("message {} failed: {reason}", id.0)));
                    }
                };
                (id, became)
            }
        };
        count(provider, became.word());
        Ok(ReceivedMessage { message_id: id.0, status: became })
    }
}

/// Why a message cannot be written down. That nothing executes it is no mistake of who delivers it, and can be mended before it
/// comes again.
fn unfit(error: StoreError) -> ApiError {
    match error {
        StoreError::Refused { message, hint: Some(hint) } => ApiError::NotReady(format!("{message}. {hint}")),
        other => ApiError::Store(other),
    }
}

fn count(provider: &str, status: &'static str) {
    let provider = provider.to_owned();
    metrics::counter!("postrider_channel_messages_total", "provider" => provider, "status" => status)
        .increment(1);
}
