//! Rules: faults that strike whom they name. The dice are thrown for everyone else.

use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::Context;
use serde::{Deserialize, Serialize};

use super::faults::Fault;

/// Whom a fault strikes, and how often.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// The recipient of a message; without one, any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
    /// `Idempotency-Key`, `webhook-id` or `Message-ID`; without one, any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// What happens.
    pub fault: Fault,
    /// How many times more; without a number, every time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub times: Option<u64>,
}

impl Rule {
    /// One that shows all there is to write.
    pub const EXAMPLE: &'static str = r#"[{"to": "a@example.com", "fault": "stall", "times": 1}]"#;

    fn names(&self, to: Option<&str>, key: Option<&str>) -> bool {
        let is = |wanted: &Option<String>, given| wanted.is_none() || wanted.as_deref() == given;
        is(&self.to, to) && is(&self.key, key)
    }
}

/// Reads a rule of the command line.
pub fn parse_flag(text: &str) -> anyhow::Result<Rule> {
    serde_json::from_str(text)
        .with_context(|| format!("expected a JSON object like the one in {}", Rule::EXAMPLE))
}

/// The rules in force. The first that names a request strikes it.
pub struct Rules(Mutex<Vec<Rule>>);

impl Rules {
    /// These, in this order.
    pub fn new(rules: Vec<Rule>) -> Self {
        Self(Mutex::new(rules))
    }

    /// The fault that a rule has for this request. A rule that has struck as often as it should is gone.
    pub fn strike(&self, to: Option<&str>, key: Option<&str>) -> Option<Fault> {
        let mut rules = self.now();
        rules.retain(|rule| rule.times != Some(0));
        let rule = rules.iter_mut().find(|rule| rule.names(to, key))?;
        if let Some(times) = &mut rule.times {
            *times -= 1;
        }
        Some(rule.fault)
    }

    /// What is in force.
    pub fn all(&self) -> Vec<Rule> {
        self.now().iter().filter(|rule| rule.times != Some(0)).cloned().collect()
    }

    /// Replaces them all.
    pub fn set(&self, rules: Vec<Rule>) {
        *self.now() = rules;
    }

    fn now(&self) -> MutexGuard<'_, Vec<Rule>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_strikes_whom_it_names_and_as_often_as_it_says() {
        let rule = |text: &str| parse_flag(text).unwrap();
        let rules = Rules::new(vec![
            rule(r#"{"to": "a", "key": "1", "fault": "stall"}"#),
            rule(r#"{"to": "a", "fault": "fail", "times": 2}"#),
            rule(r#"{"fault": "busy", "times": 1}"#),
        ]);
        assert_eq!(rules.strike(Some("a"), Some("1")), Some(Fault::Stall));
        assert_eq!(rules.strike(Some("a"), Some("2")), Some(Fault::Fail));
        assert_eq!(rules.strike(Some("a"), None), Some(Fault::Fail));
        assert_eq!(rules.strike(Some("a"), None), Some(Fault::Busy));
        assert_eq!(rules.strike(Some("b"), None), None);
        assert_eq!(rules.all().len(), 1);
        for bad in [r#"{"to": "a"}"#, r#"{"fault": "fire"}"#, r#"{"fault": "stall", "who": "a"}"#, "stall"] {
            assert!(parse_flag(bad).is_err(), "{bad}");
        }
    }
}
