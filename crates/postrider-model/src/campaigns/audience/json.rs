//! NDJSON: one object per line.

use std::{fmt, io};

use serde::{
    Deserialize, Deserializer,
    de::{MapAccess, Visitor},
};
use serde_json::{Value, value::RawValue};

use super::{
    LINE_BYTES_MAX, Problem,
    column::Column,
    input::Input,
    lead::problem,
    rules::{Draft, nul, shown, too_long},
};

/// Largest exponent of a number; programs disagree about larger numbers.
const EXPONENT_MAX: usize = 308;

/// Reads the next line that is not blank and returns its number. `None` at the end.
pub(super) fn next_line<R: io::Read>(
    input: &mut Input<R>,
    text: &mut Vec<u8>,
) -> io::Result<Option<(u64, Result<(), Problem>)>> {
    loop {
        let line = input.line();
        let read = input.take_line(text, LINE_BYTES_MAX)?;
        if read > LINE_BYTES_MAX {
            return Ok(Some((line, Err(too_long()))));
        }
        if !text.trim_ascii().is_empty() {
            return Ok(Some((line, Ok(()))));
        }
        if read == 0 {
            return Ok(None);
        }
    }
}

/// The draft of a lead from one line.
pub(super) fn draft(line: &str) -> Result<Draft, Problem> {
    let not_an_object =
        || problem!("it is not a JSON object; a line looks like {{\"email\": \"name@example.org\"}}");
    if !line.trim_start().starts_with('{') {
        return Err(not_an_object());
    }
    let fields: Fields = serde_json::from_str(line).map_err(|error| not_json(&error))?;
    let mut draft = Draft::default();
    for (name, value) in fields.0 {
        let column = Column::named(&name)?;
        draft.renamed.extend(column.renamed(&name));
        match column {
            Column::Attribute(name) if name == "attributes" => nested(&mut draft, &value)?,
            Column::Attribute(name) => attribute(&mut draft, name, value)?,
            Column::ExternalId => set(&mut draft.external_id, "external_id", id_text(&value)?)?,
            Column::Email => set(&mut draft.email, "email", text("email", &value)?)?,
            Column::Phone => set(&mut draft.phone, "phone", text("phone", &value)?)?,
            Column::Timezone => set(&mut draft.timezone, "timezone", text("timezone", &value)?)?,
            Column::Unsubscribed => set(&mut draft.unsubscribed, "unsubscribed", flag_text(&value)?)?,
        }
    }
    Ok(draft)
}

fn not_json(error: &serde_json::Error) -> Problem {
    // The parser appends a line number within the text; the text is one line, so that number is left out.
    let words = error.to_string();
    let words = words.split(" at line ").next().unwrap_or_default();
    problem!("it is not JSON: {words} at column {}", error.column())
}

/// Adds the members of the nested object `attributes` like other attributes.
fn nested(draft: &mut Draft, value: &RawValue) -> Result<(), Problem> {
    if value.get() == "null" {
        return Ok(());
    }
    let fields: Fields =
        serde_json::from_str(value.get()).map_err(|_| problem!("attributes must be a JSON object"))?;
    for (name, value) in fields.0 {
        let column = Column::named(&name)?;
        draft.renamed.extend(column.renamed(&name));
        match column {
            Column::Attribute(name) => attribute(draft, name, value)?,
            _ => return Err(problem!("`{}` belongs beside `attributes`, not into it", shown(&name))),
        }
    }
    Ok(())
}

fn attribute(draft: &mut Draft, name: String, value: Box<RawValue>) -> Result<(), Problem> {
    // The raw text is stored. Parsing it finds values that Postgres refuses: too deep, half a surrogate pair, numbers out of range.
    let parsed: Result<Value, _> = serde_json::from_str(value.get());
    parsed.map_err(|error| not_json(&error))?;
    if draft.attributes.contains_key(&name) {
        return Err(problem!("it gives `{}` twice", shown(&name)));
    }
    draft.attributes.insert(name, value);
    Ok(())
}

fn set(field: &mut Option<String>, name: &str, value: Option<String>) -> Result<(), Problem> {
    if field.is_some() {
        return Err(problem!("it gives `{name}` twice"));
    }
    *field = value;
    Ok(())
}

fn text(name: &str, value: &RawValue) -> Result<Option<String>, Problem> {
    match parse(value)? {
        Value::Null => Ok(None),
        Value::String(text) => Ok(Some(text)),
        _ => Err(problem!("{name} must be a text in quotation marks")),
    }
}

/// A whole number is an id, too, because many systems number their records.
fn id_text(value: &RawValue) -> Result<Option<String>, Problem> {
    match parse(value)? {
        Value::Number(_) if value.get().bytes().all(|byte| byte.is_ascii_digit()) => {
            Ok(Some(value.get().to_owned()))
        }
        Value::Number(_) => Err(problem!("external_id must be a text or a whole number")),
        _ => text("external_id", value),
    }
}

fn flag_text(value: &RawValue) -> Result<Option<String>, Problem> {
    match parse(value)? {
        Value::Bool(flag) => Ok(Some(flag.to_string())),
        Value::Number(_) if ["0", "1"].contains(&value.get()) => Ok(Some(value.get().to_owned())),
        Value::Null | Value::String(_) => text("unsubscribed", value),
        _ => Err(problem!("unsubscribed must be true, false, or the reason as a text")),
    }
}

fn parse(value: &RawValue) -> Result<Value, Problem> {
    serde_json::from_str(value.get()).map_err(|error| not_json(&error))
}

/// The fields of an object in their order. A map would drop the first of two that have the same name.
struct Fields(Vec<(String, Box<RawValue>)>);

impl<'de> Deserialize<'de> for Fields {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct InOrder;
        impl<'de> Visitor<'de> for InOrder {
            type Value = Fields;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Fields, A::Error> {
                let mut fields = Vec::new();
                while let Some(field) = map.next_entry()? {
                    fields.push(field);
                }
                Ok(Fields(fields))
            }
        }
        deserializer.deserialize_map(InOrder)
    }
}

/// The text as a JSON string.
pub(super) fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

/// An upper bound of the bytes that Postgres needs for this valid JSON: it puts a space behind commas and colons, and
/// writes exponents out. Refuses values that Postgres cannot store.
pub(super) fn stored_bytes(json: &str) -> Result<usize, Problem> {
    let bytes = json.as_bytes();
    let (mut at, mut total) = (0, 0);
    while let Some(&byte) = bytes.get(at) {
        let (length, stored) = match byte {
            b'"' => string_bytes(&bytes[at..])?,
            b'-' | b'0'..=b'9' => {
                let length = bytes[at..].iter().take_while(|byte| b"+-.eE0123456789".contains(byte)).count();
                (length, length + exponent(&json[at..at + length])?)
            }
            b' ' | b'\t' | b'\r' | b'\n' => (1, 0),
            b',' | b':' => (1, 2),
            _ => (1, 1),
        };
        at += length;
        total += stored;
    }
    Ok(total)
}

/// Length of the JSON string that begins here, with its quotation marks, and the bytes that Postgres stores for it.
fn string_bytes(bytes: &[u8]) -> Result<(usize, usize), Problem> {
    let (mut at, mut stored) = (1, 1);
    while let Some(&byte) = bytes.get(at) {
        let (length, kept) = match (byte, &bytes[at..]) {
            (b'"', _) => return Ok((at + 1, stored + 1)),
            (b'\\', [_, b'u', b'0', b'0', b'0', b'0', ..]) => return Err(nul()),
            // Control characters stay escaped; every other escape becomes at most three bytes.
            (b'\\', [_, b'u', b'0', b'0', b'0' | b'1', ..]) => (6, 6),
            (b'\\', [_, b'u', ..]) => (6, 3),
            (b'\\', _) => (2, 2),
            _ => (1, 1),
        };
        at += length;
        stored += kept;
    }
    Ok((bytes.len(), stored))
}

/// Number of digits that writing out the exponent adds.
fn exponent(number: &str) -> Result<usize, Problem> {
    let Some((_, exponent)) = number.split_once(['e', 'E']) else { return Ok(0) };
    let digits = exponent.trim_start_matches(['+', '-']).trim_start_matches('0');
    let exponent = if digits.is_empty() { Some(0) } else { digits.parse().ok() };
    exponent
        .filter(|exponent| *exponent <= EXPONENT_MAX)
        .ok_or_else(|| problem!("the number {} is out of range", shown(number)))
}
