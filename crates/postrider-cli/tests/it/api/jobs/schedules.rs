//! Schedules: setting them, trying them out, and what became of their firings.

use serde_json::{Value, json};

use super::noop;
use crate::{
    api::{
        Reply, Stage,
        material::{UNKNOWN, assert_same_404, column, id, walk},
    },
    sql::execute,
};

fn put(stage: &Stage, id: &str, body: &Value) -> anyhow::Result<Reply> {
    stage.call("PUT", &format!("/schedules/{id}")).key(&stage.acme.operator).json(body).send()
}

#[tokio::test]
async fn a_schedule_is_made_replaced_switched_and_removed() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let (viewer, operator) = (&stage.acme.viewer, &stage.acme.operator);
    noop(&stage, "sync", &json!({ "grain": "hour" }))?;
    let new = json!({ "function_name": "sync", "cron": "0 * * * *" });
    let create = || stage.call("POST", "/schedules").key(operator).idempotency_key("k").json(&new).send();
    let reply = create()?;
    let made = reply.expect(201)?;
    let schedule = id(&made)?;
    assert_eq!(reply.header("location"), Some(format!("/api/v2/schedules/{schedule}").as_str()));
    let again = create()?;
    assert_eq!(
        (again.header("idempotent-replayed"), again.header("location")),
        (Some("true"), reply.header("location"))
    );
    assert_eq!(again.expect(201)?, made);
    for (member, expected) in [
        ("timezone", json!("UTC")),
        ("grain", Value::Null),
        ("input", Value::Null),
        ("entities", Value::Null),
        ("depends_on", json!([])),
        ("misfire", json!("once")),
        ("enabled", json!(true)),
        ("last_fire_at", Value::Null),
        ("warnings", json!([])),
    ] {
        assert_eq!(made[member], expected, "{member}");
    }
    assert_eq!(made["next_firings"].as_array().map(Vec::len), Some(5));
    assert_eq!(made["next_firings"][0]["at"], made["next_fire_at"]);
    assert!(made["next_firings"][0]["local"].as_str().is_some_and(|local| local.ends_with(":00:00+00:00")));

    // A schedule that names a built-in function creates that function.
    let more = json!({
        "function_name": "detect-alerts", "cron": "30 9 * * MON-FRI", "timezone": "Europe/Berlin", "grain": "day",
        "input": { "failed_max": 7 }, "entities": { "b": 1, "a": [2] }, "depends_on": ["sync", "noop"], "misfire": "all", "enabled": false,
    });
    let changed = put(&stage, &schedule, &more)?.expect(200)?;
    for (member, value) in more.as_object().into_iter().flatten() {
        assert_eq!(changed[member], *value, "{member}");
    }
    assert_eq!((&changed["next_firings"], &changed["next_fire_at"]), (&json!([]), &Value::Null));
    assert_eq!(stage.get(viewer, &format!("/schedules/{schedule}"))?.expect(200)?, changed);
    let path = format!("/schedules/{schedule}");
    let switch = |how: &str| stage.call("POST", &format!("{path}/{how}")).key(operator).send()?.expect(200);
    for _ in 0..2 {
        let on = switch("enable")?;
        assert_eq!((&on["enabled"], on["next_firings"].as_array().map(Vec::len)), (&json!(true), Some(5)));
        let local = on["next_firings"][0]["local"].as_str().unwrap_or_default().to_owned();
        assert!(local.contains("T09:30:00+0"), "{local}");
    }
    assert_eq!(switch("disable")?["enabled"], false);

    stage.post(operator, "/schedules", &new)?.expect(201)?;
    let list = |query: &str| {
        anyhow::Ok(column(
            &walk(&stage, viewer, &format!("/schedules{query}"), 1, |_| Ok(()))?,
            "function_name",
        ))
    };
    assert_eq!(
        (list("")?, list("?function=sync")?),
        (vec!["detect-alerts".to_owned(), "sync".to_owned()], vec!["sync".to_owned()])
    );
    let other = stage.tenant("other").await?;
    let calls = [
        ("GET", "/schedules/{id}", Value::Null),
        ("GET", "/schedules/{id}/firings", Value::Null),
        ("PUT", "/schedules/{id}", new.clone()),
        ("POST", "/schedules/{id}/enable", Value::Null),
        ("POST", "/schedules/{id}/disable", Value::Null),
        ("DELETE", "/schedules/{id}", Value::Null),
    ];
    assert_same_404(&stage, &other.admin, &calls, &schedule)?;
    put(&stage, UNKNOWN, &new)?.problem(404)?;
    let remove = |key: &str| stage.call("DELETE", &path).key(key).send();
    remove(viewer)?.problem(403)?;
    remove(operator)?.expect(204)?;
    remove(operator)?.problem(404)?;
    Ok(())
}

#[tokio::test]
async fn a_schedule_that_makes_no_sense_is_refused_with_its_field() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    for name in ["a", "b", "c"] {
        noop(&stage, name, &json!({}))?;
    }
    let post = |body: &Value| stage.post(&stage.acme.operator, "/schedules", body);
    for (member, value, status, field, words) in [
        ("function_name", json!("nowhere"), 422, "function_name", "there is no function `nowhere`"),
        ("function_name", json!(null), 400, "function_name", "invalid type: null"),
        ("cron", json!("* * * *"), 422, "cron", "write minute, hour, day, month and weekday"),
        ("cron", json!("0 0 30 2 *"), 422, "cron", "it would never fire"),
        ("cron", json!("*/10 * * * * *"), 422, "cron", "is not a cron expression"),
        ("cron", json!(5), 400, "cron", "invalid type"),
        ("timezone", json!("Berlin"), 422, "timezone", "`Berlin` is not a time zone"),
        (
            "grain",
            json!("week"),
            400,
            "grain",
            "unknown variant `week`, expected one of `day`, `hour`, `5min`",
        ),
        ("input", json!("x".repeat(64 * 1024)), 422, "input", "is larger than 65536 bytes"),
        ("entities", json!([]), 422, "entities", "must be a JSON object"),
        ("depends_on", json!(["b", "nowhere"]), 422, "depends_on[1]", "there is no function `nowhere`"),
        ("depends_on", json!(["a"]), 422, "depends_on", "the functions would wait for each other: a → a"),
        ("depends_on", json!(vec!["b"; 21]), 422, "depends_on", "has at most 20 functions"),
        ("depends_on", json!("b"), 400, "depends_on", "expected a sequence"),
        (
            "misfire",
            json!("never"),
            400,
            "misfire",
            "unknown variant `never`, expected one of `skip`, `once`, `all`",
        ),
        ("enabled", json!("yes"), 400, "enabled", "expected a boolean"),
        ("next_fire_at", json!("2026-01-01T00:00:00Z"), 400, "next_fire_at", "unknown field"),
    ] {
        let mut body = json!({ "function_name": "a", "cron": "@daily" });
        body[member] = value;
        let problem = post(&body)?.problem(status)?;
        let error = &problem["errors"][0];
        assert_eq!(error["field"], field, "{problem}");
        assert!(error["detail"].as_str().unwrap_or_default().contains(words), "{problem}");
    }
    // A circle over several, also when it is closed by a change.
    let needs = |function: &str, needed: &str| json!({ "function_name": function, "cron": "@daily", "depends_on": [needed] });
    let first = id(&post(&needs("a", "b"))?.expect(201)?)?;
    post(&needs("b", "c"))?.expect(201)?;
    let circle = "the functions would wait for each other: c → a → b → c";
    assert_eq!(post(&needs("c", "a"))?.problem(422)?["errors"][0]["detail"], circle);
    put(&stage, &first, &json!({ "function_name": "a", "cron": "@daily" }))?.expect(200)?;
    post(&needs("c", "a"))?.expect(201)?;
    assert_eq!(put(&stage, &first, &needs("a", "b"))?.field(422)?, "depends_on");
    assert_eq!(stage.count("select count(*) from jobs.schedules").await?, 3);
    Ok(())
}

#[tokio::test]
async fn a_dry_run_shows_the_firings_and_what_may_surprise_and_stores_nothing() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let preview = |body: &Value| stage.post(&stage.acme.viewer, "/schedules/preview", body);
    // Half past two does not exist on the night when the clocks are put forward.
    let berlin = json!({ "cron": "30 2 * * *", "timezone": "Europe/Berlin", "from": "2026-03-28T00:00:00Z", "count": 3, "grain": "day" });
    let shown = preview(&berlin)?.expect(200)?;
    let expected = json!([
        { "at": "2026-03-28T01:30:00Z", "local": "2026-03-28T02:30:00+01:00" },
        { "at": "2026-03-29T01:00:00Z", "local": "2026-03-29T03:00:00+02:00" },
        { "at": "2026-03-30T00:30:00Z", "local": "2026-03-30T02:30:00+02:00" },
    ]);
    assert_eq!(shown, json!({ "firings": expected, "warnings": [] }));
    let hourly = json!({ "cron": "0 * * * *", "from": "2026-02-06T10:30:00Z", "grain": "day" });
    let warned = preview(&hourly)?.expect(200)?;
    assert_eq!(warned["firings"].as_array().map(Vec::len), Some(10));
    let warning = warned["warnings"][0].as_str().unwrap_or_default();
    let words = "2026-02-06T11:00:00Z and 2026-02-06T12:00:00Z fall into one grain (day 2026-02-06), and only the first of such firings runs";
    assert!(warning.starts_with(words), "{warning}");
    assert_eq!(preview(&json!({ "cron": "0 * * * *" }))?.expect(200)?["warnings"], json!([]));
    for (member, value, status) in [
        ("cron", json!("x"), 422),
        ("timezone", json!("Mars/Olympus"), 422),
        ("grain", json!("week"), 400),
        ("count", json!(0), 422),
        ("count", json!(101), 422),
        ("from", json!("1969-12-31T00:00:00Z"), 422),
        ("from", json!("tomorrow"), 400),
        ("until", json!("2027-01-01T00:00:00Z"), 400),
    ] {
        let mut body = json!({ "cron": "0 * * * *" });
        body[member] = value.clone();
        assert_eq!(preview(&body)?.field(status)?, member, "{value}");
    }
    let end = json!({ "cron": "0 * * * *", "from": "9999-12-30T00:00:00Z" });
    assert_eq!(preview(&end)?.expect(200)?["firings"], json!([]), "no calendar goes on for ever");
    assert_eq!(stage.count("select count(*) from jobs.schedules").await?, 0);
    Ok(())
}

#[tokio::test]
async fn firings_say_why_they_wait_or_did_not_run() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    noop(&stage, "first", &json!({}))?;
    noop(&stage, "then", &json!({}))?;
    let new = json!({ "function_name": "then", "cron": "@daily", "depends_on": ["first"] });
    let schedule = id(&stage.post(&stage.acme.operator, "/schedules", &new)?.expect(201)?)?;
    let (tenant, run) = (stage.acme.id.0, uuid::Uuid::now_v7());
    execute(
        &stage.admin,
        format!(
            "insert into jobs.schedule_firings (tenant_id, schedule_id, fire_at, outcome, job_run_id, reason, decided_at)
             values ('{tenant}', '{schedule}', '2026-02-05T00:00:00Z', 'started', '{run}', null, now()),
                    ('{tenant}', '{schedule}', '2026-02-06T00:00:00Z', 'skipped', null, 'completed before in this grain', now()),
                    ('{tenant}', '{schedule}', '2026-02-07T00:00:00Z', 'waiting', null, null, null)"
        ),
    )
    .await?;
    let listed = walk(&stage, &stage.acme.viewer, &format!("/schedules/{schedule}/firings"), 1, |_| Ok(()))?;
    assert_eq!(column(&listed, "outcome"), ["waiting", "skipped", "started"]);
    assert_eq!(
        column(&listed, "reason"),
        ["waits for first: it has not run yet", "completed before in this grain", "null"]
    );
    assert_eq!((&listed[2]["job_run_id"], &listed[0]["decided_at"]), (&json!(run), &Value::Null));
    assert_eq!(listed[0]["fire_at"], "2026-02-07T00:00:00Z");
    let early = format!("/schedules/{schedule}/firings?cursor=WyItMDA5OTk5LTAxLTAyVDAwOjAwOjAwWiIsbnVsbF0");
    assert_eq!(stage.get(&stage.acme.viewer, &early)?.field(400)?, "cursor");
    Ok(())
}
