//! Every way a server can fail us: each is one request on the wire, a bounded wait, and the right word for it.

use std::time::{Duration, Instant};

use postrider_providers::guard::{ANSWER_BYTES_MAX, Answer, CallError, Ending, GuardedClient, Limits, Reuse};
use reqwest::{Method, Request, StatusCode};
use tokio::{net::TcpListener, task::JoinSet};
use url::Url;

use crate::{
    HASTY, PATIENT, client,
    server::{Seen, Server, Then},
};

fn post(url: Url) -> Request {
    let mut request = Request::new(Method::POST, url);
    *request.body_mut() = Some("{}".into());
    request
}

/// One call, with a connection of its own, and all that the server saw of it.
async fn call(then: Then, limits: Limits) -> (Result<Answer, CallError>, Seen) {
    call_with(client(limits), then).await
}

async fn call_with(client: GuardedClient, then: Then) -> (Result<Answer, CallError>, Seen) {
    let server = Server::start(then).await;
    let answer = client.send(post(server.url()), Reuse::Never).await;
    drop(client);
    (answer, server.seen().await)
}

fn bytes(text: &str) -> Vec<u8> {
    text.as_bytes().to_vec()
}

#[tokio::test]
async fn a_request_that_may_have_arrived_is_unanswered_and_is_never_sent_again() {
    let endless_header = Then::Forever(bytes("HTTP/1.1 200 OK\r\nx: "), vec![b'x'; 4096]);
    let endless_headers = Then::Forever(bytes("HTTP/1.1 200 OK\r\n"), bytes(&"x: y\r\n".repeat(100)));
    let endless_continue = Then::Forever(vec![], bytes("HTTP/1.1 100 Continue\r\n\r\n"));
    let faults = [
        ("closed without a word", Then::AnswerAndClose(vec![]), PATIENT),
        ("reset", Then::Reset, PATIENT),
        ("half a status line", Then::AnswerAndClose(bytes("HTTP/1.1 20")), PATIENT),
        ("half a head", Then::AnswerAndClose(bytes("HTTP/1.1 200 OK\r\ncontent-le")), PATIENT),
        ("not HTTP", Then::AnswerAndClose(bytes("220 mail.example ESMTP\r\n")), PATIENT),
        ("not HTTP and open", Then::AnswerAndStall(bytes("SSH-2.0-OpenSSH_9.2\r\n")), HASTY),
        ("silence", Then::AnswerAndStall(vec![]), HASTY),
        ("silence after half a head", Then::AnswerAndStall(bytes("HTTP/1.1 200 OK\r\n")), HASTY),
        ("a header without end", endless_header, PATIENT),
        ("headers without end", endless_headers, PATIENT),
        ("100 Continue without end", endless_continue, HASTY),
    ];
    // All at once, since some take as long as they may. The clients come first: to make one takes time, and the calls
    // that have begun would lose theirs.
    let (patient, hasty) = (client(PATIENT), client(HASTY));
    let mut calls = JoinSet::new();
    for (fault, then, limits) in faults {
        let client = if limits == HASTY { hasty.clone() } else { patient.clone() };
        calls.spawn(async move { (fault, call_with(client, then).await) });
    }
    while let Some(called) = calls.join_next().await {
        let (fault, (answer, seen)) = called.unwrap();
        assert_eq!((seen.connections, seen.requests.len()), (1, 1), "{fault}");
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
    let cases = [(Then::AnswerAndClose(bytes(half)), PATIENT), (Then::AnswerAndStall(bytes(half)), HASTY)];
    for (then, limits) in cases {
        let (answer, seen) = call(then, limits).await;
        let answer = answer.unwrap();
        assert_eq!((answer.status, answer.ending), (StatusCode::SERVICE_UNAVAILABLE, Ending::Broken));
        assert_eq!((&answer.body[..], answer.excerpt()), (&b"half of"[..], "half of".to_owned()));
        assert_eq!((seen.connections, seen.requests.len()), (1, 1));
    }
}

#[tokio::test]
async fn an_answer_is_read_to_its_limit_and_no_further() {
    let sized = |n: usize| {
        let mut answer = bytes(&format!("HTTP/1.1 200 OK\r\ncontent-length: {n}\r\n\r\n"));
        answer.resize(answer.len() + n, b'x');
        Then::Answer(answer)
    };
    for (size, ending) in
        [(0, Ending::Whole), (ANSWER_BYTES_MAX, Ending::Whole), (ANSWER_BYTES_MAX + 1, Ending::TooLong)]
    {
        let (answer, _) = call(sized(size), PATIENT).await;
        let answer = answer.unwrap();
        assert_eq!((answer.body.len(), answer.ending), (size.min(ANSWER_BYTES_MAX), ending));
    }
}

// What the server could write before it was stopped is what the buffers between us hold, not what it wanted to say.
#[tokio::test]
async fn an_endless_answer_is_cut_off() {
    let heads = ["content-length: 1099511627776", "connection: close", "transfer-encoding: chunked"];
    for head in heads {
        let head = format!("HTTP/1.1 200 OK\r\n{head}\r\n\r\n");
        let chunk = format!("10000\r\n{}\r\n", "\0".repeat(0x10000));
        let began = Instant::now();
        let (answer, seen) = call(Then::Forever(head.into_bytes(), chunk.into_bytes()), PATIENT).await;
        let answer = answer.unwrap();
        assert_eq!((answer.body.len(), answer.ending), (ANSWER_BYTES_MAX, Ending::TooLong));
        assert!(answer.excerpt().chars().count() <= 200);
        assert!(seen.bytes_written < 32 << 20, "the server wrote {} bytes", seen.bytes_written);
        assert!(began.elapsed() < PATIENT.total, "took {:?}", began.elapsed());
        assert_eq!(seen.requests.len(), 1);
    }
}

#[tokio::test]
async fn a_request_may_ask_for_less_time_and_not_for_more() {
    let server = Server::start(Then::AnswerAndStall(vec![])).await;
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
    // Nobody listens there any more.
    let gone = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let answer = client(PATIENT).send(post(format!("http://{gone}/").parse().unwrap()), Reuse::Never).await;
    let Err(error @ CallError::Unreachable { .. }) = answer else { panic!("{answer:?}") };
    assert!(error.reason().contains("Connection refused"), "{}", error.reason());

    // It listens, and does not speak TLS.
    let plain = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://{}/", plain.local_addr().unwrap()).parse().unwrap();
    let close = async { drop(plain.accept().await.unwrap()) };
    let client = self::client(PATIENT);
    let (answer, ()) = tokio::join!(client.send(post(url), Reuse::Never), close);
    assert!(matches!(answer, Err(CallError::Unreachable { .. })), "{answer:?}");

    // It listens, and says nothing while we wait for its certificate.
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url: Url = format!("https://{}/", silent.local_addr().unwrap()).parse().unwrap();
    let client = self::client(Limits { connect: Duration::from_millis(100), total: PATIENT.total });
    let answer = client.send(post(url), Reuse::Never).await;
    assert!(matches!(answer, Err(CallError::Unreachable { .. })), "{answer:?}");
}

#[tokio::test]
async fn a_redirect_is_an_answer_and_not_an_order() {
    for status in
        ["301 Moved", "302 Found", "303 See Other", "307 Temporary Redirect", "308 Permanent Redirect"]
    {
        let inside = Server::start(Then::Answer(bytes("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"))).await;
        let to = inside.url();
        for location in [to.as_str(), "http://169.254.169.254/latest/meta-data/", "//[::1]/", "/again"] {
            let answer = format!("HTTP/1.1 {status}\r\nlocation: {location}\r\ncontent-length: 0\r\n\r\n");
            let (answer, seen) = call(Then::Answer(answer.into_bytes()), PATIENT).await;
            assert!(answer.unwrap().status.is_redirection());
            assert_eq!(seen.requests.len(), 1, "{status} to {location}");
        }
        assert_eq!(inside.seen().await.connections, 0, "{status}");
    }
}

#[tokio::test]
async fn a_connection_is_used_again_only_where_that_is_allowed() {
    for (reuse, connections) in [(Reuse::Never, 3), (Reuse::Allowed, 1)] {
        let server =
            Server::start(Then::Answer(bytes("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"))).await;
        let client = client(PATIENT);
        for _ in 0..3 {
            client.send(post(server.url()), reuse).await.unwrap();
        }
        drop(client);
        let seen = server.seen().await;
        assert_eq!((seen.connections, seen.requests.len()), (connections, 3), "{reuse:?}");
    }
}

// The server closes each connection after one answer without announcing it, as idle timeouts do.
#[tokio::test]
async fn calls_that_may_not_be_repeated_are_one_request_each_when_the_server_closes_behind_them() {
    let then = Then::AnswerAndClose(bytes("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"));
    let server = Server::start(then).await;
    let client = client(PATIENT);
    for _ in 0..50 {
        client.send(post(server.url()), Reuse::Never).await.unwrap();
    }
    drop(client);
    let seen = server.seen().await;
    assert_eq!((seen.connections, seen.requests.len()), (50, 50));
}
