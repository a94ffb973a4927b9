//! A new campaign, and the mistakes in it.

use std::fmt;

use jiff::Timestamp;
use postrider_model::{Channel, campaigns::PhaseKind, ids::AssetId};
use serde::Serialize;

use crate::StoreError;

/// Most phases of a campaign.
const PHASES_MAX: usize = 100;

/// A new campaign.
#[derive(Debug, Clone)]
pub struct NewCampaign {
    /// Its name in the tenant.
    pub name: String,
    /// Whether a phase that completes starts the next one.
    pub auto_advance: bool,
    /// Its steps, in order.
    pub phases: Vec<NewPhase>,
}

/// A new phase. Lists and accounts are named; they must exist.
#[derive(Debug, Clone, Serialize)]
pub struct NewPhase {
    /// Its name inside the campaign.
    pub phase: String,
    /// Its kind: Postrider delivers it, or another service carries it out.
    pub kind: PhaseKind,
    /// How people are reached.
    pub channel: Option<Channel>,
    /// The asset that it sends.
    pub asset_id: Option<AssetId>,
    /// The list that it addresses. A social phase without a list is one post.
    pub list: Option<String>,
    /// The account that it uses.
    pub provider_account: Option<String>,
    /// The account that takes over an item that the first one provably did not send.
    pub failover_account: Option<String>,
    /// The share of failed items with which it still counts as completed.
    pub failure_tolerance: Option<f64>,
    /// Not before this time.
    pub scheduled_for: Option<Timestamp>,
    /// How long after a call the provider's silence counts as "it was never sent".
    pub quiet_time_seconds: Option<u32>,
}

/// A mistake in a new campaign: one sentence, and the field that it is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mistake {
    /// Index of the phase, counted from 0; none when it is about the campaign.
    pub at: Option<usize>,
    /// The name of that phase, where the sentence does not say it.
    pub phase: Option<String>,
    /// The field.
    pub field: &'static str,
    /// The problem.
    pub problem: String,
}

impl Mistake {
    /// A mistake in the phase at this index.
    #[must_use]
    pub fn in_phase(at: usize, phase: &str, field: &'static str, problem: impl Into<String>) -> Self {
        Self { at: Some(at), phase: Some(phase.to_owned()), field, problem: problem.into() }
    }

    fn in_name(at: usize, problem: String) -> Self {
        Self { at: Some(at), phase: None, field: "phase", problem }
    }

    fn in_campaign(field: &'static str, problem: impl Into<String>) -> Self {
        Self { at: None, phase: None, field, problem: problem.into() }
    }

    /// Path of the field, such as `phases[0].channel`.
    #[must_use]
    pub fn path(&self) -> String {
        match self.at {
            Some(at) => format!("phases[{at}].{}", self.field),
            None => self.field.to_owned(),
        }
    }
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(phase) = &self.phase {
            write!(f, "phase `{phase}`: ")?;
        }
        f.write_str(&self.problem)
    }
}

impl std::error::Error for Mistake {}

impl From<Mistake> for StoreError {
    fn from(mistake: Mistake) -> Self {
        Self::Refused { message: mistake.to_string(), hint: None }
    }
}

impl NewCampaign {
    /// Checks the campaign without asking the database.
    pub fn check(&self) -> Result<(), Mistake> {
        if self.name.trim().is_empty() || self.name.len() > 255 {
            return Err(Mistake::in_campaign("name", "a campaign needs a name of 1 to 255 bytes"));
        }
        if self.name.contains(char::is_control) {
            return Err(Mistake::in_campaign("name", "the name of a campaign has no control characters"));
        }
        if self.phases.is_empty() || self.phases.len() > PHASES_MAX {
            let count = self.phases.len();
            return Err(Mistake::in_campaign(
                "phases",
                format!("a campaign has between 1 and {PHASES_MAX} phases, not {count}"),
            ));
        }
        for (at, phase) in self.phases.iter().enumerate() {
            let name = &phase.phase;
            if !is_simple(name) {
                return Err(Mistake::in_name(
                    at,
                    format!(
                        "`{}` is not a name for a phase; use up to 63 of a-z, 0-9, `-` and `_`, like `first-mail`",
                        name.escape_debug()
                    ),
                ));
            }
            if self.phases.iter().take(at).any(|earlier| earlier.phase == *name) {
                return Err(Mistake::in_name(
                    at,
                    format!("two phases are called `{name}`; give one another name"),
                ));
            }
            if let Some((field, problem)) = phase.problem() {
                return Err(Mistake::in_phase(at, name, field, problem));
            }
        }
        Ok(())
    }
}

impl NewPhase {
    fn problem(&self) -> Option<(&'static str, String)> {
        if self.failure_tolerance.is_some_and(|share| !(0.0..=1.0).contains(&share)) {
            let problem = "failure_tolerance is a share between 0 and 1, such as 0.05";
            return Some(("failure_tolerance", problem.to_owned()));
        }
        if self.quiet_time_seconds == Some(0) {
            return Some(("quiet_time_seconds", "quiet_time_seconds must be at least 1".to_owned()));
        }
        match self.kind {
            PhaseKind::External => {
                let fields = [
                    ("asset_id", self.asset_id.is_some()),
                    ("list", self.list.is_some()),
                    ("provider_account", self.provider_account.is_some()),
                    ("failover_account", self.failover_account.is_some()),
                ];
                let (field, _) = fields.into_iter().find(|(_, is_set)| *is_set)?;
                let problem =
                    format!("another service does an external phase, so `{field}` does not belong here");
                Some((field, problem))
            }
            PhaseKind::Delivery => {
                let missing = [
                    ("channel", self.channel.is_none()),
                    ("asset_id", self.asset_id.is_none()),
                    ("provider_account", self.provider_account.is_none()),
                    ("list", self.list.is_none() && self.channel != Some(Channel::Social)),
                ];
                if let Some((field, _)) = missing.into_iter().find(|(_, is_missing)| *is_missing) {
                    return Some((field, format!("`{field}` is missing")));
                }
                if self.channel == Some(Channel::Chat) {
                    let problem = "campaigns have no chat; known are email, voice and social";
                    return Some(("channel", problem.to_owned()));
                }
                let problem = "it fails over to the account that it uses anyway; name another one";
                (self.failover_account.is_some() && self.failover_account == self.provider_account)
                    .then(|| ("failover_account", problem.to_owned()))
            }
        }
    }
}

/// As the check `campaign_phases_name_is_simple` says it.
fn is_simple(name: &str) -> bool {
    let small = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    name.len() <= 63 && name.starts_with(small) && name.chars().all(|c| small(c) || c == '-' || c == '_')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn phase(name: &str) -> NewPhase {
        NewPhase {
            phase: name.to_owned(),
            kind: PhaseKind::Delivery,
            channel: Some(Channel::Email),
            asset_id: Some(AssetId::new()),
            list: Some("customers".to_owned()),
            provider_account: Some("mail".to_owned()),
            failover_account: None,
            failure_tolerance: None,
            scheduled_for: None,
            quiet_time_seconds: None,
        }
    }

    fn refusal(phases: Vec<NewPhase>) -> String {
        let campaign = NewCampaign { name: "spring".to_owned(), auto_advance: true, phases };
        campaign.check().err().map_or_else(String::new, |error| error.to_string())
    }

    #[test]
    fn a_whole_campaign_is_accepted() {
        let post = NewPhase { list: None, channel: Some(Channel::Social), ..phase("post") };
        let external = NewPhase {
            kind: PhaseKind::External,
            channel: None,
            asset_id: None,
            list: None,
            provider_account: None,
            ..phase("print")
        };
        assert_eq!(refusal(vec![phase("mail"), post, external]), "");
    }

    #[test]
    fn a_mistake_names_its_phase() {
        let cases = [
            (vec![], "a campaign has between 1 and 100 phases, not 0"),
            (vec![phase("mail"), phase("mail")], "two phases are called `mail`"),
            (vec![phase("First mail")], "`First mail` is not a name for a phase"),
            (vec![phase("")], "`` is not a name for a phase"),
            (vec![NewPhase { channel: None, ..phase("mail") }], "phase `mail`: `channel` is missing"),
            (vec![NewPhase { list: None, ..phase("mail") }], "phase `mail`: `list` is missing"),
            (
                vec![NewPhase { provider_account: None, ..phase("mail") }],
                "phase `mail`: `provider_account` is missing",
            ),
            (
                vec![NewPhase { failover_account: Some("mail".to_owned()), ..phase("mail") }],
                "phase `mail`: it fails over to the account that it uses anyway",
            ),
            (
                vec![NewPhase { failure_tolerance: Some(f64::NAN), ..phase("mail") }],
                "phase `mail`: failure_tolerance is a share between 0 and 1",
            ),
            (
                vec![NewPhase { quiet_time_seconds: Some(0), ..phase("mail") }],
                "phase `mail`: quiet_time_seconds must be at least 1",
            ),
            (
                vec![NewPhase { kind: PhaseKind::External, ..phase("print") }],
                "phase `print`: another service does an external phase, so `asset_id` does not belong here",
            ),
        ];
        for (phases, expected) in cases {
            let message = refusal(phases);
            assert!(message.starts_with(expected), "{message}");
        }
    }
}
