//! A lead that passed validation.

use std::{collections::BTreeMap, fmt};

use serde_json::value::RawValue;

use super::{ATTRIBUTES_BYTES_MAX, json};

/// The error of a line, as one sentence for the person who corrects the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem(pub(super) String);

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Formats a [`Problem`].
macro_rules! problem {
    ($($words:tt)*) => { $crate::campaigns::audience::Problem(format!($($words)*)) };
}
pub(super) use problem;

/// A recipient of campaigns. Only validation creates one.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Lead {
    /// The key by which an import recognises the person.
    pub identity: String,
    /// Id in the system that the file came from.
    pub external_id: Option<String>,
    /// E-mail address.
    pub email: Option<String>,
    /// Phone number, as E.164.
    pub phone: Option<String>,
    /// IANA name of the time zone.
    pub timezone: Option<String>,
    /// All other values, unchanged: numbers keep all their digits.
    pub attributes: BTreeMap<String, Box<RawValue>>,
    /// Reason why campaigns must not contact the lead, if they must not.
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

    /// Merges a later line about the same person. Values of the later line win, absent values stay, and a suppression is
    /// never removed. When the attributes of both are too large, this lead stays unchanged.
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

    /// Approximate size in memory.
    pub(super) fn bytes(&self) -> usize {
        let texts = [&self.external_id, &self.email, &self.phone, &self.timezone, &self.suppression_reason];
        let fields: usize = texts.into_iter().flatten().map(String::len).sum();
        let attributes: usize =
            self.attributes.iter().map(|(name, value)| name.len() + value.get().len() + 64).sum();
        size_of::<Self>() + self.identity.len() + fields + attributes
    }
}

/// Checks the limit that the database enforces, too.
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
