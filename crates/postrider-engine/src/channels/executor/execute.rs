//! What executes: the trait, and the two kinds that come with Postrider.

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

/// Makes a reply of a message.
#[async_trait]
pub trait Executor: Send + Sync {
    /// Executes a message. It may come a second time, with the same id, when nobody knows what became of the first.
    async fn execute(&self, request: &Request<'_>) -> Result<Reply, ExecuteError>;
}

/// Why there is no reply, in one line that does not repeat what anybody wrote.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ExecuteError(pub String);

/// A message that is to be executed, as agents and sentinels see it.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Request<'a> {
    /// The same each time it is executed.
    pub message_id: ChannelMessageId,
    /// Which vendor.
    pub provider: &'a str,
    /// At which account.
    pub account_id: ProviderAccountId,
    /// Who wrote it, in the vendor's words.
    pub sender_id: &'a str,
    /// Who wrote it, in the product's words.
    pub user_id: &'a str,
    /// What that user may do.
    pub role: &'a str,
    /// Where a reply goes.
    pub conversation_id: &'a str,
    /// The part of the conversation.
    pub thread: Option<&'a str>,
    /// What was written.
    pub text: &'a str,
    /// What ties everything about it together in logs.
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

/// Says back what was said, for trying things out.
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

/// What the settings of an executor stand for.
pub(super) fn open(
    client: &GuardedClient,
    executor: &executors::Executor,
) -> Result<Box<dyn Executor>, ExecuteError> {
    Ok(match &executor.kind {
        Kind::Echo => Box::new(Echo),
        Kind::Http { url } => Box::new(HttpAgent(agent(client, url, executor)?)),
    })
}

/// Whoever is asked by HTTP is asked under the executor's secret.
pub(super) fn agent(
    client: &GuardedClient,
    url: &str,
    executor: &executors::Executor,
) -> Result<Agent, ExecuteError> {
    let secret = executor.secret.as_ref().ok_or_else(|| {
        ExecuteError("what executes has no secret to sign requests with; set one".to_owned())
    })?;
    Agent::new(client, url, secret).map_err(|error| ExecuteError(error.0))
}
