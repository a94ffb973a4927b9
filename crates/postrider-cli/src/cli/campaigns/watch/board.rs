//! The state of the phases: a snapshot, and the events after it.

use jiff::Timestamp;
use postrider_model::{
    campaigns::{EventType, PhaseStatus, RunStatus},
    ids::CampaignId,
};
use postrider_store::campaigns::Snapshot;
use serde::Deserialize;

use super::{one_run, waits};

/// The state of all phases at one position of the history.
#[derive(Debug, Clone)]
pub struct Board {
    pub campaign: CampaignId,
    /// Sequence of the last event that is included.
    pub sequence: i64,
    auto_advance: bool,
    /// A next phase is about to be started.
    advancing: bool,
    pub phases: Vec<Phase>,
    hints: Vec<String>,
}

#[derive(Debug, Clone)]
pub struct Phase {
    pub name: String,
    pub status: PhaseStatus,
    /// In percent.
    pub progress: f64,
    pub run: Option<RunCounts>,
    /// The reason why the run waits, and the end of the wait.
    waits: Option<String>,
}

impl Phase {
    /// The state, the progress and the reason for waiting.
    pub fn details(&self) -> String {
        let waits = waits::of_phase(self.status, self.waits.clone());
        let waits = waits.map(|waits| format!("; {waits}")).unwrap_or_default();
        format!("{}, {} %{waits}", self.status.as_str().replace('_', " "), self.progress)
    }
}

/// The newest run of a phase.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RunCounts {
    pub status: RunStatus,
    pub intended: i64,
    pub succeeded: i64,
    pub failed: i64,
    pub in_doubt: i64,
}

/// The fields of an event that are shown.
#[derive(Debug, Clone, Deserialize)]
pub struct Event {
    pub r#type: EventType,
    pub phase: String,
    pub sequence: i64,
    #[serde(default)]
    pub payload: serde_json::Value,
}

/// The fields of `GET …/status` that are shown.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    campaign_id: CampaignId,
    sequence: i64,
    auto_advance: bool,
    advancing: bool,
    not_advanced: Option<String>,
    phases: Vec<PhaseStatusOfServer>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct PhaseStatusOfServer {
    phase: String,
    status: PhaseStatus,
    progress_percentage: f64,
    scheduled_for: Option<Timestamp>,
    run: Option<RunOfServer>,
}

#[derive(Debug, Deserialize)]
struct RunOfServer {
    #[serde(flatten)]
    counts: RunCounts,
    waiting: Option<WaitingOfServer>,
}

#[derive(Debug, Deserialize)]
struct WaitingOfServer {
    jobs: i64,
    why: String,
    until: Timestamp,
}

impl PhaseStatusOfServer {
    fn waits(&self) -> Option<String> {
        let run = self.run.as_ref().filter(|run| !run.counts.status.is_terminal())?;
        match &run.waiting {
            Some(waiting) => Some(waits::for_account(waiting.jobs, &waiting.why, waiting.until)),
            None => waits::for_schedule(self.scheduled_for),
        }
    }
}

impl Board {
    /// Applies an event that is not included yet. Progress never changes a state.
    pub fn apply(&mut self, event: &Event) {
        if event.sequence <= self.sequence {
            return;
        }
        self.sequence = event.sequence;
        match event.r#type {
            EventType::PhaseCompleted => self.advancing = self.auto_advance,
            EventType::PhaseStarted => self.advancing = false,
            _ => {}
        }
        let Some(phase) = self.phases.iter_mut().find(|phase| phase.name == event.phase) else { return };
        match event.r#type {
            EventType::PhaseStarted | EventType::PhaseResumed => phase.status = PhaseStatus::InProgress,
            EventType::PhasePaused => phase.status = PhaseStatus::Paused,
            EventType::PhaseCompleted => phase.status = PhaseStatus::Completed,
            EventType::PhaseFailed => phase.status = PhaseStatus::Failed,
            EventType::CampaignProgress => {
                if let Some(progress) = event.payload["progressPercentage"].as_f64() {
                    phase.progress = progress;
                }
            }
        }
    }

    /// Whether no state changes any more without a command.
    pub fn is_over(&self) -> bool {
        let is_open = |status| matches!(status, PhaseStatus::InProgress | PhaseStatus::Paused);
        !self.phases.iter().any(|phase| is_open(phase.status)) && !self.goes_on_by_itself()
    }

    fn goes_on_by_itself(&self) -> bool {
        let follows = |pair: &[Phase]| matches!(pair, [before, next] if before.status == PhaseStatus::Completed && next.status == PhaseStatus::NotStarted);
        self.advancing && self.phases.windows(2).any(follows)
    }

    /// Takes the hints, which are not part of the history.
    pub fn hints(&mut self) -> Vec<String> {
        std::mem::take(&mut self.hints)
    }
}

impl From<Snapshot> for Board {
    fn from(snapshot: Snapshot) -> Self {
        let open = snapshot.phases.iter().filter_map(|phase| phase.run.as_ref());
        let open: Vec<_> = open.filter(|state| !state.run.status.is_terminal()).collect();
        let mut hints: Vec<String> = open.iter().filter_map(|state| one_run::why_it_waits(state)).collect();
        if !open.is_empty() && open.iter().all(|state| one_run::waits_for_a_worker(state)) {
            hints.push("no worker has taken a send job yet; `postrider serve` runs one".to_owned());
        }
        hints
            .extend(snapshot.not_advanced.iter().map(|why| format!("the next phase was not started: {why}")));
        let phases = snapshot.phases.into_iter().map(|phase| Phase {
            name: phase.phase,
            status: phase.status,
            progress: phase.progress,
            waits: phase.run.as_ref().and_then(waits::of_run),
            run: phase.run.map(|state| RunCounts {
                status: state.run.status,
                intended: state.progress.intended,
                succeeded: state.progress.succeeded,
                failed: state.progress.failed,
                in_doubt: state.progress.in_doubt,
            }),
        });
        Self {
            campaign: snapshot.campaign.id,
            sequence: snapshot.sequence,
            auto_advance: snapshot.campaign.auto_advance,
            advancing: snapshot.advancing,
            phases: phases.collect(),
            hints,
        }
    }
}

impl From<Status> for Board {
    fn from(status: Status) -> Self {
        let phases = status.phases.into_iter().map(|phase| Phase {
            waits: phase.waits(),
            name: phase.phase,
            status: phase.status,
            progress: phase.progress_percentage,
            run: phase.run.map(|run| run.counts),
        });
        let hints = status.not_advanced.iter().map(|why| format!("the next phase was not started: {why}"));
        Self {
            campaign: status.campaign_id,
            sequence: status.sequence,
            auto_advance: status.auto_advance,
            advancing: status.advancing,
            hints: hints.collect(),
            phases: phases.collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn board(auto_advance: bool, statuses: &[PhaseStatus]) -> Board {
        let phases = statuses.iter().enumerate().map(|(n, status)| {
            json!({ "phase": format!("p{n}"), "status": status, "progressPercentage": 0.0, "run": null })
        });
        let status = json!({
            "campaignId": uuid::Uuid::nil(), "sequence": 5, "autoAdvance": auto_advance, "advancing": auto_advance, "notAdvanced": null,
            "phases": phases.collect::<Vec<_>>(),
        });
        serde_json::from_value::<Status>(status).unwrap().into()
    }

    fn event(sequence: i64, kind: &str, payload: &serde_json::Value) -> Event {
        serde_json::from_value(
            json!({ "type": kind, "phase": "p0", "sequence": sequence, "payload": payload }),
        )
        .unwrap()
    }

    #[test]
    fn events_change_states_and_progress_does_not() {
        let mut board = board(false, &[PhaseStatus::NotStarted]);
        board.apply(&event(5, "phase_failed", &json!({})));
        assert_eq!(board.phases[0].status, PhaseStatus::NotStarted, "the event was included already");
        board.apply(&event(6, "phase_started", &json!({})));
        board.apply(&event(
            7,
            "campaign_progress",
            &json!({ "progressPercentage": 12.5, "status": "failed" }),
        ));
        assert_eq!((board.phases[0].status, board.phases[0].progress), (PhaseStatus::InProgress, 12.5));
        for (n, (kind, status)) in [
            ("phase_paused", PhaseStatus::Paused),
            ("phase_resumed", PhaseStatus::InProgress),
            ("phase_completed", PhaseStatus::Completed),
        ]
        .into_iter()
        .enumerate()
        {
            board.apply(&event(8 + n as i64, kind, &json!({})));
            assert_eq!(board.phases[0].status, status);
        }
        assert_eq!(board.sequence, 10);
    }

    #[test]
    fn the_reason_for_waiting_of_the_server_is_shown() {
        let details = |scheduled_for: &str, waiting: serde_json::Value| {
            let run = json!({ "status": "queued", "intended": 3, "succeeded": 0, "failed": 0, "inDoubt": 0, "waiting": waiting });
            let status = json!({
                "campaignId": uuid::Uuid::nil(), "sequence": 5, "autoAdvance": false, "advancing": false, "notAdvanced": null,
                "phases": [{ "phase": "mail", "status": "in_progress", "progressPercentage": 0.0, "scheduledFor": scheduled_for, "run": run }],
            });
            Board::from(serde_json::from_value::<Status>(status).unwrap()).phases[0].details()
        };
        let waiting = json!({ "jobs": 2, "why": "the current time is outside the sending hours", "until": "2130-03-01T08:00:00Z" });
        let past = "2020-03-01T08:00:00Z";
        assert_eq!(
            details(past, waiting),
            "in progress, 0 %; 2 send jobs wait until 2130-03-01 08:00:00Z: the current time is outside the sending hours"
        );
        assert_eq!(
            details("2130-03-01T08:00:00Z", json!(null)),
            "in progress, 0 %; the phase begins at 2130-03-01 08:00:00Z, as scheduled"
        );
        assert_eq!(details(past, json!(null)), "in progress, 0 %");
    }

    #[test]
    fn the_board_is_over_when_no_phase_continues_automatically() {
        use PhaseStatus::{Completed, Failed, InProgress, NotStarted, Paused};
        for (auto_advance, statuses, is_over) in [
            (false, &[Completed, NotStarted][..], true),
            (true, &[Completed, NotStarted], false),
            (true, &[Failed, NotStarted], true),
            (true, &[Completed, Completed], true),
            (false, &[Completed, Paused], false),
            (false, &[InProgress, Completed], false),
        ] {
            assert_eq!(board(auto_advance, statuses).is_over(), is_over, "{auto_advance} {statuses:?}");
        }
        // A phase that had completed before the snapshot is not waited for; a phase that completes after it is.
        let mut old = Board { advancing: false, ..board(true, &[Completed, NotStarted]) };
        assert!(old.is_over());
        old.apply(&event(6, "phase_started", &json!({})));
        old.apply(&event(7, "phase_completed", &json!({})));
        assert!(!old.is_over());
    }
}
