//! Tests of the sim with a raw TCP client.

mod bluesky;
mod common_behavior;
mod faults;
mod functions;
mod late_effects;
mod messages;
mod outages;
mod receipts;
mod receiver;
mod resend;
mod slack;
mod smtp;
mod social;
mod telegram;
mod twilio;
mod whatsapp;

use std::path::{Path, PathBuf};

use clap::Parser;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::*;

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

#[derive(Parser, Debug)]
struct Cli {
    #[command(flatten)]
    sim: SimArgs,
}

fn args(flags: &[&str]) -> Result<SimArgs, clap::Error> {
    Cli::try_parse_from(std::iter::once("sim").chain(flags.iter().copied())).map(|cli| cli.sim)
}

/// A sim that runs in this process, with its own directory for receipts.
struct RunningSim {
    address: SocketAddr,
    smtp_address: SocketAddr,
    receipts: PathBuf,
    shutdown: CancellationToken,
    served: JoinHandle<anyhow::Result<()>>,
    dir: tempfile::TempDir,
}

impl RunningSim {
    async fn with(flags: &[&str]) -> Self {
        Self::in_dir(tempfile::tempdir().unwrap(), flags).await
    }

    async fn in_dir(dir: tempfile::TempDir, flags: &[&str]) -> Self {
        let receipts = dir.path().join("receipts.ndjson");
        let shutdown = CancellationToken::new();
        let args = SimArgs { receipts: Some(receipts.clone()), ..args(flags).unwrap() };
        let sim = Sim::start(args, shutdown.clone()).await.unwrap();
        let (address, smtp_address) = (sim.address, sim.smtp_address);
        Self { address, smtp_address, receipts, shutdown, served: tokio::spawn(sim.serve()), dir }
    }

    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.unwrap()
    }

    /// Sends one request and reads until the sim closes the connection.
    async fn ask(&self, request: &[u8]) -> std::io::Result<String> {
        let mut stream = self.connect().await;
        stream.write_all(request).await?;
        read_all(&mut stream).await
    }

    async fn get(&self, path: &str) -> String {
        self.ask(format!("GET {path} HTTP/1.1\r\nhost: sim\r\nconnection: close\r\n\r\n").as_bytes())
            .await
            .unwrap()
    }

    async fn counts(&self, query: &str) -> Value {
        json_of(&self.get(&format!("/receipts{query}")).await)
    }

    async fn put_faults(&self, body: &str) -> String {
        self.put("/faults", body).await
    }

    async fn put(&self, path: &str, body: &str) -> String {
        let length = body.len();
        let head = format!(
            "PUT {path} HTTP/1.1\r\nhost: sim\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n"
        );
        self.ask((head + body).as_bytes()).await.unwrap()
    }

    async fn stop(self) -> tempfile::TempDir {
        self.shutdown.cancel();
        self.served.await.unwrap().unwrap();
        self.dir
    }
}

/// Waits for a future that must complete in time.
async fn in_time<T>(happens: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(20), happens).await.expect("the condition was not met in time")
}

async fn read_all(stream: &mut TcpStream) -> std::io::Result<String> {
    let mut text = String::new();
    stream.read_to_string(&mut text).await.map(|_| text)
}

fn hook(id: &str) -> Vec<u8> {
    signed_hook(id, jiff::Timestamp::now().as_second(), "v1,none")
}

fn signed_hook(id: &str, at: i64, signature: &str) -> Vec<u8> {
    let body = body_of(id);
    let length = body.len();
    format!(
        "POST /hooks/orders HTTP/1.1\r\nhost: sim\r\nconnection: close\r\nwebhook-id: {id}\r\n\
         webhook-timestamp: {at}\r\nwebhook-signature: {signature}\r\ncontent-length: {length}\r\n\r\n{body}"
    )
    .into_bytes()
}

fn body_of(id: &str) -> String {
    json!({ "type": "order.paid", "data": { "id": id } }).to_string()
}

fn status_of(answer: &str) -> u16 {
    answer.split(' ').nth(1).unwrap().parse().unwrap()
}

fn json_of(answer: &str) -> Value {
    serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap()
}

fn on_disk(path: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// `(fault, acted, answered)` of the only receipt.
fn only_receipt(sim: &RunningSim) -> (Value, Value, Value) {
    let receipts = on_disk(&sim.receipts);
    assert_eq!(receipts.len(), 1);
    let receipt = &receipts[0];
    (receipt["fault"].clone(), receipt["acted"].clone(), receipt["answered"].clone())
}
