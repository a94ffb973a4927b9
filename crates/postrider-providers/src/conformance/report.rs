//! What the suite found.

use std::fmt;

use super::case::{Case, Verdict};

/// What became of one case.
#[derive(Debug, Clone)]
pub struct CaseReport {
    /// Which one.
    pub case: Case,
    /// What may be said about it.
    pub expected: Vec<Verdict>,
    /// Why that is not the rule, where it is not.
    pub because: Option<String>,
    /// What was said, with its details; `None` when nothing was said in time.
    pub got: Option<(Verdict, String)>,
    /// How many requests that act arrived at the socket.
    pub actions: usize,
    /// How many others did.
    pub others: usize,
    /// How many connections were made.
    pub connections: usize,
    /// What is wrong; nothing when the case passed.
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
    /// Whether nothing is wrong.
    #[must_use]
    pub fn is_passed(&self) -> bool {
        self.cases.iter().all(|case| case.problems.is_empty())
    }

    /// `Ok` when nothing is wrong; otherwise an error that shows the whole table.
    pub fn passed(self) -> Result<(), NotConforming> {
        if self.is_passed() { Ok(()) } else { Err(NotConforming(self)) }
    }

    /// What is wrong in one case, when it was run.
    #[must_use]
    pub fn problems(&self, case: Case) -> Option<&[String]> {
        self.cases.iter().find(|report| report.case == case).map(|report| report.problems.as_slice())
    }
}

/// An adapter that does not do what the worker relies on. The message is the table of all cases.
#[derive(thiserror::Error)]
#[error("{0}")]
pub struct NotConforming(pub Report);

// A test that unwraps shows this.
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
            "case", "expected", "said", "actions", "others", "connections"
        )?;
        for report in &self.cases {
            let mark = if report.problems.is_empty() { "ok" } else { "FAILED" };
            let expected: Vec<String> = report.expected.iter().map(ToString::to_string).collect();
            let got = report.got.as_ref().map_or("nothing".to_owned(), |(verdict, _)| verdict.to_string());
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
