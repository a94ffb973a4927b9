//! How an exchange ends over HTTP: with a whole answer, or with a [`Cut`].
//!
//! hyper cannot answer badly, so a cut ends its work on the connection and `http.rs` takes the socket back:
//! it resets it, leaves it silent, or sends the first half of an answer.

use std::convert::Infallible;
use std::io;

use bytes::Bytes;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full};
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use hyper::{Response, StatusCode};
use serde_json::{Value, json};

use super::World;
use super::faults::{Ending, Fault};
use super::receipts::Receipt;

/// A whole answer.
pub type Answer = Response<BoxBody<Bytes, io::Error>>;

/// The end of a connection without a whole answer.
#[derive(Debug)]
pub enum Cut {
    /// RST.
    Reset,
    /// These bytes, then the end.
    Half(Bytes),
    /// Nothing, then the end.
    Silence,
}

impl std::fmt::Display for Cut {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the sim cuts the connection")
    }
}

impl std::error::Error for Cut {}

/// Writes the receipt down, then ends the exchange as its fault says. `good` is the answer of a request
/// that meets no fault.
pub async fn conclude(world: &World, mut receipt: Receipt, good: (StatusCode, Value)) -> Result<Answer, Cut> {
    let ending = receipt.fault.map_or(Ending::Well, Fault::ending);
    let status = match ending {
        Ending::Well | Ending::Late => Some(good.0),
        Ending::Error => Some(StatusCode::INTERNAL_SERVER_ERROR),
        Ending::Refusal => Some(StatusCode::BAD_REQUEST),
        Ending::Busy => Some(StatusCode::TOO_MANY_REQUESTS),
        Ending::Silence | Ending::Half | Ending::Reset => None,
    };
    receipt.answered = status.map(|status| status.as_u16());
    if let Err(error) = world.ledger.record(receipt).await {
        tracing::error!(?error, "a request was left unanswered because its receipt could not be written");
        return Err(Cut::Silence);
    }

    match ending {
        Ending::Well => Ok(json_answer(good.0, &good.1)),
        Ending::Late => {
            world.wait(world.pace.latency).await;
            Ok(json_answer(good.0, &good.1))
        }
        Ending::Error => Ok(problem(StatusCode::INTERNAL_SERVER_ERROR, "the sim was asked to fail")),
        Ending::Refusal => Ok(problem(StatusCode::BAD_REQUEST, "the sim was asked to refuse")),
        Ending::Busy => Ok(busy(world)),
        Ending::Silence => {
            // hyper drops this when the client hangs up.
            world.wait(world.pace.stall).await;
            Err(Cut::Silence)
        }
        Ending::Half => Err(Cut::Half(half_of(good.0, &good.1))),
        Ending::Reset => Err(Cut::Reset),
    }
}

/// A JSON answer.
pub fn json_answer(status: StatusCode, value: &Value) -> Answer {
    with_type(status, "application/json", Full::new(Bytes::from(value.to_string())).map_err(never).boxed())
}

/// An answer with a body of a given type.
pub fn with_type(status: StatusCode, content_type: &'static str, body: BoxBody<Bytes, io::Error>) -> Answer {
    let mut answer = Response::new(body);
    *answer.status_mut() = status;
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    answer
}

/// An answer that says what is wrong.
pub fn problem(status: StatusCode, detail: &str) -> Answer {
    json_answer(status, &json!({ "error": detail }))
}

fn busy(world: &World) -> Answer {
    let mut answer = problem(StatusCode::TOO_MANY_REQUESTS, "the sim was asked to be busy");
    answer.headers_mut().insert(RETRY_AFTER, HeaderValue::from(world.pace.retry_after_seconds));
    answer
}

/// The answer to a method that a path does not take.
pub fn not_allowed(methods: &'static str) -> Answer {
    let mut answer = problem(StatusCode::METHOD_NOT_ALLOWED, "this path takes other methods");
    answer.headers_mut().insert(ALLOW, HeaderValue::from_static(methods));
    answer
}

/// The first half of a good answer: a whole head that promises more than follows.
fn half_of(status: StatusCode, value: &Value) -> Bytes {
    let body = value.to_string();
    let head = format!(
        "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    let mut bytes = head.into_bytes();
    bytes.extend_from_slice(&body.as_bytes()[..body.len() / 2]);
    Bytes::from(bytes)
}

fn never(error: Infallible) -> io::Error {
    match error {}
}
