//! Error messages about a wrong configuration.

use figment::error::{Actual, Kind};

/// One clause per mistake: its place, the problem and the fix. Values are not repeated, because they may be secrets.
pub(super) fn explain(error: figment::Error) -> anyhow::Error {
    let mistakes: Vec<String> = error
        .into_iter()
        .map(|error| {
            let from_environment =
                error.metadata.as_ref().is_some_and(|metadata| metadata.name.contains("environment"));
            let what = describe(&error.kind);
            if from_environment {
                let variable = format!("POSTRIDER_{}", error.path.join("__").to_uppercase());
                return format!("{variable}: {what}{}", advice_on_variables(&error.kind));
            }
            let place = match error.metadata.as_ref().and_then(|metadata| metadata.source.as_ref()) {
                Some(source) => source.to_string(),
                None => "the configuration".to_owned(),
            };
            let key = error.path.join(".");
            if key.is_empty() { format!("{place}: {what}") } else { format!("{place}, `{key}`: {what}") }
        })
        .collect();
    anyhow::anyhow!("{}; docs/operations.md lists every key", mistakes.join("; "))
}

fn describe(kind: &Kind) -> String {
    match kind {
        Kind::UnknownField(found, known) => {
            format!("there is no such key as `{found}`; known keys are {}", known.join(", "))
        }
        Kind::UnknownVariant(found, known) => {
            format!("unknown value `{found}`; choose `{}`", known.join("` or `"))
        }
        Kind::MissingField(name) => format!("`{name}` is missing"),
        Kind::InvalidType(found, expected) | Kind::InvalidValue(found, expected) => {
            let expected = match expected.as_str() {
                "a string" => "a text in quotes",
                "usize" | "u64" | "u32" => "a whole number",
                "f64" => "a number",
                "socket address" => "an address with a port, such as \"127.0.0.1:8080\"",
                "a sequence" => "a list, such as [\"…\"]",
                "struct Database"
                | "struct Http"
                | "struct Log"
                | "struct Outbound"
                | "struct Campaigns"
                | "struct Resolver"
                | "struct Channels"
                | "struct ChannelOutbox"
                | "struct Relay"
                | "internally tagged enum Sink" => "a section with keys of its own",
                other => other,
            };
            format!("this must be {expected}, not {}", kind_of(found))
        }
        // The parser quotes the line that it could not read, which may contain a secret.
        Kind::Message(text) if text.starts_with("TOML parse error") => {
            let is_quotation = |line: &&str| {
                line.trim_start_matches([' ', '0', '1', '2', '3', '4', '5', '6', '7', '8', '9'])
                    .starts_with('|')
            };
            let lines: Vec<&str> = text.lines().filter(|line| !is_quotation(line)).map(str::trim).collect();
            lines.join(": ").trim_end_matches([':', ' ']).to_owned()
        }
        other => other.to_string().trim().replace('\n', " "),
    }
}

fn kind_of(found: &Actual) -> &'static str {
    match found {
        Actual::Bool(_) => "true or false",
        Actual::Unsigned(_) | Actual::Signed(_) | Actual::Float(_) => "a number",
        Actual::Char(_) | Actual::Str(_) => "a text",
        Actual::Seq => "a list",
        Actual::Map => "a section",
        _ => "this",
    }
}

/// Advice about common mistakes in environment variables.
fn advice_on_variables(kind: &Kind) -> String {
    match kind {
        Kind::UnknownField(found, _) => {
            let sections = [
                "database",
                "http",
                "log",
                "outbound",
                "campaigns",
                "resolver",
                "channels_outbox",
                "channels",
                "relay",
            ];
            let meant = sections
                .iter()
                .find_map(|section| Some((section, found.strip_prefix(section)?.strip_prefix('_')?)));
            meant.map_or_else(String::new, |(section, key)| {
                let right = format!("POSTRIDER_{}__{key}", section.replace('_', "__")).to_uppercase();
                format!("; separate a section from its key by two underscores: {right}")
            })
        }
        Kind::InvalidType(_, expected) if expected == "a string" => {
            r#"; put a value that looks like a number into quotes of its own: '"…"'"#.to_owned()
        }
        _ => String::new(),
    }
}
