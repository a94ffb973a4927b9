//! The rows that an import reads, and their results.

use std::{
    io::{self, Read},
    thread,
};

use postrider_model::{
    campaigns::audience::{BadLine, Chunk, Leads, Renamed},
    ids::ListId,
};
use serde::Serialize;
use tokio::sync::mpsc;

use super::Imported;

/// Maximum number of bad lines that are reported one by one.
const REPORTED_MAX: usize = 100;

/// Reads on a thread of its own, and waits when it is ahead: however much there is, three chunks of it are in memory. A thread
/// that waits for its source cannot be stopped, and must not hold up the end.
pub fn read_ahead<R: Read + Send + 'static>(
    leads: Leads<R>,
) -> io::Result<mpsc::Receiver<io::Result<Chunk>>> {
    let (sender, receiver) = mpsc::channel(1);
    thread::Builder::new().name("reading leads".to_owned()).spawn(move || {
        // A receiver that is gone has reported the reason.
        let _: Option<()> = send_chunks(leads, &sender);
    })?;
    Ok(receiver)
}

/// Sends the chunks of a file. `None` when the receiver is gone.
fn send_chunks<R: Read>(mut leads: Leads<R>, sender: &mpsc::Sender<io::Result<Chunk>>) -> Option<()> {
    let mut chunk = Chunk::default();
    while let Some(entry) = leads.next() {
        match entry {
            Ok(entry) => chunk.add(entry),
            Err(error) => {
                if !chunk.is_empty() {
                    sender.blocking_send(Ok(chunk)).ok()?;
                }
                return sender.blocking_send(Err(error)).ok();
            }
        }
        if chunk.is_full() {
            chunk.renamed = leads.renamed().to_vec();
            sender.blocking_send(Ok(std::mem::take(&mut chunk))).ok()?;
        }
    }
    chunk.renamed = leads.renamed().to_vec();
    if chunk.is_empty() { Some(()) } else { sender.blocking_send(Ok(chunk)).ok() }
}

/// The result of an import.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Summary {
    /// The list, if a lead was put on it.
    pub list_id: Option<ListId>,
    /// Lines that were read, good and bad.
    pub lines: u64,
    /// New leads.
    pub added: u64,
    /// Leads that existed before.
    pub updated: u64,
    /// Lines about the person of an earlier line.
    pub repeated: u64,
    /// Lines whose lead was recognised by its address, or by an external id that it got later.
    pub matched_by_address: u64,
    /// Lines that were left out.
    pub bad: u64,
    /// The first of those, with their problems.
    pub bad_lines: Vec<BadLine>,
    /// Columns whose names templates cannot use, with the names of their attributes.
    pub renamed: Vec<Renamed>,
}

impl Summary {
    /// Adds the result of a chunk. Returns its bad lines, in their order.
    pub fn add(&mut self, chunk: Chunk, imported: Imported) -> Vec<BadLine> {
        self.list_id = self.list_id.or(imported.list);
        self.lines += chunk.lines;
        self.added += imported.added;
        self.updated += imported.updated;
        self.repeated += imported.repeated;
        self.matched_by_address += imported.matched;
        self.renamed = chunk.renamed;
        let mut bad = chunk.bad;
        bad.extend(imported.refused);
        bad.sort_by_key(|bad| bad.line);
        self.bad += bad.len() as u64;
        let room = REPORTED_MAX.saturating_sub(self.bad_lines.len());
        self.bad_lines.extend(bad.iter().take(room).cloned());
        bad
    }
}
