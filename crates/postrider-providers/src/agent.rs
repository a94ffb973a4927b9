//! Agents, which execute messages, and sentinels, which are asked beforehand: both behind URLs that tenants set.
//!
//! A request is signed after the Standard Webhooks specification. `webhook-id` and the body stay the same when a message is
//! executed again, so an agent can recognise that:
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
//! What they say is never part of an error: it may repeat what somebody wrote.

use postrider_model::ids::{ChannelMessageId, OutboxId};
use secrecy::SecretString;
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::{
    endpoint::{Endpoint, Question, media_type, trouble},
    guard::{Answer, GuardedClient},
    http, text,
};

/// Somebody who can be asked about a message.
pub struct Agent(Endpoint);

/// Why there is no answer that could be used, in one short line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct NoAnswer(pub String);

/// What a sentinel says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// The message may be executed.
    Allowed,
    /// It may not, for this reason.
    Denied(String),
}

impl Agent {
    /// Checks the address and the secret. Nothing is sent.
    pub fn new(client: &GuardedClient, url: &str, secret: &SecretString) -> Result<Self, NoAnswer> {
        Endpoint::new(client, url, secret, "what executes").map(Self).map_err(NoAnswer)
    }

    /// Has a message executed, and brings the reply.
    pub async fn reply(&self, id: ChannelMessageId, data: &impl Serialize) -> Result<String, NoAnswer> {
        let answer = self.ask("the agent", "message.received", &id.0.to_string(), id, data).await?;
        reply(&answer)
    }

    /// Asks whether a message may be executed.
    pub async fn verdict(&self, id: ChannelMessageId, data: &impl Serialize) -> Result<Verdict, NoAnswer> {
        // Another id than the message's own: who is both agent and sentinel must not take one for a repeat of the other.
        let answer = self.ask("the sentinel", "message.check", &format!("check_{}", id.0), id, data).await?;
        verdict(&answer)
    }

    async fn ask(
        &self,
        who: &str,
        r#type: &str,
        webhook_id: &str,
        id: ChannelMessageId,
        data: &impl Serialize,
    ) -> Result<Answer, NoAnswer> {
        // The same for every execution, as the id is.
        let timestamp = http::planned_at(OutboxId(id.0));
        let question = Question { r#type, webhook_id, timestamp, data };
        let answer = self.0.ask(who, &question).await.map_err(|unanswered| NoAnswer(unanswered.reason))?;
        trouble(&answer, who).map_or(Ok(answer), |trouble| Err(NoAnswer(trouble)))
    }
}

fn reply(answer: &Answer) -> Result<String, NoAnswer> {
    #[derive(Deserialize)]
    struct Said {
        text: String,
    }
    match media_type(answer).as_str() {
        "application/json" => {
            let said: Option<Said> = json(answer);
            said.map(|said| said.text).ok_or_else(|| {
                NoAnswer(
                    r#"the agent answered with something else than a JSON object like {"text": "…"}"#
                        .to_owned(),
                )
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

fn verdict(answer: &Answer) -> Result<Verdict, NoAnswer> {
    #[derive(Deserialize)]
    struct Said {
        allow: bool,
        #[serde(default)]
        reason: Option<String>,
    }
    let said: Option<Said> = (media_type(answer) == "application/json").then(|| json(answer)).flatten();
    match said {
        Some(Said { allow: true, .. }) => Ok(Verdict::Allowed),
        Some(Said { reason, .. }) => {
            let reason = text::excerpt(reason.as_deref().unwrap_or_default());
            let reason = if reason.trim().is_empty() { "it gave no reason".to_owned() } else { reason };
            Ok(Verdict::Denied(format!("the sentinel denied it: {reason}")))
        }
        None => Err(NoAnswer(
            r#"the sentinel answered with something else than a JSON object like {"allow": true} or {"allow": false, "reason": "…"}"#
                .to_owned(),
        )),
    }
}

/// An object, and nothing else: by itself serde also takes an array of its values.
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
            (r#"{"allow": true}"#, Some(Verdict::Allowed)),
            (
                r#"{"allow": false}"#,
                Some(Verdict::Denied("the sentinel denied it: it gave no reason".to_owned())),
            ),
            (
                r#"{"allow": false, "reason": "not\ntoday"}"#,
                Some(Verdict::Denied("the sentinel denied it: not today".to_owned())),
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
            assert_eq!(verdict(&answer).ok(), expected, "{body}");
        }
        assert!(verdict(&answer(200, "text/plain", r#"{"allow": true}"#, Ending::Whole)).is_err());
    }
}
