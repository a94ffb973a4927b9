//! A real NATS server, which is started, killed and started again.

use std::{
    io::{BufRead, BufReader},
    net::TcpListener,
    process::{Child, Command, Stdio},
    thread,
};

use async_nats::jetstream::{self, stream};
use postrider_model::{EventSink, SinkError};
use postrider_providers::{NatsCredentials, NatsSink, NatsSinkConfig, sinks};
use tempfile::TempDir;

use crate::event;

/// A server with its own store. Dropping the value kills it.
struct Nats {
    process: Child,
    port: u16,
    store: TempDir,
}

impl Nats {
    fn start() -> Self {
        Self::start_with(-1, tempfile::tempdir().unwrap(), &[])
    }

    /// Port -1 is any port.
    fn start_with(port: i32, store: TempDir, more: &[&str]) -> Self {
        let mut process = Command::new("nats-server")
            .args(["-js", "-a", "127.0.0.1", "-p", &port.to_string(), "-sd", store.path().to_str().unwrap()])
            .args(more)
            .stderr(Stdio::piped())
            .spawn()
            .expect("nats-server is missing; run `make setup` or `apt-get install nats-server`");
        let mut log = BufReader::new(process.stderr.take().unwrap()).lines();
        let (mut port, mut so_far) = (None, String::new());
        for line in log.by_ref().map_while(Result::ok) {
            if let Some((_, address)) = line.split_once("client connections on 127.0.0.1:") {
                port = address.trim().parse().ok();
            }
            if line.contains("Server is ready") {
                break;
            }
            so_far.push_str(&line);
            so_far.push('\n');
        }
        // A thread must read the log, or the server would block on a full pipe.
        thread::spawn(move || log.for_each(drop));
        let port = port.unwrap_or_else(|| panic!("nats-server did not start:\n{so_far}"));
        Self { process, port, store }
    }

    /// Kills the server without a shutdown.
    fn kill(mut self) -> (u16, TempDir) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
        let store = std::mem::replace(&mut self.store, tempfile::tempdir().unwrap());
        (self.port, store)
    }

    async fn create_stream(&self) -> stream::Stream {
        let client = async_nats::connect(format!("127.0.0.1:{}", self.port)).await.unwrap();
        let config = stream::Config {
            name: "EVENTS".to_owned(),
            subjects: vec!["test.events.>".to_owned()],
            ..stream::Config::default()
        };
        jetstream::new(client).get_or_create_stream(config).await.unwrap()
    }
}

impl Drop for Nats {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn sink(port: u16, credentials: Option<NatsCredentials>) -> NatsSink {
    let servers = vec![format!("nats://127.0.0.1:{port}").parse().unwrap()];
    NatsSink::new(NatsSinkConfig { servers, subject: "test.events".to_owned(), credentials }).unwrap()
}

async fn messages(stream: &mut stream::Stream) -> u64 {
    stream.info().await.unwrap().state.messages
}

#[tokio::test]
async fn an_event_is_in_the_stream_once_however_often_it_is_delivered() {
    let nats = Nats::start();
    let mut stream = nats.create_stream().await;
    let first = sink(nats.port, None);
    for _ in 0..3 {
        first.deliver(&event(7)).await.unwrap();
    }
    // Another process has other connections and does not know the first delivery.
    sink(nats.port, None).deliver(&event(7)).await.unwrap();
    assert_eq!(messages(&mut stream).await, 1);

    let stored = stream.get_raw_message(1).await.unwrap();
    assert_eq!(stored.subject.as_str(), "test.events.order.placed");
    assert_eq!(stored.payload, sinks::body(&event(7)));
    assert_eq!(stored.headers.get("Nats-Msg-Id").map(ToString::to_string), Some("7".to_owned()));

    first.deliver(&event(8)).await.unwrap();
    assert_eq!(messages(&mut stream).await, 2);
}

#[tokio::test]
async fn every_event_type_arrives() {
    let nats = Nats::start();
    let mut stream = nats.create_stream().await;
    let sink = sink(nats.port, None);
    let types = ["order placed", "*", ">", "a..b", ".a", "a.", ".", "été", "a.*.>", "$SYS.x"];
    for (event_type, id) in types.iter().zip(1..) {
        let mut event = event(id);
        event.event_type = (*event_type).to_owned();
        sink.deliver(&event).await.unwrap_or_else(|error| panic!("{event_type}: {error}"));
    }
    assert_eq!(messages(&mut stream).await, types.len() as u64);
}

#[tokio::test]
async fn without_a_stream_an_event_is_refused_with_the_command_that_helps() {
    let nats = Nats::start();
    let sink = sink(nats.port, None);
    let error = sink.deliver(&event(1)).await.unwrap_err();
    let SinkError::Refused { reason } = error else { panic!("{error:?}") };
    assert!(reason.contains("no stream takes `test.events.order.placed`"), "{reason}");
    assert!(reason.contains("nats stream add EVENTS --subjects 'test.events.>'"), "{reason}");

    let mut stream = nats.create_stream().await;
    sink.deliver(&event(1)).await.unwrap();
    assert_eq!(messages(&mut stream).await, 1);
}

#[tokio::test]
async fn a_stream_that_is_full_refuses_in_its_own_words() {
    let nats = Nats::start();
    let client = async_nats::connect(format!("127.0.0.1:{}", nats.port)).await.unwrap();
    let config = stream::Config {
        name: "SMALL".to_owned(),
        subjects: vec!["test.events.>".to_owned()],
        max_messages: 1,
        discard: stream::DiscardPolicy::New,
        ..stream::Config::default()
    };
    jetstream::new(client).create_stream(config).await.unwrap();
    let sink = sink(nats.port, None);
    sink.deliver(&event(1)).await.unwrap();
    let error = sink.deliver(&event(2)).await.unwrap_err();
    assert!(
        matches!(&error, SinkError::Refused { reason } if reason.contains("maximum messages")),
        "{error}"
    );
}

#[tokio::test]
async fn delivery_goes_on_after_the_server_was_killed_and_started_again() {
    let nats = Nats::start();
    nats.create_stream().await;
    let sink = sink(nats.port, None);
    sink.deliver(&event(1)).await.unwrap();

    let (port, store) = nats.kill();
    // The server is down: the request may have been lost or never sent, but the event is not delivered.
    let error = sink.deliver(&event(2)).await.unwrap_err();
    assert!(matches!(error.kind(), "unreachable" | "unanswered"), "{error}");

    let nats = Nats::start_with(port.into(), store, &[]);
    // Each try waits for the connection by itself.
    let mut tries = 0;
    while let Err(error) = sink.deliver(&event(2)).await {
        tries += 1;
        assert!(tries < 10, "still not delivered: {error}");
    }
    sink.deliver(&event(1)).await.unwrap();
    assert_eq!(messages(&mut nats.create_stream().await).await, 2, "the stream remembers what it has");
}

#[tokio::test]
async fn a_sink_can_be_made_while_the_server_is_down() {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let sink = sink(port, None);
    for _ in 0..2 {
        let error = sink.deliver(&event(1)).await.unwrap_err();
        let SinkError::Unreachable { reason } = error else { panic!("{error:?}") };
        assert!(reason.contains("Connection refused"), "{reason}");
    }
    let nats = Nats::start_with(port.into(), tempfile::tempdir().unwrap(), &[]);
    let mut stream = nats.create_stream().await;
    sink.deliver(&event(1)).await.unwrap();
    assert_eq!(messages(&mut stream).await, 1);
}

#[tokio::test]
async fn credentials_are_used_and_never_shown() {
    let nats = Nats::start_with(-1, tempfile::tempdir().unwrap(), &["--auth", "hunter2"]);
    for wrong in [None, Some(NatsCredentials::Token("hunter3".into()))] {
        let error = sink(nats.port, wrong).deliver(&event(1)).await.unwrap_err();
        assert_eq!(error.kind(), "unreachable", "{error}");
        assert!(error.to_string().contains("authorization violation"), "{error}");
        assert!(!error.to_string().contains("hunter"), "{error}");
    }
    let right = Some(NatsCredentials::Token("hunter2".into()));
    let error = sink(nats.port, right).deliver(&event(1)).await.unwrap_err();
    assert_eq!(error.kind(), "refused", "the login succeeds, but there is no stream: {error}");
}
