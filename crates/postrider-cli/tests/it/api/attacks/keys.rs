//! Authentication and roles of every operation.

use postrider_model::tenancy::Role;
use postrider_store::{postgres::pool, tenancy::keys};

use serde_json::json;

use super::Duel;
use crate::api::session::{OWN_PAGE, sign_in};

#[tokio::test(flavor = "multi_thread")]
async fn no_operation_lets_anybody_in_without_a_valid_key() -> anyhow::Result<()> {
    let duel = Duel::new().await?;
    let owner = &duel.attacker;
    let mut transaction = pool::begin_as(&duel.stage.admin, owner.tenant.id).await?;
    let (revoked_id, revoked) =
        keys::create(&mut transaction, owner.tenant.id, "revoked", Role::Admin, None, "test").await?;
    let soon = jiff::Timestamp::now() + jiff::SignedDuration::from_hours(1);
    let (_, expired) =
        keys::create(&mut transaction, owner.tenant.id, "expired", Role::Admin, Some(soon), "test").await?;
    keys::revoke(&mut transaction, owner.tenant.id, revoked_id, "test").await?;
    pool::commit(transaction).await?;
    sqlx::query(
        "update tenancy.api_keys set expires_at = now() - interval '1 second' where name = 'expired'",
    )
    .execute(&duel.stage.admin)
    .await?;

    let valid = &owner.tenant.admin;
    // Of the same tenant, and of another one.
    let (prefix, random) = valid.split_at("pr_".len() + 32 + 1);
    let wrong = format!("{prefix}{}", "A".repeat(random.len()));
    let moved = format!("pr_{}_{random}", duel.victim.tenant.id.0.simple());
    let bearer = |key: &str| vec![format!("Bearer {key}")];
    let headers = [
        ("no key", vec![]),
        ("an empty key", bearer("")),
        ("a wrong key", bearer(&wrong)),
        ("a key that names another tenant", bearer(&moved)),
        ("half a key", bearer(&valid[..20])),
        ("a revoked key", bearer(revoked.expose())),
        ("an expired key", bearer(expired.expose())),
        ("another scheme", vec![format!("Basic {valid}")]),
        ("two keys", vec![format!("Bearer {valid}"), format!("Bearer {valid}")]),
    ];
    let before = duel.census().await?;
    for operation in &duel.operations {
        if operation.role().is_none() {
            continue;
        }
        for (what, given) in &headers {
            let mut call = duel.call(operation, owner, owner.named(operation.attack.names));
            for value in given {
                call = call.header("authorization", value);
            }
            let reply = call.header("x-api-key", valid).header("cookie", &format!("key={valid}")).send()?;
            assert_eq!(reply.status, 401, "{operation} with {what}: {}", reply.text());
            reply.problem(401)?;
            assert_eq!(reply.header("www-authenticate"), Some("Bearer"), "{operation} with {what}");
        }
        duel.unchanged(&before, &operation.to_string()).await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn no_operation_does_anything_for_a_role_below_the_one_it_needs() -> anyhow::Result<()> {
    let duel = Duel::new().await?;
    let owner = &duel.attacker;
    let before = duel.census().await?;
    for operation in &duel.operations {
        let Some(needed) = operation.role() else { continue };
        for role in Role::ALL.into_iter().filter(|role| *role < needed) {
            let call =
                duel.call(operation, owner, owner.named(operation.attack.names)).key(owner.secret(role));
            let reply =
                if operation.method == "POST" { call.idempotency_key("mine").send()? } else { call.send()? };
            assert_eq!(reply.status, 403, "{operation} as {role}: {}", reply.text());
            assert_eq!(reply.problem(403)?["needed_role"], needed.as_str(), "{operation} as {role}");
        }
        duel.unchanged(&before, &operation.to_string()).await?;
    }
    Ok(())
}

/// Headers that a browser adds to a request which another site makes it send.
const FOREIGN: &[(&str, &[(&str, &str)])] = &[
    ("another site", &[("sec-fetch-site", "cross-site"), ("origin", "https://evil.example")]),
    ("another host of the site", &[("sec-fetch-site", "same-site"), ("origin", "http://127.0.0.1:1")]),
    ("an old browser on another site", &[("origin", "https://evil.example")]),
    ("a page without an origin", &[("origin", "null")]),
];

#[tokio::test(flavor = "multi_thread")]
async fn no_operation_does_anything_for_a_session_whose_request_another_site_makes() -> anyhow::Result<()> {
    let duel = Duel::new().await?;
    let owner = &duel.attacker;
    let cookie = sign_in(&duel.stage, &json!({ "key": owner.tenant.admin }))?;
    let bearer = format!("Bearer {}", owner.tenant.admin);
    let before = duel.census().await?;
    for operation in &duel.operations {
        if operation.role().is_none() {
            continue;
        }
        let send = |headers: &[(&str, &str)]| {
            let call =
                duel.call(operation, owner, owner.named(operation.attack.names)).header("cookie", &cookie);
            headers.iter().fold(call, |call, (name, value)| call.header(name, value)).send()
        };
        let is_invocation = operation.attack.operation == "invoke_function";
        for (what, headers) in FOREIGN {
            let reply = send(headers)?;
            // Every page may invoke functions, by a key; the cookie does not count there.
            let expected = if is_invocation { 401 } else { 403 };
            assert_eq!(reply.status, expected, "{operation} from {what}: {}", reply.text());
            let problem = reply.problem(expected)?;
            assert!(problem.get("needed_role").is_none(), "{operation} from {what}: {problem}");
            if !is_invocation {
                let both = [headers, &[("authorization", bearer.as_str())][..]].concat();
                assert_eq!(send(&both)?.status, 401, "{operation} from {what} with a key, too");
            }
        }
        if operation.method != "GET" {
            let expected = if is_invocation { 401 } else { 403 };
            assert_eq!(send(&[])?.status, expected, "{operation} without a word about its page");
        }
        let both = send(&[OWN_PAGE, ("authorization", &bearer)])?;
        assert_eq!(both.status, 401, "{operation} with a session and a key: {}", both.text());
        duel.unchanged(&before, &operation.to_string()).await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_may_do_what_its_key_may_and_no_more() -> anyhow::Result<()> {
    let duel = Duel::new().await?;
    let owner = &duel.attacker;
    let mut cookies = Vec::new();
    for role in Role::ALL {
        cookies.push((role, sign_in(&duel.stage, &json!({ "key": owner.secret(role) }))?));
    }
    let before = duel.census().await?;
    for operation in &duel.operations {
        let Some(needed) = operation.role() else { continue };
        for (role, cookie) in cookies.iter().filter(|(role, _)| *role < needed) {
            let call = duel.call(operation, owner, owner.named(operation.attack.names));
            let reply = call.header("cookie", cookie).header(OWN_PAGE.0, OWN_PAGE.1).send()?;
            assert_eq!(reply.problem(403)?["needed_role"], needed.as_str(), "{operation} as {role}");
        }
        duel.unchanged(&before, &operation.to_string()).await?;
    }
    // Every session is let in where its role is enough.
    for (role, cookie) in &cookies {
        let reply = duel.stage.call("GET", "/whoami").header("cookie", cookie).header(OWN_PAGE.0, OWN_PAGE.1);
        assert_eq!(reply.send()?.expect(200)?["role"], role.as_str());
    }
    Ok(())
}
