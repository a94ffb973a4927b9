//! Dead letters: runs that failed for good.

use clap::Args;
use postrider_model::ids::SyncErrorId;
use postrider_store::{
    jobs::sync_errors::{self, SyncError},
    postgres::pool,
};

use super::{
    super::{ForTenant, actor, output, with_installation},
    Listing,
};
use crate::config::Config;

#[derive(Args)]
pub struct ErrorsArgs {
    #[command(flatten)]
    of: ForTenant,
    /// Include resolved errors
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    listing: Listing,
}

#[derive(Args)]
pub struct ResolveArgs {
    #[command(flatten)]
    of: ForTenant,
    /// The error, as `jobs errors` shows it
    id: SyncErrorId,
    /// Describe how the error was resolved; the note is kept
    #[arg(long, value_name = "TEXT")]
    note: String,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub async fn list(args: &ErrorsArgs, config: &Config) -> anyhow::Result<()> {
    let ErrorsArgs { of, all, listing } = args;
    let errors = with_installation(config, async |installation| {
        let pool = installation.admin_pool().await?;
        let (mut transaction, tenant) = of.begin(&pool, installation).await?;
        let is_resolved = if *all { None } else { Some(false) };
        Ok(sync_errors::page(&mut transaction, tenant.id, is_resolved, None, listing.limit).await?)
    })
    .await?;
    if listing.json {
        return output::json(&errors);
    }
    let is_any_open = errors.iter().any(|error| !error.is_resolved);
    let rows = errors.iter().map(row).collect();
    output::table(
        ["error", "function", "code", "retries", "since", "message", "resolved"],
        rows,
        if *all { "no run has failed for good" } else { "no error is open" },
    )?;
    if is_any_open {
        message!(
            "`postrider jobs retry ERROR` runs its function again, `postrider jobs resolve ERROR --note …` closes it without a retry"
        );
    }
    Ok(())
}

fn row(error: &SyncError) -> [String; 7] {
    let detail = |name: &str| match &error.error_details[name] {
        serde_json::Value::Null => "-".to_owned(),
        serde_json::Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let resolved = match (&error.resolved_by, &error.resolution_note) {
        (Some(by), Some(note)) => format!("by {by}: {note}"),
        (Some(by), None) => format!("by {by}"),
        (None, _) => "-".to_owned(),
    };
    [
        error.id.to_string(),
        detail("function_name"),
        error.error_code.clone(),
        detail("retry_count"),
        output::time(error.created_at),
        error.error_message.clone(),
        resolved,
    ]
}

pub async fn resolve(args: &ResolveArgs, config: &Config) -> anyhow::Result<()> {
    let ResolveArgs { of, id, note, json } = args;
    anyhow::ensure!(!note.trim().is_empty(), "--note is empty; describe how the error was resolved");
    with_installation(config, async |installation| {
        let pool = installation.admin_pool().await?;
        let (mut transaction, tenant) = of.begin(&pool, installation).await?;
        let is_known = sync_errors::resolve(&mut transaction, tenant.id, *id, note, &actor()).await?;
        anyhow::ensure!(
            is_known,
            "tenant `{}` has no error {}; `{}` lists them",
            tenant.name,
            id.0,
            of.command(&["jobs", "errors", "--all"])
        );
        let resolved = sync_errors::find(&mut transaction, tenant.id, *id).await?;
        pool::commit(transaction).await?;
        if *json {
            return output::json(&resolved);
        }
        message!("{id} is resolved; its run keeps the status failed");
        Ok(())
    })
    .await
}
