//! `postrider serve` on a database that somebody else runs.

mod connections;
mod draining;
mod metrics;
mod outage;
mod readiness;
mod refusals;
mod routes;
mod starving;
mod unread;

use crate::world::{World, postrider, run};

const SECRET: &str = "whsec_dGVzdHMgb2Ygc2VydmluZyBzaWduIHdpdGggdGhpcyBvbmU=";

/// Publishes an event and wakes the relay.
fn publish(world: &World) -> anyhow::Result<()> {
    let about = ["--aggregate-type", "order", "--aggregate-id", "42"];
    let output = world.postrider(&[&["events", "publish", "order.placed"], &about[..]].concat())?;
    anyhow::ensure!(output.code == 0, "{}", output.stderr);
    Ok(())
}

/// A command that must print JSON.
fn json(url: &str, args: &[&str]) -> anyhow::Result<serde_json::Value> {
    let output = run(postrider().args(["--database-url", url]).args(args).arg("--json"))?;
    anyhow::ensure!(output.code == 0, "{}", output.stderr);
    Ok(serde_json::from_str(&output.stdout)?)
}
