//! Claim + complete: with the functions of the contract and in plain SQL; alone, with many processed rows in the table, and
//! while another session holds a snapshot.

use std::time::{Duration, Instant};

use sqlx::Connection;

use crate::{
    Scale,
    drive::{Client, Drained, Side},
    place::{Database, Place},
    report::{Report, count, median},
};

const BAR: f64 = 0.60;
const BAR_BESIDE_PROCESSED: f64 = 0.80;
/// Batch size of all comparisons except the first.
pub(crate) const BATCH: i32 = 1000;
/// Number of events that are added at a time during a long measurement.
const REFILL: i64 = 100_000;

const LIMIT: &str = "What limits ours: the guards around the same row changes (triggers, row-level security, the look-up of \
                     claimed rows by their keys); one call per event also starts a statement inside the server for each.";

/// Every side at several sizes.
pub(crate) async fn measure(place: &Place, scale: Scale, report: &mut Report) -> anyhow::Result<()> {
    for (batch_size, connections, bar) in [(100, 1, Some(BAR)), (BATCH, 1, Some(BAR)), (BATCH, 2, None)] {
        let mut rounds = [Vec::new(), Vec::new()];
        let mut costs = Vec::new();
        for round in 0..scale.rounds {
            let mut rates = [0.0; 3];
            for (at, side) in Side::ALL.into_iter().enumerate() {
                let database =
                    place.fresh(&format!("bench_drain_{batch_size}_{connections}_{round}_{at}")).await?;
                database.fill(side.table(), scale.events).await?;
                let cost = Cost::before(&database).await?;
                let drained = drain(&database, side, batch_size, connections).await?;
                rates[at] = drained.rate();
                costs.push((side, cost.after(&database, drained).await?));
                database.remove().await?;
            }
            rounds[0].push([rates[0], rates[1]].into());
            rounds[1].push([rates[0], rates[2]].into());
        }
        let plural = if connections == 1 { "" } else { "s" };
        let what =
            format!("claim + complete, batch {}, {connections} connection{plural}", count(batch_size.into()));
        report.compare(&what, &rounds[0], bar);
        report.compare(&format!("{what}, a call per event"), &rounds[1], None);
        if connections == 1 {
            report.note(cost_note(batch_size, &costs));
        }
    }
    report.note(LIMIT.to_owned());
    Ok(())
}

/// Our side with many processed rows in the same table, compared with none.
pub(crate) async fn measure_beside_processed(
    place: &Place,
    scale: Scale,
    report: &mut Report,
) -> anyhow::Result<()> {
    let full = place.fresh("bench_full").await?;
    full.fill_processed(scale.processed).await?;
    for batch_size in [100, BATCH] {
        let mut rounds = Vec::new();
        for round in 0..scale.rounds {
            let empty = place.fresh(&format!("bench_empty_{batch_size}_{round}")).await?;
            let mut rates = [0.0; 2];
            for (at, database) in [&empty, &full].into_iter().enumerate() {
                database.fill(Side::Ours.table(), scale.events).await?;
                rates[at] = drain(database, Side::Ours, batch_size, 1).await?.rate();
            }
            rounds.push(rates.into());
            empty.remove().await?;
        }
        report.compare(
            &format!(
                "the same, batch {}, {} processed rows beside (raw: none)",
                count(batch_size.into()),
                count(scale.processed as f64)
            ),
            &rounds,
            Some(BAR_BESIDE_PROCESSED),
        );
    }
    full.remove().await
}

/// Our side before and while another session holds a snapshot, which prevents the removal of dead rows and index entries.
pub(crate) async fn measure_with_snapshot(
    place: &Place,
    scale: Scale,
    report: &mut Report,
) -> anyhow::Result<()> {
    let window = scale.hold / 8;
    for side in Side::BOTH {
        let database = place
            .fresh(&format!("bench_snapshot_{}", if side == Side::Raw { "raw" } else { "ours" }))
            .await?;
        let mut client = Client::worker(&database, side, "bench").await?;
        let before = steady(&database, &mut client, window, window).await?;
        let mut holder = database.admin().await?;
        sqlx::raw_sql("begin isolation level repeatable read; select count(*) from pg_class")
            .execute(&mut holder)
            .await?;
        let during = steady(&database, &mut client, scale.hold, window).await?;
        holder.close().await?;
        client.close().await?;
        database.remove().await?;
        report.note(format!(
            "A snapshot held elsewhere for {} s, {side:?}: {} events/s before, {} in the last {} s ({:.0} %).",
            scale.hold.as_secs(),
            count(before),
            count(during),
            window.as_secs_f32(),
            during / before * 100.0,
        ));
    }
    Ok(())
}

/// Claims and completes for this time, adding events when none is left, and returns the rate at the end. The
/// time for adding events does not count.
async fn steady(
    database: &Database<'_>,
    client: &mut Client,
    how_long: Duration,
    window: Duration,
) -> anyhow::Result<f64> {
    let mut worked = Duration::ZERO;
    let mut last = Drained::default();
    while worked < how_long {
        let begun = Instant::now();
        let done = client.step(BATCH).await?;
        let took = begun.elapsed();
        worked += took;
        if done == 0 {
            database.fill(client.side.table(), REFILL).await?;
        } else if worked + window >= how_long {
            last.events += done;
            last.took += took;
        }
    }
    Ok(last.rate())
}

/// Claims and completes all events.
pub(crate) async fn drain(
    database: &Database<'_>,
    side: Side,
    batch_size: i32,
    connections: usize,
) -> anyhow::Result<Drained> {
    let mut tasks = tokio::task::JoinSet::new();
    let begun = Instant::now();
    for number in 0..connections {
        let mut client = Client::worker(database, side, &format!("bench-{number}")).await?;
        tasks.spawn(async move {
            let drained = client.drain(batch_size).await?;
            client.close().await?;
            anyhow::Ok(drained)
        });
    }
    let mut all = Drained::default();
    while let Some(ended) = tasks.join_next().await {
        let one = ended??;
        all.events += one.events;
        all.spent.claiming += one.spent.claiming;
        all.spent.completing += one.spent.completing;
    }
    Ok(Drained { took: begun.elapsed(), ..all })
}

/// The counters of the server at some time.
struct Cost {
    wal: i64,
    commits: i64,
}

/// The cost of a drain: bytes of WAL and commits per 1,000 events, and microseconds that the client waits per event.
struct PerEvents {
    wal: f64,
    commits: f64,
    claiming: f64,
    completing: f64,
}

impl Cost {
    async fn before(database: &Database<'_>) -> anyhow::Result<Self> {
        let mut admin = database.admin().await?;
        let (wal, commits) = sqlx::query_as(
            "select (pg_current_wal_insert_lsn() - '0/0')::bigint, xact_commit
               from pg_stat_database where datname = current_database()",
        )
        .fetch_one(&mut admin)
        .await?;
        admin.close().await?;
        Ok(Self { wal, commits })
    }

    /// The connections of the drain must be closed, so that the server has added their counters.
    async fn after(self, database: &Database<'_>, drained: Drained) -> anyhow::Result<PerEvents> {
        let now = Self::before(database).await?;
        let events = drained.events as f64;
        Ok(PerEvents {
            wal: (now.wal - self.wal) as f64 / events * 1000.0,
            commits: (now.commits - self.commits) as f64 / events * 1000.0,
            claiming: drained.spent.claiming.as_secs_f64() / events * 1e6,
            completing: drained.spent.completing.as_secs_f64() / events * 1e6,
        })
    }
}

fn cost_note(batch_size: i32, costs: &[(Side, PerEvents)]) -> String {
    let of = |side: Side| {
        let middle = |what: fn(&PerEvents) -> f64| {
            median(costs.iter().filter(|cost| cost.0 == side).map(|cost| what(&cost.1)))
        };
        format!(
            "{:.1} µs an event to claim and {:.1} µs to complete; per 1,000 events {} kB of WAL and {:.1} commits",
            middle(|cost| cost.claiming),
            middle(|cost| cost.completing),
            count(middle(|cost| cost.wal) / 1000.0),
            middle(|cost| cost.commits),
        )
    };
    format!("Batch {}, raw: {}. Ours: {}.", count(batch_size.into()), of(Side::Raw), of(Side::Ours))
}
