//! What every HTTP face does with a request that is to be acted on.
//!
//! ```text
//! read ─► judge ─► seen before? ─ no ──► draw a fault ─► perform ─► receipt on disk ─► list it ─► answer, well or badly
//!                       └─ yes ─► draw a fault ─► the first answer again; no receipt, for nothing was done
//! ```
//!
//! A fault `act_late` leaves the line before it performs, and takes it up again from "seen before?" after its delay.

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
use super::faults::{Asked, Fault, Strike};
use super::http::{Body, read_body};
use super::memory::{Begun, Done, Identity, Working};
use super::receipts::{Receipt, now};
use super::rules::Target;

/// A provider as its callers see it.
pub struct Face {
    /// Its name, in receipts and rules.
    pub provider: &'static str,
    /// Writes down what the head of a request says.
    pub note: fn(&World, &Parts, &mut Receipt),
    /// Decides whether a request is good, and what is to be done. Writes down what it learns.
    pub judge: fn(&World, &Parts, &Bytes, &mut Receipt) -> Result<Order, Refusal>,
    /// How it words that something is wrong.
    pub say: fn(&Wrong<'_>) -> Value,
    /// The status with which it says "no, and do not ask again".
    pub refuses_with: StatusCode,
    /// Whether a second action under the same name is the first: a name is known as soon as something is there.
    pub is_natural: bool,
}

/// Something that is wrong.
#[derive(Clone, Copy)]
pub struct Wrong<'a> {
    /// The status that says so.
    pub status: StatusCode,
    /// What it is.
    pub why: &'a str,
    /// When it may be over.
    pub retry_after_seconds: Option<u64>,
}

impl<'a> Wrong<'a> {
    /// It may never be over.
    pub fn new(status: StatusCode, why: &'a str) -> Self {
        Self { status, why, retry_after_seconds: None }
    }
}

/// What is said to a request that is not good.
pub type Refusal = (StatusCode, Value);

/// A good request.
pub struct Order {
    /// By what a repeat is recognised; without one, every request is new.
    pub identity: Option<Identity>,
    /// What is to be done.
    pub deed: Box<dyn Deed>,
}

/// Something that a provider does when it is asked.
pub trait Deed: Send + Sync {
    /// Names what is done and words the answer. Nobody can see it yet.
    fn perform(&self, world: &World) -> Done;

    /// It was done and is on disk: now others may see it, those who look it up from `findable_at` on.
    fn enter(&self, _world: &Arc<World>, _done: &Done, _findable_at: Instant) {}

    /// The answer to the same request again.
    fn again(&self, _world: &World, first: Done) -> Done {
        first
    }
}

/// Takes one request, from its first byte to its end.
pub async fn receive(
    world: &Arc<World>,
    face: &'static Face,
    request: Request<Incoming>,
) -> Result<Answer, Cut> {
    let (head, body) = request.into_parts();
    let path = head.uri.path().to_owned();
    let mut receipt = Receipt { path, provider: Some(face.provider.to_owned()), ..Receipt::default() };
    (face.note)(world, &head, &mut receipt);
    let body = match read_body(body).await {
        Body::Whole(body) => body,
        Body::TooLarge => {
            receipt.at = now();
            let wrong = Wrong::new(StatusCode::PAYLOAD_TOO_LARGE, "the body is larger than 1 MiB");
            return refuse(world, receipt, (wrong.status, (face.say)(&wrong))).await;
        }
        // Half a request is not one: nothing was received, and nothing is written down.
        Body::Broken => {
            let wrong = Wrong::new(StatusCode::BAD_REQUEST, "the body breaks off");
            return Ok(json_answer(wrong.status, &(face.say)(&wrong)));
        }
    };
    receipt.at = now();
    receipt.body_sha256 = Some(hex::encode(Sha256::digest(&body)));
    let order = match (face.judge)(world, &head, &body, &mut receipt) {
        Ok(order) => order,
        Err(refusal) => return refuse(world, receipt, refusal).await,
    };
    // A task of its own: a client that hangs up in the middle takes nothing back, and what was done is remembered.
    let worked = world.tasks.spawn(work(Arc::clone(world), face, receipt, order));
    match worked.await {
        Ok(Some(exchange)) => end(world, face, exchange).await,
        Ok(None) => Err(Cut::Silence),
        Err(error) => {
            tracing::error!(?error, "the sim broke off in the middle of a request");
            Err(Cut::Silence)
        }
    }
}

/// Answers a question, or a request to sign in. Nothing is done, so there is no receipt.
pub async fn look_up(
    world: &World,
    face: &Face,
    to: Option<&str>,
    key: Option<&str>,
    found: impl FnOnce() -> (StatusCode, Value),
) -> Result<Answer, Cut> {
    world.noted.count_lookup();
    let strike = world.draw(&Target { provider: face.provider, to, keys: [key, None], asked: Asked::ToLook });
    let (status, answer) = found();
    end(world, face, Exchange::new(strike, Done::new(None, status, &answer))).await
}

/// Writes down a request that was not good, and says so.
async fn refuse(world: &World, mut receipt: Receipt, refusal: Refusal) -> Result<Answer, Cut> {
    receipt.answered = Some(refusal.0.as_u16());
    if !write_down(world, receipt).await {
        return Err(Cut::Silence);
    }
    Ok(json_answer(refusal.0, &refusal.1))
}

/// How the exchange about a good request ends; nothing when its receipt could not be written.
async fn work(
    world: Arc<World>,
    face: &'static Face,
    mut receipt: Receipt,
    order: Order,
) -> Option<Exchange> {
    let working = match begin(&world, &receipt, &order).await {
        Ok(working) => working,
        Err(Known::Repeat(first)) => {
            world.noted.count_replay();
            let strike = draw(&world, face, &receipt, Asked::Again);
            let acts = strike.is_none_or(|strike| strike.fault.acts());
            let done = if acts { order.deed.again(&world, first) } else { first };
            return Some(Exchange::new(strike, done));
        }
        Err(Known::Clash(refusal)) => {
            receipt.answered = Some(refusal.0.as_u16());
            let done = Done::new(None, refusal.0, &refusal.1);
            return write_down(&world, receipt).await.then(|| Exchange::new(None, done));
        }
    };
    let is_first = working.as_ref().is_none_or(Working::is_first);
    let strike = draw(&world, face, &receipt, if is_first { Asked::ToAct } else { Asked::ToActAgain });
    match strike {
        Some(strike) if strike.fault == Fault::ActLate => {
            let stuck = order.identity.as_ref().map(|identity| world.memory.expect(identity));
            drop(working);
            receipt.fault = Some(strike.fault);
            let written = write_down(&world, receipt.clone()).await;
            act_late(&world, strike.delay, |world| async move {
                arrive_late(&world, receipt, order, strike.delay).await;
                drop(stuck);
            });
            let nothing_yet = Done::new(None, StatusCode::OK, &Value::Null);
            written.then(|| Exchange::new(Some(strike), nothing_yet))
        }
        _ => act(&world, face, receipt, &order, working, strike).await,
    }
}

async fn act(
    world: &Arc<World>,
    face: &Face,
    mut receipt: Receipt,
    order: &Order,
    mut working: Option<Working>,
    strike: Option<Strike>,
) -> Option<Exchange> {
    let done = order.deed.perform(world);
    let exchange = Exchange::new(strike, done.clone());
    let fault = strike.map(|strike| strike.fault);
    (receipt.fault, receipt.acted) = (fault, fault.is_none_or(Fault::acts));
    receipt.message_id = done.id.clone().filter(|_| receipt.acted);
    receipt.answered = exchange.status(face).map(|status| status.as_u16());
    let acted = receipt.acted;
    if !write_down(world, receipt).await {
        return None;
    }
    if acted {
        let after = |wanted| strike.filter(|s| s.fault == wanted).map_or(Duration::ZERO, |s| s.delay);
        let now = Instant::now();
        order.deed.enter(world, &done, now + after(Fault::LookupEarly));
        if let Some(working) = &mut working {
            let late = if face.is_natural { Duration::ZERO } else { after(Fault::KeyLate) };
            working.keep(done, now + late);
        }
    }
    Some(exchange.held_by(working))
}

/// Runs something after a delay, unless the sim stops before. When too much is stuck already, it runs at once.
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

/// A request comes out of the proxy it was stuck in. Nobody listens to the answer.
async fn arrive_late(world: &Arc<World>, receipt: Receipt, order: Order, delay: Duration) {
    let mut working = match begin(world, &receipt, &order).await {
        Ok(working) => working,
        Err(Known::Repeat(first)) => {
            order.deed.again(world, first);
            world.noted.count_replay();
            return;
        }
        Err(Known::Clash(_)) => return,
    };
    let done = order.deed.perform(world);
    let receipt = receipt.late(delay, done.id.clone());
    if write_down(world, receipt).await {
        let now = Instant::now();
        order.deed.enter(world, &done, now);
        if let Some(working) = &mut working {
            working.keep(done, now);
        }
    }
}

enum Known {
    Repeat(Done),
    Clash(Refusal),
}

async fn begin(world: &World, receipt: &Receipt, order: &Order) -> Result<Option<Working>, Known> {
    let Some(identity) = &order.identity else { return Ok(None) };
    let body = receipt.body_sha256.as_deref().unwrap_or_default();
    match world.memory.begin(identity, body).await {
        Begun::Fresh(working) => Ok(Some(working)),
        Begun::Repeat(first) => Err(Known::Repeat(first)),
        Begun::Clash(clash) => Err(Known::Clash(
            identity.clash.map_or_else(|| (StatusCode::CONFLICT, Value::Null), |say| say(clash)),
        )),
    }
}

fn draw(world: &World, face: &Face, receipt: &Receipt, asked: Asked) -> Option<Strike> {
    let name = receipt.webhook_id.as_deref().or(receipt.rkey.as_deref());
    let keys = [receipt.key.as_deref(), name];
    world.draw(&Target { provider: face.provider, to: receipt.to.as_deref(), keys, asked })
}

/// Whether it is on disk.
pub async fn write_down(world: &World, receipt: Receipt) -> bool {
    let written = world.ledger.record(receipt).await;
    if let Err(error) = &written {
        tracing::error!(?error, "a request was left unanswered because its receipt could not be written");
    }
    written.is_ok()
}
