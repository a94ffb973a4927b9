//! Which event types a sink wants.
//!
//! Event types are words joined by dots. In a pattern `*` stands for any text within one word and `**` for any
//! text at all: `order.*` matches `order.placed` and not `order.item.added`; `order.**` matches both.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

/// A pattern over event types.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Pattern {
    text: String,
    parts: Vec<Part>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    Text(String),
    /// `*`: any characters but a dot.
    WithinWord,
    /// `**`: any characters.
    Anything,
}

/// A text that is not a pattern.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{pattern}` is not an event pattern: {problem}; patterns look like `order.placed`, `order.*` or `**`"
)]
pub struct InvalidPattern {
    pattern: String,
    problem: &'static str,
}

impl Pattern {
    /// The pattern that matches every event.
    #[must_use]
    pub fn everything() -> Self {
        Self { text: "**".to_owned(), parts: vec![Part::Anything] }
    }

    /// Whether this event type is wanted.
    #[must_use]
    pub fn matches(&self, event_type: &str) -> bool {
        // `ends[i]` is true if the parts so far can match up to byte i. One pass per part, so no pattern is slow.
        let bytes = event_type.as_bytes();
        let mut ends = vec![false; bytes.len() + 1];
        ends[0] = true;
        for part in &self.parts {
            ends = match part {
                Part::Text(text) => advance_over(text.as_bytes(), bytes, &ends),
                Part::WithinWord => spread(bytes, &ends, |byte| byte != b'.'),
                Part::Anything => spread(bytes, &ends, |_| true),
            };
        }
        ends[bytes.len()]
    }
}

fn advance_over(text: &[u8], bytes: &[u8], ends: &[bool]) -> Vec<bool> {
    let mut next = vec![false; ends.len()];
    for (at, _) in ends.iter().enumerate().filter(|(_, reached)| **reached) {
        if bytes[at..].starts_with(text) {
            next[at + text.len()] = true;
        }
    }
    next
}

fn spread(bytes: &[u8], ends: &[bool], accepts: impl Fn(u8) -> bool) -> Vec<bool> {
    let mut next = ends.to_vec();
    for (at, byte) in bytes.iter().enumerate() {
        next[at + 1] |= next[at] && accepts(*byte);
    }
    next
}

impl FromStr for Pattern {
    type Err = InvalidPattern;

    fn from_str(text: &str) -> Result<Self, InvalidPattern> {
        let refuse = |problem| Err(InvalidPattern { pattern: text.to_owned(), problem });
        if text.is_empty() {
            return refuse("it is empty");
        }
        if text.chars().any(|c| c.is_whitespace() || c.is_control()) {
            return refuse("it contains white space");
        }
        if text.split('.').any(str::is_empty) {
            return refuse("a word between two dots is empty");
        }
        if text.contains("***") {
            return refuse("three stars in a row mean nothing");
        }
        if text.contains(['?', '[', ']', '{', '}', '>', '#', '\\']) {
            return refuse("the only wildcards are `*` and `**`");
        }

        let mut parts = Vec::new();
        let mut rest = text;
        while !rest.is_empty() {
            let star = rest.find('*').unwrap_or(rest.len());
            if star > 0 {
                parts.push(Part::Text(rest[..star].to_owned()));
            }
            rest = &rest[star..];
            if let Some(after) = rest.strip_prefix("**") {
                parts.push(Part::Anything);
                rest = after;
            } else if let Some(after) = rest.strip_prefix('*') {
                parts.push(Part::WithinWord);
                rest = after;
            }
        }
        Ok(Self { text: text.to_owned(), parts })
    }
}

impl TryFrom<String> for Pattern {
    type Error = InvalidPattern;

    fn try_from(text: String) -> Result<Self, InvalidPattern> {
        text.parse()
    }
}

impl From<Pattern> for String {
    fn from(pattern: Pattern) -> Self {
        pattern.text
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn patterns_match_as_in_the_table() {
        let table = [
            ("order.placed", "order.placed", true),
            ("order.placed", "order.placed.twice", false),
            ("order.*", "order.placed", true),
            ("order.*", "order.item.added", false),
            ("order.*", "order.", true),
            ("order.**", "order.item.added", true),
            ("**", "anything.at.all", true),
            ("*", "word", true),
            ("*", "two.words", false),
            ("*.placed", "order.placed", true),
            ("**.placed", "shop.order.placed", true),
            ("*.placed", "shop.order.placed", false),
            ("ord*.placed", "order.placed", true),
            ("**.a.**.a", "x.a.b.a", true),
            ("größe.*", "größe.neu", true),
        ];
        for (pattern, event_type, expected) in table {
            let parsed: Pattern = pattern.parse().unwrap();
            assert_eq!(parsed.matches(event_type), expected, "{pattern} on {event_type}");
        }
    }

    #[test]
    fn invalid_patterns_are_refused_with_a_reason() {
        let table = [
            ("", "empty"),
            ("order..placed", "between two dots"),
            (".placed", "between two dots"),
            ("order. placed", "white space"),
            ("order.***", "three stars"),
            ("order.>", "only wildcards"),
            ("order.[ab]", "only wildcards"),
        ];
        for (pattern, problem) in table {
            let message = pattern.parse::<Pattern>().unwrap_err().to_string();
            assert!(message.contains(problem), "{pattern}: {message}");
        }
    }

    proptest! {
        #[test]
        fn a_type_matches_itself_and_everything(event_type in "[a-z]{1,8}(\\.[a-z_]{1,8}){0,4}") {
            prop_assert!(event_type.parse::<Pattern>().unwrap().matches(&event_type));
            prop_assert!(Pattern::everything().matches(&event_type));
        }

        #[test]
        fn many_stars_are_not_slow(stars in 1_usize..60) {
            let pattern: Pattern = format!("{}b", "a*".repeat(stars)).parse().unwrap();
            prop_assert!(!pattern.matches(&"a".repeat(255)));
        }
    }
}
