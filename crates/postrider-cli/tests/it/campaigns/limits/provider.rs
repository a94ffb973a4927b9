//! A provider that keeps its own count: when it was called, for which key, and what it did.

use std::{
    collections::BTreeMap,
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::Instant,
};

/// What it does with a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Answer {
    /// It acts.
    Accepts,
    /// It acts when the test says so: see [`Provider::set`].
    Keeps,
    /// It knows the account, and does not let it in: provably nothing was done.
    DoesNotLetIn,
    /// It refuses the message for good.
    Rejects,
    /// It acts, and its answer is lost.
    IsCutOff,
    /// It asks to be left alone for a minute.
    AsksForAMinute,
}

pub struct Provider {
    address: SocketAddr,
    shared: Arc<Shared>,
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    /// What to do with a key.
    script: Box<dyn Fn(&str) -> Answer + Send>,
    calls: Vec<Call>,
    under_way: usize,
    most_under_way: usize,
}

/// A call, as the provider remembers it.
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

impl Provider {
    pub fn start(answer: Answer) -> anyhow::Result<Self> {
        Self::scripted(move |_| answer)
    }

    pub fn scripted(script: impl Fn(&str) -> Answer + Send + 'static) -> anyhow::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        let state = State { script: Box::new(script), calls: Vec::new(), under_way: 0, most_under_way: 0 };
        let shared = Arc::new(Shared { state: Mutex::new(state), changed: Condvar::new() });
        let serving = Arc::clone(&shared);
        // It ends with the test's process.
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let shared = Arc::clone(&serving);
                std::thread::spawn(move || shared.serve(stream));
            }
        });
        Ok(Self { address, shared })
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// From now on every call gets this answer, and those that it keeps get it too.
    pub fn set(&self, answer: Answer) {
        self.shared.state().script = Box::new(move |_| answer);
        self.shared.changed.notify_all();
    }

    pub fn calls(&self) -> Vec<Call> {
        self.shared.state().calls.clone()
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
        self.shared.state().most_under_way
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn serve(&self, mut stream: TcpStream) -> std::io::Result<()> {
        let at = Instant::now();
        let key = read(&mut stream)?;
        let mut state = self.state();
        state.under_way += 1;
        state.most_under_way = state.most_under_way.max(state.under_way);
        let place = state.calls.len();
        let answer = (state.script)(&key);
        state.calls.push(Call { key: key.clone(), at, answer });
        let mut state = self
            .changed
            .wait_while(state, |state| (state.script)(&key) == Answer::Keeps)
            .unwrap_or_else(PoisonError::into_inner);
        let answer = if answer == Answer::Keeps { (state.script)(&key) } else { answer };
        state.calls[place].answer = answer;
        state.under_way -= 1;
        drop(state);
        let (status, headers) = match answer {
            Answer::Accepts | Answer::Keeps => ("200 OK", ""),
            Answer::DoesNotLetIn => ("401 Unauthorized", ""),
            Answer::Rejects => ("422 Unprocessable Content", ""),
            Answer::AsksForAMinute => ("429 Too Many Requests", "retry-after: 60\r\n"),
            Answer::IsCutOff => return Ok(()),
        };
        let body = r#"{"id": "counted"}"#;
        let length = body.len();
        write!(
            stream,
            "HTTP/1.1 {status}\r\n{headers}content-type: application/json\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}"
        )
    }
}

/// Reads a request, and answers with its key.
fn read(stream: &mut TcpStream) -> std::io::Result<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte)?;
        head.extend(byte);
    }
    let head = String::from_utf8_lossy(&head).into_owned();
    let header = |name: &str| {
        let mut lines = head.lines().filter_map(|line| line.split_once(": "));
        lines.find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, value)| value.to_owned())
    };
    let length = header("content-length").and_then(|length| length.parse().ok()).unwrap_or_default();
    stream.read_exact(&mut vec![0; length])?;
    Ok(header("idempotency-key").unwrap_or_default())
}
