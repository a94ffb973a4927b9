//! Single messages by the API and the commands.

use anyhow::Context;
use postrider_store::{
    PgConnection,
    campaigns::messages::{self, Filter},
    postgres::pool,
};
use serde_json::{Value, json};

use super::{
    Stage,
    material::{UNKNOWN, asset, column, id, import, walk},
};
use crate::{
    sql::{execute, number, texts},
    world::{Server, Sim, eventually},
};

const OUTBOUND: &str = "[outbound]\nallow_private = true\n[api]\nrate_per_second = 0\n";
const TEXT: &str = "Your order {{ number }}";

fn message(key: &str) -> Value {
    json!({
        "channel": "email", "account": "mail", "recipient": "Ann@example.org", "key": key,
        "content": { "subject": "Order", "text": TEXT }, "variables": { "number": 7 },
    })
}

fn with(mut body: Value, member: &str, value: Value) -> Value {
    body[member] = value;
    body
}

/// The API, the sim, and an account `mail` there.
async fn scene() -> anyhow::Result<(Stage, Sim)> {
    let stage = Stage::with(OUTBOUND).await?;
    let sim = Sim::start(&[])?;
    let account = json!({ "name": "mail", "provider": "sim", "settings": { "url": sim.http_url } });
    stage.post(&stage.acme.admin, "/provider-accounts", &account)?.expect(201)?;
    Ok((stage, sim))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_is_sent_once_and_shown_from_its_key_to_its_item() -> anyhow::Result<()> {
    let (stage, sim) = scene().await?;
    let (operator, viewer) = (&stage.acme.operator, &stage.acme.viewer);
    let made = stage.post(operator, "/messages", &message("order-7"))?;
    let sent = made.expect(201)?;
    let path = format!("/messages/{}", id(&sent)?);
    assert_eq!(made.header("location"), Some(format!("/api/v2{path}").as_str()));
    assert_eq!(
        (&sent["status"], &sent["run_id"], &sent["item_id"]),
        (&json!("waiting"), &Value::Null, &Value::Null)
    );
    assert_eq!(stage.get(viewer, &path)?.expect(200)?, sent);
    assert_eq!(
        stage.post(operator, "/messages", &message("order-7"))?.expect(200)?,
        sent,
        "the same message"
    );
    let other = with(message("order-7"), "variables", json!({ "number": 8 }));
    assert_eq!(stage.post(operator, "/messages", &other)?.field(422)?, "key");

    let worker = Server::start(&stage.world, "campaigns", OUTBOUND)?;
    let ended = || stage.get(viewer, &path)?.expect(200);
    eventually("the message is sent", || async { Ok(ended()?["status"] == "sent") }).await?;
    let ended = ended()?;
    let item = stage
        .get(viewer, &format!("/items/{}", ended["item_id"].as_str().context("an item")?))?
        .expect(200)?;
    assert_eq!(item["item"]["single_message_id"], sent["id"]);
    assert_eq!(item["item"]["message"]["text"], "Your order 7");
    assert_eq!(
        (&item["item"]["payload"], &item["item"]["message_matches"]),
        (&json!({ "number": 7 }), &json!(true))
    );
    assert_eq!((&item["lead"], &item["item"]["asset"]), (&Value::Null, &Value::Null));
    assert_eq!((&item["run"]["cause"], &item["run"]["campaign"]), (&json!("message"), &Value::Null));
    assert_eq!(item["item"]["provider_message_id"], ended["provider_message_id"]);
    assert_eq!(
        stage.post(operator, "/messages", &message("order-7"))?.expect(200)?,
        ended,
        "after the call, too"
    );
    assert_eq!(sim.receipts()?.len(), 1);

    // Runs of messages are found by their cause, and are no campaign.
    let runs = stage.get(viewer, "/runs?cause=message")?.expect(200)?;
    assert_eq!(
        (runs["items"].as_array().map(Vec::len), &runs["items"][0]["id"]),
        (Some(1), &ended["run_id"])
    );
    let run = ended["run_id"].as_str().context("a run")?;
    assert_eq!(stage.get(viewer, "/campaigns")?.expect(200)?["items"], json!([]));
    eventually("the run has ended", || async {
        Ok(stage.get(viewer, &format!("/runs/{run}/launch"))?.expect(200)?["launched"] == true)
    })
    .await?;
    stage.get(viewer, &format!("/runs/{run}/trace"))?.expect(200)?;
    drop(worker);

    // An asset, by its name, a version and its id.
    let first = asset(&stage, &stage.acme, "news")?;
    let next = json!({ "name": "news", "channel": "email", "content": { "subject": "Two", "text": "{{ number }}" } });
    let second = id(&stage.post(operator, "/assets", &next)?.expect(201)?)?;
    for (named, expected) in [("news", &second), ("news@1", &first), (first.as_str(), &first)] {
        let mut body = with(message(&format!("by {named}")), "asset", json!(named));
        body["content"] = Value::Null;
        assert_eq!(
            stage.post(operator, "/messages", &body)?.expect(201)?["asset_id"],
            json!(expected),
            "{named}"
        );
    }
    let listed = walk(&stage, viewer, "/messages", 2, |_| Ok(()))?;
    assert_eq!(column(&listed, "key"), [format!("by {first}").as_str(), "by news@1", "by news", "order-7"]);
    for (filter, count) in [
        ("recipient=ANN@EXAMPLE.ORG", 4),
        ("recipient=bob@example.org", 0),
        ("key=order-7", 1),
        ("channel=voice", 0),
        ("channel=email&recipient=ann@example.org&key=by%20news", 1),
    ] {
        let found = stage.get(viewer, &format!("/messages?{filter}"))?.expect(200)?;
        assert_eq!(found["items"].as_array().map(Vec::len), Some(count), "{filter}");
    }
    let walked = walk(&stage, viewer, "/messages?recipient=ann@example.org", 1, |_| Ok(()))?;
    assert_eq!(column(&walked, "key"), column(&listed, "key"));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_cannot_be_sent_is_refused_at_once() -> anyhow::Result<()> {
    let (stage, _sim) = scene().await?;
    let operator = &stage.acme.operator;
    let account = json!({ "name": "bot", "provider": "slack", "settings": {}, "secret": "{\"bot_token\": \"xoxb-1\", \"signing_secret\": \"s\"}" });
    stage.post(&stage.acme.admin, "/provider-accounts", &account)?.expect(201)?;
    let good = || message("k");
    for (body, status, field) in [
        (with(good(), "variables", json!({})), 422, "variables"),
        (with(good(), "content", json!({ "subject": "{{", "text": "t" })), 422, "content"),
        (with(good(), "content", json!({ "script": "s" })), 422, "content"),
        (with(good(), "account", json!("bot")), 422, "account"),
        (with(good(), "workspace_id", json!(UNKNOWN)), 422, "workspace_id"),
        (with(good(), "channel", json!("fax")), 400, "channel"),
        (with(good(), "send_after", json!("tomorrow")), 400, "send_after"),
        (with(good(), "more", json!(1)), 400, "more"),
    ] {
        assert_eq!(stage.post(operator, "/messages", &body)?.field(status)?, field, "{body}");
    }
    for (member, value) in [
        ("account", json!("none")),
        ("recipient", json!("nobody")),
        ("recipient", Value::Null),
        ("asset", json!("news")),
        ("content", Value::Null),
        ("content", json!([])),
        ("variables", json!([])),
        ("variables", json!({ "lead": 1 })),
        ("key", json!(" ")),
        ("key", json!("x".repeat(256))),
        ("send_after", json!("2999-01-01T00:00:00Z")),
    ] {
        stage.post(operator, "/messages", &with(good(), member, value.clone()))?.problem(422)?;
    }
    // A refused message leaves its key free.
    assert_eq!(number(&stage.admin, "select count(*) from execution.messages").await?, 0);
    stage.post(&stage.acme.viewer, "/messages", &good())?.problem(403)?;
    stage.call("POST", "/messages").json(&good()).send()?.problem(401)?;
    let made = stage.post(operator, "/messages", &good())?.expect(201)?;

    let beta = stage.tenant("beta").await?;
    stage.get(&beta.admin, &format!("/messages/{}", id(&made)?))?.problem(404)?;
    stage.get(&beta.admin, &format!("/messages/{UNKNOWN}"))?.problem(404)?;
    assert_eq!(stage.get(&beta.admin, "/messages?key=k")?.expect(200)?["items"], json!([]));
    assert_eq!(
        stage.get(&beta.admin, "/messages?recipient=ann@example.org")?.expect(200)?["items"],
        json!([])
    );
    // The account is of another tenant.
    stage.post(&beta.admin, "/messages", &good())?.problem(422)?;
    stage.get(&stage.acme.viewer, "/messages?limit=0")?.problem(400)?;
    stage.get(&stage.acme.viewer, "/messages?cursor=x")?.problem(400)?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_commands_send_one_message_and_trace_it_to_its_person() -> anyhow::Result<()> {
    let (stage, sim) = scene().await?;
    let command = |more: &[&str]| {
        let sending = [
            "send",
            "--tenant",
            "acme",
            "--channel",
            "email",
            "--account",
            "mail",
            "--to",
            "Ann@example.org",
        ];
        stage.world.postrider(&[&sending[..], more].concat())
    };
    let content = ["--subject", "Order", "--text", "Your order {{ number }}", "--var", "number=7"];
    let first = command(&[&["--key", "order-7"][..], &content].concat())?;
    anyhow::ensure!(first.code == 0, "{}", first.stderr);
    let again = command(&[&["--key", "order-7", "--json"][..], &content].concat())?;
    let again: Value = serde_json::from_str(&again.stdout)?;
    let sent = again["id"].as_str().context("an id")?.to_owned();
    assert!(first.stdout.trim().ends_with(&sent), "{} is not {sent}", first.stdout);
    assert_eq!((&again["is_new"], &again["message"]["status"]), (&json!(false), &json!("waiting")));
    for (more, problem) in [
        (&["--key", "order-7", "--subject", "Other", "--text", "t"][..], "was used for another message"),
        (&["--key", "k"], "either --asset, or content of its own"),
        (&["--key", "k", "--text", "t"], "an e-mail needs --subject"),
        (
            &["--key", "k", "--subject", "s", "--text", "{{ nobody }}"],
            "`variables`: the text cannot be filled in",
        ),
        (&["--key", "k", "--subject", "s", "--text", "t", "--var", "x"], "NAME=VALUE"),
        (&["--key", "k", "--asset", "none"], "there is no asset `none`"),
    ] {
        let refused = command(more)?;
        assert!(refused.code != 0 && refused.stderr.contains(problem), "{more:?}: {}", refused.stderr);
    }
    assert_eq!(number(&stage.admin, "select count(*) from execution.messages").await?, 1);

    let _worker = Server::start(&stage.world, "campaigns", OUTBOUND)?;
    let ended = "select count(*) from execution.campaign_runs where status = 'completed'";
    eventually("the message is sent", || async { Ok(number(&stage.admin, ended).await? == 1) }).await?;
    assert_eq!(sim.receipts()?.len(), 1);
    // There is no lead of this address: the message alone is known. A lead with it has the message, too.
    let traced = stage.world.postrider(&["trace", "--tenant", "acme", "ann@EXAMPLE.org"])?;
    assert!(
        traced.stdout.contains("single messages") && traced.stdout.contains("sent  key order-7"),
        "{}",
        traced.stdout
    );
    import(&stage, &stage.acme, "people", "external_id,email\na-1,ann@example.org\n")?.expect(200)?;
    let traced = stage.world.postrider(&["trace", "--tenant", "acme", "--json", "a-1"])?;
    let traced: Value = serde_json::from_str(&traced.stdout)?;
    assert_eq!(
        (&traced["messages"][0]["id"], &traced["messages"][0]["status"]),
        (&json!(sent), &json!("sent"))
    );
    // By its own id the message leads to its item.
    let traced = stage.world.postrider(&["trace", "--tenant", "acme", &sent])?;
    assert!(
        traced.stdout.contains("single messages") && traced.stdout.contains(r#"variables {"number":"7"}"#),
        "{}",
        traced.stdout
    );
    let none = stage.world.postrider(&["trace", "--tenant", "acme", "bob@example.org"])?;
    assert_ne!(none.code, 0);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_doubt_about_a_message_is_listed_counted_and_resolved_like_any_other() -> anyhow::Result<()> {
    let (stage, sim) = scene().await?;
    sim.set_rules(&json!([{ "fault": "reset" }]))?;
    let _worker = Server::start(&stage.world, "campaigns", OUTBOUND)?;
    let (operator, viewer) = (&stage.acme.operator, &stage.acme.viewer);
    let sent = stage.post(operator, "/messages", &message("k"))?.expect(201)?;
    let listed = || stage.get(viewer, "/in-doubt")?.expect(200);
    eventually("it is in doubt", || async { Ok(listed()?["items"][0]["outbox_id"].is_string()) }).await?;
    let doubt = listed()?["items"][0].clone();
    assert_eq!(
        (&doubt["campaign"], &doubt["phase"], &doubt["recipient"]),
        (&Value::Null, &Value::Null, &json!("Ann@example.org"))
    );
    let shown = stage.get(viewer, &format!("/messages/{}", id(&sent)?))?.expect(200)?;
    assert!(shown["in_doubt_since"].is_string() && shown["status"] == "queued", "{shown}");
    let overview = stage.get(viewer, "/overview")?.expect(200)?;
    assert_eq!(overview["in_doubt_by_campaign"], json!([]));
    let printed = stage.world.postrider(&["in-doubt", "list", "--tenant", "acme"])?;
    assert!(printed.stdout.contains("single messages"), "{}{}", printed.stdout, printed.stderr);
    let resolve = json!({ "as": "sent", "note": "their log has it" });
    let path = format!("/in-doubt/{}/resolve", doubt["outbox_id"].as_str().context("an id")?);
    stage.post(operator, &path, &resolve)?.expect(200)?;
    let shown = stage.get(viewer, &format!("/messages/{}", id(&sent)?))?.expect(200)?;
    assert_eq!(shown["status"], "sent");
    execute(&stage.admin, "update execution.job_queue set run_after = now() where status = 'failed'").await?;
    let ended = "select status from execution.campaign_runs";
    eventually("its run ends", || async { Ok(texts(&stage.admin, ended).await? == ["completed"]) }).await?;
    assert_eq!(sim.receipts()?.len(), 1, "it was never called again");
    Ok(())
}

/// Rows of tables that this transaction has fetched, and whether it read the messages from end to end.
async fn fetched(connection: &mut PgConnection) -> anyhow::Result<(i64, i64)> {
    let fetched = "select coalesce(sum(idx_tup_fetch + seq_tup_read), 0)::bigint from pg_stat_xact_user_tables where schemaname = 'execution'";
    let scans =
        "select coalesce(sum(seq_scan), 0)::bigint from pg_stat_xact_user_tables where relname = 'messages'";
    Ok((number(&mut *connection, fetched).await?, number(connection, scans).await?))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_of_messages_costs_what_is_on_it() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let beta = stage.tenant("beta").await?;
    for tenant in [&stage.acme, &beta] {
        let (id, workspace) = (tenant.id.0, tenant.workspace_id.0);
        let sql = format!(
            "set session_replication_role = replica;
             insert into execution.messages (id, tenant_id, workspace_id, key, key_hash, channel, provider_account_id, provider, recipient,
                                             content, actor, run_id, created_at)
             select gen_random_uuid(), '{id}', '{workspace}', n::text, sha256(n::text::bytea), 'email', gen_random_uuid(), 'sim',
                    'Person' || n % 500 || '@example.org', '{{}}', 'a test', case when n > 50 then gen_random_uuid() end,
                    now() - n * interval '1 second'
               from generate_series(1, 10000) as n;
             reset session_replication_role"
        );
        execute(&stage.admin, sql).await?;
    }
    let app = stage.world.pool("postrider_app").await?;
    let filter = |recipient: Option<&str>, key: Option<&str>| Filter {
        recipient: recipient.map(str::to_owned),
        key: key.map(str::to_owned),
        channel: None,
    };
    // With and without statistics.
    for _ in 0..2 {
        for (filter, rows) in [
            (filter(None, None), 20),
            (filter(Some("person7@example.org"), None), 20),
            (filter(None, Some("77")), 1),
            (filter(Some("PERSON7@example.org"), Some("7")), 1),
        ] {
            let mut transaction = pool::begin_as(&app, stage.acme.id).await?;
            let before = fetched(&mut transaction).await?;
            let page = messages::page(&mut transaction, stage.acme.id, &filter, None, 20).await?;
            let after = fetched(&mut transaction).await?;
            assert_eq!(page.len(), rows, "{filter:?}");
            assert_eq!(after.1, before.1, "{filter:?}: the messages were read from end to end");
            assert!(after.0 - before.0 <= 200, "{filter:?}: {} rows were fetched", after.0 - before.0);
        }
        let worker = stage.world.pool("postrider_worker").await?;
        let mut transaction = pool::begin(&worker).await?;
        let before = fetched(&mut transaction).await?;
        let tenants = "select count(*) from execution.tenants_with_due_messages(64)";
        assert_eq!(number(&mut *transaction, tenants).await?, 2);
        let group = format!("select execution.group_messages('{}', 'w')::bigint", stage.acme.id.0);
        assert_eq!(number(&mut *transaction, group).await?, 50);
        let after = fetched(&mut transaction).await?;
        assert!(after.0 - before.0 <= 500, "{} rows were fetched", after.0 - before.0);
        drop(transaction);
        execute(&stage.admin, "analyze").await?;
    }
    Ok(())
}
