//! Valid and invalid invocations.

use serde_json::{Value, json};

use super::{invocation, job_id, noop};
use crate::api::{Stage, material::UNKNOWN};

#[tokio::test]
async fn entities_are_hashed_as_they_were_written() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    noop(&stage, "sync", &json!({}))?;
    let send = |text: &str| {
        let body = format!("{{\"entities\": {text}}}");
        let call = stage.call("POST", "/functions/sync/invoke?wait=0").key(&stage.acme.operator);
        call.bytes("application/json", body.as_bytes()).send()
    };
    let made = send(r#"{"rule_id": "r123", "sku": "SKU001"}"#)?.expect(202)?;
    let run = stage.get(&stage.acme.viewer, &format!("/job-runs/{}", job_id(&made)?))?.expect(200)?;
    let key = run["lock_key"].as_str().unwrap_or_default();
    assert!(
        key.starts_with(&format!("sync:{}:20", stage.acme.id.0)) && key.ends_with(":971121298e66"),
        "{key}"
    );
    // The outer order of names does not matter, the inner one does: JSON.stringify says so.
    let same = send(r#"{"sku":"SKU001","rule_id":"r123"}"#)?.problem(409)?;
    assert_eq!(same["existing_job_id"], made["job_id"]);
    send(r#"{"a": {"x": 1, "y": 2}}"#)?.expect(202)?;
    send(r#"{"a": {"y": 2, "x": 1}}"#)?.expect(202)?;
    // None at all, and none in particular, are two things; and nothing is nothing.
    send("null")?.expect(202)?;
    send("{}")?.expect(202)?;
    let nothing = stage.call("POST", "/functions/sync/invoke?wait=0").key(&stage.acme.operator).send()?;
    nothing.problem(409)?;
    Ok(())
}

#[tokio::test]
async fn bad_input_is_refused_with_its_field_and_makes_no_run() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let other = stage.tenant("other").await?;
    noop(&stage, "sync", &json!({}))?;
    let large = "x".repeat(64 * 1024);
    // The database needs far more room for it.
    let many: Vec<i32> = vec![1; 30_000];
    let own = stage.acme.id.0.to_string();
    for (query, body, field, words) in [
        ("?wait=601", json!({}), "wait", "must lie between 0 and 600"),
        ("?wait=-1", json!({}), "wait", "invalid digit"),
        ("?wait=x", json!({}), "wait", "invalid digit"),
        ("?force=yes", json!({}), "force", "provided string was not `true` or `false`"),
        ("?unknown=1", json!({}), "unknown", "unknown field"),
        (
            "",
            json!({ "inputs": 1 }),
            "inputs",
            "unknown field `inputs`, expected one of `input`, `entities`, `force`, `tenant_id`",
        ),
        ("", json!({ "force": "yes" }), "force", "invalid type: string \"yes\", expected a boolean"),
        ("", json!({ "input": large }), "input", "is larger than 65536 bytes; keep it elsewhere"),
        (
            "",
            json!({ "entities": [1] }),
            "entities",
            "must be a JSON object, such as {\"rule_id\": \"r123\"}, and not an array",
        ),
        ("", json!({ "entities": { "a": large } }), "entities", "are larger than 65536 bytes"),
        ("", json!({ "tenant_id": other.id.0 }), "tenant_id", "is not the tenant of this key; leave it out"),
        ("", json!({ "tenant_id": UNKNOWN }), "tenant_id", "is not the tenant of this key; leave it out"),
        ("", json!({ "tenant_id": "acme" }), "tenant_id", "UUID parsing failed"),
    ] {
        let reply = invocation(&stage, &stage.acme, &format!("sync/invoke{query}"), &body).send()?;
        let problem = reply.problem(400)?;
        let error = &problem["errors"][0];
        assert_eq!(error["field"], field, "{problem}");
        assert!(error["detail"].as_str().unwrap_or_default().contains(words), "{problem}");
        assert_eq!(
            (&problem["success"], &problem["error"]),
            (&json!(false), &problem["detail"]),
            "{problem}"
        );
    }
    // Every refusal says so, whoever refuses.
    let call = |path: &str, body: Value| invocation(&stage, &stage.acme, path, &body);
    let viewer = stage.call("POST", "/functions/sync/invoke").key(&stage.acme.viewer);
    let stranger = stage.call("POST", "/functions/sync/invoke");
    let form = stage.call("POST", "/functions/sync/invoke").key(&stage.acme.operator);
    for (call, status) in [
        (call("nowhere/invoke", json!({})), 404),
        (call("no%20name/invoke", json!({})), 404),
        (viewer, 403),
        (stranger, 401),
        (form.bytes("application/x-www-form-urlencoded", b"a=b"), 415),
    ] {
        let problem = call.send()?.problem(status)?;
        assert_eq!(
            (&problem["success"], &problem["error"]),
            (&json!(false), &problem["detail"]),
            "{problem}"
        );
    }
    assert_eq!(stage.count("select count(*) from jobs.job_runs").await?, 0);
    call("sync/invoke?wait=0", json!({ "tenant_id": own, "input": [null, 1e300, many], "force": false }))
        .send()?
        .expect(202)?;
    Ok(())
}
