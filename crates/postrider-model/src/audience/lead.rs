//! A lead that passed the rules.

use std::{collections::BTreeMap, fmt};

use serde_json::value::RawValue;

use super::{ATTRIBUTES_BYTES_MAX, json};

/// What is wrong with a line, as one sentence for the person who has to correct it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem(pub(super) String);

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A problem with these words.
macro_rules! problem {
    ($($words:tt)*) => { $crate::audience::Problem(format!($($words)*)) };
}
pub(super) use problem;

/// A person, or whoever else campaigns address. Only the rules make one.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Lead {
    /// What an import recognises it by.
    pub identity: String,
    /// Its id in the system that the file came from.
    pub external_id: Option<String>,
    /// Where e-mail goes.
    pub email: Option<String>,
    /// Where calls go, as E.164.
    pub phone: Option<String>,
    /// An IANA name.
    pub timezone: Option<String>,
    /// Everything else, letter for letter: numbers keep all their digits.
    pub attributes: BTreeMap<String, Box<RawValue>>,
    /// Why nothing may be sent to it, where that is so.
    pub suppression_reason: Option<String>,
}

impl Lead {
    /// The attributes as a JSON object.
    #[must_use]
    pub fn attributes_json(&self) -> String {
        let mut text = String::from("{");
        for (name, value) in &self.attributes {
            if text.len() > 1 {
                text.push(',');
            }
            text.push_str(&json::quoted(name));
            text.push(':');
            text.push_str(value.get());
        }
        text.push('}');
        text
    }

    /// Adds what a later line says about the same person: that counts, what it does not mention stays, and a
    /// suppression is never taken back. When the two together are too large, the earlier one stays as it is.
    pub(super) fn absorb(&mut self, later: Self) -> Result<(), Problem> {
        let mut attributes = self.attributes.clone();
        attributes.extend(later.attributes);
        check_size(&attributes)?;
        self.attributes = attributes;
        for (field, newer) in [
            (&mut self.external_id, later.external_id),
            (&mut self.email, later.email),
            (&mut self.phone, later.phone),
            (&mut self.timezone, later.timezone),
        ] {
            if newer.is_some() {
                *field = newer;
            }
        }
        if self.suppression_reason.is_none() {
            self.suppression_reason = later.suppression_reason;
        }
        Ok(())
    }

    /// About how much memory it takes.
    pub(super) fn bytes(&self) -> usize {
        let texts = [&self.external_id, &self.email, &self.phone, &self.timezone, &self.suppression_reason];
        let fields: usize = texts.into_iter().flatten().map(String::len).sum();
        let attributes: usize =
            self.attributes.iter().map(|(name, value)| name.len() + value.get().len() + 64).sum();
        size_of::<Self>() + self.identity.len() + fields + attributes
    }
}

/// Says no before the database would.
pub(super) fn check_size(attributes: &BTreeMap<String, Box<RawValue>>) -> Result<(), Problem> {
    let mut bytes = "{}".len();
    for (name, value) in attributes {
        bytes += json::quoted(name).len() + ": , ".len() + json::stored_bytes(value.get())?;
    }
    if bytes > ATTRIBUTES_BYTES_MAX {
        return Err(problem!("the attributes take {bytes} bytes; the limit is {ATTRIBUTES_BYTES_MAX}"));
    }
    Ok(())
}
