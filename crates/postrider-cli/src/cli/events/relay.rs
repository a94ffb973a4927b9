//! `postrider relay`.

use std::process::ExitCode;

use clap::{Args, Subcommand};
use postrider_engine::sinks_of;
use postrider_model::SinkSet;
use postrider_store::{
    events::sinks::{self, Registered},
    postgres::pool,
};

use crate::cli::{actor, output, with_installation};
use crate::{config::Config, installation::Installation, wire};

#[derive(Subcommand)]
pub enum RelayCommand {
    /// Show the registered sinks and how relay.sinks of this configuration differs from them
    Sinks(SinksArgs),
}

#[derive(Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct SinksArgs {
    #[command(subcommand)]
    command: Option<SinksCommand>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Subcommand)]
enum SinksCommand {
    /// Register relay.sinks of this configuration; relays with other sinks release what they hold and wait
    Set {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

pub async fn run(command: RelayCommand, config: &Config) -> anyhow::Result<ExitCode> {
    let RelayCommand::Sinks(SinksArgs { command, json }) = command;
    // A sink that cannot work as configured is refused before the database is opened.
    let ours = sinks_of(&wire::routes(config)?)?;
    with_installation(config, async |installation| match command {
        None => show(&ours, json, installation).await,
        Some(SinksCommand::Set { json }) => set(&ours, json, installation).await,
    })
    .await?;
    Ok(ExitCode::SUCCESS)
}

async fn show(ours: &SinkSet, json: bool, installation: &Installation) -> anyhow::Result<()> {
    let pool = installation.admin_pool().await?;
    let mut transaction = pool::begin(&pool).await?;
    let registered = sinks::registered(&mut transaction).await?;
    drop(transaction);
    let changes = registered.as_ref().map(|registered| ours.changes_from(&registered.sinks));
    if json {
        return output::json(&serde_json::json!({
            "registered": registered,
            "configured": ours,
            "differences": changes.unwrap_or_default(),
        }));
    }
    let Some(registered) = registered else {
        message!("no sinks are registered; the first relay that starts registers its own");
        return Ok(());
    };
    table(&registered)?;
    message!(
        "generation {}, registered {} by {}",
        registered.generation,
        output::time(registered.registered_at),
        registered.registered_by
    );
    match changes.unwrap_or_default().as_slice() {
        _ if ours.sinks().is_empty() => message!("this configuration has no sinks, so it runs no relay"),
        [] => message!("this configuration has the same sinks"),
        changes => {
            message!("this configuration differs, and a relay with it is refused:");
            for change in changes {
                message!("  {change}");
            }
            message!("register it with `postrider relay sinks set`");
        }
    }
    Ok(())
}

async fn set(ours: &SinkSet, json: bool, installation: &Installation) -> anyhow::Result<()> {
    anyhow::ensure!(
        !ours.sinks().is_empty(),
        "this configuration has no sinks, and nothing was changed; name the configuration of the relays with --config, or stop \
         the relays to make events wait"
    );
    let pool = installation.admin_pool().await?;
    let mut transaction = pool::begin(&pool).await?;
    let before = sinks::registered(&mut transaction).await?;
    let registered = sinks::replace(&mut transaction, ours, &actor()).await?;
    pool::commit(transaction).await?;
    let changes = match &before {
        Some(before) if before.generation == registered.generation => Vec::new(),
        Some(before) => ours.changes_from(&before.sinks),
        None => ours.sinks().iter().map(|sink| format!("+ {}", sink.name)).collect(),
    };
    if json {
        return output::json(&serde_json::json!({ "registered": registered, "changes": changes }));
    }
    table(&registered)?;
    if changes.is_empty() {
        message!("these sinks are registered already; nothing was changed");
        return Ok(());
    }
    for change in changes {
        message!("{change}");
    }
    message!(
        "registered as generation {}; relays with other sinks complete no event any more; restart them with these sinks",
        registered.generation
    );
    Ok(())
}

fn table(registered: &Registered) -> anyhow::Result<()> {
    let rows = registered.sinks.sinks().iter().map(|sink| {
        let target = if sink.target.is_empty() { "-".to_owned() } else { sink.target.clone() };
        [sink.name.clone(), sink.kind.clone(), target, sink.events.join(", ")]
    });
    output::table(["name", "kind", "target", "events"], rows.collect(), "no sinks")
}
