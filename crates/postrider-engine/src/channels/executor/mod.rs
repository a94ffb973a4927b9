//! The executor turns a recorded message into a reply in the outbox.
//!
//! ```text
//! Execution ──▶ sentinel ──▶ Executor ──▶ finish: `executed`, and the reply is in the outbox
//!                  │             │           └─ on failure: `dispatch_failed`, the reply is kept
//!                  │             └─ no reply: `dispatch_failed`
//!                  └─ objection: `denied_sentinel`
//! ```
//!
//! The executor's timeout limits sentinel and execution together. A failed request to the sentinel is an error, never a permission.
//! Leases and retries of messages: docs/decisions/0015-a-message-is-leased-and-its-reply-is-claimed.md.

mod execute;
mod sentinel;

use std::{panic::AssertUnwindSafe, time::Duration};

use futures::FutureExt;
use postrider_model::{
    error_chain,
    chat::{Reply, TEXT_BYTES_MAX},
    seal::MasterKey,
};
use postrider_providers::GuardedClient;
use postrider_store::{
    Pool, StoreError, executors,
    messages::{self, Execution},
    pool,
};

pub use self::execute::{Echo, ExecuteError, Executor, HttpAgent, Request};
use crate::common::wakeup::Hints;

/// Timeout of one database step. After it the message fails, or is executed again when its lease expires.
const STEP_TIMEOUT: Duration = Duration::from_secs(15);

/// Executes messages and records the results.
#[derive(Clone)]
pub struct Executing {
    pool: Pool,
    master_key: MasterKey,
    client: GuardedClient,
    hints: Hints,
    max_attempts: i32,
}

/// The result of an execution.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ended {
    /// The message was executed, and its reply is in the outbox.
    Executed,
    /// The sentinel denied the execution.
    DeniedSentinel,
    /// The message was not executed, or its reply is not in the outbox, for this reason. The provider may deliver the message again;
    /// an existing reply is kept.
    Failed(String),
    /// The lease expired, and another process executes the message.
    TakenUpElsewhere,
}

/// The decision about a message.
enum Decided {
    Reply(Reply),
    Deny(String),
}

impl Executing {
    /// `client` must allow for the longest timeout of an executor.
    #[must_use]
    pub fn new(
        pool: Pool,
        master_key: MasterKey,
        client: GuardedClient,
        hints: Hints,
        max_attempts: i32,
    ) -> Self {
        Self { pool, master_key, client, hints, max_attempts }
    }

    /// Hints to dispatchers that replies are due. For callers that enqueued a kept reply without an execution.
    pub fn hint(&self) {
        self.hints.send();
    }

    /// Executes a message and records the result. A timeout or a panic is a failure.
    pub async fn run(&self, execution: Execution) -> Ended {
        let provider = execution.provider.clone();
        let decided = AssertUnwindSafe(self.decide(&execution)).catch_unwind().await;
        let ended = match decided {
            Ok(Ok(Decided::Reply(reply))) => self.finish(execution, &reply).await,
            Ok(Ok(Decided::Deny(reason))) => self.deny(execution, &reason).await,
            Ok(Err(ExecuteError(reason))) => self.fail(execution, None, reason).await,
            Err(_) => self.fail(execution, None, "the executor panicked".to_owned()).await,
        };
        metrics::counter!("postrider_executions_total", "provider" => provider, "ended" => ended.word())
            .increment(1);
        ended
    }

    /// Asks the sentinel and the executor, within the executor's timeout.
    async fn decide(&self, execution: &Execution) -> Result<Decided, ExecuteError> {
        let executor = self.executor(execution).await?;
        let work = async {
            let request = Request::of(execution);
            let objection =
                sentinel::objection(&self.pool, &self.client, &executor, execution, &request).await?;
            if let Some(reason) = objection {
                return Ok(Decided::Deny(reason));
            }
            let reply = execute::open(&self.client, &executor)?.execute(&request).await?;
            fit(reply).map(Decided::Reply)
        };
        let within = executor.timeout;
        tokio::time::timeout(within, work).await.unwrap_or_else(|_| {
            Err(ExecuteError(format!("sentinel and executor did not finish within {} s", within.as_secs())))
        })
    }

    async fn executor(&self, execution: &Execution) -> Result<executors::Executor, ExecuteError> {
        let reading = async {
            let mut transaction = pool::begin_as(&self.pool, execution.tenant_id).await?;
            let (tenant, account) = (execution.tenant_id, execution.account_id);
            let found = executors::of_account(&mut transaction, &self.master_key, tenant, account).await?;
            pool::commit(transaction).await?;
            Ok(found)
        };
        step("reading the executor", reading).await.map_err(ExecuteError)?.ok_or_else(|| {
            ExecuteError(
                "the account has no executor; set one with `postrider channels executor set`".to_owned(),
            )
        })
    }

    async fn finish(&self, execution: Execution, reply: &Reply) -> Ended {
        let finishing = messages::finish(&self.pool, &execution, reply, self.max_attempts);
        match step("enqueueing the reply", finishing).await {
            Ok(true) => {
                self.hints.send();
                let (id, correlation_id) = (execution.message_id.0, execution.correlation_id);
                tracing::info!(%correlation_id, channel_message_id = %id, provider = execution.provider, "message {id} was executed");
                Ended::Executed
            }
            Ok(false) => lease_lost(&execution),
            Err(reason) => {
                let (id, correlation_id) = (execution.message_id.0, execution.correlation_id);
                tracing::error!(%correlation_id, channel_message_id = %id, provider = execution.provider, "the reply to message {id} could not be put into the outbox: {reason}");
                self.fail(execution, Some(reply), reason).await
            }
        }
    }

    async fn deny(&self, execution: Execution, reason: &str) -> Ended {
        let (id, correlation_id) = (execution.message_id.0, execution.correlation_id);
        match step("denying the message", messages::deny(&self.pool, execution, reason)).await {
            Ok(true) => {
                // Without the reason, which may repeat the text of the message.
                tracing::info!(%correlation_id, channel_message_id = %id, "the sentinel denied message {id}");
                Ended::DeniedSentinel
            }
            Ok(false) => Ended::TakenUpElsewhere,
            Err(error) => {
                tracing::error!(%correlation_id, channel_message_id = %id, "failed to record that the sentinel denied message {id}; the message is executed again when its lease expires: {error}");
                Ended::Failed(error)
            }
        }
    }

    /// Records that the message failed, and keeps the reply if there is one.
    async fn fail(&self, execution: Execution, reply: Option<&Reply>, reason: String) -> Ended {
        let (id, correlation_id) = (execution.message_id.0, execution.correlation_id);
        let failing = messages::fail(&self.pool, execution, reply, &reason);
        match step("recording that the message failed", failing).await {
            Ok(true) => {
                let reply_is_kept = reply.is_some();
                tracing::error!(%correlation_id, channel_message_id = %id, reply_is_kept, "message {id} failed: {reason}");
                Ended::Failed(reason)
            }
            Ok(false) => {
                // The reply may have been enqueued by a statement whose response was lost.
                self.hints.send();
                Ended::TakenUpElsewhere
            }
            Err(error) => {
                tracing::error!(%correlation_id, channel_message_id = %id, "failed to record that message {id} failed; the message is executed again when its lease expires: {reason}; {error}");
                Ended::Failed(reason)
            }
        }
    }
}

impl Ended {
    const fn word(&self) -> &'static str {
        match self {
            Self::Executed => "executed",
            Self::DeniedSentinel => "denied_sentinel",
            Self::Failed(_) => "failed",
            Self::TakenUpElsewhere => "taken_up_elsewhere",
        }
    }
}

fn lease_lost(execution: &Execution) -> Ended {
    let (id, correlation_id) = (execution.message_id.0, execution.correlation_id);
    tracing::warn!(%correlation_id, channel_message_id = %id, "this process lost the lease of message {id} to another process, and drops its reply");
    Ended::TakenUpElsewhere
}

/// Checks that a reply can be stored and sent.
fn fit(mut reply: Reply) -> Result<Reply, ExecuteError> {
    // Postgres cannot store NUL, and readers would not see it.
    reply.text.retain(|c| c != '\0');
    match reply.text.len() {
        _ if reply.text.trim().is_empty() => Err(ExecuteError("the reply is empty".to_owned())),
        length if length > TEXT_BYTES_MAX => {
            Err(ExecuteError(format!("the reply has {length} bytes; the limit is {TEXT_BYTES_MAX}")))
        }
        _ => Ok(reply),
    }
}

/// Runs one database step, within its timeout. The error is one line with its causes.
async fn step<T>(
    operation: &'static str,
    statement: impl Future<Output = Result<T, StoreError>>,
) -> Result<T, String> {
    match tokio::time::timeout(STEP_TIMEOUT, statement).await {
        Ok(result) => result.map_err(|error| error_chain(&error)),
        Err(_) => Err(format!("{operation} took longer than {} s", STEP_TIMEOUT.as_secs())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: impl Into<String>) -> Reply {
        Reply { text: text.into(), thread: Some("t".to_owned()) }
    }

    #[test]
    fn a_reply_is_stored_without_nul_or_refused() {
        assert_eq!(fit(text("hi\0 there")), Ok(text("hi there")));
        assert_eq!(fit(text("é".repeat(TEXT_BYTES_MAX / 2))), Ok(text("é".repeat(TEXT_BYTES_MAX / 2))));
        for (unfit, says) in [
            (String::new(), "empty"),
            (" \n".to_owned(), "empty"),
            ("\0".to_owned(), "empty"),
            ("é".repeat(TEXT_BYTES_MAX / 2 + 1), "65538 bytes"),
        ] {
            let problem = fit(text(unfit)).unwrap_err().to_string();
            assert!(problem.contains(says), "{problem}");
        }
    }
}
