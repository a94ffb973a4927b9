//! How calls and mails end, by recipient: `PUT /callbacks/results`. Without a rule every call is completed and every mail delivered.

use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};

use super::callbacks::Report;

/// Maximum number of times that a report is repeated.
const TIMES_MAX: usize = 100;

/// The end of a call or a mail. A word of the other channel counts as success.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ending {
    /// A person answered the call; the mail was delivered.
    #[default]
    Success,
    /// The line was busy.
    Busy,
    /// The call was not answered.
    NoAnswer,
    /// The call was canceled.
    Canceled,
    /// A machine answered the call.
    Machine,
    /// The call or the mail failed.
    Failed,
    /// The mail server does not know the address.
    Bounced,
    /// The mailbox was full.
    SoftBounced,
    /// The recipient reported the mail as spam, after it was delivered.
    Complained,
    /// The mail server does not take the mail yet.
    Delayed,
}

impl Ending {
    /// Twilio's word.
    pub const fn call_status(self) -> &'static str {
        match self {
            Self::Busy => "busy",
            Self::NoAnswer => "no-answer",
            Self::Canceled => "canceled",
            Self::Failed => "failed",
            _ => "completed",
        }
    }
}

/// The end of the calls and mails to one recipient, and how the sim reports it.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Outcome {
    /// Recipient; if absent, the rule is for all recipients without their own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
    /// How it ends.
    #[serde(rename = "result")]
    pub ending: Ending,
    /// Number of times that each report is sent.
    #[serde(default = "once")]
    pub times: usize,
    /// Whether the last report is sent first.
    #[serde(default)]
    pub reversed: bool,
}

fn once() -> usize {
    1
}

impl Default for Outcome {
    fn default() -> Self {
        Self { to: None, ending: Ending::Success, times: once(), reversed: false }
    }
}

impl Outcome {
    /// The reports in the order in which they are sent.
    pub fn play(&self, reports: Vec<Report>) -> Vec<Report> {
        let count = reports.len() * self.times;
        let mut played: Vec<Report> = reports.into_iter().cycle().take(count).collect();
        if self.reversed {
            played.reverse();
        }
        played
    }
}

/// The current rules.
#[derive(Default)]
pub struct Results(Mutex<Vec<Outcome>>);

impl Results {
    /// An example of a body for `PUT /callbacks/results`.
    pub const EXAMPLE: &'static str =
        r#"[{"to": "+491701234567", "result": "busy", "times": 2, "reversed": true}]"#;

    /// Replaces all rules.
    pub fn set(&self, rules: Vec<Outcome>) -> Result<(), String> {
        if rules.iter().any(|rule| !(1..=TIMES_MAX).contains(&rule.times)) {
            return Err(format!("`times` must lie between 1 and {TIMES_MAX}"));
        }
        *self.now() = rules;
        Ok(())
    }

    /// All rules.
    pub fn all(&self) -> Vec<Outcome> {
        self.now().clone()
    }

    /// The rule for a recipient.
    pub fn of(&self, to: &str) -> Outcome {
        let all = self.now();
        let is_for = |wanted: Option<&str>| all.iter().find(|rule| rule.to.as_deref() == wanted).cloned();
        is_for(Some(to)).or_else(|| is_for(None)).unwrap_or_default()
    }

    fn now(&self) -> MutexGuard<'_, Vec<Outcome>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
