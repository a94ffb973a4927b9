//! Functions of tenants: the request of a call, and that each call is exactly one request.

use std::time::Duration;

use postrider_model::ids::{JobRunId, TenantId};
use postrider_providers::{
    GuardedClient, Limits, Policy,
    function::{FunctionCall, FunctionFailed, HttpFunction, LIMITS},
};
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use secrecy::SecretString;
use serde_json::{Value, json};
use standardwebhooks::Webhook;
use tokio::{io::AsyncReadExt, net::TcpListener, task::JoinSet};

use crate::{
    PATIENT, client, client_that_asks,
    dns::FlippingDns,
    server::{Reaction, Received, Server, Traffic},
};

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
const FOREIGN: &str = "whsec_zc3Nzc3Nzc3Nzc3Nzc3Nzc3Nzc3Nzc3Nzc3Nzc0=";

/// Long enough for a request to arrive, short enough for tests of a timeout.
const BRIEF: Limits = Limits { connect: Duration::from_secs(10), total: Duration::from_secs(6) };

const CLOSED: Policy = Policy { allow_private: false };

fn function(client: &GuardedClient, url: &str) -> Result<HttpFunction, FunctionFailed> {
    HttpFunction::new(client, url, &SecretString::from(SECRET))
}

fn call<'a>(job_id: JobRunId, attempt: i32, input: &'a Value) -> FunctionCall<'a> {
    FunctionCall {
        tenant_id: TenantId(job_id.0),
        job_id,
        function_name: "sync-orders",
        lock_key: "0f1e2d",
        attempt,
        input,
    }
}

/// One call to a server with this behavior, and all that arrived. The server returns only after the caller closed the connection.
async fn call_with(client: GuardedClient, reaction: Reaction) -> (Result<Value, FunctionFailed>, Traffic) {
    let server = Server::start(reaction);
    let function = function(&client, server.url().as_str()).unwrap();
    let result = function.call(&call(JobRunId::new(), 1, &Value::Null)).await;
    drop((function, client));
    (result, server.traffic().await)
}

fn answer(status: &str, headers: &str, body: &[u8]) -> Vec<u8> {
    let head = format!("HTTP/1.1 {status}\r\n{headers}content-length: {}\r\n\r\n", body.len());
    [head.as_bytes(), body].concat()
}

fn is_signed(request: &Received, secret: &str) -> bool {
    let mut headers = HeaderMap::new();
    for name in ["webhook-id", "webhook-timestamp", "webhook-signature"] {
        let value = HeaderValue::from_str(request.header(name).unwrap()).unwrap();
        headers.insert(HeaderName::from_static(name), value);
    }
    Webhook::new(secret).unwrap().verify(&request.body, &headers).is_ok()
}

#[tokio::test]
async fn each_attempt_is_signed_and_carries_the_id_of_the_job() {
    let json = "content-type: application/json\r\n";
    let server = Server::start(Reaction::keep_open_after(answer("200 OK", json, br#"{"synced": 12}"#)));
    let client = client(PATIENT);
    let function = function(&client, server.url().as_str()).unwrap();
    let (job_id, input) = (JobRunId::new(), json!({ "since": "crème brûlée" }));
    for attempt in 1..=3 {
        assert_eq!(function.call(&call(job_id, attempt, &input)).await, Ok(json!({ "synced": 12 })));
    }
    drop((function, client));

    let traffic = server.traffic().await;
    assert_eq!((traffic.connections, traffic.requests.len()), (3, 3));
    for (request, attempt) in traffic.requests.iter().zip(1..) {
        assert!(request.head.starts_with("POST /events?key=hidden-token HTTP/1.1\r\n"), "{}", request.head);
        assert_eq!(request.header("webhook-id"), Some(&*job_id.0.to_string()));
        assert_eq!(request.header("content-type"), Some("application/json"));
        assert!(is_signed(request, SECRET) && !is_signed(request, FOREIGN));
        let mut body: Value = serde_json::from_slice(&request.body).unwrap();
        let timestamp = body["timestamp"].take();
        assert!(timestamp.as_str().unwrap().parse::<jiff::Timestamp>().is_ok(), "{timestamp}");
        let data = json!({
            "tenant_id": job_id.0.to_string(),
            "job_id": job_id.0.to_string(),
            "function_name": "sync-orders",
            "lock_key": "0f1e2d",
            "attempt": attempt,
            "input": input,
        });
        assert_eq!(body, json!({ "type": "function.invoked", "timestamp": null, "data": data }));
    }
}

#[tokio::test]
async fn a_call_is_one_request_in_every_fault() {
    let inside = Server::start(Reaction::keep_open_after(answer("200 OK", "", b"")));
    let json = "content-type: application/json\r\n";
    let half = format!("HTTP/1.1 200 OK\r\n{json}content-length: 100\r\n\r\n{{\"half\": ");
    let long = format!("HTTP/1.1 200 OK\r\n{json}content-length: {}\r\n\r\n", 5 << 20);
    // `{}`, as gzip packs it.
    let gzip = b"\x1f\x8b\x08\0\0\0\0\0\0\x03\xab\xae\x05\0\x43\xbf\xa6\xa3\x02\0\0\0".as_slice();
    let packed = format!("{json}content-encoding: gzip\r\n");
    let elsewhere = format!("location: {}\r\n", inside.url());
    let failing = br#"{"error": "no room"}"#;
    #[rustfmt::skip]
    let faults = [
        ("reset", Reaction::reset(), true, "did not answer"),
        ("closed", Reaction::close_after(""), true, "did not answer"),
        ("not HTTP", Reaction::close_after(b"220 mail.example ESMTP\r\n".to_vec()), true, "did not answer"),
        ("half", Reaction::close_after(half.clone().into_bytes()), true, "the answer of the function broke off"),
        ("slow", Reaction::keep_open_after(""), true, "did not answer"),
        ("slow after half", Reaction::keep_open_after(half.into_bytes()), true, "broke off"),
        ("5 MB", Reaction::repeat(long.into_bytes(), vec![b'1'; 65536]), false, "with more than 65536 bytes"),
        ("gzip", Reaction::keep_open_after(answer("200 OK", &packed, gzip)), false, "invalid JSON"),
        ("redirect", Reaction::keep_open_after(answer("307 Elsewhere", &elsewhere, b"")), false, "redirects are not followed"),
        ("refusal", Reaction::keep_open_after(answer("400 Bad Request", json, failing)), false, "400 Bad Request: no room"),
        ("busy", Reaction::keep_open_after(answer("429 Later", json, failing)), true, "429 Too Many Requests: no room"),
        ("failure", Reaction::keep_open_after(answer("500 Oh", json, failing)), true, "500 Internal Server Error: no room"),
    ];
    let (patient, brief) = (client(PATIENT), client(BRIEF));
    let mut calls = JoinSet::new();
    for (fault, reaction, retryable, says) in faults {
        let client = if fault.starts_with("slow") { brief.clone() } else { patient.clone() };
        calls.spawn(async move { (fault, retryable, says, call_with(client, reaction).await) });
    }
    while let Some(called) = calls.join_next().await {
        let (fault, retryable, says, (result, traffic)) = called.unwrap();
        assert_eq!((traffic.connections, traffic.requests.len()), (1, 1), "{fault}");
        let failed = result.expect_err(fault);
        assert!(failed.message.contains(says), "{fault}: {failed}");
        assert!(!failed.message.contains("hidden-token"), "{fault}: {failed}");
        assert_eq!(failed.retryable, retryable, "{fault}: {failed}");
    }
    assert_eq!(inside.traffic().await.connections, 0);
}

// The caller sets the timeout of a function by dropping the call; the client does not retry.
#[tokio::test]
async fn dropping_a_call_closes_its_connection() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let client = client(LIMITS);
    let function = function(&client, &format!("http://{}/", listener.local_addr().unwrap())).unwrap();
    let call = call(JobRunId::new(), 1, &Value::Null);
    let mut bytes = Vec::new();
    let mut stream = tokio::select! {
        result = function.call(&call) => panic!("a result without an answer: {result:?}"),
        stream = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            stream.read_buf(&mut bytes).await.unwrap();
            stream
        } => stream,
    };
    let ended = tokio::time::timeout(PATIENT.total, stream.read_to_end(&mut bytes)).await;
    ended.expect("the connection stays open").unwrap();
    assert!(bytes.starts_with(b"POST / HTTP/1.1\r\n"));
}

#[tokio::test]
async fn an_unreachable_function_is_retryable_and_a_refused_url_is_not() {
    let failed = async |client: &GuardedClient, url: &str| match function(client, url) {
        Ok(function) => function.call(&call(JobRunId::new(), 1, &Value::Null)).await.unwrap_err(),
        Err(failed) => failed,
    };
    let gone = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let refused = failed(&client(PATIENT), &format!("http://{gone}/")).await;
    assert!(refused.retryable && refused.message.contains("Connection refused"), "{refused}");

    let nowhere = client_that_asks(FlippingDns::new(&[&[]]), CLOSED, PATIENT);
    let unknown = failed(&nowhere, "https://missing.example/").await;
    assert!(unknown.retryable && unknown.message.contains("could not reach missing.example"), "{unknown}");

    let server = Server::start(Reaction::keep_open_after(answer("204 No Content", "", b"")));
    let lying = client_that_asks(FlippingDns::new(&[&["127.0.0.1"]]), CLOSED, PATIENT);
    let port = server.port();
    for url in [
        format!("https://function.example:{port}/"),
        format!("https://127.0.0.1:{port}/"),
        format!("https://localhost:{port}/"),
        format!("http://function.example:{port}/"),
        "https://169.254.169.254/latest/meta-data/".to_owned(),
        "ftp://function.example/".to_owned(),
        "function.example".to_owned(),
    ] {
        let failed = failed(&lying, &url).await;
        assert!(!failed.retryable, "{url}: {failed}");
    }
    assert_eq!(server.traffic().await.connections, 0);
}

#[test]
fn a_secret_that_cannot_sign_is_refused_and_not_shown() {
    let client = client(PATIENT);
    for secret in ["", "hunter2", "whsec_hunter2!", "whsec_aHVudGVyMg=="] {
        let url = "https://function.example/";
        let Err(failed) = HttpFunction::new(&client, url, &SecretString::from(secret)) else { panic!() };
        assert!(failed.message.starts_with("the secret of the function "), "{failed}");
        assert!(failed.message.ends_with("; set another one") && !failed.message.contains("hunter2"));
        assert!(!failed.retryable);
    }
}
