//! `postrider bench`.

use std::process::ExitCode;

use clap::Args;

#[derive(Args)]
pub struct BenchArgs {
    /// Smaller numbers, for a quick look
    #[arg(long)]
    quick: bool,
}

pub async fn run(args: BenchArgs) -> anyhow::Result<ExitCode> {
    postrider_bench::run(args.quick).await?;
    Ok(ExitCode::SUCCESS)
}
