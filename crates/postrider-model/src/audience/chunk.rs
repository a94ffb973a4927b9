//! Leads that are stored together, each person once.

use std::collections::HashMap;

use super::{BadLine, Entry, Lead, Problem};

/// Most lines of one chunk.
const LINES_MAX: usize = 5_000;
/// Most memory of one chunk, about.
const BYTES_MAX: usize = 4 * 1024 * 1024;

/// A lead and the lines that it comes from.
#[derive(Debug, Clone)]
pub struct Row {
    /// Where it was mentioned, first to last; never empty.
    pub lines: Vec<u64>,
    /// What all of them say.
    pub lead: Lead,
}

/// A part of a file: what is stored in one transaction, and what is wrong.
#[derive(Debug, Default)]
pub struct Chunk {
    /// Who was found, each person once, in the order of the file.
    pub rows: Vec<Row>,
    /// Lines that are not leads.
    pub bad: Vec<BadLine>,
    /// How many lines were read, good and bad.
    pub lines: u64,
    /// Where the last of them begins.
    pub last_line: u64,
    at: HashMap<String, usize>,
    bytes: usize,
}

impl Chunk {
    /// Adds a line.
    pub fn add(&mut self, entry: Entry) {
        let Entry { line, lead } = entry;
        self.lines += 1;
        self.last_line = line;
        if let Err(problem) = lead.and_then(|lead| self.add_lead(line, lead)) {
            self.bad.push(BadLine { line, reason: problem.to_string() });
        }
    }

    fn add_lead(&mut self, line: u64, lead: Lead) -> Result<(), Problem> {
        let bytes = lead.bytes();
        match self.at.get(&lead.identity).and_then(|at| self.rows.get_mut(*at)) {
            Some(row) => {
                row.lead.absorb(lead).map_err(|Problem(why)| {
                    let first = row.lines.first().copied().unwrap_or_default();
                    Problem(format!("together with line {first}, which is about the same person, {why}"))
                })?;
                row.lines.push(line);
            }
            None => {
                self.at.insert(lead.identity.clone(), self.rows.len());
                self.rows.push(Row { lines: vec![line], lead });
            }
        }
        self.bytes += bytes;
        Ok(())
    }

    /// Whether it is time to store it.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.lines >= LINES_MAX as u64 || self.bytes >= BYTES_MAX
    }

    /// Whether nothing was read.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.lines == 0
    }
}
