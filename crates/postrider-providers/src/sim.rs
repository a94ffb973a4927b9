//! `postrider sim`, which simulates a provider of every channel.
//!
//! `POST {url}/messages` is classified by the tables in `http.rs`; `id` in an answer is the id of the message. The sim
//! offers a lookup by key, `GET {url}/messages?key=…`:
//!
//! | answer | finding |
//! |---|---|
//! | 200, whole, with an `id` | done |
//! | 404 with `{"error": "unknown key"}` | absent |
//! | everything else | unclear |

use std::sync::Arc;

use async_trait::async_trait;
use jiff::Timestamp;
use postrider_model::{Channel, DoubtClass, Finding, IdempotencyKey, Manifest, Message, Outcome};
use postrider_store::{HeldDoubt, Reservation};
use reqwest::{StatusCode, header::HeaderValue};
use schemars::JsonSchema;
use secrecy::ExposeSecret;
use serde::Deserialize;
use url::Url;

use crate::{
    Description,
    guard::{Answer, GuardedClient},
    http,
    provider::{Account, Adapter, InvalidAccount, Provider},
};

const MANIFEST: Manifest = Manifest {
    doubt: DoubtClass::Lookup,
    ..Manifest::new("sim", &[Channel::Email, Channel::Voice, Channel::Social])
};

http::adapter!(SimAdapter opens Sim);

fn description() -> Description {
    Description::new(
        "Simulated provider",
        "Messages of every channel to postrider sim, for trials. Nothing is sent to people.",
    )
    .settings::<Settings>()
    .maybe_secret("Token", "The token of the sim, if it was started with --token")
}

/// Settings of an account.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Settings {
    /// Address of the sim.
    url: Url,
}

/// An account at a sim.
struct Sim {
    client: GuardedClient,
    messages: Url,
    token: Option<HeaderValue>,
}

impl Sim {
    fn new(client: &GuardedClient, account: &Account<'_>) -> Result<Self, InvalidAccount> {
        let settings: Settings = http::settings(account, "sim", r#"{"url": "http://127.0.0.1:9090"}"#)?;
        let token = match account.secret.expose_secret() {
            "" => None,
            token => Some(http::authorization(&format!("Bearer {token}"))?),
        };
        let messages = http::below(&http::base(client, settings.url)?, &["messages"]);
        Ok(Self { client: client.clone(), messages, token })
    }

    async fn send(&self, key: &IdempotencyKey, message: &Message) -> Outcome {
        let request = http::post(self.messages.clone(), self.token.as_ref(), message)
            .and_then(|request| http::with_key(request, key));
        http::outcome(http::send(&self.client, request).await, judge)
    }

    async fn ask(&self, key: &IdempotencyKey) -> Finding {
        let mut url = self.messages.clone();
        url.query_pairs_mut().append_pair("key", key.as_str());
        match http::ask(&self.client, url, self.token.as_ref()).await {
            Ok(answer) => found(&answer),
            Err(unclear) => unclear,
        }
    }
}

#[async_trait]
impl Provider for Sim {
    async fn call(&self, reservation: &Reservation, message: &Message) -> Outcome {
        self.send(reservation.key(), message).await
    }

    async fn look_up(&self, doubt: &HeldDoubt, _message: Option<&Message>) -> Finding {
        self.ask(doubt.key()).await
    }
}

fn judge(answer: &Answer, now: Timestamp) -> Outcome {
    http::judge(answer, now, |answer| http::named(answer, "id"))
}

/// The table of the [module](self).
fn found(answer: &Answer) -> Finding {
    match answer.status {
        StatusCode::OK => match http::named(answer, "id") {
            Some(message_id) => {
                Finding::Done { message_id, evidence: "the sim has a message under this key".to_owned() }
            }
            None => {
                Finding::Unclear { reason: format!("the answer is not complete: {}", http::describe(answer)) }
            }
        },
        // Any other 404 comes from a server that is not the sim.
        StatusCode::NOT_FOUND if http::named(answer, "error").as_deref() == Some("unknown key") => {
            Finding::Absent { evidence: "the sim has no message under this key".to_owned() }
        }
        _ => Finding::Unclear { reason: http::describe(answer) },
    }
}

#[cfg(test)]
mod tests;
