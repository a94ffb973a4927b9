//! Time zones by name.

use std::{fmt, str::FromStr, sync::LazyLock};

use jiff::tz::{TimeZone, TimeZoneDatabase};
use serde::{Deserialize, Serialize};

use super::cron::shortened;

/// The bundled zones. The zones of the machine are not used, because all schedulers must agree on the firings of a schedule.
static ZONES: LazyLock<TimeZoneDatabase> = LazyLock::new(TimeZoneDatabase::bundled);

/// A time zone by its IANA name, spelled as the IANA database spells it. An alias keeps its name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Zone {
    name: String,
    zone: TimeZone,
}

/// A text that is not the name of a zone.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{input}` is not a time zone: {problem}; {advice}")]
pub struct UnknownZone {
    input: String,
    problem: &'static str,
    advice: String,
}

impl Zone {
    /// The zone of this name, if there is one. Unlike parsing, this function computes no suggestion.
    #[must_use]
    pub fn find(name: &str) -> Option<Self> {
        let zone = ZONES.get(name).ok()?;
        // The name as the database spells it; not every result has one.
        let name = zone.iana_name()?.to_owned();
        (!NO_PLACE.contains(&name.as_str())).then_some(Self { name, zone })
    }

    /// The IANA name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.name
    }

    /// The zone itself.
    #[must_use]
    pub fn time_zone(&self) -> &TimeZone {
        &self.zone
    }

    /// The name of every known zone.
    pub fn names() -> impl Iterator<Item = String> {
        ZONES
            .available()
            .map(|name| name.as_str().to_owned())
            .filter(|name| !NO_PLACE.contains(&name.as_str()))
    }
}

/// Names in the database that stand for an unknown zone.
const NO_PLACE: &[&str] = &["Factory", "Etc/Unknown"];

impl FromStr for Zone {
    type Err = UnknownZone;

    fn from_str(input: &str) -> Result<Self, UnknownZone> {
        Self::find(input).ok_or_else(|| UnknownZone {
            input: shortened(input),
            problem: problem(input),
            advice: advice(input),
        })
    }
}

fn problem(input: &str) -> &'static str {
    let lower = input.trim().to_ascii_lowercase();
    let offset = lower.strip_prefix("utc").or_else(|| lower.strip_prefix("gmt")).unwrap_or(&lower);
    if lower.is_empty() {
        "it is empty"
    } else if ["local", "localtime", "system"].contains(&lower.as_str()) {
        "each machine means another one by that"
    } else if lower == "z" || offset.starts_with(['+', '-']) {
        "an offset does not say when the clocks change"
    } else {
        "the IANA database has none of this name"
    }
}

fn advice(input: &str) -> String {
    match nearest(input).as_slice() {
        [] => "write it like `Europe/Berlin`, or `UTC`".to_owned(),
        names => format!("did you mean {}?", names.join(" or ")),
    }
}

/// Up to three similar names.
fn nearest(input: &str) -> Vec<String> {
    let input: Vec<u8> = input
        .trim()
        .bytes()
        .map(|byte| if byte == b' ' { b'_' } else { byte.to_ascii_lowercase() })
        .collect();
    if !(3..=40).contains(&input.len()) {
        return Vec::new();
    }
    // One mistake per four letters is a typing error; more is another word.
    let most = input.len() / 4;
    let mut near: Vec<(usize, String)> = Zone::names()
        .filter_map(|name| {
            let lower = name.to_ascii_lowercase();
            // Compare with the last part as well, because people write `Berlin`.
            let city = lower.rsplit('/').next().unwrap_or(&lower);
            let distance = edits(&input, lower.as_bytes()).min(edits(&input, city.as_bytes()));
            (distance <= most).then_some((distance, name))
        })
        .collect();
    // Among equal distances, names of places come before names such as `Turkey` and `Etc/GMT`.
    near.sort_by_cached_key(|(distance, name)| {
        (*distance, !name.contains('/') || name.starts_with("Etc/"), name.clone())
    });
    near.into_iter().take(3).map(|(_, name)| format!("`{name}`")).collect()
}

/// The edit distance in letters.
fn edits(a: &[u8], b: &[u8]) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, left) in a.iter().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, right) in b.iter().enumerate() {
            let changed = diagonal + usize::from(left != right);
            diagonal = row[j + 1];
            row[j + 1] = changed.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

impl TryFrom<String> for Zone {
    type Error = UnknownZone;

    fn try_from(name: String) -> Result<Self, UnknownZone> {
        name.parse()
    }
}

impl From<Zone> for String {
    fn from(zone: Zone) -> Self {
        zone.name
    }
}

impl fmt::Display for Zone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.name)
    }
}
