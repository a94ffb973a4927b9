//! Computes and shows the next firings of a schedule.

use clap::Args;
use jiff::{SignedDuration, Timestamp};
use postrider_model::jobs::{
    lock_key::Grain,
    schedule::{Cron, Timing, Zone, shared_grains},
};
use serde_json::{Value, json};

use super::super::output;

/// The period that is searched for firings that share a grain. It contains every change of the clocks.
const HORIZON: SignedDuration = SignedDuration::from_hours(366 * 24);

#[derive(Args)]
pub struct TimingArgs {
    /// Fire at these times: minute, hour, day, month and weekday, such as '0 2 * * *'
    #[arg(long)]
    cron: Cron,
    /// Read the cron expression in this time zone, by its IANA name
    #[arg(long, value_name = "ZONE", default_value = "UTC")]
    timezone: Zone,
}

impl TimingArgs {
    pub fn timing(&self) -> Timing {
        Timing { cron: self.cron.clone(), zone: self.timezone.clone() }
    }
}

#[derive(Args)]
pub struct PreviewArgs {
    #[command(flatten)]
    timing: TimingArgs,
    /// Warn if two firings share this grain: day, hour or 5min
    #[arg(long)]
    grain: Option<Grain>,
    /// Show this many firings
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    count: u32,
    /// Show firings after this time, such as 2026-03-28T00:00:00Z [default: now]
    #[arg(long, value_name = "TIME")]
    after: Option<Timestamp>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Shows the next firings, without a database.
pub fn preview(args: &PreviewArgs) -> anyhow::Result<()> {
    let (timing, after) = (args.timing.timing(), args.after.unwrap_or_else(Timestamp::now));
    let firings = next(&timing, after, usize::try_from(args.count)?);
    let warning = args.grain.and_then(|grain| warning(&timing, grain, after));
    if args.json {
        return output::json(&json!({
            "cron": timing.cron,
            "timezone": timing.zone,
            "firings": as_json(&timing, &firings),
            "warning": warning,
        }));
    }
    let rows = firings.iter().map(|at| [local(&timing, *at), output::time(*at)]).collect();
    output::table([timing.zone.as_str(), "utc"], rows, "the schedule never fires again")?;
    if let Some(warning) = warning {
        message!("{warning}");
    }
    Ok(())
}

pub fn next(timing: &Timing, after: Timestamp, count: usize) -> Vec<Timestamp> {
    timing.firings_after(after).take(count).collect()
}

/// The local time in the schedule's time zone.
pub fn local(timing: &Timing, at: Timestamp) -> String {
    at.to_zoned(timing.zone.time_zone().clone()).strftime("%a %Y-%m-%d %H:%M %:z").to_string()
}

/// Firings as JSON.
pub fn as_json(timing: &Timing, firings: &[Timestamp]) -> Vec<Value> {
    let zone = timing.zone.time_zone();
    firings.iter().map(|at| json!({ "utc": at, "local": at.to_zoned(zone.clone()) })).collect()
}

/// A warning when two firings share a grain, so that only the first of them would run.
pub fn warning(timing: &Timing, grain: Grain, after: Timestamp) -> Option<String> {
    let (first, second) = shared_grains(timing, grain, after, HORIZON)?;
    // A smaller grain helps only if no two firings share it.
    let smaller = match grain {
        Grain::Day => &[Grain::Hour, Grain::FiveMinutes][..],
        Grain::Hour => &[Grain::FiveMinutes],
        Grain::FiveMinutes => &[],
    };
    let fits = smaller.iter().find(|smaller| shared_grains(timing, **smaller, after, HORIZON).is_none());
    let advice = match fits {
        Some(smaller) => format!("--grain {smaller} keeps them apart"),
        None => "no grain is small enough to keep them apart; fire at most every five minutes, as in '*/5 * * * *'".to_owned(),
    };
    Some(format!(
        "the firings at {} and {} lie in one grain ({grain}), so only the first of them runs; {advice}",
        output::time(first),
        output::time(second)
    ))
}
