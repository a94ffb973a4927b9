//! What a function is given and what it is about, from the command line, a file or stdin.

use anyhow::Context;
use clap::Args;
use postrider_model::{event::holds_nul, job::VALUE_BYTES_MAX, lock_key::EntityHash};
use serde_json::{Value, value::RawValue};

#[derive(Args)]
pub struct InputArgs {
    /// What the function is given, as JSON; `@FILE` reads a file, `-` reads stdin
    #[arg(long, value_name = "JSON")]
    input: Option<String>,
    /// What the run is about, as a JSON object: other entities have a lock key of their own
    #[arg(long, value_name = "JSON")]
    entities: Option<String>,
}

/// What was given, and makes sense.
pub struct Input {
    pub input: Option<Value>,
    pub entities: Option<Entities>,
}

/// Entities as they were written, and their hash.
pub struct Entities {
    pub text: Box<RawValue>,
    pub hash: EntityHash,
}

impl InputArgs {
    /// To be called before anything is started: what is wrong with the input is said first.
    pub fn read(&self) -> anyhow::Result<Input> {
        let input = self.input.as_deref().map(parse_input).transpose()?;
        let entities = self.entities.as_deref().map(parse_entities).transpose()?;
        Ok(Input { input, entities })
    }
}

fn parse_input(given: &str) -> anyhow::Result<Value> {
    let input = serde_json::from_str(&text("--input", given)?).map_err(|error| {
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

fn parse_entities(given: &str) -> anyhow::Result<Entities> {
    let text = text("--entities", given)?;
    let unfit = |error: &dyn std::fmt::Display| {
        anyhow::anyhow!(
            "--entities: {error}; quote it for the shell, as in --entities '{{\"rule_id\": \"r123\"}}'"
        )
    };
    let hash = EntityHash::of(&text).map_err(|error| unfit(&error))?;
    Ok(Entities { text: serde_json::from_str(&text).map_err(|error| unfit(&error))?, hash })
}

/// The text itself, or what a file or stdin holds.
fn text(option: &str, given: &str) -> anyhow::Result<String> {
    let text = match given.strip_prefix('@') {
        Some(file) => {
            std::fs::read_to_string(file).with_context(|| format!("cannot read {option} from {file}"))?
        }
        None if given == "-" => std::io::read_to_string(std::io::stdin())
            .with_context(|| format!("cannot read {option} from stdin"))?,
        None => given.to_owned(),
    };
    anyhow::ensure!(
        text.len() <= VALUE_BYTES_MAX,
        "{option} is larger than {VALUE_BYTES_MAX} bytes; keep it elsewhere, and give the function its name"
    );
    Ok(text)
}
