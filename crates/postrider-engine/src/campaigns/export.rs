//! The items of a run as a file: CSV for spreadsheets, NDJSON for programs.

use std::fmt::Write;

use postrider_store::campaigns::items::Item;
use serde::Deserialize;

/// The format of the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// A header and a line per item (RFC 4180).
    #[default]
    Csv,
    /// A JSON object per line.
    Ndjson,
}

/// The members of an item, in the order of the columns.
const COLUMNS: [&str; 18] = [
    "id",
    "job_id",
    "recipient_id",
    "recipient",
    "idempotency_key",
    "status",
    "in_doubt",
    "provider",
    "provider_message_id",
    "error",
    "reserved_by",
    "attempt",
    "created_at",
    "finalized_at",
    "doubted_since",
    "delivery_status",
    "delivery_detail",
    "delivery_at",
];

impl Format {
    /// The media type.
    #[must_use]
    pub fn media_type(self) -> &'static str {
        match self {
            Self::Csv => "text/csv; charset=utf-8",
            Self::Ndjson => "application/x-ndjson",
        }
    }

    /// The ending of a file name.
    #[must_use]
    pub fn ending(self) -> &'static str {
        match self {
            Self::Csv => "csv",
            Self::Ndjson => "ndjson",
        }
    }

    /// The beginning of the file.
    #[must_use]
    pub fn head(self) -> String {
        match self {
            Self::Csv => format!("{}\r\n", COLUMNS.join(",")),
            Self::Ndjson => String::new(),
        }
    }

    /// The lines of these items.
    #[must_use]
    pub fn lines(self, items: &[Item]) -> String {
        let mut lines = String::new();
        for item in items {
            match self {
                Self::Csv => push_csv(&mut lines, item),
                Self::Ndjson => push_json(&mut lines, item),
            }
        }
        lines
    }
}

/// The values of an item, in the order of [`COLUMNS`].
fn values(item: &Item) -> [Option<String>; 18] {
    let time = |at: jiff::Timestamp| at.to_string();
    let delivery = item.delivery.as_ref();
    [
        Some(item.id.0.to_string()),
        Some(item.job_id.0.to_string()),
        item.recipient_id.map(|id| id.to_string()),
        item.recipient.clone(),
        Some(item.idempotency_key.to_string()),
        Some(item.status.to_string()),
        Some(item.doubted_since.is_some().to_string()),
        Some(item.provider.clone()),
        item.provider_message_id.clone(),
        item.error.clone(),
        item.reserved_by.clone(),
        item.attempt.map(|attempt| attempt.to_string()),
        Some(time(item.created_at)),
        item.finalized_at.map(time),
        item.doubted_since.map(time),
        delivery.map(|delivery| delivery.status.to_string()),
        delivery.and_then(|delivery| delivery.detail.clone()),
        delivery.map(|delivery| time(delivery.at)),
    ]
}

fn push_csv(lines: &mut String, item: &Item) {
    for (n, value) in values(item).iter().enumerate() {
        if n > 0 {
            lines.push(',');
        }
        push_cell(lines, value.as_deref().unwrap_or_default());
    }
    lines.push_str("\r\n");
}

/// A cell that a spreadsheet shows as it is. A text that the spreadsheet would execute as a formula begins with an apostrophe.
fn push_cell(line: &mut String, text: &str) {
    let guard = if is_formula(text) { "'" } else { "" };
    if text.contains([',', '"', '\r', '\n', ';', '\t']) || text.starts_with(' ') || text.ends_with(' ') {
        // Writing to a String cannot fail.
        let _ = write!(line, "\"{guard}{}\"", text.replace('"', "\"\""));
    } else {
        line.push_str(guard);
        line.push_str(text);
    }
}

/// Whether a spreadsheet takes the text for a formula. Some of them skip blanks, and take full-width signs for plain ones.
fn is_formula(text: &str) -> bool {
    text.starts_with(['\t', '\r', '\n'])
        || text
            .trim_start()
            .starts_with(['=', '+', '-', '@', '|', '\u{ff1d}', '\u{ff0b}', '\u{ff0d}', '\u{ff20}'])
}

fn push_json(lines: &mut String, item: &Item) {
    let mut object = serde_json::Map::new();
    for (name, value) in COLUMNS.iter().zip(values(item)) {
        let value = match (*name, value) {
            ("in_doubt", _) => item.doubted_since.is_some().into(),
            ("attempt", _) => item.attempt.into(),
            (_, value) => value.into(),
        };
        object.insert((*name).to_owned(), value);
    }
    // Writing to a String cannot fail.
    let _ = writeln!(lines, "{}", serde_json::Value::Object(object));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cell(text: &str) -> String {
        let mut line = String::new();
        push_cell(&mut line, text);
        line
    }

    #[test]
    fn no_cell_begins_with_a_formula() {
        for (text, expected) in [
            ("=1+1", "'=1+1"),
            ("+4930901820", "'+4930901820"),
            ("-7", "'-7"),
            ("@SUM(A1)", "'@SUM(A1)"),
            ("  =1", "\"'  =1\""),
            ("\t=1", "\"'\t=1\""),
            ("\r\nx", "\"'\r\nx\""),
            ("\u{ff1d}1", "'\u{ff1d}1"),
            ("=HYPERLINK(\"x\",\"y\")", "\"'=HYPERLINK(\"\"x\"\",\"\"y\"\")\""),
            ("|calc", "'|calc"),
        ] {
            assert_eq!(cell(text), expected, "{text:?}");
        }
    }

    #[test]
    fn other_cells_are_quoted_only_where_they_must_be() {
        for (text, expected) in [
            ("ann@example.org", "ann@example.org"),
            ("a=b", "a=b"),
            ("", ""),
            ("a,b", "\"a,b\""),
            ("say \"no\"", "\"say \"\"no\"\"\""),
            ("two\nlines", "\"two\nlines\""),
        ] {
            assert_eq!(cell(text), expected, "{text:?}");
        }
    }
}
