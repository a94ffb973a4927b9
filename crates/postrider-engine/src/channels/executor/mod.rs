//! Executes a stored message and puts its reply into the outbox.
//!
//! ```text
//! Execution ──▶ sentinel ──▶ Executor ──▶ finish: `executed`, and the reply is in the outbox
//!                  │             │           └─ an error: `dispatch_failed`, the reply is stored with the message
//!                  │             └─ no reply: `dispatch_failed`
//!                  └─ an objection: `denied_sentinel`
//! ```
//!
//! The timeout of the executor bounds the sentinel and the execution together. An unreachable sentinel permits nothing.
//! See docs/decisions/0015-a-message-is-leased-and-its-reply-is-claimed.md.

mod execute;
mod sentinel;

use std::{panic::AssertUnwindSafe, time::Duration};

use futures::FutureExt;
use postrider_model::{
    channels::{Reply, TEXT_BYTES_MAX},
    error_chain,
    seal::MasterKey,
};
use postrider_providers::GuardedClient;
use postrider_store::{
    Pool, StoreError,
    channels::{
        executors,
        messages::{self, Execution},
    },
    postgres::pool,
};

pub use self::execute::{Echo, ExecuteError, Executor, HttpAgent, Request};
use crate::common::wakeup::Hints;

/// Time limit of one step in the database. After it the message fails, or is executed again when its lease expires.
const STEP_WITHIN: Duration = Duration::from_secs(15);

/// Executes messages.
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
    /// The sentinel denied the message.
    DeniedSentinel,
    /// The message was not executed, or its reply could not be put into the outbox, for this reason. The provider may deliver the
    /// message again; a reply is stored with the message.
    Failed(String),
    /// The lease expired, and another process executes the message.
    TakenUpElsewhere,
}

/// The result to record for a message.
enum Decided {
    Reply(Reply),
    Deny(String),
}

impl Executing {
    /// The time limit of `client` must be at least the longest timeout of an executor.
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

    /// Notifies the dispatchers of a reply that the caller put into the outbox without an execution.
    pub fn hint(&self) {
        self.hints.send();
    }

    /// Executes a message and records the result. A timeout or a panic counts as a failure.
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

    /// Executes the message within the executor's timeout and returns the result to record.
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
            Err(ExecuteError(format!(
                "the executor did not finish within its timeout of {} s",
                within.as_secs()
            )))
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
                "the account has no executor any more; set one with `postrider channels executor`".to_owned(),
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
            Ok(false) => taken_up_elsewhere(&execution),
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
                // The reason is not logged, because it may repeat text of the message.
                tracing::info!(%correlation_id, channel_message_id = %id, "the sentinel denied message {id}");
                Ended::DeniedSentinel
            }
            Ok(false) => Ended::TakenUpElsewhere,
            Err(error) => {
                tracing::error!(%correlation_id, channel_message_id = %id, "the denial of message {id} could not be recorded; the message is executed again: {error}");
                Ended::Failed(error)
            }
        }
    }

    /// Records that the message failed, and stores the reply if there is one.
    async fn fail(&self, execution: Execution, reply: Option<&Reply>, reason: String) -> Ended {
        let (id, correlation_id) = (execution.message_id.0, execution.correlation_id);
        let failing = messages::fail(&self.pool, execution, reply, &reason);
        match step("recording the failure of the message", failing).await {
            Ok(true) => {
                let reply_is_kept = reply.is_some();
                tracing::error!(%correlation_id, channel_message_id = %id, reply_is_kept, "message {id} failed: {reason}");
                Ended::Failed(reason)
            }
            Ok(false) => {
                // The reply may have been enqueued although the acknowledgement was lost.
                self.hints.send();
                Ended::TakenUpElsewhere
            }
            Err(error) => {
                tracing::error!(%correlation_id, channel_message_id = %id, "the failure of message {id} could not be recorded; the message is executed again when its lease expires: {reason}; {error}");
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

fn taken_up_elsewhere(execution: &Execution) -> Ended {
    let (id, correlation_id) = (execution.message_id.0, execution.correlation_id);
    tracing::warn!(%correlation_id, channel_message_id = %id, "the lease of message {id} expired, and another process executes it; this reply is dropped");
    Ended::TakenUpElsewhere
}

/// Checks that a reply can be stored and sent.
fn fit(mut reply: Reply) -> Result<Reply, ExecuteError> {
    // The database cannot store NUL, which is invisible anyway.
    reply.text.retain(|c| c != '\0');
    match reply.text.len() {
        _ if reply.text.trim().is_empty() => Err(ExecuteError("the reply is empty".to_owned())),
        length if length > TEXT_BYTES_MAX => {
            Err(ExecuteError(format!("the reply has {length} bytes; the limit is {TEXT_BYTES_MAX}")))
        }
        _ => Ok(reply),
    }
}

/// Runs one step in the database within its time limit. The error is one line with all causes.
async fn step<T>(
    doing: &'static str,
    statement: impl Future<Output = Result<T, StoreError>>,
) -> Result<T, String> {
    match tokio::time::timeout(STEP_WITHIN, statement).await {
        Ok(result) => result.map_err(|error| error_chain(&error)),
        Err(_) => Err(format!("{doing} took longer than {} s", STEP_WITHIN.as_secs())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: impl Into<String>) -> Reply {
        Reply { text: text.into(), thread: Some("t".to_owned()) }
    }

    #[test]
    fn a_reply_is_stored_unchanged_or_refused() {
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
