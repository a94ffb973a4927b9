//! Code that agents, sentinels and functions share: calls to a URL that a tenant set, with requests that are signed according to
//! the Standard Webhooks specification.

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

/// A URL of a tenant that can be called.
pub struct Endpoint {
    client: GuardedClient,
    url: Url,
    signer: Webhook,
}

/// A request. Its id is the same for each repeat, so the receiver can recognise one.
pub struct Question<'a, T> {
    pub r#type: &'a str,
    pub webhook_id: &'a str,
    pub timestamp: Timestamp,
    pub data: &'a T,
}

/// The reason why there is no answer, in one short line.
pub struct Unanswered {
    pub reason: String,
    /// Whether a retry may succeed.
    pub is_retryable: bool,
}

impl Endpoint {
    /// Checks the address and the secret. Sends nothing.
    pub fn new(
        client: &GuardedClient,
        url: &str,
        secret: &SecretString,
        owner: &str,
    ) -> Result<Self, String> {
        let url = read_url(url, client.policy()).map_err(|error| error.to_string())?;
        let signer = signing::signer(secret)
            .map_err(|problem| format!("the secret of {owner} {problem}; set another one"))?;
        Ok(Self { client: client.clone(), url, signer })
    }

    /// Sends the request once. An answer of any status is `Ok`. `callee` names the endpoint in errors.
    pub async fn ask(
        &self,
        callee: &str,
        question: &Question<'_, impl Serialize>,
    ) -> Result<Answer, Unanswered> {
        let request = self.request(question).map_err(|error| Unanswered {
            reason: format!("the request to {callee} could not be written: {error}"),
            is_retryable: false,
        })?;
        // A repeat may do harm, because a receiver need not check the id.
        self.client.send(request, Reuse::Never).await.map_err(|error| Unanswered {
            reason: format!("{callee} did not answer: {}", error.reason()),
            is_retryable: !matches!(error, CallError::Refused(_)),
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

/// The problem of an answer that is not a complete success. It contains nothing of the body.
pub fn problem(answer: &Answer, callee: &str) -> Option<String> {
    let status = answer.status;
    Some(match answer.ending {
        _ if status.is_redirection() => {
            format!("{callee} answered {status}, but redirects are not followed; set the URL it should go to")
        }
        _ if !status.is_success() => format!("{callee} answered {status}"),
        Ending::TooLong => format!("{callee} answered with more than {ANSWER_BYTES_MAX} bytes"),
        Ending::Broken => format!("the answer of {callee} broke off"),
        Ending::Whole => return None,
    })
}

/// The content type without its parameters, in lower case.
pub fn media_type(answer: &Answer) -> String {
    let content_type =
        answer.headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase()
}

#[cfg(test)]
pub mod tests {
    use reqwest::{
        StatusCode,
        header::{HeaderMap, HeaderValue},
    };

    use super::*;

    /// An answer like those of the client.
    pub fn answer(status: u16, content_type: &str, body: impl Into<Vec<u8>>, ending: Ending) -> Answer {
        let content_type = HeaderValue::from_str(content_type).unwrap();
        let headers = HeaderMap::from_iter([(CONTENT_TYPE, content_type)]);
        Answer { status: StatusCode::from_u16(status).unwrap(), headers, body: body.into().into(), ending }
    }

    #[test]
    fn an_answer_without_success_is_a_problem_that_does_not_quote_it() {
        const BODY: &str = r#"{"text": "hunter2"}"#;
        let problem_of =
            |status, ending| super::problem(&answer(status, "application/json", BODY, ending), "the agent");
        for (status, ending, says) in [
            (200, Ending::TooLong, "the agent answered with more than 65536 bytes"),
            (200, Ending::Broken, "the answer of the agent broke off"),
            (500, Ending::Whole, "the agent answered 500 Internal Server Error"),
            (404, Ending::Whole, "the agent answered 404 Not Found"),
            (307, Ending::Whole, "redirects are not followed"),
        ] {
            let problem = problem_of(status, ending).unwrap();
            assert!(problem.contains(says) && !problem.contains("hunter2"), "{problem}");
        }
        assert_eq!(problem_of(201, Ending::Whole), None);
    }
}
