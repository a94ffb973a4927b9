//! Agents, which execute messages, and sentinels, which permit or refuse them before: both behind URLs that tenants set.
//!
//! A request is signed according to the Standard Webhooks specification. `webhook-id` and the body stay the same when a message is
//! executed again, so an agent can recognise the repeat:
//!
//! ```json
//! {"type": "message.received",
//!  "timestamp": "2026-02-03T04:05:06.007Z",
//!  "data": {"message_id": "…", "provider": "slack", "account_id": "…", "sender_id": "U1", "user_id": "ada", "role": "operator",
//!           "conversation_id": "C1", "thread": null, "text": "…", "correlation_id": "…"}}
//! ```
//!
//! | answer | of an agent | of a sentinel |
//! |---|---|---|
//! | 2xx, `application/json` | `{"text": "…"}` is the reply | `{"allow": true}`, or `{"allow": false, "reason": "…"}` |
//! | 2xx, `text/plain` | all of it is the reply | no answer |
//! | 2xx, anything else, or longer than 64 KiB | no answer | no answer |
//! | any other status, redirects too; silence | no answer | no answer |
//!
//! An error never contains text of the answer, because the answer may repeat the message.

use postrider_model::ids::{ChannelMessageId, OutboxId};
use secrecy::SecretString;
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::{
    endpoint::{Endpoint, Question, media_type, problem},
    guard::{Answer, GuardedClient},
    http, text,
};

/// An agent or a sentinel that can be called.
pub struct Agent(Endpoint);

/// The reason why there is no usable answer, in one short line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct NoAnswer(pub String);

/// The decision of a sentinel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SentinelDecision {
    /// The message may be executed.
    Allowed,
    /// It may not, for this reason.
    Denied(String),
}

impl Agent {
    /// Checks the address and the secret. Nothing is sent.
    pub fn new(client: &GuardedClient, url: &str, secret: &SecretString) -> Result<Self, NoAnswer> {
        Endpoint::new(client, url, secret, "the executor").map(Self).map_err(NoAnswer)
    }

    /// Calls the agent to execute a message and returns the reply.
    pub async fn reply(&self, id: ChannelMessageId, data: &impl Serialize) -> Result<String, NoAnswer> {
        let answer = self.ask("the agent", "message.received", &id.0.to_string(), id, data).await?;
        reply(&answer)
    }

    /// Asks the sentinel whether a message may be executed.
    pub async fn decision(
        &self,
        id: ChannelMessageId,
        data: &impl Serialize,
    ) -> Result<SentinelDecision, NoAnswer> {
        // Not the id of the message: a service that is both agent and sentinel must not take one request for a repeat of the other.
        let answer = self.ask("the sentinel", "message.check", &format!("check_{}", id.0), id, data).await?;
        decision(&answer)
    }

    async fn ask(
        &self,
        callee: &str,
        r#type: &str,
        webhook_id: &str,
        id: ChannelMessageId,
        data: &impl Serialize,
    ) -> Result<Answer, NoAnswer> {
        // The same for every execution, like the id.
        let timestamp = http::planned_at(OutboxId(id.0));
        let question = Question { r#type, webhook_id, timestamp, data };
        let answer = self.0.ask(callee, &question).await.map_err(|unanswered| NoAnswer(unanswered.reason))?;
        problem(&answer, callee).map_or(Ok(answer), |problem| Err(NoAnswer(problem)))
    }
}

fn reply(answer: &Answer) -> Result<String, NoAnswer> {
    #[derive(Deserialize)]
    struct Body {
        text: String,
    }
    match media_type(answer).as_str() {
        "application/json" => {
            let body: Option<Body> = json(answer);
            body.map(|body| body.text).ok_or_else(|| {
                NoAnswer(r#"the agent did not answer with a JSON object like {"text": "…"}"#.to_owned())
            })
        }
        "text/plain" => String::from_utf8(answer.body.to_vec())
            .map_err(|_| NoAnswer("the agent answered with a text that is not UTF-8".to_owned())),
        other => Err(NoAnswer(format!(
            "the agent answered with the content type `{}`; it must be application/json or text/plain",
            text::excerpt(other)
        ))),
    }
}

fn decision(answer: &Answer) -> Result<SentinelDecision, NoAnswer> {
    #[derive(Deserialize)]
    struct Body {
        allow: bool,
        #[serde(default)]
        reason: Option<String>,
    }
    let body: Option<Body> = (media_type(answer) == "application/json").then(|| json(answer)).flatten();
    match body {
        Some(Body { allow: true, .. }) => Ok(SentinelDecision::Allowed),
        Some(Body { reason, .. }) => {
            let reason = text::excerpt(reason.as_deref().unwrap_or_default());
            let reason = if reason.trim().is_empty() { "it gave no reason".to_owned() } else { reason };
            Ok(SentinelDecision::Denied(format!("the sentinel denied it: {reason}")))
        }
        None => Err(NoAnswer(
            r#"the sentinel did not answer with a JSON object like {"allow": true} or {"allow": false, "reason": "…"}"#
                .to_owned(),
        )),
    }
}

/// Parses an object. The detour by a map is needed because serde also accepts an array of the values.
fn json<T: DeserializeOwned>(answer: &Answer) -> Option<T> {
    let fields: serde_json::Map<String, serde_json::Value> = serde_json::from_slice(&answer.body).ok()?;
    T::deserialize(serde_json::Value::Object(fields)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{endpoint::tests::answer, guard::Ending};

    #[test]
    fn a_reply_is_json_with_a_text_or_plain_text() {
        for (content_type, body, expected) in [
            ("application/json", r#"{"text": "hi", "mood": 7}"#, Some("hi")),
            ("Application/JSON; charset=utf-8", r#"{"text": ""}"#, Some("")),
            ("text/plain;charset=utf-8", "hi\n", Some("hi\n")),
            ("application/json", r#"["hi"]"#, None),
            ("application/json", r#"{"text": 7}"#, None),
            ("application/json", r#"{"txet": "hi"}"#, None),
            ("application/json", r#"{"text": "hi"} and more"#, None),
            ("application/json", "hi", None),
            ("text/html", "<p>hi</p>", None),
            ("", "hi", None),
        ] {
            let answer = answer(200, content_type, body, Ending::Whole);
            assert_eq!(reply(&answer).ok().as_deref(), expected, "{content_type}: {body}");
        }
        assert!(reply(&answer(200, "text/plain", *b"\xff", Ending::Whole)).is_err());
    }

    #[test]
    fn only_a_clear_yes_is_a_yes() {
        for (body, expected) in [
            (r#"{"allow": true}"#, Some(SentinelDecision::Allowed)),
            (
                r#"{"allow": false}"#,
                Some(SentinelDecision::Denied("the sentinel denied it: it gave no reason".to_owned())),
            ),
            (
                r#"{"allow": false, "reason": "not\ntoday"}"#,
                Some(SentinelDecision::Denied("the sentinel denied it: not today".to_owned())),
            ),
            (r#"{"allow": "true"}"#, None),
            (r#"{"allow": 1}"#, None),
            (r#"{"allow": null}"#, None),
            (r#"{"reason": "fine"}"#, None),
            (r"[true]", None),
            ("true", None),
            ("", None),
        ] {
            let answer = answer(200, "application/json", body, Ending::Whole);
            assert_eq!(decision(&answer).ok(), expected, "{body}");
        }
        assert!(decision(&answer(200, "text/plain", r#"{"allow": true}"#, Ending::Whole)).is_err());
    }
}
