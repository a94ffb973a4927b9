//! The library `postrider`, as applications use it: its examples against a database, its dependencies, and an application outside of this
//! workspace.

use std::path::{Path, PathBuf};

use anyhow::Context;
use serde_json::json;

use crate::{
    api::{self, material},
    project::cargo::{artifacts, cargo, output, target_dir},
    sql::texts,
    world::{Process, Server, World, eventually, postrider, run, run_dir, succeeded},
};

/// The file of an example program. Each of them is built with the tests.
fn example(name: &str) -> anyhow::Result<PathBuf> {
    let built = artifacts()?;
    let built = built.iter().find(|artifact| {
        artifact["target"]["name"] == name && artifact["target"]["kind"] == json!(["example"])
    });
    let file = built.and_then(|artifact| artifact["executable"].as_str());
    Ok(file.with_context(|| format!("cargo built no example {name}"))?.into())
}

/// An example that serves, with a tenant. Its configuration is that of a server of tests.
async fn serving(name: &str) -> anyhow::Result<api::Stage> {
    let world = World::new().await?;
    let witness = run_dir().join("witness");
    let more = format!("[api]\nrate_per_second = 0\n[witness]\ndir = '{}'\n", witness.display());
    let server = Server::start_program(&example(name)?, world.config(&more)?)?;
    let admin = world.pool("postgres").await?;
    let acme = api::tenant(&admin, "acme").await?;
    Ok(api::Stage { world, server, acme, admin })
}

/// Ends an example as a person does, with Ctrl-C.
fn interrupt(process: &mut Process) -> anyhow::Result<()> {
    process.signal("INT")?;
    let status = process.wait()?;
    anyhow::ensure!(status.success(), "{status}\n{}", process.lines().join("\n"));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_example_publish_publishes_what_it_commits() -> anyhow::Result<()> {
    let world = World::new().await?;
    let ran = run(std::process::Command::new(example("publish")?).env("DATABASE_URL", world.admin_url()))?;
    let ran = succeeded(ran)?;
    assert!(ran.stdout.contains("the second order was refused"), "{}", ran.stdout);
    let admin = world.client("postgres").await?;
    let events =
        "select concat_ws(' ', aggregate_type, aggregate_id, event_type, payload) from m10_recovery.outbox";
    assert_eq!(texts(&admin, events).await?, [r#"order 1 order.placed {"total": 1250}"#]);
    assert_eq!(texts(&admin, "select id || ' ' || total from orders").await?, ["1 1250"]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_example_relay_handler_gets_the_events_that_it_asks_for() -> anyhow::Result<()> {
    let world = World::new().await?;
    let mut command = std::process::Command::new(example("relay_handler")?);
    let mut relay = Process::start(command.env("DATABASE_URL", world.url("postrider_worker")))?;
    let app = world.client("postrider_app").await?;
    let [order] = <[i64; 1]>::try_from(publish(&app, "order.placed").await?).ok().context("one event")?;
    publish(&app, "invoice.paid").await?;
    let line = relay.wait_for_line("order.placed")?;
    assert_eq!(line, format!(r#"event {order}: order.placed {{"n": 1}}"#));
    let admin = world.client("postgres").await?;
    let waiting = "select event_type from m10_recovery.outbox where processed_at is null";
    eventually("every event is processed", async || Ok(texts(&admin, waiting).await?.is_empty())).await?;
    interrupt(&mut relay)?;
    let lines = relay.lines();
    assert!(!lines.iter().any(|line| line.contains("invoice.paid")), "{lines:?}");
    Ok(())
}

async fn publish(client: &sqlx::PgPool, event_type: &str) -> anyhow::Result<Vec<i64>> {
    let published = sqlx::query_scalar("select m10_recovery.publish_outbox('a', '1', $1, '{\"n\": 1}')");
    Ok(published.bind(event_type).fetch_all(client).await?)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_example_adapter_sends_the_items_of_a_campaign() -> anyhow::Result<()> {
    let mut stage = serving("adapter").await?;
    let directory = tempfile::tempdir()?;
    let account = |settings| json!({ "name": "mail", "provider": "spool", "settings": settings });
    let refused = stage.post(&stage.acme.admin, "/provider-accounts", &account(json!({})))?;
    assert!(refused.problem(422)?.to_string().contains("`directory` is missing"));
    let settings = json!({ "directory": directory.path() });
    stage.post(&stage.acme.admin, "/provider-accounts", &account(settings))?.expect(201)?;
    // A process without the adapter says so.
    let mut other = postrider();
    other.args(["--database-url", &stage.world.admin_url(), "accounts", "add", "more"]);
    other.args(["--tenant", "acme", "--provider", "spool", "--no-secret"]);
    assert!(run(&mut other)?.stderr.contains("there is no provider `spool`"));

    let (_, run) = material::run(&stage, &stage.acme, "spring", 3, 500).await?;
    let sent = format!(
        "select provider_message_id from execution.channel_outbox where run_id = '{run}' and status = 'sent' order by 1"
    );
    let admin = stage.world.client("postgres").await?;
    eventually("every item is sent", async || Ok(texts(&admin, &sent).await?.len() == 3)).await?;
    let mut files: Vec<String> = std::fs::read_dir(directory.path())?
        .map(|file| Ok(file?.file_name().to_string_lossy().into_owned()))
        .collect::<anyhow::Result<_>>()?;
    files.sort();
    assert_eq!(files, texts(&admin, &sent).await?);
    let one = std::fs::read_to_string(directory.path().join(&files[0]))?;
    assert!(one.contains(r#""channel":"email""#) && one.contains("@example.org"), "{one}");
    interrupt(&mut stage.server.process)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_example_function_is_set_and_invoked_by_api_and_cli() -> anyhow::Result<()> {
    let mut stage = serving("function").await?;
    stage.server.process.wait_for_line("the runner provides Rust functions")?;
    let put = |name: &str, target: &str| {
        let call = stage.call("PUT", &format!("/functions/{name}")).key(&stage.acme.admin);
        call.json(&json!({ "target": { "builtin": target }, "grain": "hour" })).send()
    };
    let refused = put("monthly", "close-moth")?.problem(422)?.to_string();
    assert!(
        refused.contains("no function `close-moth`") && refused.contains("noop, close-month"),
        "{refused}"
    );
    put("monthly", "close-month")?.expect(201)?;
    let invoked = stage
        .call("POST", "/functions/monthly/invoke")
        .key(&stage.acme.operator)
        .json(&json!({ "input": { "month": "2026-02" } }))
        .send()?;
    assert_eq!(invoked.expect(200)?["result"], json!({ "closed": "2026-02", "attempt": 1 }));

    // The CLI is a process without the function.
    let cli = |arguments: &[&str]| {
        let mut command = postrider();
        command.args(["--database-url", &stage.world.admin_url()]).args(arguments).args(["--tenant", "acme"]);
        run(&mut command)
    };
    succeeded(cli(&["jobs", "function", "put", "yearly", "--builtin", "close-month"])?)?;
    let result = succeeded(cli(&["jobs", "invoke", "yearly", "--input", r#"{"month": "2025-12"}"#])?)?.stdout;
    assert_eq!(serde_json::from_str::<serde_json::Value>(&result)?["closed"], "2025-12");

    // When the process has stopped, nothing provides the function any more.
    interrupt(&mut stage.server.process)?;
    let refused = cli(&["jobs", "function", "put", "weekly", "--builtin", "close-month"])?;
    assert!(refused.stderr.contains("no running process provides one"), "{}", refused.stderr);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_example_serve_serves_and_stops_with_its_token() -> anyhow::Result<()> {
    let mut stage = serving("serve").await?;
    stage.get(&stage.acme.viewer, "/campaigns")?.expect(200)?;
    // Every role works: the scheduler runs a function, and the relay waits for sinks.
    let noop =
        stage.call("POST", "/functions/noop/invoke").key(&stage.acme.operator).json(&json!({})).send()?;
    noop.expect(200)?;
    stage.server.process.wait_for_line("no sinks are configured, so events wait")?;
    stage.server.process.signal("INT")?;
    stage.server.process.wait_for_line("postrider has stopped, and the application goes on")?;
    assert!(stage.server.process.wait()?.success());
    Ok(())
}

/// Crates that an application must not get with the library.
const BANNED: &[&str] = &[
    "clap",
    "clap_builder",
    "clap_complete",
    "clap_mangen",
    "figment",
    "indicatif",
    "comfy-table",
    "mimalloc",
    "postrider-bench",
    "postrider-cli",
    "postrider-sim",
    "postrider-testkit",
];

#[test]
fn the_library_depends_on_nothing_of_the_program() -> anyhow::Result<()> {
    let tree =
        output(&mut cargo(&["tree", "-p", "postrider", "-e", "normal", "--prefix", "none", "-f", "{p}"]))?;
    let names: Vec<&str> = tree.lines().filter_map(|line| line.split_whitespace().next()).collect();
    assert!(names.contains(&"sqlx") && names.contains(&"postrider-engine"), "no tree: {tree}");
    let banned: Vec<&&str> = BANNED.iter().filter(|banned| names.contains(banned)).collect();
    assert!(banned.is_empty(), "`cargo tree -p postrider -e normal` has {banned:?}");
    Ok(())
}

#[test]
fn an_application_in_a_workspace_of_its_own_compiles_against_the_library() -> anyhow::Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let application = root.join("examples/application");
    // The versions of this repository. Cargo leaves out what the application does not need.
    std::fs::copy(root.join("Cargo.lock"), application.join("Cargo.lock"))?;
    let target = target_dir()?.join("application");
    let mut check = cargo(&["check", "--quiet"]);
    check.current_dir(&application).env("CARGO_TARGET_DIR", target);
    output(&mut check)?;
    let source = std::fs::read_to_string(application.join("src/main.rs"))?;
    assert!(source.lines().count() <= 40, "the application shows how little code it takes");
    Ok(())
}
