//! Refuses messages of permitted senders: first by the sentinel's rules, then by its HTTP service.

use postrider_providers::{GuardedClient, agent::SentinelDecision};
use postrider_store::{
    Pool,
    channels::{
        executors,
        messages::{self, Execution},
    },
};

use super::{ExecuteError, Request, execute::agent, step};

/// The reason why a message must not be executed. An unreachable sentinel is an error, never a permission.
pub(super) async fn objection(
    pool: &Pool,
    client: &GuardedClient,
    executor: &executors::Executor,
    execution: &Execution,
    request: &Request<'_>,
) -> Result<Option<String>, ExecuteError> {
    let sentinel = &executor.sentinel;
    let recent = match sentinel.messages_per_minute {
        Some(_) => step("counting the sender's messages", messages::recent(pool, execution))
            .await
            .map_err(ExecuteError)?,
        None => 0,
    };
    if let Some(objection) = sentinel.objection(&execution.message.text, recent) {
        return Ok(Some(objection));
    }
    let Some(url) = &sentinel.url else { return Ok(None) };
    match agent(client, url, executor)?.decision(request.message_id, request).await {
        Ok(SentinelDecision::Allowed) => Ok(None),
        Ok(SentinelDecision::Denied(reason)) => Ok(Some(reason)),
        Err(error) => Err(ExecuteError(error.0)),
    }
}
