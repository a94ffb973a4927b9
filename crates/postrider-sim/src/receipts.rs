//! Receipts: one line per request, on disk before the answer.
//!
//! ```text
//! record ──queue──► Writer: write all that wait ─► fdatasync ─► count ─► wake their requests
//! ```
//!
//! Many requests share one fdatasync, so thousands a second get through on an ordinary disk.

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

/// What one request was, and what became of it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Receipt {
    /// Its place in the file, from 1. The writer sets it.
    pub seq: u64,
    /// When the request had been read, RFC 3339 with microseconds.
    pub at: String,
    /// The path it came to.
    pub path: String,
    /// Header `webhook-id`.
    pub webhook_id: Option<String>,
    /// Header `webhook-timestamp`, as it came.
    pub webhook_timestamp: Option<String>,
    /// `type` in the body, if the body is JSON and has one.
    pub event_type: Option<String>,
    /// Whether the signature held; null when none was asked for.
    pub verified: Option<bool>,
    /// Whether the sim did what was asked.
    pub acted: bool,
    /// The fault that struck.
    pub fault: Option<Fault>,
    /// The status about to be answered; null when no whole answer follows.
    pub answered: Option<u16>,
    /// SHA-256 of the body in hex; null when the body was too large to read.
    pub body_sha256: Option<String>,
    /// The face that a message came to, such as `resend`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub provider: Option<String>,
    /// The idempotency key of a message, where the provider can know it; the id of the job that calls a function.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// The channel of a message.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub channel: Option<String>,
    /// Who gives a mail, calls or posts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// Who is to have a message; several recipients of a mail are joined by `, `. The name of a function.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
    /// The record key of a post that is put.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rkey: Option<String>,
    /// The name of what was done: our own in the answer, or the header `Message-ID` of a mail.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message_id: Option<String>,
    /// The size of a mail, without the dots that were added on its way.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    /// What a chat message says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// The thread, topic or message that a chat message belongs to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub thread: Option<String>,
    /// The tenant whose job calls a function.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant_id: Option<String>,
    /// The lock key of such a job.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lock_key: Option<String>,
    /// Which attempt of the job this is, from 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u32>,
    /// The outage that turned this away. Then look-ups are written down too.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outage: Option<Outage>,
    /// The method of a request that an outage turned away.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub method: Option<String>,
    /// How long the request was stuck before it was acted on; nobody waited for the answer any more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delayed_ms: Option<u64>,
}

impl Receipt {
    /// The receipt of what is done now that the request is no longer stuck. The request itself has one of its own.
    pub fn late(self, delay: Duration, message_id: Option<String>) -> Self {
        let delayed_ms = Some(u64::try_from(delay.as_millis()).unwrap_or(u64::MAX));
        Self { at: now(), fault: None, acted: true, answered: None, delayed_ms, message_id, ..self }
    }
}

/// The time of a receipt.
pub fn now() -> String {
    format!("{:.6}", jiff::Timestamp::now())
}

/// The receipts of this sim. Once every ledger is dropped, its writer ends.
pub struct Ledger {
    path: PathBuf,
    queue: mpsc::Sender<Entry>,
    kept: Arc<Mutex<Kept>>,
    changes: watch::Receiver<()>,
}

struct Entry {
    receipt: Receipt,
    written: oneshot::Sender<()>,
}

/// What is on disk for certain.
#[derive(Default)]
struct Kept {
    tally: Tally,
    bytes: u64,
}

impl Ledger {
    /// Opens or creates the file. Receipts that are there already count.
    pub fn open(path: &Path) -> anyhow::Result<(Self, Writer)> {
        let file = OpenOptions::new().read(true).append(true).create(true).open(path);
        let file = file.with_context(|| format!("could not open the receipts file {}", path.display()))?;
        Self::over(file, path.to_owned())
    }

    /// A new file that outlives the sim.
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
        let kept = read_kept(&file).with_context(|| format!("could not read the receipts in {shown}"))?;
        // What a killed sim left without an end of line was never acknowledged.
        file.set_len(kept.bytes).with_context(|| format!("could not cut the unfinished line off {shown}"))?;
        file.sync_all().with_context(|| format!("could not sync {shown}"))?;

        let (queue, waiting) = mpsc::channel(QUEUE_MAX);
        let (changed, changes) = watch::channel(());
        let seq = kept.tally.counts().received;
        let kept = Arc::new(Mutex::new(kept));
        let writer = Writer { file, seq, waiting, kept: Arc::clone(&kept), changed };
        Ok((Self { path, queue, kept, changes }, writer))
    }

    /// Writes a receipt down. When this returns, it is on disk and counted.
    ///
    /// A caller that goes away meanwhile takes nothing back: a receipt in the queue is written.
    pub async fn record(&self, receipt: Receipt) -> anyhow::Result<()> {
        let (written, on_disk) = oneshot::channel();
        self.queue.send(Entry { receipt, written }).await.ok().context("the receipts writer is gone")?;
        on_disk.await.context("the receipt could not be written")
    }

    /// Counts over what is on disk.
    pub fn counts(&self) -> Counts {
        lock(&self.kept).tally.counts().clone()
    }

    /// Returns as soon as the counts are `enough`, or when nothing can be written any more.
    pub async fn wait_until(&self, enough: impl Fn(&Counts) -> bool) {
        let mut changes = self.changes.clone();
        // Marked before the look, so that a change during the look is not lost.
        changes.mark_unchanged();
        while !enough(lock(&self.kept).tally.counts()) && changes.changed().await.is_ok() {}
    }

    /// How much of the file holds whole receipts.
    pub fn bytes(&self) -> u64 {
        lock(&self.kept).bytes
    }

    /// Where the receipts are.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// The one that writes, on a thread of its own.
pub struct Writer {
    file: File,
    seq: u64,
    waiting: mpsc::Receiver<Entry>,
    kept: Arc<Mutex<Kept>>,
    changed: watch::Sender<()>,
}

impl Writer {
    /// Writes until every ledger is gone. A failure ends it: a referee who cannot write must not go on.
    pub fn run(mut self) -> anyhow::Result<()> {
        let mut batch = Vec::new();
        while self.waiting.blocking_recv_many(&mut batch, BATCH_MAX) > 0 {
            let lines = self.number(&mut batch)?;
            self.file.write_all(&lines).context("could not write receipts")?;
            self.file.sync_data().context("could not sync receipts")?;
            self.count(&batch, lines.len() as u64);
            for entry in batch.drain(..) {
                // A client that went away has no one waiting here.
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
        let mut kept = lock(&self.kept);
        batch.iter().for_each(|entry| kept.tally.add(&entry.receipt));
        kept.bytes += bytes;
        drop(kept);
        self.changed.send_replace(());
    }
}

/// Reads what an earlier sim wrote, up to the last whole line.
fn read_kept(file: &File) -> anyhow::Result<Kept> {
    let mut kept = Kept::default();
    let mut lines = BufReader::new(file);
    let mut line = Vec::new();
    while lines.read_until(b'\n', &mut line)? > 0 && line.ends_with(b"\n") {
        let number = kept.tally.counts().received + 1;
        let receipt: Receipt =
            serde_json::from_slice(&line).with_context(|| format!("line {number} is not a receipt"))?;
        ensure!(receipt.seq == number, "line {number} has the sequence number {}", receipt.seq);
        kept.tally.add(&receipt);
        kept.bytes += line.len() as u64;
        line.clear();
    }
    // What follows is cut off, so it must be ours: someone's notes are not.
    let ours = line.starts_with(LINE_START) || LINE_START.starts_with(&line);
    ensure!(ours, "it ends in something that is not a receipt");
    Ok(kept)
}

fn lock(kept: &Mutex<Kept>) -> MutexGuard<'_, Kept> {
    kept.lock().unwrap_or_else(PoisonError::into_inner)
}
