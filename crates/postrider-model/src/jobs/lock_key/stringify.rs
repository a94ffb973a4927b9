//! The result of JavaScript's `JSON.stringify(JSON.parse(text))`.
//!
//! This module reads the raw text, level by level, because the usual parsers lose the order of keys, round some
//! numbers differently, and refuse halves of surrogate pairs.

use std::{collections::BTreeMap, fmt};

use serde::{
    Deserialize, Deserializer,
    de::{MapAccess, Visitor},
};
use serde_json::value::RawValue;

use super::{ENTITY_DEPTH_MAX, entity::NotEntities};

/// `JSON.stringify(Object.keys(entities).sort().map(k => [k, entities[k]]))`
pub(super) fn sorted_pairs(json_text: &str) -> Result<String, NotEntities> {
    let entities: &RawValue = serde_json::from_str(json_text).map_err(NotEntities::Broken)?;
    match kind(entities) {
        Kind::Object => {}
        Kind::Array => return Err(NotEntities::NotAnObject("an array")),
        Kind::String => return Err(NotEntities::NotAnObject("a string")),
        Kind::Number => return Err(NotEntities::NotAnObject("a number")),
        Kind::Literal => return Err(NotEntities::NotAnObject("a boolean or null")),
    }
    let Members(members) = inside(entities, 1)?;
    let mut out = String::from("[");
    // The map has the order of `sort()`: that of the code units.
    for (at, (key, member)) in members.iter().enumerate() {
        out.push_str(if at == 0 { "[" } else { ",[" });
        write_string(key, &mut out);
        out.push(',');
        write_value(member.value, 2, &mut out)?;
        out.push(']');
    }
    out.push(']');
    Ok(out)
}

enum Kind {
    Object,
    Array,
    String,
    Number,
    Literal,
}

/// The first character decides, because the text is valid JSON.
fn kind(value: &RawValue) -> Kind {
    match value.get().as_bytes().first() {
        Some(b'{') => Kind::Object,
        Some(b'[') => Kind::Array,
        Some(b'"') => Kind::String,
        Some(b'-' | b'0'..=b'9') => Kind::Number,
        _ => Kind::Literal,
    }
}

/// The members of an object, by the UTF-16 code units of their keys. A repeated key keeps its position and takes the new
/// value.
struct Members<'a>(BTreeMap<Vec<u16>, Member<'a>>);

struct Member<'a> {
    place: usize,
    value: &'a RawValue,
}

impl<'de: 'a, 'a> Deserialize<'de> for Members<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;

        impl<'de> Visitor<'de> for Reader {
            type Value = Members<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Members<'de>, A::Error> {
                let mut members = BTreeMap::new();
                while let Some((key, value)) = map.next_entry::<&RawValue, &RawValue>()? {
                    let place = members.len();
                    members.entry(code_units(key)).or_insert(Member { place, value }).value = value;
                }
                Ok(Members(members))
            }
        }

        deserializer.deserialize_map(Reader)
    }
}

/// Parses the content of an object or array at this depth.
fn inside<'a, T: Deserialize<'a>>(value: &'a RawValue, depth: usize) -> Result<T, NotEntities> {
    if depth > ENTITY_DEPTH_MAX {
        return Err(NotEntities::TooDeep);
    }
    serde_json::from_str(value.get()).map_err(NotEntities::Broken)
}

fn write_value(value: &RawValue, depth: usize, out: &mut String) -> Result<(), NotEntities> {
    match kind(value) {
        Kind::Object => {
            let Members(members) = inside(value, depth)?;
            let mut members = Vec::from_iter(members);
            members.sort_by_key(|(key, member)| {
                let index = array_index(key);
                (index.is_none(), index, member.place)
            });
            for (at, (key, member)) in members.iter().enumerate() {
                out.push(if at == 0 { '{' } else { ',' });
                write_string(key, out);
                out.push(':');
                write_value(member.value, depth + 1, out)?;
            }
            out.push_str(if members.is_empty() { "{}" } else { "}" });
        }
        Kind::Array => {
            let elements: Vec<&RawValue> = inside(value, depth)?;
            for (at, element) in elements.iter().enumerate() {
                out.push(if at == 0 { '[' } else { ',' });
                write_value(element, depth + 1, out)?;
            }
            out.push_str(if elements.is_empty() { "[]" } else { "]" });
        }
        Kind::String => write_string(&code_units(value), out),
        Kind::Number => match value.get().parse::<f64>() {
            Ok(number) if number.is_finite() => out.push_str(ryu_js::Buffer::new().format(number)),
            // Infinity, which JSON cannot represent.
            _ => out.push_str("null"),
        },
        Kind::Literal => out.push_str(value.get()),
    }
    Ok(())
}

/// The number of a key that is an array index. In every object such keys come first, in numerical order.
fn array_index(key: &[u16]) -> Option<u32> {
    let key = String::from_utf16(key).ok()?;
    let index = key.parse::<u32>().ok()?;
    (index < u32::MAX && index.to_string() == key).then_some(index)
}

/// The code units of a valid JSON string.
fn code_units(string: &RawValue) -> Vec<u16> {
    let quoted = string.get();
    let mut units = Vec::with_capacity(quoted.len());
    let mut letters = quoted.get(1..quoted.len() - 1).unwrap_or_default().chars();
    while let Some(letter) = letters.next() {
        let letter = match letter {
            '\\' => match letters.next() {
                Some('u') => {
                    let digits: String = letters.by_ref().take(4).collect();
                    units.extend(u16::from_str_radix(&digits, 16));
                    continue;
                }
                Some('b') => '\u{8}',
                Some('f') => '\u{c}',
                Some('n') => '\n',
                Some('r') => '\r',
                Some('t') => '\t',
                Some(itself) => itself,
                None => break,
            },
            letter => letter,
        };
        units.extend_from_slice(letter.encode_utf16(&mut [0; 2]));
    }
    units
}

fn write_string(units: &[u16], out: &mut String) {
    out.push('"');
    for letter in char::decode_utf16(units.iter().copied()) {
        match letter {
            Ok('"') => out.push_str("\\\""),
            Ok('\\') => out.push_str("\\\\"),
            Ok('\u{8}') => out.push_str("\\b"),
            Ok('\u{c}') => out.push_str("\\f"),
            Ok('\n') => out.push_str("\\n"),
            Ok('\r') => out.push_str("\\r"),
            Ok('\t') => out.push_str("\\t"),
            Ok(control @ '\0'..='\u{1f}') => out.push_str(&format!("\\u{:04x}", u32::from(control))),
            Ok(letter) => out.push(letter),
            Err(half) => out.push_str(&format!("\\u{:04x}", half.unpaired_surrogate())),
        }
    }
    out.push('"');
}

#[cfg(test)]
mod tests;
