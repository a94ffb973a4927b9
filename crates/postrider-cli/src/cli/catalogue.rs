//! `postrider catalogue`: the providers, functions, time zones and limits of this version.

use std::process::ExitCode;

use clap::Args;
use postrider_api::Catalogue;
use serde_json::Value;

use super::output;
use crate::{config::Config, wire};

#[derive(Args)]
pub struct CatalogueArgs {
    /// Show the settings and the secret of this provider
    #[arg(long, value_name = "PROVIDER")]
    provider: Option<String>,
    /// Print JSON, as `GET /api/v2/catalogue` returns it
    #[arg(long)]
    json: bool,
}

pub fn run(args: &CatalogueArgs, config: &Config) -> anyhow::Result<ExitCode> {
    let mut catalogue = postrider_api::catalogue(&wire::adapters(config)?, None);
    if let Some(wanted) = &args.provider {
        let known = catalogue.providers.iter().map(|provider| provider.name).collect::<Vec<_>>().join(", ");
        catalogue.providers.retain(|provider| provider.name == *wanted);
        anyhow::ensure!(
            !catalogue.providers.is_empty(),
            "there is no provider `{wanted}`; this version knows {known}"
        );
    }
    match (args.json, &args.provider) {
        (true, _) => output::json(&catalogue),
        (false, Some(_)) => show(&catalogue),
        (false, None) => list(&catalogue),
    }?;
    Ok(ExitCode::SUCCESS)
}

fn list(catalogue: &Catalogue) -> anyhow::Result<()> {
    let words = |words: Vec<String>| if words.is_empty() { "-".to_owned() } else { words.join(", ") };
    let providers = catalogue.providers.iter().map(|provider| {
        [
            provider.name.to_owned(),
            provider.title.to_owned(),
            words(provider.channels.iter().map(ToString::to_string).collect()),
            words(fields(&provider.settings_schema)),
        ]
    });
    output::table(["provider", "title", "channels", "settings"], providers.collect(), "")?;
    output::line("")?;
    let builtins = catalogue
        .builtins
        .iter()
        .map(|builtin| [builtin.name.to_owned(), builtin.grain.to_string(), builtin.help.to_owned()]);
    output::table(["function", "once per", "what it does"], builtins.collect(), "")
}

/// The fields of an account: settings, then the secret.
fn show(catalogue: &Catalogue) -> anyhow::Result<()> {
    let mut rows = Vec::new();
    for provider in &catalogue.providers {
        output::line(format_args!("{}: {}", provider.title, provider.help))?;
        rows.extend(rows_of(&provider.settings_schema, ""));
        if provider.secret_schema["type"] == "object" {
            rows.extend(rows_of(&provider.secret_schema, "secret: "));
        } else {
            let is_needed = provider.secret_schema["minLength"].is_number();
            rows.push(row("secret", &provider.secret_schema, is_needed));
        }
    }
    output::table(["field", "needed", "default", "meaning"], rows, "this provider needs no settings")
}

fn rows_of<'a>(schema: &'a Value, prefix: &'a str) -> impl Iterator<Item = [String; 4]> + 'a {
    let needed = schema["required"].as_array();
    let is_needed = move |name: &str| needed.is_some_and(|names| names.iter().any(|known| known == name));
    schema["properties"]
        .as_object()
        .into_iter()
        .flatten()
        .map(move |(name, field)| row(&format!("{prefix}{name}"), field, is_needed(name)))
}

fn row(name: &str, field: &Value, is_needed: bool) -> [String; 4] {
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let default = field.get("default").filter(|default| !default.is_null());
    let choices = field["enum"].as_array();
    let choices = choices.map(|words| words.iter().map(text).collect::<Vec<_>>().join(", "));
    let meaning = field["description"].as_str().unwrap_or_default();
    [
        name.to_owned(),
        if is_needed { "yes" } else { "no" }.to_owned(),
        default.map_or_else(|| "-".to_owned(), text),
        choices.map_or_else(|| meaning.to_owned(), |choices| format!("{meaning} One of {choices}.")),
    ]
}

fn fields(schema: &Value) -> Vec<String> {
    schema["properties"].as_object().into_iter().flatten().map(|(name, _)| name.clone()).collect()
}
