//! Campaigns: create, list, look.

use serde_json::{Value, json};

use super::{
    Stage,
    material::{UNKNOWN, account, assert_same_404, asset, column, id, leads, one_phase, walk},
};

#[tokio::test(flavor = "multi_thread")]
async fn a_campaign_is_made_whole_and_once() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    account(&stage, &stage.acme).await?;
    leads(&stage, &stage.acme, "customers", 2)?;
    let asset = asset(&stage, &stage.acme, "news")?;
    let body = json!({
        "name": "spring",
        "auto_advance": false,
        "phases": [
            { "phase": "mail", "kind": "delivery", "channel": "email", "asset_id": asset, "list": "customers",
              "provider_account": "mail", "failure_tolerance": 0.5, "scheduled_for": "2130-03-01T10:00:00+01:00",
              "quiet_time_seconds": 90 },
            { "phase": "print", "kind": "external" },
        ],
    });
    let create = || {
        let call = stage.call("POST", "/campaigns").key(&stage.acme.operator).idempotency_key("spring");
        call.json(&body).send()
    };
    let (made, again) = (create()?, create()?);
    let made = made.expect(201)?;
    assert_eq!((again.expect(201)?, again.header("idempotent-replayed")), (made.clone(), Some("true")));
    assert_eq!((&made["name"], &made["auto_advance"]), (&json!("spring"), &json!(false)));
    let phase = &made["phases"][0];
    for (member, expected) in [
        ("phase", json!("mail")),
        ("kind", json!("delivery")),
        ("status", json!("not_started")),
        ("channel", json!("email")),
        ("asset_id", json!(asset)),
        ("asset", json!("news@1")),
        ("list", json!("customers")),
        ("provider_account", json!("mail")),
        ("failover_account", Value::Null),
        ("failure_tolerance", json!(0.5)),
        ("scheduled_for", json!("2130-03-01T09:00:00Z")),
        ("quiet_time_seconds", json!(90.0)),
        ("run_id", Value::Null),
    ] {
        assert_eq!(phase[member], expected, "{member}");
    }
    assert_eq!(made["phases"][1]["kind"], "external");
    assert_eq!(stage.get(&stage.acme.viewer, &format!("/campaigns/{}", id(&made)?))?.expect(200)?, made);
    let listed = stage.get(&stage.acme.viewer, "/campaigns")?.expect(200)?;
    assert_eq!(
        listed["items"][0]["phases"][1],
        json!({ "phase": "print", "kind": "external", "channel": null, "status": "not_started", "progress_percentage": 0.0 })
    );

    // Without the key it is another request, for a name that is taken.
    let taken = stage.post(&stage.acme.operator, "/campaigns", &body)?.problem(409)?;
    assert!(taken["detail"].to_string().contains("`spring` exists already"), "{taken}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mistake_is_named_with_its_field() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    account(&stage, &stage.acme).await?;
    leads(&stage, &stage.acme, "customers", 1)?;
    let asset_id = asset(&stage, &stage.acme, "news")?;
    let voice = json!({ "name": "call", "channel": "voice", "content": { "script": "Hello." } });
    let voice = id(&stage.post(&stage.acme.operator, "/assets", &voice)?.expect(201)?)?;
    let beta = stage.tenant("beta").await?;
    let theirs = asset(&stage, &beta, "news")?;
    let good = one_phase("spring", &asset_id, "customers");
    let phase = |member: &str, value: Value| {
        let mut body = good.clone();
        body["phases"][0][member] = value;
        body
    };
    let campaign = |member: &str, value: Value| {
        let mut body = good.clone();
        body[member] = value;
        body
    };
    let two = json!([good["phases"][0], good["phases"][0]]);
    for (body, status, field, says) in [
        (campaign("name", json!(" ")), 422, "name", "1 to 255 bytes"),
        (campaign("name", json!(7)), 400, "name", "expected a string"),
        (campaign("phases", json!([])), 422, "phases", "between 1 and 100 phases, not 0"),
        (campaign("phases", two), 422, "phases[1].phase", "two phases are called `mail`"),
        (campaign("status", json!("running")), 400, "status", "unknown field"),
        (campaign("tenant_id", json!(beta.id.0)), 400, "tenant_id", "unknown field"),
        (campaign("workspace_id", json!(beta.workspace_id.0)), 422, "workspace_id", "no such workspace"),
        (phase("phase", json!("First mail")), 422, "phases[0].phase", "is not a name for a phase"),
        (phase("status", json!("completed")), 400, "phases[0].status", "unknown field"),
        (phase("kind", json!("magic")), 400, "phases[0].kind", "unknown variant"),
        (phase("kind", json!("external")), 422, "phases[0].asset_id", "does not belong here"),
        (phase("channel", json!("fax")), 400, "phases[0].channel", "unknown variant"),
        (phase("channel", Value::Null), 422, "phases[0].channel", "is missing"),
        (phase("asset_id", Value::Null), 422, "phases[0].asset_id", "is missing"),
        (phase("asset_id", json!(UNKNOWN)), 422, "phases[0].asset_id", "there is no asset"),
        (phase("asset_id", json!(theirs)), 422, "phases[0].asset_id", "there is no asset"),
        (phase("asset_id", json!(voice)), 422, "phases[0].asset_id", "is for channel voice"),
        (phase("asset_id", json!("7")), 400, "phases[0].asset_id", "UUID"),
        (phase("list", json!("nobody")), 422, "phases[0].list", "there is no list `nobody`"),
        (phase("list", Value::Null), 422, "phases[0].list", "is missing"),
        (phase("provider_account", json!("post")), 422, "phases[0].provider_account", "the tenant has mail"),
        (
            phase("failover_account", json!("post")),
            422,
            "phases[0].failover_account",
            "no provider account `post`",
        ),
        (phase("failover_account", json!("mail")), 422, "phases[0].failover_account", "uses anyway"),
        (phase("failure_tolerance", json!(1.5)), 422, "phases[0].failure_tolerance", "between 0 and 1"),
        (
            phase("scheduled_for", json!("2020-03-01T09:00:00Z")),
            422,
            "phases[0].scheduled_for",
            "in the past",
        ),
        (
            phase("scheduled_for", json!("9999-03-01T09:00:00Z")),
            422,
            "phases[0].scheduled_for",
            "too far ahead",
        ),
        (
            phase("scheduled_for", json!("tomorrow")),
            400,
            "phases[0].scheduled_for",
            "`tomorrow` is not a time; write one with its offset",
        ),
        (phase("quiet_time_seconds", json!(0)), 422, "phases[0].quiet_time_seconds", "at least 1"),
        (phase("quiet_time_seconds", json!(-1)), 400, "phases[0].quiet_time_seconds", "invalid value"),
    ] {
        let reply = stage.post(&stage.acme.operator, "/campaigns", &body)?;
        assert_eq!(reply.field(status)?, field, "{body}: {}", reply.text());
        assert!(reply.text().contains(says), "{body}: {}", reply.text());
    }
    stage.post(&stage.acme.viewer, "/campaigns", &good)?.problem(403)?;
    assert_eq!(stage.count("select count(*) from execution.campaigns").await?, 0);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_walk_shows_every_campaign_once_while_others_come() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let make = |name: &str| {
        let body = json!({ "name": name, "phases": [{ "phase": "print", "kind": "external" }] });
        stage.post(&stage.acme.operator, "/campaigns", &body)?.expect(201)
    };
    for n in 0..60 {
        make(&format!("old-{n:02}"))?;
    }
    let walked =
        walk(&stage, &stage.acme.viewer, "/campaigns", 7, |page| make(&format!("new-{page}")).map(drop))?;
    let old: Vec<String> = (0..60).rev().map(|n| format!("old-{n:02}")).collect();
    assert_eq!(column(&walked, "name"), old, "newest first");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn campaigns_of_others_do_not_exist() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let beta = stage.tenant("beta").await?;
    let body = json!({ "name": "spring", "phases": [{ "phase": "print", "kind": "external" }] });
    let theirs = id(&stage.post(&beta.operator, "/campaigns", &body)?.expect(201)?)?;
    assert_same_404(&stage, &stage.acme.admin, &[("GET", "/campaigns/{id}", Value::Null)], &theirs)?;
    assert_eq!(stage.get(&stage.acme.admin, "/campaigns")?.expect(200)?["items"], json!([]));
    // A campaign whose name is the id of another one is not that one.
    let named = json!({ "name": theirs, "phases": [{ "phase": "print", "kind": "external" }] });
    stage.post(&stage.acme.operator, "/campaigns", &named)?.expect(201)?;
    stage.get(&stage.acme.admin, &format!("/campaigns/{theirs}"))?.problem(404)?;
    Ok(())
}
