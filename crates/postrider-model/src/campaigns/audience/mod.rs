//! Leads: reading the lines of a file and validating them.
//!
//! ```text
//! bytes ──Leads──▶ one line at a time ──rules──▶ a lead, or the error of the line ──Chunk──▶ rows to store
//! ```
//!
//! The reader holds a bounded part of the file, so a file may be larger than the memory.

mod chunk;
mod column;
mod csv;
mod input;
mod json;
mod lead;
mod reader;
mod rules;
#[cfg(test)]
mod tests;

pub use chunk::{Chunk, Row};
pub use column::Renamed;
pub use csv::Delimiter;
pub use lead::{Lead, Problem};
pub use reader::{Entry, Format, Leads, OpenError, Options};
pub use rules::{Country, list_name};
use serde::Serialize;

/// Longest line of a file, in bytes.
pub const LINE_BYTES_MAX: usize = 64 * 1024;
/// Most columns of a CSV file.
pub const COLUMNS_MAX: usize = 1000;
/// Longest external id, in bytes. The database holds the same limit.
pub const EXTERNAL_ID_BYTES_MAX: usize = 255;
/// Longest e-mail address, in bytes: more does not fit into an SMTP command.
pub const EMAIL_BYTES_MAX: usize = 254;
/// Longest reason for a suppression, in bytes.
pub const REASON_BYTES_MAX: usize = 255;
/// Longest name of an attribute, in bytes.
pub const ATTRIBUTE_NAME_BYTES_MAX: usize = 128;
/// Largest attributes of a lead together, in bytes of their text in the database, which holds the same limit.
pub const ATTRIBUTES_BYTES_MAX: usize = 8192;
/// Most renamed columns of a file that are reported.
pub const RENAMED_MAX: usize = COLUMNS_MAX;
/// Longest name of a list, in bytes. The database holds the same limit.
pub const LIST_NAME_BYTES_MAX: usize = 255;

/// A line that did not become a lead.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct BadLine {
    /// Number of its first line in the file, counted from one.
    pub line: u64,
    /// The error, as one sentence.
    pub reason: String,
}
