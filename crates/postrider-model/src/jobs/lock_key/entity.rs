//! Hashes of the entities of a job run, as twelve hex digits.

use std::fmt;

use serde::Serialize;
use sha2::{Digest, Sha256};

use super::{ENTITY_DEPTH_MAX, stringify};

/// The first twelve hex digits of a SHA-256 over the entities of a run.
///
/// They equal the result of this JavaScript on `JSON.parse` of the same text, for every text:
///
/// ```text
/// const canonical = JSON.stringify(Object.keys(entities).sort().map(k => [k, entities[k]]));
/// createHash('sha256').update(canonical).digest('hex').slice(0, 12);
/// ```
///
/// So the order of the outermost keys does not matter, and that of inner keys does; `1` and `1.0` are the same number, and
/// so are `9007199254740992` and `9007199254740993`. Halves of surrogate pairs are hashed as their escapes.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(transparent)]
pub struct EntityHash(String);

/// A text that has no entity hash.
#[derive(Debug, thiserror::Error)]
pub enum NotEntities {
    /// The text is not JSON.
    #[error("the entities are not valid JSON")]
    Broken(#[source] serde_json::Error),
    /// The text is JSON, but not an object.
    #[error("the entities must be a JSON object, such as {{\"rule_id\": \"r123\"}}, and not {0}")]
    NotAnObject(&'static str),
    /// The object is nested too deeply.
    #[error("the entities are nested deeper than {ENTITY_DEPTH_MAX} levels; name them by fewer")]
    TooDeep,
}

impl EntityHash {
    /// Hashes the text of a JSON object as it was received, because parsing it into a map loses the order of its keys.
    pub fn of(json_text: &str) -> Result<Self, NotEntities> {
        let mut digits = hex::encode(Sha256::digest(stringify::sorted_pairs(json_text)?));
        digits.truncate(12);
        Ok(Self(digits))
    }

    /// The twelve hex digits.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for EntityHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
