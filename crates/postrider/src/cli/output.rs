//! How commands show data: a table for people, JSON for programs.

use std::io::Write;

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
        eprintln!("{nothing}");
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
pub fn line(text: &str) -> anyhow::Result<()> {
    writeln!(std::io::stdout().lock(), "{}", printable(text))?;
    Ok(())
}

/// Text from outside must not steer the terminal.
fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

/// To the second, in UTC.
pub fn time(at: Timestamp) -> String {
    at.strftime("%Y-%m-%d %H:%M:%SZ").to_string()
}

/// The same, or a dash.
pub fn time_or_dash(at: Option<Timestamp>) -> String {
    at.map_or_else(|| "-".to_owned(), time)
}
