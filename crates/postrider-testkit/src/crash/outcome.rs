//! The actions of a run, its auditor's findings, and the verdict.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    time::Duration,
};

use super::{Fault, Plan};

/// The report of an auditor.
pub trait Findings {
    /// Everything that is wrong, by kind. A kind is empty when its guarantee held.
    fn findings(&self) -> Vec<(&'static str, Vec<String>)>;

    /// The auditor's counts.
    fn summary(&self) -> String;

    fn is_clean(&self) -> bool {
        self.findings().iter().all(|(_, found)| found.is_empty())
    }

    /// The summary, and the first findings of each kind.
    fn text(&self) -> String {
        let mut text = self.summary();
        for (kind, found) in self.findings() {
            text.push_str(&format!("; {kind}: {}", found.len()));
            if !found.is_empty() {
                text.push_str(&format!(" {:?}", &found[..found.len().min(5)]));
            }
        }
        text
    }
}

/// Something that was counted. A run with less than the minimum is void.
#[derive(Debug, Clone)]
pub struct Count {
    pub what: String,
    pub count: usize,
    pub min: usize,
}

impl Count {
    pub fn new(what: impl Into<String>, count: usize, min: usize) -> Self {
        Self { what: what.into(), count, min }
    }
}

/// The result of a workload.
#[derive(Debug)]
pub struct Audit<R> {
    pub report: R,
    pub counts: Vec<Count>,
    /// How often each fault of the providers occurred.
    pub provider_faults: BTreeMap<String, usize>,
}

/// A run: what was injected and done, and what the auditor found.
#[derive(Debug)]
pub struct Outcome<R> {
    pub seed: u64,
    pub seconds: u64,
    pub counts: Vec<Count>,
    pub report: R,
}

impl<R: Findings> Outcome<R> {
    /// Every fault must be injected as often as planned, and at least half of them must hit work in flight.
    pub(super) fn new(plan: &Plan, took: Duration, injected: &[(Fault, bool)], audit: Audit<R>) -> Self {
        let mut counts = Vec::new();
        for fault in plan.faults.iter().map(|(fault, _)| *fault).collect::<BTreeSet<_>>() {
            let of_it = injected.iter().filter(|(one, _)| *one == fault);
            let hits = of_it.clone().filter(|(_, is_hit)| *is_hit).count();
            let planned = plan.count(fault);
            counts.push(Count::new(fault.to_string(), of_it.count(), planned));
            counts.push(Count::new(format!("{fault} with work in flight"), hits, planned / 2));
        }
        counts.extend(audit.counts);
        for (name, rate) in &plan.provider_faults {
            let count = audit.provider_faults.get(name).copied().unwrap_or_default();
            let min = if *rate > 0.0 { plan.provider_faults_min } else { 0 };
            counts.push(Count::new(format!("provider fault {name}"), count, min));
        }
        Self { seed: plan.seed, seconds: took.as_secs(), counts, report: audit.report }
    }

    /// Why the run was not as hard as its plan, if so. Such a run says nothing about the system.
    pub fn void(&self) -> Option<String> {
        let too_few = self.counts.iter().find(|one| one.count < one.min)?;
        Some(format!("{}: {}, at least {} are needed", too_few.what, too_few.count, too_few.min))
    }

    /// An error if the auditor found something, or if the run is void. A finding counts in a void run too.
    pub fn verdict(&self) -> anyhow::Result<()> {
        anyhow::ensure!(self.report.is_clean(), "a guarantee was broken: {self}");
        if let Some(why) = self.void() {
            anyhow::bail!("void: this run proves nothing. {why}\n{self}");
        }
        Ok(())
    }
}

impl<R: Findings> fmt::Display for Outcome<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counts: Vec<String> =
            self.counts.iter().map(|one| format!("{}: {}", one.what, one.count)).collect();
        writeln!(f, "seed {}, {} s", self.seed, self.seconds)?;
        writeln!(f, "{}", counts.join("; "))?;
        f.write_str(&self.report.text())
    }
}

/// Counts the faults of the providers, which their receipts name.
pub fn provider_faults<'a>(faults: impl Iterator<Item = Option<&'a str>>) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for fault in faults {
        *counts.entry(fault.unwrap_or("none").to_owned()).or_default() += 1;
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Found(Vec<String>);

    impl Findings for Found {
        fn findings(&self) -> Vec<(&'static str, Vec<String>)> {
            vec![("lost", self.0.clone())]
        }

        fn summary(&self) -> String {
            "summary".to_owned()
        }
    }

    fn outcome(injected: &[(Fault, bool)], faults: usize, counted: usize, lost: &[&str]) -> Outcome<Found> {
        let plan = Plan::new(1, &[(Fault::Kill("workers"), 2)], "stall=0.1,half=0", 3);
        let provider_faults = BTreeMap::from([("stall".to_owned(), faults)]);
        let report = Found(lost.iter().map(|text| (*text).to_owned()).collect());
        let audit = Audit { report, counts: vec![Count::new("items", counted, 5)], provider_faults };
        Outcome::new(&plan, Duration::from_secs(7), injected, audit)
    }

    const HIT: (Fault, bool) = (Fault::Kill("workers"), true);
    const MISS: (Fault, bool) = (Fault::Kill("workers"), false);

    #[test]
    fn a_run_as_hard_as_planned_without_findings_passes() {
        let outcome = outcome(&[HIT, MISS], 3, 5, &[]);
        assert!(outcome.verdict().is_ok(), "{outcome}");
    }

    #[test]
    fn a_run_that_was_not_as_hard_as_planned_is_void() {
        for (outcome, why) in [
            (outcome(&[HIT], 3, 5, &[]), "kills of workers: 1, at least 2 are needed"),
            (
                outcome(&[MISS, MISS], 3, 5, &[]),
                "kills of workers with work in flight: 0, at least 1 are needed",
            ),
            (outcome(&[HIT, HIT], 2, 5, &[]), "provider fault stall: 2, at least 3 are needed"),
            (outcome(&[HIT, HIT], 3, 4, &[]), "items: 4, at least 5 are needed"),
        ] {
            assert_eq!(outcome.void().as_deref(), Some(why));
            assert!(outcome.verdict().unwrap_err().to_string().starts_with("void: "));
        }
    }

    #[test]
    fn a_finding_fails_a_run_that_is_void_too() {
        for outcome in [outcome(&[HIT, HIT], 3, 5, &["a"]), outcome(&[], 0, 0, &["a"])] {
            let error = outcome.verdict().unwrap_err().to_string();
            assert!(
                error.starts_with("a guarantee was broken: ") && error.contains("lost: 1 [\"a\"]"),
                "{error}"
            );
        }
    }
}
