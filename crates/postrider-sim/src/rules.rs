//! Rules: faults for matching requests. All other requests get random faults.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, ensure};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use super::faults::{DrawnFault, Ending, Fault, Generation, RequestKind};
use super::{DELAY_MS_MAX, PROVIDERS};

/// A fault for the requests that match.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Unchecked")]
pub struct Rule {
    /// The face, such as `resend`; any, if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub provider: Option<String>,
    /// The recipient of a message; any, if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
    /// `Idempotency-Key`, `webhook-id`, record key or `Message-ID`; any, if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// Requests to act, or look-ups.
    #[serde(skip_serializing_if = "On::is_send")]
    pub on: On,
    /// The kind of fault.
    pub fault: Fault,
    /// Remaining number of times; unlimited, if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub times: Option<u64>,
    /// Duration of the fault; that of the flags, if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delay_ms: Option<u64>,
    /// Whether `latency` lasts until the rules are replaced or removed.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub hold: bool,
    /// The end of the exchange, for faults that allow a choice.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ending: Option<RuleEnding>,
}

/// The requests that a rule applies to.
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

/// A rule before validation.
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
    #[serde(default)]
    hold: bool,
    ending: Option<RuleEnding>,
}

impl TryFrom<Unchecked> for Rule {
    type Error = anyhow::Error;

    fn try_from(written: Unchecked) -> anyhow::Result<Self> {
        let Unchecked { provider, to, key, on, fault, times, delay_ms, hold, ending } = written;
        let name = fault.name();
        if let Some(provider) = provider.as_deref().filter(|provider| !PROVIDERS.contains(provider)) {
            anyhow::bail!("there is no provider `{provider}`; known are {}", PROVIDERS.join(", "));
        }
        ensure!(
            delay_ms.is_none() || fault.delays_an_effect() || fault == Fault::Latency,
            "`{name}` takes no `delay_ms`"
        );
        ensure!(delay_ms.is_none_or(|ms| ms <= DELAY_MS_MAX), "`delay_ms` is at most {DELAY_MS_MAX}, a day");
        ensure!(
            !hold || (fault == Fault::Latency && delay_ms.is_none()),
            "`hold` is for `latency` without `delay_ms`"
        );
        ensure!(
            ending.is_none() || fault.delays_an_effect(),
            "`{name}` takes no `ending`, because its ending is fixed"
        );
        ensure!(
            fault != Fault::ActLate || ending != Some(RuleEnding::Well),
            "`act_late` cannot have the ending `well`, because the sim has not acted yet"
        );
        let meets = match on {
            On::Send => RequestKind::Action,
            On::Lookup => RequestKind::LookUp,
        };
        ensure!(fault.applies_to(meets), "`{name}` does not apply to look-ups");
        Ok(Self { provider, to, key, on, fault, times, delay_ms, hold, ending })
    }
}

impl On {
    fn is_send(&self) -> bool {
        *self == Self::Send
    }
}

/// The properties of a request that rules compare.
#[derive(Clone, Copy)]
pub struct Target<'a> {
    /// The face.
    pub provider: &'a str,
    /// The recipient.
    pub to: Option<&'a str>,
    /// Its idempotency key, and the id that contained it.
    pub keys: [Option<&'a str>; 2],
    /// The kind of the request.
    pub kind: RequestKind,
}

impl Rule {
    /// An example for error messages.
    pub const EXAMPLE: &'static str = r#"[{"to": "a@example.com", "fault": "stall", "times": 1}]"#;

    fn names(&self, target: &Target<'_>) -> bool {
        let is = |wanted: &Option<String>, actual: &[Option<&str>]| {
            wanted.is_none() || actual.contains(&wanted.as_deref())
        };
        let waits_for = match target.kind {
            RequestKind::Action | RequestKind::UnknownRepeat | RequestKind::Repeat => On::Send,
            RequestKind::LookUp => On::Lookup,
        };
        self.on == waits_for
            && self.fault.applies_to(target.kind)
            && is(&self.provider, &[Some(target.provider)])
            && is(&self.to, &[target.to])
            && is(&self.key, &target.keys)
    }

    fn draw(&self, delay: impl FnOnce(Fault) -> Duration, rules: Generation) -> DrawnFault {
        let ending = match self.ending {
            None => self.fault.ending(),
            Some(RuleEnding::Well) => Ending::Well,
            Some(RuleEnding::Silence) => Ending::Silence,
            Some(RuleEnding::Reset) => Ending::Reset,
        };
        let delay = self.delay_ms.map_or_else(|| delay(self.fault), Duration::from_millis);
        DrawnFault { fault: self.fault, ending, delay, held_by: self.hold.then_some(rules) }
    }
}

/// Reads a rule of the command line.
pub fn parse_flag(text: &str) -> anyhow::Result<Rule> {
    serde_json::from_str(text)
        .with_context(|| format!("expected a JSON object like the one in {}", Rule::EXAMPLE))
}

/// The rules in force. The first that matches a request applies.
pub struct Rules {
    all: Mutex<Vec<Rule>>,
    generation: watch::Sender<Generation>,
}

impl Rules {
    /// The rules, in this order.
    pub fn new(rules: Vec<Rule>) -> Self {
        Self { all: Mutex::new(rules), generation: watch::Sender::new(0) }
    }

    /// Draws the fault of the first rule that matches; `delay` applies to rules without one. A rule with no times left is
    /// removed.
    pub fn draw(&self, target: &Target<'_>, delay: impl FnOnce(Fault) -> Duration) -> Option<DrawnFault> {
        let mut rules = self.now();
        rules.retain(|rule| rule.times != Some(0));
        let rule = rules.iter_mut().find(|rule| rule.names(target))?;
        if let Some(times) = &mut rule.times {
            *times -= 1;
        }
        Some(rule.draw(delay, *self.generation.borrow()))
    }

    /// The rules in force.
    pub fn all(&self) -> Vec<Rule> {
        self.now().iter().filter(|rule| rule.times != Some(0)).cloned().collect()
    }

    /// Replaces all rules, and releases the answers that earlier rules held.
    pub fn set(&self, rules: Vec<Rule>) {
        let mut all = self.now();
        *all = rules;
        self.generation.send_modify(|generation| *generation += 1);
    }

    /// Waits until these rules are replaced.
    pub async fn replaced(&self, rules: Generation) {
        // The sender lives as long as this.
        let _ = self.generation.subscribe().wait_for(|generation| *generation != rules).await;
    }

    fn now(&self) -> MutexGuard<'_, Vec<Rule>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    fn rule(text: &str) -> Rule {
        parse_flag(text).unwrap()
    }

    fn fault_of(rules: &Rules, kind: RequestKind, to: Option<&str>, key: Option<&str>) -> Option<Fault> {
        let target = Target { provider: "sim", to, keys: [key, None], kind };
        rules.draw(&target, |_| Duration::ZERO).map(|drawn| drawn.fault)
    }

    #[test]
    fn a_rule_applies_to_matching_requests_for_its_number_of_times() {
        let rules = Rules::new(vec![
            rule(r#"{"provider": "twilio", "fault": "half"}"#),
            rule(r#"{"to": "a", "key": "1", "fault": "stall"}"#),
            rule(r#"{"to": "a", "fault": "fail", "times": 2}"#),
            rule(r#"{"fault": "busy", "times": 1}"#),
        ]);
        let act = |to, key| fault_of(&rules, RequestKind::Action, to, key);
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
            r#"{"fault": "stall", "hold": true}"#,
            r#"{"fault": "latency", "hold": true, "delay_ms": 5}"#,
            r#"{"fault": "act_late", "ending": "well"}"#,
            r#"{"fault": "key_late", "on": "lookup"}"#,
            r#"{"fault": "key_late", "delay_ms": 18446744073709551615}"#,
            r#"{"fault": "fail", "provider": "pigeon"}"#,
        ] {
            assert!(parse_flag(bad).is_err(), "{bad}");
        }
    }

    #[tokio::test]
    async fn an_answer_is_held_until_the_rules_are_replaced() {
        let rules = Rules::new(vec![rule(r#"{"fault": "latency", "hold": true}"#)]);
        let target = Target { provider: "sim", to: None, keys: [None, None], kind: RequestKind::Action };
        let held_by = rules.draw(&target, |_| Duration::ZERO).unwrap().held_by.unwrap();
        assert_eq!(rules.replaced(held_by).now_or_never(), None);
        rules.set(Vec::new());
        rules.replaced(held_by).await;
    }

    #[test]
    fn a_rule_stays_until_a_request_to_which_it_applies() {
        let rules = Rules::new(vec![
            rule(r#"{"fault": "refuse", "times": 1}"#),
            rule(r#"{"fault": "fail", "on": "lookup", "times": 1}"#),
        ]);
        let ask = |kind| fault_of(&rules, kind, None, None);
        assert_eq!(ask(RequestKind::Repeat), None);
        assert_eq!(ask(RequestKind::LookUp), Some(Fault::Fail));
        assert_eq!(ask(RequestKind::LookUp), None);
        assert_eq!(ask(RequestKind::Action), Some(Fault::Refuse));
    }

    #[test]
    fn a_rule_serializes_to_its_text() {
        for text in [
            r#"{"fault":"fail"}"#,
            r#"{"provider":"twilio","on":"lookup","fault":"fail","times":2}"#,
            r#"{"fault":"key_late","delay_ms":500,"ending":"well"}"#,
        ] {
            assert_eq!(serde_json::to_string(&rule(text)).unwrap(), text);
        }
    }
}
