//! `postrider events`.

pub mod relay;

use std::process::ExitCode;

use anyhow::Context;
use clap::{Subcommand, ValueEnum};
use postrider_model::{
    NewEvent,
    events::EventState,
    ids::{EventId, TenantId},
};
use postrider_store::{
    PgConnection,
    events::{self, Filter, Handled, Listed},
    postgres::pool,
    tenancy::tenants,
};

use super::{TENANT, actor, output, variable, with_installation};
use crate::{config::Config, installation::Installation, wire};

#[derive(Subcommand)]
pub enum EventsCommand {
    /// Publish an event in a transaction of its own; prints its id
    Publish {
        /// The type of the event, such as `order.placed`
        event_type: String,
        /// Set the type of the aggregate, such as `order`
        #[arg(long)]
        aggregate_type: String,
        /// Set the id of the aggregate, such as `42`
        #[arg(long)]
        aggregate_id: String,
        /// Publish this JSON; `@FILE` reads a file, `-` reads stdin
        #[arg(long, value_name = "JSON", default_value = "{}")]
        payload: String,
        /// Publish as this tenant, by name or id [env: POSTRIDER_TENANT]
        #[arg(long, value_name = "TENANT")]
        tenant: Option<String>,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// List events, oldest first
    List {
        /// List only events in this state
        #[arg(long, value_enum)]
        state: Option<StateArg>,
        /// List only events of this tenant, by name or id [env: POSTRIDER_TENANT]
        #[arg(long, value_name = "TENANT")]
        tenant: Option<String>,
        /// List only events after this id
        #[arg(long, value_name = "ID", default_value_t = 0)]
        after: i64,
        /// List at most this many
        #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(i64).range(1..=10_000))]
        limit: i64,
        /// Print JSON, with payloads
        #[arg(long)]
        json: bool,
    },
    /// List events that keep failing
    Stuck {
        /// List events that failed more often than this [default: relay.stuck_after_retries]
        #[arg(long, value_name = "N")]
        over: Option<i32>,
        /// List at most this many
        #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(i64).range(1..=10_000))]
        limit: i64,
        /// Print JSON, with payloads
        #[arg(long)]
        json: bool,
    },
    /// Retry waiting events now instead of after their backoff
    Retry {
        /// The ids of the events
        #[arg(required = true)]
        ids: Vec<i64>,
        /// Print JSON, with payloads
        #[arg(long)]
        json: bool,
    },
    /// Close events without delivering them; needs a note, which is kept
    Close {
        /// The ids of the events
        #[arg(required = true)]
        ids: Vec<i64>,
        /// Keep this reason with the events
        #[arg(long)]
        note: String,
        /// Print JSON, with payloads
        #[arg(long)]
        json: bool,
    },
}

#[derive(Clone, Copy, ValueEnum)]
pub enum StateArg {
    Pending,
    Claimed,
    Processed,
}

impl From<StateArg> for EventState {
    fn from(state: StateArg) -> Self {
        match state {
            StateArg::Pending => Self::Pending,
            StateArg::Claimed => Self::Claimed,
            StateArg::Processed => Self::Processed,
        }
    }
}

pub async fn run(command: EventsCommand, config: &Config) -> anyhow::Result<ExitCode> {
    // The input is checked before the database is opened.
    let new = match &command {
        EventsCommand::Publish { event_type, aggregate_type, aggregate_id, payload, .. } => {
            let payload = serde_json::from_str(&read_payload(payload)?).map_err(|error| {
                anyhow::anyhow!("--payload is not JSON: {error}; quote it for the shell, as in --payload '{{\"total\": 12}}'")
            })?;
            let new = NewEvent {
                aggregate_type: aggregate_type.clone(),
                aggregate_id: aggregate_id.clone(),
                event_type: event_type.clone(),
                payload,
            };
            new.check()?;
            Some(new)
        }
        EventsCommand::Close { note, .. } => {
            anyhow::ensure!(!note.trim().is_empty(), "--note is empty; say why the events are closed");
            None
        }
        _ => None,
    };
    with_installation(config, async |installation| act(command, new, installation, config).await).await?;
    Ok(ExitCode::SUCCESS)
}

async fn act(
    command: EventsCommand,
    new: Option<NewEvent>,
    installation: &Installation,
    config: &Config,
) -> anyhow::Result<()> {
    let pool = installation.admin_pool().await?;
    let mut transaction = pool::begin(&pool).await?;
    match (command, new) {
        (EventsCommand::Publish { tenant, json, .. }, Some(new)) => {
            if let Some(tenant) = tenant.or_else(|| variable(TENANT)) {
                let tenant = tenants::find(&mut transaction, &tenant).await?;
                pool::act_as(&mut transaction, tenant.id).await?;
            }
            let id = events::publish(&mut transaction, &new).await?;
            pool::commit(transaction).await?;
            let mut hinting = pool::begin(&pool).await?;
            events::hint(&mut hinting).await?;
            pool::commit(hinting).await?;
            if json {
                output::json(&serde_json::json!({ "id": id }))?;
            } else {
                output::line(id)?;
            }
        }
        (EventsCommand::Publish { .. }, None) => {}
        (EventsCommand::List { state, tenant, after, limit, json }, _) => {
            let tenant = match tenant.or_else(|| variable(TENANT)) {
                Some(tenant) => Some(tenants::find(&mut transaction, &tenant).await?.id),
                None => None,
            };
            let states = state.map(EventState::from).into_iter().collect();
            let filter = Filter { states, tenant, after, limit, stuck_after: None };
            show(&events::list(&mut transaction, &filter).await?, json, "no such events")?;
        }
        (EventsCommand::Stuck { over, limit, json }, _) => {
            let over = over.unwrap_or_else(|| wire::stuck_after(config));
            let filter = Filter { stuck_after: Some(over), limit, ..Filter::default() };
            let nothing = format!("no event has failed more than {over} times");
            show(&events::list(&mut transaction, &filter).await?, json, &nothing)?;
        }
        (EventsCommand::Retry { ids, json }, _) => {
            for id in ids.iter().copied().map(EventId) {
                let tenant = tenant_of(&mut transaction, id).await?;
                expect_done(id, events::retry(&mut transaction, tenant, id, &actor()).await?)?;
            }
            let retried = read(&mut transaction, &ids).await?;
            pool::commit(transaction).await?;
            let mut hinting = pool::begin(&pool).await?;
            events::hint(&mut hinting).await?;
            pool::commit(hinting).await?;
            if json {
                return output::json(&retried);
            }
            message!("the events are ready to be delivered now");
        }
        (EventsCommand::Close { ids, note, json }, _) => {
            for id in ids.iter().copied().map(EventId) {
                let tenant = tenant_of(&mut transaction, id).await?;
                expect_done(id, events::close(&mut transaction, tenant, id, &actor(), &note).await?)?;
            }
            let closed = read(&mut transaction, &ids).await?;
            pool::commit(transaction).await?;
            if json {
                return output::json(&closed);
            }
            message!("the events are closed");
        }
    }
    Ok(())
}

/// The tenant of an event. Operators name events by their ids alone.
async fn tenant_of(connection: &mut PgConnection, id: EventId) -> anyhow::Result<TenantId> {
    let found = read(connection, &[id.0]).await?;
    let event = found.first().with_context(|| format!("there is no event {id}; nothing was changed"))?;
    Ok(event.tenant_id)
}

/// Events by their ids.
async fn read(connection: &mut PgConnection, ids: &[i64]) -> anyhow::Result<Vec<Listed>> {
    let mut read = Vec::with_capacity(ids.len());
    for id in ids {
        let filter = Filter { after: id.saturating_sub(1), limit: 1, ..Filter::default() };
        let found = events::list(connection, &filter).await?;
        read.extend(found.into_iter().filter(|event| event.id == EventId(*id)));
    }
    Ok(read)
}

/// The text itself, or the content of a file or stdin.
fn read_payload(input: &str) -> anyhow::Result<String> {
    match input.strip_prefix('@') {
        Some(file) => {
            std::fs::read_to_string(file).with_context(|| format!("cannot read the payload from {file}"))
        }
        None if input == "-" => {
            std::io::read_to_string(std::io::stdin()).context("cannot read the payload from stdin")
        }
        None => Ok(input.to_owned()),
    }
}

/// Returns an error unless the event was handled; the error rolls back the changes to the others.
fn expect_done(id: EventId, handled: Handled) -> anyhow::Result<()> {
    match handled {
        Handled::Done => Ok(()),
        Handled::Unknown => anyhow::bail!("there is no event {id}; nothing was changed"),
        Handled::Processed => anyhow::bail!("event {id} is processed already; nothing was changed"),
        Handled::Claimed => {
            anyhow::bail!("event {id} is being delivered now; nothing was changed; try again in a minute")
        }
    }
}

fn show(listed: &[Listed], json: bool, nothing: &str) -> anyhow::Result<()> {
    if json {
        return output::json(&listed);
    }
    let rows = listed
        .iter()
        .map(|event| {
            let state = match event.state {
                EventState::Pending => "pending",
                EventState::Claimed => "claimed",
                EventState::Processed => "processed",
            };
            let next = if event.state == EventState::Pending { event.process_after } else { None };
            [
                event.id.to_string(),
                state.to_owned(),
                event.event_type.clone(),
                format!("{}/{}", event.aggregate_type, event.aggregate_id),
                event.retry_count.to_string(),
                output::time_or_dash(next),
                event.last_error.clone().unwrap_or_else(|| "-".to_owned()),
            ]
        })
        .collect();
    output::table(["id", "state", "type", "aggregate", "failures", "next", "last error"], rows, nothing)
}
