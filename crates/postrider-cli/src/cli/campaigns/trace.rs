//! `postrider trace`: the complete history of a campaign, a run, a send job, an item or a person, as a tree.

use std::process::ExitCode;

use clap::Args;
use postrider_store::campaigns::{
    leads::{Lead, LeadItem},
    messages::SingleMessage,
    trace::{self, AuditLine, Subject, Trace, TracedItem, TracedJob, TracedRun},
};
use serde_json::json;

use super::person;
use crate::cli::{ForTenant, output, with_installation};
use crate::config::Config;

#[derive(Args)]
pub struct TraceArgs {
    #[command(flatten)]
    of: ForTenant,
    /// The id of a campaign, run, send job, item or lead; an idempotency key; a correlation id; the name of a campaign; or the e-mail
    /// address, phone number or external id of a person
    id: String,
    /// Show at most this many send jobs, items and log lines each; problems come first
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = clap::value_parser!(i64).range(1..=100_000))]
    limit: i64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub async fn run(args: TraceArgs, config: &Config) -> anyhow::Result<ExitCode> {
    let traced = with_installation(config, async |installation| {
        let pool = installation.admin_pool().await?;
        let (mut transaction, tenant) = args.of.begin(&pool, installation).await?;
        if let Some(subject) = trace::find(&mut transaction, tenant.id, &args.id).await? {
            return Ok(Traced::Work(trace::read(&mut transaction, tenant.id, subject, args.limit).await?));
        }
        let leads = person::find(&mut transaction, &tenant, &args.id).await?;
        let messages = person::messages(&mut transaction, &tenant, &args.id, &leads, args.limit).await?;
        let mut person = Vec::new();
        for lead in leads {
            let items = person::history(&mut transaction, &tenant, &lead, args.limit).await?;
            person.push((lead, items));
        }
        anyhow::ensure!(
            !person.is_empty() || !messages.is_empty(),
            "tenant `{}` has no campaign, run, send job, item, key, correlation id or person `{}`; `postrider campaign status` lists \
             the campaigns, `postrider leads list` the people",
            tenant.name,
            args.id
        );
        Ok(Traced::Person(person, messages))
    })
    .await?;
    match traced {
        Traced::Work(trace) if args.json => output::json(&trace)?,
        Traced::Work(trace) => show(&trace)?,
        Traced::Person(person, messages) if args.json => {
            let leads: Vec<_> = person.iter().map(|(lead, items)| person::json(lead, items)).collect();
            output::json(
                &json!({ "subject": { "kind": "person", "id": args.id }, "leads": leads, "messages": messages }),
            )?;
        }
        Traced::Person(person, messages) => {
            for (lead, items) in &person {
                person::show(lead, items, args.limit)?;
            }
            person::show_messages(&messages)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// The history that was asked for.
enum Traced {
    Work(Trace),
    /// The leads of a person, with their items; and the single messages to them.
    Person(Vec<(Lead, Vec<LeadItem>)>, Vec<SingleMessage>),
}

fn show(trace: &Trace) -> anyhow::Result<()> {
    for run in &trace.runs {
        // Keys, variables and responses are long, and needed only for one item.
        show_run(run, matches!(trace.subject, Subject::Item(_)))?;
    }
    if trace.runs.is_empty() {
        message!("no phase of the campaign was deployed");
    }
    if trace.audit_left_out > 0 {
        message!("{} older lines of the log are left out; --limit shows more", trace.audit_left_out);
    }
    output::line("log")?;
    for line in &trace.audit {
        output::line(format_args!("  {}", about_line(line)))?;
    }
    Ok(())
}

fn show_run(traced: &TracedRun, shows_evidence: bool) -> anyhow::Result<()> {
    let run = &traced.run;
    output::line(format_args!(
        "{}  {}, phase {}, {} via {}",
        run.id,
        run.campaign_name(),
        run.phase_name(),
        run.channel,
        run.provider
    ))?;
    output::line(format_args!("│  {}, {} intended, {}", run.status, run.intended, times(traced)))?;
    output::line(format_args!("│  correlation id {}", run.correlation_id))?;
    if let Some(at) = run.archived_at {
        output::line(format_args!("│  archived {}: its send jobs and items were deleted", output::time(at)))?;
    }
    for (n, job) in traced.jobs.iter().enumerate() {
        let is_last = n + 1 == traced.jobs.len() && traced.jobs_left_out == 0;
        let (branch, below) = if is_last { ("└─ ", "   ") } else { ("├─ ", "│  ") };
        output::line(format_args!("{branch}{}  {}", job.id, about_job(job)))?;
        if let Some(error) = &job.last_error {
            output::line(format_args!("{below}│  {error}"))?;
        }
        for (n, item) in job.items.iter().enumerate() {
            let is_last = n + 1 == job.items.len() && job.items_left_out == 0;
            let branch = if is_last { "└─ " } else { "├─ " };
            output::line(format_args!("{below}{branch}{}  {}", item.id, about_item(item)))?;
            if shows_evidence {
                output::line(format_args!("{below}   key {}", item.idempotency_key))?;
                for (name, value) in [("variables", &item.payload), ("response", &item.result)] {
                    if let Some(value) = value {
                        output::line(format_args!("{below}   {name} {value}"))?;
                    }
                }
            }
        }
        if job.items_left_out > 0 {
            output::line(format_args!("{below}└─ … {} more items", job.items_left_out))?;
        }
    }
    if traced.jobs_left_out > 0 {
        output::line(format_args!("└─ … {} more send jobs", traced.jobs_left_out))?;
    }
    Ok(())
}

fn times(traced: &TracedRun) -> String {
    let run = &traced.run;
    let parts = [
        ("deployed", Some(run.created_at)),
        ("for", run.scheduled_for),
        ("began", run.started_at),
        ("ended", run.finished_at),
    ];
    let times = parts.into_iter().filter_map(|(word, at)| Some(format!("{word} {}", output::time(at?))));
    times.collect::<Vec<_>>().join(", ")
}

fn about_job(job: &TracedJob) -> String {
    let counts = [
        (job.succeeded, "succeeded"),
        (job.failed, "failed"),
        (job.skipped, "skipped"),
        (job.in_flight, "in flight"),
        (job.in_doubt, "in doubt"),
    ];
    let counts =
        counts.iter().filter(|(count, _)| *count > 0).map(|(count, word)| format!(", {count} {word}"));
    let outcome = job.outcome.map(|outcome| format!(" as {outcome}")).unwrap_or_default();
    let holder = job.locked_by.as_ref().map(|holder| format!(" by {holder}")).unwrap_or_default();
    format!(
        "{}{outcome}{holder}, attempt {} of {}, {} intended{}",
        job.status,
        job.attempts,
        job.max_attempts,
        job.intended,
        counts.collect::<String>()
    )
}

fn about_item(item: &TracedItem) -> String {
    let state = match item.doubted_since {
        Some(_) => "in doubt".to_owned(),
        None => item.status.to_string(),
    };
    let more = [
        item.recipient.clone().or_else(|| item.recipient_id.map(|id| id.to_string())),
        item.provider_message_id.as_ref().map(|id| format!("message id {id}")),
        item.error.clone(),
        item.attempt.map(|attempt| format!("attempt {attempt}")),
    ];
    std::iter::once(state).chain(more.into_iter().flatten()).collect::<Vec<_>>().join("  ")
}

fn about_line(line: &AuditLine) -> String {
    // The most specific subject of the line.
    let about = line
        .outbox_id
        .map(|id| id.to_string())
        .or_else(|| line.job_id.map(|id| id.to_string()))
        .or_else(|| line.run_id.map(|id| id.to_string()));
    let fields = [
        Some(output::time(line.at)),
        Some(line.actor.clone()),
        Some(line.action.clone()),
        about,
        line.note.clone(),
    ];
    fields.into_iter().flatten().collect::<Vec<_>>().join("  ")
}
