//! What an import reads, and what became of it.

use std::{
    io::{self, Read},
    thread,
};

use postrider_model::{
    audience::{BadLine, Chunk, Leads},
    ids::ListId,
};
use serde::Serialize;
use tokio::sync::mpsc;

use super::Imported;

/// Bad lines that are told one by one.
const TOLD_MAX: usize = 100;

/// Reads on a thread of its own, and waits when it is ahead: however much there is, three chunks of it are in memory. A thread
/// that waits for its source cannot be stopped, and must not hold up the end.
pub fn read_ahead<R: Read + Send + 'static>(
    leads: Leads<R>,
) -> io::Result<mpsc::Receiver<io::Result<Chunk>>> {
    let (sender, receiver) = mpsc::channel(1);
    thread::Builder::new().name("reading leads".to_owned()).spawn(move || {
        // Whoever does not listen any more has said why.
        let _ = send_chunks(leads, &sender);
    })?;
    Ok(receiver)
}

fn send_chunks<R: Read>(
    leads: Leads<R>,
    sender: &mpsc::Sender<io::Result<Chunk>>,
) -> Result<(), mpsc::error::SendError<io::Result<Chunk>>> {
    let mut chunk = Chunk::default();
    for entry in leads {
        match entry {
            Ok(entry) => chunk.add(entry),
            Err(error) => {
                if !chunk.is_empty() {
                    sender.blocking_send(Ok(chunk))?;
                }
                return sender.blocking_send(Err(error));
            }
        }
        if chunk.is_full() {
            sender.blocking_send(Ok(std::mem::take(&mut chunk)))?;
        }
    }
    if chunk.is_empty() { Ok(()) } else { sender.blocking_send(Ok(chunk)) }
}

/// What came out of an import.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Summary {
    /// The list, if anybody was put on it.
    pub list_id: Option<ListId>,
    /// Lines that were read, good and bad.
    pub lines: u64,
    /// Leads that were not known.
    pub added: u64,
    /// Leads that were.
    pub updated: u64,
    /// Lines about somebody of whom another line was there already.
    pub repeated: u64,
    /// Lines whose lead was recognised by its address, or by an external id that it got later.
    pub matched_by_address: u64,
    /// Lines that were left out.
    pub bad: u64,
    /// The first of those, with what is wrong.
    pub bad_lines: Vec<BadLine>,
}

impl Summary {
    /// A chunk was read, and this became of it. Returns its bad lines, in their order.
    pub fn add(&mut self, chunk: Chunk, imported: Imported) -> Vec<BadLine> {
        self.list_id = self.list_id.or(imported.list);
        self.lines += chunk.lines;
        self.added += imported.added;
        self.updated += imported.updated;
        self.repeated += imported.repeated;
        self.matched_by_address += imported.matched;
        let mut bad = chunk.bad;
        bad.extend(imported.refused);
        bad.sort_by_key(|bad| bad.line);
        self.bad += bad.len() as u64;
        let room = TOLD_MAX.saturating_sub(self.bad_lines.len());
        self.bad_lines.extend(bad.iter().take(room).cloned());
        bad
    }
}
