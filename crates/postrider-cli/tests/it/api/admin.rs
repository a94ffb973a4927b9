//! Keys, provider accounts, events and the audit log.

use serde_json::json;

use super::Stage;

#[tokio::test]
async fn a_key_is_made_used_listed_and_revoked() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let admin = &stage.acme.admin;
    let new = json!({ "name": "desk", "role": "operator", "expires_at": "2099-01-01T00:00:00Z" });
    let made = stage.post(admin, "/keys", &new)?.expect(201)?;
    let (id, secret) = (made["id"].as_str().unwrap_or_default(), made["secret"].as_str().unwrap_or_default());
    let who = stage.get(secret, "/whoami")?.expect(200)?;
    assert_eq!((who["key_id"].as_str(), who["role"].as_str()), (Some(id), Some("operator")));

    let listed = stage.get(admin, "/keys")?;
    assert!(!listed.text().contains(secret) && !listed.text().contains("hash"), "{}", listed.text());
    let listed = listed.expect(200)?;
    let key = listed["items"]
        .as_array()
        .into_iter()
        .flatten()
        .find(|key| key["id"] == id)
        .cloned()
        .unwrap_or_default();
    assert_eq!(
        (&key["name"], &key["role"], &key["revoked_at"]),
        (&json!("desk"), &json!("operator"), &json!(null))
    );

    for _ in 0..2 {
        stage.call("DELETE", &format!("/keys/{id}")).key(admin).send()?.expect(204)?;
    }
    stage.get(secret, "/whoami")?.problem(401)?;
    let audit = stage.get(admin, "/audit")?.expect(200)?;
    let who = stage.get(admin, "/whoami")?.expect(200)?["key_id"].as_str().unwrap_or_default().to_owned();
    let lines: Vec<_> = audit["items"]
        .as_array()
        .into_iter()
        .flatten()
        .filter(|line| line["subject"] == format!("key:{id}"))
        .collect();
    assert_eq!(lines.len(), 2, "revoking twice is the same as once: {audit}");
    assert_eq!(
        (&lines[0]["action"], &lines[0]["actor"]),
        (&json!("key.revoked"), &json!(format!("key:{who}")))
    );
    assert_eq!(lines[1]["action"], "key.created");
    Ok(())
}

#[tokio::test]
async fn a_key_that_makes_no_sense_is_refused() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let admin = &stage.acme.admin;
    for (body, status) in [
        (json!({ "name": "n" }), 400),
        (json!({ "name": "n", "role": "root" }), 400),
        (json!({ "name": "n", "role": ["admin"] }), 400),
        (json!({ "name": "n", "role": "viewer", "expires_at": "tomorrow" }), 400),
        (json!({ "name": "n", "role": "viewer", "expires_at": "2001-01-01T00:00:00Z" }), 422),
        (json!({ "name": " ", "role": "viewer" }), 422),
        (json!({ "name": "n".repeat(256), "role": "viewer" }), 422),
    ] {
        stage
            .post(admin, "/keys", &body)?
            .problem(status)
            .map_err(|error| error.context(body.to_string()))?;
    }
    assert_eq!(stage.count("select count(*) from tenancy.api_keys").await?, 3);
    Ok(())
}

#[tokio::test]
async fn an_account_is_added_limited_rotated_and_removed_and_its_secret_never_comes_out() -> anyhow::Result<()>
{
    let stage = Stage::new().await?;
    let admin = &stage.acme.admin;
    let new = json!({
        "name": "mail", "provider": "sim", "settings": { "url": "https://sim.example" }, "secret": "canary-1",
        "limits": { "rate_per_second": 10 },
    });
    let made = stage.post(admin, "/provider-accounts", &new)?;
    let id = made.expect(201)?["id"].as_str().unwrap_or_default().to_owned();
    let path = format!("/provider-accounts/{id}");
    let limited = stage.call("PATCH", &path).key(admin).json(&json!({ "limits": { "daily": 5 } })).send()?;
    assert_eq!(limited.expect(200)?["limits"], json!({ "daily": 5 }));
    let rotated = stage
        .call("PUT", &format!("{path}/secret"))
        .key(admin)
        .json(&json!({ "secret": "canary-2" }))
        .send()?;
    rotated.expect(204)?;
    let shown = stage.get(&stage.acme.viewer, &path)?;
    assert_eq!(shown.expect(200)?["state"]["circuit"], "closed");
    let listed = stage.get(&stage.acme.viewer, "/provider-accounts")?;
    let audit = stage.get(admin, "/audit")?;
    for reply in [&made, &limited, &rotated, &shown, &listed, &audit] {
        assert!(!reply.text().contains("canary") && !reply.text().contains("sealed"), "{}", reply.text());
    }
    assert!(!stage.server.process.lines().join("\n").contains("canary"));
    let again = stage.post(admin, "/provider-accounts", &new)?.problem(409)?;
    assert!(again["detail"].as_str().unwrap_or_default().contains("exists already"), "{again}");
    stage.call("DELETE", &path).key(admin).send()?.expect(204)?;
    stage.get(admin, &path)?.problem(404)?;
    stage.call("DELETE", &path).key(admin).send()?.problem(404)?;
    Ok(())
}

#[tokio::test]
async fn an_account_that_cannot_work_is_refused_as_at_the_command_line() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let admin = &stage.acme.admin;
    let whsec = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    let long = format!("https://a.example/{}", "x".repeat(2048));
    for (body, status, field) in [
        (json!({ "name": "a", "provider": "pigeon" }), 422, "provider"),
        (json!({ "name": "a", "provider": "sim", "settings": { "wings": 2 } }), 422, "settings"),
        (json!({ "name": "a", "provider": "sim", "settings": [] }), 400, "settings"),
        (
            json!({ "name": "a", "provider": "webhook", "settings": { "url": "https://a.example/\r\nx" }, "secret": whsec }),
            422,
            "settings",
        ),
        (
            json!({ "name": "a", "provider": "webhook", "settings": { "url": long }, "secret": whsec }),
            422,
            "settings",
        ),
        (
            json!({ "name": "a", "provider": "sim", "settings": { "url": "https://sim.example" }, "limits": { "daily": 0 } }),
            400,
            "limits",
        ),
        (
            json!({ "name": "a", "provider": "sim", "settings": { "url": "https://sim.example" }, "limits": 7 }),
            400,
            "limits",
        ),
        (json!({ "provider": "sim" }), 400, ""),
    ] {
        let reply = stage.post(admin, "/provider-accounts", &body)?;
        assert_eq!(reply.field(status).map_err(|error| error.context(body.to_string()))?, field, "{body}");
    }
    let unknown = stage.post(admin, "/provider-accounts", &json!({ "name": "a", "provider": "pigeon" }))?;
    assert!(unknown.text().contains("this version knows"), "{}", unknown.text());
    assert_eq!(stage.count("select count(*) from tenancy.provider_accounts").await?, 0);
    Ok(())
}

#[tokio::test]
async fn an_event_is_published_and_retried() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let (operator, viewer) = (&stage.acme.operator, &stage.acme.viewer);
    let event = json!({ "aggregate_type": "order", "aggregate_id": "1", "event_type": "order.placed", "payload": { "total": 12 } });
    let id = stage.post(operator, "/events", &event)?.expect(201)?["id"].clone();
    let page = stage.get(viewer, "/events")?.expect(200)?;
    let shown = &page["items"][0];
    assert_eq!(
        (&shown["id"], &shown["state"], &shown["payload"]),
        (&id, &json!("pending"), &json!({ "total": 12 }))
    );

    sqlx::query("update m10_recovery.outbox set process_after = now() + interval '1 hour', retry_count = 3")
        .execute(&stage.admin)
        .await?;
    let retry = || stage.call("POST", &format!("/events/{id}/retry")).key(operator).send();
    retry()?.expect(204)?;
    assert_eq!(
        stage.count("select count(*) from m10_recovery.outbox where process_after <= now()").await?,
        1
    );
    sqlx::query("update m10_recovery.outbox set claimed_at = now(), claimed_by = 'r'")
        .execute(&stage.admin)
        .await?;
    assert_eq!(retry()?.problem(409)?["current_state"], "claimed");
    sqlx::query("update m10_recovery.outbox set processed_at = now()").execute(&stage.admin).await?;
    assert_eq!(retry()?.problem(409)?["current_state"], "processed");
    for unknown in ["999", "x", "-1", "99999999999999999999"] {
        stage.call("POST", &format!("/events/{unknown}/retry")).key(operator).send()?.problem(404)?;
    }
    Ok(())
}

#[tokio::test]
async fn the_audit_log_has_two_parts() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let other = stage.tenant("other").await?;
    for (tenant, action) in [(stage.acme.id, "run.deployed"), (other.id, "theirs")] {
        sqlx::query("insert into execution.campaign_audit_log (tenant_id, campaign_id, run_id, actor, action) values ($1, $1, $1, 'w', $2)")
            .bind(tenant.0)
            .bind(action)
            .execute(&stage.admin)
            .await?;
    }
    let admin = &stage.acme.admin;
    let run = stage.acme.id.0;
    for query in [
        "source=campaigns".to_owned(),
        format!("source=campaigns&run_id={run}"),
        format!("source=campaigns&campaign_id={run}"),
    ] {
        let page = stage.get(admin, &format!("/audit?{query}"))?.expect(200)?;
        let items = page["items"].as_array().cloned().unwrap_or_default();
        assert_eq!(items.len(), 1, "{query}: {page}");
        assert_eq!(
            (&items[0]["action"], &items[0]["subject"]),
            (&json!("run.deployed"), &json!(format!("run:{run}")))
        );
    }
    assert_eq!(stage.get(admin, &format!("/audit?run_id={run}"))?.field(400)?, "source");
    assert_eq!(stage.get(admin, "/audit?source=all")?.field(400)?, "source");
    assert_eq!(stage.get(admin, "/audit?run_id=7")?.field(400)?, "run_id");
    Ok(())
}
