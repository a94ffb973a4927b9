//! Signatures, verified by the reference library in Python.

use std::{
    io::Write,
    path::Path,
    process::{Command, Stdio},
};

use postrider_model::EventSink;
use postrider_providers::{HttpSink, HttpSinkConfig};
use serde::Serialize;

use crate::{
    PATIENT, client, event,
    server::{Reaction, Received, Server},
};

const OLD: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
const NEW: &str = "whsec_q6urq6urq6urq6urq6urq6urq6urq6urq6urq6urq6s=";
const FOREIGN: &str = "whsec_zc3Nzc3Nzc3Nzc3Nzc3Nzc3Nzc3Nzc3Nzc3Nzc0=";

/// Verifies each webhook with the library and prints the reason of a refusal.
const VERIFY: &str = r#"
import json, sys
from standardwebhooks.webhooks import Webhook, WebhookVerificationError
for line in sys.stdin:
    case = json.loads(line)
    try:
        Webhook(case["secret"]).verify(case["body"], case["headers"])
        print("valid")
    except WebhookVerificationError as error:
        print("invalid:", error)
"#;

#[derive(Serialize, Clone)]
struct Case {
    secret: String,
    headers: serde_json::Map<String, serde_json::Value>,
    body: String,
}

impl Case {
    fn of(request: &Received, secret: &str) -> Self {
        let headers = ["webhook-id", "webhook-timestamp", "webhook-signature"];
        let header = |name: &str| (name.to_owned(), request.header(name).unwrap().into());
        let body = String::from_utf8(request.body.clone()).unwrap();
        Self { secret: secret.to_owned(), headers: headers.map(header).into_iter().collect(), body }
    }

    fn with(mut self, header: &str, value: &str) -> Self {
        self.headers.insert(header.to_owned(), value.into());
        self
    }
}

fn verify(cases: &[Case]) -> Vec<String> {
    ask_python(VERIFY, cases)
}

/// Runs a Python program with the peer libraries and returns its output for each question.
pub fn ask_python(program: &str, questions: &[impl Serialize]) -> Vec<String> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/peers");
    let peers = Command::new(&script).stderr(Stdio::inherit()).output().unwrap();
    assert!(peers.status.success(), "{} failed", script.display());
    let python = String::from_utf8(peers.stdout).unwrap();
    let mut python = Command::new(python.trim())
        .args(["-c", program])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = python.stdin.take().unwrap();
    for question in questions {
        writeln!(stdin, "{}", serde_json::to_string(question).unwrap()).unwrap();
    }
    drop(stdin);
    let output = python.wait_with_output().unwrap();
    assert!(output.status.success());
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
}

/// The request of a sink with these secrets.
async fn receive(secrets: &[&str]) -> Received {
    let server = Server::start(Reaction::keep_open_after(b"HTTP/1.1 204 No Content\r\n\r\n".to_vec()));
    let secrets = secrets.iter().map(|secret| (*secret).into()).collect();
    let sink = HttpSink::new(&client(PATIENT), HttpSinkConfig { url: server.url(), secrets }).unwrap();
    sink.deliver(&event(4711)).await.unwrap();
    drop(sink);
    server.traffic().await.requests.remove(0)
}

#[tokio::test]
async fn another_implementation_accepts_our_signatures_and_no_changed_ones() {
    let request = receive(&[OLD]).await;
    let good = Case::of(&request, OLD);
    let timestamp: i64 = request.header("webhook-timestamp").unwrap().parse().unwrap();
    let mut changed = good.clone();
    changed.body = changed.body.replace("12.50", "12.51");
    let mut reformatted = good.clone();
    reformatted.body = reformatted.body.replace(": ", ":");
    assert!(changed.body != good.body && reformatted.body != good.body);

    let cases = [
        (good.clone(), "valid"),
        (Case::of(&request, FOREIGN), "invalid: No matching signature found"),
        (changed, "invalid: No matching signature found"),
        (reformatted, "invalid: No matching signature found"),
        (good.clone().with("webhook-id", "4712"), "invalid: No matching signature found"),
        (
            good.clone().with("webhook-timestamp", &(timestamp + 1).to_string()),
            "invalid: No matching signature found",
        ),
        (
            good.clone().with("webhook-timestamp", &(timestamp - 301).to_string()),
            "invalid: Message timestamp too old",
        ),
        (good.with("webhook-signature", "v1,"), "invalid: No matching signature found"),
    ];
    let (cases, expected): (Vec<_>, Vec<_>) = cases.into_iter().unzip();
    assert_eq!(verify(&cases), expected);
}

#[tokio::test]
async fn while_a_secret_is_replaced_old_and_new_verify() {
    let request = receive(&[NEW, OLD]).await;
    let signatures: Vec<_> = request.header("webhook-signature").unwrap().split(' ').collect();
    assert!(signatures.len() == 2 && signatures.iter().all(|signature| signature.starts_with("v1,")));
    let cases = [OLD, NEW, FOREIGN].map(|secret| Case::of(&request, secret));
    assert_eq!(verify(&cases), ["valid", "valid", "invalid: No matching signature found"]);
}
