//! `postrider jobs monitor`: sets up the chain of schedules that monitors job runs.

use anyhow::Context;
use clap::Args;
use postrider_engine::jobs::builtin::{DETECT_ALERTS, GENERATE_DECISION_CARDS, PROCESS_ALERT_NOTIFICATIONS};
use postrider_model::{
    Channel,
    ids::ScheduleId,
    jobs::schedule::{Misfire, Timing},
};
use postrider_providers::Adapters;
use postrider_store::{
    PgConnection,
    jobs::schedules::{self, NewSchedule},
    postgres::pool,
    tenancy::{
        accounts::{self, ProviderAccount},
        tenants::Tenant,
    },
};
use serde_json::{Value, json};

use super::{
    super::{ForTenant, output, with_installation},
    count, function, schedules as set,
};
use crate::{config::Config, wire};

/// The schedule of the chain.
const EVERY_FIVE_MINUTES: &str = "*/5 * * * *";
/// Maximum number of schedules that are read per function.
const SCHEDULES_READ: i64 = 100;

#[derive(Args)]
pub struct MonitorArgs {
    #[command(flatten)]
    of: ForTenant,
    #[command(flatten)]
    recipients: Recipients,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
#[group(required = true, multiple = false)]
struct Recipients {
    /// Notify these recipients, each ACCOUNT:TO, such as `mailer:ops@example.com`; a webhook needs no TO. May be given several times
    #[arg(long, value_name = "ACCOUNT[:TO]", num_args = 1..)]
    notify: Vec<String>,
    /// Raise alerts without notifications
    #[arg(long)]
    tell_nobody: bool,
}

/// A schedule of the chain.
struct Link {
    function: &'static str,
    schedule: ScheduleId,
    before: Option<String>,
    others: usize,
}

pub async fn monitor(args: &MonitorArgs, config: &Config) -> anyhow::Result<()> {
    let adapters = wire::adapters(config)?;
    let links = with_installation(config, async |installation| {
        let pool = installation.admin_pool().await?;
        let (mut transaction, tenant) = args.of.begin(&pool, installation).await?;
        let accounts = accounts::list(&mut transaction, tenant.id).await?;
        let notify = args.recipients.notify.iter().map(|text| recipient(text, &accounts, &adapters));
        let notify = json!({ "notify": notify.collect::<anyhow::Result<Vec<_>>>()? });
        let mut links = Vec::new();
        for (name, after, input) in [
            (DETECT_ALERTS, None, None),
            (GENERATE_DECISION_CARDS, Some(DETECT_ALERTS), None),
            (PROCESS_ALERT_NOTIFICATIONS, Some(GENERATE_DECISION_CARDS), Some(&notify)),
        ] {
            function(&mut transaction, &args.of, &tenant, name).await?;
            links.push(link(&mut transaction, &tenant, name, after, input).await?);
        }
        pool::commit(transaction).await?;
        Ok(links)
    })
    .await?;
    if args.json {
        let links = links.iter().map(|link| {
            json!({ "function": link.function, "schedule_id": link.schedule, "is_new": link.before.is_none() })
        });
        return output::json(&links.collect::<Vec<_>>());
    }
    print(args, &links)
}

/// Creates the schedule of one link, or replaces the oldest schedule of its function.
async fn link(
    connection: &mut PgConnection,
    tenant: &Tenant,
    function: &'static str,
    after: Option<&str>,
    input: Option<&Value>,
) -> anyhow::Result<Link> {
    let known = schedules::page(connection, tenant.id, Some(function), None, SCHEDULES_READ).await?;
    let first = known.first();
    let schedule = first.map_or_else(ScheduleId::new, |first| first.id);
    let timing = Timing { cron: EVERY_FIVE_MINUTES.parse()?, zone: "UTC".parse()? };
    let depends_on: Vec<String> = after.into_iter().map(str::to_owned).collect();
    let new = NewSchedule {
        function,
        timing: &timing,
        grain: None,
        // Thresholds that an operator has set stay.
        input: input.or_else(|| first.and_then(|first| first.input.as_ref())),
        entities: None,
        depends_on: &depends_on,
        misfire: Misfire::Once,
        enabled: true,
    };
    set::put(connection, tenant.id, schedule, &new).await?;
    let before = first.map(|first| first.cron.clone());
    Ok(Link { function, schedule, before, others: known.len().saturating_sub(1) })
}

fn print(args: &MonitorArgs, links: &[Link]) -> anyhow::Result<()> {
    let rows = links
        .iter()
        .map(|link| {
            let how = match &link.before {
                None => "new".to_owned(),
                Some(before) if before == EVERY_FIVE_MINUTES => "set again".to_owned(),
                Some(before) => format!("was {before}"),
            };
            [link.function.to_owned(), EVERY_FIVE_MINUTES.to_owned(), link.schedule.to_string(), how]
        })
        .collect();
    output::table(["function", "cron", "schedule", ""], rows, "")?;
    for link in links.iter().filter(|link| link.others > 0) {
        let others = count(link.others, "other schedule", "other schedules");
        message!("`{}` has {others}, left as they were", link.function);
    }
    match args.recipients.notify.as_slice() {
        [] => message!("no recipient is notified; `{}` shows alerts", args.of.command(&["jobs", "alerts"])),
        recipients => message!("notified: {}", recipients.join(", ")),
    }
    message!("each function waits for the one before it; a process with the role scheduler runs them");
    Ok(())
}

/// A recipient in the input format of the function.
fn recipient(text: &str, accounts: &[ProviderAccount], adapters: &Adapters) -> anyhow::Result<Value> {
    let named = |wanted: &str| {
        let id = wanted.parse().ok();
        let mut found = accounts.iter().filter(|account| account.name == wanted || Some(account.id) == id);
        (found.next(), found.next())
    };
    let (name, to) = match (named(text), text.split_once(':')) {
        // A name may have a colon.
        ((Some(_), _), _) | (_, None) => (text, None),
        (_, Some((name, to))) => (name, Some(to)),
    };
    let (account, another) = named(name);
    let account = account.with_context(|| {
        format!("--notify: there is no account `{name}`; `postrider accounts list` shows them")
    })?;
    anyhow::ensure!(
        another.is_none(),
        "--notify: several workspaces have an account `{name}`; give its id, `postrider accounts list` shows it"
    );
    let adapter = adapters.get(&account.provider);
    let channels = adapter.map(|adapter| adapter.manifest().channels).unwrap_or_default();
    anyhow::ensure!(
        [Channel::Chat, Channel::Email].iter().any(|channel| channels.contains(channel)),
        "--notify: the account `{name}` cannot be notified: `{}` sends neither e-mails nor messages; name another account",
        account.provider
    );
    match to {
        Some(to) if to.trim().is_empty() => {
            anyhow::bail!("--notify: no recipient after the colon in `{text}`; use ACCOUNT:RECIPIENT")
        }
        Some(to) => Ok(json!({ "account": name, "to": to })),
        // A webhook is its own address.
        None if account.provider == "webhook" => Ok(json!({ "account": name })),
        None => anyhow::bail!(
            "--notify: no recipient is given for `{name}`; use ACCOUNT:RECIPIENT, as in --notify {name}:ops@example.com"
        ),
    }
}
