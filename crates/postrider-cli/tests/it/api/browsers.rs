//! Requests of browsers: other origins, compressed answers.

use serde_json::json;

use super::{Call, Stage};

#[tokio::test]
async fn only_configured_origins_may_read_answers() -> anyhow::Result<()> {
    let stage = Stage::with("[api]\ncors_origins = ['https://desk.example']\n").await?;
    let preflight = |origin: &str| {
        stage
            .call("OPTIONS", "/keys")
            .header("origin", origin)
            .header("access-control-request-method", "POST")
            .header("access-control-request-headers", "authorization,content-type,idempotency-key")
            .send()
    };
    let allowed = preflight("https://desk.example")?;
    assert_eq!(allowed.header("access-control-allow-origin"), Some("https://desk.example"));
    let headers = allowed.header("access-control-allow-headers").unwrap_or_default();
    assert!(headers.contains("authorization") && headers.contains("idempotency-key"), "{headers}");
    assert_eq!(allowed.header("access-control-allow-credentials"), None);
    for origin in ["https://evil.example", "https://desk.example.evil.example", "http://desk.example", "null"]
    {
        assert_eq!(preflight(origin)?.header("access-control-allow-origin"), None, "{origin}");
        let reply = stage.call("GET", "/whoami").key(&stage.acme.viewer).header("origin", origin).send()?;
        assert_eq!(reply.header("access-control-allow-origin"), None, "{origin}");
    }
    let reply = stage.call("GET", "/whoami").header("origin", "https://desk.example").send()?;
    reply.problem(401)?;
    assert_eq!(
        reply.header("access-control-allow-origin"),
        Some("https://desk.example"),
        "problems can be read, too"
    );
    Ok(())
}

#[tokio::test]
async fn without_configured_origins_there_is_no_cors_at_all() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    for method in ["GET", "OPTIONS"] {
        let call =
            stage.call(method, "/whoami").key(&stage.acme.viewer).header("origin", "https://desk.example");
        let reply = call.header("access-control-request-method", "GET").send()?;
        let granted: Vec<_> =
            reply.headers.iter().filter(|(name, _)| name == "access-control-allow-origin").collect();
        assert!(granted.is_empty(), "{method}: {granted:?}");
    }
    Ok(())
}

#[tokio::test]
async fn large_answers_are_compressed_for_who_asks_for_it() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    for id in 0..20 {
        let event = json!({ "aggregate_type": "order", "aggregate_id": id.to_string(), "event_type": "t", "payload": "x".repeat(200) });
        stage.post(&stage.acme.operator, "/events", &event)?.expect(201)?;
    }
    let call = || stage.call("GET", "/events").key(&stage.acme.viewer);
    let plain = call().send()?;
    plain.expect(200)?;
    let small = call().header("accept-encoding", "gzip").send()?;
    assert_eq!((small.status, small.header("content-encoding")), (200, Some("gzip")));
    // A problem is as readable as anything else.
    let event = json!({ "aggregate_type": "x".repeat(1000), "aggregate_id": "1", "event_type": "t", "payload": 1, "x".repeat(2000): 1 });
    let call = stage.call("POST", "/events").key(&stage.acme.operator).header("accept-encoding", "gzip");
    let problem = call.json(&event).send()?;
    assert_eq!((problem.status, problem.header("content-encoding")), (400, Some("gzip")));
    assert!(chunk(&problem.body).starts_with(&[0x1f, 0x8b]), "it is what it says it is");
    assert!(small.body.len() * 2 < plain.body.len(), "{} of {}", small.body.len(), plain.body.len());
    Ok(())
}

#[tokio::test]
async fn a_caller_may_bring_the_id_of_its_request() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let reply = stage.call("GET", "/whoami").header("x-request-id", "mine-7").send()?;
    assert_eq!(reply.problem(401)?["request_id"], "mine-7");
    let made = stage.call("GET", "/whoami").send()?;
    assert!(made.problem(401)?["request_id"].as_str().is_some_and(|id| id.parse::<uuid::Uuid>().is_ok()));
    let other = Call::new(&stage.server.http_url, "GET", "/healthz").send()?;
    assert!(other.header("x-request-id").is_some());
    Ok(())
}

/// The first chunk of a body that came in chunks.
fn chunk(body: &[u8]) -> &[u8] {
    let start = body.windows(2).position(|window| window == b"\r\n").map_or(0, |at| at + 2);
    &body[start..]
}
