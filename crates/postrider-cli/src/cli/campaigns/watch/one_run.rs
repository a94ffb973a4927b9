//! Watches one run by the counts of its items until it ends.

use std::{
    collections::HashMap,
    io::IsTerminal,
    process::ExitCode,
    time::{Duration, Instant},
};

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use jiff::Timestamp;
use postrider_model::{campaigns::RunStatus, ids::RunId};
use postrider_store::{
    Pool,
    campaigns::{
        self, RunState,
        runs::{Certificate, Run},
    },
    postgres::pool,
    tenancy::tenants::Tenant,
};

use super::{
    super::result::{self, LaunchResult, PhaseResult},
    waits,
};
use crate::{cli::output, shutdown};

/// Interval between two reads of the state.
const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// After this time without a worker, the command prints a hint.
const WORKER_EXPECTED_WITHIN: Duration = Duration::from_secs(5);

/// Shows progress until every run has ended. The exit code is the result.
pub async fn follow(pool: &Pool, tenant: &Tenant, run: RunId, json: bool) -> anyhow::Result<ExitCode> {
    let stop = shutdown::on_signal()?;
    let mut display = Display::new(json);
    let began = Instant::now();
    let (mut warned_of_worker, mut warned_of_retries) = (false, false);
    let ended = loop {
        let states = read_states(pool, tenant, run).await?;
        display.show(&states)?;
        if states.iter().all(|state| state.run.status.is_terminal()) {
            break states;
        }
        if !warned_of_worker
            && began.elapsed() > WORKER_EXPECTED_WITHIN
            && states.iter().all(waits_for_a_worker)
        {
            warned_of_worker = true;
            display.print("no worker has taken a send job yet; `postrider serve` runs one");
        }
        if !warned_of_retries && let Some(why) = states.iter().find_map(why_it_waits) {
            warned_of_retries = true;
            display.print(&why);
        }
        tokio::select! {
            () = stop.cancelled() => {
                display.print("stopped watching; the campaign continues");
                return Ok(ExitCode::from(130));
            }
            () = tokio::time::sleep(POLL_INTERVAL) => {}
        }
    };
    let runs = ended.into_iter().map(|state| state.run).collect();
    let mut transaction = pool::begin_as(pool, tenant.id).await?;
    let certified = result::certify(&mut transaction, tenant.id, runs).await?;
    Ok(print_results([certified]).exit_code())
}

async fn read_states(pool: &Pool, tenant: &Tenant, run: RunId) -> anyhow::Result<Vec<RunState>> {
    let mut transaction = pool::begin_as(pool, tenant.id).await?;
    Ok(campaigns::run_states(&mut transaction, tenant.id, &[run]).await?.into_values().collect())
}

/// Whether the run could begin and no worker has claimed a send job of it.
pub fn waits_for_a_worker(state: &RunState) -> bool {
    state.run.status.is_terminal()
        || state.run.status == RunStatus::Queued
            && state.run.scheduled_for.is_none_or(|at| at <= Timestamp::now())
}

/// The reason why send jobs of a run are retried, and the command that shows details.
pub fn why_it_waits(state: &RunState) -> Option<String> {
    let progress = &state.progress;
    match (progress.jobs.retrying, progress.in_doubt) {
        (0, _) => None,
        (_, 0) => Some(format!(
            "a send job was postponed and is retried; `postrider trace {}` shows the reason",
            state.run.id
        )),
        (_, in_doubt) => Some(format!(
            "{in_doubt} in doubt, and the run waits for them; `postrider in-doubt list` shows them"
        )),
    }
}

/// Prints the result of every phase, and returns the worst.
pub fn print_results(phases: impl IntoIterator<Item = Vec<(Run, Certificate)>>) -> LaunchResult {
    let outcomes = phases.into_iter().filter_map(|runs| PhaseResult::of(&runs));
    let results = outcomes.map(|outcome| {
        message!("{}", outcome.sentence());
        outcome.result
    });
    results.max().unwrap_or(LaunchResult::Launched)
}

/// Bars on a terminal, a line per change without one, JSON for programs.
enum Display {
    Bars(MultiProgress, HashMap<RunId, ProgressBar>),
    Lines(HashMap<RunId, String>),
    Json(String),
}

impl Display {
    fn new(json: bool) -> Self {
        if json {
            Self::Json(String::new())
        } else if std::io::stderr().is_terminal() {
            Self::Bars(MultiProgress::new(), HashMap::new())
        } else {
            Self::Lines(HashMap::new())
        }
    }

    fn show(&mut self, states: &[RunState]) -> anyhow::Result<()> {
        match self {
            Self::Bars(all, bars) => {
                let widest =
                    states.iter().map(|state| state.run.phase_name().len()).max().unwrap_or_default();
                for state in states {
                    match bars.get(&state.run.id) {
                        Some(bar) => update_bar(bar, state),
                        None => {
                            // Filled in before it is shown, so that it is never shown empty.
                            let bar = ProgressBar::hidden().with_style(style(widest)?);
                            update_bar(&bar, state);
                            bars.insert(state.run.id, all.add(bar));
                        }
                    }
                    if let Some(bar) = bars.get(&state.run.id)
                        && state.run.status.is_terminal()
                        && !bar.is_finished()
                    {
                        bar.abandon();
                    }
                }
            }
            Self::Lines(shown) => {
                for state in states {
                    let progress = &state.progress;
                    let line = format!(
                        "{}: {}/{} done, {}",
                        state.run.phase_name(),
                        progress.done(),
                        progress.intended,
                        details(state)
                    );
                    if shown.get(&state.run.id) != Some(&line) {
                        message!("{line}");
                        shown.insert(state.run.id, line);
                    }
                }
            }
            Self::Json(shown) => {
                let line = serde_json::to_string(states)?;
                if *shown != line {
                    output::text(&format!("{line}\n"))?;
                    *shown = line;
                }
            }
        }
        Ok(())
    }

    /// Prints a sentence above the bars.
    fn print(&self, words: &str) {
        match self {
            Self::Bars(all, _) => all.suspend(|| message!("{words}")),
            Self::Lines(_) | Self::Json(_) => message!("{words}"),
        }
    }
}

fn style(widest: usize) -> anyhow::Result<ProgressStyle> {
    let template = format!("{{prefix:{widest}}}  {{bar:30}} {{pos}}/{{len}}  {{msg}}");
    Ok(ProgressStyle::with_template(&template)?)
}

fn update_bar(bar: &ProgressBar, state: &RunState) {
    bar.set_prefix(state.run.phase_name().to_owned());
    bar.set_length(number(state.progress.intended));
    bar.set_position(number(state.progress.done()));
    bar.set_message(details(state));
}

fn details(state: &RunState) -> String {
    let progress = &state.progress;
    format!(
        "{} {}, {} failed, {} skipped, {} in doubt; {}{}",
        progress.succeeded,
        state.run.channel.success(),
        progress.failed,
        progress.skipped,
        progress.in_doubt,
        state.run.status,
        waits::of_run(state).map(|waits| format!("; {waits}")).unwrap_or_default()
    )
}

fn number(count: i64) -> u64 {
    u64::try_from(count).unwrap_or_default()
}
