//! Receipts: one line per request, on disk before the answer.
//!
//! ```text
//! record ──queue──► Writer: write all queued receipts ─► fdatasync ─► count ─► wake their requests
//! ```
//!
//! Many requests share one fdatasync, so an ordinary disk allows thousands of requests per second.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, ensure};
use serde::{Deserialize, Serialize};
use tokio::sync::{mpsc, oneshot, watch};

use super::faults::Fault;
use super::outages::Outage;
use super::tally::{Counts, Tally};

const QUEUE_MAX: usize = 4096;
const BATCH_MAX: usize = 1024;
const LINE_START: &[u8] = b"{\"seq\":";

/// One request and its result.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Receipt {
    /// Position in the file, from 1. The writer sets it.
    pub seq: u64,
    /// Time at which the request was read, RFC 3339 with microseconds.
    pub at: String,
    /// Path of the request.
    pub path: String,
    /// Header `webhook-id`.
    pub webhook_id: Option<String>,
    /// Header `webhook-timestamp`, unchanged.
    pub webhook_timestamp: Option<String>,
    /// `type` in the body, if the body is JSON and has one.
    pub event_type: Option<String>,
    /// Whether the signature or token was valid; null if none is required.
    pub verified: Option<bool>,
    /// Whether the sim acted on the request.
    pub acted: bool,
    /// The fault of the request.
    pub fault: Option<Fault>,
    /// Status of the answer; null if no complete answer follows.
    pub answered: Option<u16>,
    /// SHA-256 of the body in hex; null when the body was too large to read.
    pub body_sha256: Option<String>,
    /// The face, such as `resend`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub provider: Option<String>,
    /// The idempotency key of a message, where the provider can know it; the id of the job that calls a function.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// The channel of a message.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub channel: Option<String>,
    /// Sender of a mail, caller, or author of a post.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// Recipient of a message; several recipients of a mail are joined by `, `. The name of a function.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
    /// Record key of a post.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rkey: Option<String>,
    /// Id of the action: the id in the answer, or the header `Message-ID` of a mail.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message_id: Option<String>,
    /// Size of a mail, without the dots that the client added.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    /// Text of a chat message.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// The thread, topic or message that a chat message belongs to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub thread: Option<String>,
    /// Tenant of the job that calls a function.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant_id: Option<String>,
    /// Lock key of such a job.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lock_key: Option<String>,
    /// Attempt of the job, from 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u32>,
    /// The outage that turned away the request. Then look-ups have receipts, too.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outage: Option<Outage>,
    /// Method of a request that an outage turned away.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub method: Option<String>,
    /// Time for which the fault `act_late` delayed the request. The answer of this receipt went nowhere.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delayed_ms: Option<u64>,
}

impl Receipt {
    /// The receipt of the delayed action. The request itself has its own receipt.
    pub fn late(self, delay: Duration, message_id: Option<String>) -> Self {
        let delayed_ms = Some(u64::try_from(delay.as_millis()).unwrap_or(u64::MAX));
        Self { at: now(), fault: None, acted: true, answered: None, delayed_ms, message_id, ..self }
    }
}

/// The time of a receipt.
pub fn now() -> String {
    format!("{:.6}", jiff::Timestamp::now())
}

/// The receipts of this sim. The writer ends when every ledger is dropped.
pub struct Ledger {
    path: PathBuf,
    queue: mpsc::Sender<Entry>,
    synced: Arc<Mutex<Synced>>,
    changes: watch::Receiver<()>,
}

struct Entry {
    receipt: Receipt,
    written: oneshot::Sender<()>,
}

/// The receipts that are synced to disk.
#[derive(Default)]
struct Synced {
    tally: Tally,
    bytes: u64,
}

impl Ledger {
    /// Opens or creates the file. Its receipts are counted.
    pub fn open(path: &Path) -> anyhow::Result<(Self, Writer)> {
        let file = OpenOptions::new().read(true).append(true).create(true).open(path);
        let file = file.with_context(|| format!("could not open the receipts file {}", path.display()))?;
        Self::over(file, path.to_owned())
    }

    /// Creates a new file, which stays after the sim has ended.
    pub fn in_temp_dir() -> anyhow::Result<(Self, Writer)> {
        let named =
            tempfile::Builder::new().prefix("postrider-sim-").suffix(".ndjson").append(true).tempfile();
        let (file, path) =
            named.and_then(|named| Ok(named.keep()?)).context("could not create a receipts file")?;
        Self::over(file, path)
    }

    fn over(file: File, path: PathBuf) -> anyhow::Result<(Self, Writer)> {
        let shown = path.display();
        file.try_lock()
            .with_context(|| format!("{shown} is in use by another sim; give another --receipts"))?;
        let synced = read_synced(&file).with_context(|| format!("could not read the receipts in {shown}"))?;
        // A killed sim may have left an incomplete line, whose request it never acknowledged.
        file.set_len(synced.bytes)
            .with_context(|| format!("could not cut the unfinished line off {shown}"))?;
        file.sync_all().with_context(|| format!("could not sync {shown}"))?;

        let (queue, waiting) = mpsc::channel(QUEUE_MAX);
        let (changed, changes) = watch::channel(());
        let seq = synced.tally.counts().received;
        let synced = Arc::new(Mutex::new(synced));
        let writer = Writer { file, seq, waiting, synced: Arc::clone(&synced), changed };
        Ok((Self { path, queue, synced, changes }, writer))
    }

    /// Writes a receipt. When this returns, it is on disk and counted.
    ///
    /// The writer also writes a queued receipt if its caller is dropped.
    pub async fn record(&self, receipt: Receipt) -> anyhow::Result<()> {
        let (written, on_disk) = oneshot::channel();
        self.queue.send(Entry { receipt, written }).await.ok().context("the receipts writer has ended")?;
        on_disk.await.context("the receipt could not be written")
    }

    /// Counts of the receipts on disk.
    pub fn counts(&self) -> Counts {
        lock(&self.synced).tally.counts().clone()
    }

    /// Returns when the counts are `enough`, or when the writer has ended.
    pub async fn wait_until(&self, enough: impl Fn(&Counts) -> bool) {
        let mut changes = self.changes.clone();
        // Before the read of the counts, so that a change during the read is not lost.
        changes.mark_unchanged();
        while !enough(lock(&self.synced).tally.counts()) && changes.changed().await.is_ok() {}
    }

    /// Bytes of the file that contain complete receipts.
    pub fn bytes(&self) -> u64 {
        lock(&self.synced).bytes
    }

    /// Path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// Writes the receipts on its own thread.
pub struct Writer {
    file: File,
    seq: u64,
    waiting: mpsc::Receiver<Entry>,
    synced: Arc<Mutex<Synced>>,
    changed: watch::Sender<()>,
}

impl Writer {
    /// Writes until every ledger is dropped. A failure ends it, because a sim without receipts must not continue.
    pub fn run(mut self) -> anyhow::Result<()> {
        let mut batch = Vec::new();
        while self.waiting.blocking_recv_many(&mut batch, BATCH_MAX) > 0 {
            let lines = self.number(&mut batch)?;
            self.file.write_all(&lines).context("could not write receipts")?;
            self.file.sync_data().context("could not sync receipts")?;
            self.count(&batch, lines.len() as u64);
            for entry in batch.drain(..) {
                // The request is no longer waiting if its client disconnected.
                let _ = entry.written.send(());
            }
        }
        Ok(())
    }

    fn number(&mut self, batch: &mut [Entry]) -> anyhow::Result<Vec<u8>> {
        let mut lines = Vec::new();
        for entry in batch {
            self.seq += 1;
            entry.receipt.seq = self.seq;
            serde_json::to_writer(&mut lines, &entry.receipt).context("could not encode a receipt")?;
            lines.push(b'\n');
        }
        Ok(lines)
    }

    fn count(&self, batch: &[Entry], bytes: u64) {
        let mut synced = lock(&self.synced);
        batch.iter().for_each(|entry| synced.tally.add(&entry.receipt));
        synced.bytes += bytes;
        drop(synced);
        self.changed.send_replace(());
    }
}

/// Reads the receipts of an earlier sim, up to the last complete line.
fn read_synced(file: &File) -> anyhow::Result<Synced> {
    let mut synced = Synced::default();
    let mut lines = BufReader::new(file);
    let mut line = Vec::new();
    while lines.read_until(b'\n', &mut line)? > 0 && line.ends_with(b"\n") {
        let number = synced.tally.counts().received + 1;
        let receipt: Receipt =
            serde_json::from_slice(&line).with_context(|| format!("line {number} is not a receipt"))?;
        ensure!(receipt.seq == number, "line {number} has the sequence number {}", receipt.seq);
        synced.tally.add(&receipt);
        synced.bytes += line.len() as u64;
        line.clear();
    }
    // The rest is truncated, so it must be an incomplete receipt and not the content of another file.
    let ours = line.starts_with(LINE_START) || LINE_START.starts_with(&line);
    ensure!(ours, "the file ends in something that is not a receipt");
    Ok(synced)
}

fn lock(synced: &Mutex<Synced>) -> MutexGuard<'_, Synced> {
    synced.lock().unwrap_or_else(PoisonError::into_inner)
}
