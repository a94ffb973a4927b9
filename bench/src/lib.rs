//! Benchmarks of Postrider against plain SQL, on one cluster, in one run (`make bench`).
//!
//! "Raw" is plain SQL that makes the same row changes in a table with the same columns, without triggers and row-level
//! security. Both sides use the same driver, with prepared statements. Every measurement has
//! a fresh database, the sides alternate, and the report shows medians.
//!
//! | module | measures |
//! |---|---|
//! | `publish` | publishing in batches and one by one |
//! | `drain` | claim + complete: batch sizes, two connections, many processed rows, a held snapshot |
//! | `relay` | the relay with a sink that does nothing, and its memory with many waiting events |
//! | `campaigns` | deploying; whole campaigns: one and two processes, limits, many finished items, a held snapshot, memory |
//! | `replies` | replies to a provider that does nothing, and the time from commit to call |
//! | `jobs` | invocations of functions that do nothing, in Rust and over HTTP, compared with direct calls; firing schedules |
//! | `stream` | readers of a campaign's history: memory of many, and the time from the commit of an event to its arrival |

mod campaigns;
mod drain;
mod drive;
mod jobs;
mod machine;
mod meter;
mod place;
mod publish;
mod relay;
mod replies;
mod report;
mod server;
mod stream;

use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};

use crate::{place::Place, report::Report};

/// The amounts of a benchmark run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Scale {
    /// Rounds per measurement.
    pub(crate) rounds: usize,
    /// Events per round.
    pub(crate) events: i64,
    /// Events per round with one commit per event.
    pub(crate) single_events: i64,
    /// Processed rows in the table beside the waiting ones.
    pub(crate) processed: i64,
    /// Waiting events during the measurement of the relay's memory.
    pub(crate) waiting: i64,
    /// Items of a campaign, and leads on its list.
    pub(crate) items: i64,
    /// Leads on the list of the campaign whose deployment is measured.
    pub(crate) audience: i64,
    /// Finished items in the table beside the measured ones.
    pub(crate) finished: i64,
    /// Replies that are sent.
    pub(crate) replies: i64,
    /// Invocations of a function by many callers.
    pub(crate) invocations: u64,
    /// Time for which another session holds a snapshot.
    pub(crate) hold: Duration,
}

/// The part of the benchmarks to run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// Everything.
    All,
    /// The outbox of domain events, and the relay.
    Events,
    /// Campaigns.
    Campaigns,
    /// Controls and snapshots while a campaign is sending.
    Controls,
    /// Replies in chats.
    Replies,
    /// Functions: invocations and schedules.
    Jobs,
    /// Readers of the campaign stream.
    Stream,
}

impl Scale {
    const FULL: Self = Self {
        rounds: 3,
        events: 200_000,
        single_events: 16_000,
        processed: 5_000_000,
        waiting: 1_000_000,
        items: 200_000,
        audience: 1_000_000,
        finished: 5_000_000,
        replies: 50_000,
        invocations: 20_000,
        hold: Duration::from_secs(40),
    };
    const QUICK: Self = Self {
        rounds: 3,
        events: 40_000,
        single_events: 4_000,
        processed: 200_000,
        waiting: 50_000,
        items: 40_000,
        audience: 200_000,
        finished: 200_000,
        replies: 10_000,
        invocations: 4_000,
        hold: Duration::from_secs(5),
    };
}

/// Runs the benchmarks on a private cluster, prints the report, and removes the cluster. Fails if a bar is missed.
pub async fn run(quick: bool, part: Part) -> anyhow::Result<()> {
    let scale = if quick { Scale::QUICK } else { Scale::FULL };
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;

    let place = Place::make().await?;
    let mut report = Report::default();
    let measured = tokio::select! {
        measured = measure(&place, scale, part, &mut report) => measured,
        _ = terminate.recv() => Err(anyhow::anyhow!("stopped by a signal")),
        _ = interrupt.recv() => Err(anyhow::anyhow!("stopped by a signal")),
    };
    let removed = place.remove().await;
    report.print();
    measured?;
    removed?;
    report.result()
}

async fn measure(place: &Place, scale: Scale, part: Part, report: &mut Report) -> anyhow::Result<()> {
    report.machine = machine::facts(place).await?;
    if matches!(part, Part::All | Part::Events) {
        publish::measure(place, scale, report).await?;
        drain::measure(place, scale, report).await?;
        relay::measure(place, scale, report).await?;
        drain::measure_beside_processed(place, scale, report).await?;
        drain::measure_with_snapshot(place, scale, report).await?;
    }
    if matches!(part, Part::All | Part::Campaigns) {
        campaigns::measure(place, scale, report).await?;
    }
    if matches!(part, Part::All | Part::Controls) {
        campaigns::measure_controls(place, scale, report).await?;
    }
    if matches!(part, Part::All | Part::Replies) {
        replies::measure(place, scale, report).await?;
    }
    if matches!(part, Part::All | Part::Jobs) {
        jobs::measure(place, scale, report).await?;
    }
    if matches!(part, Part::All | Part::Stream) {
        stream::measure(place, report).await?;
    }
    Ok(())
}

/// Works on campaigns with a provider that does nothing, until standard input ends. The benchmark runs it in child
/// processes. `metrics` returns the metrics of the process as text.
pub async fn null_worker(
    url: &str,
    commit_connections: u32,
    metrics: impl Fn() -> String + Send + 'static,
) -> anyhow::Result<()> {
    campaigns::work(url, commit_connections, metrics).await
}
