//! How commands show data: a table for people, JSON for programs.

use std::{fmt::Display, io::Write};

use comfy_table::{ContentArrangement, Table, presets};
use jiff::Timestamp;
use serde::Serialize;

/// Prints one JSON value to stdout.
pub fn json(value: &impl Serialize) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    serde_json::to_writer_pretty(&mut out, value)?;
    writeln!(out)?;
    Ok(())
}

/// Prints a table to stdout, or words to stderr when there is nothing to show.
pub fn table<const N: usize>(header: [&str; N], rows: Vec<[String; N]>, nothing: &str) -> anyhow::Result<()> {
    if rows.is_empty() {
        tell!("{nothing}");
        return Ok(());
    }
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Dynamic);
    table.set_header(header.map(str::to_uppercase));
    for row in rows {
        table.add_row(row.map(|cell| printable(&cell)));
    }
    let mut out = std::io::stdout().lock();
    for line in table.lines() {
        writeln!(out, "{}", line.trim_end())?;
    }
    Ok(())
}

/// Prints one line to stdout.
pub fn line(text: impl Display) -> anyhow::Result<()> {
    writeln!(std::io::stdout().lock(), "{}", printable(&text.to_string()))?;
    Ok(())
}

/// Prints text that is ours, of many lines, to stdout.
pub fn text(text: &str) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()?;
    Ok(())
}

/// Text from outside must not steer the terminal, nor turn around the order in which it is read.
pub fn printable(text: &str) -> String {
    let turns = |c| matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    text.chars().map(|c| if c.is_control() || turns(c) { '\u{fffd}' } else { c }).collect()
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

/// The same, or a dash.
pub fn time_or_dash(at: Option<Timestamp>) -> String {
    at.map_or_else(|| "-".to_owned(), time)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_from_outside_steers_nothing() {
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
