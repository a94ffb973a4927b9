//! `postrider send`: one message outside a campaign.

use std::{path::PathBuf, process::ExitCode};

use anyhow::Context;
use clap::Args;
use jiff::Timestamp;
use postrider_engine::campaigns::messages;
use postrider_model::Channel;
use postrider_store::{campaigns::messages::NewMessage, postgres::pool};
use serde_json::{Map, Value, json};

use crate::{
    cli::{ForWorkspace, actor, output, with_installation},
    config::Config,
    wire,
};

#[derive(Args)]
pub struct SendArgs {
    #[command(flatten)]
    of: ForWorkspace,
    /// Send on this channel: `email`, `voice` or `social`
    #[arg(long, value_name = "CHANNEL")]
    channel: Channel,
    /// Send through the account of this name
    #[arg(long, value_name = "NAME")]
    account: String,
    /// Send to this e-mail address or phone number; leave it out for a post
    #[arg(long, value_name = "ADDRESS")]
    to: Option<String>,
    /// Send one message under this key, however often the command runs
    #[arg(long)]
    key: String,
    /// Send this asset: its id, its name for the newest version, or `NAME@VERSION`
    #[arg(long, value_name = "ASSET", conflicts_with_all = ["content", "subject", "text"])]
    asset: Option<String>,
    /// Send the content in this JSON file instead of an asset
    #[arg(long, value_name = "FILE", conflicts_with_all = ["subject", "text"])]
    content: Option<PathBuf>,
    /// Send an e-mail with this subject
    #[arg(long, requires = "text")]
    subject: Option<String>,
    /// Send this text: of an e-mail, a call or a post
    #[arg(long)]
    text: Option<String>,
    /// Set a variable of the template; may be repeated
    #[arg(long = "var", value_name = "NAME=VALUE", value_parser = variable)]
    variables: Vec<(String, String)>,
    /// Send not before this time, such as 2030-03-01T09:00:00Z
    #[arg(long, value_name = "TIME")]
    send_after: Option<Timestamp>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

fn variable(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("write it as NAME=VALUE".to_owned()),
    }
}

pub async fn run(args: SendArgs, config: &Config) -> anyhow::Result<ExitCode> {
    // The input is checked before the database is opened.
    let content = content(&args)?;
    anyhow::ensure!(
        args.asset.is_some() != content.is_some(),
        "a message has either --asset, or content of its own by --text or --content"
    );
    let variables: Map<String, Value> =
        args.variables.iter().map(|(name, value)| (name.clone(), value.clone().into())).collect();
    let variables = Value::Object(variables);
    let adapters = wire::adapters(config)?;
    let (sent, message) = with_installation(config, async |installation| {
        let pool = installation.admin_pool().await?;
        let (mut transaction, tenant) = args.of.tenant.begin(&pool, installation).await?;
        let workspace = args.of.workspace(&mut transaction, &tenant).await?;
        let new = NewMessage {
            tenant: tenant.id,
            workspace: Some(workspace),
            channel: args.channel,
            account: &args.account,
            recipient: args.to.as_deref(),
            key: &args.key,
            asset: args.asset.as_deref(),
            content: content.as_ref(),
            variables: &variables,
            send_after: args.send_after,
        };
        let sent = messages::send(&mut transaction, &adapters, new, &actor()).await?;
        pool::commit(transaction).await?;
        Ok(sent)
    })
    .await?;
    if args.json {
        output::json(&json!({ "id": sent.id.0, "is_new": sent.is_new, "message": message }))?;
    } else {
        output::line(sent.id)?;
        if !sent.is_new {
            message!("the same message was handed over before under this key; it is {}", message.status);
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// The content of its own, if the arguments have one.
fn content(args: &SendArgs) -> anyhow::Result<Option<Value>> {
    if let Some(file) = &args.content {
        let text =
            std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
        let content =
            serde_json::from_str(&text).with_context(|| format!("{} is not JSON", file.display()))?;
        return Ok(Some(content));
    }
    let Some(text) = &args.text else { return Ok(None) };
    Ok(Some(match (args.channel, &args.subject) {
        (Channel::Email, Some(subject)) => json!({ "subject": subject, "text": text }),
        (Channel::Email, None) => anyhow::bail!("an e-mail needs --subject, too"),
        (_, Some(_)) => anyhow::bail!("--subject is for e-mails"),
        (Channel::Voice, None) => json!({ "script": text }),
        (Channel::Social | Channel::Chat, None) => json!({ "text": text }),
    }))
}
