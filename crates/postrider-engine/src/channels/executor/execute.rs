//! The trait of executors, and the two executors of Postrider: echo and HTTP agents.

use async_trait::async_trait;
use postrider_model::{
    channels::Reply,
    ids::{ChannelMessageId, ProviderAccountId},
};
use postrider_providers::{GuardedClient, agent::Agent};
use postrider_store::channels::{
    executors::{self, Kind},
    messages::Execution,
};
use serde::Serialize;
use uuid::Uuid;

/// Executes messages.
#[async_trait]
pub trait Executor: Send + Sync {
    /// Executes a message and returns the reply. A message is executed again, with the same id, when the result of the first execution
    /// is unknown.
    async fn execute(&self, request: &Request<'_>) -> Result<Reply, ExecuteError>;
}

/// The reason why there is no reply, in one line without text of the message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ExecuteError(pub String);

/// A message for an executor, in the form that agents and sentinels receive.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Request<'a> {
    /// Id of the message, the same for every execution.
    pub message_id: ChannelMessageId,
    /// Name of the provider.
    pub provider: &'a str,
    /// Id of the account.
    pub account_id: ProviderAccountId,
    /// The provider's id of the sender.
    pub sender_id: &'a str,
    /// The product's id of the user that the sender is linked to.
    pub user_id: &'a str,
    /// Role of the user.
    pub role: &'a str,
    /// Conversation to which a reply is sent.
    pub conversation_id: &'a str,
    /// The part of the conversation.
    pub thread: Option<&'a str>,
    /// Text of the message.
    pub text: &'a str,
    /// Id that joins all log lines about the message.
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

    /// A reply to it, in the same part of the conversation.
    #[must_use]
    pub fn reply(&self, text: impl Into<String>) -> Reply {
        Reply { text: text.into(), thread: self.thread.map(str::to_owned) }
    }
}

/// Replies with the text of the message, for tests of a setup.
pub struct Echo;

#[async_trait]
impl Executor for Echo {
    async fn execute(&self, request: &Request<'_>) -> Result<Reply, ExecuteError> {
        Ok(request.reply(request.text))
    }
}

/// An agent behind a URL.
pub struct HttpAgent(Agent);

#[async_trait]
impl Executor for HttpAgent {
    async fn execute(&self, request: &Request<'_>) -> Result<Reply, ExecuteError> {
        let text = self.0.reply(request.message_id, request).await;
        text.map(|text| request.reply(text)).map_err(|error| ExecuteError(error.0))
    }
}

/// Opens the executor of these settings.
pub(super) fn open(
    client: &GuardedClient,
    executor: &executors::Executor,
) -> Result<Box<dyn Executor>, ExecuteError> {
    Ok(match &executor.kind {
        Kind::Echo => Box::new(Echo),
        Kind::Http { url } => Box::new(HttpAgent(agent(client, url, executor)?)),
    })
}

/// An agent or a sentinel behind a URL. The executor's secret signs the requests.
pub(super) fn agent(
    client: &GuardedClient,
    url: &str,
    executor: &executors::Executor,
) -> Result<Agent, ExecuteError> {
    let secret = executor.secret.as_ref().ok_or_else(|| {
        ExecuteError("the executor has no secret to sign requests with; set one".to_owned())
    })?;
    Agent::new(client, url, secret).map_err(|error| ExecuteError(error.0))
}
