//! What agents, sentinels and functions have in common: a URL that a tenant set, asked with requests that are signed after the
//! Standard Webhooks specification.

use jiff::Timestamp;
use reqwest::{Request, header::CONTENT_TYPE};
use secrecy::SecretString;
use serde::Serialize;
use standardwebhooks::Webhook;
use url::Url;

use crate::{
    guard::{ANSWER_BYTES_MAX, Answer, CallError, Ending, GuardedClient, Reuse, read_url},
    signing,
};

/// Somebody who can be asked.
pub struct Endpoint {
    client: GuardedClient,
    url: Url,
    signer: Webhook,
}

/// What is asked. The id tells who is asked twice that it is the same.
pub struct Question<'a, T> {
    pub r#type: &'a str,
    pub webhook_id: &'a str,
    pub timestamp: Timestamp,
    pub data: &'a T,
}

/// No answer came, and why, in one short line.
pub struct Unanswered {
    pub reason: String,
    /// Whether it may be otherwise next time.
    pub is_passing: bool,
}

impl Endpoint {
    /// Checks the address and the secret, and says what is wrong. Nothing is sent.
    pub fn new(
        client: &GuardedClient,
        url: &str,
        secret: &SecretString,
        whose: &str,
    ) -> Result<Self, String> {
        let url = read_url(url, client.policy()).map_err(|error| error.to_string())?;
        let signer = signing::signer(secret)
            .map_err(|problem| format!("the secret of {whose} {problem}; set another one"))?;
        Ok(Self { client: client.clone(), url, signer })
    }

    /// Asks once. An answer of any status is `Ok`.
    pub async fn ask(
        &self,
        who: &str,
        question: &Question<'_, impl Serialize>,
    ) -> Result<Answer, Unanswered> {
        let request = self.request(question).map_err(|error| Unanswered {
            reason: format!("the request to {who} could not be written: {error}"),
            is_passing: false,
        })?;
        // What they do is not harmless when it is repeated, whatever they make of the id.
        self.client.send(request, Reuse::Never).await.map_err(|error| Unanswered {
            reason: format!("{who} did not answer: {}", error.reason()),
            is_passing: !matches!(error, CallError::Refused(_)),
        })
    }

    fn request(
        &self,
        question: &Question<'_, impl Serialize>,
    ) -> Result<Request, Box<dyn std::error::Error + Send + Sync>> {
        #[derive(Serialize)]
        struct Body<'a, T> {
            r#type: &'a str,
            timestamp: Timestamp,
            data: &'a T,
        }
        let Question { r#type, webhook_id, timestamp, data } = *question;
        let body = serde_json::to_vec(&Body { r#type, timestamp, data })?;
        signing::request(self.url.clone(), std::slice::from_ref(&self.signer), webhook_id, body.into())
    }
}

/// What is wrong with an answer that is no whole answer of success. Nothing of its body is repeated.
pub fn trouble(answer: &Answer, who: &str) -> Option<String> {
    let status = answer.status;
    Some(match answer.ending {
        _ if status.is_redirection() => {
            format!("{who} answered {status}, but redirects are not followed; set the URL it should go to")
        }
        _ if !status.is_success() => format!("{who} answered {status}"),
        Ending::TooLong => format!("{who} answered with more than {ANSWER_BYTES_MAX} bytes"),
        Ending::Broken => format!("the answer of {who} broke off"),
        Ending::Whole => return None,
    })
}

/// The content type without its parameters, in lower case.
pub fn media_type(answer: &Answer) -> String {
    let given = answer.headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    given.split(';').next().unwrap_or_default().trim().to_ascii_lowercase()
}

#[cfg(test)]
pub mod tests {
    use reqwest::{
        StatusCode,
        header::{HeaderMap, HeaderValue},
    };

    use super::*;

    /// An answer as it comes from the client.
    pub fn answer(status: u16, content_type: &str, body: impl Into<Vec<u8>>, ending: Ending) -> Answer {
        let content_type = HeaderValue::from_str(content_type).unwrap();
        let headers = HeaderMap::from_iter([(CONTENT_TYPE, content_type)]);
        Answer { status: StatusCode::from_u16(status).unwrap(), headers, body: body.into().into(), ending }
    }

    #[test]
    fn what_is_no_success_is_no_answer_and_is_not_repeated() {
        const BODY: &str = r#"{"text": "hunter2"}"#;
        let trouble =
            |status, ending| super::trouble(&answer(status, "application/json", BODY, ending), "the agent");
        for (status, ending, says) in [
            (200, Ending::TooLong, "the agent answered with more than 65536 bytes"),
            (200, Ending::Broken, "the answer of the agent broke off"),
            (500, Ending::Whole, "the agent answered 500 Internal Server Error"),
            (404, Ending::Whole, "the agent answered 404 Not Found"),
            (307, Ending::Whole, "redirects are not followed"),
        ] {
            let problem = trouble(status, ending).unwrap();
            assert!(problem.contains(says) && !problem.contains("hunter2"), "{problem}");
        }
        assert_eq!(trouble(201, Ending::Whole), None);
    }
}
