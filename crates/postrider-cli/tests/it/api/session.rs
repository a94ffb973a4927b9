//! Sessions of the dashboard: signing in and out, the cookie, and the requests that may carry it.

use anyhow::Context;
use postrider_model::tenancy::Role;
use postrider_store::{
    postgres::pool,
    tenancy::{keys, sessions},
};
use serde_json::{Value, json};

use super::{Call, Reply, Stage};
use crate::sql::{execute, texts};

/// Headers that a browser adds to a request of a page of the server itself.
pub const OWN_PAGE: (&str, &str) = ("sec-fetch-site", "same-origin");

/// Signs in, and returns the cookie as a browser sends it back.
pub fn sign_in(stage: &Stage, body: &Value) -> anyhow::Result<String> {
    let reply = stage.call("POST", "/session").header(OWN_PAGE.0, OWN_PAGE.1).json(body).send()?;
    reply.expect(200)?;
    let cookie = reply.header("set-cookie").context("no cookie")?;
    Ok(cookie.split(';').next().unwrap_or_default().to_owned())
}

/// A request with a session, as a page of the server makes it.
fn with(stage: &Stage, cookie: &str, method: &str, path: &str) -> Call {
    stage.call(method, path).header("cookie", cookie).header(OWN_PAGE.0, OWN_PAGE.1)
}

fn whoami(stage: &Stage, cookie: &str) -> anyhow::Result<Reply> {
    with(stage, cookie, "GET", "/whoami").send()
}

/// A one-time code for a new key of this role.
async fn code(stage: &Stage, role: Role) -> anyhow::Result<String> {
    let mut transaction = pool::begin_as(&stage.admin, stage.acme.id).await?;
    let (key, _) = keys::create(&mut transaction, stage.acme.id, "of the code", role, None, "test").await?;
    let name = "ada".parse().ok();
    let (code, _) = sessions::make_code(&mut transaction, stage.acme.id, key, name, "test").await?;
    pool::commit(transaction).await?;
    Ok(code.expose().to_owned())
}

#[tokio::test]
async fn a_key_opens_a_session_that_acts_for_it_until_sign_out() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let body = json!({ "key": stage.acme.operator, "name": "Ada" });
    let reply = stage.call("POST", "/session").header(OWN_PAGE.0, OWN_PAGE.1).json(&body).send()?;
    let introduced = reply.expect(200)?;
    let cookie =
        reply.header("set-cookie").context("no cookie")?.split(';').next().unwrap_or_default().to_owned();

    let me = whoami(&stage, &cookie)?.expect(200)?;
    for (member, expected) in [
        ("tenant_id", json!(stage.acme.id.0)),
        ("tenant", json!("acme")),
        ("role", json!("operator")),
        ("key_name", json!("operator")),
        ("key_expires_at", Value::Null),
        ("workspaces", json!([{ "id": stage.acme.workspace_id.0, "name": "default" }])),
    ] {
        assert_eq!((&me[member], &introduced[member]), (&expected, &expected), "{member}");
    }
    assert_eq!(me["session"], introduced["session"]);
    assert_eq!(me["session"]["name"], "Ada");
    assert!(me["time"].is_string() && me["session"]["expires_at"].is_string(), "{me}");
    let by_key = stage.get(&stage.acme.operator, "/whoami")?.expect(200)?;
    assert!(by_key.get("session").is_none(), "{by_key}");

    // It acts, under the name that the person gave.
    let event = json!({ "aggregate_type": "a", "aggregate_id": "1", "event_type": "t", "payload": {} });
    let published = with(&stage, &cookie, "POST", "/events").json(&event).send()?.expect(201)?;
    let retry = format!("/events/{}/retry", published["id"]);
    with(&stage, &cookie, "POST", &retry).send()?.expect(204)?;
    let actors =
        texts(&stage.admin, "select distinct actor from tenancy.audit_log where actor like '%/%'").await?;
    assert_eq!(actors, [format!("key:{}/Ada", me["key_id"].as_str().unwrap_or_default())]);
    // And no further than its key.
    assert_eq!(with(&stage, &cookie, "GET", "/keys").send()?.problem(403)?["needed_role"], "admin");

    let ended = with(&stage, &cookie, "DELETE", "/session").send()?;
    ended.expect(204)?;
    let removed: Vec<&str> = ended
        .headers
        .iter()
        .filter(|(name, _)| name == "set-cookie")
        .map(|(_, value)| value.as_str())
        .collect();
    assert_eq!(removed.len(), 2, "{removed:?}");
    assert!(removed.iter().all(|cookie| cookie.contains("Max-Age=0")), "{removed:?}");
    let refused = whoami(&stage, &cookie)?.problem(401)?;
    assert_eq!(refused["detail"], "the session has ended; sign in again");
    assert_eq!(stage.count("select count(*) from tenancy.sessions").await?, 0);
    Ok(())
}

#[tokio::test]
async fn the_cookie_is_for_this_host_and_no_script_and_secure_where_the_page_is() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let body = json!({ "key": stage.acme.viewer });
    let flags = |headers: &[(&str, &str)]| {
        let call = headers
            .iter()
            .fold(stage.call("POST", "/session"), |call, (name, value)| call.header(name, value));
        let reply = call.json(&body).send()?;
        reply.expect(200)?;
        let cookie = reply.header("set-cookie").context("no cookie")?.to_owned();
        let parts: Vec<String> = cookie.split("; ").map(str::to_owned).collect();
        anyhow::Ok((parts[0].split_once('=').unwrap_or_default().0.to_owned(), parts[1..].to_vec()))
    };
    let own = format!("http://{}", stage.server.http_url.trim_start_matches("http://"));
    for (headers, name, is_secure) in [
        (&[OWN_PAGE, ("origin", own.as_str())][..], "postrider_session", false),
        (&[], "postrider_session", false),
        (&[OWN_PAGE, ("origin", "https://desk.example")], "__Host-postrider_session", true),
    ] {
        let (given, attributes) = flags(headers)?;
        assert_eq!(given, name, "{headers:?}");
        for attribute in ["Path=/", "HttpOnly", "SameSite=Strict"] {
            assert!(attributes.contains(&attribute.to_owned()), "{headers:?}: {attributes:?}");
        }
        assert_eq!(attributes.contains(&"Secure".to_owned()), is_secure, "{headers:?}");
        let lives =
            attributes.iter().find_map(|attribute| attribute.strip_prefix("Max-Age=")).context("no age")?;
        assert!((604_000..=604_800).contains(&lives.parse::<u32>()?), "{lives}");
        assert!(!attributes.iter().any(|attribute| attribute.starts_with("Domain")), "{attributes:?}");
    }
    Ok(())
}

#[tokio::test]
async fn a_request_with_a_session_counts_only_from_a_page_of_the_server() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let cookie = sign_in(&stage, &json!({ "key": stage.acme.admin }))?;
    let host = stage.server.http_url.trim_start_matches("http://").to_owned();
    let own = format!("http://{host}");
    let key = json!({ "name": "made", "role": "admin" });
    let keys = stage.count("select count(*) from tenancy.api_keys").await?;
    let send = |method: &str, headers: &[(&str, &str)]| {
        let call = stage.call(method, "/keys").header("cookie", &cookie);
        let call = headers.iter().fold(call, |call, (name, value)| call.header(name, value));
        if method == "POST" { call.json(&key).send() } else { call.send() }
    };
    let (foreign, none) = (("origin", "https://evil.example"), ("sec-fetch-site", "none"));
    let (cross, same_site) = (("sec-fetch-site", "cross-site"), ("sec-fetch-site", "same-site"));
    for headers in [
        &[][..],
        &[cross, foreign],
        &[cross, ("origin", own.as_str())],
        &[same_site, ("origin", "http://127.0.0.1:1")],
        &[none],
        &[foreign],
        &[("origin", "null")],
        &[("origin", "http://127.0.0.1:1")],
        &[OWN_PAGE, cross],
    ] {
        let refused = send("POST", headers)?.problem(403)?;
        assert!(
            refused["detail"].as_str().is_some_and(|detail| detail.contains("page of this server")),
            "{refused}"
        );
        // Reading is let through only where the browser can have said nothing, or says that a person typed the address.
        let may_read = matches!(headers, [] | [("sec-fetch-site", "none")]);
        assert_eq!(send("GET", headers)?.status, if may_read { 200 } else { 403 }, "{headers:?}");
    }
    // A cookie and a key may disagree, whichever page sends them.
    let bearer = format!("Bearer {}", stage.acme.admin);
    for headers in
        [&[OWN_PAGE, ("authorization", bearer.as_str())][..], &[cross, ("authorization", bearer.as_str())]]
    {
        assert_eq!(send("POST", headers)?.status, 401, "{headers:?}");
    }
    assert_eq!(stage.count("select count(*) from tenancy.api_keys").await?, keys, "nothing was made");
    for headers in [&[OWN_PAGE][..], &[("origin", own.as_str())], &[OWN_PAGE, ("origin", own.as_str())]] {
        send("POST", headers)?.expect(201)?;
    }
    // Signing in is for pages of the server, too; a program says nothing of pages.
    let body = json!({ "key": stage.acme.viewer });
    for headers in [&[cross][..], &[same_site], &[foreign]] {
        let call = headers
            .iter()
            .fold(stage.call("POST", "/session"), |call, (name, value)| call.header(name, value));
        let refused = call.json(&body).send()?;
        refused.problem(403)?;
        assert_eq!(refused.header("set-cookie"), None);
    }
    stage.call("POST", "/session").json(&body).send()?.expect(200)?;
    // No answer lets a page of another origin use the cookie.
    let preflight = stage.call("OPTIONS", "/keys").header("origin", "https://evil.example");
    let preflight = preflight.header("access-control-request-method", "POST").send()?;
    assert_eq!(preflight.header("access-control-allow-credentials"), None);
    assert_eq!(preflight.header("access-control-allow-origin"), None);
    Ok(())
}

#[tokio::test]
async fn an_invocation_from_another_page_ignores_the_cookie_and_takes_the_key() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let put = json!({ "target": { "builtin": "noop" } });
    let made = stage.call("PUT", "/functions/hello").key(&stage.acme.admin).json(&put).send()?;
    anyhow::ensure!([200, 201].contains(&made.status), "{}", made.text());
    let cookie = sign_in(&stage, &json!({ "key": stage.acme.operator }))?;
    let invoke = |headers: &[(&str, &str)]| {
        let call = stage.call("POST", "/functions/hello/invoke?wait=0").header("cookie", &cookie);
        headers.iter().fold(call, |call, (name, value)| call.header(name, value)).json(&json!({})).send()
    };
    let cross = ("sec-fetch-site", "cross-site");
    let bearer = format!("Bearer {}", stage.acme.operator);
    assert_eq!(invoke(&[cross])?.status, 401);
    assert_eq!(invoke(&[OWN_PAGE, ("authorization", &bearer)])?.status, 401);
    assert_eq!(invoke(&[cross, ("authorization", &bearer)])?.status, 202);
    // It is active under its lock key now.
    assert_eq!(invoke(&[OWN_PAGE])?.status, 409);
    Ok(())
}

#[tokio::test]
async fn a_session_ends_by_time_by_revocation_and_with_its_key() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let refused = |cookie: &str| {
        let problem = whoami(&stage, cookie)?.problem(401)?;
        anyhow::Ok(problem["detail"].as_str().unwrap_or_default().to_owned())
    };
    const ENDED: &str = "the session has ended; sign in again";
    let body = json!({ "key": stage.acme.viewer, "name": "n" });

    let idle = sign_in(&stage, &body)?;
    execute(&stage.admin, "update tenancy.sessions set last_seen_at = now() - interval '12 hours 1 second'")
        .await?;
    assert_eq!(refused(&idle)?, ENDED);
    execute(
        &stage.admin,
        "update tenancy.sessions set last_seen_at = now() - interval '11 hours 59 minutes'",
    )
    .await?;
    whoami(&stage, &idle)?.expect(200)?;
    // That was a request: it counts from here again.
    let seen = "select count(*) from tenancy.sessions where last_seen_at > now() - interval '1 minute'";
    assert_eq!(stage.count(seen).await?, 1);
    execute(&stage.admin, "update tenancy.sessions set expires_at = now() - interval '1 second'").await?;
    assert_eq!(refused(&idle)?, ENDED);

    let revoked = sign_in(&stage, &body)?;
    let other = sign_in(&stage, &body)?;
    let id = whoami(&stage, &revoked)?.expect(200)?["session"]["id"].as_str().unwrap_or_default().to_owned();
    let list = || anyhow::Ok(stage.get(&stage.acme.admin, "/sessions")?.expect(200)?["items"].clone());
    let listed = list()?;
    assert_eq!(listed.as_array().map(Vec::len), Some(2), "expired ones are not listed: {listed}");
    assert_eq!(
        (&listed[0]["id"], &listed[0]["name"], &listed[0]["role"]),
        (&json!(id), &json!("n"), &json!("viewer"))
    );
    assert!(!listed.to_string().contains("prs_"), "{listed}");
    stage.call("DELETE", &format!("/sessions/{id}")).key(&stage.acme.admin).send()?.expect(204)?;
    stage.call("DELETE", &format!("/sessions/{id}")).key(&stage.acme.admin).send()?.problem(404)?;
    assert_eq!(refused(&revoked)?, ENDED);
    whoami(&stage, &other)?.expect(200)?;

    let admin = sign_in(&stage, &json!({ "key": stage.acme.admin }))?;
    let current = with(&stage, &admin, "GET", "/sessions").send()?.expect(200)?["items"].clone();
    let is_current: Vec<&Value> =
        current.as_array().into_iter().flatten().map(|session| &session["is_current"]).collect();
    assert_eq!(is_current, [&json!(false), &json!(true)]);

    execute(
        &stage.admin,
        "update tenancy.api_keys set expires_at = created_at + interval '1 microsecond' where role = 'admin'",
    )
    .await?;
    assert_eq!(refused(&admin)?, "the API key has expired");
    execute(&stage.admin, "update tenancy.api_keys set revoked_at = now() where role = 'viewer'").await?;
    assert_eq!(refused(&other)?, "the API key was revoked");
    assert_eq!(stage.count("select count(*) from tenancy.sessions where expires_at > now()").await?, 2);

    // Retention removes what has expired.
    let worker = stage.world.pool("postrider_worker").await?;
    let never = tokio_util::sync::CancellationToken::new();
    assert_eq!(postrider_engine::sweep_sessions(&worker, &never).await?, 1);
    Ok(())
}

#[tokio::test]
async fn a_session_lives_no_longer_than_its_key_and_the_settings_allow() -> anyhow::Result<()> {
    let stage = Stage::with("[api]\nsession_idle_hours = 1\nsession_days_max = 2\n").await?;
    sign_in(&stage, &json!({ "key": stage.acme.viewer }))?;
    let as_set = "select count(*) from tenancy.sessions
                   where idle_for = interval '1 hour' and expires_at = created_at + interval '48 hours'";
    assert_eq!(stage.count(as_set).await?, 1);
    execute(
        &stage.admin,
        "update tenancy.api_keys set expires_at = now() + interval '1 hour' where role = 'viewer'",
    )
    .await?;
    sign_in(&stage, &json!({ "key": stage.acme.viewer }))?;
    let with_key = "select count(*) from tenancy.sessions as session join tenancy.api_keys as key on key.id = session.key_id
                     where key.expires_at = session.expires_at";
    assert_eq!(stage.count(with_key).await?, 1);
    Ok(())
}

#[tokio::test]
async fn a_key_has_at_most_a_hundred_sessions_and_loses_the_one_seen_longest_ago() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let oldest = sign_in(&stage, &json!({ "key": stage.acme.viewer }))?;
    let others = "insert into tenancy.sessions (id, tenant_id, key_id, token_hash, last_seen_at, idle_for, expires_at)
                  select gen_random_uuid(), tenant_id, key_id, sha256(n::text::bytea), now() + interval '1 second', idle_for, expires_at
                    from tenancy.sessions, generate_series(1, 99) as n";
    execute(&stage.admin, others).await?;
    whoami(&stage, &oldest)?.expect(200)?;
    let newest = sign_in(&stage, &json!({ "key": stage.acme.viewer }))?;
    assert_eq!(stage.count("select count(*) from tenancy.sessions").await?, 100);
    whoami(&stage, &oldest)?.problem(401)?;
    whoami(&stage, &newest)?.expect(200)?;
    Ok(())
}

#[tokio::test]
async fn a_code_opens_one_session_and_only_within_its_minute() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let first = code(&stage, Role::Operator).await?;
    let sent = json!({ "code": first });
    let cookie = sign_in(&stage, &sent)?;
    let me = whoami(&stage, &cookie)?.expect(200)?;
    assert_eq!((&me["role"], &me["session"]["name"]), (&json!("operator"), &json!("ada")));
    let again = stage.call("POST", "/session").json(&sent).send()?.problem(401)?;
    assert!(again["detail"].as_str().is_some_and(|detail| detail.contains("works once")), "{again}");
    assert_eq!(stage.count("select count(*) from tenancy.login_codes").await?, 0);

    let late = code(&stage, Role::Viewer).await?;
    let minute = "select count(*) from tenancy.login_codes where expires_at between now() and now() + interval '1 minute'";
    assert_eq!(stage.count(minute).await?, 1);
    execute(&stage.admin, "update tenancy.login_codes set expires_at = expires_at - interval '1 minute'")
        .await?;
    stage.call("POST", "/session").json(&json!({ "code": late })).send()?.problem(401)?;
    // Of another tenant, mistyped, or not a code at all.
    let other = stage.tenant("other").await?;
    let fresh = code(&stage, Role::Viewer).await?;
    let moved = fresh.replace(&stage.acme.id.0.simple().to_string(), &other.id.0.simple().to_string());
    for wrong in
        [moved.as_str(), &fresh[..fresh.len() - 1], "", "prc_", &stage.acme.admin, &format!("{fresh}A")]
    {
        stage.call("POST", "/session").json(&json!({ "code": wrong })).send()?.problem(401)?;
    }
    // The name of the person who signs in counts before the one that the code brings.
    let cookie = sign_in(&stage, &json!({ "code": fresh, "name": "grace" }))?;
    assert_eq!(whoami(&stage, &cookie)?.expect(200)?["session"]["name"], "grace");

    let unused = code(&stage, Role::Viewer).await?;
    execute(&stage.admin, "update tenancy.api_keys set revoked_at = now() where name = 'of the code'")
        .await?;
    stage.call("POST", "/session").json(&json!({ "code": unused })).send()?.problem(401)?;
    Ok(())
}

#[tokio::test]
async fn two_browsers_with_one_code_get_one_session() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let body = json!({ "code": code(&stage, Role::Viewer).await? });
    let tries: Vec<_> = (0..8)
        .map(|_| {
            let call = stage.call("POST", "/session").json(&body);
            tokio::task::spawn_blocking(move || call.send())
        })
        .collect();
    let mut answers = Vec::new();
    for one in tries {
        answers.push(one.await??.status);
    }
    answers.sort_unstable();
    assert_eq!(answers, [200, 401, 401, 401, 401, 401, 401, 401]);
    assert_eq!(stage.count("select count(*) from tenancy.sessions").await?, 1);
    Ok(())
}

#[tokio::test]
async fn a_sign_in_that_cannot_be_read_is_refused_and_opens_nothing() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let key = &stage.acme.viewer;
    let send = |body: &Value| stage.call("POST", "/session").json(body).send();
    for (body, field) in [
        (json!({}), "key"),
        (json!({ "key": key, "code": "prc_" }), "key"),
        (json!({ "key": key, "name": "" }), "name"),
        (json!({ "key": key, "name": " " }), "name"),
        (json!({ "key": key, "name": "a\nb" }), "name"),
        (json!({ "key": key, "name": "\u{1b}[2J" }), "name"),
        (json!({ "key": key, "name": "n".repeat(65) }), "name"),
    ] {
        assert_eq!(send(&body)?.field(422)?, field, "{body}");
    }
    assert_eq!(send(&json!({ "key": key, "tenant_id": stage.acme.id.0 }))?.field(400)?, "tenant_id");
    assert_eq!(send(&json!({ "key": 7 }))?.field(400)?, "key");
    for wrong in ["", "pr_", "no key", &key[..20], &format!("pr_{}_{}", "0".repeat(32), "A".repeat(43))] {
        let refused = send(&json!({ "key": wrong }))?;
        refused.problem(401)?;
        assert_eq!(refused.header("set-cookie"), None, "{wrong}");
    }
    // A session is no key, and a key is no session.
    let cookie = sign_in(&stage, &json!({ "key": key }))?;
    let token = cookie.split_once('=').unwrap_or_default().1;
    stage.get(token, "/whoami")?.problem(401)?;
    send(&json!({ "key": token }))?.problem(401)?;
    for wrong in
        [key.as_str(), "", "prs_", &token[..token.len() - 1], &format!("{token}A"), &token.to_uppercase()]
    {
        whoami(&stage, &format!("postrider_session={wrong}"))?.problem(401)?;
    }
    let twice = format!("{cookie}; {cookie}");
    whoami(&stage, &twice)?.problem(401)?;
    let other = stage.tenant("other").await?;
    let moved = token.replace(&stage.acme.id.0.simple().to_string(), &other.id.0.simple().to_string());
    whoami(&stage, &format!("postrider_session={moved}"))?.problem(401)?;
    assert_eq!(stage.count("select count(*) from tenancy.sessions").await?, 1);
    Ok(())
}

#[tokio::test]
async fn guesses_at_sessions_keys_and_codes_are_limited_per_client() -> anyhow::Result<()> {
    let stage = Stage::with("[api]\ninvalid_keys_per_second = 1\ninvalid_keys_burst = 5\n").await?;
    let random = format!("{}_{}", stage.acme.id.0.simple(), "A".repeat(43));
    for guess in [
        json!({ "key": format!("pr_{random}") }),
        json!({ "code": format!("prc_{random}") }),
        json!({ "cookie": format!("prs_{random}") }),
    ] {
        let send = || match guess["cookie"].as_str() {
            Some(token) => whoami(&stage, &format!("postrider_session={token}")),
            None => stage.call("POST", "/session").json(&guess).send(),
        };
        let mut statuses = Vec::new();
        for _ in 0..40 {
            statuses.push(send()?.status);
        }
        assert!(statuses.iter().all(|status| [401, 429].contains(status)), "{guess}: {statuses:?}");
        assert!(statuses.contains(&429), "{guess}: {statuses:?}");
    }
    Ok(())
}

#[tokio::test]
async fn the_database_has_no_session_key_or_code_that_could_be_used() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let unused = code(&stage, Role::Viewer).await?;
    let cookie = sign_in(&stage, &json!({ "key": stage.acme.admin }))?;
    let token = cookie.split_once('=').unwrap_or_default().1;
    let secrets = [unused.as_str(), token, &stage.acme.admin];
    let tables = "select format('%I.%I', schemaname, tablename) from pg_tables where schemaname not in ('pg_catalog', 'information_schema')";
    for table in texts(&stage.admin, tables).await? {
        let rows = texts(&stage.admin, format!("select to_jsonb(stored)::text from {table} as stored"))
            .await?
            .concat();
        for secret in secrets {
            let random = secret.rsplit('_').next().unwrap_or_default();
            let hex: String = secret.bytes().map(|byte| format!("{byte:02x}")).collect();
            assert!(!rows.contains(random) && !rows.contains(&hex), "{table}");
        }
    }
    // Other programs that read the tables see no hash either.
    for role in ["postrider_app", "postrider_read"] {
        let client = stage.world.client(role).await?;
        for column in ["token_hash from tenancy.sessions", "code_hash from tenancy.login_codes"] {
            assert!(execute(&client, format!("select {column}")).await.is_err(), "{role}: {column}");
        }
    }
    Ok(())
}
