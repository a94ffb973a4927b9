//! A stranger reads the OpenAPI document and tries everything that it says, and everything that it does not.
//!
//! Schemathesis makes requests out of the document, valid and invalid ones, and holds the answers against it: no server error, no
//! status, header, media type or body that is not documented, what is invalid refused and what is valid taken, keys not ignored,
//! nothing shown to another tenant.

use std::{fmt::Write as _, path::Path, process::Command};

use anyhow::Context;
use serde_json::json;

use super::{Stage, attacks::Things};
use crate::campaigns::adapters::server::python;

/// Facts that the OpenAPI document cannot express.
const CONFIGURATION: &str = r#"
# Streams do not end; so many messages are enough.
max-stream-events = 3
[generation]
database = "none"
# No text holds NUL, wherever it stands; a schema cannot say that of JSON that is kept as it is. Other tests try it.
allow-x00 = false
[auth.wfc]
path = "users.json"
user = "own"
peers = ["own", "other"]
[checks.positive_data_acceptance]
# What is valid is never 400. It may be about something that is not there, not now, or makes no sense, as 422 says.
expected-statuses = ["2xx", "404", "409", "422"]

# A cursor is what a page said before, which no schema can describe.
[[operations]]
include-operation-id = ["list_assets", "list_audit", "list_campaigns", "list_events", "list_in_doubt", "list_keys", "list_leads",
                        "list_provider_accounts", "list_runs", "list_run_items", "list_channel_links", "list_channel_executors",
                        "list_channel_messages", "list_channel_replies", "list_functions", "list_job_runs", "list_schedules",
                        "list_schedule_firings", "list_sessions", "list_sync_errors", "list_alerts", "list_decision_cards", "list_lead_lists",
                        "list_campaign_history", "list_lead_items"]
checks.positive_data_acceptance.expected-statuses = ["2xx", "400", "404"]
# CSV is a text with rules of its own. Two imports of a tenant at a time are enough.
[[operations]]
include-operation-id = "import_leads"
checks.positive_data_acceptance.expected-statuses = ["2xx", "400", "409", "422", "429"]
# Limits have rules among each other, and name time zones.
[[operations]]
include-operation-id = ["create_provider_account", "update_provider_account"]
checks.positive_data_acceptance.expected-statuses = ["2xx", "400", "404", "409", "422"]
# To a schema 20.0 is a whole number, and a target may have the members of another kind beside its own.
[[operations]]
include-operation-id = ["put_channel_executor", "put_function", "control_phase"]
checks.positive_data_acceptance.expected-statuses = ["2xx", "400", "404", "409", "422"]
# Nobody is there to run a function, however long one waits. A tenant is one's own, and entities have few levels.
[[operations]]
include-operation-id = "invoke_function"
parameters = { "query.wait" = 0 }
checks.positive_data_acceptance.expected-statuses = ["2xx", "400", "404", "409", "422"]
# No schema can describe a key or a code that is valid.
[[operations]]
include-operation-id = "create_session"
checks.positive_data_acceptance.expected-statuses = ["2xx", "401", "422"]
# Along links it would find its own key in the list, and revoke it.
[[operations]]
include-operation-id = "revoke_key"
phases.stateful.enabled = false
# Nothing happens on a quiet stream, however long one waits; and readers have few seats.
[[operations]]
include-operation-id = "stream_campaign_events"
request-timeout = 2
generation.max-examples = 10
checks.positive_data_acceptance.expected-statuses = ["2xx", "404", "429"]
# Servers ignore unknown headers. Schemathesis knows that, but not where a documented header is a number. Other tests try wrong positions.
checks.negative_data_rejection.expected-statuses = ["200", "400", "401", "403", "404", "405", "406", "409", "415", "422", "429"]
# A position is the id of a campaign and a number, which it does not make up.
[[operations]]
include-operation-id = "stream_tenant"
request-timeout = 2
generation.max-examples = 10
checks.positive_data_acceptance.expected-statuses = ["2xx", "400", "404", "429"]
"#;

/// Existing ids, so that some requests address existing resources.
fn dictionaries(stage: &Stage, things: &Things) -> anyhow::Result<String> {
    // Keys that may be revoked; not the one that asks.
    let mut keys = Vec::new();
    for _ in 0..5 {
        let made = stage
            .post(&things.tenant.admin, "/keys", &json!({ "name": "spare", "role": "viewer" }))?
            .expect(201)?;
        keys.push(made["id"].clone());
    }
    let mut text = String::new();
    for (name, values, place) in [
        ("accounts", json!([things.account, things.spare_account]), "provider-accounts/\\\\{id"),
        ("assets", json!([things.asset]), "assets/\\\\{id"),
        ("campaigns", json!([things.campaign, things.delivery]), "campaigns/\\\\{id"),
        ("events", json!([things.event.parse::<i64>()?]), "events/\\\\{id"),
        ("items", json!([things.item]), "in-doubt/\\\\{outbox_id"),
        ("keys", json!(keys), "keys/\\\\{id"),
        ("leads", json!([things.lead]), "leads/\\\\{id"),
        ("runs", json!([things.run]), "runs/\\\\{id"),
        ("links", json!([things.link]), "channels/links/\\\\{id"),
        ("executors", json!([things.executor]), "channels/executors/\\\\{id"),
        ("messages", json!([things.channel_message]), "channels/messages/\\\\{id"),
        ("replies", json!([things.dead_reply]), "channels/outbox/\\\\{id"),
        ("functions", json!([things.jobs.function, "noop"]), "functions/\\\\{name"),
        ("job_runs", json!([things.jobs.run, things.jobs.failed_run]), "job-runs/\\\\{id"),
        ("sessions", json!([things.session]), "sessions/\\\\{id"),
        ("schedules", json!([things.jobs.schedule]), "schedules/\\\\{id"),
        ("letters", json!([things.jobs.sync_error]), "sync-errors/\\\\{id"),
        ("cards", json!([things.jobs.card]), "decision-cards/\\\\{id"),
    ] {
        let parameter = match name {
            "items" => "outbox_id",
            "functions" => "name",
            _ => "id",
        };
        let phase = if name == "campaigns" {
            ", \"path.phase\" = { dictionary = \"phases\", probability = 0.9 }"
        } else {
            ""
        };
        writeln!(
            text,
            "[dictionaries.{name}]\nvalues = {values}\n[[operations]]\ninclude-path-regex = \"^/api/v2/{place}\"\n\
             parameters = {{ \"path.{parameter}\" = {{ dictionary = \"{name}\", probability = 0.9 }}{phase} }}"
        )?;
    }
    text.push_str("[dictionaries.phases]\nvalues = [\"print\", \"mail\"]\n");
    Ok(text)
}

/// Runs it with these arguments, and fails with its report.
fn schemathesis(stage: &Stage, things: &Things, dictionaries: &str, args: &[&str]) -> anyhow::Result<()> {
    let program = Path::new(&python()?).with_file_name("schemathesis");
    let home = tempfile::tempdir()?;
    let configuration = home.path().join("schemathesis.toml");
    // The caller, and another tenant that must see none of its resources.
    let user = |name: &str, key: &str| json!({ "name": name, "fixedHeaders": [{ "name": "Authorization", "value": format!("Bearer {key}") }] });
    let users = json!({ "auth": [user("own", &things.tenant.admin), user("other", &stage.acme.admin)] });
    std::fs::write(home.path().join("users.json"), users.to_string())?;
    std::fs::write(&configuration, format!("{CONFIGURATION}{dictionaries}"))?;
    let ended = Command::new(program)
        .current_dir(home.path())
        .arg("--config-file")
        .arg(&configuration)
        .args(["run", &format!("{}/openapi.json", stage.server.http_url)])
        // With more than one thread Python trips over its own parser now and then, and the seed does not mean much.
        .args(["--checks", "all", "--no-color", "--workers", "1"])
        .args(args)
        .output()?;
    let report = String::from_utf8_lossy(&ended.stdout);
    anyhow::ensure!(
        ended.status.success(),
        "schemathesis found something:\n{report}\n{}",
        String::from_utf8_lossy(&ended.stderr)
    );
    eprintln!("{report}");
    Ok(())
}

async fn stage() -> anyhow::Result<(Stage, Things)> {
    let stage = Stage::new().await?;
    let tenant = stage.tenant("tried").await?;
    let things = Things::make(&stage, tenant, "tried").await?;
    Ok((stage, things))
}

/// Every operation, with the examples of the document and with values at the edges of its schemas. `make fuzz` adds chance.
#[tokio::test(flavor = "multi_thread")]
async fn every_answer_is_as_the_document_says() -> anyhow::Result<()> {
    let (stage, things) = stage().await?;
    let known = dictionaries(&stage, &things)?;
    schemathesis(&stage, &things, &known, &["--phases", "examples,coverage", "--seed", "1"])
}

/// One request after the other, each with what the one before it told.
#[tokio::test(flavor = "multi_thread")]
async fn every_answer_is_as_the_document_says_along_its_links() -> anyhow::Result<()> {
    let (stage, things) = stage().await?;
    let args = ["--phases", "stateful", "--max-examples", "15", "--seed", "1"];
    schemathesis(&stage, &things, "", &args)
}

/// `make fuzz`. Takes FUZZ_SECONDS and FUZZ_SEED.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "as long as one likes: make fuzz"]
async fn the_long_run() -> anyhow::Result<()> {
    let (stage, things) = stage().await?;
    let known = dictionaries(&stage, &things)?;
    let seconds: u64 =
        std::env::var("FUZZ_SECONDS").map_or(Ok(600), |seconds| seconds.parse()).context("FUZZ_SECONDS")?;
    let seed = std::env::var("FUZZ_SEED").unwrap_or_else(|_| std::process::id().to_string());
    eprintln!("FUZZ_SECONDS={seconds} FUZZ_SEED={seed}");
    schemathesis(&stage, &things, &known, &["--max-time", &seconds.to_string(), "--seed", &seed])
}
