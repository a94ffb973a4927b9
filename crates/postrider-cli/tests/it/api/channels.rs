//! Chat, as operators see it.

use anyhow::Context;
use postrider_model::{channels::Reply, tenancy::Role};
use postrider_store::{
    channels::{
        messages,
        replies::{self, Verdict},
    },
    postgres::wakeups,
};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::{
    Stage,
    conversations::{Conversation, SECRET, settle_all},
    material::{UNKNOWN, assert_same_404, column, id, walk},
};
use crate::{
    sql::{execute, texts},
    world::PATIENCE,
};

impl Stage {
    /// An account of tenant `acme` at which `ada` may write.
    async fn conversation(&self, name: &str, provider: &str) -> anyhow::Result<Conversation> {
        let acme = &self.acme;
        let conversation = Conversation::new(&self.admin, acme.id, acme.workspace_id, name, provider).await?;
        conversation.link("ada", "ada@example.org", Role::Operator).await?;
        Ok(conversation)
    }

    /// The audit log of one subject, oldest first: the action and its actor.
    fn audited(&self, subject: &str) -> anyhow::Result<Vec<(String, String)>> {
        let page = self.get(&self.acme.admin, "/audit?limit=200")?.expect(200)?;
        let lines = page["items"].as_array().context("no lines")?.iter().rev();
        let lines = lines.filter(|line| line["subject"] == subject).map(|line| {
            let text = |member: &str| line[member].as_str().unwrap_or_default().to_owned();
            (text("action"), text("actor"))
        });
        Ok(lines.collect())
    }

    fn put(&self, key: &str, path: &str, body: &Value) -> anyhow::Result<super::Reply> {
        self.call("PUT", path).key(key).json(body).send()
    }

    fn delete(&self, key: &str, path: &str) -> anyhow::Result<super::Reply> {
        self.call("DELETE", path).key(key).send()
    }

    /// The name in the log of the key that has this role.
    fn actor(&self, key: &str) -> anyhow::Result<String> {
        let who = self.get(key, "/whoami")?.expect(200)?;
        Ok(format!("key:{}", who["key_id"].as_str().unwrap_or_default()))
    }
}

#[tokio::test]
async fn a_sender_is_linked_linked_again_and_forgotten() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let team = stage.conversation("team", "slack").await?;
    let other = stage.conversation("other", "telegram").await?;
    let operator = &stage.acme.operator;
    let new = json!({ "account": "team", "sender_id": "U1", "user_id": "bob", "role": "viewer" });
    let link = || stage.call("POST", "/channels/links").key(operator).idempotency_key("k").json(&new).send();
    let made = link()?.expect(201)?;
    let link_id = id(&made)?;
    for (member, expected) in [
        ("account_id", json!(team.account)),
        ("sender_id", json!("U1")),
        ("user_id", json!("bob")),
        ("role", json!("viewer")),
    ] {
        assert_eq!(made[member], expected, "{member}");
    }
    let again = link()?;
    assert_eq!((again.header("idempotent-replayed"), again.expect(201)?), (Some("true"), made.clone()));
    // By id, and with another role: the same link, in place of what it said.
    let more = json!({ "account": team.account, "sender_id": "U1", "user_id": "bob", "role": "operator" });
    let changed = stage.post(operator, "/channels/links", &more)?.expect(201)?;
    assert_eq!((id(&changed)?, &changed["role"]), (link_id.clone(), &json!("operator")));
    // The same sender at another account is somebody else.
    let there = json!({ "account": "other", "sender_id": "U1", "user_id": "eve", "role": "admin" });
    stage.post(operator, "/channels/links", &there)?.expect(201)?;

    let other_account = other.account.0.to_string();
    for (query, users) in [
        ("".to_owned(), &["eve", "bob", "ada@example.org", "ada@example.org"][..]),
        ("?account=team".to_owned(), &["bob", "ada@example.org"]),
        (format!("?account={other_account}"), &["eve", "ada@example.org"]),
        (format!("?account={}", other.account), &["eve", "ada@example.org"]),
        ("?sender_id=U1".to_owned(), &["eve", "bob"]),
        ("?sender_id=U1&account=team".to_owned(), &["bob"]),
        ("?account=nowhere".to_owned(), &[]),
        ("?sender_id=u1".to_owned(), &[]),
    ] {
        let listed = walk(&stage, &stage.acme.viewer, &format!("/channels/links{query}"), 1, |_| Ok(()))?;
        let mut found = column(&listed, "user_id");
        found.sort();
        let mut expected: Vec<String> = users.iter().map(|user| (*user).to_owned()).collect();
        expected.sort();
        assert_eq!(found, expected, "{query}");
    }

    let path = format!("/channels/links/{link_id}");
    stage.delete(operator, &path)?.expect(204)?;
    stage.delete(operator, &path)?.problem(404)?;
    let actor = stage.actor(operator)?;
    let audited = stage.audited(&format!("link:{link_id}"))?;
    let expected = ["sender.linked", "sender.linked", "sender.unlinked"];
    assert_eq!(audited, expected.map(|action| (action.to_owned(), actor.clone())));
    Ok(())
}

#[tokio::test]
async fn a_link_that_makes_no_sense_is_refused() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    stage.conversation("team", "slack").await?;
    let good = json!({ "account": "team", "sender_id": "U1", "user_id": "bob", "role": "viewer" });
    for (member, value, status) in [
        ("account", json!("nowhere"), 422),
        ("account", json!(UNKNOWN), 422),
        ("account", json!(""), 422),
        ("account", json!(null), 400),
        ("sender_id", json!(" "), 422),
        ("sender_id", json!("x".repeat(256)), 422),
        ("sender_id", json!("a\0b"), 400),
        ("user_id", json!(""), 422),
        ("user_id", json!("ü".repeat(128)), 422),
        ("role", json!("owner"), 400),
        ("tenant_id", json!(UNKNOWN), 400),
    ] {
        let mut body = good.clone();
        body[member] = value.clone();
        let reply = stage.post(&stage.acme.operator, "/channels/links", &body)?;
        assert_eq!(reply.field(status)?, member, "{value}");
    }
    stage.post(&stage.acme.viewer, "/channels/links", &good)?.problem(403)?;
    assert_eq!(stage.count("select count(*) from channels.channel_links").await?, 1);
    Ok(())
}

#[tokio::test]
async fn an_executor_is_set_replaced_and_removed_and_its_secret_is_never_returned() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let team = stage.conversation("team", "slack").await?;
    let admin = &stage.acme.admin;
    let everywhere = stage.put(admin, "/channels/executors", &json!({ "kind": "echo" }))?.expect(200)?;
    for (member, expected) in [
        ("account_id", json!(null)),
        ("kind", json!("echo")),
        ("url", json!(null)),
        ("timeout_seconds", json!(30)),
        ("required_role", json!("operator")),
        ("sentinel", json!({})),
    ] {
        assert_eq!(everywhere[member], expected, "{member}");
    }
    let new = json!({
        "account": "team", "kind": "http", "url": "https://agent.example.com/messages", "secret": SECRET,
        "timeout_seconds": 60, "required_role": "viewer",
        "sentinel": { "blocked_words": ["refund"], "messages_per_minute": 5, "url": "https://sentinel.example.com" },
    });
    let first = stage.put(admin, "/channels/executors", &new)?;
    let second = stage.put(admin, "/channels/executors", &new)?;
    let made = second.expect(200)?;
    assert_eq!(made["account_id"], json!(team.account));
    for member in ["kind", "url", "timeout_seconds", "required_role", "sentinel"] {
        assert_eq!(made[member], new[member], "{member}");
    }
    // The account's own come first, the one for all others is the last; what was replaced is gone.
    let listed = walk(&stage, &stage.acme.viewer, "/channels/executors", 1, |_| Ok(()))?;
    assert_eq!(column(&listed, "id"), [id(&made)?, id(&everywhere)?]);
    let shown = stage.get(&stage.acme.viewer, "/channels/executors")?;
    for reply in [&first, &second, &shown, &stage.get(admin, "/audit")?] {
        for secret in [SECRET, &SECRET[6..], "sealed"] {
            assert!(!reply.text().contains(secret), "{}", reply.text());
        }
    }
    assert!(!stage.server.process.lines().join("\n").contains(&SECRET[6..]));
    let stored = "select count(*) from channels.channel_executors where encode(sealed_secret, 'escape') like '%canary%'";
    assert_eq!(stage.count(stored).await?, 0);

    // An agent that needs no signature any more: the secret goes with the executor that had it.
    let echo = json!({ "account": team.account, "kind": "echo" });
    let echo = id(&stage.put(admin, "/channels/executors", &echo)?.expect(200)?)?;
    let kept = "select count(*) from channels.channel_executors where sealed_secret is not null";
    assert_eq!(stage.count(kept).await?, 0);
    let path = format!("/channels/executors/{echo}");
    stage.delete(&stage.acme.operator, &path)?.problem(403)?;
    stage.delete(admin, &path)?.expect(204)?;
    stage.delete(admin, &path)?.problem(404)?;
    let actor = stage.actor(admin)?;
    assert_eq!(
        stage.audited(&format!("executor:{}", id(&made)?))?,
        [("executor.set".to_owned(), actor.clone())]
    );
    let audited = stage.audited(&format!("executor:{echo}"))?;
    assert_eq!(
        audited,
        ["executor.set", "executor.removed"].map(|action| (action.to_owned(), actor.clone()))
    );
    Ok(())
}

#[tokio::test]
async fn an_executor_that_makes_no_sense_is_refused_by_its_field() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let url = "https://agent.example.com";
    let http = json!({ "kind": "http", "url": url, "secret": SECRET });
    let with = |base: &Value, member: &str, value: Value| {
        let mut body = base.clone();
        body[member] = value;
        body
    };
    let echo = json!({ "kind": "echo" });
    for (body, status, field) in [
        (json!({}), 400, ""),
        (json!({ "kind": "shell" }), 400, "kind"),
        (with(&echo, "url", json!(url)), 422, "url"),
        (with(&echo, "secret", json!(SECRET)), 422, "secret"),
        (json!({ "kind": "http", "secret": SECRET }), 422, "url"),
        (json!({ "kind": "http", "url": url }), 422, "secret"),
        (with(&http, "url", json!("agent")), 422, "url"),
        (with(&http, "url", json!("http://agent.example.com")), 422, "url"),
        (with(&http, "url", json!("https://127.0.0.1/x")), 422, "url"),
        (with(&http, "url", json!("https://[::ffff:10.0.0.1]/x")), 422, "url"),
        (with(&http, "url", json!("https://169.254.169.254/latest")), 422, "url"),
        (with(&http, "url", json!("https://me:pw@agent.example.com")), 422, "url"),
        (with(&http, "url", json!("file:///etc/passwd")), 422, "url"),
        (with(&http, "url", json!(format!("https://agent.example.com/{}", "x".repeat(2048)))), 422, "url"),
        (with(&http, "secret", json!("hunter2")), 422, "secret"),
        (with(&http, "secret", json!("whsec_short")), 422, "secret"),
        (with(&http, "secret", json!("")), 422, "secret"),
        (with(&http, "timeout_seconds", json!(0)), 422, "timeout_seconds"),
        (with(&http, "timeout_seconds", json!(61)), 422, "timeout_seconds"),
        (with(&http, "timeout_seconds", json!(-1)), 400, "timeout_seconds"),
        (with(&http, "required_role", json!("owner")), 400, "required_role"),
        (with(&http, "account", json!("nowhere")), 422, "account"),
        (with(&echo, "sentinel", json!([])), 400, "sentinel"),
        (with(&echo, "sentinel", json!({ "words": [] })), 400, "sentinel.words"),
        (with(&echo, "sentinel", json!({ "blocked_words": ["--"] })), 422, "sentinel"),
        (with(&echo, "sentinel", json!({ "blocked_words": vec!["a"; 1001] })), 422, "sentinel"),
        (with(&echo, "sentinel", json!({ "messages_per_minute": 0 })), 422, "sentinel"),
        (with(&echo, "sentinel", json!({ "url": url })), 422, "secret"),
        (with(&http, "sentinel", json!({ "url": "https://localhost/s" })), 422, "sentinel.url"),
    ] {
        let reply = stage.put(&stage.acme.admin, "/channels/executors", &body)?;
        assert_eq!(reply.field(status).with_context(|| body.to_string())?, field, "{body}");
        assert!(!reply.text().contains("hunter2") && !reply.text().contains(SECRET), "{}", reply.text());
    }
    stage.put(&stage.acme.operator, "/channels/executors", &echo)?.problem(403)?;
    assert_eq!(stage.count("select count(*) from channels.channel_executors").await?, 0);
    Ok(())
}

#[tokio::test]
async fn development_may_name_an_agent_on_this_machine() -> anyhow::Result<()> {
    let stage = Stage::with("[outbound]\nallow_private = true\n").await?;
    let near = json!({ "kind": "http", "url": "http://127.0.0.1:9/agent", "secret": SECRET });
    stage.put(&stage.acme.admin, "/channels/executors", &near)?.expect(200)?;
    let metadata = json!({ "kind": "http", "url": "http://169.254.169.254/", "secret": SECRET });
    assert_eq!(stage.put(&stage.acme.admin, "/channels/executors", &metadata)?.field(422)?, "url");
    Ok(())
}

#[tokio::test]
async fn messages_are_listed_and_shown_with_their_replies() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let team = stage.conversation("team", "slack").await?;
    let other = stage.conversation("other", "telegram").await?;
    let (executed, reply_id) = team.answer("m-1", "ada", "hello\u{1b}[2J").await?;
    team.receive("m-1", "ada", "hello\u{1b}[2J").await?;
    team.receive("m-2", "mallory", "let me in").await?;
    let _open = other.accept("m-3", "ada", "still at it").await?;
    let failed = other.accept("m-4", "ada", "hm").await?;
    let kept = Reply { text: "kept".to_owned(), thread: None };
    messages::fail(&stage.admin, failed, Some(&kept), "the outbox is full").await?;

    let viewer = &stage.acme.viewer;
    for (query, expected) in [
        ("", &["m-4", "m-3", "m-2", "m-1"][..]),
        ("?status=executed", &["m-1"]),
        ("?status=denied_unlinked", &["m-2"]),
        ("?account=other", &["m-4", "m-3"]),
        ("?account=other&status=accepted", &["m-3"]),
        ("?sender_id=ada", &["m-4", "m-3", "m-1"]),
        ("?sender_id=nobody", &[]),
        ("?account=nowhere", &[]),
    ] {
        let listed = walk(&stage, viewer, &format!("/channels/messages{query}"), 1, |_| Ok(()))?;
        assert_eq!(column(&listed, "provider_message_id"), expected, "{query}");
        assert!(listed.iter().all(|message| message.get("reply").is_none()), "{query}");
    }
    let listed = stage.get(viewer, "/channels/messages")?.expect(200)?["items"].clone();
    let show = |message: &str| stage.get(viewer, &format!("/channels/messages/{message}"))?.expect(200);
    let shown = show(&executed.0.to_string())?;
    for (member, expected) in [
        ("status", json!("executed")),
        ("text", json!("hello\u{1b}[2J")),
        ("user_id", json!("ada@example.org")),
        ("role", json!("operator")),
        ("deliveries", json!(2)),
        ("executions", json!(1)),
        ("recipient_id", json!("room-of-ada")),
        ("thread", json!("thread-1")),
        ("reply_id", json!(reply_id)),
        ("kept_reply", json!(null)),
    ] {
        assert_eq!(shown[member], expected, "{member}");
    }
    let reply = &shown["reply"];
    assert_eq!((&reply["id"], &reply["status"]), (&json!(reply_id), &json!("pending")));
    assert_eq!(reply["payload"], json!({ "text": "you said: hello\u{1b}[2J", "thread": "thread-1" }));
    assert_eq!(reply["correlation_id"], shown["correlation_id"]);
    assert_eq!(*reply, stage.get(viewer, &format!("/channels/outbox/{}", reply_id.0))?.expect(200)?);

    let denied = show(listed[2]["id"].as_str().unwrap_or_default())?;
    assert_eq!(
        (&denied["last_error"], &denied["reply"], &denied["user_id"]),
        (&json!("no user is linked to this sender"), &json!(null), &json!(null))
    );
    let failed = show(listed[0]["id"].as_str().unwrap_or_default())?;
    assert_eq!(
        (&failed["status"], &failed["kept_reply"], &failed["last_error"], &failed["reply"]),
        (&json!("dispatch_failed"), &json!({ "text": "kept" }), &json!("the outbox is full"), &json!(null))
    );
    assert_eq!(stage.get(viewer, "/channels/messages?status=lost")?.field(400)?, "status");
    Ok(())
}

#[tokio::test]
async fn a_dead_reply_is_queued_again_once_audited_and_hinted() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let team = stage.conversation("team", "slack").await?;
    let dead = team.die("m-1", "ada", "channel_not_found").await?;
    let (operator, viewer) = (&stage.acme.operator, &stage.acme.viewer);
    let shown = stage.get(viewer, &format!("/channels/outbox/{}", dead.0))?.expect(200)?;
    assert_eq!(
        (&shown["status"], &shown["last_error"], &shown["attempt_count"]),
        (&json!("dead"), &json!("channel_not_found"), &json!(1))
    );
    let cancelled = CancellationToken::new();
    let url = stage.world.url("postrider_worker");
    let (mut hints, listening) = wakeups::listen(&url, replies::HINT_CHANNEL, cancelled.clone())?;
    let listener = tokio::spawn(listening);
    // The test ignores a hint that arrived while the listener started.
    hints.changed().await?;
    hints.mark_unchanged();

    let path = format!("/channels/outbox/{}/requeue", dead.0);
    stage.call("POST", &path).key(viewer).send()?.problem(403)?;
    let requeue = || stage.call("POST", &path).key(operator).idempotency_key("k").send();
    let queued = requeue()?.expect(200)?;
    assert_eq!(
        (&queued["id"], &queued["status"], &queued["attempt_count"]),
        (&json!(dead), &json!("pending"), &json!(0))
    );
    tokio::time::timeout(PATIENCE, hints.changed()).await??;
    let again = requeue()?;
    assert_eq!((again.header("idempotent-replayed"), again.expect(200)?), (Some("true"), queued));
    let refused = |state: &str| {
        let problem = stage.call("POST", &path).key(operator).send()?.problem(409)?;
        assert_eq!(problem["current_state"], state, "{problem}");
        anyhow::Ok(())
    };
    refused("pending")?;
    settle_all(&stage.admin, &Verdict::Sent { message_id: "1.2".to_owned() }).await?;
    refused("sent")?;

    let audited = stage.audited(&format!("reply:{}", dead.0))?;
    let expected = [("reply.dead", "hand".to_owned()), ("reply.requeued", stage.actor(operator)?)];
    assert_eq!(audited, expected.map(|(action, actor)| (action.to_owned(), actor)));
    cancelled.cancel();
    listener.await?;
    Ok(())
}

#[tokio::test]
async fn a_message_that_failed_is_taken_up_again_by_hand() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let team = stage.conversation("team", "slack").await?;
    team.link("ada", "ada@example.com", Role::Operator).await?;
    let execution = team.accept("m-1", "ada", "hello").await?;
    let id = execution.message_id.0;
    let operator = &stage.acme.operator;
    let path = format!("/channels/messages/{id}/retry");
    let refused = |state: &str| {
        let problem = stage.call("POST", &path).key(operator).send()?.problem(409)?;
        assert_eq!(problem["current_state"], state, "{problem}");
        anyhow::Ok(())
    };
    refused("accepted")?;
    messages::fail(&stage.admin, execution, None, "the agent is away").await?;
    stage.call("POST", &path).key(&stage.acme.viewer).send()?.problem(403)?;
    let taken = stage.call("POST", &path).key(operator).send()?.expect(202)?;
    assert_eq!((&taken["id"], &taken["status"]), (&json!(id), &json!("dispatch_failed")));
    let audited = stage.audited(&format!("message:{id}"))?;
    assert_eq!(audited, [("message.retried".to_owned(), stage.actor(operator)?)]);
    let lease = std::time::Duration::from_secs(60);
    let again = messages::claim_unfinished(&stage.admin, stage.acme.id, 10, lease).await?;
    assert_eq!(again.iter().map(|execution| execution.message_id.0).collect::<Vec<_>>(), [id]);
    let unknown = format!("/channels/messages/{}/retry", uuid::Uuid::now_v7());
    stage.call("POST", &unknown).key(operator).send()?.problem(404)?;
    Ok(())
}

#[tokio::test]
async fn many_dead_replies_are_queued_again_by_a_filter_and_all_only_when_asked() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let team = stage.conversation("team", "slack").await?;
    let other = stage.conversation("other", "telegram").await?;
    let beta = stage.tenant("beta").await?;
    let theirs = Conversation::new(&stage.admin, beta.id, beta.workspace_id, "team", "slack").await?;
    theirs.link("eve", "eve", Role::Admin).await?;
    theirs.die("m-1", "eve", "Timeout at the gateway").await?;
    // The n-th died n hours ago.
    for (n, (conversation, error)) in [
        (&team, "channel_not_found"),
        (&team, "timeout"),
        (&other, "Timeout at the gateway"),
        (&other, "blocked by the user 100%"),
    ]
    .into_iter()
    .enumerate()
    {
        let id = conversation.die(&format!("m-{n}"), "ada", error).await?;
        let age = format!(
            "update channels.channel_outbox set updated_at = now() - interval '{} hours' where id = '{}'",
            n + 1,
            id.0
        );
        execute(&stage.admin, age).await?;
    }
    let path = "/channels/outbox/requeue";
    let operator = &stage.acme.operator;
    let ago = |minutes: i64| jiff::Timestamp::now() - jiff::SignedDuration::from_mins(minutes);
    for (filter, expected) in [
        (json!({ "account": "team" }), &["channel_not_found", "timeout"][..]),
        (json!({ "account": other.account }), &["Timeout at the gateway", "blocked by the user 100%"]),
        (json!({ "provider": "telegram" }), &["Timeout at the gateway", "blocked by the user 100%"]),
        (json!({ "provider": "pigeon" }), &[]),
        (json!({ "error_contains": "TIMEOUT" }), &["Timeout at the gateway", "timeout"]),
        // It is a text and no pattern.
        (json!({ "error_contains": "%" }), &["blocked by the user 100%"]),
        (json!({ "error_contains": "_" }), &["channel_not_found"]),
        (json!({ "error_contains": "timeout", "account": "team" }), &["timeout"]),
        (json!({ "dead_before": ago(150) }), &["Timeout at the gateway", "blocked by the user 100%"]),
        (json!({ "dead_since": ago(150) }), &["channel_not_found", "timeout"]),
        (json!({ "dead_since": ago(210), "dead_before": ago(90) }), &["Timeout at the gateway", "timeout"]),
        // The longest dead come first.
        (json!({ "all": true, "limit": 1 }), &["blocked by the user 100%"]),
        (
            json!({ "all": true }),
            &["Timeout at the gateway", "blocked by the user 100%", "channel_not_found", "timeout"],
        ),
    ] {
        let requeued =
            stage.post(operator, path, &filter)?.expect(200).with_context(|| filter.to_string())?;
        assert_eq!(requeued, json!({ "requeued": expected.len() }), "{filter}");
        let pending = "select last_error from channels.channel_outbox where status = 'pending' order by last_error collate \"C\"";
        assert_eq!(texts(&stage.admin, pending).await?, expected, "{filter}");
        // As it was, for the next one.
        let back = "alter table channels.channel_outbox disable trigger user;
                    update channels.channel_outbox set status = 'dead' where status = 'pending';
                    alter table channels.channel_outbox enable trigger user;
                    update channels.channel_outbox set updated_at = now() - age.hours * interval '1 hour'
                      from (values ('channel_not_found', 1), ('timeout', 2), ('Timeout at the gateway', 3), ('blocked by the user 100%', 4))
                           as age (error, hours)
                     where last_error = age.error";
        execute(&stage.admin, back).await?;
    }
    let of_others = "select count(*) from channels.channel_outbox as reply
                       join tenancy.tenants as tenant on tenant.id = reply.tenant_id
                      where tenant.name = 'beta' and reply.status = 'dead' and reply.claims = 1";
    assert_eq!(stage.count(of_others).await?, 1);

    for (body, status, field) in [
        (json!({}), 422, "all"),
        (json!({ "all": false }), 422, "all"),
        (json!({ "limit": 5 }), 422, "all"),
        (json!({ "all": true, "account": "team" }), 422, "all"),
        (json!({ "account": "nowhere" }), 422, "account"),
        (json!({ "account": theirs.account }), 422, "account"),
        (json!({ "error_contains": "" }), 422, "error_contains"),
        (json!({ "error_contains": "x".repeat(1001) }), 422, "error_contains"),
        (json!({ "all": true, "limit": 0 }), 422, "limit"),
        (json!({ "all": true, "limit": 10001 }), 422, "limit"),
        (json!({ "dead_since": "yesterday" }), 400, "dead_since"),
        (json!({ "dead_since": "-009000-01-02T00:00:00Z" }), 422, "dead_since"),
        (json!({ "dead_before": "-000001-01-02T00:00:00Z" }), 422, "dead_before"),
        (json!({ "all": "yes" }), 400, "all"),
        (json!({ "ids": [] }), 400, "ids"),
    ] {
        let reply = stage.post(operator, path, &body)?;
        assert_eq!(reply.field(status).with_context(|| body.to_string())?, field, "{body}");
    }
    // The far future is a time, too.
    stage.post(operator, path, &json!({ "dead_since": "9999-12-30T00:00:00Z" }))?.expect(200)?;
    stage.post(&stage.acme.viewer, path, &json!({ "all": true }))?.problem(403)?;
    let dead = "select count(*) from channels.channel_outbox where status = 'dead'";
    assert_eq!(stage.count(dead).await?, 5);
    Ok(())
}

#[tokio::test]
async fn replies_are_listed_by_state_account_and_vendor() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let team = stage.conversation("team", "slack").await?;
    let other = stage.conversation("other", "telegram").await?;
    team.answer("m-1", "ada", "one").await?;
    settle_all(&stage.admin, &Verdict::Sent { message_id: "1.2".to_owned() }).await?;
    other.die("m-2", "ada", "no").await?;
    team.answer("m-3", "ada", "three").await?;
    for (query, expected) in [
        ("", &["you said: three", "you said: hello", "you said: one"][..]),
        ("?status=sent", &["you said: one"]),
        ("?status=dead", &["you said: hello"]),
        ("?status=pending&account=team", &["you said: three"]),
        ("?account=team", &["you said: three", "you said: one"]),
        ("?provider=telegram", &["you said: hello"]),
        ("?provider=telegram&account=team", &[]),
        ("?account=nowhere", &[]),
    ] {
        let path = format!("/channels/outbox{query}");
        let listed = walk(&stage, &stage.acme.viewer, &path, 1, |_| Ok(()))?;
        let said: Vec<_> = listed.iter().map(|reply| reply["payload"]["text"].clone()).collect();
        assert_eq!(said, expected, "{query}");
    }
    let sent = stage.get(&stage.acme.viewer, "/channels/outbox?status=sent")?.expect(200)?;
    assert_eq!(sent["items"][0]["provider_message_id"], "1.2");
    assert!(sent["items"][0]["sent_at"].is_string(), "{sent}");
    assert_eq!(stage.get(&stage.acme.viewer, "/channels/outbox?status=lost")?.field(400)?, "status");
    assert_eq!(stage.get(&stage.acme.viewer, "/channels/outbox?limit=0")?.field(400)?, "limit");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn conversations_of_others_do_not_exist() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let beta = stage.tenant("beta").await?;
    let theirs = Conversation::new(&stage.admin, beta.id, beta.workspace_id, "theirs", "slack").await?;
    let link = theirs.link("eve", "eve", Role::Admin).await?;
    let (message, _) = theirs.answer("m-1", "eve", "secret").await?;
    let dead = theirs.die("m-2", "eve", "no").await?;
    let executors = stage.get(&beta.viewer, "/channels/executors")?.expect(200)?;
    let executor = id(&executors["items"][0])?;
    let nothing = || Value::Null;
    let admin = &stage.acme.admin;
    for (method, path, theirs) in [
        ("DELETE", "/channels/links/{id}", link.0.to_string()),
        ("DELETE", "/channels/executors/{id}", executor),
        ("GET", "/channels/messages/{id}", message.0.to_string()),
        ("GET", "/channels/outbox/{id}", dead.0.to_string()),
        ("POST", "/channels/outbox/{id}/requeue", dead.0.to_string()),
    ] {
        assert_same_404(&stage, admin, &[(method, path, nothing())], &theirs)?;
    }
    for list in ["links", "executors", "messages", "outbox"] {
        let path = format!("/channels/{list}");
        assert_eq!(stage.get(admin, &path)?.expect(200)?["items"], json!([]), "{list}");
        assert_ne!(stage.get(&beta.viewer, &path)?.expect(200)?["items"], json!([]), "{list}");
    }
    // Named in a body, by name or id, their account is no account.
    for account in ["theirs".to_owned(), theirs.account.0.to_string()] {
        let new = json!({ "account": account, "sender_id": "U1", "user_id": "bob", "role": "viewer" });
        assert_eq!(stage.post(admin, "/channels/links", &new)?.field(422)?, "account");
        let echo = json!({ "account": account, "kind": "echo" });
        assert_eq!(stage.put(admin, "/channels/executors", &echo)?.field(422)?, "account");
    }
    let all = stage.post(admin, "/channels/outbox/requeue", &json!({ "all": true }))?.expect(200)?;
    assert_eq!(all["requeued"], 0);
    Ok(())
}
