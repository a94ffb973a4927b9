//! The newest overview of one tenant, and the lists that have changed, for all readers of its stream.

use std::time::{Duration, Instant};

use axum::body::Bytes;
use postrider_store::tenancy::overview::Marks;
use serde::Serialize;
use utoipa::ToSchema;

use super::frame;
use crate::{
    common::error::{ApiError, ApiResult},
    tenancy::overview::Overview,
};

/// Ages may differ so much, in seconds, from what the time that has passed explains.
const AGE_TOLERANCE: i64 = 5;

/// A list that has changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = StreamTopic)]
pub(crate) enum Topic {
    Campaigns,
    Runs,
    InDoubt,
    Accounts,
    Replies,
    Messages,
    Events,
    JobRuns,
    Schedules,
    SyncErrors,
    Alerts,
    DecisionCards,
}

impl Topic {
    const ALL: [Self; 12] = [
        Self::Campaigns,
        Self::Runs,
        Self::InDoubt,
        Self::Accounts,
        Self::Replies,
        Self::Messages,
        Self::Events,
        Self::JobRuns,
        Self::Schedules,
        Self::SyncErrors,
        Self::Alerts,
        Self::DecisionCards,
    ];
}

/// The newest overview of a tenant, as its readers get it.
#[derive(Debug, Default)]
pub(super) struct News {
    known: Option<(Overview, Marks)>,
    /// The newest overview, written once for all readers.
    frame: Option<Bytes>,
    is_late: bool,
    /// Grows with every change that readers should learn at once.
    version: u64,
    /// The version with which each list last changed.
    changed: [u64; Topic::ALL.len()],
    /// When the overview was last read, with success or without.
    read_at: Option<Instant>,
}

impl News {
    /// Time until the overview should be read again.
    pub(super) fn due_in(&self, every: Duration) -> Duration {
        self.read_at.map_or(Duration::ZERO, |at| every.saturating_sub(at.elapsed()))
    }

    /// Notes a new overview. Returns whether readers should learn it at once.
    pub(super) fn publish(&mut self, overview: Overview, marks: Marks) -> ApiResult<bool> {
        self.read_at = Some(Instant::now());
        self.frame = Some(written(&overview, false)?);
        let mut is_new = std::mem::take(&mut self.is_late);
        let version = self.version + 1;
        match &self.known {
            None => is_new = true,
            Some((before, marks_before)) => {
                for (topic, changed) in Topic::ALL.iter().zip(&mut self.changed) {
                    if differs(*topic, (before, marks_before), (&overview, &marks)) {
                        *changed = version;
                        is_new = true;
                    }
                }
                is_new |= is_news(before, &overview);
            }
        }
        self.known = Some((overview, marks));
        if is_new {
            self.version = version;
        }
        Ok(is_new)
    }

    /// Notes that the overview could not be read: the old numbers stay, marked as late. Returns whether readers should learn it.
    pub(super) fn miss(&mut self) -> ApiResult<bool> {
        self.read_at = Some(Instant::now());
        let Some((overview, _)) = &self.known else { return Ok(false) };
        if std::mem::replace(&mut self.is_late, true) {
            return Ok(false);
        }
        self.frame = Some(written(overview, true)?);
        self.version += 1;
        Ok(true)
    }

    /// The newest overview, and its version.
    pub(super) fn newest(&self) -> Option<(Bytes, u64)> {
        Some((self.frame.clone()?, self.version))
    }

    /// The lists that have changed since a version.
    pub(super) fn changed_since(&self, version: u64) -> Vec<Topic> {
        let changed = Topic::ALL.iter().zip(self.changed).filter(|(_, changed)| *changed > version);
        changed.map(|(topic, _)| *topic).collect()
    }
}

/// An overview as it is in the stream.
#[derive(Serialize, ToSchema)]
pub(crate) struct StreamOverview<'a> {
    #[serde(flatten)]
    overview: &'a Overview,
    /// Whether the server could not read newer numbers: these are from `at`.
    late: bool,
}

fn written(overview: &Overview, late: bool) -> ApiResult<Bytes> {
    let data = serde_json::to_value(StreamOverview { overview, late })
        .map_err(|error| ApiError::Internal(format!("an overview cannot be written: {error}")))?;
    Ok(frame::named("overview", &data))
}

fn differs(topic: Topic, before: (&Overview, &Marks), after: (&Overview, &Marks)) -> bool {
    let ((old, old_marks), (new, marks)) = (before, after);
    match topic {
        Topic::Campaigns => {
            without_age(old).phases != without_age(new).phases || old_marks.campaign != marks.campaign
        }
        Topic::Runs => {
            without_age(old).jobs != without_age(new).jobs
                || old.items.in_flight != new.items.in_flight
                || old_marks.run != marks.run
        }
        Topic::InDoubt => {
            (old.items.in_doubt, old.items.in_doubt_for_person)
                != (new.items.in_doubt, new.items.in_doubt_for_person)
                || old.in_doubt_by_campaign != new.in_doubt_by_campaign
        }
        Topic::Accounts => old.accounts != new.accounts || old_marks.account != marks.account,
        Topic::Replies => without_age(old).replies != without_age(new).replies,
        Topic::Messages => {
            without_age(old).messages != without_age(new).messages || old_marks.message != marks.message
        }
        Topic::Events => without_age(old).events != without_age(new).events || old_marks.event != marks.event,
        Topic::JobRuns => old.job_runs != new.job_runs || old_marks.job_run != marks.job_run,
        Topic::Schedules => {
            without_age(old).schedules != without_age(new).schedules || old_marks.schedule != marks.schedule
        }
        Topic::SyncErrors => old.attention.sync_errors != new.attention.sync_errors,
        Topic::Alerts => old.attention.alerts != new.attention.alerts || old_marks.alert != marks.alert,
        Topic::DecisionCards => {
            old.attention.decision_cards != new.attention.decision_cards || old_marks.card != marks.card
        }
    }
}

/// Whether an overview says more than that time has passed.
fn is_news(before: &Overview, after: &Overview) -> bool {
    let passed = after.at.as_second() - before.at.as_second();
    let mut ages = (before.clone(), after.clone());
    let is_expected = ages.0.ages().into_iter().zip(ages.1.ages()).all(|(old, new)| match (old, new) {
        (Some(old), Some(new)) => (*old + passed - *new).abs() <= AGE_TOLERANCE,
        (old, new) => old.is_none() && new.is_none(),
    });
    !is_expected || without_age(before) != without_age(after)
}

fn without_age(overview: &Overview) -> Overview {
    let mut overview = Overview { at: jiff::Timestamp::UNIX_EPOCH, ..overview.clone() };
    for age in overview.ages() {
        *age = None;
    }
    overview
}
