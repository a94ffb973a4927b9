//! The overview, the catalogue, workers and lists.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::{Stage, attacks::Things, material};
use crate::sql::{execute, number};

#[tokio::test(flavor = "multi_thread")]
async fn the_overview_counts_what_the_lists_show() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let other = stage.tenant("other").await?;
    let acme = super::Tenant {
        id: stage.acme.id,
        workspace_id: stage.acme.workspace_id,
        viewer: stage.acme.viewer.clone(),
        operator: stage.acme.operator.clone(),
        admin: stage.acme.admin.clone(),
    };
    Things::make(&stage, acme, "acme").await?;
    let key = &stage.acme.viewer;
    let overview = stage.get(key, "/overview")?.expect(200)?;
    let listed = |path: &str| -> anyhow::Result<i64> {
        let page =
            stage.get(key, &format!("{path}{}limit=200", if path.contains('?') { '&' } else { '?' }))?;
        Ok(page.expect(200)?["items"].as_array().map_or(0, Vec::len).try_into()?)
    };
    for (member, path) in [
        ("/items/in_doubt", "/in-doubt"),
        ("/accounts/total", "/provider-accounts"),
        ("/replies/dead", "/channels/outbox?status=dead"),
        ("/replies/pending", "/channels/outbox?status=pending"),
        ("/messages/dispatch_failed", "/channels/messages?status=dispatch_failed"),
        ("/events/pending", "/events?state=pending"),
        ("/attention/sync_errors", "/sync-errors?resolved=false"),
        ("/attention/alerts", "/alerts?open=true"),
        ("/job_runs/total_24h", "/job-runs"),
        ("/schedules/enabled", "/schedules"),
    ] {
        assert_eq!(overview.pointer(member), Some(&json!(listed(path)?)), "{member} of {overview}");
    }
    assert_eq!(overview["items"]["in_doubt"], 4);
    assert!(overview["items"]["oldest_doubt_seconds"].is_i64(), "{overview}");
    // Each of the four is of one of two campaigns, and the simulated provider is looked up without a person.
    let of_campaigns = overview["in_doubt_by_campaign"].as_array().cloned().unwrap_or_default();
    assert_eq!(of_campaigns.iter().map(|of| of["count"].clone()).collect::<Vec<_>>(), [json!(2), json!(2)]);
    assert_eq!(overview["items"]["in_doubt_for_person"], 0);
    assert_eq!(overview["capped"], json!([]));
    assert!(overview["attention"]["oldest_sync_error_seconds"].is_i64(), "{overview}");

    let mut nothing = stage.get(&other.viewer, "/overview")?.expect(200)?;
    nothing.as_object_mut().unwrap().remove("at");
    assert_numbers_are_zero(&nothing);
    assert_eq!(stage.get(&other.viewer, "/workers")?.expect(200)?, json!([]));
    assert_eq!(stage.get(&other.viewer, "/lists")?.expect(200)?["items"], json!([]));
    Ok(())
}

fn assert_numbers_are_zero(value: &Value) {
    match value {
        Value::Object(members) => members.values().for_each(assert_numbers_are_zero),
        Value::Array(items) => assert!(items.is_empty(), "{items:?}"),
        Value::Number(number) => assert_eq!(number.as_f64(), Some(0.0)),
        other => assert_eq!(*other, Value::Null),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn items_and_jobs_are_counted_while_a_worker_holds_them() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let acme = &stage.acme;
    material::account(&stage, acme).await?;
    material::run(&stage, acme, "spring", 5, 2).await?;
    let jobs = |overview: &Value| overview["jobs"].clone();
    let before = stage.get(&acme.viewer, "/overview")?.expect(200)?;
    assert_eq!((&jobs(&before)["waiting"], &jobs(&before)["locked"]), (&json!(3), &json!(0)));
    material::take_all(&stage).await?;
    let held = stage.get(&acme.viewer, "/overview")?.expect(200)?;
    assert_eq!((&jobs(&held)["waiting"], &jobs(&held)["locked"]), (&json!(0), &json!(3)));
    assert_eq!((&held["items"]["in_flight"], &held["items"]["in_doubt"]), (&json!(5), &json!(0)));
    assert_eq!(held["phases"]["in_progress"], 1);
    let workers = stage.get(&acme.viewer, "/workers")?.expect(200)?;
    assert_eq!(workers.as_array().map(Vec::len), Some(1));
    assert_eq!((&workers[0]["name"], &workers[0]["jobs"]), (&json!("w"), &json!(3)));
    assert_eq!((&workers[0]["job_runs"], &workers[0]["replies"]), (&json!(0), &json!(0)));
    assert!(workers[0]["last_heard_at"].is_string());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_number_stops_at_ten_thousand_and_says_so() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let tenant = stage.acme.id.0;
    let sql = format!(
        "insert into jobs.sync_errors (tenant_id, error_type, error_code, error_message, source_entity_type, source_entity_id)
         select '{tenant}', 'job', 'EXECUTION_ERROR', 'broken', 'job_run', gen_random_uuid() from generate_series(1, 10050);
         insert into m10_recovery.outbox (aggregate_type, aggregate_id, event_type, payload, tenant_id)
         select 'order', n::text, 'order.placed', '{{}}', '{tenant}' from generate_series(1, 10050) as n"
    );
    execute(&stage.admin, sql).await?;
    let overview = stage.get(&stage.acme.viewer, "/overview")?.expect(200)?;
    assert_eq!(overview["attention"]["sync_errors"], 10_000);
    assert_eq!(overview["events"]["pending"], 10_000);
    assert_eq!(overview["capped"], json!(["events.pending", "attention.sync_errors"]));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_of_leads_shows_its_members_and_is_found_by_a_part_of_its_name() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let acme = &stage.acme;
    for (name, count) in [("customers", 3), ("Old customers", 2), ("press", 1)] {
        material::leads(&stage, acme, &name.replace(' ', "%20"), count)?;
    }
    let names = |query: &str| -> anyhow::Result<Vec<String>> {
        let lists = material::walk(&stage, &acme.viewer, &format!("/lists{query}"), 2, |_| Ok(()))?;
        Ok(material::column(&lists, "name"))
    };
    assert_eq!(names("")?, ["press", "Old customers", "customers"]);
    assert_eq!(names("?q=CUSTOM")?, ["Old customers", "customers"]);
    assert_eq!(names("?q=%25")?, Vec::<String>::new());
    let lists = stage.get(&acme.viewer, "/lists?q=press")?.expect(200)?;
    assert_eq!(
        (&lists["items"][0]["members"], &lists["items"][0]["members_capped"]),
        (&json!(1), &json!(false))
    );
    for wrong in ["", &"x".repeat(256)] {
        let reply = stage.get(&acme.viewer, &format!("/lists?q={wrong}"))?;
        assert_eq!(reply.problem(400)?["errors"][0]["field"], "q");
    }
    let list = lists["items"][0]["id"].as_str().unwrap_or_default();
    let many = format!(
        "with added as (
             insert into execution.leads (id, tenant_id, workspace_id, identity)
             select gen_random_uuid(), '{0}', '{1}', 'id:' || n from generate_series(1, 10005) as n returning id)
         insert into execution.lead_list_members (tenant_id, list_id, lead_id) select '{0}', '{list}', id from added",
        acme.id.0, acme.workspace_id.0
    );
    execute(&stage.admin, many).await?;
    let lists = stage.get(&acme.viewer, "/lists?q=press")?.expect(200)?;
    assert_eq!(
        (&lists["items"][0]["members"], &lists["items"][0]["members_capped"]),
        (&json!(10_000), &json!(true))
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_form_of_each_provider_is_what_its_accounts_take() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let catalogue = stage.get(&stage.acme.viewer, "/catalogue")?.expect(200)?;
    assert_eq!(catalogue["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(catalogue["roles"], json!(["viewer", "operator", "admin"]));
    assert_eq!(catalogue["limits"]["page_size"], 200);
    assert!(catalogue["time_zones"].as_array().is_some_and(|zones| zones.contains(&json!("Europe/Berlin"))));
    let builtins = material::column(catalogue["builtins"].as_array().map_or(&[], Vec::as_slice), "name");
    assert!(builtins.contains(&"detect-alerts".to_owned()), "{builtins:?}");
    let providers = catalogue["providers"].as_array().cloned().unwrap_or_default();
    let names: BTreeSet<String> = material::column(&providers, "name").into_iter().collect();
    let known = [
        "bluesky", "mastodon", "resend", "sim", "slack", "smtp", "telegram", "twilio", "webhook", "whatsapp",
    ];
    assert_eq!(names.iter().map(String::as_str).collect::<Vec<_>>(), known);
    for provider in &providers {
        let name = provider["name"].as_str().unwrap_or_default();
        assert!(provider["title"].as_str().is_some_and(|title| !title.is_empty()), "{name}");
        assert!(provider["help"].as_str().is_some_and(|help| help.ends_with('.')), "{name}");
        let form = &provider["settings_schema"];
        assert_eq!(
            (&form["type"], &form["additionalProperties"]),
            (&json!("object"), &json!(false)),
            "{name}"
        );
        for (field, shown) in form["properties"].as_object().into_iter().flatten() {
            let kind = shown["type"].as_str().unwrap_or_default();
            assert!(["string", "integer", "boolean"].contains(&kind), "{name}: {field}: {shown}");
            for word in ["title", "description"] {
                assert!(
                    shown[word].as_str().is_some_and(|word| !word.is_empty()),
                    "{name}: {field}: {shown}"
                );
            }
        }
        // An account that says what the form asks for is taken; a setting that it does not name is refused.
        let settings = filled(form);
        let mut account = json!({ "name": name, "provider": name, "settings": settings });
        let secret = &provider["secret_schema"];
        if secret["type"] == "object" {
            account["secret"] = json!(filled(secret).to_string());
        } else if secret["minLength"].is_number() {
            account["secret"] = json!("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw");
        }
        stage.post(&stage.acme.admin, "/provider-accounts", &account)?.expect(201)?;
        let mut unknown = account.clone();
        unknown["name"] = json!(format!("{name}-2"));
        unknown["settings"]["surprise"] = json!("x");
        stage.post(&stage.acme.admin, "/provider-accounts", &unknown)?.problem(422)?;
        for needed in form["required"].as_array().into_iter().flatten().filter_map(Value::as_str) {
            let mut lacking = account.clone();
            lacking["name"] = json!(format!("{name}-3"));
            lacking["settings"].as_object_mut().unwrap().remove(needed);
            stage.post(&stage.acme.admin, "/provider-accounts", &lacking)?.problem(422)?;
        }
    }
    let takes = |what: &str| -> Vec<&str> {
        let taking = providers.iter().filter(|provider| provider[what] == true);
        taking.filter_map(|provider| provider["name"].as_str()).collect()
    };
    assert_eq!(takes("takes_webhooks"), ["slack", "telegram", "webhook", "whatsapp"]);
    assert_eq!(takes("takes_callbacks"), ["resend", "twilio"]);
    assert_eq!(number(&stage.admin, "select count(*) from tenancy.provider_accounts").await?, 10);
    Ok(())
}

/// An object with a value for each field that is needed.
fn filled(form: &Value) -> Value {
    let needed = form["required"].as_array().cloned().unwrap_or_default();
    let fields = needed.iter().filter_map(Value::as_str).map(|name| {
        let field = &form["properties"][name];
        let value = match name {
            "from" if field["description"].as_str().is_some_and(|text| text.contains("E.164")) => {
                json!("+15005550006")
            }
            "from" => json!("News <news@example.com>"),
            "account_sid" => json!("AC00000000000000000000000000000001"),
            "bot_token" => json!("123:abc"),
            "host" => json!("smtp.example.com"),
            "identifier" => json!("news.example.com"),
            "phone_number_id" => json!("105512345678901"),
            _ if field["format"] == "uri" => json!("https://example.com/x"),
            _ => json!("0123456789abcdef"),
        };
        (name.to_owned(), value)
    });
    Value::Object(fields.collect())
}
