//! The common path of a request to act, for every HTTP face.
//!
//! ```text
//! read ─► validate ─► repeat? ─ no ──► draw a fault ─► perform ─► receipt on disk ─► publish ─► answer, or a fault
//!                        └─ yes ─► draw a fault ─► the first answer again; no receipt, because the face did not act
//! ```
//!
//! The fault `act_late` ends the exchange before `perform`; after its delay the request continues from "repeat?".

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use hyper::body::Incoming;
use hyper::http::request::Parts;
use hyper::{Request, StatusCode};
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::World;
use super::answer::{Answer, Cut, Exchange, end, json_answer};
use super::faults::{DrawnFault, Fault, RequestKind};
use super::http::{Body, read_body};
use super::memory::{Begun, Done, Identity, Working};
use super::receipts::{Receipt, now};
use super::rules::Target;

/// The API of one simulated provider.
pub struct Face {
    /// Name in receipts and rules.
    pub provider: &'static str,
    /// Copies the headers and the path of a request to its receipt.
    pub read_head: fn(&World, &Parts, &mut Receipt),
    /// Validates a request and returns its action. Copies the fields that it reads to the receipt.
    pub validate: fn(&World, &Parts, &Bytes, &mut Receipt) -> Result<ValidRequest, Refusal>,
    /// The body of an error answer.
    pub error_body: fn(&ErrorAnswer<'_>) -> Value,
    /// The status of a permanent refusal.
    pub refuses_with: StatusCode,
    /// Whether a repeat is recognised by the stored thing itself, so that the fault `key_late` has no effect.
    pub is_natural: bool,
}

/// The content of an error answer.
#[derive(Clone, Copy)]
pub struct ErrorAnswer<'a> {
    /// Status of the answer.
    pub status: StatusCode,
    /// The reason, for a person.
    pub why: &'a str,
    /// Time after which the caller may retry.
    pub retry_after_seconds: Option<u64>,
}

impl<'a> ErrorAnswer<'a> {
    /// An error without a time for a retry.
    pub fn new(status: StatusCode, why: &'a str) -> Self {
        Self { status, why, retry_after_seconds: None }
    }
}

/// The answer to an invalid request.
pub type Refusal = (StatusCode, Value);

/// A valid request.
pub struct ValidRequest {
    /// Recognises a repeat; without an identity, every request is new.
    pub identity: Option<Identity>,
    /// The action to perform.
    pub action: Box<dyn Action>,
}

/// An action of a provider.
pub trait Action: Send + Sync {
    /// Chooses the id and builds the answer. The result is not visible to look-ups yet.
    fn perform(&self, world: &World) -> Done;

    /// Makes the action visible after its receipt is on disk. Look-ups find it from `findable_at` on.
    fn publish(&self, _world: &Arc<World>, _done: &Done, _findable_at: Instant) {}

    /// Returns the answer to a repeat.
    fn repeat(&self, _world: &World, first: Done) -> Done {
        first
    }
}

/// Handles one request: reads, validates, acts, writes the receipt and answers.
pub async fn receive(
    world: &Arc<World>,
    face: &'static Face,
    request: Request<Incoming>,
) -> Result<Answer, Cut> {
    let (head, body) = request.into_parts();
    let path = head.uri.path().to_owned();
    let mut receipt = Receipt { path, provider: Some(face.provider.to_owned()), ..Receipt::default() };
    (face.read_head)(world, &head, &mut receipt);
    let body = match read_body(body).await {
        Body::Whole(body) => body,
        Body::TooLarge => {
            receipt.at = now();
            let answer = ErrorAnswer::new(StatusCode::PAYLOAD_TOO_LARGE, "the body is larger than 1 MiB");
            return refuse(world, receipt, (answer.status, (face.error_body)(&answer))).await;
        }
        // An incomplete request does not count, so it has no receipt.
        Body::Broken => {
            let answer = ErrorAnswer::new(StatusCode::BAD_REQUEST, "the body breaks off");
            return Ok(json_answer(answer.status, &(face.error_body)(&answer)));
        }
    };
    receipt.at = now();
    receipt.body_sha256 = Some(hex::encode(Sha256::digest(&body)));
    let valid = match (face.validate)(world, &head, &body, &mut receipt) {
        Ok(valid) => valid,
        Err(refusal) => return refuse(world, receipt, refusal).await,
    };
    // A separate task, so that a client that disconnects does not cancel the action or its receipt.
    let worked = world.tasks.spawn(work(Arc::clone(world), face, receipt, valid));
    match worked.await {
        Ok(Some(exchange)) => end(world, face, exchange).await,
        Ok(None) => Err(Cut::Silence),
        Err(error) => {
            tracing::error!(?error, "the task of a request panicked");
            Err(Cut::Silence)
        }
    }
}

/// Answers a look-up or a request to sign in. It does not act, so there is no receipt.
pub async fn look_up(
    world: &World,
    face: &Face,
    to: Option<&str>,
    key: Option<&str>,
    found: impl FnOnce() -> (StatusCode, Value),
) -> Result<Answer, Cut> {
    world.counters.count_lookup();
    let drawn =
        world.draw(&Target { provider: face.provider, to, keys: [key, None], kind: RequestKind::LookUp });
    let (status, answer) = found();
    end(world, face, Exchange::new(drawn, Done::new(None, status, &answer))).await
}

/// Writes the receipt of an invalid request and answers with the refusal.
async fn refuse(world: &World, mut receipt: Receipt, refusal: Refusal) -> Result<Answer, Cut> {
    receipt.answered = Some(refusal.0.as_u16());
    if !write_receipt(world, receipt).await {
        return Err(Cut::Silence);
    }
    Ok(json_answer(refusal.0, &refusal.1))
}

/// Returns how the exchange of a valid request ends; `None` if its receipt could not be written.
async fn work(
    world: Arc<World>,
    face: &'static Face,
    mut receipt: Receipt,
    valid: ValidRequest,
) -> Option<Exchange> {
    let working = match begin(&world, &receipt, &valid).await {
        Ok(working) => working,
        Err(NotNew::Repeat(first)) => {
            world.counters.count_replay();
            let drawn = draw(&world, face, &receipt, RequestKind::Repeat);
            let acts = drawn.is_none_or(|drawn| drawn.fault.acts());
            let done = if acts { valid.action.repeat(&world, first) } else { first };
            return Some(Exchange::new(drawn, done));
        }
        Err(NotNew::Clash(refusal)) => {
            receipt.answered = Some(refusal.0.as_u16());
            let done = Done::new(None, refusal.0, &refusal.1);
            return write_receipt(&world, receipt).await.then(|| Exchange::new(None, done));
        }
    };
    let is_first = working.as_ref().is_none_or(Working::is_first);
    let drawn =
        draw(&world, face, &receipt, if is_first { RequestKind::Action } else { RequestKind::UnknownRepeat });
    match drawn {
        Some(drawn) if drawn.fault == Fault::ActLate => {
            let stuck = valid.identity.as_ref().map(|identity| world.memory.expect(identity));
            drop(working);
            receipt.fault = Some(drawn.fault);
            let written = write_receipt(&world, receipt.clone()).await;
            act_late(&world, drawn.delay, |world| async move {
                arrive_late(&world, receipt, valid, drawn.delay).await;
                drop(stuck);
            });
            let nothing_yet = Done::new(None, StatusCode::OK, &Value::Null);
            written.then(|| Exchange::new(Some(drawn), nothing_yet))
        }
        _ => act(&world, face, receipt, &valid, working, drawn).await,
    }
}

async fn act(
    world: &Arc<World>,
    face: &Face,
    mut receipt: Receipt,
    valid: &ValidRequest,
    mut working: Option<Working>,
    drawn: Option<DrawnFault>,
) -> Option<Exchange> {
    let done = valid.action.perform(world);
    let exchange = Exchange::new(drawn, done.clone());
    let fault = drawn.map(|drawn| drawn.fault);
    (receipt.fault, receipt.acted) = (fault, fault.is_none_or(Fault::acts));
    receipt.message_id = done.id.clone().filter(|_| receipt.acted);
    receipt.answered = exchange.status(face).map(|status| status.as_u16());
    let acted = receipt.acted;
    if !write_receipt(world, receipt).await {
        return None;
    }
    if acted {
        let after = |wanted| drawn.filter(|s| s.fault == wanted).map_or(Duration::ZERO, |s| s.delay);
        let now = Instant::now();
        valid.action.publish(world, &done, now + after(Fault::LookupEarly));
        if let Some(working) = &mut working {
            let late = if face.is_natural { Duration::ZERO } else { after(Fault::KeyLate) };
            working.keep(done, now + late);
        }
    }
    Some(exchange.held_by(working))
}

/// Runs `then` after a delay, unless the sim stops before. If too many requests are delayed already, runs it at once.
pub fn act_late<F, Done>(world: &Arc<World>, delay: Duration, then: F)
where
    F: FnOnce(Arc<World>) -> Done,
    Done: Future<Output = ()> + Send + 'static,
{
    let stuck = Arc::clone(&world.stuck).try_acquire_owned().ok();
    let then = then(Arc::clone(world));
    let world_of_task = Arc::clone(world);
    world.tasks.spawn(async move {
        if stuck.is_none() || world_of_task.wait(delay).await {
            then.await;
        }
        drop(stuck);
    });
}

/// Handles a request that the fault `act_late` delayed. Its answer goes nowhere.
async fn arrive_late(world: &Arc<World>, receipt: Receipt, valid: ValidRequest, delay: Duration) {
    let mut working = match begin(world, &receipt, &valid).await {
        Ok(working) => working,
        Err(NotNew::Repeat(first)) => {
            valid.action.repeat(world, first);
            world.counters.count_replay();
            return;
        }
        Err(NotNew::Clash(_)) => return,
    };
    let done = valid.action.perform(world);
    let receipt = receipt.late(delay, done.id.clone());
    if write_receipt(world, receipt).await {
        let now = Instant::now();
        valid.action.publish(world, &done, now);
        if let Some(working) = &mut working {
            working.keep(done, now);
        }
    }
}

enum NotNew {
    Repeat(Done),
    Clash(Refusal),
}

async fn begin(world: &World, receipt: &Receipt, valid: &ValidRequest) -> Result<Option<Working>, NotNew> {
    let Some(identity) = &valid.identity else { return Ok(None) };
    let body = receipt.body_sha256.as_deref().unwrap_or_default();
    match world.memory.begin(identity, body).await {
        Begun::Fresh(working) => Ok(Some(working)),
        Begun::Repeat(first) => Err(NotNew::Repeat(first)),
        Begun::Clash(clash) => Err(NotNew::Clash(
            identity.clash.map_or_else(|| (StatusCode::CONFLICT, Value::Null), |answer| answer(clash)),
        )),
    }
}

fn draw(world: &World, face: &Face, receipt: &Receipt, kind: RequestKind) -> Option<DrawnFault> {
    let name = receipt.webhook_id.as_deref().or(receipt.rkey.as_deref());
    let keys = [receipt.key.as_deref(), name];
    world.draw(&Target { provider: face.provider, to: receipt.to.as_deref(), keys, kind })
}

/// Writes a receipt. Returns whether it is on disk.
pub async fn write_receipt(world: &World, receipt: Receipt) -> bool {
    let written = world.ledger.record(receipt).await;
    if let Err(error) = &written {
        tracing::error!(?error, "the sim does not answer a request because its receipt could not be written");
    }
    written.is_ok()
}
