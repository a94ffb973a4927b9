//! Output of commands: a table for people, JSON for programs.

mod table;

use std::{
    fmt::{self, Display},
    io::{ErrorKind, IsTerminal, Write},
};

use anyhow::Context;
use jiff::Timestamp;
use postrider_store::tenancy::audit::Entry;
use serde::Serialize;

/// The reader closed our output, as `head` does. That is no failure of the command.
#[derive(Debug)]
pub struct OutputClosed;

impl std::error::Error for OutputClosed {}

impl Display for OutputClosed {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("the reader of the output closed it")
    }
}

/// Prints one JSON value to stdout.
pub fn json(value: &impl Serialize) -> anyhow::Result<()> {
    text(&format!("{}\n", serde_json::to_string_pretty(value)?))
}

/// Prints a table to stdout, or `nothing` to stderr when there are no rows.
pub fn table<const N: usize>(header: [&str; N], rows: Vec<[String; N]>, nothing: &str) -> anyhow::Result<()> {
    if rows.is_empty() {
        message!("{nothing}");
        return Ok(());
    }
    let rows: Vec<[String; N]> = rows.into_iter().map(|row| row.map(|cell| printable(&cell))).collect();
    text(&table::arrange(&header.map(str::to_uppercase), &rows, terminal_width()))
}

/// The width of the terminal in columns. `None`, which disables wrapping, when stdout is no terminal or the terminal does not
/// know its size.
fn terminal_width() -> Option<usize> {
    let stdout = std::io::stdout();
    let size = stdout.is_terminal().then(|| rustix::termios::tcgetwinsize(&stdout).ok()).flatten()?;
    (size.ws_col > 0).then_some(usize::from(size.ws_col))
}

/// Prints one line to stdout.
pub fn line(line: impl Display) -> anyhow::Result<()> {
    text(&format!("{}\n", printable(&line.to_string())))
}

/// Prints text unchanged to stdout, and flushes it: a reader may wait for it.
pub fn text(text: &str) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Err(OutputClosed.into()),
        written => written.context("cannot write to stdout"),
    }
}

/// Replaces characters of foreign text that would control the terminal or change the reading direction.
pub fn printable(text: &str) -> String {
    let reorders =
        |c| matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    text.chars().map(|c| if c.is_control() || reorders(c) { '\u{fffd}' } else { c }).collect()
}

/// The beginning of a text, on one line.
pub fn beginning(text: &str, characters: usize) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(characters) {
        Some((end, _)) => format!("{}…", line.get(..end).unwrap_or_default()),
        None => line,
    }
}

/// To the second, in UTC.
pub fn time(at: Timestamp) -> String {
    at.strftime("%Y-%m-%d %H:%M:%SZ").to_string()
}

/// Prints the lines of an audit log, under a heading if there are any.
pub fn log(lines: &[Entry]) -> anyhow::Result<()> {
    if !lines.is_empty() {
        line("log")?;
    }
    for entry in lines {
        let note = entry.note.as_ref().map(|note| format!(": {note}")).unwrap_or_default();
        line(format_args!("  {}  {} by {}{note}", time(entry.at), entry.action, entry.actor))?;
    }
    Ok(())
}

/// A time to the second in UTC, or a dash.
pub fn time_or_dash(at: Option<Timestamp>) -> String {
    at.map_or_else(|| "-".to_owned(), time)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_of_foreign_text_are_replaced() {
        assert_eq!(printable("a\u{1b}[2J\nb\u{202e}c\u{9b}"), "a\u{fffd}[2J\u{fffd}b\u{fffd}c\u{fffd}");
        assert_eq!(printable("Grüße 👋 שלום"), "Grüße 👋 שלום");
    }

    #[test]
    fn a_beginning_is_one_line() {
        assert_eq!(beginning("a\n b", 5), "a b");
        assert_eq!(beginning("äöü", 3), "äöü");
        assert_eq!(beginning("äöüß", 3), "äöü…");
    }
}
