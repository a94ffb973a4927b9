//! `postrider jobs schedule`: schedules of functions.

use anyhow::Context;
use clap::{Args, Subcommand};
use postrider_model::{
    ids::{ScheduleId, TenantId},
    jobs::{
        lock_key::Grain,
        schedule::{Misfire, Timing},
    },
};
use postrider_store::{
    PgConnection, StoreError,
    jobs::schedules::{self, FiringState, NewSchedule, ScheduleState},
    postgres::pool,
    tenancy::tenants::Tenant,
};
use serde_json::json;

use super::{
    super::{ForTenant, actor, output, with_installation},
    Listing,
    firings::{self, PreviewArgs, TimingArgs},
    function,
    input::{Input, InputArgs},
};
use crate::{config::Config, installation::Installation};

/// Number of future firings that are shown.
const FIRINGS_SHOWN: usize = 5;

#[derive(Subcommand)]
pub enum ScheduleCommand {
    /// List schedules, oldest first
    List {
        #[command(flatten)]
        of: ForTenant,
        /// List only schedules of this function
        #[arg(long, value_name = "NAME")]
        function: Option<String>,
        #[command(flatten)]
        listing: Listing,
    },
    /// Add a schedule of a function; prints its id and its next firings
    Add(Box<AddArgs>),
    /// Show a schedule and the outcomes of its last firings
    Show(OneArgs),
    /// Remove a schedule; its runs stay
    Remove(ChangeArgs),
    /// Enable a schedule again; firings that it missed meanwhile are not run
    Enable(ChangeArgs),
    /// Disable a schedule until it is enabled
    Disable(ChangeArgs),
    /// Show when a cron expression fires; writes nothing
    Preview(Box<PreviewArgs>),
}

#[derive(Args)]
pub struct AddArgs {
    #[command(flatten)]
    of: ForTenant,
    /// The function's name
    function: String,
    #[command(flatten)]
    timing: TimingArgs,
    /// Run at most once per day, hour or 5min [default: the function's own grain]
    #[arg(long)]
    grain: Option<Grain>,
    #[command(flatten)]
    with: InputArgs,
    /// Fire only after these functions completed in the same grain, separated by commas
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    depends_on: Vec<String>,
    /// Handle missed firings: run the last one (`once`), `skip` them, or run `all`
    #[arg(long, value_name = "POLICY", default_value_t = Misfire::Once)]
    misfire: Misfire,
    /// Add the schedule disabled
    #[arg(long)]
    disabled: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
pub struct OfOne {
    #[command(flatten)]
    of: ForTenant,
    /// The schedule, as `jobs schedule list` shows it
    id: ScheduleId,
}

#[derive(Args)]
pub struct ChangeArgs {
    #[command(flatten)]
    one: OfOne,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
pub struct OneArgs {
    #[command(flatten)]
    one: OfOne,
    #[command(flatten)]
    listing: Listing,
}

pub async fn run(command: ScheduleCommand, config: &Config) -> anyhow::Result<()> {
    match command {
        ScheduleCommand::Preview(args) => firings::preview(&args),
        ScheduleCommand::Add(args) => {
            // The input is checked before the database is opened.
            let input = args.with.read()?;
            with_installation(config, async |installation| add(&args, &input, installation).await).await
        }
        command => with_installation(config, async |installation| act(command, installation).await).await,
    }
}

async fn act(command: ScheduleCommand, installation: &Installation) -> anyhow::Result<()> {
    match command {
        ScheduleCommand::List { of, function, listing } => {
            list(&of, function.as_deref(), &listing, installation).await
        }
        ScheduleCommand::Show(args) => show(&args, installation).await,
        ScheduleCommand::Remove(args) => remove(&args, installation).await,
        ScheduleCommand::Enable(args) => switch(&args, true, installation).await,
        ScheduleCommand::Disable(args) => switch(&args, false, installation).await,
        // Handled in `run`.
        ScheduleCommand::Add(_) | ScheduleCommand::Preview(_) => Ok(()),
    }
}

async fn add(args: &AddArgs, input: &Input, installation: &Installation) -> anyhow::Result<()> {
    let AddArgs { of, depends_on, .. } = args;
    let pool = installation.admin_pool().await?;
    let (mut transaction, tenant) = of.begin(&pool, installation).await?;
    let own_grain = function(&mut transaction, of, &tenant, &args.function).await?.grain;
    for name in depends_on {
        function(&mut transaction, of, &tenant, name).await?;
    }
    let (id, timing) = (ScheduleId::new(), args.timing.timing());
    let schedule = NewSchedule {
        function: &args.function,
        timing: &timing,
        grain: args.grain,
        input: input.input.as_ref(),
        entities: input.entities.as_ref().map(|entities| (&*entities.text, &entities.hash)),
        depends_on,
        misfire: args.misfire,
        enabled: !args.disabled,
    };
    put(&mut transaction, tenant.id, id, &schedule).await?;
    let now = schedules::now(&mut transaction).await?;
    pool::commit(transaction).await?;

    let next = firings::next(&timing, now, FIRINGS_SHOWN);
    let warning = firings::warning(&timing, args.grain.unwrap_or(own_grain), now);
    if args.json {
        return output::json(&json!({
            "id": id,
            "enabled": !args.disabled,
            "firings": firings::as_json(&timing, &next),
            "warning": warning,
        }));
    }
    output::line(id.0)?;
    match args.disabled {
        true => message!("the schedule is disabled; once enabled it fires at"),
        false => message!("the schedule fires at"),
    }
    for at in next {
        message!("  {}  {}", firings::local(&timing, at), output::time(at));
    }
    if let Some(warning) = warning {
        message!("{warning}");
    }
    Ok(())
}

/// Sets a schedule. Adds advice to the error about functions that would wait for each other.
pub async fn put(
    connection: &mut PgConnection,
    tenant: TenantId,
    id: ScheduleId,
    schedule: &NewSchedule<'_>,
) -> anyhow::Result<()> {
    match schedules::put(connection, tenant, id, schedule, &actor()).await {
        Err(StoreError::Refused { message, .. }) if message.contains("wait for each other") => {
            anyhow::bail!("{message}; leave one of them out of --depends-on")
        }
        put => Ok(put?),
    }
}

async fn list(
    of: &ForTenant,
    function: Option<&str>,
    listing: &Listing,
    installation: &Installation,
) -> anyhow::Result<()> {
    let pool = installation.admin_pool().await?;
    let (mut transaction, tenant) = of.begin(&pool, installation).await?;
    let schedules = schedules::page(&mut transaction, tenant.id, function, None, listing.limit).await?;
    if listing.json {
        return output::json(&schedules);
    }
    let rows = schedules
        .iter()
        .map(|schedule| {
            [
                schedule.id.to_string(),
                schedule.function_name.clone(),
                schedule.cron.clone(),
                schedule.timezone.clone(),
                schedule.grain.map_or_else(|| "-".to_owned(), |grain| grain.to_string()),
                names(&schedule.depends_on),
                if schedule.enabled {
                    output::time_or_dash(schedule.next_fire_at)
                } else {
                    "disabled".to_owned()
                },
                output::time_or_dash(schedule.last_fire_at),
            ]
        })
        .collect();
    output::table(
        ["schedule", "function", "cron", "zone", "grain", "depends on", "next", "last"],
        rows,
        "there are no schedules; `postrider jobs schedule add FUNCTION --cron …` adds one",
    )
}

fn names(names: &[String]) -> String {
    if names.is_empty() { "-".to_owned() } else { names.join(", ") }
}

async fn show(args: &OneArgs, installation: &Installation) -> anyhow::Result<()> {
    let (OfOne { of, id }, listing) = (&args.one, &args.listing);
    let pool = installation.admin_pool().await?;
    let (mut transaction, tenant) = of.begin(&pool, installation).await?;
    let schedule = find(&mut transaction, of, &tenant, *id).await?;
    let firings = schedules::firings(&mut transaction, tenant.id, *id, None, listing.limit).await?;
    if listing.json {
        return output::json(&json!({ "schedule": schedule, "firings": firings }));
    }
    print(&schedule)?;
    let rows = firings.iter().map(row).collect();
    output::table(["fired for", "outcome", "run", "reason"], rows, "the schedule has not fired yet")
}

fn print(schedule: &ScheduleState) -> anyhow::Result<()> {
    output::line(format_args!(
        "{}  {} at {} in {}",
        schedule.id, schedule.function_name, schedule.cron, schedule.timezone
    ))?;
    let next = match (schedule.enabled, schedule.next_fire_at, timing(schedule)) {
        (false, ..) => "disabled".to_owned(),
        (true, None, _) => "never fires again".to_owned(),
        (true, Some(at), Ok(timing)) => {
            format!("fires next {}, which is {}", firings::local(&timing, at), output::time(at))
        }
        (true, Some(at), Err(_)) => format!("fires next {}", output::time(at)),
    };
    let grain = schedule.grain.map_or_else(|| "the function's own".to_owned(), |grain| grain.to_string());
    let mut facts = vec![next, format!("grain: {grain}; missed firings: {}", schedule.misfire)];
    if !schedule.depends_on.is_empty() {
        facts.push(format!("after {}", names(&schedule.depends_on)));
    }
    facts.extend(schedule.input.as_ref().map(|input| format!("input {input}")));
    facts.extend(schedule.entities.as_ref().map(|entities| format!("about {entities}")));
    facts.push(format!(
        "made {}, changed {}",
        output::time(schedule.created_at),
        output::time(schedule.updated_at)
    ));
    facts.iter().try_for_each(|fact| output::line(format_args!("│  {fact}")))
}

fn row(firing: &FiringState) -> [String; 4] {
    let dash = || "-".to_owned();
    [
        output::time(firing.fire_at),
        firing.outcome.to_string(),
        firing.job_run_id.map_or_else(dash, |run| run.to_string()),
        firing.reason.clone().unwrap_or_else(dash),
    ]
}

async fn remove(args: &ChangeArgs, installation: &Installation) -> anyhow::Result<()> {
    let OfOne { of, id } = &args.one;
    let pool = installation.admin_pool().await?;
    let (mut transaction, tenant) = of.begin(&pool, installation).await?;
    let schedule = find(&mut transaction, of, &tenant, *id).await?;
    schedules::remove(&mut transaction, tenant.id, *id, &actor()).await?;
    pool::commit(transaction).await?;
    if args.json {
        return output::json(&schedule);
    }
    message!("removed {id}; it does not run `{}` any more", schedule.function_name);
    Ok(())
}

async fn switch(args: &ChangeArgs, enabled: bool, installation: &Installation) -> anyhow::Result<()> {
    let OfOne { of, id } = &args.one;
    let pool = installation.admin_pool().await?;
    let (mut transaction, tenant) = of.begin(&pool, installation).await?;
    let schedule = find(&mut transaction, of, &tenant, *id).await?;
    let timing = timing(&schedule)?;
    schedules::switch(&mut transaction, tenant.id, *id, &timing, enabled, &actor()).await?;
    let schedule = find(&mut transaction, of, &tenant, *id).await?;
    pool::commit(transaction).await?;
    if args.json {
        return output::json(&schedule);
    }
    match schedule.next_fire_at {
        Some(at) => {
            message!("{id} fires next {}, which is {}", firings::local(&timing, at), output::time(at));
        }
        None => message!("{id} is disabled; its waiting firings are skipped"),
    }
    Ok(())
}

async fn find(
    connection: &mut PgConnection,
    of: &ForTenant,
    tenant: &Tenant,
    id: ScheduleId,
) -> anyhow::Result<ScheduleState> {
    let found = schedules::find(connection, tenant.id, id).await?;
    found.with_context(|| {
        format!(
            "tenant `{}` has no schedule {}; `{}` lists them",
            tenant.name,
            id.0,
            of.command(&["jobs", "schedule", "list"])
        )
    })
}

/// The timing of a schedule. Another version of the time zone database may not know its zone.
fn timing(schedule: &ScheduleState) -> anyhow::Result<Timing> {
    Ok(Timing { cron: schedule.cron.parse()?, zone: schedule.timezone.parse()? })
}
