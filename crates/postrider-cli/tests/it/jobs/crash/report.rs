//! The facts that the auditor gets, and its findings.

use std::collections::{BTreeMap, HashSet};

use postrider_testkit::crash::Findings;
use serde_json::Value;
use uuid::Uuid;

/// Times are in microseconds, by the database's clock.
pub type Micros = i64;

/// A row of `functions`.
#[derive(Debug, Clone, sqlx::FromRow)]
pub struct Function {
    pub name: String,
    pub kind: String,
    pub max_retries: i32,
    pub initial_delay_ms: i32,
    pub backoff_multiplier: f64,
    pub max_delay_ms: i32,
}

/// A row of `job_runs`.
#[derive(Debug, Clone, sqlx::FromRow)]
pub struct Run {
    pub id: Uuid,
    pub function_name: String,
    pub lock_key: String,
    pub status: String,
    pub waits_for_retry: bool,
    pub retry_count: i32,
    pub claims: i32,
    pub is_forced: bool,
    pub input_params: Option<Value>,
    pub result: Option<Value>,
    pub error_message: Option<String>,
    pub schedule_id: Option<Uuid>,
    pub scheduled_for: Option<Micros>,
    pub grain_start: Micros,
    pub created_at: Micros,
}

/// A change of a run, recorded by a trigger of the test: made, claimed, or another state.
#[derive(Debug, Clone, sqlx::FromRow)]
pub struct Change {
    pub run: Uuid,
    pub status_before: Option<String>,
    pub status: String,
    pub claims_before: Option<i32>,
    pub claims: i32,
    pub retry_count: i32,
    /// `retry_at` at the begin of a retry.
    pub retry_at_before: Option<Micros>,
    pub retry_at: Option<Micros>,
    /// The last word of the process that held it.
    pub heartbeat_before: Option<Micros>,
    pub error_message: Option<String>,
    pub at: Micros,
    pub xid: i64,
}

/// A row of `sync_errors`.
#[derive(Debug, Clone, sqlx::FromRow)]
pub struct Letter {
    pub run: Uuid,
    pub is_resolved: bool,
    pub error_code: String,
    pub error_message: String,
    pub error_details: Value,
}

/// A row that a function in the database made, and the transaction in which it did.
#[derive(Debug, Clone, sqlx::FromRow)]
pub struct Effect {
    pub xid: i64,
    pub input: Option<Value>,
}

/// The receipt of the sim for a call.
#[derive(Debug, Clone)]
pub struct Receipt {
    pub run: String,
    pub attempt: i32,
    pub acted: bool,
    pub answered: Option<i64>,
    pub verified: bool,
}

/// A row of `schedules`, and what the test knows of it.
#[derive(Debug, Clone)]
pub struct Schedule {
    pub id: Uuid,
    pub first: Micros,
    pub next: Micros,
    /// The time from one firing to the next.
    pub step: Micros,
    /// How long a grain is in which it runs once.
    pub grain: Micros,
}

/// A row of `schedule_firings`.
#[derive(Debug, Clone, sqlx::FromRow)]
pub struct Firing {
    pub schedule_id: Uuid,
    pub fire_at: Micros,
    pub outcome: String,
    pub job_run_id: Option<Uuid>,
    pub reason: Option<String>,
}

#[derive(Debug, Clone, Default)]
pub struct Facts {
    pub functions: Vec<Function>,
    /// The job runs that callers got in responses.
    pub acquired: HashSet<Uuid>,
    pub runs: Vec<Run>,
    /// In order.
    pub changes: Vec<Change>,
    pub letters: Vec<Letter>,
    pub effects: Vec<Effect>,
    pub receipts: Vec<Receipt>,
    pub schedules: Vec<Schedule>,
    pub firings: Vec<Firing>,
    /// The violations that the watcher saw while processes ran.
    pub seen: Vec<String>,
    /// How long nothing must be heard of a process before its runs are taken from it, and how long that may take.
    pub lease: Micros,
    pub allowance: Micros,
}

/// The violations that the auditor found. Each list is empty if the guarantees held.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Neither completed nor failed for good, although everything is over.
    pub unfinished: Vec<String>,
    /// Acquired and committed, and nowhere.
    pub lost: Vec<String>,
    /// Failed for good without one complete open letter; or an open letter about something else.
    pub letters: Vec<String>,
    /// The counts of retries and claims in the row differ from those that happened.
    pub miscounted: Vec<String>,
    /// A retry that is not at the time that the policy says, that began before it, or that had no right to be.
    pub misstepped: Vec<String>,
    /// A call of an attempt that was not claimed, or was made before.
    pub uncalled_for: Vec<String>,
    /// Completed, and the function knows nothing of it.
    pub never_called: Vec<String>,
    /// Effects of a function in the database without its job run, or more than one of a job run.
    pub effects: Vec<String>,
    /// Firings that are not there, or without their run.
    pub firings: Vec<String>,
    /// Runs of schedules without a firing, or before their time.
    pub unscheduled: Vec<String>,
    /// Two at a time under a key, or completed twice.
    pub doubled: Vec<String>,
    /// A run that was kept from everybody for longer than its lease, or taken from somebody who lives.
    pub blocked: Vec<String>,
    pub statuses: BTreeMap<String, usize>,
    pub retries: usize,
    pub recovered: usize,
    pub dead_letters: usize,
}

impl Findings for Report {
    fn findings(&self) -> Vec<(&'static str, Vec<String>)> {
        vec![
            ("without an end", self.unfinished.clone()),
            ("acquired and lost", self.lost.clone()),
            ("wrong letters", self.letters.clone()),
            ("retries not counted", self.miscounted.clone()),
            ("retries at a wrong time", self.misstepped.clone()),
            ("calls without a claim", self.uncalled_for.clone()),
            ("completed without a call", self.never_called.clone()),
            ("wrong effects", self.effects.clone()),
            ("wrong firings", self.firings.clone()),
            ("runs without a firing", self.unscheduled.clone()),
            ("two under one key", self.doubled.clone()),
            ("blocked", self.blocked.clone()),
        ]
    }

    fn summary(&self) -> String {
        format!(
            "{:?}; {} retries, {} recovered, {} dead letters",
            self.statuses, self.retries, self.recovered, self.dead_letters
        )
    }
}
