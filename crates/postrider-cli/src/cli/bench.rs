//! `postrider bench`.

use std::process::ExitCode;

use clap::{Args, ValueEnum};
use postrider_bench::Part;

#[derive(Args)]
pub struct BenchArgs {
    /// Measure with smaller numbers, for a quick result
    #[arg(long)]
    quick: bool,
    /// Measure only this part [default: all parts]
    #[arg(long, value_enum)]
    only: Option<Only>,
    /// Run as the worker of a measurement on this database
    #[arg(long, value_name = "URL", hide = true)]
    null_worker: Option<String>,
    /// Write with this many connections of that worker
    #[arg(long, value_name = "N", default_value_t = 2, hide = true)]
    commit_connections: u32,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Only {
    /// Domain events and the relay
    Events,
    /// Campaigns
    Campaigns,
    /// Controls and snapshots while a campaign is sending
    Controls,
    /// Replies in chats
    Replies,
    /// Functions: invoked, and fired by schedules
    Jobs,
    /// Readers of event streams
    Stream,
}

pub async fn run(args: BenchArgs) -> anyhow::Result<ExitCode> {
    if let Some(url) = args.null_worker {
        // A server collects metrics, so this worker does too.
        let metrics = postrider_api::collect_metrics()?;
        postrider_bench::null_worker(&url, args.commit_connections, move || metrics.render()).await?;
        return Ok(ExitCode::SUCCESS);
    }
    let part = match args.only {
        None => Part::All,
        Some(Only::Events) => Part::Events,
        Some(Only::Campaigns) => Part::Campaigns,
        Some(Only::Controls) => Part::Controls,
        Some(Only::Replies) => Part::Replies,
        Some(Only::Jobs) => Part::Jobs,
        Some(Only::Stream) => Part::Stream,
    };
    postrider_bench::run(args.quick, part).await?;
    Ok(ExitCode::SUCCESS)
}
