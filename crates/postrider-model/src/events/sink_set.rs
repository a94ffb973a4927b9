//! The sinks of a relay as the database registers them. Every relay of an installation has the same ones; otherwise one relay
//! would complete events that the sinks of another never received.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{Destination, Pattern};

/// One sink, without its secrets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RegisteredSink {
    /// Unique among the sinks of a relay.
    pub name: String,
    /// The kind of sink, such as `http`.
    pub kind: String,
    /// The address, as far as it can be shown.
    pub target: String,
    /// Patterns of the event types that it receives, in alphabetical order.
    pub events: Vec<String>,
}

impl RegisteredSink {
    /// A sink as its relay knows it.
    #[must_use]
    pub fn new(name: &str, destination: Destination, events: &[Pattern]) -> Self {
        let mut events: Vec<String> = events.iter().map(ToString::to_string).collect();
        events.sort();
        events.dedup();
        let Destination { kind, target } = destination;
        Self { name: name.to_owned(), kind, target, events }
    }

    fn describe(&self) -> String {
        let target = if self.target.is_empty() { String::new() } else { format!(" {}", self.target) };
        format!("{}{target} for {}", self.kind, self.events.join(", "))
    }
}

/// The sinks of a relay, in the order of their names.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SinkSet(Vec<RegisteredSink>);

/// Two sinks have the same name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("two sinks are called `{name}`; give each sink its own name")]
pub struct SameName {
    /// The name.
    pub name: String,
}

impl SinkSet {
    /// Orders the sinks, so that two relays with the same sinks have equal sets.
    pub fn new(sinks: impl IntoIterator<Item = RegisteredSink>) -> Result<Self, SameName> {
        let mut by_name = BTreeMap::new();
        for sink in sinks {
            if let Some(RegisteredSink { name, .. }) = by_name.insert(sink.name.clone(), sink) {
                return Err(SameName { name });
            }
        }
        Ok(Self(by_name.into_values().collect()))
    }

    /// The sinks, in the order of their names.
    #[must_use]
    pub fn sinks(&self) -> &[RegisteredSink] {
        &self.0
    }

    /// The changes if these sinks replaced `registered`, one line for each sink.
    #[must_use]
    pub fn changes_from(&self, registered: &Self) -> Vec<String> {
        let by_name = |set: &Self| -> BTreeMap<String, RegisteredSink> {
            set.0.iter().map(|sink| (sink.name.clone(), sink.clone())).collect()
        };
        let (ours, theirs) = (by_name(self), by_name(registered));
        let gone = theirs.values().filter(|sink| !ours.contains_key(&sink.name));
        let removed = gone.map(|sink| format!("- {}: {}", sink.name, sink.describe()));
        let differing = ours.values().filter_map(|sink| match theirs.get(&sink.name) {
            Some(before) if before == sink => None,
            Some(before) => {
                Some(format!("~ {}: {} instead of {}", sink.name, sink.describe(), before.describe()))
            }
            None => Some(format!("+ {}: {}", sink.name, sink.describe())),
        });
        removed.chain(differing).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sink(name: &str, target: &str, events: &[&str]) -> RegisteredSink {
        let patterns: Vec<Pattern> = events.iter().map(|text| text.parse().unwrap()).collect();
        RegisteredSink::new(
            name,
            Destination { kind: "http".to_owned(), target: target.to_owned() },
            &patterns,
        )
    }

    #[test]
    fn the_order_of_sinks_and_patterns_makes_no_difference() {
        let one = SinkSet::new([sink("a", "x", &["b.*", "a.*"]), sink("b", "y", &["**"])]).unwrap();
        let two = SinkSet::new([sink("b", "y", &["**"]), sink("a", "x", &["a.*", "b.*", "a.*"])]).unwrap();
        assert_eq!(one, two);
        assert_eq!(one.changes_from(&two), [""; 0]);
    }

    #[test]
    fn two_sinks_of_one_name_are_refused() {
        let same = SinkSet::new([sink("a", "x", &["**"]), sink("a", "y", &["**"])]);
        assert_eq!(same, Err(SameName { name: "a".to_owned() }));
    }

    #[test]
    fn each_difference_is_one_line() {
        let registered = SinkSet::new([
            sink("gone", "x", &["**"]),
            sink("moved", "y", &["**"]),
            sink("same", "z", &["**"]),
        ]);
        let ours = SinkSet::new([
            sink("moved", "y", &["order.*"]),
            sink("new", "w", &["**"]),
            sink("same", "z", &["**"]),
        ]);
        assert_eq!(
            ours.unwrap().changes_from(&registered.unwrap()),
            [
                "- gone: http x for **",
                "~ moved: http y for order.* instead of http y for **",
                "+ new: http w for **",
            ]
        );
    }
}
