//! The request of a webhook, and the result of each answer.

use postrider_model::{EventSink, SinkError};
use postrider_providers::{HttpSink, HttpSinkConfig, Limits, sinks};
use tokio::net::TcpListener;
use url::Url;

use crate::{
    HASTY, PATIENT, client, event,
    server::{Reaction, Server, Traffic},
};

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

fn sink(url: Url, limits: Limits) -> HttpSink {
    HttpSink::new(&client(limits), HttpSinkConfig { url, secrets: vec![SECRET.into()] }).unwrap()
}

/// One delivery to a server with this behavior, and all that arrived.
async fn deliver(reaction: Reaction, limits: Limits) -> (Result<(), SinkError>, Traffic) {
    let server = Server::start(reaction);
    let sink = sink(server.url(), limits);
    let delivered = sink.deliver(&event(42)).await;
    drop(sink);
    (delivered, server.traffic().await)
}

fn answer(status: &str, body: &str) -> Reaction {
    let head = format!("HTTP/1.1 {status}\r\ncontent-type: image/png\r\ncontent-length: {}", body.len());
    Reaction::keep_open_after(format!("{head}\r\n\r\n{body}").into_bytes())
}

#[tokio::test]
async fn a_webhook_is_one_post_with_the_headers_of_the_specification() {
    let before = jiff::Timestamp::now().as_second();
    let (delivered, traffic) = deliver(answer("200 OK", "\0not a text"), PATIENT).await;
    let after = jiff::Timestamp::now().as_second();
    delivered.unwrap();
    let [request] = &traffic.requests[..] else { panic!("{traffic:?}") };
    assert!(request.head.starts_with("POST /events?key=hidden-token HTTP/1.1\r\n"), "{}", request.head);
    assert_eq!(request.header("webhook-id"), Some("42"));
    let timestamp: i64 = request.header("webhook-timestamp").unwrap().parse().unwrap();
    assert!((before..=after).contains(&timestamp));
    assert_eq!(request.header("content-type"), Some("application/json"));
    assert_eq!(request.header("user-agent"), Some(concat!("postrider/", env!("CARGO_PKG_VERSION"))));
    assert_eq!(request.body, sinks::body(&event(42)));
}

#[tokio::test]
async fn every_attempt_sends_the_same_bytes_over_the_same_connection() {
    let server = Server::start(answer("503 Busy", ""));
    let sink = sink(server.url(), PATIENT);
    for retry_count in 0..3 {
        let mut event = event(42);
        event.retry_count = retry_count;
        sink.deliver(&event).await.unwrap_err();
    }
    drop(sink);
    let traffic = server.traffic().await;
    assert_eq!((traffic.connections, traffic.requests.len()), (1, 3));
    assert!(traffic.requests.iter().all(|request| request.body == traffic.requests[0].body));
    assert!(traffic.requests.iter().all(|request| request.header("webhook-id") == Some("42")));
}

#[tokio::test]
async fn any_2xx_is_a_delivery_with_any_body() {
    let half = b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf".to_vec();
    let endless =
        Reaction::repeat(b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n".to_vec(), vec![b'x'; 65536]);
    let cases = [
        (answer("200 OK", "<html>"), PATIENT),
        (answer("202 Accepted", ""), PATIENT),
        (Reaction::keep_open_after(b"HTTP/1.1 204 No Content\r\n\r\n".to_vec()), PATIENT),
        (answer("299 Other", "ok"), PATIENT),
        (Reaction::close_after(half.clone()), PATIENT),
        (Reaction::keep_open_after(half), HASTY),
        (endless, PATIENT),
    ];
    for (n, (reaction, limits)) in cases.into_iter().enumerate() {
        let (delivered, traffic) = deliver(reaction, limits).await;
        delivered.unwrap_or_else(|error| panic!("case {n}: {error}"));
        assert_eq!(traffic.requests.len(), 1);
    }
}

#[tokio::test]
async fn any_other_status_is_a_refusal_with_a_short_reason() {
    let cases = [
        (answer("400 Bad Request", "no such\r\nevent \x1b[31m"), "400 Bad Request: no such  event [31m"),
        (answer("401 Unauthorized", ""), "401 Unauthorized"),
        (answer("410 Gone", ""), "410 Gone: the receiver wants no more events; remove this sink"),
        (answer("429 Too Many Requests", "slow down"), "429 Too Many Requests: slow down"),
        (answer("500 Internal Server Error", " \n"), "500 Internal Server Error"),
        (
            answer("301 Moved", ""),
            "301 Moved Permanently, but redirects are not followed; configure the URL it",
        ),
        (answer("307 Temporary Redirect", ""), "307 Temporary Redirect, but redirects are not followed"),
        (answer("304 Not Modified", ""), "304 Not Modified, but redirects are not followed"),
    ];
    for (reaction, expected) in cases {
        let (delivered, traffic) = deliver(reaction, PATIENT).await;
        let Err(SinkError::Refused { reason }) = delivered else { panic!("{delivered:?}") };
        assert!(reason.starts_with(expected), "{reason}");
        assert_eq!(traffic.requests.len(), 1, "{reason}");
    }
    let (delivered, _) = deliver(answer("500 No", &"secret".repeat(10_000)), PATIENT).await;
    assert!(delivered.unwrap_err().to_string().chars().count() < 300);
}

#[tokio::test]
async fn an_event_that_may_have_arrived_is_unanswered() {
    let faults = [
        ("silence", Reaction::keep_open_after(""), HASTY),
        ("reset", Reaction::reset(), PATIENT),
        ("closed", Reaction::close_after(""), PATIENT),
        ("half a head", Reaction::close_after(b"HTTP/1.1 200 O".to_vec()), PATIENT),
    ];
    for (fault, reaction, limits) in faults {
        let (delivered, traffic) = deliver(reaction, limits).await;
        let Err(SinkError::Unanswered { reason }) = delivered else { panic!("{fault}: {delivered:?}") };
        assert!(!reason.contains("hidden-token"), "{fault}: {reason}");
        assert_eq!(traffic.requests.len(), 1, "{fault}");
    }
}

#[tokio::test]
async fn a_receiver_that_is_not_there_is_unreachable() {
    let gone = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let url = format!("http://{gone}/?key=hidden-token").parse().unwrap();
    let error = sink(url, PATIENT).deliver(&event(1)).await.unwrap_err();
    assert_eq!(error.kind(), "unreachable", "{error}");
    assert!(!error.to_string().contains("hidden-token"), "{error}");
}

// Each connection is closed before the next delivery. A delivery that fails is reported, and none is sent twice.
#[tokio::test]
async fn a_receiver_that_closes_its_connections_sees_each_delivery_once() {
    let server = Server::start(Reaction::close_after(b"HTTP/1.1 204 No Content\r\n\r\n".to_vec()));
    let sink = sink(server.url(), PATIENT);
    let mut delivered = Vec::new();
    for id in 0..20 {
        if sink.deliver(&event(id)).await.is_ok() {
            delivered.push(id.to_string());
        }
    }
    drop(sink);
    let traffic = server.traffic().await;
    let received: Vec<_> =
        traffic.requests.iter().filter_map(|request| request.header("webhook-id")).collect();
    assert!(!delivered.is_empty());
    assert_eq!(received, delivered);
}
