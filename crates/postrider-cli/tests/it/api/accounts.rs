//! New versions of accounts, and retired accounts, over HTTP.

use serde_json::{Value, json};

use super::{
    Stage,
    attacks::census,
    material::{asset, id, leads, one_phase},
};

fn account(stage: &Stage) -> anyhow::Result<String> {
    let new = json!({ "name": "mail", "provider": "sim", "settings": { "url": "https://sim.example" }, "secret": "canary-1" });
    id(&stage.post(&stage.acme.admin, "/provider-accounts", &new)?.expect(201)?)
}

#[tokio::test(flavor = "multi_thread")]
async fn settings_change_by_a_new_version() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let path = format!("/provider-accounts/{}", account(&stage)?);
    let patch = |key: &str, body: &Value| stage.call("PATCH", &path).key(key).json(body).send();
    let admin = &stage.acme.admin;
    assert_eq!(stage.get(&stage.acme.viewer, &path)?.expect(200)?["version"], 1);
    let changed = patch(admin, &json!({ "settings": { "url": "https://other.example" } }))?;
    assert_eq!(changed.expect(200)?["version"], 2);
    assert_eq!(changed.expect(200)?["settings"], json!({ "url": "https://other.example" }));
    assert_eq!(
        patch(admin, &json!({ "settings": { "url": "https://other.example" } }))?.expect(200)?["version"],
        2
    );
    let both = json!({ "settings": { "url": "https://third.example" }, "secret": "canary-2", "limits": { "daily": 5 } });
    let both = patch(admin, &both)?;
    assert_eq!(
        (&both.expect(200)?["version"], &both.expect(200)?["limits"]),
        (&json!(3), &json!({ "daily": 5 }))
    );
    assert!(!both.text().contains("canary"), "{}", both.text());

    let beta = stage.tenant("beta").await?;
    let before = census(&stage.admin).await?;
    for (body, status, field) in [
        (json!({}), 422, "limits"),
        (json!({ "secret": "alone" }), 422, "secret"),
        (json!({ "limits": {}, "secret": "beside" }), 422, "secret"),
        (json!({ "settings": { "wings": 2 } }), 422, "settings"),
        (json!({ "settings": [] }), 400, "settings"),
        (json!({ "limits": { "daily": 0 } }), 400, "limits"),
        (json!({ "retired": "yes" }), 400, "retired"),
        (json!({ "name": "other" }), 400, "name"),
    ] {
        assert_eq!(patch(admin, &body)?.field(status)?, field, "{body}");
    }
    let change = json!({ "settings": { "url": "https://evil.example" }, "retired": true });
    for key in [&stage.acme.viewer, &stage.acme.operator] {
        patch(key, &change)?.problem(403)?;
    }
    patch(&beta.admin, &change)?.problem(404)?;
    assert_eq!(census(&stage.admin).await?, before);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn no_campaign_names_a_retired_account() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let path = format!("/provider-accounts/{}", account(&stage)?);
    let patch = |body: &Value| stage.call("PATCH", &path).key(&stage.acme.admin).json(body).send();
    leads(&stage, &stage.acme, "people", 3)?;
    let asset = asset(&stage, &stage.acme, "spring")?;
    let spring = one_phase("spring", &asset, "people");
    let made = id(&stage.post(&stage.acme.operator, "/campaigns", &spring)?.expect(201)?)?;
    let retired = patch(&json!({ "retired": true }))?.expect(200)?;
    assert!(retired["retired_at"].is_string(), "{retired}");
    assert_eq!(patch(&json!({ "retired": true }))?.expect(200)?["retired_at"], retired["retired_at"]);

    let summer = one_phase("summer", &asset, "people");
    let refused = stage.post(&stage.acme.operator, "/campaigns", &summer)?;
    assert_eq!(refused.field(422)?, "phases[0].provider_account");
    assert!(refused.text().contains("account `mail` is retired"), "{}", refused.text());
    let found = stage.post(&stage.acme.operator, "/campaigns/check", &summer)?.expect(200)?;
    assert_eq!(found["errors"][0]["field"], "phases[0].provider_account");
    let start =
        || stage.post(&stage.acme.operator, &format!("/campaigns/{made}/phases/mail/start"), &json!({}));
    let refused = start()?;
    assert!(refused.status == 422 && refused.text().contains("is retired"), "{}", refused.text());
    patch(&json!({ "retired": false }))?.expect(200)?;
    start()?.expect(200)?;
    Ok(())
}
