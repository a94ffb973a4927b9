//! Reads leads from a source of bytes, one at a time.

use std::io::{self, Read};

use super::{
    Country, Delimiter, Lead, Problem, RENAMED_MAX, Renamed,
    csv::Csv,
    input::Input,
    json,
    rules::{self, Rules},
};

/// Format of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// A header and comma-separated values.
    Csv,
    /// A JSON object per line.
    Ndjson,
}

/// How to read a file.
#[derive(Debug, Clone, Copy, Default)]
pub struct Options {
    /// Format of the file. By default its first character decides.
    pub format: Option<Format>,
    /// Delimiter of the cells. By default the header decides.
    pub delimiter: Option<Delimiter>,
    /// Country of phone numbers without a country code.
    pub country: Option<Country>,
}

/// A file that cannot be imported at all.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The source failed.
    #[error("it cannot be read")]
    Unreadable(#[from] io::Error),
    /// The content is not a list of leads.
    #[error("{0}")]
    Unfit(String),
}

/// One record of the file and its lead.
#[derive(Debug)]
pub struct Entry {
    /// Number of its first line, counted from one.
    pub line: u64,
    /// The lead, or the error of the record.
    pub lead: Result<Lead, Problem>,
}

/// An iterator over the records of a source, in the order of its lines. Blank lines are skipped.
pub struct Leads<R> {
    input: Input<R>,
    rules: Rules,
    lines: Lines,
    /// Columns whose attributes have other names, as far as the file was read.
    renamed: Vec<Renamed>,
}

enum Lines {
    Csv(Box<Csv>),
    Ndjson(Vec<u8>),
}

impl<R: Read> Leads<R> {
    /// Detects the format and reads the header. Every error that concerns the whole file is returned here.
    pub fn open(source: R, options: &Options) -> Result<Self, OpenError> {
        let mut input = Input::new(source);
        skip_mark(&mut input)?;
        let first = first_character(&mut input)?.ok_or_else(|| unfit("it is empty"))?;
        let format = options.format.unwrap_or(if first == b'{' { Format::Ndjson } else { Format::Csv });
        let mut lines = match format {
            _ if first == b'[' => {
                return Err(unfit(
                    "it is a JSON array, or no list of leads at all; NDJSON has one object per line, as `jq -c '.[]'` writes it",
                ));
            }
            Format::Csv => Lines::Csv(Box::new(Csv::open(&mut input, options.delimiter)?)),
            Format::Ndjson if options.delimiter.is_some() => {
                return Err(unfit("it is NDJSON, where nothing is delimited; leave the delimiter out"));
            }
            Format::Ndjson => Lines::Ndjson(Vec::new()),
        };
        let renamed = match &mut lines {
            Lines::Csv(csv) => std::mem::take(&mut csv.renamed),
            Lines::Ndjson(_) => Vec::new(),
        };
        Ok(Self { input, rules: Rules::new(options.country), lines, renamed })
    }

    fn read(&mut self) -> io::Result<Option<Entry>> {
        let read = match &mut self.lines {
            Lines::Csv(csv) => csv.next(&mut self.input)?,
            Lines::Ndjson(text) => json::next_line(&mut self.input, text)?
                .map(|(line, whole)| (line, whole.and_then(|()| rules::text(text)).and_then(json::draft))),
        };
        let Some((line, mut draft)) = read else { return Ok(None) };
        if let Ok(draft) = &mut draft {
            for renamed in draft.renamed.drain(..) {
                if self.renamed.len() < RENAMED_MAX && !self.renamed.contains(&renamed) {
                    self.renamed.push(renamed);
                }
            }
        }
        Ok(Some(Entry { line, lead: draft.and_then(|draft| self.rules.check(draft)) }))
    }

    /// Columns whose attributes have other names, as far as the file was read; of NDJSON the first [`RENAMED_MAX`].
    #[must_use]
    pub fn renamed(&self) -> &[Renamed] {
        &self.renamed
    }
}

impl<R: Read> Iterator for Leads<R> {
    type Item = io::Result<Entry>;

    fn next(&mut self) -> Option<Self::Item> {
        self.read().transpose()
    }
}

fn unfit(why: &str) -> OpenError {
    OpenError::Unfit(why.to_owned())
}

/// Skips the byte order mark of UTF-8. A byte order mark of another encoding is an error.
fn skip_mark<R: Read>(input: &mut Input<R>) -> Result<(), OpenError> {
    while input.peek().len() < 3 && input.more()? {}
    match input.peek() {
        [0xef, 0xbb, 0xbf, ..] => input.take(3),
        [0xff, 0xfe, ..] | [0xfe, 0xff, ..] => {
            return Err(unfit("it is written in UTF-16; save it as UTF-8"));
        }
        _ => {}
    }
    Ok(())
}

/// The first character that is not white space. It stays in the buffer; blank lines before it are skipped. `None` when
/// the file is empty.
fn first_character<R: Read>(input: &mut Input<R>) -> io::Result<Option<u8>> {
    loop {
        let ahead = input.peek();
        let first = ahead.iter().position(|byte| !byte.is_ascii_whitespace());
        let blank = &ahead[..first.unwrap_or(ahead.len())];
        let blank_lines = blank.iter().rposition(|byte| b"\r\n".contains(byte)).map_or(0, |end| end + 1);
        let found = first.map(|at| ahead[at]);
        input.take(blank_lines);
        if found.is_some() || !input.more()? {
            return Ok(found);
        }
    }
}
