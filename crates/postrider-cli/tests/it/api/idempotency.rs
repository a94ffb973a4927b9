//! `Idempotency-Key`: a request that is repeated is done once.

use std::collections::BTreeMap;

use postrider_store::{postgres::pool, tenancy::requests};
use serde_json::{Value, json};

use super::{Call, Stage, Tenant};

fn event(id: &str) -> Value {
    json!({ "aggregate_type": "order", "aggregate_id": id, "event_type": "order.placed", "payload": { "n": 1 } })
}

fn publish(stage: &Stage, tenant: &Tenant, key: &str, body: &Value) -> Call {
    stage.call("POST", "/events").key(&tenant.operator).idempotency_key(key).json(body)
}

const EVENTS: &str = "select count(*) from m10_recovery.outbox";
const KEYS: &str = "select count(*) from tenancy.requests";

#[tokio::test]
async fn the_same_request_again_gets_the_same_answer_and_does_nothing() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let first = publish(&stage, &stage.acme, "k", &event("1")).send()?;
    first.expect(201)?;
    assert_eq!(first.header("idempotent-replayed"), None);
    for _ in 0..3 {
        let again = publish(&stage, &stage.acme, "k", &event("1")).send()?;
        again.expect(201)?;
        assert_eq!(again.body, first.body, "to the letter");
        assert_eq!(again.header("idempotent-replayed"), Some("true"));
        assert_eq!(again.header("content-type"), Some("application/json"));
    }
    assert_eq!(stage.count(EVENTS).await?, 1);
    // Another key, and none at all, are other requests.
    publish(&stage, &stage.acme, "k2", &event("1")).send()?.expect(201)?;
    stage.post(&stage.acme.operator, "/events", &event("1"))?.expect(201)?;
    assert_eq!((stage.count(EVENTS).await?, stage.count(KEYS).await?), (3, 2));
    Ok(())
}

#[tokio::test]
async fn a_key_belongs_to_one_request_of_one_tenant() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let other = stage.tenant("other").await?;
    publish(&stage, &stage.acme, "k", &event("1")).send()?.expect(201)?;
    let another_body = publish(&stage, &stage.acme, "k", &event("2")).send()?;
    assert_eq!(another_body.field(422)?, "Idempotency-Key");
    let key = json!({ "name": "n", "role": "viewer" });
    let another_path =
        stage.call("POST", "/keys").key(&stage.acme.admin).idempotency_key("k").json(&key).send()?;
    assert_eq!(another_path.field(422)?, "Idempotency-Key");
    let theirs = publish(&stage, &other, "k", &event("1")).send()?;
    theirs.expect(201)?;
    assert_eq!(theirs.header("idempotent-replayed"), None);
    assert_eq!((stage.count(EVENTS).await?, stage.count(KEYS).await?), (2, 2));
    // Another key of the same tenant may repeat it, because keys are replaced; one without the right may not.
    let call =
        |key: &str| stage.call("POST", "/events").key(key).idempotency_key("k").json(&event("1")).send();
    assert_eq!(call(&stage.acme.admin)?.header("idempotent-replayed"), Some("true"));
    call(&stage.acme.viewer)?.problem(403)?;
    Ok(())
}

#[tokio::test]
async fn thirty_two_identical_requests_at_once_make_one_thing() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let calls: Vec<_> = (0..32)
        .map(|_| {
            let call = publish(&stage, &stage.acme, "k", &event("1"));
            std::thread::spawn(move || call.send())
        })
        .collect();
    let mut seen = BTreeMap::new();
    let mut bodies = Vec::new();
    for call in calls {
        let reply = call.join().map_err(|_| anyhow::anyhow!("a thread panicked"))??;
        *seen.entry(reply.status).or_insert(0) += 1;
        if reply.status == 201 {
            bodies.push(reply.body);
        }
    }
    assert_eq!(stage.count(EVENTS).await?, 1, "{seen:?}");
    assert!(seen.keys().all(|status| [201, 409].contains(status)), "{seen:?}");
    bodies.dedup();
    assert_eq!(bodies.len(), 1);
    Ok(())
}

#[tokio::test]
async fn a_request_in_progress_is_not_waited_for() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    // Another client holds the key in an open transaction.
    let app = stage.world.pool("postrider_app").await?;
    let mut held = pool::begin_as(&app, stage.acme.id).await?;
    assert_eq!(requests::begin(&mut held, stage.acme.id, "k", &[7; 32]).await?, requests::Found::Nothing);

    let problem = publish(&stage, &stage.acme, "k", &event("1")).send()?.problem(409)?;
    assert!(problem["detail"].as_str().unwrap_or_default().contains("in progress"), "{problem}");
    assert_eq!(stage.count(EVENTS).await?, 0);
    // It dies. Nothing of it is there, and the key is free.
    drop(held);
    app.close().await;
    assert_eq!(stage.count(KEYS).await?, 0);
    let reply = publish(&stage, &stage.acme, "k", &event("1")).send()?;
    reply.expect(201)?;
    assert_eq!(reply.header("idempotent-replayed"), None);
    Ok(())
}

#[tokio::test]
async fn a_request_that_fails_leaves_its_key_free_and_nothing_else() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let mut large = event("1");
    large["payload"] = json!("x".repeat(300_000));
    publish(&stage, &stage.acme, "k", &large).send()?.problem(422)?;
    assert_eq!((stage.count(EVENTS).await?, stage.count(KEYS).await?), (0, 0));

    // The answer cannot be recorded: the work is undone with it.
    sqlx::raw_sql(
        "create function public.fail() returns trigger language plpgsql as $$ begin raise exception 'canary'; end $$;
         create trigger fail before update on tenancy.requests for each row execute function public.fail();",
    )
    .execute(&stage.admin)
    .await?;
    let problem = publish(&stage, &stage.acme, "k", &event("1")).send()?.problem(500)?;
    let words = problem.to_string();
    assert!(
        !words.contains("canary") && !words.contains("request's answer"),
        "the inside stays inside: {words}"
    );
    let id = problem["request_id"].as_str().unwrap_or_default().to_owned();
    let logged = stage.server.process.wait_for_line("a request failed")?;
    assert!(
        logged.contains("canary") && logged.contains(&id),
        "the log has the reason under the request's id: {logged}"
    );
    assert_eq!((stage.count(EVENTS).await?, stage.count(KEYS).await?), (0, 0));
    sqlx::raw_sql("drop trigger fail on tenancy.requests").execute(&stage.admin).await?;
    publish(&stage, &stage.acme, "k", &event("1")).send()?.expect(201)?;
    Ok(())
}

#[tokio::test]
async fn a_secret_is_shown_once_and_kept_nowhere() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let key = json!({ "name": "n", "role": "viewer" });
    let call = || stage.call("POST", "/keys").key(&stage.acme.admin).idempotency_key("k").json(&key).send();
    let made = call()?.expect(201)?;
    let problem = call()?.problem(409)?;
    assert_eq!(problem["location"], format!("/api/v2/keys/{}", made["id"].as_str().unwrap_or_default()));
    assert!(problem["detail"].as_str().unwrap_or_default().contains("secret"), "{problem}");
    let stored: String =
        sqlx::query_scalar("select requests::text from tenancy.requests").fetch_one(&stage.admin).await?;
    let secret = made["secret"].as_str().unwrap_or_default();
    assert!(!secret.is_empty() && !stored.contains(&secret[3..]), "{stored}");
    assert_eq!(stage.count("select count(*) from tenancy.api_keys where name = 'n'").await?, 1);

    // The secret of an account goes in, and its hash alone would let somebody guess it.
    let account = json!({ "name": "a", "provider": "sim", "settings": { "url": "https://sim.example" }, "secret": "hunter2" });
    let call = || {
        stage.call("POST", "/provider-accounts").key(&stage.acme.admin).idempotency_key("a").json(&account)
    };
    let made = call().send()?;
    made.expect(201)?;
    assert!(!made.text().contains("hunter2"));
    assert_eq!(call().send()?.body, made.body);
    let plain = requests_hash(&account);
    let found: i64 = sqlx::query_scalar("select count(*) from tenancy.requests where fingerprint = $1")
        .bind(plain)
        .fetch_one(&stage.admin)
        .await?;
    assert_eq!(found, 0);
    Ok(())
}

/// The hash that would identify a request if its body contained no secret.
fn requests_hash(body: &Value) -> Vec<u8> {
    use sha2::{Digest, Sha256};

    let mut hash = Sha256::new();
    for part in ["POST", "/api/v2/provider-accounts"] {
        hash.update(part.len().to_be_bytes());
        hash.update(part);
    }
    hash.update(body.to_string());
    hash.finalize().to_vec()
}

#[tokio::test]
async fn a_key_is_text_of_a_sane_length() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    for wrong in ["", &"k".repeat(256), "caf\u{e9}", "a\tb"] {
        let reply = publish(&stage, &stage.acme, wrong, &event("1")).send()?;
        assert_eq!(reply.field(400).map_err(|error| error.context(wrong.to_owned()))?, "Idempotency-Key");
    }
    let twice = publish(&stage, &stage.acme, "a", &event("1")).idempotency_key("b").send()?;
    assert_eq!(twice.field(400)?, "Idempotency-Key");
    assert_eq!(stage.count(EVENTS).await?, 0);
    publish(&stage, &stage.acme, &"k".repeat(255), &event("1")).send()?.expect(201)?;
    publish(&stage, &stage.acme, "' or 1=1; --", &event("1")).send()?.expect(201)?;
    Ok(())
}

#[tokio::test]
async fn a_key_is_forgotten_after_a_day() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    for key in ["old", "older", "new"] {
        publish(&stage, &stage.acme, key, &event("1")).send()?.expect(201)?;
    }
    let age = "update tenancy.requests set created_at = now() - interval '24 hours 1 second' where idempotency_key like 'old%'";
    // A stored answer never changes, not even by the owner of the table; only a test makes time pass.
    let refused = sqlx::query(age).execute(&stage.admin).await;
    assert!(refused.is_err());
    sqlx::raw_sql("alter table tenancy.requests disable trigger requests_answered_once")
        .execute(&stage.admin)
        .await?;
    sqlx::query(age).execute(&stage.admin).await?;
    sqlx::raw_sql("alter table tenancy.requests enable trigger requests_answered_once")
        .execute(&stage.admin)
        .await?;

    let again = publish(&stage, &stage.acme, "old", &event("2")).send()?;
    again.expect(201)?;
    assert_eq!(again.header("idempotent-replayed"), None, "it is a new request");
    let worker = stage.world.pool("postrider_worker").await?;
    let never = tokio_util::sync::CancellationToken::new();
    assert_eq!(postrider_engine::sweep_requests(&worker, &never).await?, 1);
    assert_eq!(stage.count(KEYS).await?, 2);
    let kept = publish(&stage, &stage.acme, "new", &event("1")).send()?;
    assert_eq!(kept.header("idempotent-replayed"), Some("true"));
    Ok(())
}

#[tokio::test]
async fn only_functions_write_requests() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    publish(&stage, &stage.acme, "k", &event("1")).send()?.expect(201)?;
    for role in ["postrider_app", "postrider_worker", "postrider_read"] {
        let client = stage.world.client(role).await?;
        for sql in [
            "delete from tenancy.requests",
            "update tenancy.requests set body = ''",
            "insert into tenancy.requests (tenant_id, idempotency_key, fingerprint) values (gen_random_uuid(), 'k', '')",
            "select body from tenancy.requests",
        ] {
            let refused = sqlx::query(sql).execute(&client).await.err();
            let code = refused.and_then(|error| {
                error.as_database_error().and_then(|e| e.code().map(std::borrow::Cow::into_owned))
            });
            assert_eq!(code.as_deref(), Some("42501"), "{role}: {sql}");
        }
    }
    Ok(())
}
