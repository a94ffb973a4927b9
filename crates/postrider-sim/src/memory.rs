//! What providers remember: a request that is the same as one they took is answered with what they answered then.
//!
//! ```text
//! begin ─► Fresh(Working) ── keep ──► remembered until its time is over, or a hundred thousand others came
//!              └─ dropped without: as if it had never begun
//! ```
//!
//! It lives in memory. A sim that starts again remembers nothing; its receipts file goes on.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use hyper::StatusCode;
use serde_json::Value;
use tokio::sync::watch;

/// How many answers are remembered, over all faces.
const REMEMBERED_MAX: usize = 100_000;

/// What was done, and what is said about it.
#[derive(Clone, Debug)]
pub struct Done {
    /// The name of what was done, if it has one.
    pub id: Option<String>,
    /// The status of the answer.
    pub status: StatusCode,
    /// The body of the answer.
    pub answer: Arc<str>,
}

impl Done {
    /// With this answer.
    pub fn new(id: Option<String>, status: StatusCode, answer: &Value) -> Self {
        Self { id, status, answer: answer.to_string().into() }
    }
}

/// By what a request is recognised.
pub struct Identity {
    /// The same for the same thing, and for nothing else.
    pub name: String,
    /// How long it is remembered.
    pub life: Duration,
    /// What is said about a repeat that does not fit. A face without such words waits for the first to end, and does not
    /// compare bodies.
    pub clash: Option<fn(Clash) -> (StatusCode, Value)>,
}

/// Why a repeat does not fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clash {
    /// The first is still being worked on.
    UnderWay,
    /// The first had another body.
    OtherBody,
}

/// What a request turned out to be.
pub enum Begun {
    /// New, and reserved for its holder.
    Fresh(Working),
    /// The same as one that was taken.
    Repeat(Done),
    /// Like one that was taken, or is being worked on.
    Clash(Clash),
}

struct Remembered {
    body: String,
    done: Done,
    /// Until then a repeat is taken for new.
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
    /// Oldest first; one that was replaced has another number.
    order: VecDeque<(u64, String)>,
    count: u64,
    /// How many requests of a name are on their way.
    stuck: HashMap<String, usize>,
}

impl Memory {
    /// Says what a request is, and reserves its name if it is new.
    pub async fn begin(self: &Arc<Self>, identity: &Identity, body: &str) -> Begun {
        loop {
            let mut under_way = match self.try_begin(identity, body) {
                Ok(begun) => return begun,
                Err(under_way) => under_way,
            };
            // It ends by being dropped, which is an error to the one who waits.
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
        let leaves = match earlier {
            // Not known yet, and not to be forgotten if this one comes to nothing.
            Some(Slot::Remembered(first)) if now < first.until => Some(first),
            _ => None,
        };
        let is_first = leaves.is_none() && !inner.stuck.contains_key(&identity.name);
        let (memory, name, body) = (Arc::clone(self), identity.name.clone(), body.to_owned());
        let life = identity.life;
        Ok(Begun::Fresh(Working { memory, name, body, life, is_first, leaves, _ends: ends }))
    }

    /// One of this name is on its way, for as long as the answer is held.
    pub fn expect(self: &Arc<Self>, identity: &Identity) -> Stuck {
        *self.lock().stuck.entry(identity.name.clone()).or_default() += 1;
        Stuck { memory: Arc::clone(self), name: identity.name.clone() }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The right to work on a request that is new. What it leaves behind is known once it is dropped.
pub struct Working {
    memory: Arc<Memory>,
    name: String,
    body: String,
    life: Duration,
    is_first: bool,
    leaves: Option<Remembered>,
    _ends: watch::Sender<()>,
}

/// A request that is on its way.
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
    /// Whether nobody ever sent the like: no key that is stored late, and nothing on its way.
    pub fn is_first(&self) -> bool {
        self.is_first
    }

    /// It was done. A repeat is recognised from `from` on.
    pub fn keep(&mut self, done: Done, from: Instant) {
        let body = std::mem::take(&mut self.body);
        self.leaves = Some(Remembered { body, done, from, until: from + self.life, nth: 0 });
    }
}

impl Drop for Working {
    fn drop(&mut self) {
        let mut inner = self.memory.lock();
        let name = std::mem::take(&mut self.name);
        match self.leaves.take() {
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
    async fn what_was_kept_is_repeated_and_what_came_to_nothing_is_not() {
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
    async fn what_is_over_is_forgotten() {
        let memory = Arc::new(Memory::default());
        fresh(&memory, "a", Duration::ZERO).await.keep(done("1"), Instant::now());
        fresh(&memory, "a", HOUR).await.keep(done("2"), Instant::now());
        assert_eq!(id_of_repeat(&memory, "a").await.as_deref(), Some("2"));
    }

    #[tokio::test]
    async fn what_is_not_known_yet_survives_a_request_that_comes_to_nothing() {
        let memory = Arc::new(Memory::default());
        let soon = Instant::now() + Duration::from_millis(50);
        fresh(&memory, "a", HOUR).await.keep(done("1"), soon);
        // Until then each of these begins something new, and drops it.
        while id_of_repeat(&memory, "a").await.is_none() {
            assert!(soon.elapsed() < Duration::from_secs(20), "it is never known");
            assert!(memory.lock().slots.contains_key("a"));
            tokio::task::yield_now().await;
        }
        assert!(Instant::now() >= soon);
    }

    #[tokio::test]
    async fn a_face_that_cannot_clash_waits_for_the_first() {
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
    async fn no_more_is_remembered_than_there_is_room_for() {
        let memory = Arc::new(Memory::default());
        for n in 0..=REMEMBERED_MAX {
            fresh(&memory, &n.to_string(), HOUR).await.keep(done("1"), Instant::now());
        }
        let inner = memory.lock();
        assert_eq!((inner.slots.len(), inner.order.len()), (REMEMBERED_MAX, REMEMBERED_MAX));
        assert!(!inner.slots.contains_key("0"));
    }
}
