//! Leads that are stored together, each person once.

use std::collections::HashMap;

use super::{BadLine, Entry, Lead, Problem, Renamed};

/// Most lines of one chunk.
const LINES_MAX: usize = 5_000;
/// Most memory of one chunk, about.
const BYTES_MAX: usize = 4 * 1024 * 1024;

/// A lead and the lines that it comes from.
#[derive(Debug, Clone)]
pub struct Row {
    /// Line numbers of the lead, in ascending order; never empty.
    pub lines: Vec<u64>,
    /// The lead, merged from all its lines.
    pub lead: Lead,
}

/// A part of a file: the leads that one transaction stores, and the invalid lines.
#[derive(Debug, Default)]
pub struct Chunk {
    /// Leads of the chunk, each person once, in the order of the file.
    pub rows: Vec<Row>,
    /// Lines that are not leads.
    pub bad: Vec<BadLine>,
    /// How many lines were read, good and bad.
    pub lines: u64,
    /// Columns whose attributes have other names, as far as the file was read.
    pub renamed: Vec<Renamed>,
    /// Number of the line on which the last record begins.
    pub last_line: u64,
    at: HashMap<String, usize>,
    bytes: usize,
}

impl Chunk {
    /// Adds a record and merges it with earlier records of the same person.
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

    /// Whether the chunk has reached its limit of lines or bytes.
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
