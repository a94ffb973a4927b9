//! Executes the messages of a webhook and returns the result of each.

use futures::{StreamExt, stream};
use postrider_engine::Ended;
use postrider_model::{
    channels::InboundMessage,
    ids::{ProviderAccountId, TenantId},
};
use postrider_store::{
    Pool, StoreError,
    channels::messages::{self, Receipt},
};
use serde::Serialize;
use utoipa::ToSchema;
use uuid::Uuid;

use super::{EXECUTIONS_PER_WEBHOOK_MAX, Ingress, RETRY_AFTER};
use crate::common::error::ApiError;

/// Results of a webhook's messages, in the order of the webhook.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ReceivedMessages {
    messages: Vec<ReceivedMessage>,
}

/// Result of a message.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ReceivedMessage {
    message_id: Uuid,
    status: Became,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Became {
    /// The message was executed, and its reply is in the outbox.
    Executed,
    /// The message had been executed before, and its reply is in the outbox now.
    Enqueued,
    /// The message was delivered before, and nothing was left to do.
    Duplicate,
    /// The sender is not linked to a user, or its role is not sufficient.
    Denied,
    /// The sentinel refused the message.
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

/// The source of a webhook's messages.
pub(super) struct Delivery {
    pub(super) pool: Pool,
    pub(super) tenant: TenantId,
    pub(super) account: ProviderAccountId,
    pub(super) provider: String,
}

impl Ingress {
    /// Executes the messages of a webhook. The executions go on when the caller disconnects.
    pub(super) async fn execute(
        &self,
        delivery: Delivery,
        messages: Vec<InboundMessage>,
    ) -> Result<ReceivedMessages, ApiError> {
        if messages.is_empty() {
            return Ok(ReceivedMessages { messages: Vec::new() });
        }
        let at_once = messages.len().min(EXECUTIONS_PER_WEBHOOK_MAX);
        let permits = self.capacity.take(delivery.account, at_once).ok_or(ApiError::NoRoom {
            detail: "too many messages are being executed",
            is_full: true,
            retry_after: RETRY_AFTER,
        })?;
        let ingress = self.clone();
        let work = self.under_way.spawn(async move {
            let _permits = permits;
            let one = |message| ingress.execute_one(&delivery, message);
            let became: Vec<_> = stream::iter(messages).map(one).buffered(at_once).collect().await;
            became.into_iter().collect::<Result<Vec<_>, _>>()
        });
        let messages = work
            .await
            .map_err(|error| ApiError::Internal(format!("executing the messages failed: {error}")))??;
        Ok(ReceivedMessages { messages })
    }

    /// Records a message, and executes it if that is still to be done.
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

/// The response to a message that cannot be recorded. A missing executor is not a mistake of the provider and can be fixed before
/// the next delivery.
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
