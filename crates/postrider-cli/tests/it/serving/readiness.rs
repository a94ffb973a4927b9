//! `/readyz` of a process whose roles cannot work, role by role.

use super::SECRET;
use crate::{
    http::get,
    sql::execute,
    world::{Server, Sim, World, eventually},
};

/// Loops of the roles, each with a function that it cannot work without. The roles of one round differ.
const ROUNDS: [&[(&str, &str)]; 4] = [
    &[
        ("campaigns", "execution.tenants_with_due_jobs"),
        ("resolver", "execution.tenants_with_due_doubts"),
        ("dispatcher", "channels.accounts_with_due_replies"),
        ("relay", "events.claim_events"),
        ("scheduler", "jobs.due_schedules"),
    ],
    &[("dispatcher", "channels.tenants_with_stale_replies"), ("scheduler", "jobs.tenants_with_due_runs")],
    &[
        ("dispatcher", "channels.tenants_with_expired_leases"),
        ("scheduler", "jobs.tenants_with_waiting_firings"),
    ],
    &[("witness", "tenancy.mark_process")],
];

#[tokio::test(flavor = "multi_thread")]
async fn a_process_is_not_ready_while_any_loop_of_its_roles_cannot_work() -> anyhow::Result<()> {
    let (world, sim) = (World::new().await?, Sim::start(&["--secret", SECRET])?);
    let admin = world.client("postgres").await?;
    let roles = "campaigns,resolver,dispatcher,relay,scheduler";
    let server = Server::start(&world, roles, &sim.sink("shop", SECRET))?;
    let ready = || get(&server.http_url, "/readyz");
    eventually("it is ready", async || Ok(ready()?.status == 200)).await?;
    for round in ROUNDS {
        for (_, function) in round {
            execute(&admin, format!("revoke execute on function {function} from postrider_worker")).await?;
        }
        eventually(&format!("none of these can work: {round:?}"), async || {
            let ready = ready()?;
            let says =
                |role: &str| ready.body.contains(&format!("{role} cannot work: every pass has failed for "));
            Ok(ready.status == 503 && round.iter().all(|(role, _)| says(role)))
        })
        .await?;
        for (_, function) in round {
            execute(&admin, format!("grant execute on function {function} to postrider_worker")).await?;
        }
        eventually("all work again", async || Ok(ready()?.status == 200)).await?;
    }
    Ok(())
}
