//! Events as signed webhooks, after the Standard Webhooks specification.
//!
//! A receiver verifies `webhook-signature` with its secret and recognises a repeat by `webhook-id`.

use async_trait::async_trait;
use postrider_model::{Destination, Event, EventSink, SinkError};
use reqwest::{Request, StatusCode};
use secrecy::SecretString;
use sha2::{Digest, Sha256};
use standardwebhooks::Webhook;
use url::Url;

use super::{InvalidSink, body};
use crate::{
    guard::{Answer, CallError, GuardedClient, Reuse, check_url},
    signing,
};

/// URL and secrets of a webhook.
#[derive(Clone)]
pub struct HttpSinkConfig {
    /// The receiver.
    pub url: Url,
    /// At least one secret `whsec_…`. During the replacement of a secret there are two, and each delivery has a signature of
    /// each.
    pub secrets: Vec<SecretString>,
}

/// Posts each event to one URL.
pub struct HttpSink {
    client: GuardedClient,
    url: Url,
    signers: Vec<Webhook>,
}

impl HttpSink {
    /// Checks the configuration.
    pub fn new(client: &GuardedClient, config: HttpSinkConfig) -> Result<Self, InvalidSink> {
        check_url(&config.url, client.policy())?;
        if config.secrets.is_empty() {
            return Err(InvalidSink::NoSecret);
        }
        let signers = config.secrets.iter().zip(1..).map(|(secret, position)| {
            signing::signer(secret).map_err(|problem| InvalidSink::Secret { position, problem })
        });
        Ok(Self { client: client.clone(), signers: signers.collect::<Result<_, _>>()?, url: config.url })
    }

    fn request(&self, event: &Event) -> Result<Request, SinkError> {
        let id = event.id.to_string();
        signing::request(self.url.clone(), &self.signers, &id, body(event)).map_err(|error| {
            SinkError::Unreachable { reason: format!("the event could not be signed: {error}") }
        })
    }
}

#[async_trait]
impl EventSink for HttpSink {
    async fn deliver(&self, event: &Event) -> Result<(), SinkError> {
        // Reuse is allowed: a receiver of webhooks recognises a repeat by `webhook-id`.
        match self.client.send(self.request(event)?, Reuse::Allowed).await {
            Ok(answer) => judge(&answer),
            Err(error @ (CallError::Refused(_) | CallError::Unreachable { .. })) => {
                Err(SinkError::Unreachable { reason: error.reason() })
            }
            Err(error @ CallError::Unanswered { .. }) => {
                Err(SinkError::Unanswered { reason: error.reason() })
            }
        }
    }

    fn destination(&self) -> Destination {
        Destination { kind: "http".to_owned(), target: target(&self.url) }
    }
}

/// How many bytes of the hash identify a path.
const PATH_HASH_BYTES: usize = 6;

/// Scheme, host and port, and a hash of path and query, which may hold a token. A user name and password are left out.
fn target(url: &Url) -> String {
    let origin = url.origin().ascii_serialization();
    let path = url.query().map_or_else(|| url.path().to_owned(), |query| format!("{}?{query}", url.path()));
    if path == "/" {
        return origin;
    }
    let hash = Sha256::digest(path);
    format!("{origin}/… (path {})", hex::encode(hash.get(..PATH_HASH_BYTES).unwrap_or_default()))
}

/// Classifies an answer by its status alone, as the specification requires: a 2xx with a broken body is a delivery.
fn judge(answer: &Answer) -> Result<(), SinkError> {
    let status = answer.status;
    let reason = match status {
        _ if status.is_success() => return Ok(()),
        _ if status.is_redirection() => {
            format!("{status}, but redirects are not followed; configure the URL it should go to")
        }
        StatusCode::GONE => format!("{status}: the receiver wants no more events; remove this sink"),
        _ => match answer.excerpt() {
            empty if empty.trim().is_empty() => status.to_string(),
            excerpt => format!("{status}: {excerpt}"),
        },
    };
    Err(SinkError::Refused { reason })
}

#[cfg(test)]
mod tests {
    use base64::{Engine, engine::general_purpose::STANDARD};

    use super::*;
    use crate::guard::{Limits, Policy, UrlRefused};

    fn sink(url: &str, secrets: &[&str]) -> Result<HttpSink, InvalidSink> {
        let client = GuardedClient::new(Policy::default(), Limits::default()).unwrap();
        let secrets = secrets.iter().map(|secret| SecretString::from(*secret)).collect();
        HttpSink::new(&client, HttpSinkConfig { url: url.parse().unwrap(), secrets })
    }

    #[test]
    fn a_target_distinguishes_urls_and_shows_no_secret() {
        let of = |url: &str| target(&url.parse().unwrap());
        assert_eq!(of("https://a.example"), "https://a.example");
        assert_eq!(of("https://user:canary@a.example:8443/"), "https://a.example:8443");
        let (one, other) =
            (of("https://a.example/hooks/canary"), of("https://a.example/hooks/canary?key=canary"));
        assert!(one.starts_with("https://a.example/… (path "), "{one}");
        assert_ne!(one, other);
        assert!(!one.contains("canary") && !other.contains("canary"), "{one} {other}");
    }

    #[test]
    fn a_bad_secret_is_refused_and_not_shown() {
        let of_bytes = |n: usize| format!("whsec_{}", STANDARD.encode(vec![7; n]));
        for good in [of_bytes(24), of_bytes(32), of_bytes(64)] {
            assert!(sink("https://example.com", &[&good]).is_ok(), "{good}");
        }
        let cases = [
            (of_bytes(23), "does not hold 24 to 64 bytes"),
            (of_bytes(65), "does not hold 24 to 64 bytes"),
            ("whsec_".to_owned(), "does not hold 24 to 64 bytes"),
            ("whsec_hunter2-hunter2-hunter2".to_owned(), "is not base64"),
            (STANDARD.encode([7; 32]), "does not begin with `whsec_`"),
            (format!("whsk_{}", STANDARD.encode([7; 32])), "does not begin with `whsec_`"),
        ];
        for (bad, expected) in cases {
            let message = sink("https://example.com", &[&of_bytes(32), &bad]).err().unwrap().to_string();
            assert!(message.starts_with("secret 2 ") && message.contains(expected), "{message}");
            let content = bad.trim_start_matches("whsec_");
            assert!(content.is_empty() || !message.contains(content), "{message}");
        }
        assert_eq!(sink("https://example.com", &[]).err(), Some(InvalidSink::NoSecret));
    }

    #[test]
    fn a_url_that_is_not_allowed_is_refused_when_it_is_configured() {
        let secret = format!("whsec_{}", STANDARD.encode([7; 32]));
        let refused = sink("http://example.com", &[&secret]).err();
        assert_eq!(refused, Some(InvalidSink::Url(UrlRefused::PlainHttp)));
    }
}
