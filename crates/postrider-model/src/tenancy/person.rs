//! The name that a person gives when signing in.

use std::{fmt, str::FromStr};

/// Maximum length, in characters.
pub const CHARACTERS_MAX: usize = 64;
/// The same in bytes of UTF-8.
const BYTES_MAX: usize = CHARACTERS_MAX * 4;

/// A person's name, as the person gave it; the server does not verify it. It has 1 to 64 characters, none of them a control character.
///
/// It is kept in place, so that the caller of a request stays small to copy around.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct PersonName {
    bytes: [u8; BYTES_MAX],
    length: usize,
}

/// A text that cannot be a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("must have 1 to {CHARACTERS_MAX} characters, none of them a control character")]
pub struct NotAName;

impl PersonName {
    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.bytes[..self.length]).unwrap_or_default()
    }
}

impl FromStr for PersonName {
    type Err = NotAName;

    fn from_str(text: &str) -> Result<Self, NotAName> {
        let text = text.trim();
        let fits =
            (1..=CHARACTERS_MAX).contains(&text.chars().count()) && !text.chars().any(char::is_control);
        if !fits {
            return Err(NotAName);
        }
        let mut bytes = [0; BYTES_MAX];
        bytes[..text.len()].copy_from_slice(text.as_bytes());
        Ok(Self { bytes, length: text.len() })
    }
}

impl fmt::Display for PersonName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl fmt::Debug for PersonName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_reads_back_without_the_space_around_it() {
        let longest = "𝒜".repeat(CHARACTERS_MAX);
        for (text, name) in [("ada", "ada"), (" Ada L. ", "Ada L."), (longest.as_str(), longest.as_str())] {
            assert_eq!(text.parse::<PersonName>().unwrap().as_str(), name);
        }
    }

    #[test]
    fn a_text_that_is_empty_long_or_holds_a_control_character_is_refused() {
        for text in ["", "  ", "a\nb", "a\u{1b}[2J", "a\0", "a\u{85}b", &"a".repeat(65)] {
            assert_eq!(text.parse::<PersonName>(), Err(NotAName), "{text:?}");
        }
    }
}
