//! `postrider jobs show`: everything about one run.

use clap::Args;
use jiff::SignedDuration;
use postrider_model::ids::{JobRunId, TenantId};
use postrider_store::{
    PgConnection,
    jobs::{
        runs::{self, RunState},
        schedules::{self, FiringState},
        sync_errors::{self, SyncError},
    },
    tenancy::audit::{self, Entry},
};
use serde_json::{Value, json};

use super::{
    super::{ForTenant, output, with_installation},
    runs::{standing, took, unknown},
};
use crate::config::Config;

/// Maximum number of log lines.
const LOG_LINES: i64 = 200;

#[derive(Args)]
pub struct ShowArgs {
    #[command(flatten)]
    of: ForTenant,
    /// The run, as `jobs list` shows it
    id: JobRunId,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

struct RunDetails {
    run: RunState,
    firing: Option<FiringState>,
    errors: Vec<SyncError>,
    log: Vec<Entry>,
}

pub async fn show(args: &ShowArgs, config: &Config) -> anyhow::Result<()> {
    let ShowArgs { of, id, json } = args;
    let details = with_installation(config, async |installation| {
        let pool = installation.admin_pool().await?;
        let (mut transaction, tenant) = of.begin(&pool, installation).await?;
        let details = read(&mut transaction, tenant.id, *id).await?;
        details.ok_or_else(|| unknown(of, &tenant, id.0))
    })
    .await?;
    if *json {
        let RunDetails { run, firing, errors, log } = &details;
        let log: Vec<Value> = log
            .iter()
            .map(|line| json!({ "at": line.at, "actor": line.actor, "action": line.action, "note": line.note }))
            .collect();
        return output::json(&json!({ "run": run, "firing": firing, "errors": errors, "log": log }));
    }
    print(&details)
}

async fn read(
    connection: &mut PgConnection,
    tenant: TenantId,
    id: JobRunId,
) -> anyhow::Result<Option<RunDetails>> {
    let Some(run) = runs::find(connection, tenant, id).await? else { return Ok(None) };
    let mut firing = None;
    if let (Some(schedule), Some(at)) = (run.schedule_id, run.scheduled_for) {
        let just_after = at.checked_add(SignedDuration::from_micros(1))?;
        let last = schedules::firings(connection, tenant, schedule, Some(just_after), 1).await?.pop();
        firing = last.filter(|firing| firing.fire_at == at);
    }
    let errors = sync_errors::of_run(connection, tenant, id).await?;
    let mut log = audit::about(connection, tenant, &format!("job_run:{}", id.0), LOG_LINES).await?;
    for error in &errors {
        log.extend(audit::about(connection, tenant, &format!("sync_error:{}", error.id.0), LOG_LINES).await?);
    }
    log.sort_by_key(|line| line.id);
    Ok(Some(RunDetails { run, firing, errors, log }))
}

fn print(details: &RunDetails) -> anyhow::Result<()> {
    let RunDetails { run, firing, errors, log } = details;
    output::line(format_args!("{}  {}, {}", run.id, run.function_name, run.status))?;
    let took =
        run.duration_ms.map(|milliseconds| format!(", took {}", took(milliseconds))).unwrap_or_default();
    let mut facts = vec![format!(
        "invoked {}, last attempt {}{took}, retried {}",
        output::time(run.created_at),
        output::time(run.started_at),
        match run.retry_count {
            0 => "never".to_owned(),
            1 => "once".to_owned(),
            count => format!("{count} times"),
        }
    )];
    facts.push(format!("lock key {}", run.lock_key));
    facts.push(format!("once per {}, this one from {}", run.grain, output::time(run.grain_start)));
    if run.is_forced {
        facts.push("forced: another run had completed this grain before".to_owned());
    }
    if let (Some(schedule), Some(at)) = (run.schedule_id, run.scheduled_for) {
        let became = firing.as_ref().map(|firing| format!(", {}", outcome(firing))).unwrap_or_default();
        facts.push(format!("fired by {schedule} for {}{became}", output::time(at)));
    }
    facts.extend(run.heartbeat_at.map(|at| format!("last heartbeat of its runner {}", output::time(at))));
    facts.extend(run.input_params.as_ref().map(|input| format!("input {input}")));
    facts.push(match run.result {
        Some(_) => format!("result {}", standing(run)),
        None => standing(run),
    });
    for fact in &facts {
        output::line(format_args!("│  {fact}"))?;
    }
    for error in errors {
        output::line(format_args!(
            "└─ {}  {}, {}",
            error.id,
            error.error_code,
            output::time(error.updated_at)
        ))?;
        output::line(format_args!("   {}", error.error_message))?;
        if let (Some(by), Some(at)) = (&error.resolved_by, error.resolved_at) {
            let note = error.resolution_note.as_deref().unwrap_or("without a note");
            output::line(format_args!("   resolved {} by {by}: {note}", output::time(at)))?;
        }
    }
    output::log(log)
}

/// The outcome of a firing, with its reason.
fn outcome(firing: &FiringState) -> String {
    match &firing.reason {
        Some(reason) => format!("{}: {reason}", firing.outcome),
        None => firing.outcome.to_string(),
    }
}
