//! Reads the input of a function and the entities of its run from the command line, a file or stdin.

use anyhow::Context;
use clap::Args;
use postrider_model::{
    events::holds_nul,
    jobs::{VALUE_BYTES_MAX, lock_key::EntityHash},
};
use serde_json::{Value, value::RawValue};

#[derive(Args)]
pub struct InputArgs {
    /// Give the function this JSON as input; `@FILE` reads a file, `-` reads stdin
    #[arg(long, value_name = "JSON")]
    input: Option<String>,
    /// Run for these entities, a JSON object; each set of entities has its own lock key
    #[arg(long, value_name = "JSON")]
    entities: Option<String>,
}

/// Input and entities that passed all checks that need no database.
pub struct Input {
    pub input: Option<Value>,
    pub entities: Option<Entities>,
}

/// Entities as written, and their hash.
pub struct Entities {
    pub text: Box<RawValue>,
    pub hash: EntityHash,
}

impl InputArgs {
    /// Reads and checks the input. To be called before the database is opened.
    pub fn read(&self) -> anyhow::Result<Input> {
        let input = self.input.as_deref().map(parse_input).transpose()?;
        let entities = self.entities.as_deref().map(parse_entities).transpose()?;
        Ok(Input { input, entities })
    }
}

fn parse_input(raw: &str) -> anyhow::Result<Value> {
    let input = serde_json::from_str(&text("--input", raw)?).map_err(|error| {
        anyhow::anyhow!(
            "--input is not JSON: {error}; quote it for the shell, as in --input '{{\"since\": \"2026-02-06\"}}'"
        )
    })?;
    anyhow::ensure!(
        !holds_nul(&input),
        "--input holds the character \\u0000, which Postgres cannot store; remove it"
    );
    Ok(input)
}

fn parse_entities(raw: &str) -> anyhow::Result<Entities> {
    let text = text("--entities", raw)?;
    let unfit = |error: &dyn std::fmt::Display| {
        anyhow::anyhow!(
            "--entities: {error}; quote it for the shell, as in --entities '{{\"rule_id\": \"r123\"}}'"
        )
    };
    let hash = EntityHash::of(&text).map_err(|error| unfit(&error))?;
    Ok(Entities { text: serde_json::from_str(&text).map_err(|error| unfit(&error))?, hash })
}

/// The text itself, or the content of a file or stdin.
fn text(option: &str, raw: &str) -> anyhow::Result<String> {
    let text = match raw.strip_prefix('@') {
        Some(file) => {
            std::fs::read_to_string(file).with_context(|| format!("cannot read {option} from {file}"))?
        }
        None if raw == "-" => std::io::read_to_string(std::io::stdin())
            .with_context(|| format!("cannot read {option} from stdin"))?,
        None => raw.to_owned(),
    };
    anyhow::ensure!(
        text.len() <= VALUE_BYTES_MAX,
        "{option} is larger than {VALUE_BYTES_MAX} bytes; store the data elsewhere, and give the function a reference to it"
    );
    Ok(text)
}
