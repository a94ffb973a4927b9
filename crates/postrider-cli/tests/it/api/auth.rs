//! Authentication, and the rights of each role.

use jiff::{Timestamp, ToSpan};
use postrider_model::tenancy::Role;
use postrider_store::{postgres::pool, tenancy::keys};
use serde_json::json;

use super::Stage;

#[tokio::test]
async fn a_key_that_is_not_exactly_a_valid_one_is_refused() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let key = &stage.acme.admin;
    stage.get(key, "/whoami")?.expect(200)?;
    let (start, end) = key.split_at(key.len() - 1);
    let other_end = if end == "A" { "E" } else { "A" };
    for (what, wrong) in [
        ("truncated", start.to_owned()),
        ("longer", format!("{key}A")),
        ("other case", key.to_uppercase()),
        ("other case of the prefix", key.replace("pr_", "PR_")),
        ("swapped case", key.chars().map(swap_case).collect()),
        ("prefix only", "pr_".to_owned()),
        ("the hint", key[..9].to_owned()),
        ("another end", format!("{start}{other_end}")),
        ("empty", String::new()),
        ("not text", "pr_\u{e9}".to_owned()),
    ] {
        let reply = stage.get(&wrong, "/whoami")?;
        let problem = reply.problem(401)?;
        assert_eq!(reply.header("www-authenticate"), Some("Bearer"), "{what}");
        assert!(!problem.to_string().contains(&key[9..]), "{what}");
    }
    for (what, header) in [
        ("another scheme", format!("Basic {key}")),
        ("no scheme", key.clone()),
        ("a second word", format!("Bearer x {key}")),
    ] {
        let reply = stage.call("GET", "/whoami").header("authorization", &header).send()?;
        assert_eq!(reply.status, 401, "{what}");
    }
    stage.call("GET", "/whoami").send()?.problem(401)?;
    let twice = stage.call("GET", "/whoami").key(key).key(&stage.acme.viewer).send()?;
    twice.problem(401)?;
    let in_the_query = stage.call("GET", &format!("/whoami?key={key}")).send()?;
    in_the_query.problem(401)?;
    // The scheme's name has no case.
    stage.call("GET", "/whoami").header("authorization", &format!("bearer {key}")).send()?.expect(200)?;
    Ok(())
}

#[tokio::test]
async fn a_refusal_says_whether_no_key_came_or_no_key_could_be_read_or_the_key_is_not_valid()
-> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let key = &stage.acme.admin;
    let refused = |headers: &[String]| {
        let call = stage.call("GET", "/whoami");
        let call = headers.iter().fold(call, |call, value| call.header("authorization", value));
        let problem = call.send()?.problem(401)?;
        anyhow::Ok(problem["detail"].as_str().unwrap_or_default().to_owned())
    };
    let none = refused(&[])?;
    assert!(none.contains("has no API key"), "{none}");
    for (headers, expected) in [
        (vec![format!("Bearer {key}"), format!("Bearer {key}")], "more than one"),
        (vec![format!("Basic {key}")], "does not begin with `Bearer`"),
        (vec![key.clone()], "does not begin with `Bearer`"),
        (vec![String::new()], "does not begin with `Bearer`"),
        (vec![format!("Bearer {}", &key[..20])], "is not an API key"),
        (vec!["Bearer ".to_owned()], "is not an API key"),
        (vec!["Bearer pr_\u{e9}".to_owned()], "is not an API key"),
        (vec!["Bearer pr_".to_owned()], "is not an API key"),
        (vec![format!("Bearer pr_{}_{}", "0".repeat(32), "A".repeat(43))], "is not known"),
    ] {
        let detail = refused(&headers)?;
        assert!(detail.contains(expected), "{headers:?}: {detail}");
        assert!(!detail.contains("has no API key"), "{headers:?}: {detail}");
    }
    Ok(())
}

fn swap_case(letter: char) -> char {
    if letter.is_lowercase() { letter.to_ascii_uppercase() } else { letter.to_ascii_lowercase() }
}

#[tokio::test]
async fn a_revoked_and_an_expired_key_are_refused_from_that_moment_on() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let mut transaction = pool::begin_as(&stage.admin, stage.acme.id).await?;
    let soon = Timestamp::now() + 1.hour();
    let (id, revoked) =
        keys::create(&mut transaction, stage.acme.id, "a", Role::Viewer, None, "test").await?;
    let (_, expired) =
        keys::create(&mut transaction, stage.acme.id, "b", Role::Viewer, Some(soon), "test").await?;
    pool::commit(transaction).await?;
    for key in [&revoked, &expired] {
        stage.get(key.expose(), "/whoami")?.expect(200)?;
    }
    let answer = stage.call("DELETE", &format!("/keys/{}", id.0)).key(&stage.acme.admin).send()?;
    answer.expect(204)?;
    sqlx::query("update tenancy.api_keys set expires_at = now() - interval '1 second' where name = 'b'")
        .execute(&stage.admin)
        .await?;
    let problem = stage.get(revoked.expose(), "/whoami")?.problem(401)?;
    assert_eq!(problem["detail"], "the API key was revoked");
    let problem = stage.get(expired.expose(), "/whoami")?.problem(401)?;
    assert_eq!(problem["detail"], "the API key has expired");
    Ok(())
}

#[tokio::test]
async fn each_role_may_do_what_it_may_and_no_more() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let event = json!({ "aggregate_type": "order", "aggregate_id": "1", "event_type": "order.placed", "payload": {} });
    let key = json!({ "name": "n", "role": "viewer" });
    let nobody = uuid::Uuid::now_v7();
    let account = format!("/provider-accounts/{nobody}");
    let secret = format!("{account}/secret");
    let revoke = format!("/keys/{nobody}");
    let limits = json!({ "limits": {} });
    let new_secret = json!({ "secret": "s" });
    let new_account = json!({ "name": "a", "provider": "sim", "settings": {} });
    let none = json!(null);
    let table = [
        ("GET", "/events", &none, Role::Viewer),
        ("GET", "/provider-accounts", &none, Role::Viewer),
        ("POST", "/events", &event, Role::Operator),
        ("POST", "/events/1/retry", &none, Role::Operator),
        ("GET", "/keys", &none, Role::Admin),
        ("POST", "/keys", &key, Role::Admin),
        ("DELETE", revoke.as_str(), &none, Role::Admin),
        ("GET", "/audit", &none, Role::Admin),
        ("POST", "/provider-accounts", &new_account, Role::Admin),
        ("PATCH", account.as_str(), &limits, Role::Admin),
        ("PUT", secret.as_str(), &new_secret, Role::Admin),
        ("DELETE", account.as_str(), &none, Role::Admin),
    ];
    let acme = &stage.acme;
    for (method, path, body, needed) in table {
        for (role, key) in
            [(Role::Viewer, &acme.viewer), (Role::Operator, &acme.operator), (Role::Admin, &acme.admin)]
        {
            let mut call = stage.call(method, path).key(key);
            if !body.is_null() {
                call = call.json(body);
            }
            let reply = call.send()?;
            if role < needed {
                let problem = reply.problem(403)?;
                assert_eq!(problem["needed_role"], needed.as_str(), "{method} {path}");
            } else {
                assert_ne!(reply.status, 403, "{method} {path} as {role}: {}", reply.text());
                assert!(reply.status < 500, "{method} {path} as {role}: {}", reply.text());
            }
        }
        let stranger = stage.call(method, path).json(body).send()?;
        stranger.problem(401)?;
    }
    Ok(())
}

#[tokio::test]
async fn the_tenant_comes_from_the_key_alone() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let other = stage.tenant("other").await?;
    let (acme, victim) = (&stage.acme, other.id.0.to_string());
    let reply = stage
        .call("GET", "/whoami")
        .key(&acme.viewer)
        .header("x-tenant-id", &victim)
        .header("tenant", &victim)
        .send()?;
    assert_eq!(reply.expect(200)?["tenant_id"], acme.id.0.to_string());
    // In the query and in the body it is a field that nobody knows.
    let reply = stage.get(&acme.viewer, &format!("/events?tenant_id={victim}"))?;
    assert_eq!(reply.field(400)?, "tenant_id");
    for forced in ["tenant_id", "id", "state", "processed_at", "retry_count", "claimed_by"] {
        let mut event =
            json!({ "aggregate_type": "a", "aggregate_id": "1", "event_type": "t", "payload": {} });
        event[forced] = json!(victim);
        assert_eq!(stage.post(&acme.operator, "/events", &event)?.field(400)?, forced);
    }
    for forced in ["tenant_id", "id", "hint", "key_hash", "revoked_at"] {
        let mut key = json!({ "name": "n", "role": "viewer" });
        key[forced] = json!(victim);
        assert_eq!(stage.post(&acme.admin, "/keys", &key)?.field(400)?, forced);
    }
    let account = json!({ "name": "n", "provider": "sim", "workspace_id": other.workspace_id.0 });
    assert_eq!(stage.post(&acme.admin, "/provider-accounts", &account)?.field(400)?, "workspace_id");
    assert_eq!(stage.count("select count(*) from m10_recovery.outbox").await?, 0);
    Ok(())
}

#[tokio::test]
async fn a_stranger_is_refused_before_the_body_is_read() -> anyhow::Result<()> {
    use std::io::{Read, Write};

    let stage = Stage::new().await?;
    let (mut stream, address) = crate::http::connect(&stage.server.http_url)?;
    // The body never comes. A server that waited for it would not answer.
    write!(
        stream,
        "POST /api/v2/keys HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\ncontent-length: 1000\r\n\r\n"
    )?;
    let mut head = [0; 12];
    stream.read_exact(&mut head)?;
    assert_eq!(&head, b"HTTP/1.1 401");
    Ok(())
}

#[tokio::test]
async fn nothing_of_another_tenant_is_seen_or_changed() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let other = stage.tenant("other").await?;
    let event = json!({ "aggregate_type": "order", "aggregate_id": "1", "event_type": "order.placed", "payload": {} });
    let event = stage.post(&other.operator, "/events", &event)?.expect(201)?["id"].clone();
    let key = stage.post(&other.admin, "/keys", &json!({ "name": "n", "role": "viewer" }))?.expect(201)?;
    let account = json!({ "name": "theirs", "provider": "sim", "settings": { "url": "https://sim.example" }, "secret": "s" });
    let account = stage.post(&other.admin, "/provider-accounts", &account)?;
    let account = account.expect(201)?["id"].as_str().unwrap_or_default().to_owned();

    let nobody = uuid::Uuid::now_v7();
    let limits = json!({ "limits": { "daily": 1 } });
    let secret = json!({ "secret": "mine" });
    let none = json!(null);
    let key = key["id"].as_str().unwrap_or_default().to_owned();
    for (method, theirs, unknown, body) in [
        ("DELETE", format!("/keys/{key}"), format!("/keys/{nobody}"), &none),
        ("GET", format!("/provider-accounts/{account}"), format!("/provider-accounts/{nobody}"), &none),
        ("PATCH", format!("/provider-accounts/{account}"), format!("/provider-accounts/{nobody}"), &limits),
        ("DELETE", format!("/provider-accounts/{account}"), format!("/provider-accounts/{nobody}"), &none),
        (
            "PUT",
            format!("/provider-accounts/{account}/secret"),
            format!("/provider-accounts/{nobody}/secret"),
            &secret,
        ),
        ("POST", format!("/events/{event}/retry"), "/events/999999/retry".to_owned(), &none),
    ] {
        let send = |path: &str| {
            let call = stage.call(method, path).key(&stage.acme.admin).header("x-request-id", "same");
            if body.is_null() { call.send() } else { call.json(body).send() }
        };
        let (theirs, unknown) = (send(&theirs)?, send(&unknown)?);
        theirs.problem(404)?;
        assert_eq!(theirs.text(), unknown.text(), "{method}: no difference to what does not exist");
    }
    // A malformed id is answered like an unknown one.
    let unknown = stage
        .call("DELETE", &format!("/keys/{nobody}"))
        .key(&stage.acme.admin)
        .header("x-request-id", "same");
    let unknown = unknown.send()?.text();
    for path in ["/keys/not-an-id", "/keys/%00", "/keys/..%2f..", "/keys/%ff", "/keys/1"] {
        let reply =
            stage.call("DELETE", path).key(&stage.acme.admin).header("x-request-id", "same").send()?;
        assert_eq!((reply.status, reply.text()), (404, unknown.clone()), "{path}");
    }
    for path in ["/events", "/provider-accounts"] {
        let page = stage.get(&stage.acme.admin, path)?.expect(200)?;
        assert_eq!(page["items"], json!([]), "{path}");
    }
    let untouched = stage.get(&other.admin, &format!("/provider-accounts/{account}"))?.expect(200)?;
    assert_eq!(untouched["limits"], json!({}));
    Ok(())
}
