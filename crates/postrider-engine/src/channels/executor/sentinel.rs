//! The sentinel can deny a message of a permitted sender: first by the executor's rules, then by a request to its URL.

use postrider_providers::{GuardedClient, agent::Verdict};
use postrider_store::{
    Pool, executors,
    messages::{self, Execution},
};

use super::{ExecuteError, Request, execute::agent, step};

/// The reason why the sentinel denies a message, if it does. A failed request is an error, never a permission.
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
    match agent(client, url, executor)?.verdict(request.message_id, request).await {
        Ok(Verdict::Allowed) => Ok(None),
        Ok(Verdict::Denied(reason)) => Ok(Some(reason)),
        Err(error) => Err(ExecuteError(error.0)),
    }
}
