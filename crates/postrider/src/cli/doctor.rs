//! `postrider doctor`: every check, one line each; exit 1 with what to do when something must be put right.

use std::process::ExitCode;

use clap::Args;
use postrider_store::{
    doctor::{self, Verdict},
    pool,
};

use super::output;
use crate::{config::Config, installation::Installation};

#[derive(Args)]
pub struct DoctorArgs {
    /// As JSON
    #[arg(long)]
    json: bool,
}

pub async fn run(args: &DoctorArgs, config: &Config) -> anyhow::Result<ExitCode> {
    let installation = Installation::open(config).await?;
    let examined = async {
        let pool = installation.unchecked_admin_pool().await?;
        let mut transaction = pool::begin(&pool).await?;
        anyhow::Ok(doctor::examine(&mut transaction).await?)
    }
    .await;
    installation.close().await?;
    let findings = examined?;

    if args.json {
        output::json(&findings)?;
    } else {
        for finding in &findings {
            let mark = match finding.verdict {
                Verdict::Ok => "ok  ",
                Verdict::Warning => "WARN",
                Verdict::Failure => "FAIL",
            };
            output::line(format_args!("{mark}  {:<20} {}", finding.check, finding.found))?;
            if let Some(advice) = &finding.advice {
                output::line(format_args!("      {:<20} → {advice}", ""))?;
            }
        }
    }
    let failures = findings.iter().filter(|finding| finding.verdict == Verdict::Failure).count();
    if failures > 0 {
        tell!("{failures} of {} checks failed; the arrows say what to do", findings.len());
        return Ok(ExitCode::FAILURE);
    }
    tell!("{} checks, none failed", findings.len());
    Ok(ExitCode::SUCCESS)
}
