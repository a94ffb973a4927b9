//! Caller input forges no log line, and no secret is printed.

use anyhow::Context;
use serde_json::{Value, json};

use super::{Call, Duel, Sent, Things};
use crate::{
    api::{Stage, Tenant},
    campaigns::stream::client::Reading,
    world::{Process, World, postrider},
};

/// A secret of an account that is easy to find again.
const CANARY: &str = "canary-6b1f0a-secret";

/// Characters that would begin a new log line, or overwrite one.
const HOSTILE: &str = "x\r\nFORGED line\n\u{1b}[2J\u{1b}]0;FORGED\u{7}\u{8}\u{2028}\u{85}FORGED";

/// The same in a path or a query.
const ENCODED: &str = "x%0d%0aFORGED%20line%0a%1b%5b2J%c2%85FORGED";

/// Every text of a JSON value becomes hostile.
fn poisoned(value: &Value) -> Value {
    match value {
        Value::String(_) => json!(HOSTILE),
        Value::Array(items) => items.iter().map(poisoned).collect(),
        Value::Object(fields) => fields.iter().map(|(name, field)| (name.clone(), poisoned(field))).collect(),
        other => other.clone(),
    }
}

/// Says hostile things to every operation, in every place where something can be said.
fn say_hostile_things(duel: &Duel, owner: &Things) -> anyhow::Result<Vec<String>> {
    let mut told = Vec::new();
    for operation in &duel.operations {
        let url = &duel.stage.server.http_url;
        let calls = |path: &str| {
            let call = Call::new(url, &operation.method, path)
                .key(&owner.tenant.admin)
                .header("x-request-id", "a\tb FORGED \u{85}\u{9b}31m")
                .header("user-agent", "\t FORGED \u{9b}2J");
            match operation.attack.sent {
                Sent::Nothing => vec![call],
                Sent::Json(body) => {
                    let mut named = body(owner);
                    named[HOSTILE] = json!(HOSTILE);
                    let again = || Call::new(url, &operation.method, path).key(&owner.tenant.admin);
                    vec![
                        call.json(&poisoned(&body(owner))),
                        again().json(&named),
                        again().bytes(HOSTILE.lines().last().unwrap_or_default(), b"{}"),
                    ]
                }
                Sent::Csv => vec![call.bytes(
                    "text/csv",
                    format!("email,\"{HOSTILE}\"\n\"{HOSTILE}\",\"{HOSTILE}\"\n").as_bytes(),
                )],
                Sent::Bytes(_) => vec![call.bytes("text/plain", HOSTILE.as_bytes())],
            }
        };
        let plain = operation.concrete(owner, owner.named(operation.attack.names));
        let named = operation.path.split('/').map(|part| if part.starts_with('{') { ENCODED } else { part });
        let named = format!("{}{}", named.collect::<Vec<_>>().join("/"), operation.attack.query);
        let asked = format!("{plain}{}{ENCODED}={ENCODED}", if plain.contains('?') { '&' } else { '?' });
        // A stream stays open, so the test requests only its refused variants.
        let paths = if operation.attack.operation == "stream_campaign_events" {
            vec![named, asked]
        } else {
            vec![plain, named, asked]
        };
        for path in paths {
            for call in calls(&path) {
                let reply = call.send()?;
                anyhow::ensure!(reply.status < 500, "{operation}: {} {}", reply.status, reply.text());
                let headers: String =
                    reply.headers.iter().map(|(name, value)| format!("{name}: {value}\n")).collect();
                anyhow::ensure!(
                    !headers.lines().any(|line| line.starts_with("FORGED")),
                    "{operation}: {headers}"
                );
                told.push(reply.text());
            }
        }
    }
    Ok(told)
}

/// The log once everything was written: a last request, and its line.
fn log(stage: &Stage) -> anyhow::Result<Vec<String>> {
    Call::new(&stage.server.http_url, "GET", "/healthz")
        .header("x-request-id", "the-last-one")
        .send()?
        .expect(200)?;
    stage.server.process.wait_for_line("the-last-one")?;
    Ok(stage.server.process.lines())
}

#[tokio::test(flavor = "multi_thread")]
async fn caller_input_forges_no_log_line_and_no_secret_is_printed() -> anyhow::Result<()> {
    // All that can be logged.
    let duel = Duel::with("filter = 'trace'\n[api]\nrate_per_second = 0\n").await?;
    let owner = &duel.attacker;
    let admin = &owner.tenant.admin;
    let mut told = say_hostile_things(&duel, owner)?;

    // Secrets where they belong, and where somebody puts them by mistake.
    let account = json!({ "name": "canary", "provider": "sim", "settings": { "url": "https://sim.example" }, "secret": CANARY });
    let made = duel.stage.post(admin, "/provider-accounts", &account)?;
    let id = made.expect(201)?["id"].as_str().context("no id")?.to_owned();
    told.push(made.text());
    told.push(duel.stage.post(admin, "/provider-accounts", &account)?.text());
    let secret = format!("/provider-accounts/{id}/secret");
    told.push(duel.stage.call("PUT", &secret).key(admin).json(&json!({ "secret": CANARY })).send()?.text());
    for path in ["/provider-accounts", &format!("/provider-accounts/{id}"), "/audit", "/keys", "/whoami"] {
        told.push(duel.stage.get(admin, path)?.text());
    }
    let pigeon = json!({ "name": "p", "provider": "pigeon", "secret": CANARY });
    told.push(duel.stage.post(admin, "/provider-accounts", &pigeon)?.text());
    let unfit = json!({ "name": "p", "provider": "sim", "settings": {}, "secret": CANARY });
    told.push(duel.stage.post(admin, "/provider-accounts", &unfit)?.text());
    let key = duel.stage.post(admin, "/keys", &json!({ "name": "canary", "role": "viewer" }))?.expect(201)?;
    let new_key = key["secret"].as_str().context("no secret")?.to_owned();
    // A key that is not valid any more is still a secret: somebody may mistype it.
    let mistyped = format!("{}x", &admin[..admin.len() - 1]);
    told.push(duel.stage.get(&mistyped, "/whoami")?.text());
    told.push(
        duel.stage.call("GET", "/whoami").header("authorization", &format!("Basic {admin}")).send()?.text(),
    );

    // A sign-in has its secret in the body, and its answer one in a header.
    let signed_in =
        duel.stage.call("POST", "/session").json(&json!({ "key": new_key, "name": "canary" })).send()?;
    told.push(signed_in.text());
    let cookie =
        signed_in.header("set-cookie").and_then(|cookie| cookie.split(';').next()).context("no cookie")?;
    let token = cookie.split_once('=').context("no token")?.1.to_owned();
    let with_cookie = || duel.stage.call("GET", "/whoami").header("cookie", cookie);
    told.push(with_cookie().header("sec-fetch-site", "same-origin").send()?.text());
    told.push(with_cookie().header("sec-fetch-site", "cross-site").send()?.text());
    told.push(duel.stage.call("POST", "/session").json(&json!({ "key": mistyped })).send()?.text());
    told.push(
        duel.stage
            .call("POST", "/session")
            .json(&json!({ "code": new_key, "name": CANARY.repeat(9) }))
            .send()?
            .text(),
    );
    told.push(duel.stage.get(admin, "/sessions")?.text());

    // A stream of what somebody does with a secret in hand.
    let events = format!("/api/v2/campaigns/{}/events?after=0", owner.campaign);
    let mut reading = Reading::open(&duel.stage.server.http_url, &events, admin, &[]).await?;
    let start = format!("/campaigns/{}/phases/{}/start", owner.campaign, owner.phase);
    duel.stage.post(admin, &start, &json!({ "reason": HOSTILE }))?.expect(200)?;
    told.push(format!("{:?}", reading.event().await?));
    told.push(Call::new(&duel.stage.server.http_url, "GET", "/metrics").send()?.text());

    let lines = log(&duel.stage)?;
    let requests = lines.iter().filter(|line| line.contains("correlation_id")).count();
    assert!(requests > 100, "it logs what it is asked: {requests} of {} lines", lines.len());
    for line in &lines {
        serde_json::from_str::<Value>(line).with_context(|| format!("not a line of the log: {line}"))?;
        assert!(!line.contains(['\r', '\u{1b}', '\u{7}', '\u{8}']), "{line:?}");
    }
    let Tenant { viewer, operator, .. } = &owner.tenant;
    let secrets = [CANARY, admin, &mistyped, viewer, operator, &new_key, &token, crate::world::MASTER_KEY];
    for secret in secrets {
        for text in lines.iter().chain(&told) {
            assert!(!text.contains(secret), "a secret stands in: {text}");
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_for_people_has_no_forged_lines_either() -> anyhow::Result<()> {
    let world = World::new().await?;
    let config = world.config("[api]\nrate_per_second = 0\n")?;
    let all = ["--log", "trace", "--log-format", "text", "serve", "--roles", "api"];
    let process = Process::start(postrider().arg("--config").arg(config.path()).args(all))?;
    let line = process.wait_for_line("postrider is serving at http://")?;
    let url =
        line.split_whitespace().find(|word| word.starts_with("http://")).context("no address")?.to_owned();
    for (method, path) in [
        ("GET", "/api/v2/whoami"),
        ("POST", "/api/v2/leads/import?list="),
        ("DELETE", "/api/v2/keys/"),
        ("GET", "/"),
    ] {
        let path = format!("{path}{ENCODED}");
        let call = Call::new(&url, method, &path).header("x-request-id", "FORGED \u{9b}31m").key("pr_FORGED");
        call.header("user-agent", "\t FORGED").bytes("application/json", HOSTILE.as_bytes()).send()?;
    }
    Call::new(&url, "GET", "/healthz").header("x-request-id", "the-last-one").send()?.expect(200)?;
    process.wait_for_line("the-last-one")?;
    for line in process.lines() {
        assert!(line.starts_with("20"), "a line that does not begin with its time: {line:?}");
        assert!(!line.contains(['\r', '\u{1b}', '\u{7}', '\u{8}', '\u{9b}']), "{line:?}");
    }
    Ok(())
}
