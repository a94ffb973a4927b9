//! Bodies that nobody in their right mind sends, to every operation.

use anyhow::Context;
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};

use super::{Call, Duel, Operation, Reply, Sent, Things};

/// A request of somebody who may, with this body.
fn call(duel: &Duel, operation: &Operation, owner: &Things) -> Call {
    let path = operation.concrete(owner, owner.named(operation.attack.names));
    let call = Call::new(&duel.stage.server.http_url, &operation.method, &path);
    match operation.role() {
        Some(role) => call.key(owner.secret(role)),
        None => call,
    }
}

fn answered(operation: &Operation, what: &str, reply: &Reply, status: u16) -> anyhow::Result<()> {
    anyhow::ensure!(
        reply.status == status,
        "{operation} with {what}: {} instead of {status}: {}",
        reply.status,
        reply.text()
    );
    anyhow::ensure!(operation.documents(reply), "{operation} with {what}: {status} is not documented");
    reply.problem(status).with_context(|| format!("{operation} with {what}"))?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_json_body_that_cannot_be_read_is_refused_as_documented() -> anyhow::Result<()> {
    let duel = Duel::new().await?;
    let owner = &duel.attacker;
    let before = duel.census().await?;
    for operation in &duel.operations {
        let Sent::Json(body) = operation.attack.sent else { continue };
        let good = body(owner).to_string();
        let inside = &good[1..good.len() - 1];
        let json = "application/json";
        let nested = |depth: usize| format!("{{{inside},\"x\":{}{}}}", "[".repeat(depth), "]".repeat(depth));
        let mut bad_utf8 = good.clone().into_bytes();
        bad_utf8.splice(bad_utf8.len() - 1..bad_utf8.len() - 1, *b",\"x\":\"\xff\xfe\"");
        let large = format!("{good}{}", " ".repeat(1024 * 1024));
        let array = serde_json::Value::Array(
            body(owner).as_object().into_iter().flat_map(|fields| fields.values().cloned()).collect(),
        );
        let with = |member: &str| format!("{{{inside},{member}}}").into_bytes();
        let first =
            body(owner).as_object().and_then(|fields| fields.keys().next().cloned()).unwrap_or_default();
        let cases: Vec<(&str, &str, Vec<u8>, u16)> = vec![
            ("plain text", "text/plain", good.clone().into_bytes(), 415),
            ("a form", "application/x-www-form-urlencoded", good.clone().into_bytes(), 415),
            ("parts", "multipart/form-data; boundary=x", good.clone().into_bytes(), 415),
            ("UTF-16", "application/json; charset=utf-16", good.clone().into_bytes(), 415),
            ("another JSON", "application/jsonp", good.clone().into_bytes(), 415),
            ("two types", "application/json, text/plain", good.clone().into_bytes(), 415),
            ("half of it", json, good.as_bytes()[..good.len() / 2].to_vec(), 400),
            ("two of it", json, format!("{good}{good}").into_bytes(), 400),
            ("null", json, b"null".to_vec(), 400),
            ("an empty array", json, b"[]".to_vec(), 400),
            ("its values in an array", json, array.to_string().into_bytes(), 400),
            ("a number", json, b"7".to_vec(), 400),
            ("a text", json, b"\"x\"".to_vec(), 400),
            ("a blank", json, b" ".to_vec(), 400),
            ("no UTF-8", json, bad_utf8, 400),
            ("65 levels", json, nested(65).into_bytes(), 400),
            ("200000 levels", json, nested(200_000).into_bytes(), 400),
            ("too much", json, large.into_bytes(), 413),
            ("NUL in a name", json, with("\"\\u0000\":1"), 400),
            ("NUL in a text", json, with("\"x\":\"\\u0000\""), 400),
            ("half a character", json, with("\"x\":\"\\ud800\""), 400),
            ("no number", json, with("\"x\":1e999"), 400),
            ("a field twice", json, with(&format!("\"{first}\":null")), 400),
            ("a byte order mark", json, [b"\xef\xbb\xbf", good.as_bytes()].concat(), 400),
        ];
        for (what, content_type, bytes, status) in cases {
            let reply = call(&duel, operation, owner).bytes(content_type, &bytes).send()?;
            answered(operation, what, &reply, status)?;
        }
        let packed =
            call(&duel, operation, owner).json(&body(owner)).header("content-encoding", "gzip").send()?;
        answered(operation, "gzip", &packed, 415)?;
        let untyped = call(&duel, operation, owner).untyped(good.as_bytes()).send()?;
        answered(operation, "no type", &untyped, 415)?;
        duel.unchanged(&before, &operation.to_string()).await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_cannot_be_read_is_refused_or_reported_line_by_line() -> anyhow::Result<()> {
    let duel = Duel::new().await?;
    let owner = &duel.attacker;
    let operation = duel
        .operations
        .iter()
        .find(|operation| matches!(operation.attack.sent, Sent::Csv))
        .context("no import")?;
    let deep =
        format!("{{\"email\":\"a@example.org\",\"x\":{}{}}}\n", "[".repeat(100_000), "]".repeat(100_000));
    let wide = format!("email{}\n", ",x".repeat(200_000));
    for (what, content_type, bytes) in [
        ("JSON", "application/json", b"{}".to_vec()),
        ("a form", "application/x-www-form-urlencoded", b"email=a".to_vec()),
        ("UTF-16", "text/csv; charset=utf-16", owner.csv().into_bytes()),
        ("nothing", "text/csv", Vec::new()),
        ("a header", "text/csv", b"email\n".to_vec()),
        ("a header that is none", "text/csv", b"\xff\xfe\x00\n\x00".to_vec()),
        ("two columns of a name", "text/csv", b"email,email\na@example.org,b@example.org\n".to_vec()),
        ("200000 columns", "text/csv", wide.into_bytes()),
        ("lines that are none", "application/x-ndjson", b"[]\n7\nnull\n".to_vec()),
        ("100000 levels", "application/x-ndjson", deep.into_bytes()),
        ("no UTF-8", "text/csv", b"email,name\na@example.org,\xff\n".to_vec()),
        ("NUL", "text/csv", b"email,name\na@example.org,\x00\n".to_vec()),
        (
            "NUL in JSON",
            "application/x-ndjson",
            b"{\"email\":\"a@example.org\",\"name\":\"\\u0000\"}\n".to_vec(),
        ),
        ("an open quote", "text/csv", b"email,name\na@example.org,\"x\n".to_vec()),
    ] {
        let reply = call(&duel, operation, owner).bytes(content_type, &bytes).send()?;
        assert!(
            reply.status < 500 && operation.documents(&reply),
            "{what}: {} {}",
            reply.status,
            reply.text()
        );
        if reply.status == 200 {
            let summary = reply.json()?;
            let is_well_formed = what == "an open quote" || what == "two columns of a name";
            assert!(is_well_formed || summary["added"] == 0, "{what}: {summary}");
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn routes_without_a_json_body_accept_an_empty_body() -> anyhow::Result<()> {
    let duel = Duel::new().await?;
    let owner = &duel.attacker;
    let before = duel.census().await?;
    let large = vec![b'x'; 2 * 1024 * 1024];
    for operation in &duel.operations {
        let changes = operation.method != "GET";
        match operation.attack.sent {
            Sent::Json(_) | Sent::Csv => continue,
            Sent::Nothing if changes => continue,
            Sent::Nothing | Sent::Bytes(_) => {}
        }
        for (what, bytes) in [("garbage", &b"\xff\x00{"[..]), ("too much", &large)] {
            let reply = call(&duel, operation, owner).bytes("application/json", bytes).send()?;
            assert!(reply.status < 500, "{operation} with {what}: {} {}", reply.status, reply.text());
            assert!(
                operation.documents(&reply),
                "{operation} with {what}: {} {}",
                reply.status,
                reply.text()
            );
        }
        duel.unchanged(&before, &operation.to_string()).await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_nul_character_in_a_query_a_cursor_or_a_path_is_refused_before_the_database_sees_it()
-> anyhow::Result<()> {
    let duel = Duel::new().await?;
    let owner = &duel.attacker;
    let before = duel.census().await?;
    // As lists of this server encode them: a name, a name and an id, a time and an id.
    let id = crate::api::material::UNKNOWN;
    let keys = [
        serde_json::json!("a\0b"),
        serde_json::json!(["a\0b", id]),
        serde_json::json!([id, "a\0b"]),
        serde_json::json!(["2026-03-01T10:00:00Z", "a\0b"]),
        serde_json::json!({ "a\0b": 1 }),
    ];
    let cursors: Vec<String> = keys.iter().map(|key| URL_SAFE_NO_PAD.encode(key.to_string())).collect();
    let ask = |operation: &Operation, path: &str| {
        let call = Call::new(&duel.stage.server.http_url, &operation.method, path);
        let call = match operation.attack.sent {
            Sent::Nothing => call,
            Sent::Json(body) => call.json(&body(owner)),
            Sent::Csv => call.bytes("text/csv", owner.csv().as_bytes()),
            Sent::Bytes(bytes) => call.bytes("application/octet-stream", bytes),
        };
        match operation.role() {
            Some(role) => call.key(owner.secret(role)).send(),
            None => call.send(),
        }
    };
    let (mut lists, mut paths) = (0, 0);
    for operation in &duel.operations {
        let path = operation.concrete(owner, owner.named(operation.attack.names));
        let (bare, _) = path.split_once('?').unwrap_or((&path, ""));
        // Callbacks and webhooks are read by their provider's rules.
        for name in operation.parameters("query").filter(|_| operation.role().is_some()) {
            let what = format!("NUL in `{name}`");
            answered(operation, &what, &ask(operation, &format!("{bare}?{name}=a%00b"))?, 400)?;
        }
        for cursor in cursors.iter().filter(|_| operation.is_list()) {
            let reply = ask(operation, &format!("{bare}?cursor={cursor}"))?;
            answered(operation, "NUL in a cursor", &reply, 400)?;
            assert_eq!(reply.field(400)?, "cursor", "{operation}: {}", reply.text());
            lists += 1;
        }
        let places: Vec<&str> = operation.path.split('/').collect();
        for (at, _) in places.iter().enumerate().filter(|(_, part)| part.starts_with('{')) {
            let mut parts: Vec<&str> = path.split('/').collect();
            parts[at] = "a%00b";
            let query = operation.attack.query;
            let reply = ask(operation, &format!("{}{query}", parts.join("/").trim_end_matches(query)))?;
            answered(operation, &format!("NUL in {}", places[at]), &reply, 404)?;
            paths += 1;
        }
        duel.unchanged(&before, &operation.to_string()).await?;
    }
    assert!(lists > 50 && paths > 30, "{lists} cursors and {paths} paths were tried");
    Ok(())
}
