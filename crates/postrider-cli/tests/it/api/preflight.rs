//! The preflight check over HTTP: counts, samples, estimates and warnings; what create refuses because of it.

use anyhow::Context;
use serde_json::{Value, json};

use super::{
    Stage,
    attacks::census,
    material::{account, asset, id, import, one_phase},
};
use crate::sql::execute;

fn check(stage: &Stage, campaign: &Value) -> anyhow::Result<Value> {
    stage.post(&stage.acme.operator, "/campaigns/check", campaign)?.expect(200)
}

/// Adds a phase to a campaign.
fn push(campaign: &mut Value, phase: Value) {
    if let Some(phases) = campaign["phases"].as_array_mut() {
        phases.push(phase);
    }
}

/// Ten people: two share an address, one of them in capitals; one has none; one is suppressed, and one has the address of a suppressed
/// lead that is not on the list; three lack `number`.
fn people(stage: &Stage) -> anyhow::Result<()> {
    let csv = "email,external_id,phone,unsubscribed,number\n\
               a@example.org,1,,,1\nA@EXAMPLE.ORG,2,,,2\n,3,+4930901820,,3\nb@example.org,4,,yes,4\n\
               c@example.org,5,,,5\nd@example.org,6,,,6\ne@example.org,7,,,7\n";
    import(stage, &stage.acme, "people", csv)?.expect(200)?;
    import(stage, &stage.acme, "other", "email,external_id,unsubscribed\nc@example.org,50,yes\n")?
        .expect(200)?;
    let without = "email,external_id\nf@example.org,8\ng@example.org,9\nh@example.org,10\n";
    import(stage, &stage.acme, "people", without)?.expect(200)?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_check_counts_people_missing_variables_and_time_and_writes_nothing() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    account(&stage, &stage.acme).await?;
    people(&stage)?;
    let asset = asset(&stage, &stage.acme, "spring")?;
    let limits = "update tenancy.provider_accounts set limits = '{\"rate_per_second\": 0.5, \"daily\": 100}'";
    execute(&stage.admin, limits).await?;
    let mut campaign = one_phase("spring", &asset, "people");
    campaign["phases"][0]["quiet_time_seconds"] = json!(5);
    push(&mut campaign, json!({ "phase": "print", "kind": "external" }));
    let before = census(&stage.admin).await?;
    let found = check(&stage, &campaign)?;
    assert_eq!(census(&stage.admin).await?, before);
    assert_eq!(found["errors"], json!([]));
    let mail = &found["phases"][0];
    assert_eq!(
        mail["audience"],
        json!({
            "members": 10, "counted": 10, "reachable": 6, "suppressed": 2, "without_address": 1, "same_address": 1,
        })
    );
    let renders = &mail["renders"];
    assert_eq!(
        (&renders["failed"], &renders["missing"]),
        (&json!(3), &json!([{ "variable": "number", "leads": 3 }]))
    );
    assert_eq!(renders["first_problem"], "the text cannot be filled in: the variable `number` is undefined");
    assert_eq!(
        mail["account"],
        json!({ "name": "mail", "rate_per_second": 0.5, "daily": 100, "used_today": 0, "circuit": "closed" })
    );
    assert_eq!(mail["estimate"], json!({ "seconds": 12, "because": "rate" }));
    let warnings: Vec<&str> =
        mail["warnings"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let tells = |text: &str| warnings.iter().any(|warning| warning.contains(text));
    assert!(tells("cannot be rendered for 3 of") && tells("more than the phase tolerates"), "{warnings:?}");
    assert!(tells("quiet_time_seconds is shorter than a call may take (180 seconds)"), "{warnings:?}");
    assert!(tells("account `mail` cannot work as it is set up"), "its secret does not open: {warnings:?}");
    let print = &found["phases"][1];
    assert_eq!(
        (&print["phase"], &print["audience"], &print["estimate"]),
        (&json!("print"), &Value::Null, &Value::Null)
    );
    // With these warnings it is created.
    stage.post(&stage.acme.operator, "/campaigns", &campaign)?.expect(201)?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn create_refuses_what_the_check_finds() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    account(&stage, &stage.acme).await?;
    people(&stage)?;
    let content = json!({
        "name": "wrong", "channel": "email",
        "content": { "subject": "Hi {{ first_name }}", "text": "{{ order.id }}{% if nick is defined %}{{ nick }}{% endif %}" },
    });
    let wrong = id(&stage.post(&stage.acme.operator, "/assets", &content)?.expect(201)?)?;
    let campaign = one_phase("wrong", &wrong, "people");
    let found = check(&stage, &campaign)?;
    let error = &found["errors"][0];
    assert_eq!(error["field"], "phases[0].asset_id");
    let detail = error["detail"].as_str().context("no detail")?;
    assert!(detail.ends_with("the variables `first_name`, `order.id` are undefined"), "{detail}");
    let missing = &found["phases"][0]["renders"]["missing"];
    let names: Vec<_> = missing.as_array().into_iter().flatten().map(|one| &one["variable"]).collect();
    assert_eq!(names, [&json!("first_name"), &json!("order.id")], "a guarded variable is not missing");
    let before = census(&stage.admin).await?;
    let refused = stage.post(&stage.acme.operator, "/campaigns", &campaign)?;
    assert_eq!(refused.field(422)?, "phases[0].asset_id");
    assert!(refused.text().contains("`first_name`"), "{}", refused.text());

    // Every phase tells its mistake, and create tells all of them.
    let mut many = one_phase("many", &wrong, "nobody");
    let two = json!({
        "phase": "two", "channel": "email", "asset_id": wrong, "list": "people", "provider_account": "none",
    });
    push(&mut many, two);
    let found = check(&stage, &many)?;
    let fields: Vec<_> =
        found["errors"].as_array().into_iter().flatten().map(|error| &error["field"]).collect();
    assert_eq!(
        fields,
        [&json!("phases[0].list"), &json!("phases[1].provider_account"), &json!("phases[1].asset_id")]
    );
    let problem = stage.post(&stage.acme.operator, "/campaigns", &many)?.problem(422)?;
    assert_eq!(problem["errors"].as_array().map(Vec::len), Some(3), "{problem}");
    // One that contradicts itself has no phases to tell about.
    let found = check(&stage, &json!({ "name": " ", "phases": [{ "phase": "mail" }] }))?;
    assert_eq!((&found["errors"][0]["field"], &found["phases"]), (&json!("name"), &json!([])));
    assert_eq!(census(&stage.admin).await?, before);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_check_is_for_operators_of_the_tenant() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    account(&stage, &stage.acme).await?;
    people(&stage)?;
    let asset = asset(&stage, &stage.acme, "spring")?;
    let campaign = one_phase("spring", &asset, "people");
    stage.post(&stage.acme.viewer, "/campaigns/check", &campaign)?.problem(403)?;
    let beta = stage.tenant("beta").await?;
    let foreign = stage.post(&beta.operator, "/campaigns/check", &campaign)?.expect(200)?;
    assert_eq!(foreign["errors"][0]["field"], "phases[0].provider_account");
    let phase = &foreign["phases"][0];
    assert_eq!((&phase["audience"], &phase["renders"]), (&Value::Null, &Value::Null), "{foreign}");
    assert_eq!(
        stage.post(&stage.acme.operator, "/campaigns/check", &json!({ "nam": "x" }))?.field(400)?,
        "nam"
    );
    Ok(())
}

/// A long list is counted up to its first 100,000 members, and a thousand of these are rendered.
#[tokio::test(flavor = "multi_thread")]
async fn a_long_list_is_sampled() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    account(&stage, &stage.acme).await?;
    let sql = format!(
        "with list as (insert into execution.lead_lists (id, tenant_id, workspace_id, name)
                       values (gen_random_uuid(), '{0}', '{1}', 'all') returning id),
              people as (insert into execution.leads (id, tenant_id, workspace_id, identity, email, attributes)
                         select gen_random_uuid(), '{0}', '{1}', 'all:' || n, n || '@example.com', jsonb_build_object('number', n)
                           from generate_series(1, 100500) as n returning id)
         insert into execution.lead_list_members (tenant_id, list_id, lead_id)
         select '{0}', list.id, people.id from list, people",
        stage.acme.id.0, stage.acme.workspace_id.0
    );
    execute(&stage.admin, sql).await?;
    let asset = asset(&stage, &stage.acme, "spring")?;
    let found = check(&stage, &one_phase("spring", &asset, "all"))?;
    let mail = &found["phases"][0];
    let audience = &mail["audience"];
    assert_eq!(
        (&audience["members"], &audience["counted"], &audience["reachable"]),
        (&json!(100_500), &json!(100_000), &json!(100_000))
    );
    let checked = mail["renders"]["checked"].as_u64().context("nothing was rendered")?;
    assert!((1..=1_000).contains(&checked), "{checked}");
    assert_eq!(mail["renders"]["failed"], 0);
    let warnings = mail["warnings"].to_string();
    assert!(warnings.contains("the counts are those of its first 100000 members of 100500"), "{warnings}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_import_names_the_columns_that_templates_cannot_use() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let csv = "E-Mail,email,First Name,plain\nx,a@example.org,Ann,1\n";
    let summary = import(&stage, &stage.acme, "people", csv)?.expect(200)?;
    assert_eq!(
        summary["renamed"],
        json!([{ "column": "E-Mail", "variable": "E_Mail" }, { "column": "First Name", "variable": "First_Name" }])
    );
    let lines = "{\"email\": \"b@example.org\", \"First Name\": \"Bo\"}\n{\"email\": \"c@example.org\", \"First Name\": \"Cy\"}\n";
    let call = stage.call("POST", "/leads/import?list=people").key(&stage.acme.operator);
    let summary = call.bytes("application/x-ndjson", lines.as_bytes()).send()?.expect(200)?;
    assert_eq!(summary["renamed"], json!([{ "column": "First Name", "variable": "First_Name" }]));
    let twice = import(&stage, &stage.acme, "people", "email,First Name,First-Name\na@example.org,a,b\n")?;
    assert!(twice.text().contains("whose attribute would be called `First_Name`"), "{}", twice.text());
    twice.problem(400)?;
    Ok(())
}
