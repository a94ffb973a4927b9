//! One run, by its items, until it ends.

use std::{
    collections::HashMap,
    io::IsTerminal,
    process::ExitCode,
    time::{Duration, Instant},
};

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use jiff::Timestamp;
use postrider_model::{campaign::RunStatus, ids::RunId};
use postrider_store::{
    Pool,
    campaigns::{self, RunState},
    pool,
    runs::{Certificate, Run},
    tenants::Tenant,
};

use super::{
    super::verdict::{self, Outcome, Verdict},
    waits,
};
use crate::{cli::output, shutdown};

/// How often to look.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// After so long without a worker, say what may be wrong.
const NOBODY_CAME: Duration = Duration::from_secs(5);

/// Shows progress until every run has ended. Success when all of it is launched.
pub async fn follow(pool: &Pool, tenant: &Tenant, run: RunId, json: bool) -> anyhow::Result<ExitCode> {
    let stop = shutdown::on_signal()?;
    let mut display = Display::new(json);
    let began = Instant::now();
    let (mut told_of_nobody, mut told_of_retries) = (false, false);
    let ended = loop {
        let states = look(pool, tenant, run).await?;
        display.show(&states)?;
        if states.iter().all(|state| state.run.status.is_terminal()) {
            break states;
        }
        if !told_of_nobody && began.elapsed() > NOBODY_CAME && states.iter().all(waits_for_a_worker) {
            told_of_nobody = true;
            display.say("no worker has taken a job yet; `postrider serve` runs one");
        }
        if !told_of_retries && let Some(why) = states.iter().find_map(why_it_waits) {
            told_of_retries = true;
            display.say(&why);
        }
        tokio::select! {
            () = stop.cancelled() => {
                display.say("stopped watching; the campaign goes on without you");
                return Ok(ExitCode::from(130));
            }
            () = tokio::time::sleep(LOOK_EVERY) => {}
        }
    };
    let runs = ended.into_iter().map(|state| state.run).collect();
    let mut transaction = pool::begin_as(pool, tenant.id).await?;
    let certified = verdict::certify(&mut transaction, tenant.id, runs).await?;
    Ok(judge([certified]).exit_code())
}

async fn look(pool: &Pool, tenant: &Tenant, run: RunId) -> anyhow::Result<Vec<RunState>> {
    let mut transaction = pool::begin_as(pool, tenant.id).await?;
    Ok(campaigns::run_states(&mut transaction, tenant.id, &[run]).await?.into_values().collect())
}

/// It could begin, and nobody holds any of it.
pub fn waits_for_a_worker(state: &RunState) -> bool {
    state.run.status.is_terminal()
        || state.run.status == RunStatus::Queued
            && state.run.scheduled_for.is_none_or(|at| at <= Timestamp::now())
}

/// Why a run has jobs that come again, and where to look.
pub fn why_it_waits(state: &RunState) -> Option<String> {
    let progress = &state.progress;
    match (progress.jobs.retrying, progress.in_doubt) {
        (0, _) => None,
        (_, 0) => {
            Some(format!("a job was put off and comes again; `postrider trace {}` says why", state.run.id))
        }
        (_, in_doubt) => Some(format!(
            "{in_doubt} in doubt, and the run waits for them; `postrider in-doubt list` shows them"
        )),
    }
}

/// Says of every phase how it ended. The worst of the verdicts.
pub fn judge(phases: impl IntoIterator<Item = Vec<(Run, Certificate)>>) -> Verdict {
    let outcomes = phases.into_iter().filter_map(|runs| Outcome::of(&runs));
    let verdicts = outcomes.map(|outcome| {
        tell!("{}", outcome.sentence());
        outcome.verdict
    });
    verdicts.max().unwrap_or(Verdict::Launched)
}

/// Bars on a terminal, lines when something changed elsewhere, JSON for programs.
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
                let widest = states.iter().map(|state| state.run.phase.len()).max().unwrap_or_default();
                for state in states {
                    match bars.get(&state.run.id) {
                        Some(bar) => move_on(bar, state),
                        None => {
                            // Filled in before it is shown, so that nobody sees it empty.
                            let bar = ProgressBar::hidden().with_style(style(widest)?);
                            move_on(&bar, state);
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
                        state.run.phase,
                        progress.done(),
                        progress.intended,
                        details(state)
                    );
                    if shown.get(&state.run.id) != Some(&line) {
                        tell!("{line}");
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

    /// A sentence beside the bars.
    fn say(&self, words: &str) {
        match self {
            Self::Bars(all, _) => all.suspend(|| tell!("{words}")),
            Self::Lines(_) | Self::Json(_) => tell!("{words}"),
        }
    }
}

fn style(widest: usize) -> anyhow::Result<ProgressStyle> {
    let template = format!("{{prefix:{widest}}}  {{bar:30}} {{pos}}/{{len}}  {{msg}}");
    Ok(ProgressStyle::with_template(&template)?)
}

fn move_on(bar: &ProgressBar, state: &RunState) {
    bar.set_prefix(state.run.phase.clone());
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
