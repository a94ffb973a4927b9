//! The auditor compares the receipts of the provider with the database. It trusts neither.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use postrider_testkit::crash::Findings;
use uuid::Uuid;

/// A receipt of the provider.
#[derive(Debug, Clone)]
pub struct Receipt {
    pub key: Option<String>,
    /// Where the provider knows the item by another name that follows from the key.
    pub record: Option<String>,
    pub acted: bool,
    /// Whether its answer leaves it unknown whether it acted.
    pub left_in_doubt: bool,
}

/// A row of `channel_outbox`.
#[derive(Debug, Clone)]
pub struct Item {
    pub key: String,
    /// Whether the key is the one that follows from the run and the item.
    pub key_is_right: bool,
    pub job: Uuid,
    pub id: Uuid,
    pub status: String,
    pub in_doubt: bool,
    /// None if its job gave up before it was tried.
    pub reserved_by: Option<String>,
}

#[derive(Debug, Clone)]
pub struct Job {
    pub id: Uuid,
    pub run: Uuid,
    pub status: String,
    pub outcome: Option<String>,
    pub intended: Vec<Uuid>,
    /// Succeeded, failed, skipped, as the job says.
    pub counts: Option<[usize; 3]>,
}

#[derive(Debug, Clone)]
pub struct Run {
    pub id: Uuid,
    pub status: String,
    pub intended: usize,
}

#[derive(Debug, Clone, Default)]
pub struct Facts {
    pub receipts: Vec<Receipt>,
    pub items: Vec<Item>,
    pub jobs: Vec<Job>,
    pub runs: Vec<Run>,
    /// How often each worker was killed or stopped.
    pub struck: BTreeMap<String, usize>,
    /// Most items that one worker can have reserved and not settled.
    pub in_flight_max: usize,
}

/// The violations that the auditor found. Each list is empty if the guarantee held.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Keys that the provider acted on more than once.
    pub duplicates: Vec<String>,
    /// Said to be sent, and the provider knows nothing of it.
    pub never_sent: Vec<String>,
    /// Said to have failed or to be left out, and the provider acted.
    pub sent_after_all: Vec<String>,
    /// Intended, without a row, and nobody will make one.
    pub forgotten: Vec<Uuid>,
    /// Intended and without a row yet; a job will make one.
    pub waiting: usize,
    /// Ended without a try, because its job had no attempts left.
    pub given_up: usize,
    /// The provider acted on a key that has no row.
    pub without_a_row: Vec<String>,
    /// Rows whose key is not the one of their item, or whose item nobody intended.
    pub strange_rows: Vec<String>,
    /// Statuses of jobs and runs that do not follow from the items.
    pub inconsistent: Vec<String>,
    /// In doubt, although its worker was never struck and the provider answered.
    pub doubt_without_cause: Vec<String>,
    pub in_doubt: usize,
    /// The number that the faults account for.
    pub in_doubt_max: usize,
}

impl Findings for Report {
    fn findings(&self) -> Vec<(&'static str, Vec<String>)> {
        let unexplained = (self.in_doubt > self.in_doubt_max)
            .then(|| format!("{} of at most {}", self.in_doubt, self.in_doubt_max));
        vec![
            ("duplicates", self.duplicates.clone()),
            ("sent without a receipt", self.never_sent.clone()),
            ("failed or skipped with a receipt", self.sent_after_all.clone()),
            ("intended and forgotten", self.forgotten.iter().map(ToString::to_string).collect()),
            ("receipts without a row", self.without_a_row.clone()),
            ("strange rows", self.strange_rows.clone()),
            ("inconsistent jobs and runs", self.inconsistent.clone()),
            ("in doubt without a cause", self.doubt_without_cause.clone()),
            ("more in doubt than faults explain", unexplained.into_iter().collect()),
        ]
    }

    fn summary(&self) -> String {
        format!(
            "in doubt: {} of at most {}; still waiting: {}; given up: {}",
            self.in_doubt, self.in_doubt_max, self.waiting, self.given_up
        )
    }
}

pub fn audit(facts: &Facts) -> Report {
    let mut report = Report::default();
    let mut acted: HashMap<&str, usize> = HashMap::new();
    let mut doubtful: BTreeSet<&str> = BTreeSet::new();
    for receipt in &facts.receipts {
        let Some(key) = receipt.key.as_deref() else {
            if receipt.acted {
                report.without_a_row.push("(no key)".to_owned());
            }
            continue;
        };
        if receipt.acted {
            *acted.entry(key).or_default() += 1;
        }
        if receipt.left_in_doubt {
            doubtful.insert(key);
        }
    }
    let mut keys: BTreeSet<&str> = facts.items.iter().map(|item| item.key.as_str()).collect();
    report.duplicates =
        sorted(acted.iter().filter(|(_, times)| **times > 1).map(|(key, _)| (*key).to_owned()));
    report
        .without_a_row
        .extend(sorted(acted.keys().filter(|key| !keys.contains(**key)).map(|key| (*key).to_owned())));

    let mut doubts: BTreeMap<&str, usize> = BTreeMap::new();
    for item in &facts.items {
        let was_called = acted.contains_key(item.key.as_str());
        match item.status.as_str() {
            "sent" | "called" | "posted" if !was_called => report.never_sent.push(item.key.clone()),
            "failed" | "skipped" if was_called => report.sent_after_all.push(item.key.clone()),
            // It was put back: a later window reserves it again.
            "queued" if item.reserved_by.is_none() && !item.in_doubt => report.waiting += 1,
            "queued" => {
                report.in_doubt += 1;
                if !doubtful.contains(item.key.as_str()) {
                    *doubts.entry(item.reserved_by.as_deref().unwrap_or("nobody")).or_default() += 1;
                }
            }
            _ => {}
        }
        report.given_up += usize::from(item.reserved_by.is_none() && item.status != "queued");
        if item.in_doubt && item.status != "queued" {
            report.inconsistent.push(format!("item {} is {} and in doubt", item.id, item.status));
        }
        // A key stands in one row.
        if !item.key_is_right || !keys.remove(item.key.as_str()) {
            report.strange_rows.push(item.key.clone());
        }
    }
    for (worker, count) in doubts {
        let allowed = facts.struck.get(worker).copied().unwrap_or_default() * facts.in_flight_max;
        if count > allowed {
            report.doubt_without_cause.push(format!("{worker}: {count} of at most {allowed}"));
        }
    }
    report.in_doubt_max = facts.struck.values().sum::<usize>() * facts.in_flight_max + doubtful.len();
    compare_jobs(facts, &mut report);
    report
}

fn sorted(keys: impl Iterator<Item = String>) -> Vec<String> {
    let mut keys: Vec<String> = keys.collect();
    keys.sort();
    keys
}

/// Jobs and runs must say what follows from their items, by the table of the design.
fn compare_jobs(facts: &Facts, report: &mut Report) {
    let mut of_job: HashMap<Uuid, Vec<&Item>> = HashMap::new();
    for item in &facts.items {
        of_job.entry(item.job).or_default().push(item);
    }
    for job in &facts.jobs {
        let items = of_job.remove(&job.id).unwrap_or_default();
        let known: BTreeSet<Uuid> = items.iter().map(|item| item.id).collect();
        let intended: BTreeSet<Uuid> = job.intended.iter().copied().collect();
        report
            .strange_rows
            .extend(known.difference(&intended).map(|item| format!("{item} in job {}", job.id)));
        let missing: Vec<Uuid> = intended.difference(&known).copied().collect();
        let has_ended = ["completed", "dead"].contains(&job.status.as_str());
        if has_ended {
            report.forgotten.extend(&missing);
        } else {
            report.waiting += missing.len();
        }
        if let Some(wrong) = judge_job(job, &items, missing.len(), has_ended) {
            report.inconsistent.push(format!("job {}: {wrong}", job.id));
        }
    }
    report.strange_rows.extend(of_job.keys().map(|job| format!("rows of a job {job} that is not there")));
    for run in &facts.runs {
        let jobs: Vec<&Job> = facts.jobs.iter().filter(|job| job.run == run.id).collect();
        if let Some(wrong) = judge_run(run, &jobs) {
            report.inconsistent.push(format!("run {}: {wrong}", run.id));
        }
    }
}

fn judge_job(job: &Job, items: &[&Item], missing: usize, has_ended: bool) -> Option<String> {
    let count =
        |statuses: &[&str]| items.iter().filter(|item| statuses.contains(&item.status.as_str())).count();
    let succeeded = count(&["sent", "called", "posted"]);
    let (failed, skipped, in_doubt) = (count(&["failed"]), count(&["skipped"]), count(&["queued"]));
    if !has_ended {
        let is_open = ["queued", "locked", "failed"].contains(&job.status.as_str());
        return (!is_open || job.outcome.is_some()).then(|| format!("{} with {:?}", job.status, job.outcome));
    }
    if let Some(unsaid) = items.iter().find(|item| item.status == "queued" && !item.in_doubt) {
        return Some(format!("has ended, and {} is not marked as in doubt", unsaid.id));
    }
    let is_given_up = |item: &&&Item| item.reserved_by.is_none() && item.status != "queued";
    let given_up = items.iter().filter(is_given_up).count();
    let expected = match (in_doubt + missing + given_up, failed) {
        (0, 0) => ("completed", "completed"),
        (0, _) if failed == job.intended.len() => ("dead", "failed"),
        (0, _) => ("completed", "partial"),
        _ if succeeded > 0 => ("dead", "partial"),
        _ => ("dead", "failed"),
    };
    let counts = [succeeded, failed, skipped];
    let is_right = (job.status.as_str(), job.outcome.as_deref()) == (expected.0, Some(expected.1))
        && job.counts == Some(counts);
    (!is_right).then(|| {
        format!(
            "is {} ({:?}) {:?}, its items make {expected:?} {counts:?}",
            job.status, job.outcome, job.counts
        )
    })
}

fn judge_run(run: &Run, jobs: &[&Job]) -> Option<String> {
    let intended: usize = jobs.iter().map(|job| job.intended.len()).sum();
    if intended != run.intended {
        return Some(format!("intends {}, its jobs {intended}", run.intended));
    }
    let all = |outcome| jobs.iter().all(|job| job.outcome.as_deref() == Some(outcome));
    let expected: &[&str] = match () {
        () if jobs.iter().any(|job| job.outcome.is_none()) => &["queued", "running"],
        () if all("completed") => &["completed"],
        () if all("failed") => &["failed"],
        () => &["partial"],
    };
    (!expected.contains(&run.status.as_str()))
        .then(|| format!("is {}, its jobs make it {expected:?}", run.status))
}
