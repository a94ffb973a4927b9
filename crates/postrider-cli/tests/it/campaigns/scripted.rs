//! Providers that follow a script: one kills its client at a moment of the call and counts what it did, the other answers when the
//! test says so.

use std::{
    collections::HashMap,
    process::Command,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
};

use postrider_testkit::server::{
    CONNECTED, HALF_OF_THE_BODY, Reaction, Received, Script, ScriptedServer, Step, answer_head,
};

/// A moment of a call, as the provider sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Stage {
    Connected,
    HalfOfTheBody,
    AllOfTheBody,
    /// It did what it was asked, and has not answered.
    Acted,
    HeadersOut,
    AnswerOut,
}

const HEADERS_OUT: &str = "headers out";
const ANSWER_OUT: &str = "answer out";

pub struct Provider {
    server: ScriptedServer,
    shared: Arc<Shared>,
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    /// When to kill the clients, call by call. The server serves one connection at a time.
    moments: Box<dyn Iterator<Item = Stage> + Send>,
    /// When to kill the client of this connection.
    moment: Option<Stage>,
    /// The process to kill, as soon as it is known.
    client: Option<u32>,
    acted: HashMap<String, usize>,
}

impl Provider {
    /// Kills at this moment of the first call, and answers well afterwards.
    pub fn start(moment: Stage) -> anyhow::Result<Self> {
        Self::kills([moment].into_iter())
    }

    /// Kills the client of every call.
    pub fn deadly() -> anyhow::Result<Self> {
        Self::kills(std::iter::repeat(Stage::Acted))
    }

    fn kills(moments: impl Iterator<Item = Stage> + Send + 'static) -> anyhow::Result<Self> {
        let state =
            State { moments: Box::new(moments), moment: None, client: None, acted: HashMap::default() };
        let shared = Arc::new(Shared { state: Mutex::new(state), changed: Condvar::new() });
        Ok(Self { server: ScriptedServer::start_serial(shared.clone())?, shared })
    }

    pub fn url(&self) -> String {
        self.server.url()
    }

    /// The process that will call. It is killed once.
    pub fn kill_when_it_comes(&self, client: u32) {
        self.shared.state().client = Some(client);
        self.shared.changed.notify_all();
    }

    /// How often it did what this key asked for.
    pub fn acted(&self, key: &str) -> usize {
        self.shared.state().acted.get(key).copied().unwrap_or_default()
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn signal(&self, name: &str) {
        let state = self.changed.wait_while(self.state(), |state| state.client.is_none());
        let mut state = state.unwrap_or_else(PoisonError::into_inner);
        let client = if name == "-KILL" { state.client.take() } else { state.client };
        let _ = Command::new("kill").args([name, &client.unwrap_or_default().to_string()]).status();
    }

    /// Kills the client if it is time. Returns whether it was.
    fn kills(&self, moment: Stage) -> bool {
        let is_time = self.state().moment == Some(moment);
        if is_time {
            self.signal("-KILL");
        }
        is_time
    }
}

impl Script for Shared {
    fn goes_on(&self, reached: &'static str) -> bool {
        let moment = match reached {
            CONNECTED => {
                let mut state = self.state();
                state.moment = state.moments.next();
                Stage::Connected
            }
            HALF_OF_THE_BODY => Stage::HalfOfTheBody,
            HEADERS_OUT => Stage::HeadersOut,
            _ => Stage::AnswerOut,
        };
        !self.kills(moment)
    }

    fn react(&self, request: &Received) -> Reaction {
        if self.kills(Stage::AllOfTheBody) {
            return Reaction::close_after("");
        }
        let key = request.header("idempotency-key").unwrap_or_default().to_owned();
        *self.state().acted.entry(key).or_default() += 1;
        if self.kills(Stage::Acted) {
            return Reaction::close_after("");
        }
        // A client that is to be killed after the answer was sent must not have the time to read it.
        let stops = matches!(self.state().moment, Some(Stage::HeadersOut | Stage::AnswerOut));
        if stops {
            self.signal("-STOP");
        }
        let body = r#"{"id": "scripted"}"#;
        let head = answer_head("200 OK", "content-type: application/json\r\n", body.len());
        Reaction::Steps(vec![
            Step::Write(head.into()),
            Step::Reached(HEADERS_OUT),
            Step::Write(body.into()),
            Step::Reached(ANSWER_OUT),
        ])
    }
}

/// A provider that answers when the test says so.
pub struct Patient {
    server: ScriptedServer,
}

/// A call that waits for its answer.
pub struct Call {
    call: postrider_testkit::server::Call,
    pub key: String,
}

impl Patient {
    pub fn start() -> anyhow::Result<Self> {
        Ok(Self { server: ScriptedServer::manual()? })
    }

    pub fn url(&self) -> String {
        self.server.url()
    }

    /// Waits for a call.
    pub async fn receive(&self) -> anyhow::Result<Call> {
        let call = self.server.receive().await?;
        let key = call.request.header("idempotency-key").unwrap_or_default().to_owned();
        Ok(Call { call, key })
    }

    /// Whether a call came that was not received.
    pub async fn is_being_called(&self) -> anyhow::Result<bool> {
        self.server.has_more_connections().await
    }
}

impl Call {
    pub fn accept(self) {
        self.answer("200 OK", "");
    }

    /// Asks the client to call again after so many seconds.
    pub fn put_off(self, seconds: u32) {
        self.answer("429 Too Many Requests", &format!("retry-after: {seconds}\r\n"));
    }

    fn answer(self, status: &str, headers: &str) {
        self.call.answer(Reaction::answer(status, headers, r#"{"id": "patient"}"#));
    }
}
