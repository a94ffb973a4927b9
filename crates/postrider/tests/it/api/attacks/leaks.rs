//! What a caller says does not become somebody else's line in the log, and what is secret stands nowhere.

use anyhow::Context;
use serde_json::{Value, json};

use super::{Call, Things, operations};
use crate::{
    api::{Reply, Stage, tenant},
    stream::client::Reading,
    world::{Process, World, postrider},
};

/// A server that logs all it can, in this format.
async fn talkative(format: &str) -> anyhow::Result<(Stage, tempfile::NamedTempFile)> {
    let world = World::new().await?;
    let config = world.config("[api]\nrate_per_second = 0\n")?;
    let process = Process::start(postrider().arg("--config").arg(config.path()).args([
        "--log",
        "trace",
        "--log-format",
        format,
        "serve",
        "--roles",
        "api",
    ]))?;
    let line = process.wait_for_line("postrider is serving at ")?;
    let (_, rest) = line.split_once("postrider is serving at ").context("no address")?;
    let end = rest.find(|letter: char| !letter.is_ascii_alphanumeric() && !":/.".contains(letter)).unwrap_or(rest.len());
    let http_url = rest[..end].to_owned();
    let admin = world.pool("postgres").await?;
    let acme = tenant(&admin, "acme").await?;
    let server = crate::world::Server::adopt(process, http_url, config);
    todo!()
}
