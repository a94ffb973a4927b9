//! The server's routes and responses.

use super::{SECRET, json, publish};
use crate::http::{Answer, get, get_with_key, request};
use crate::world::{Server, Sim, World, eventually};

/// An error says what is wrong in a body that every client can read.
fn assert_problem(answer: &Answer, status: u16, detail: &str) -> anyhow::Result<()> {
    let body = answer.json()?;
    assert_eq!(
        (answer.status, answer.header("content-type")),
        (status, Some("application/problem+json")),
        "{body}"
    );
    assert_eq!((&body["status"], &body["type"]), (&status.into(), &"about:blank".into()));
    assert!(
        body["title"].is_string() && body["detail"].as_str().is_some_and(|text| text.contains(detail)),
        "{body}"
    );
    Ok(())
}

#[tokio::test]
async fn a_server_says_that_it_is_alive_and_ready() -> anyhow::Result<()> {
    let world = World::new().await?;
    let server = Server::start(&world, "api,resolver", "")?;
    let alive = get(&server.http_url, "/healthz")?;
    assert_eq!((alive.status, &alive.json()?["status"]), (200, &"ok".into()));
    assert!(alive.json()?["version"].is_string());
    let ready = get(&server.http_url, "/readyz")?;
    assert_eq!((ready.status, &ready.json()?["status"]), (200, &"ready".into()));
    Ok(())
}

#[tokio::test]
async fn metrics_are_prometheus_text_and_count_what_the_relay_did() -> anyhow::Result<()> {
    let (world, sim) = (World::new().await?, Sim::start(&["--secret", SECRET])?);
    let server = Server::start(&world, "relay", &sim.sink("crm", SECRET))?;
    publish(&world)?;
    let expected = [
        "postrider_events_claimed_total 1",
        "postrider_events_completed_total 1",
        r#"postrider_events_delivered_total{sink="crm"} 1"#,
        "# TYPE postrider_events_completed_total counter",
        "# TYPE postrider_events_pending gauge",
    ];
    eventually("the event is counted", async || {
        let metrics = get(&server.http_url, "/metrics")?;
        Ok(expected.iter().all(|line| metrics.body.lines().any(|known| known == *line)))
    })
    .await?;

    let metrics = get(&server.http_url, "/metrics")?;
    assert!(metrics.header("content-type").is_some_and(|kind| kind.starts_with("text/plain; version=0.0.4")));
    for line in metrics.body.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let (name, value) = line.rsplit_once(' ').unwrap();
        assert!(name.starts_with("postrider_") && value.parse::<f64>().is_ok(), "{line}");
    }
    Ok(())
}

#[tokio::test]
async fn a_good_key_tells_whose_it_is_and_its_use_is_recorded() -> anyhow::Result<()> {
    let world = World::new().await?;
    let server = Server::start(&world, "api", "")?;
    let tenant = json(&world.admin_url(), &["tenants", "create", "acme"])?;
    let made = json(&world.admin_url(), &["keys", "create", "ci", "--tenant", "acme", "--role", "operator"])?;
    let keys = || json(&world.admin_url(), &["keys", "list", "--tenant", "acme"]);
    assert!(keys()?[1]["last_used_at"].is_null());

    let key = made["key"].as_str().unwrap();
    let answer = get_with_key(&server.http_url, "/api/v2/whoami", key)?;
    assert_eq!(answer.status, 200, "{}", answer.body);
    let told = answer.json()?;
    for (member, expected) in [
        ("key_id", &made["id"]),
        ("key_name", &"ci".into()),
        ("tenant_id", &tenant["tenant_id"]),
        ("tenant", &"acme".into()),
        ("role", &"operator".into()),
    ] {
        assert_eq!(&told[member], expected, "{member}");
    }
    assert!(keys()?[1]["last_used_at"].is_string() && keys()?[0]["last_used_at"].is_null());

    // The word before the key may be written in any case.
    let header = ("authorization", &*format!("bearer {key}"));
    assert_eq!(request(&server.http_url, "GET", "/api/v2/whoami", &[header])?.status, 200);
    Ok(())
}

#[tokio::test]
async fn a_key_that_is_revoked_expired_altered_or_missing_does_not_let_in() -> anyhow::Result<()> {
    let world = World::new().await?;
    let server = Server::start(&world, "api", "")?;
    json(&world.admin_url(), &["tenants", "create", "acme"])?;
    let create = |name| {
        json(&world.admin_url(), &["keys", "create", name, "--tenant", "acme", "--expires-in-days", "1"])
    };
    let (good, revoked, expired) = (create("good")?, create("revoked")?, create("expired")?);
    let secret = |made: &serde_json::Value| made["key"].as_str().unwrap_or_default().to_owned();
    let who = |key: &str| get_with_key(&server.http_url, "/api/v2/whoami", key);
    for made in [&good, &revoked, &expired] {
        assert_eq!(who(&secret(made))?.status, 200);
    }

    world.postrider(&["keys", "revoke", revoked["id"].as_str().unwrap(), "--tenant", "acme"])?;
    let admin = world.client("postgres").await?;
    sqlx::query(
        "update tenancy.api_keys set expires_at = now() - interval '1 second' where name = 'expired'",
    )
    .execute(&admin)
    .await?;
    sqlx::query("update tenancy.api_keys set last_used_at = null where name <> 'revoked'")
        .execute(&admin)
        .await?;
    assert_problem(&who(&secret(&revoked))?, 401, "the API key was revoked")?;
    assert_problem(&who(&secret(&expired))?, 401, "the API key has expired")?;

    let key = secret(&good);
    let mut altered = key.clone();
    let last = if altered.pop() == Some('A') { 'E' } else { 'A' };
    altered.push(last);
    assert_problem(&who(&altered)?, 401, "")?;
    for wrong in
        [&key[..key.len() - 1], &key.to_uppercase(), &key[3..], "", "pr_", &format!("{key}{key}"), "pr_é"]
    {
        let answer = who(wrong)?;
        assert_problem(&answer, 401, "the text after `Bearer` is not an API key")?;
        assert_eq!(answer.header("www-authenticate"), Some("Bearer"));
    }
    let basic = [("authorization", &*format!("Basic {key}"))];
    assert_problem(
        &request(&server.http_url, "GET", "/api/v2/whoami", &basic)?,
        401,
        "does not begin with `Bearer`",
    )?;
    assert_problem(
        &get(&server.http_url, "/api/v2/whoami")?,
        401,
        "the request has no API key; send `Authorization: Bearer pr_…`",
    )?;
    assert_problem(&get(&server.http_url, &format!("/api/v2/whoami?key={key}"))?, 401, "has no API key")?;
    // Only who got in was recorded.
    let used: i64 = sqlx::query_scalar(
        "select count(*) from tenancy.api_keys where last_used_at is not null and name <> 'revoked'",
    )
    .fetch_one(&admin)
    .await?;
    assert_eq!(used, 0);
    assert_eq!(who(&key)?.status, 200);
    Ok(())
}

#[tokio::test]
async fn an_unknown_route_is_404_and_a_wrong_method_is_405_with_what_is_allowed() -> anyhow::Result<()> {
    let world = World::new().await?;
    let server = Server::start(&world, "api", "")?;
    for path in
        ["/nothing", "/api/v2", "/api/v2/nothing", "/api/v1/whoami", "/healthz/", "/..%2f..%2fetc/passwd"]
    {
        assert_problem(&get(&server.http_url, path)?, 404, "there is no such route")?;
    }
    for path in ["/healthz", "/metrics", "/api/v2/whoami"] {
        for method in ["POST", "DELETE", "PATCH"] {
            let answer = request(&server.http_url, method, path, &[])?;
            assert_problem(&answer, 405, "see the `Allow` header")?;
            assert_eq!(answer.header("allow"), Some("GET,HEAD"), "{method} {path}");
        }
    }
    // A process that only relays says how it is, and serves no API.
    let sim = Sim::start(&[])?;
    let relay = Server::start(&world, "relay", &sim.sink("crm", SECRET))?;
    assert_eq!(get(&relay.http_url, "/readyz")?.status, 200);
    assert_problem(&get(&relay.http_url, "/api/v2/whoami")?, 404, "there is no such route")?;
    Ok(())
}

#[tokio::test]
async fn the_id_of_a_request_is_echoed_or_made_and_stands_in_the_logs() -> anyhow::Result<()> {
    let world = World::new().await?;
    let server = Server::start(&world, "api", "filter = 'trace'")?;
    let made = json(&world.admin_url(), &["tenants", "create", "acme"])?;
    let key = made["admin_key"].as_str().unwrap();
    let headers = [("x-request-id", "req-7f3a"), ("authorization", &*format!("Bearer {key}"))];
    let answer = request(&server.http_url, "GET", "/api/v2/whoami", &headers)?;
    assert_eq!((answer.status, answer.header("x-request-id")), (200, Some("req-7f3a")));
    let line: serde_json::Value = serde_json::from_str(&server.process.wait_for_line("req-7f3a")?)?;
    assert_eq!(line["span"]["correlation_id"], "req-7f3a");
    assert_eq!((&line["span"]["method"], &line["span"]["path"]), (&"GET".into(), &"/api/v2/whoami".into()));

    let fresh = get(&server.http_url, "/nothing")?;
    let id = fresh.header("x-request-id").unwrap();
    assert!(uuid::Uuid::parse_str(id).is_ok(), "{id}");
    server.process.wait_for_line(id)?;
    assert_ne!(get(&server.http_url, "/nothing")?.header("x-request-id"), Some(id));

    // Logs hold no keys, even when they hold everything else, and each line is JSON.
    let lines = server.process.lines();
    assert!(!lines.iter().any(|line| line.contains(key)));
    assert!(lines.iter().all(|line| serde_json::from_str::<serde_json::Value>(line).is_ok()));
    Ok(())
}
