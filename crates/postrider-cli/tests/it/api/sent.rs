//! The content of a sent message stays: from the variables that the item kept, the message is rendered again after its lead has changed.

use anyhow::Context;
use postrider_model::Message;
use serde_json::{Value, json};

use super::{
    Stage,
    material::{id, import, one_phase},
};
use crate::{
    sql::texts,
    world::{Server, Sim, eventually},
};

const OUTBOUND: &str =
    "[outbound]\nallow_private = true\n[api]\nrate_per_second = 0\n[campaigns]\npoll_interval_ms = 50\n";

/// Deploys this content to list `people` through account `mail`, waits for the end, and returns its items by recipient.
async fn sent(stage: &Stage, name: &str, content: &Value) -> anyhow::Result<Vec<Value>> {
    let operator = &stage.acme.operator;
    let asset = json!({ "name": name, "channel": "email", "content": content });
    let asset = id(&stage.post(operator, "/assets", &asset)?.expect(201)?)?;
    let campaign =
        id(&stage.post(operator, "/campaigns", &one_phase(name, &asset, "people"))?.expect(201)?)?;
    stage.post(operator, &format!("/campaigns/{campaign}/phases/mail/start"), &json!({}))?.expect(200)?;
    let runs = || stage.get(operator, &format!("/runs?campaign_id={campaign}"))?.expect(200);
    eventually("the run ends", || async { Ok(runs()?["items"][0]["finished_at"].is_string()) }).await?;
    let run = id(&runs()?["items"][0])?;
    let items = stage.get(operator, &format!("/runs/{run}/items"))?.expect(200)?;
    let mut items = items["items"].as_array().context("items")?.clone();
    items.sort_by_key(|item| item["recipient"].as_str().map(str::to_owned));
    Ok(items)
}

fn shown(stage: &Stage, item: &Value) -> anyhow::Result<Value> {
    Ok(stage.get(&stage.acme.viewer, &format!("/items/{}", id(item)?))?.expect(200)?["item"].clone())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sent_message_is_rendered_again_exactly_after_its_lead_was_imported_with_other_values()
-> anyhow::Result<()> {
    let stage = Stage::with(OUTBOUND).await?;
    let sim = Sim::start(&[])?;
    let _worker = Server::start(&stage.world, "campaigns", OUTBOUND)?;
    let account = json!({
        "name": "mail", "provider": "resend", "secret": "re_secret",
        "settings": { "from": "news@example.com", "url": format!("{}/resend", sim.http_url) },
    });
    stage.post(&stage.acme.admin, "/provider-accounts", &account)?.expect(201)?;
    let people =
        "external_id,email,first_name,city\na-1,ann@example.org,Ann,Rome\nb-1,bob@example.org,Bob,Oslo\n";
    import(&stage, &stage.acme, "people", people)?.expect(200)?;

    let content = json!({
        "subject": "Hello {{ first_name }}",
        "text": "{% if nickname is defined %}{{ nickname }}{% endif %}{{ lead.email }}: {{ first_name | upper }}",
    });
    let items = sent(&stage, "one", &content).await?;
    let before = shown(&stage, &items[0])?;
    assert_eq!(
        before["payload"],
        json!({ "first_name": "Ann", "lead": { "email": "ann@example.org" } }),
        "what the template used, and nothing else"
    );
    let message = json!({
        "to": "ann@example.org", "subject": "Hello Ann", "text": "ann@example.org: ANN", "html": null, "script": null,
    });
    assert_eq!((&before["message"], &before["message_matches"]), (&message, &json!(true)));
    assert_eq!((&before["asset"]["name"], &before["asset"]["version"]), (&json!("one"), &json!(1)));
    assert_eq!(before["result"]["status"], 200);
    let sent_id = before["provider_message_id"].as_str().context("an id")?;
    assert!(before["result"]["body"].as_str().is_some_and(|body| body.contains(sent_id)), "{before}");

    // The person has another name and another address now, and the asset has a next version.
    let people = "external_id,email,first_name,nickname\na-1,anna@example.net,Anna,Anni\n";
    import(&stage, &stage.acme, "people", people)?.expect(200)?;
    let next =
        json!({ "name": "one", "channel": "email", "content": { "subject": "Other", "text": "Other" } });
    stage.post(&stage.acme.operator, "/assets", &next)?.expect(201)?;
    let after = shown(&stage, &items[0])?;
    assert_eq!(after, before);
    let again = Message::Email {
        to: "ann@example.org".to_owned(),
        subject: "Hello Ann".to_owned(),
        text: Some("ann@example.org: ANN".to_owned()),
        html: None,
    };
    let hash = format!(
        "select encode(message_hash, 'hex') from execution.channel_outbox where id = '{}'",
        id(&items[0])?
    );
    assert_eq!(texts(&stage.admin, hash).await?, [hex::encode(again.hash())]);

    let trace = stage.world.postrider(&["trace", "--tenant", "acme", &id(&items[0])?])?;
    assert!(
        trace.stdout.contains(r#"variables {"first_name":"Ann","lead":{"email":"ann@example.org"}}"#),
        "{}",
        trace.stdout
    );
    assert!(trace.stdout.contains("response {\"body\":"), "{}", trace.stdout);
    let trace = stage.world.postrider(&["trace", "--tenant", "acme", "--json", &id(&items[0])?])?;
    let trace: Value = serde_json::from_str(&trace.stdout)?;
    assert_eq!(trace["runs"][0]["jobs"][0]["items"][0]["payload"], before["payload"]);

    let beta = stage.tenant("beta").await?;
    stage.get(&beta.admin, &format!("/items/{}", id(&items[0])?))?.problem(404)?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn variables_and_responses_are_kept_only_of_messages_and_go_with_the_person() -> anyhow::Result<()> {
    let stage = Stage::with(OUTBOUND).await?;
    let sim = Sim::start(&[])?;
    let _worker = Server::start(&stage.world, "campaigns", OUTBOUND)?;
    let account = json!({ "name": "mail", "provider": "sim", "settings": { "url": sim.http_url } });
    stage.post(&stage.acme.admin, "/provider-accounts", &account)?.expect(201)?;
    let people = "external_id,email,first_name\na-1,ann@example.org,Ann\nb-1,bob@example.org,Bob\n";
    import(&stage, &stage.acme, "people", people)?.expect(200)?;
    let bob = id(&stage.get(&stage.acme.viewer, "/leads?external_id=b-1")?.expect(200)?["items"][0])?;
    let suppress = json!({ "reason": "unsubscribed" });
    stage.post(&stage.acme.operator, &format!("/leads/{bob}/suppress"), &suppress)?.expect(200)?;

    let items = sent(&stage, "plain", &json!({ "subject": "Hello", "text": "Hello" })).await?;
    let (ann, skipped) = (shown(&stage, &items[0])?, shown(&stage, &items[1])?);
    assert_eq!(ann["payload"], json!({}), "the template uses no variable");
    assert_eq!(skipped["status"], "skipped");
    for member in ["payload", "result", "message", "message_matches"] {
        assert_eq!(skipped[member], Value::Null, "{member} of a message that was never made");
    }

    let items = sent(&stage, "named", &json!({ "subject": "Hello", "text": "{{ first_name }}" })).await?;
    assert_eq!(shown(&stage, &items[0])?["payload"], json!({ "first_name": "Ann" }));
    let erased =
        stage.world.postrider(&["leads", "erase", "--tenant", "acme", "--yes", "ann@example.org"])?;
    assert_eq!(erased.code, 0, "{}", erased.stderr);
    let ann = shown(&stage, &items[0])?;
    for member in ["payload", "result", "message", "recipient"] {
        assert_eq!(ann[member], Value::Null, "{member} of an erased person");
    }
    let left =
        "select count(*)::text from execution.channel_outbox where payload is not null or result is not null";
    assert_eq!(texts(&stage.admin, left).await?, ["0"]);
    Ok(())
}
