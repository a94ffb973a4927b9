//! Faults of a server: each is one request, a bounded wait, and the right error.

use std::time::{Duration, Instant};

use postrider_providers::guard::{ANSWER_BYTES_MAX, Answer, CallError, Ending, GuardedClient, Limits, Reuse};
use reqwest::{Method, Request, StatusCode};
use tokio::{net::TcpListener, task::JoinSet};
use url::Url;

use crate::{
    HASTY, PATIENT, client,
    server::{Reaction, Server, Traffic},
};

fn post(url: Url) -> Request {
    let mut request = Request::new(Method::POST, url);
    *request.body_mut() = Some("{}".into());
    request
}

/// One call with a new connection, and all that arrived at the server.
async fn call(reaction: Reaction, limits: Limits) -> (Result<Answer, CallError>, Traffic) {
    call_with(client(limits), reaction).await
}

async fn call_with(client: GuardedClient, reaction: Reaction) -> (Result<Answer, CallError>, Traffic) {
    let server = Server::start(reaction);
    let answer = client.send(post(server.url()), Reuse::Never).await;
    drop(client);
    (answer, server.traffic().await)
}

fn bytes(text: &str) -> Vec<u8> {
    text.as_bytes().to_vec()
}

#[tokio::test]
async fn a_request_that_may_have_arrived_is_unanswered_and_is_never_sent_again() {
    let endless_header = Reaction::repeat(bytes("HTTP/1.1 200 OK\r\nx: "), vec![b'x'; 4096]);
    let endless_headers = Reaction::repeat(bytes("HTTP/1.1 200 OK\r\n"), bytes(&"x: y\r\n".repeat(100)));
    let endless_continue = Reaction::repeat("", bytes("HTTP/1.1 100 Continue\r\n\r\n"));
    let faults = [
        ("closed without a word", Reaction::close_after(""), PATIENT),
        ("reset", Reaction::reset(), PATIENT),
        ("half a status line", Reaction::close_after(bytes("HTTP/1.1 20")), PATIENT),
        ("half a head", Reaction::close_after(bytes("HTTP/1.1 200 OK\r\ncontent-le")), PATIENT),
        ("not HTTP", Reaction::close_after(bytes("220 mail.example ESMTP\r\n")), PATIENT),
        ("not HTTP and open", Reaction::keep_open_after(bytes("SSH-2.0-OpenSSH_9.2\r\n")), HASTY),
        ("silence", Reaction::keep_open_after(""), HASTY),
        ("silence after half a head", Reaction::keep_open_after(bytes("HTTP/1.1 200 OK\r\n")), HASTY),
        ("a header without end", endless_header, PATIENT),
        ("headers without end", endless_headers, PATIENT),
        ("100 Continue without end", endless_continue, HASTY),
    ];
    // Concurrently, since some run into their time limit. The clients are created first, because that takes time that running
    // calls would lose.
    let (patient, hasty) = (client(PATIENT), client(HASTY));
    let mut calls = JoinSet::new();
    for (fault, reaction, limits) in faults {
        let client = if limits == HASTY { hasty.clone() } else { patient.clone() };
        calls.spawn(async move { (fault, call_with(client, reaction).await) });
    }
    while let Some(called) = calls.join_next().await {
        let (fault, (answer, traffic)) = called.unwrap();
        assert_eq!((traffic.connections, traffic.requests.len()), (1, 1), "{fault}");
        let error = answer.expect_err(fault);
        assert!(matches!(error, CallError::Unanswered { .. }), "{fault}: {error:?}");
        let reason = error.reason();
        assert!(reason.starts_with("127.0.0.1 did not answer; the request may have arrived: "), "{reason}");
        assert!(!reason.contains("hidden-token"), "{fault}: {reason}");
    }
}

#[tokio::test]
async fn an_answer_that_breaks_off_keeps_its_status_and_says_so() {
    let half = "HTTP/1.1 503 Service Unavailable\r\ncontent-length: 100\r\n\r\nhalf of";
    let cases =
        [(Reaction::close_after(bytes(half)), PATIENT), (Reaction::keep_open_after(bytes(half)), HASTY)];
    for (reaction, limits) in cases {
        let (answer, traffic) = call(reaction, limits).await;
        let answer = answer.unwrap();
        assert_eq!((answer.status, answer.ending), (StatusCode::SERVICE_UNAVAILABLE, Ending::Broken));
        assert_eq!((&answer.body[..], answer.excerpt()), (&b"half of"[..], "half of".to_owned()));
        assert_eq!((traffic.connections, traffic.requests.len()), (1, 1));
    }
}

#[tokio::test]
async fn an_answer_is_read_to_its_limit_and_no_further() {
    let sized = |n: usize| {
        let mut answer = bytes(&format!("HTTP/1.1 200 OK\r\ncontent-length: {n}\r\n\r\n"));
        answer.resize(answer.len() + n, b'x');
        Reaction::keep_open_after(answer)
    };
    for (size, ending) in
        [(0, Ending::Whole), (ANSWER_BYTES_MAX, Ending::Whole), (ANSWER_BYTES_MAX + 1, Ending::TooLong)]
    {
        let (answer, _) = call(sized(size), PATIENT).await;
        let answer = answer.unwrap();
        assert_eq!((answer.body.len(), answer.ending), (size.min(ANSWER_BYTES_MAX), ending));
    }
}

// The server could write only as much as the buffers of the connection hold.
#[tokio::test]
async fn an_endless_answer_is_cut_off() {
    let heads = ["content-length: 1099511627776", "connection: close", "transfer-encoding: chunked"];
    for head in heads {
        let head = format!("HTTP/1.1 200 OK\r\n{head}\r\n\r\n");
        let chunk = format!("10000\r\n{}\r\n", "\0".repeat(0x10000));
        let began = Instant::now();
        let (answer, traffic) = call(Reaction::repeat(head.into_bytes(), chunk.into_bytes()), PATIENT).await;
        let answer = answer.unwrap();
        assert_eq!((answer.body.len(), answer.ending), (ANSWER_BYTES_MAX, Ending::TooLong));
        assert!(answer.excerpt().chars().count() <= 200);
        assert!(traffic.bytes_written < 32 << 20, "the server wrote {} bytes", traffic.bytes_written);
        assert!(began.elapsed() < PATIENT.total, "took {:?}", began.elapsed());
        assert_eq!(traffic.requests.len(), 1);
    }
}

#[tokio::test]
async fn a_request_may_ask_for_less_time_and_not_for_more() {
    let server = Server::start(Reaction::keep_open_after(""));
    let (patient, hasty) = (client(PATIENT), client(HASTY));
    for (client, asked) in [(&patient, Duration::from_millis(50)), (&hasty, PATIENT.total)] {
        let mut request = post(server.url());
        *request.timeout_mut() = Some(asked);
        let began = Instant::now();
        let answer = client.send(request, Reuse::Never).await;
        assert!(matches!(answer, Err(CallError::Unanswered { .. })), "{answer:?}");
        assert!(began.elapsed() < PATIENT.total, "took {:?}", began.elapsed());
    }
}

#[tokio::test]
async fn a_refused_connection_and_a_failed_handshake_are_unreachable() {
    // The listener was closed.
    let gone = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let answer = client(PATIENT).send(post(format!("http://{gone}/").parse().unwrap()), Reuse::Never).await;
    let Err(error @ CallError::Unreachable { .. }) = answer else { panic!("{answer:?}") };
    assert!(error.reason().contains("Connection refused"), "{}", error.reason());

    // The server does not support TLS.
    let plain = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://{}/", plain.local_addr().unwrap()).parse().unwrap();
    let close = async { drop(plain.accept().await.unwrap()) };
    let client = self::client(PATIENT);
    let (answer, ()) = tokio::join!(client.send(post(url), Reuse::Never), close);
    assert!(matches!(answer, Err(CallError::Unreachable { .. })), "{answer:?}");

    // The server does not answer the TLS handshake.
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url: Url = format!("https://{}/", silent.local_addr().unwrap()).parse().unwrap();
    let client = self::client(Limits { connect: Duration::from_millis(100), total: PATIENT.total });
    let answer = client.send(post(url), Reuse::Never).await;
    assert!(matches!(answer, Err(CallError::Unreachable { .. })), "{answer:?}");
}

#[tokio::test]
async fn a_redirect_is_not_followed() {
    for status in
        ["301 Moved", "302 Found", "303 See Other", "307 Temporary Redirect", "308 Permanent Redirect"]
    {
        let inside =
            Server::start(Reaction::keep_open_after(bytes("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")));
        let to = inside.url();
        for location in [to.as_str(), "http://169.254.169.254/latest/meta-data/", "//[::1]/", "/again"] {
            let answer = format!("HTTP/1.1 {status}\r\nlocation: {location}\r\ncontent-length: 0\r\n\r\n");
            let (answer, traffic) = call(Reaction::keep_open_after(answer.into_bytes()), PATIENT).await;
            assert!(answer.unwrap().status.is_redirection());
            assert_eq!(traffic.requests.len(), 1, "{status} to {location}");
        }
        assert_eq!(inside.traffic().await.connections, 0, "{status}");
    }
}

#[tokio::test]
async fn a_connection_is_used_again_only_where_that_is_allowed() {
    for (reuse, connections) in [(Reuse::Never, 3), (Reuse::Allowed, 1)] {
        let server =
            Server::start(Reaction::keep_open_after(bytes("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")));
        let client = client(PATIENT);
        for _ in 0..3 {
            client.send(post(server.url()), reuse).await.unwrap();
        }
        drop(client);
        let traffic = server.traffic().await;
        assert_eq!((traffic.connections, traffic.requests.len()), (connections, 3), "{reuse:?}");
    }
}

// The server closes each connection after one answer without announcing it, as idle timeouts do.
#[tokio::test]
async fn calls_that_may_not_be_repeated_are_one_request_each_when_the_server_closes_behind_them() {
    let reaction = Reaction::close_after(bytes("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"));
    let server = Server::start(reaction);
    let client = client(PATIENT);
    for _ in 0..50 {
        client.send(post(server.url()), Reuse::Never).await.unwrap();
    }
    drop(client);
    let traffic = server.traffic().await;
    assert_eq!((traffic.connections, traffic.requests.len()), (50, 50));
}
