//! A provider that records when it was called, for which key, and what it did.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Instant,
};

use postrider_testkit::server::{Reaction, Received, Script, ScriptedServer};

/// The provider's reaction to a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Answer {
    /// It acts.
    Accepts,
    /// It acts when the test says so: see [`Provider::set`].
    Keeps,
    /// It refuses the account: provably nothing was done.
    DoesNotLetIn,
    /// It is busy for a moment: provably nothing was done.
    IsBusy,
    /// It refuses the message for good.
    Rejects,
    /// It acts, and its answer is lost.
    IsCutOff,
    /// It refuses every call of the next minute.
    AsksForAMinute,
}

impl Answer {
    fn reaction(self) -> Reaction {
        let (status, headers) = match self {
            Self::Keeps => return Reaction::Hold,
            Self::IsCutOff => return Reaction::close_after(""),
            Self::Accepts => ("200 OK", ""),
            Self::DoesNotLetIn => ("401 Unauthorized", ""),
            Self::IsBusy => ("429 Too Many Requests", "retry-after: 0\r\n"),
            Self::Rejects => ("422 Unprocessable Content", ""),
            Self::AsksForAMinute => ("429 Too Many Requests", "retry-after: 60\r\n"),
        };
        let headers = format!("{headers}content-type: application/json\r\n");
        Reaction::answer(status, &headers, r#"{"id": "counted"}"#)
    }
}

pub struct Provider {
    server: ScriptedServer,
    calls: Arc<Calls>,
}

/// The answer to the call of a key.
type Answers = Box<dyn Fn(&str) -> Answer + Send>;

struct Calls {
    answer: Mutex<Answers>,
    /// The calls, by the numbers of their requests.
    calls: Mutex<BTreeMap<usize, Call>>,
}

/// A call, as the provider recorded it.
#[derive(Debug, Clone)]
pub struct Call {
    pub key: String,
    pub at: Instant,
    pub answer: Answer,
}

impl Call {
    pub fn acted(&self) -> bool {
        matches!(self.answer, Answer::Accepts | Answer::IsCutOff)
    }
}

impl Script for Calls {
    fn react(&self, request: &Received) -> Reaction {
        let key = request.header("idempotency-key").unwrap_or_default().to_owned();
        let answer = lock(&self.answer)(&key);
        lock(&self.calls).insert(request.number, Call { key, at: request.at, answer });
        answer.reaction()
    }
}

impl Provider {
    pub fn start(answer: Answer) -> anyhow::Result<Self> {
        Self::scripted(move |_| answer)
    }

    pub fn scripted(script: impl Fn(&str) -> Answer + Send + 'static) -> anyhow::Result<Self> {
        let calls = Arc::new(Calls { answer: Mutex::new(Box::new(script)), calls: Mutex::default() });
        Ok(Self { server: ScriptedServer::start_shared(calls.clone())?, calls })
    }

    pub fn url(&self) -> String {
        self.server.url()
    }

    /// From now on every call gets this answer, and those that it keeps get it too.
    pub fn set(&self, answer: Answer) {
        *lock(&self.calls.answer) = Box::new(move |_| answer);
        self.server.changed();
    }

    pub fn calls(&self) -> Vec<Call> {
        lock(&self.calls.calls).values().cloned().collect()
    }

    /// How often it acted on each key.
    pub fn acted(&self) -> BTreeMap<String, usize> {
        let mut acted = BTreeMap::new();
        for call in self.calls().into_iter().filter(Call::acted) {
            *acted.entry(call.key).or_default() += 1;
        }
        acted
    }

    /// The most calls that it ever had at a time.
    pub fn most_under_way(&self) -> usize {
        self.server.most_under_way()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
