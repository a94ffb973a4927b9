//! A malformed body is refused with a reason, and never breaks the server.

use serde_json::json;

use super::{Reply, Stage};

const EVENT: &str =
    r#"{"aggregate_type": "order", "aggregate_id": "1", "event_type": "order.placed", "payload": PAYLOAD}"#;

fn publish(stage: &Stage, body: &[u8]) -> anyhow::Result<Reply> {
    stage.call("POST", "/events").key(&stage.acme.operator).bytes("application/json", body).send()
}

fn publish_payload(stage: &Stage, payload: &str) -> anyhow::Result<Reply> {
    publish(stage, EVENT.replace("PAYLOAD", payload).as_bytes())
}

#[tokio::test]
async fn bodies_that_no_one_can_read_are_refused_and_the_server_goes_on() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
    for (what, payload) in [
        ("half a character", r#""\ud800""#.to_owned()),
        ("the other half", r#""\udfff""#.to_owned()),
        ("NUL", r#""a\u0000b""#.to_owned()),
        ("NUL in a name", r#"{"a\u0000b": 1}"#.to_owned()),
        ("a number out of range", "1e400".to_owned()),
        ("a number far too small", "1e-999999999".to_owned()),
        ("a number far out of range", "-1e99999999999999999999".to_owned()),
        ("too deep", nested(65)),
        ("far too deep", nested(100_000)),
        ("an end that is missing", "[1, 2".to_owned()),
        ("a control character", "\"a\u{1}b\"".to_owned()),
    ] {
        let reply = publish_payload(&stage, &payload)?;
        reply.problem(400).map_err(|error| error.context(what))?;
    }
    for (what, bytes) in [
        ("nothing", &b""[..]),
        ("blanks", b"  \n"),
        ("not UTF-8", b"{\"aggregate_type\": \"\xff\xfe\"}"),
        ("UTF-16", b"\xff\xfe{\0}\0"),
        ("not JSON", b"aggregate_type=order"),
        ("a list", b"[]"),
        ("two of them", b"{} {}"),
        ("null", b"null"),
    ] {
        let reply = publish(&stage, bytes)?;
        reply.problem(400).map_err(|error| error.context(what))?;
    }
    // Unusual JSON that is still valid.
    for payload in
        ["123456789012345678901234567890", "0.1e-300", r#""\ud83d\ude00""#, r#"{"": null}"#, &nested(60)]
    {
        publish_payload(&stage, payload)?.expect(201)?;
    }
    assert_eq!(stage.count("select count(*) from m10_recovery.outbox").await?, 5);
    let kept: String =
        sqlx::query_scalar("select payload::text from m10_recovery.outbox order by id limit 1")
            .fetch_one(&stage.admin)
            .await?;
    assert_eq!(kept, "123456789012345678901234567890", "numbers keep all their digits");
    Ok(())
}

#[tokio::test]
async fn a_body_that_is_too_large_is_refused_however_it_comes() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let mebibyte = 1024 * 1024;
    let large = format!("\"{}\"", "x".repeat(mebibyte));
    publish_payload(&stage, &large)?.problem(413)?;
    // Within the limit of bodies and over that of events: the database says so.
    let large = format!("\"{}\"", "x".repeat(mebibyte / 2));
    let problem = publish_payload(&stage, &large)?.problem(422)?;
    assert!(problem["detail"].as_str().unwrap_or_default().contains("the limit is 262144"), "{problem}");
    // In chunks, without a length.
    let mut body = Vec::new();
    for _ in 0..20 {
        body.extend(format!("{:x}\r\n", 65_536).bytes());
        body.extend(vec![b' '; 65_536]);
        body.extend(b"\r\n");
    }
    body.extend(b"0\r\n\r\n");
    let reply = send_chunked(&stage, &body)?;
    assert!(reply.starts_with("HTTP/1.1 413"), "{reply}");
    stage.get(&stage.acme.viewer, "/whoami")?.expect(200)?;
    Ok(())
}

fn send_chunked(stage: &Stage, body: &[u8]) -> anyhow::Result<String> {
    use std::io::{Read, Write};

    let (mut stream, address) = crate::http::connect(&stage.server.http_url)?;
    let key = &stage.acme.operator;
    write!(
        stream,
        "POST /api/v2/events HTTP/1.1\r\nhost: {address}\r\nauthorization: Bearer {key}\r\n\
         content-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
    )?;
    // It answers before it has all of it, and may close then.
    let _ = stream.write_all(body);
    let mut answer = [0; 12];
    stream.read_exact(&mut answer)?;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

#[tokio::test]
async fn only_json_that_says_so_is_read() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let body = EVENT.replace("PAYLOAD", "{}");
    let call = || stage.call("POST", "/events").key(&stage.acme.operator);
    for odd in [
        "text/plain",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=x",
        "application/jsonp",
        "application/json, text/plain",
        "application/json; charset=utf-16",
        "json",
        "",
    ] {
        call().bytes(odd, body.as_bytes()).send()?.problem(415).map_err(|error| error.context(odd))?;
    }
    call().untyped(body.as_bytes()).send()?.problem(415)?;
    for encoding in ["gzip", "br", "deflate", "identity, gzip"] {
        let call = call().header("content-encoding", encoding);
        call.bytes("application/json", body.as_bytes()).send()?.problem(415)?;
    }
    for fine in ["application/json", "Application/JSON; charset=UTF-8", "application/json;charset=\"utf-8\""]
    {
        call().bytes(fine, body.as_bytes()).send()?.expect(201)?;
    }
    Ok(())
}

#[tokio::test]
async fn a_problem_names_the_field_and_says_what_would_do() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let acme = &stage.acme;
    let reply = stage.post(&acme.admin, "/keys", &json!({ "name": "n", "role": "owner" }))?;
    assert_eq!(reply.field(400)?, "role");
    assert!(reply.text().contains("`viewer`, `operator`, `admin`"), "{}", reply.text());
    assert_eq!(stage.post(&acme.admin, "/keys", &json!({ "name": 7, "role": "admin" }))?.field(400)?, "name");
    let event = json!({ "aggregate_type": " ", "aggregate_id": "1", "event_type": "t", "payload": {} });
    assert_eq!(stage.post(&acme.operator, "/events", &event)?.field(422)?, "aggregate_type");
    for (query, field) in [
        ("limit=0", "limit"),
        ("limit=201", "limit"),
        ("limit=ten", "limit"),
        ("limit=-1", "limit"),
        ("limit=99999999999", "limit"),
        ("cursor=!", "cursor"),
        ("state=lost", "state"),
        ("colour=red", "colour"),
        ("limit=1&limit=2", "limit"),
    ] {
        let reply = stage.get(&acme.viewer, &format!("/events?{query}"))?;
        assert_eq!(reply.field(400).map_err(|error| error.context(query))?, field, "{query}");
    }
    for query in ["state=%ff", "state=%00", "cursor=%00"] {
        stage.get(&acme.viewer, &format!("/events?{query}"))?.problem(400)?;
    }
    Ok(())
}

#[tokio::test]
async fn an_unknown_route_and_a_wrong_method_are_problems_too() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    stage.call("GET", "/nothing").send()?.problem(404)?;
    super::Call::new(&stage.server.http_url, "GET", "/nothing").send()?.problem(404)?;
    let reply = stage.call("DELETE", "/keys").send()?;
    reply.problem(405)?;
    let mut allowed: Vec<&str> = reply.header("allow").unwrap_or_default().split(',').collect();
    allowed.sort_unstable();
    assert_eq!(allowed, ["GET", "HEAD", "POST"]);
    let reply = stage.get(&stage.acme.viewer, "/whoami")?;
    assert_eq!(reply.header("cache-control"), Some("no-store"));
    assert_eq!(reply.header("x-content-type-options"), Some("nosniff"));
    Ok(())
}
