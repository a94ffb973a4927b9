//! Rules: faults that strike whom they name. The dice are thrown for everyone else.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, ensure};
use serde::{Deserialize, Serialize};

use super::faults::{Asked, Ending, Fault, Strike};
use super::{DELAY_MS_MAX, PROVIDERS};

/// Whom a fault strikes, and how often.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Unchecked")]
pub struct Rule {
    /// The face, such as `resend`; without one, any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub provider: Option<String>,
    /// The recipient of a message; without one, any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
    /// `Idempotency-Key`, `webhook-id`, record key or `Message-ID`; without one, any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// Requests to act, or questions.
    #[serde(skip_serializing_if = "On::is_send")]
    pub on: On,
    /// What happens.
    pub fault: Fault,
    /// How many times more; without a number, every time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub times: Option<u64>,
    /// How long the fault lasts; without a number, as long as the flags say.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delay_ms: Option<u64>,
    /// How the exchange ends, for faults that leave it open.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ending: Option<RuleEnding>,
}

/// What a rule waits for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum On {
    /// Requests to act.
    #[default]
    Send,
    /// Look-ups, and signing in.
    Lookup,
}

/// The endings that a rule can choose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RuleEnding {
    /// A good answer.
    Well,
    /// No answer.
    Silence,
    /// RST.
    Reset,
}

/// A rule as it was written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Unchecked {
    provider: Option<String>,
    to: Option<String>,
    key: Option<String>,
    #[serde(default)]
    on: On,
    fault: Fault,
    times: Option<u64>,
    delay_ms: Option<u64>,
    ending: Option<RuleEnding>,
}

impl TryFrom<Unchecked> for Rule {
    type Error = anyhow::Error;

    fn try_from(written: Unchecked) -> anyhow::Result<Self> {
        let Unchecked { provider, to, key, on, fault, times, delay_ms, ending } = written;
        let name = fault.name();
        if let Some(provider) = provider.as_deref().filter(|provider| !PROVIDERS.contains(provider)) {
            anyhow::bail!("there is no provider `{provider}`; known are {}", PROVIDERS.join(", "));
        }
        ensure!(
            delay_ms.is_none() || fault.is_mean() || fault == Fault::Latency,
            "`{name}` takes no `delay_ms`"
        );
        ensure!(delay_ms.is_none_or(|ms| ms <= DELAY_MS_MAX), "`delay_ms` is at most {DELAY_MS_MAX}, a day");
        ensure!(ending.is_none() || fault.is_mean(), "`{name}` takes no `ending`: it has its own");
        ensure!(
            fault != Fault::ActLate || ending != Some(RuleEnding::Well),
            "`act_late` cannot end well: it has not acted yet"
        );
        let meets = match on {
            On::Send => Asked::ToAct,
            On::Lookup => Asked::ToLook,
        };
        ensure!(fault.strikes(meets), "`{name}` strikes no look-ups");
        Ok(Self { provider, to, key, on, fault, times, delay_ms, ending })
    }
}

impl On {
    fn is_send(&self) -> bool {
        *self == Self::Send
    }
}

/// A request, as far as rules look at it.
#[derive(Clone, Copy)]
pub struct Target<'a> {
    /// The face it came to.
    pub provider: &'a str,
    /// Who is to be reached.
    pub to: Option<&'a str>,
    /// The names that it is known by: its key, and the id that carried it.
    pub keys: [Option<&'a str>; 2],
    /// What it is to the provider.
    pub asked: Asked,
}

impl Rule {
    /// One that shows most of what there is to write.
    pub const EXAMPLE: &'static str = r#"[{"to": "a@example.com", "fault": "stall", "times": 1}]"#;

    fn names(&self, target: &Target<'_>) -> bool {
        let is = |wanted: &Option<String>, given: &[Option<&str>]| {
            wanted.is_none() || given.contains(&wanted.as_deref())
        };
        let waits_for = match target.asked {
            Asked::ToAct | Asked::ToActAgain | Asked::Again => On::Send,
            Asked::ToLook => On::Lookup,
        };
        self.on == waits_for
            && self.fault.strikes(target.asked)
            && is(&self.provider, &[Some(target.provider)])
            && is(&self.to, &[target.to])
            && is(&self.key, &target.keys)
    }

    fn strike(&self, delay: impl FnOnce(Fault) -> Duration) -> Strike {
        let ending = match self.ending {
            None => self.fault.ending(),
            Some(RuleEnding::Well) => Ending::Well,
            Some(RuleEnding::Silence) => Ending::Silence,
            Some(RuleEnding::Reset) => Ending::Reset,
        };
        let delay = self.delay_ms.map_or_else(|| delay(self.fault), Duration::from_millis);
        Strike { fault: self.fault, ending, delay }
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

    /// What a rule has for this request; `delay` is for those that say nothing of it. A rule that has struck as often
    /// as it should is gone.
    pub fn strike(&self, target: &Target<'_>, delay: impl FnOnce(Fault) -> Duration) -> Option<Strike> {
        let mut rules = self.now();
        rules.retain(|rule| rule.times != Some(0));
        let rule = rules.iter_mut().find(|rule| rule.names(target))?;
        if let Some(times) = &mut rule.times {
            *times -= 1;
        }
        Some(rule.strike(delay))
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

    fn rule(text: &str) -> Rule {
        parse_flag(text).unwrap()
    }

    fn struck(rules: &Rules, asked: Asked, to: Option<&str>, key: Option<&str>) -> Option<Fault> {
        let target = Target { provider: "sim", to, keys: [key, None], asked };
        rules.strike(&target, |_| Duration::ZERO).map(|strike| strike.fault)
    }

    #[test]
    fn a_rule_strikes_whom_it_names_and_as_often_as_it_says() {
        let rules = Rules::new(vec![
            rule(r#"{"provider": "twilio", "fault": "half"}"#),
            rule(r#"{"to": "a", "key": "1", "fault": "stall"}"#),
            rule(r#"{"to": "a", "fault": "fail", "times": 2}"#),
            rule(r#"{"fault": "busy", "times": 1}"#),
        ]);
        let act = |to, key| struck(&rules, Asked::ToAct, to, key);
        assert_eq!(act(Some("a"), Some("1")), Some(Fault::Stall));
        assert_eq!(act(Some("a"), Some("2")), Some(Fault::Fail));
        assert_eq!(act(Some("a"), None), Some(Fault::Fail));
        assert_eq!(act(Some("a"), None), Some(Fault::Busy));
        assert_eq!(act(Some("b"), None), None);
        assert_eq!(rules.all().len(), 2);
        for bad in [
            r#"{"to": "a"}"#,
            r#"{"fault": "fire"}"#,
            r#"{"fault": "stall", "who": "a"}"#,
            "stall",
            r#"{"fault": "stall", "delay_ms": 5}"#,
            r#"{"fault": "reset", "ending": "well"}"#,
            r#"{"fault": "act_late", "ending": "well"}"#,
            r#"{"fault": "key_late", "on": "lookup"}"#,
            r#"{"fault": "key_late", "delay_ms": 18446744073709551615}"#,
            r#"{"fault": "fail", "provider": "pigeon"}"#,
        ] {
            assert!(parse_flag(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_rule_is_kept_for_a_request_that_it_can_strike() {
        let rules = Rules::new(vec![
            rule(r#"{"fault": "refuse", "times": 1}"#),
            rule(r#"{"fault": "fail", "on": "lookup", "times": 1}"#),
        ]);
        let ask = |asked| struck(&rules, asked, None, None);
        assert_eq!(ask(Asked::Again), None);
        assert_eq!(ask(Asked::ToLook), Some(Fault::Fail));
        assert_eq!(ask(Asked::ToLook), None);
        assert_eq!(ask(Asked::ToAct), Some(Fault::Refuse));
    }

    #[test]
    fn a_rule_reads_back_as_it_was_written() {
        for text in [
            r#"{"fault":"fail"}"#,
            r#"{"provider":"twilio","on":"lookup","fault":"fail","times":2}"#,
            r#"{"fault":"key_late","delay_ms":500,"ending":"well"}"#,
        ] {
            assert_eq!(serde_json::to_string(&rule(text)).unwrap(), text);
        }
    }
}
