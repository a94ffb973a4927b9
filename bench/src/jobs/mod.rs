//! Job runs of functions that do nothing, invoked as the API invokes them, compared with direct calls and with plain SQL.
//!
//! An invocation is measured from before its lock key is acquired until its caller has read the result: the caller acquires in its own
//! transaction and sends a hint, one runner claims, performs and ends the run, and the caller waits and reads. HTTP and authentication
//! of the API are not included. The raw side only makes the same three changes of a row with the same columns.

mod firing;
mod null;
mod raw;
mod stage;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::task::JoinSet;

use self::{
    raw::Raw,
    stage::{Stage, Subject},
};
use crate::{
    Scale,
    meter::{Cost, Meter},
    place::{Database, Place},
    report::{Report, median},
};

const ACTOR: &str = "bench";
/// Default of `database.connections_max`.
const CONNECTIONS: u32 = 4;
/// Default of `jobs.concurrency`.
const RUNNING: usize = 64;
const PATIENCE: Duration = Duration::from_secs(600);
/// Numbers of concurrent callers.
const CALLERS: [usize; 3] = [1, 16, 256];

const LIMIT: &str = "What limits invocations: one caller waits for three durable commits and two hints, one after another; many wait for the \
                     callers' four connections, and for the processor, which server, runner and callers share here. Each transaction \
                     asks four times (is the connection idle, begin, the statement, commit), and no statement stays prepared.";

pub(crate) async fn measure(place: &Place, scale: Scale, report: &mut Report) -> anyhow::Result<()> {
    let mut rounds = Vec::new();
    for round in 0..scale.rounds {
        let database = place.fresh(&format!("bench_jobs_{round}")).await?;
        rounds.push(Round::measure(&database, scale.invocations).await?);
        database.remove().await?;
    }
    for (at, callers) in CALLERS.into_iter().enumerate() {
        let (rust, http) = (Subject::Rust.at(), Subject::Http.at());
        let against = |sides: fn(&Round, usize, usize) -> (f64, f64), subject| -> Vec<_> {
            rounds.iter().map(|round| sides(round, subject, at)).collect()
        };
        let sql = against(|round, subject, at| (round.raw(at).rate, round.whole[subject][at].rate()), rust);
        let quantity = format!("invocations of a Rust function, {}", many(callers));
        report.compare(&quantity, &sql, None);
        let work = |round: &Round, subject: usize, at: usize| {
            (round.raw(at).cost.items_per_second(), round.whole[subject][at].cost.items_per_second())
        };
        report.compare("the same, per second of the processor's time", &against(work, rust), None);
        let direct = |round: &Round, subject: usize, at: usize| {
            (round.direct[subject][at].rate(), round.whole[subject][at].rate())
        };
        let quantity = format!("invocations of an HTTP function, {} (raw: direct calls)", many(callers));
        report.compare(&quantity, &against(direct, http), None);
    }
    for subject in Subject::ALL {
        delays(&rounds, subject, report);
    }
    let costs: Vec<Cost> = rounds.iter().map(|round| round.raw[1].cost).collect();
    report.note(format!("Runs in plain SQL, by many: {}.", Cost::median(&costs).words("run")));
    report.note(LIMIT.to_owned());
    firing::measure(place, report).await
}

/// Reports the overhead of an invocation over a direct call, and its cost.
fn delays(rounds: &[Round], subject: Subject, report: &mut Report) {
    let name = subject.name();
    for (at, callers) in CALLERS.into_iter().enumerate() {
        let who = many(callers);
        let middle = |sides: fn(&Round) -> &Sides, share| {
            let delays = rounds.iter().map(|round| sides(round)[subject.at()][at].at(share));
            median(delays.map(|delay| delay.as_secs_f64() * 1e3))
        };
        let whole = [0.5, 0.99].map(|share| middle(|round| &round.whole, share));
        let direct = [0.5, 0.99].map(|share| middle(|round| &round.direct, share));
        if at < 2 {
            report.single(
                &format!("overhead over calling {name} directly, {who}, p50 / p99"),
                &format!("{:.1} / {:.1} ms", whole[0] - direct[0], whole[1] - direct[1]),
                None,
            );
        }
        let costs: Vec<Cost> = rounds.iter().map(|round| round.whole[subject.at()][at].cost).collect();
        report.note(format!(
            "Invocations of {name}, {who}: {:.2} / {:.2} ms, called directly {:.4} / {:.4} ms (p50 / p99); {}.",
            whole[0],
            whole[1],
            direct[0],
            direct[1],
            Cost::median(&costs).words("invocation")
        ));
    }
}

fn many(callers: usize) -> String {
    if callers == 1 { "1 caller".to_owned() } else { format!("{callers} callers") }
}

/// Results by subject and by number of callers.
type Sides = [Vec<Driven>; 2];

/// The results of one round, on one database.
struct Round {
    /// In plain SQL: one after another, and concurrently.
    raw: [Raw; 2],
    direct: Sides,
    whole: Sides,
}

impl Round {
    /// The raw result for this number of callers.
    fn raw(&self, callers: usize) -> Raw {
        self.raw[callers.min(1)]
    }

    async fn measure(database: &Database<'_>, invocations: u64) -> anyhow::Result<Self> {
        let raw =
            [raw::one_by_one(database, invocations / 4).await?, raw::together(database, invocations).await?];
        let stage = Arc::new(Stage::set(database).await?);
        let (mut direct, mut whole) = (Sides::default(), Sides::default());
        for subject in Subject::ALL {
            let at = subject.at();
            drive(database, &stage, subject, Way::Whole, 4, 20).await?; // opens connections
            for callers in CALLERS {
                // One caller makes fewer invocations; the percentiles need enough of them.
                let times = if callers == 1 { invocations / 10 } else { invocations };
                direct[at].push(drive(database, &stage, subject, Way::Direct, callers, times).await?);
                whole[at].push(drive(database, &stage, subject, Way::Whole, callers, times).await?);
            }
        }
        stage.leave().await;
        Ok(Self { raw, direct, whole })
    }
}

#[derive(Debug, Clone, Copy)]
enum Way {
    Direct,
    Whole,
}

/// The result of many calls.
struct Driven {
    took: Duration,
    /// Latency of each call, in ascending order.
    delays: Vec<Duration>,
    cost: Cost,
}

impl Driven {
    fn rate(&self) -> f64 {
        self.delays.len() as f64 / self.took.as_secs_f64()
    }

    /// The percentile of the latencies for this share of the calls.
    fn at(&self, share: f64) -> Duration {
        let last = self.delays.len().saturating_sub(1);
        self.delays.get((last as f64 * share) as usize).copied().unwrap_or_default()
    }
}

/// Runs the callers. Each one makes its next call after the answer to the previous one.
async fn drive(
    database: &Database<'_>,
    stage: &Arc<Stage>,
    subject: Subject,
    way: Way,
    callers: usize,
    times: u64,
) -> anyhow::Result<Driven> {
    let each = times.div_ceil(callers as u64);
    let before = Meter::of_this_process(database).await?;
    let begun = Instant::now();
    let mut tasks = JoinSet::new();
    for _ in 0..callers {
        let stage = Arc::clone(stage);
        tasks.spawn(async move {
            let mut delays = Vec::new();
            for _ in 0..each {
                let called = Instant::now();
                match way {
                    Way::Direct => stage.call(subject).await?,
                    Way::Whole => stage.invoke(subject).await?,
                }
                delays.push(called.elapsed());
            }
            anyhow::Ok(delays)
        });
    }
    let mut delays = Vec::new();
    while let Some(ended) = tasks.join_next().await {
        delays.extend(ended??);
    }
    let took = begun.elapsed();
    delays.sort();
    let cost = Meter::of_this_process(database).await?.since(before, i64::try_from(delays.len())?, took);
    Ok(Driven { took, delays, cost })
}
