//! The trait of executors, and the two executors that come with Postrider.

use async_trait::async_trait;
use postrider_model::{
    chat::Reply,
    ids::{ChannelMessageId, ProviderAccountId},
};
use postrider_providers::{GuardedClient, agent::Agent};
use postrider_store::{
    executors::{self, Kind},
    messages::Execution,
};
use serde::Serialize;
use uuid::Uuid;

/// Executes messages.
#[async_trait]
pub trait Executor: Send + Sync {
    /// Executes a message and returns the reply. If the result of an execution is lost, the message is executed again under the same id.
    async fn execute(&self, request: &Request<'_>) -> Result<Reply, ExecuteError>;
}

/// The reason why there is no reply, in one line that repeats no text of the message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ExecuteError(pub String);

/// A message to execute, as agents and sentinels receive it.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Request<'a> {
    /// Id of the message; the same for each execution.
    pub message_id: ChannelMessageId,
    /// Name of the provider.
    pub provider: &'a str,
    /// Id of the account that received the message.
    pub account_id: ProviderAccountId,
    /// The provider's id of the sender.
    pub sender_id: &'a str,
    /// The product's id of the sender.
    pub user_id: &'a str,
    /// Role of the sender.
    pub role: &'a str,
    /// Id of the conversation that receives the reply.
    pub conversation_id: &'a str,
    /// Thread in the conversation.
    pub thread: Option<&'a str>,
    /// Text of the message.
    pub text: &'a str,
    /// Id that all log lines about the message share.
    pub correlation_id: Uuid,
}

impl<'a> Request<'a> {
    pub(super) fn of(execution: &'a Execution) -> Self {
        let message = &execution.message;
        Self {
            message_id: execution.message_id,
            provider: &execution.provider,
            account_id: execution.account_id,
            sender_id: &message.sender_id,
            user_id: &execution.user_id,
            role: &execution.role,
            conversation_id: &message.recipient_id,
            thread: message.thread.as_deref(),
            text: &message.text,
            correlation_id: execution.correlation_id,
        }
    }

    /// Creates a reply in the same thread.
    #[must_use]
    pub fn reply(&self, text: impl Into<String>) -> Reply {
        Reply { text: text.into(), thread: self.thread.map(str::to_owned) }
    }
}

/// An executor for trials: the reply is the text of the message.
pub struct Echo;

#[async_trait]
impl Executor for Echo {
    async fn execute(&self, request: &Request<'_>) -> Result<Reply, ExecuteError> {
        Ok(request.reply(request.text))
    }
}

/// An executor that calls an agent by HTTP.
pub struct HttpAgent(Agent);

#[async_trait]
impl Executor for HttpAgent {
    async fn execute(&self, request: &Request<'_>) -> Result<Reply, ExecuteError> {
        let text = self.0.reply(request.message_id, request).await;
        text.map(|text| request.reply(text)).map_err(|error| ExecuteError(error.0))
    }
}

/// Creates the executor for its settings.
pub(super) fn open(
    client: &GuardedClient,
    executor: &executors::Executor,
) -> Result<Box<dyn Executor>, ExecuteError> {
    Ok(match &executor.kind {
        Kind::Echo => Box::new(Echo),
        Kind::Http { url } => Box::new(HttpAgent(agent(client, url, executor)?)),
    })
}

/// Creates the client of an agent or sentinel. Requests are signed with the executor's secret.
pub(super) fn agent(
    client: &GuardedClient,
    url: &str,
    executor: &executors::Executor,
) -> Result<Agent, ExecuteError> {
    let secret = executor.secret.as_ref().ok_or_else(|| {
        ExecuteError(
            "the executor has no signing secret; set one with `postrider channels executor set`".to_owned(),
        )
    })?;
    Agent::new(client, url, secret).map_err(|error| ExecuteError(error.0))
}
