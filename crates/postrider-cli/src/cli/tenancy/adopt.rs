//! `postrider adopt`: allows a restored copy of the database to send, and puts in doubt everything that the original may have sent.

use std::{process::ExitCode, time::Duration};

use clap::Args;
use postrider_engine::tenancy::witness;
use postrider_model::{
    ids::{ScheduleId, TenantId},
    jobs::schedule::{Cron, Timing, Zone},
};
use postrider_store::{
    PgConnection, Pool,
    campaigns::send_jobs,
    jobs::schedules,
    postgres::pool,
    tenancy::installation::{self, Adoption, Cause, Known, Observed, Unfinished},
};
use serde::Serialize;

use crate::cli::{actor, ask, output};
use crate::{config::Config, installation::Installation, wire};

/// Schedules per batch.
const BATCH: i32 = 500;
/// A process that wrote its mark within this time is active.
const ACTIVE_WITHIN: Duration = Duration::from_secs(15);

/// Allow a restored copy of the database to send
///
/// A backup does not contain what was sent after it was taken. So everything that was unfinished in it becomes in doubt: the resolver
/// settles it if the provider can be queried, a person settles the rest. No process may send from the original any more.
#[derive(Args)]
pub struct AdoptArgs {
    /// Adopt a copy that Postrider does not recognize as one, because its witness was lost or copied with it
    #[arg(long, conflicts_with = "moved")]
    restored: bool,
    /// State that nothing was sent since the copy was taken: put nothing in doubt. Refused unless every process had stopped in order
    #[arg(long)]
    moved: bool,
    /// Adopt without asking
    #[arg(long)]
    yes: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Answer {
    adopted: bool,
    reason: Option<String>,
    #[serde(flatten)]
    adoption: Option<Adoption>,
}

pub async fn run(args: &AdoptArgs, config: &Config) -> anyhow::Result<ExitCode> {
    crate::cli::with_installation(config, async |installation| adopt(args, config, installation).await)
        .await?;
    Ok(ExitCode::SUCCESS)
}

async fn adopt(args: &AdoptArgs, config: &Config, installation: &Installation) -> anyhow::Result<()> {
    let pool = installation.admin_pool().await?;
    let place = wire::witness_place(config, installation).await?;
    let observed = observe(&pool).await?;
    let missing = witness::missing(&pool, &place).await?;
    let reason = match reason(&observed, missing.clone()) {
        Some(reason) => reason,
        None if args.restored => {
            refuse_if_active(&pool, &observed).await?;
            "an operator states that it is a restored copy".to_owned()
        }
        None => {
            let why = match &observed.epoch {
                None => "no process has ever sent from this database".to_owned(),
                Some(epoch) => format!("this is the database that was {} on {}", epoch.cause, epoch.began_at),
            };
            if args.json {
                return output::json(&Answer { adopted: false, reason: Some(why), adoption: None });
            }
            message!(
                "there is nothing to adopt: {why}; --restored adopts a copy that Postrider does not recognize as one"
            );
            return Ok(());
        }
    };
    if args.moved {
        anyhow::ensure!(
            missing.is_none() && observed.all_stopped,
            "--moved is refused: {}; adopt without it",
            missing
                .unwrap_or_else(|| "a process had not shut down cleanly when the copy was taken".to_owned())
        );
    }
    let mut transaction = pool::begin(&pool).await?;
    let unfinished = installation::unfinished(&mut transaction).await?;
    drop(transaction);
    show(&reason, &unfinished, args.moved);
    ask::confirm(
        args.yes,
        "no process may send from the original any more, or people get messages twice",
        "nothing was changed",
    )?;

    let cause = if args.moved { Cause::Moved } else { Cause::Adopted };
    let adoption = begin(&pool, &observed, cause, &reason).await?;
    let mut hinting = pool::begin(&pool).await?;
    send_jobs::hint(&mut hinting).await?;
    pool::commit(hinting).await?;
    if args.json {
        return output::json(&Answer { adopted: true, reason: Some(reason), adoption: Some(adoption) });
    }
    message!(
        "adopted: {} items and {} replies are in doubt, {} firings were skipped, {} campaigns wait for their next phase to be started; \
         `postrider in-doubt list` shows the items; waiting processes continue automatically",
        adoption.items_in_doubt,
        adoption.replies_in_doubt,
        adoption.firings_skipped,
        adoption.campaigns_stopped
    );
    Ok(())
}

async fn observe(pool: &Pool) -> anyhow::Result<Observed> {
    let mut transaction = pool::begin(pool).await?;
    Ok(installation::observe(&mut transaction, &Known::default()).await?)
}

/// The reason why the database is regarded as a copy.
fn reason(observed: &Observed, missing: Option<String>) -> Option<String> {
    let unconfirmed =
        || (!observed.unconfirmed.is_empty()).then(|| installation::unconfirmed(&observed.unconfirmed));
    observed.refusal.clone().or(missing).or_else(unconfirmed)
}

/// Refuses while a process sends from the database: adoption would put its items in doubt during their calls.
async fn refuse_if_active(pool: &Pool, observed: &Observed) -> anyhow::Result<()> {
    let mut transaction = pool::begin(pool).await?;
    let now = schedules::now(&mut transaction).await?;
    drop(transaction);
    let age = observed.last_mark_at.map(|at| now.duration_since(at).unsigned_abs());
    match age.filter(|age| *age < ACTIVE_WITHIN && !observed.all_stopped) {
        Some(age) => anyhow::bail!(
            "a process was sending from this database {} seconds ago; stop every `postrider serve` on it, wait {} seconds, and try again",
            age.as_secs(),
            ACTIVE_WITHIN.as_secs()
        ),
        None => Ok(()),
    }
}

fn show(reason: &str, unfinished: &Unfinished, is_moved: bool) {
    message!("restored copy: {reason}");
    if is_moved {
        message!("--moved: nothing is put in doubt, because nothing was sent since the copy was taken");
        return;
    }
    message!("unfinished when the copy was taken, and the consequences of adopting it:");
    let lines = [
        (
            unfinished.reserved_items + unfinished.unreserved_items,
            "items of campaigns are in doubt until evidence settles them",
        ),
        (
            unfinished.replies,
            "chat replies are looked up first if the provider can be queried, else sent again",
        ),
        (unfinished.notifications, "notifications about alerts are in doubt"),
        (unfinished.campaigns, "campaigns do not start their next phase automatically any more"),
        (unfinished.schedules + unfinished.firings, "schedules and firings that are due are skipped"),
        (unfinished.job_runs, "job runs are executed again, under the same id"),
        (unfinished.events, "domain events are delivered again, under the same id"),
    ];
    for (count, what) in lines {
        message!("  {count:>8} {what}");
    }
}

/// Adopts the copy in one transaction.
async fn begin(pool: &Pool, observed: &Observed, cause: Cause, reason: &str) -> anyhow::Result<Adoption> {
    let actor = actor();
    if observed.epoch.is_none() {
        // A copy from before the first start.
        installation::enrol(pool, &actor).await?;
    }
    let mut transaction = pool::begin(pool).await?;
    let mut adoption = installation::begin_epoch(&mut transaction, cause, reason, &actor).await?;
    if cause == Cause::Adopted {
        adoption.firings_skipped += skip_due(&mut transaction).await?;
    }
    pool::commit(transaction).await?;
    Ok(adoption)
}

/// Moves schedules past the times at which the original may have fired them.
async fn skip_due(connection: &mut PgConnection) -> anyhow::Result<i64> {
    let mut done: Vec<(TenantId, ScheduleId)> = Vec::new();
    let mut skipped = 0;
    loop {
        let due = schedules::due_on(connection, BATCH, BATCH, &done).await?;
        if due.is_empty() {
            return Ok(skipped);
        }
        for schedule in due {
            done.push((schedule.tenant, schedule.id));
            let (Ok(cron), Ok(zone)) = (schedule.cron.parse::<Cron>(), schedule.timezone.parse::<Zone>())
            else {
                message!(
                    "schedule {} has an unknown cron expression or time zone and stays due; disable it with \
                     `postrider jobs schedule disable`",
                    schedule.id.0
                );
                continue;
            };
            let timing = Timing { cron, zone };
            let last = timing.latest_until(schedule.due, schedule.now).unwrap_or(schedule.due);
            let next = timing.next_after(schedule.now);
            skipped += i64::from(installation::skip_firings(connection, &schedule, last, next).await?);
        }
    }
}
