//! CSV: a header, then one record per line, or several lines where a cell in quotation marks holds line breaks.
//!
//! This module uses the parser of `csv-core` and not the reader of `csv`, because that reader takes a record of any size
//! into memory: a quotation mark that is never closed would make the rest of the file one record.

use std::{
    io::{self, Read},
    str::FromStr,
};

use csv_core::{ReadRecordResult, Reader, ReaderBuilder, Terminator};
use serde_json::value::to_raw_value;

use super::{
    COLUMNS_MAX, LINE_BYTES_MAX, OpenError, Problem,
    column::{Column, IDENTIFYING, Renamed},
    input::Input,
    lead::problem,
    rules::{Draft, shown, text, too_long},
};

/// The character between two cells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Delimiter(u8);

/// A text that is not a delimiter.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{raw}` is not a delimiter; use one printable character, such as , or ; or |, or the word tab")]
pub struct NotADelimiter {
    raw: String,
}

impl FromStr for Delimiter {
    type Err = NotADelimiter;

    fn from_str(raw: &str) -> Result<Self, NotADelimiter> {
        match raw.as_bytes() {
            b"tab" | b"\t" | b"\\t" => Ok(Self(b'\t')),
            [byte] if byte.is_ascii_punctuation() && *byte != b'"' => Ok(Self(*byte)),
            _ => Err(NotADelimiter { raw: raw.to_owned() }),
        }
    }
}

/// Delimiters that are recognised from the header, the most likely first.
const DELIMITERS: [Delimiter; 3] = [Delimiter(b','), Delimiter(b';'), Delimiter(b'\t')];

/// A CSV file after its header.
pub(super) struct Csv {
    parser: Reader,
    columns: Vec<Column>,
    /// Columns whose attributes have other names.
    pub(super) renamed: Vec<Renamed>,
    cells: Box<[u8]>,
    ends: Box<[usize]>,
}

/// One record: the number of its first line, and its content.
pub(super) type Record = (u64, Result<Draft, Problem>);

impl Csv {
    /// Reads the header.
    pub(super) fn open<R: Read>(
        input: &mut Input<R>,
        delimiter: Option<Delimiter>,
    ) -> Result<Self, OpenError> {
        let mut buffered = Buffered::Part;
        loop {
            let newline = newline(input.peek(), buffered);
            if let Some((bytes, delimiter, names)) = header(input.peek(), newline, delimiter, buffered) {
                let (columns, renamed) = columns(&names)?;
                input.set_newline(newline);
                input.take(bytes);
                if input.available()?.is_empty() {
                    return Err(unfit("it has a header and no lines".to_owned()));
                }
                return Ok(Self { renamed, ..Self::new(delimiter, newline, columns) });
            }
            buffered = match buffered {
                Buffered::Part if input.peek().len() > LINE_BYTES_MAX => Buffered::HeaderLimit,
                Buffered::Part if input.more()? => Buffered::Part,
                Buffered::Part => Buffered::File,
                Buffered::HeaderLimit | Buffered::File => {
                    return Err(unfit(format!(
                        "its first line opens a quotation mark and does not close it, or is longer than {LINE_BYTES_MAX} bytes; a \
                         CSV file begins with the names of its columns"
                    )));
                }
            };
        }
    }

    fn new(delimiter: Delimiter, newline: u8, columns: Vec<Column>) -> Self {
        Self {
            parser: parser(delimiter, newline),
            // One more than allowed, so that a record with too many fields is noticed.
            ends: vec![0; columns.len() + 1].into_boxed_slice(),
            cells: vec![0; LINE_BYTES_MAX + 1].into_boxed_slice(),
            columns,
            renamed: Vec::new(),
        }
    }

    /// The next record. `None` at the end.
    pub(super) fn next<R: Read>(&mut self, input: &mut Input<R>) -> io::Result<Option<Record>> {
        while input.available()?.first().is_some_and(|byte| b"\r\n".contains(byte)) {
            input.take(1);
        }
        let (line, newline) = (input.line(), [input.newline()]);
        let (mut bytes, mut written, mut fields) = (0, 0, 0);
        // A record over a limit is read to its end and discarded.
        let (mut too_large, mut too_many) = (false, false);
        let at_end = loop {
            let available = input.available()?;
            let at_end = available.is_empty();
            if at_end && bytes == 0 {
                return Ok(None);
            }
            // A file may end without the end of a line, so one is added there.
            let piece = if at_end { &newline[..] } else { available };
            let (result, read, wrote, ended) =
                self.parser.read_record(piece, &mut self.cells[written..], &mut self.ends[fields..]);
            if !at_end {
                input.take(read);
            }
            (bytes, written, fields) = (bytes + read, written + wrote, fields + ended);
            too_large |= bytes > LINE_BYTES_MAX;
            match result {
                ReadRecordResult::Record | ReadRecordResult::End => break at_end,
                // A record that is still open after the last line break is inside quotation marks.
                ReadRecordResult::InputEmpty if at_end => return Ok(Some((line, Err(unclosed())))),
                ReadRecordResult::InputEmpty => {}
                ReadRecordResult::OutputFull => too_large = true,
                ReadRecordResult::OutputEndsFull => too_many = true,
            }
            if too_large {
                written = 0;
            }
            if too_many {
                fields = 0;
            }
        };
        let last_line = if at_end { input.line() } else { input.line() - 1 };
        let expected = self.columns.len();
        let draft = if too_large {
            Err(too_long())
        } else if too_many || fields != expected {
            let found = if too_many { format!("more than {expected}") } else { fields.to_string() };
            Err(wrong_number(&found, expected, line, last_line))
        } else {
            self.draft(written)
        };
        Ok(Some((line, draft)))
    }

    fn draft(&self, written: usize) -> Result<Draft, Problem> {
        let text = text(&self.cells[..written])?;
        let mut draft = Draft::default();
        let mut start = 0;
        for (column, end) in self.columns.iter().zip(&self.ends) {
            // The end of a cell is the end of a character, because a delimiter stood there.
            let cell = text.get(start..*end).unwrap_or_default().trim();
            start = *end;
            if cell.is_empty() {
                continue;
            }
            let field = match column {
                Column::ExternalId => &mut draft.external_id,
                Column::Email => &mut draft.email,
                Column::Phone => &mut draft.phone,
                Column::Timezone => &mut draft.timezone,
                Column::Unsubscribed => &mut draft.unsubscribed,
                Column::Attribute(name) => {
                    let value = to_raw_value(cell).map_err(|error| problem!("{error}"))?;
                    draft.attributes.insert(name.clone(), value);
                    continue;
                }
            };
            *field = Some(cell.to_owned());
        }
        Ok(draft)
    }
}

fn parser(delimiter: Delimiter, newline: u8) -> Reader {
    // A carriage return before the end of a line belongs to the last cell, and is trimmed there with other space.
    ReaderBuilder::new().delimiter(delimiter.0).terminator(Terminator::Any(newline)).build()
}

fn unclosed() -> Problem {
    problem!("it opens a quotation mark that is never closed, so nothing after it could be read")
}

fn wrong_number(found: &str, expected: usize, first_line: u64, last_line: u64) -> Problem {
    let fields = if found == "1" { "field" } else { "fields" };
    let counts = format!("it has {found} {fields} where the header has {expected}");
    if last_line > first_line {
        return problem!("{counts}, and reaches to line {last_line}; is a quotation mark missing?");
    }
    problem!("{counts}")
}

fn unfit(why: String) -> OpenError {
    OpenError::Unfit(why)
}

/// How much of the file is in the buffer.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Buffered {
    /// Less than the longest header; reading more may change what the header is.
    Part,
    /// At least the longest header.
    HeaderLimit,
    /// The whole file.
    File,
}

/// The byte that ends a line, taken from the first line.
fn newline(bytes: &[u8], buffered: Buffered) -> u8 {
    let Some(at) = bytes.iter().position(|byte| b"\r\n".contains(byte)) else { return b'\n' };
    match (bytes[at], bytes.get(at + 1)) {
        (b'\r', None) if buffered != Buffered::File => b'\n',
        (b'\r', next) if next != Some(&b'\n') => b'\r',
        _ => b'\n',
    }
}

/// The names of the columns as the file writes them.
type Names = Vec<Vec<u8>>;

/// The header: its length, its delimiter and its names. When no delimiter is given, the one that yields the most known
/// columns is used, then the one that yields the most columns. `None` when more input is needed to decide.
fn header(
    bytes: &[u8],
    newline: u8,
    delimiter: Option<Delimiter>,
    buffered: Buffered,
) -> Option<(usize, Delimiter, Names)> {
    let candidates = match delimiter {
        Some(delimiter) => vec![delimiter],
        None => DELIMITERS.to_vec(),
    };
    let mut best: Option<(usize, Delimiter, Names)> = None;
    let mut all_end = true;
    for delimiter in candidates {
        let Some((length, names)) = first_record(bytes, newline, delimiter, buffered) else {
            all_end = false;
            continue;
        };
        if best.as_ref().is_none_or(|(.., chosen)| score(&names) > score(chosen)) {
            best = Some((length, delimiter, names));
        }
    }
    // Where quotation marks are depends on the delimiter: one may see the end of the header where another sees none.
    best.filter(|(.., names)| all_end || (buffered != Buffered::Part && score(names).0 > 0))
}

/// How many columns are known, and how many there are.
fn score(names: &Names) -> (usize, usize) {
    let known = |name: &&Vec<u8>| {
        let column = str::from_utf8(name).ok().and_then(|name| Column::named(name).ok());
        column.is_some_and(|column| !matches!(column, Column::Attribute(_)))
    };
    (names.iter().filter(known).count(), names.len())
}

/// The first record, if it ends within these bytes.
fn first_record(
    bytes: &[u8],
    newline: u8,
    delimiter: Delimiter,
    buffered: Buffered,
) -> Option<(usize, Names)> {
    let bytes = &bytes[..bytes.len().min(LINE_BYTES_MAX + 1)];
    let mut cells = vec![0; bytes.len() + 1];
    let mut ends = vec![0; bytes.len() + 2];
    let mut parser = parser(delimiter, newline);
    let (mut result, read, written, mut fields) = parser.read_record(bytes, &mut cells, &mut ends);
    if matches!(result, ReadRecordResult::InputEmpty) && buffered == Buffered::File {
        // The file may end without the end of a line.
        let ended;
        (result, _, _, ended) = parser.read_record(&[newline], &mut cells[written..], &mut ends[fields..]);
        fields += ended;
    }
    if !matches!(result, ReadRecordResult::Record) {
        return None;
    }
    let mut start = 0;
    let names = ends[..fields].iter().map(|end| cells[std::mem::replace(&mut start, *end)..*end].to_vec());
    Some((read, names.collect()))
}

/// The meaning of each column. Names must be distinct.
fn columns(names: &[Vec<u8>]) -> Result<(Vec<Column>, Vec<Renamed>), OpenError> {
    if names.len() > COLUMNS_MAX {
        return Err(unfit(format!("its header has {} columns; the limit is {COLUMNS_MAX}", names.len())));
    }
    let (mut columns, mut renamed): (Vec<Column>, Vec<Renamed>) = (Vec::new(), Vec::new());
    let mut seen = std::collections::HashSet::new();
    for (at, name) in names.iter().enumerate() {
        let name = text(name).map_err(|_| {
            unfit(
                "its first line is not text in UTF-8; export spreadsheets as CSV in UTF-8, and unpack compressed files"
                    .to_owned(),
            )
        })?;
        if name.trim().is_empty() {
            return Err(unfit(format!("column {} of its header has no name; name it or remove it", at + 1)));
        }
        let column = Column::named(name).map_err(|problem| unfit(format!("its header: {problem}")))?;
        let key = match &column {
            Column::Attribute(name) => name.clone(),
            _ => name.trim().to_ascii_lowercase(),
        };
        let new_name = column.renamed(name);
        if !seen.insert(key) {
            if let Some(new) = new_name {
                return Err(unfit(format!(
                    "its header names the column `{}`, whose attribute would be called `{}` like that of another column; rename one",
                    shown(&new.column),
                    shown(&new.variable)
                )));
            }
            return Err(unfit(format!("its header names the column `{}` twice", shown(name.trim()))));
        }
        renamed.extend(new_name);
        columns.push(column);
    }
    if !columns.iter().any(Column::identifies) {
        let first: Vec<&str> = names.iter().take(5).filter_map(|name| str::from_utf8(name).ok()).collect();
        return Err(unfit(format!(
            "its header has no column called {IDENTIFYING}; it begins with `{}`",
            shown(&first.join("`, `"))
        )));
    }
    Ok((columns, renamed))
}
