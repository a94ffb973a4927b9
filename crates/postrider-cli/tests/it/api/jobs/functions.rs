//! Functions: setting, listing and removing them.

use serde_json::{Value, json};

use super::noop;
use crate::{
    api::{
        Reply, Stage,
        material::{column, walk},
    },
    sql::execute,
};

const SECRET: &str = "whsec_Y2FuYXJ5LTZiMWYwYS1jYW5hcnktNmIxZjBh";

fn put(stage: &Stage, name: &str, body: &Value) -> anyhow::Result<Reply> {
    stage.call("PUT", &format!("/functions/{name}")).key(&stage.acme.admin).json(body).send()
}

#[tokio::test]
async fn a_function_is_set_replaced_listed_and_removed() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let made = put(&stage, "sync", &json!({ "target": { "builtin": "noop" } }))?.expect(201)?;
    for (member, expected) in [
        ("name", json!("sync")),
        ("target", json!({ "builtin": "noop" })),
        ("grain", json!("day")),
        ("timeout_seconds", json!(60)),
        (
            "retry",
            json!({ "max_retries": 3, "initial_delay_ms": 1000, "backoff_multiplier": 5.0, "max_delay_ms": 30000 }),
        ),
        ("secret", Value::Null),
    ] {
        assert_eq!(made[member], expected, "{member}");
    }
    let more = json!({ "target": { "builtin": "noop" }, "grain": "5min", "timeout_seconds": 900, "retry": { "max_retries": 0 } });
    let changed = put(&stage, "sync", &more)?.expect(200)?;
    assert_eq!((&changed["grain"], &changed["retry"]["max_retries"]), (&json!("5min"), &json!(0)));
    assert_eq!(changed["created_at"], made["created_at"]);
    assert_eq!(stage.get(&stage.acme.viewer, "/functions/sync")?.expect(200)?, changed);
    for name in ["b", "a", "Z.1_x-y"] {
        noop(&stage, name, &json!({}))?;
    }
    let listed = walk(&stage, &stage.acme.viewer, "/functions", 1, |_| Ok(()))?;
    let mut expected = vec!["Z.1_x-y", "a", "b", "sync"];
    let found = column(&listed, "name");
    assert_eq!(found.len(), 4);
    expected.sort_by_key(|name| found.iter().position(|found| found == name));
    assert_eq!(found, expected);

    // A function that a schedule uses, or waits for, cannot be removed.
    let schedule = json!({ "function_name": "a", "cron": "@daily", "depends_on": ["b"] });
    stage.post(&stage.acme.operator, "/schedules", &schedule)?.expect(201)?;
    let delete =
        |name: &str| stage.call("DELETE", &format!("/functions/{name}")).key(&stage.acme.admin).send();
    for name in ["a", "b"] {
        let problem = delete(name)?.problem(409)?;
        assert_eq!(
            problem["detail"],
            "a schedule of the function a needs it; remove or change that schedule first"
        );
    }
    delete("sync")?.expect(204)?;
    delete("sync")?.problem(404)?;
    stage.call("PUT", "/functions/x").key(&stage.acme.operator).json(&more).send()?.problem(403)?;
    Ok(())
}

#[tokio::test]
async fn the_secret_of_an_http_function_is_shown_once_when_it_was_made_here() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let body = json!({ "target": { "http": "https://functions.example.com/sync" } });
    let made = put(&stage, "sync", &body)?.expect(201)?;
    let secret = made["secret"].as_str().unwrap_or_default().to_owned();
    assert!(secret.starts_with("whsec_") && secret.len() > 40, "{made}");
    // The same again keeps it, and does not tell it.
    let sealed = "select count(distinct sealed_secret) from jobs.functions where sealed_secret is not null";
    assert_eq!(put(&stage, "sync", &body)?.expect(200)?.get("secret"), None);
    let mut own = body.clone();
    own["secret"] = json!(SECRET);
    let given = put(&stage, "own", &own)?;
    assert_eq!(given.expect(201)?.get("secret"), None);
    assert_eq!(stage.count(sealed).await?, 2);
    for reply in
        [&given, &stage.get(&stage.acme.viewer, "/functions")?, &stage.get(&stage.acme.admin, "/audit")?]
    {
        for known in [secret.as_str(), &SECRET[6..], "sealed"] {
            assert!(!reply.text().contains(known), "{}", reply.text());
        }
    }
    assert!(!stage.server.process.lines().join("\n").contains(&secret[6..]));
    // With its URL goes its secret.
    put(&stage, "sync", &json!({ "target": { "builtin": "noop" } }))?.expect(200)?;
    assert_eq!(stage.count(sealed).await?, 1);
    assert_ne!(put(&stage, "sync", &body)?.expect(200)?["secret"], json!(secret));
    Ok(())
}

#[tokio::test]
async fn a_function_that_makes_no_sense_is_refused_with_its_field() -> anyhow::Result<()> {
    let stage = Stage::with(
        "[api]\nrate_per_second = 0\ninvalid_keys_per_second = 0\n[jobs]\nsql_schemas = ['app']\n",
    )
    .await?;
    execute(
        &stage.admin,
        "create schema app;
         grant usage on schema app to postrider_worker;
         create function app.open(jsonb) returns jsonb language sql as 'select $1';
         create function app.closed(jsonb) returns jsonb language sql as 'select $1';
         revoke all on function app.closed(jsonb) from public;",
    )
    .await?;
    let http = |url: &str| json!({ "target": { "http": url } });
    let sql = |name: &str| json!({ "target": { "sql": name } });
    let noop = |member: &str, value: Value| json!({ "target": { "builtin": "noop" }, member: value });
    let retry = |member: &str, value: Value| noop("retry", json!({ member: value }));
    for (body, status, field, words) in [
        (http("http://functions.example.com"), 422, "target", "https"),
        (http("https://127.0.0.1/x"), 422, "target", "127.0.0.1"),
        (http("nonsense"), 422, "target", "this is not a URL"),
        (
            http(&format!("https://a.example/{}", "x".repeat(2048))),
            422,
            "target",
            "is longer than 2048 bytes",
        ),
        (sql("rebuild"), 422, "target", "write it with its schema, such as `public.rebuild`"),
        (sql("app.gone"), 422, "target", "there is no function app.gone(jsonb) in the database"),
        (sql("app.closed"), 422, "target", "the worker may not call app.closed; run: grant"),
        (sql("jobs.cancel_run"), 422, "target", "cannot be called by job runs"),
        (sql("public.open"), 422, "target", "jobs.sql_schemas names only app; add `public` to it"),
        (json!({ "target": { "builtin": "nope" } }), 422, "target", "known are detect-alerts, "),
        (
            json!({ "target": { "ftp": "x" } }),
            400,
            "target",
            "unknown variant `ftp`, expected one of `http`, `sql`, `builtin`",
        ),
        (json!({ "target": "noop" }), 400, "target", "unknown variant `noop`"),
        (json!({}), 400, "", "missing field `target`"),
        (
            noop("grain", json!("week")),
            400,
            "grain",
            "unknown variant `week`, expected one of `day`, `hour`, `5min`",
        ),
        (noop("timeout_seconds", json!(0)), 422, "timeout_seconds", "must lie between 1 and 900"),
        (noop("timeout_seconds", json!(901)), 422, "timeout_seconds", "must lie between 1 and 900"),
        (noop("timeout_seconds", json!(1.5)), 400, "timeout_seconds", "invalid type: floating point"),
        (retry("max_retries", json!(101)), 422, "retry.max_retries", "must lie between 0 and 100"),
        (
            retry("initial_delay_ms", json!(86_400_001)),
            422,
            "retry.initial_delay_ms",
            "must lie between 0 and 86400000",
        ),
        (
            retry("backoff_multiplier", json!(0.5)),
            422,
            "retry.backoff_multiplier",
            "must lie between 1 and 100",
        ),
        (retry("max_delay_ms", json!(-1)), 400, "retry.max_delay_ms", "invalid value"),
        (retry("jitter", json!(1)), 400, "retry.jitter", "unknown field `jitter`"),
        (noop("retry", json!([3, 1000, 5, 30000])), 400, "retry", "expected a JSON object"),
        (noop("secret", json!(SECRET)), 422, "secret", "nothing would be signed with it; leave it out"),
        (
            json!({ "target": { "http": "https://a.example" }, "secret": "short" }),
            422,
            "secret",
            "openssl rand",
        ),
        (noop("kind", json!("http")), 400, "kind", "unknown field `kind`"),
    ] {
        let problem = put(&stage, "sync", &body)?.problem(status)?;
        let error = &problem["errors"][0];
        assert_eq!(error["field"], field, "{problem}");
        assert!(error["detail"].as_str().unwrap_or_default().contains(words), "{problem}");
    }
    for name in ["-a", "a%20b", "a:b", &"a".repeat(101)] {
        let problem = put(&stage, name, &json!({ "target": { "builtin": "noop" } }))?.problem(422)?;
        assert_eq!(problem["errors"][0]["field"], "name");
        assert!(
            problem["detail"]
                .as_str()
                .is_some_and(|words| words.contains("cannot be the name of a function"))
        );
    }
    assert_eq!(stage.count("select count(*) from jobs.functions").await?, 0);
    put(&stage, "sync", &sql("app.open"))?.expect(201)?;
    Ok(())
}
