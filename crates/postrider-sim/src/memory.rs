//! The memory of providers: they answer a repeat of an accepted request with the first answer.
//!
//! ```text
//! begin ─► Fresh(Working) ── keep ──► remembered until its time is over, or 100,000 newer requests are stored
//!              └─ dropped without `keep`: nothing is remembered
//! ```
//!
//! A restarted sim remembers nothing; only its receipts file continues.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use hyper::StatusCode;
use serde_json::Value;
use tokio::sync::watch;

/// Maximum number of remembered answers, over all faces.
const REMEMBERED_MAX: usize = 100_000;

/// A performed action and its answer.
#[derive(Clone, Debug)]
pub struct Done {
    /// Id of the action, if it has one.
    pub id: Option<String>,
    /// The status of the answer.
    pub status: StatusCode,
    /// The body of the answer.
    pub answer: Arc<str>,
}

impl Done {
    /// An action with this answer.
    pub fn new(id: Option<String>, status: StatusCode, answer: &Value) -> Self {
        Self { id, status, answer: answer.to_string().into() }
    }
}

/// Recognises the repeats of a request.
pub struct Identity {
    /// Equal for repeats only.
    pub name: String,
    /// Time for which the request is remembered.
    pub life: Duration,
    /// The answer to a repeat that conflicts with the first request. A face without it waits until the first has ended, and
    /// does not compare bodies.
    pub clash: Option<fn(Clash) -> (StatusCode, Value)>,
}

/// Why a repeat conflicts with the first request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clash {
    /// The first is under way.
    UnderWay,
    /// The bodies differ.
    OtherBody,
}

/// The result of [`Memory::begin`].
pub enum Begun {
    /// A new request, reserved by the value.
    Fresh(Working),
    /// A repeat of an accepted request.
    Repeat(Done),
    /// A conflict with an accepted request or one under way.
    Clash(Clash),
}

struct Remembered {
    body: String,
    done: Done,
    /// Until this time a repeat counts as new.
    from: Instant,
    until: Instant,
    nth: u64,
}

enum Slot {
    Working { body: String, ended: watch::Receiver<()> },
    Remembered(Remembered),
}

/// See the [module](self).
#[derive(Default)]
pub struct Memory(Mutex<Inner>);

#[derive(Default)]
struct Inner {
    slots: HashMap<String, Slot>,
    /// Oldest first; a replaced entry has another number.
    order: VecDeque<(u64, String)>,
    count: u64,
    /// Number of delayed requests by name.
    stuck: HashMap<String, usize>,
}

impl Memory {
    /// Classifies a request, and reserves its name if it is new.
    pub async fn begin(self: &Arc<Self>, identity: &Identity, body: &str) -> Begun {
        loop {
            let mut under_way = match self.try_begin(identity, body) {
                Ok(begun) => return begun,
                Err(under_way) => under_way,
            };
            // The sender is dropped at the end, which `changed` reports as an error.
            let _ = under_way.changed().await;
        }
    }

    fn try_begin(self: &Arc<Self>, identity: &Identity, body: &str) -> Result<Begun, watch::Receiver<()>> {
        let now = Instant::now();
        let mut inner = self.lock();
        let earlier = match inner.slots.get(&identity.name) {
            Some(Slot::Working { body: first, ended }) => {
                return match identity.clash {
                    None => Err(ended.clone()),
                    Some(_) if first != body => Ok(Begun::Clash(Clash::OtherBody)),
                    Some(_) => Ok(Begun::Clash(Clash::UnderWay)),
                };
            }
            Some(Slot::Remembered(first)) if first.from <= now && now < first.until => {
                let fits = identity.clash.is_none() || first.body == body;
                let clash = Begun::Clash(Clash::OtherBody);
                return Ok(if fits { Begun::Repeat(first.done.clone()) } else { clash });
            }
            Some(Slot::Remembered(_)) => inner.slots.remove(&identity.name),
            None => None,
        };
        let (ends, ended) = watch::channel(());
        inner.slots.insert(identity.name.clone(), Slot::Working { body: body.to_owned(), ended });
        let remembered = match earlier {
            // The first answer is not recognised yet, and must stay if this request is dropped.
            Some(Slot::Remembered(first)) if now < first.until => Some(first),
            _ => None,
        };
        let is_first = remembered.is_none() && !inner.stuck.contains_key(&identity.name);
        let (memory, name, body) = (Arc::clone(self), identity.name.clone(), body.to_owned());
        let life = identity.life;
        Ok(Begun::Fresh(Working { memory, name, body, life, is_first, remembered, _ends: ends }))
    }

    /// Registers a delayed request of this name, until the returned value is dropped.
    pub fn expect(self: &Arc<Self>, identity: &Identity) -> Stuck {
        *self.lock().stuck.entry(identity.name.clone()).or_default() += 1;
        Stuck { memory: Arc::clone(self), name: identity.name.clone() }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The reservation of a new request. Dropping it stores the answer of [`Working::keep`], if there is one.
pub struct Working {
    memory: Arc<Memory>,
    name: String,
    body: String,
    life: Duration,
    is_first: bool,
    remembered: Option<Remembered>,
    _ends: watch::Sender<()>,
}

/// A delayed request.
pub struct Stuck {
    memory: Arc<Memory>,
    name: String,
}

impl Drop for Stuck {
    fn drop(&mut self) {
        let mut inner = self.memory.lock();
        if let Some(count) = inner.stuck.get_mut(&self.name) {
            *count -= 1;
            if *count == 0 {
                inner.stuck.remove(&self.name);
            }
        }
    }
}

impl Working {
    /// Whether no earlier request has this name: none with a late key, and none delayed.
    pub fn is_first(&self) -> bool {
        self.is_first
    }

    /// Remembers the performed action. A repeat is recognised from `from` on.
    pub fn keep(&mut self, done: Done, from: Instant) {
        let body = std::mem::take(&mut self.body);
        self.remembered = Some(Remembered { body, done, from, until: from + self.life, nth: 0 });
    }
}

impl Drop for Working {
    fn drop(&mut self) {
        let mut inner = self.memory.lock();
        let name = std::mem::take(&mut self.name);
        match self.remembered.take() {
            None => {
                inner.slots.remove(&name);
            }
            Some(remembered) => inner.remember(name, remembered),
        }
    }
}

impl Inner {
    fn remember(&mut self, name: String, mut remembered: Remembered) {
        self.count += 1;
        remembered.nth = self.count;
        self.order.push_back((self.count, name.clone()));
        self.slots.insert(name, Slot::Remembered(remembered));
        while self.order.len() > REMEMBERED_MAX {
            let Some((nth, name)) = self.order.pop_front() else { return };
            if matches!(self.slots.get(&name), Some(Slot::Remembered(oldest)) if oldest.nth == nth) {
                self.slots.remove(&name);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(name: &str, life: Duration) -> Identity {
        let clash = Some((|_| (StatusCode::CONFLICT, Value::Null)) as fn(Clash) -> (StatusCode, Value));
        Identity { name: name.to_owned(), life, clash }
    }

    fn done(id: &str) -> Done {
        Done::new(Some(id.to_owned()), StatusCode::OK, &Value::Null)
    }

    async fn id_of_repeat(memory: &Arc<Memory>, name: &str) -> Option<String> {
        match memory.begin(&identity(name, Duration::MAX / 4), "body").await {
            Begun::Repeat(done) => done.id,
            Begun::Fresh(_) | Begun::Clash(_) => None,
        }
    }

    async fn fresh(memory: &Arc<Memory>, name: &str, life: Duration) -> Working {
        match memory.begin(&identity(name, life), "body").await {
            Begun::Fresh(working) => working,
            Begun::Repeat(_) | Begun::Clash(_) => panic!("not fresh"),
        }
    }

    const HOUR: Duration = Duration::from_secs(3600);

    #[tokio::test]
    async fn a_kept_answer_is_repeated_and_a_dropped_reservation_is_not() {
        let memory = Arc::new(Memory::default());
        drop(fresh(&memory, "a", HOUR).await);
        let mut working = fresh(&memory, "a", HOUR).await;
        assert!(matches!(memory.begin(&identity("a", HOUR), "body").await, Begun::Clash(Clash::UnderWay)));
        working.keep(done("1"), Instant::now());
        drop(working);
        assert_eq!(id_of_repeat(&memory, "a").await.as_deref(), Some("1"));
        assert!(matches!(memory.begin(&identity("a", HOUR), "other").await, Begun::Clash(Clash::OtherBody)));
    }

    #[tokio::test]
    async fn an_expired_answer_is_forgotten() {
        let memory = Arc::new(Memory::default());
        fresh(&memory, "a", Duration::ZERO).await.keep(done("1"), Instant::now());
        fresh(&memory, "a", HOUR).await.keep(done("2"), Instant::now());
        assert_eq!(id_of_repeat(&memory, "a").await.as_deref(), Some("2"));
    }

    #[tokio::test]
    async fn an_answer_with_a_late_key_survives_a_dropped_reservation() {
        let memory = Arc::new(Memory::default());
        let soon = Instant::now() + Duration::from_millis(50);
        fresh(&memory, "a", HOUR).await.keep(done("1"), soon);
        // Until then each call reserves the name and drops the reservation.
        while id_of_repeat(&memory, "a").await.is_none() {
            assert!(soon.elapsed() < Duration::from_secs(20), "the answer is never recognised");
            assert!(memory.lock().slots.contains_key("a"));
            tokio::task::yield_now().await;
        }
        assert!(Instant::now() >= soon);
    }

    #[tokio::test]
    async fn a_face_without_conflicts_waits_for_the_first_request() {
        let memory = Arc::new(Memory::default());
        let identity = || Identity { clash: None, ..identity("a", HOUR) };
        let mut working = fresh(&memory, "a", HOUR).await;
        let second = tokio::spawn({
            let (memory, identity) = (Arc::clone(&memory), identity());
            async move { matches!(memory.begin(&identity, "other").await, Begun::Repeat(_)) }
        });
        tokio::task::yield_now().await;
        working.keep(done("1"), Instant::now());
        drop(working);
        assert!(second.await.unwrap());
    }

    #[tokio::test]
    async fn the_oldest_answers_are_dropped_when_the_memory_is_full() {
        let memory = Arc::new(Memory::default());
        for n in 0..=REMEMBERED_MAX {
            fresh(&memory, &n.to_string(), HOUR).await.keep(done("1"), Instant::now());
        }
        let inner = memory.lock();
        assert_eq!((inner.slots.len(), inner.order.len()), (REMEMBERED_MAX, REMEMBERED_MAX));
        assert!(!inner.slots.contains_key("0"));
    }
}
