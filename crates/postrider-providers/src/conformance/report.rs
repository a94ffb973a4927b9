//! The result of the suite.

use std::fmt;

use super::case::{Case, OutcomeKind};

/// The result of one case.
#[derive(Debug, Clone)]
pub struct CaseReport {
    /// The case.
    pub case: Case,
    /// Results that the adapter may report.
    pub expected: Vec<OutcomeKind>,
    /// Reason for an exception from the rule, if there is one.
    pub because: Option<String>,
    /// The reported result with its text; `None` if the adapter reported nothing in time.
    pub got: Option<(OutcomeKind, String)>,
    /// Number of requests that act.
    pub actions: usize,
    /// Number of other requests.
    pub others: usize,
    /// Number of connections.
    pub connections: usize,
    /// Problems of the adapter; empty if the case passed.
    pub problems: Vec<String>,
}

/// All cases of one adapter.
#[derive(Clone)]
pub struct Report {
    /// The adapter's name.
    pub adapter: &'static str,
    /// Its cases, in the order in which they were run.
    pub cases: Vec<CaseReport>,
}

impl Report {
    /// Whether all cases passed.
    #[must_use]
    pub fn is_passed(&self) -> bool {
        self.cases.iter().all(|case| case.problems.is_empty())
    }

    /// `Ok` if all cases passed; otherwise an error that shows the whole table.
    pub fn passed(self) -> Result<(), NotConforming> {
        if self.is_passed() { Ok(()) } else { Err(NotConforming(self)) }
    }

    /// The problems of one case, if it ran.
    #[must_use]
    pub fn problems(&self, case: Case) -> Option<&[String]> {
        self.cases.iter().find(|report| report.case == case).map(|report| report.problems.as_slice())
    }
}

/// An adapter that violates a rule on which the worker relies. The message is the table of all cases.
#[derive(thiserror::Error)]
#[error("{0}")]
pub struct NotConforming(pub Report);

// A test that unwraps prints this.
impl fmt::Debug for NotConforming {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Debug for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let failed = self.cases.iter().filter(|case| !case.problems.is_empty()).count();
        writeln!(f, "`{}`: {failed} of {} cases failed", self.adapter, self.cases.len())?;
        writeln!(
            f,
            "       {:<28} {:<28} {:<10} {:>7} {:>6} {:>11}",
            "case", "expected", "reported", "actions", "others", "connections"
        )?;
        for report in &self.cases {
            let mark = if report.problems.is_empty() { "ok" } else { "FAILED" };
            let expected: Vec<String> = report.expected.iter().map(ToString::to_string).collect();
            let got = report.got.as_ref().map_or("nothing".to_owned(), |(kind, _)| kind.to_string());
            let CaseReport { case, actions, others, connections, .. } = report;
            writeln!(
                f,
                "{mark:<7}{:<28} {:<28} {got:<10} {actions:>7} {others:>6} {connections:>11}",
                case.name(),
                expected.join(", "),
            )?;
            if let Some(because) = &report.because {
                writeln!(f, "         by documentation: {because}")?;
            }
            for problem in &report.problems {
                writeln!(f, "       ! {problem}")?;
            }
        }
        Ok(())
    }
}
