//! How an exchange ends over HTTP: with a whole answer, or with a [`Cut`].
//!
//! hyper cannot send an incomplete answer. A cut therefore ends hyper's work on the connection, and `http.rs` takes the
//! socket back: it resets it, closes it without an answer, or sends the first half of one.

use std::convert::Infallible;
use std::io;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full};
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use hyper::{Response, StatusCode};
use serde_json::{Value, json};

use super::World;
use super::acting::{ErrorAnswer, Face};
use super::faults::{DrawnFault, Ending, Generation};
use super::memory::{Done, Working};

/// A complete answer.
pub type Answer = Response<BoxBody<Bytes, io::Error>>;

/// The end of a connection without a complete answer.
#[derive(Debug)]
pub enum Cut {
    /// RST.
    Reset,
    /// These bytes, then the end.
    Half(Bytes),
    /// The end, without an answer.
    Silence,
}

impl std::fmt::Display for Cut {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the sim cuts the connection")
    }
}

impl std::error::Error for Cut {}

/// The end of one exchange, and its answer without a fault.
pub struct Exchange {
    ending: Ending,
    delay: Duration,
    held_by_rules: Option<Generation>,
    good: Done,
    /// Held while the request counts as under way.
    working: Option<Working>,
}

impl Exchange {
    /// With the ending of the fault, or with the good answer.
    pub fn new(drawn: Option<DrawnFault>, good: Done) -> Self {
        let ending = drawn.map_or(Ending::Well, |drawn| drawn.ending);
        let delay = drawn.map_or(Duration::ZERO, |drawn| drawn.delay);
        let held_by_rules = drawn.and_then(|drawn| drawn.held_by);
        Self { ending, delay, held_by_rules, good, working: None }
    }

    /// Keeps the request under way until this exchange ends.
    pub fn held_by(self, working: Option<Working>) -> Self {
        Self { working, ..self }
    }

    /// The status of the answer, if a complete answer follows.
    pub fn status(&self, face: &Face) -> Option<StatusCode> {
        match self.ending {
            Ending::Well | Ending::Late => Some(self.good.status),
            Ending::Error => Some(StatusCode::INTERNAL_SERVER_ERROR),
            Ending::Refusal => Some(face.refuses_with),
            Ending::Busy => Some(StatusCode::TOO_MANY_REQUESTS),
            Ending::Silence | Ending::Half | Ending::Reset => None,
        }
    }
}

/// Ends an exchange. Its receipt is on disk already.
pub async fn end(world: &World, face: &Face, exchange: Exchange) -> Result<Answer, Cut> {
    let Exchange { ending, delay, held_by_rules, good, working } = exchange;
    if ending == Ending::Late {
        // Until the answer, the request counts as under way, so that a repeat meets it.
        world.wait_to_answer(delay, held_by_rules).await;
    }
    drop(working);
    let wrong = |status, why| json_answer(status, &(face.error_body)(&ErrorAnswer::new(status, why)));
    match ending {
        Ending::Well | Ending::Late => Ok(raw_answer(good.status, &good.answer)),
        Ending::Error => Ok(wrong(StatusCode::INTERNAL_SERVER_ERROR, "the sim was asked to fail")),
        Ending::Refusal => Ok(wrong(face.refuses_with, "the sim was asked to refuse")),
        Ending::Busy => {
            let (status, seconds) = (StatusCode::TOO_MANY_REQUESTS, world.pace.retry_after_seconds);
            let why = "the sim was asked to be busy";
            let mut answer = json_answer(
                status,
                &(face.error_body)(&ErrorAnswer { status, why, retry_after_seconds: Some(seconds) }),
            );
            answer.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
            Ok(answer)
        }
        Ending::Silence => {
            // hyper drops this when the client hangs up.
            world.wait(world.pace.stall).await;
            Err(Cut::Silence)
        }
        Ending::Half => Err(Cut::Half(half_of(good.status, &good.answer))),
        Ending::Reset => Err(Cut::Reset),
    }
}

/// A JSON answer.
pub fn json_answer(status: StatusCode, value: &Value) -> Answer {
    raw_answer(status, &value.to_string())
}

/// An answer with encoded JSON.
pub fn raw_answer(status: StatusCode, json: &str) -> Answer {
    let body = Full::new(Bytes::copy_from_slice(json.as_bytes()));
    with_type(status, "application/json", body.map_err(never).boxed())
}

/// An answer with a body of a given type.
pub fn with_type(status: StatusCode, content_type: &'static str, body: BoxBody<Bytes, io::Error>) -> Answer {
    let mut answer = Response::new(body);
    *answer.status_mut() = status;
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    answer
}

/// An error answer of the control routes.
pub fn problem(status: StatusCode, detail: &str) -> Answer {
    json_answer(status, &json!({ "error": detail }))
}

/// The answer to a method that a path does not support.
pub fn not_allowed(methods: &'static str) -> Answer {
    let mut answer = problem(StatusCode::METHOD_NOT_ALLOWED, "this path does not support the method");
    answer.headers_mut().insert(ALLOW, HeaderValue::from_static(methods));
    answer
}

/// The first half of a good answer: a complete head whose content length exceeds the body that follows.
fn half_of(status: StatusCode, body: &str) -> Bytes {
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
