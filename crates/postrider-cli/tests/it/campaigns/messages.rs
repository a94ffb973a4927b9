//! Single messages: applications send them in transactions of their own, and workers send them as the items of runs.

use std::{collections::BTreeSet, time::Instant};

use anyhow::Context;
use postrider_model::{IdempotencyKey, ids::SingleMessageId};
use sqlx::{AssertSqlSafe, Connection, PgConnection};
use uuid::Uuid;

use super::stage::Stage;
use crate::{
    sql::{execute, number, refusal, texts},
    world::{Server, Sim, World, eventually},
};

/// A worker that polls so seldom that only a hint wakes it.
const BY_HINTS: &str = "[outbound]\nallow_private = true\n[campaigns]\npoll_interval_ms = 60000\ncall_timeout_seconds = 3\n[resolver]\npoll_interval_ms = 50\n";

/// A login of an application: it may publish events and send messages, and nothing else.
struct Application {
    name: String,
    url: String,
    tenant: Uuid,
}

impl Application {
    async fn new(world: &World, stage: &Stage) -> anyhow::Result<Self> {
        let name = format!("application_{}", Uuid::now_v7().simple());
        execute(&stage.admin, format!("create role {name} login in role postrider_publish")).await?;
        Ok(Self { url: world.url(&name), name, tenant: stage.tenant })
    }

    async fn connect(&self) -> anyhow::Result<PgConnection> {
        Ok(PgConnection::connect(&self.url).await?)
    }

    /// A statement that sends a message with this key and text.
    fn send(&self, key: &str, text: &str) -> String {
        format!(
            "select execution.send_message('{}', 'email', 'sim', '{key}@example.com', '{key}',
                                           p_content => '{{\"subject\": \"Order\", \"text\": \"{text}\"}}')::text",
            self.tenant
        )
    }

    async fn end(self, stage: &Stage) -> anyhow::Result<()> {
        execute(&stage.admin, format!("drop role {}", self.name)).await?;
        Ok(())
    }
}

async fn ask(connection: &mut PgConnection, sql: String) -> Result<String, sqlx::Error> {
    sqlx::query_scalar(AssertSqlSafe(sql)).fetch_one(connection).await
}

/// The addresses of the mails that the sim sent.
fn reached(sim: &Sim) -> anyhow::Result<Vec<String>> {
    let receipts = sim.receipts()?;
    let acted = receipts.iter().filter(|receipt| receipt["acted"] == true);
    let mut reached: Vec<String> =
        acted.map(|receipt| receipt["to"].as_str().unwrap_or_default().to_owned()).collect();
    reached.sort();
    Ok(reached)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_is_sent_if_and_only_if_the_transaction_of_its_application_commits() -> anyhow::Result<()> {
    let world = World::new().await?;
    let sim = Sim::start(&[])?;
    let stage = Stage::with_sim(&world, &sim, 1).await?;
    let application = Application::new(&world, &stage).await?;
    // Neither a poll nor a campaign wakes the worker: the message does.
    let _worker = Server::start(&world, "campaigns", BY_HINTS)?;
    let mut client = application.connect().await?;
    execute(&mut client, "begin").await?;
    ask(&mut client, application.send("rolled-back", "never")).await?;
    execute(&mut client, "rollback").await?;
    for key in ["first", "second"] {
        execute(&mut client, "begin").await?;
        let id = ask(&mut client, application.send(key, "hello")).await?;
        assert_eq!(ask(&mut client, application.send(key, "hello")).await?, id, "in the same transaction");
        execute(&mut client, "commit").await?;
        let address = format!("{key}@example.com");
        eventually("the message is sent", || async { Ok(reached(&sim)?.contains(&address)) }).await?;
        assert_eq!(ask(&mut client, application.send(key, "hello")).await?, id, "after the call");
        let other = refusal(ask(&mut client, application.send(key, "another")).await)?;
        assert_eq!(other.code, "PR005");
        assert!(
            other.message.contains(&format!("the key `{key}` was used for another message, {id}")),
            "{other:?}"
        );

        let keys =
            format!("select idempotency_key from execution.channel_outbox where recipient_id = '{id}'");
        let expected = IdempotencyKey::of_message(SingleMessageId(id.parse()?));
        assert_eq!(
            texts(&stage.admin, keys).await?,
            [expected.as_str()],
            "SQL and Rust compute the same key"
        );
    }
    assert_eq!(reached(&sim)?, ["first@example.com", "second@example.com"]);
    for n in 0..20 {
        ask(&mut client, application.send(&format!("next-{n}"), "hello")).await?;
        eventually("the next is sent", || async { Ok(reached(&sim)?.len() == 3 + n) }).await?;
    }
    let latency = "select percentile_cont(0.5) within group (order by extract(epoch from item.created_at - message.created_at) * 1000)
                     from execution.messages as message join execution.channel_outbox as item on item.recipient_id = message.id";
    let latency: f64 = sqlx::query_scalar(latency).fetch_one(&stage.admin).await?;
    eprintln!("from the hand-over to the reservation: p50 {latency:.1} ms");
    assert!(latency < 1000.0, "hints wake the worker, not polls: {latency} ms");
    let runs = "select cause || ' ' || (campaign_id is null) || ' ' || intended from execution.campaign_runs";
    assert_eq!(texts(&stage.admin, runs).await?, ["message true 1"; 22]);
    client.close().await?;
    application.end(&stage).await
}

#[tokio::test(flavor = "multi_thread")]
async fn sixteen_applications_with_one_key_send_one_message() -> anyhow::Result<()> {
    let world = World::new().await?;
    let sim = Sim::start(&[])?;
    let stage = Stage::with_sim(&world, &sim, 1).await?;
    let application = Application::new(&world, &stage).await?;
    let _workers =
        [Server::start(&world, "campaigns", BY_HINTS)?, Server::start(&world, "campaigns", BY_HINTS)?];
    let mut clients = Vec::new();
    for _ in 0..16 {
        clients.push(application.connect().await?);
    }
    let (text, same) = (application.send("one", "hello"), tokio::sync::Barrier::new(16));
    let sending = clients.iter_mut().map(|client| {
        let (text, same) = (text.clone(), &same);
        async move {
            same.wait().await;
            ask(client, text).await
        }
    });
    let ids: BTreeSet<String> =
        futures::future::join_all(sending).await.into_iter().collect::<Result<_, _>>()?;
    assert_eq!(ids.len(), 1, "{ids:?}");
    eventually("the message is sent", || async { Ok(reached(&sim)?.len() == 1) }).await?;
    let ended = "select count(*) from execution.campaign_runs where status = 'completed'";
    eventually("its run ends", || async { Ok(number(&stage.admin, ended).await? == 1) }).await?;
    assert_eq!(number(&stage.admin, "select count(*) from execution.channel_outbox").await?, 1);
    for client in clients {
        client.close().await?;
    }
    application.end(&stage).await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_application_sends_for_tenants_and_reads_nothing() -> anyhow::Result<()> {
    let world = World::new().await?;
    let sim = Sim::start(&[])?;
    let stage = Stage::with_sim(&world, &sim, 1).await?;
    let other = Stage::new(&world, "other").await?;
    let application = Application::new(&world, &stage).await?;
    let mut client = application.connect().await?;
    ask(&mut client, application.send("k", "hello")).await?;
    for read in [
        "select key from execution.messages",
        "select group_messages from execution.group_messages(null, 'w')",
    ] {
        assert_eq!(refusal(ask(&mut client, read.to_owned()).await)?.code, "42501", "{read}");
    }
    // The account belongs to another tenant.
    let foreign =
        application.send("k", "hello").replace(&stage.tenant.to_string(), &other.tenant.to_string());
    assert_eq!(refusal(ask(&mut client, foreign).await)?.code, "P0002");
    let unknown =
        application.send("k", "hello").replace(&stage.tenant.to_string(), &Uuid::now_v7().to_string());
    assert_eq!(refusal(ask(&mut client, unknown).await)?.code, "P0002");
    // A login of the app's role needs the signature of the server.
    let mut app = PgConnection::connect(&world.url("postrider_app")).await?;
    execute(&mut app, format!("set app.current_tenant_id = '{}'", stage.tenant)).await?;
    assert_eq!(refusal(ask(&mut app, application.send("k2", "hello")).await)?.code, "42501");

    let tenant = stage.tenant;
    let refused = [
        ("null, 'sim', 'a@b.c', 'k', p_content => '{}'", "the channel is email, voice or social"),
        ("'chat', 'sim', 'a@b.c', 'k', p_content => '{}'", "the channel is email, voice or social"),
        ("'email', 'sim', 'nobody', 'k', p_content => '{}'", "is an e-mail address"),
        ("'email', 'sim', null, 'k', p_content => '{}'", "is an e-mail address"),
        ("'voice', 'sim', '030', 'k', p_content => '{}'", "is a phone number"),
        ("'social', 'sim', 'a@b.c', 'k', p_content => '{}'", "is left out"),
        ("'email', 'sim', 'a@b.c', ' ', p_content => '{}'", "the key must be given"),
        ("'email', 'sim', 'a@b.c', null, p_content => '{}'", "the key must be given"),
        ("'email', 'sim', 'a@b.c', E'a\\nb', p_content => '{}'", "the key must be given"),
        ("'email', 'sim', 'a@b.c', 'n'", "either an asset or content"),
        ("'email', 'sim', 'a@b.c', 'n', 'news', '{}'", "either an asset or content"),
        ("'email', 'sim', 'a@b.c', 'n', p_content => '[]'", "the content is a JSON object"),
        (
            "'email', 'sim', 'a@b.c', 'n', p_content => '{}', p_variables => '[]'",
            "the variables are a JSON object",
        ),
        (
            "'email', 'sim', 'a@b.c', 'n', p_content => '{}', p_variables => null",
            "the variables are a JSON object",
        ),
        ("'email', 'sim', 'a@b.c', 'n', p_content => '{}', p_variables => '{\"lead\": 1}'", "without `lead`"),
        ("'email', 'sim', 'a@b.c', 'n', p_content => '{}', p_send_after => 'infinity'", "ten years ahead"),
        ("'email', 'none', 'a@b.c', 'n', p_content => '{}'", "there is no provider account `none`"),
        ("'email', 'sim', 'a@b.c', 'n', 'news@7'", "there is no asset `news@7`"),
    ];
    for (arguments, problem) in refused {
        let sql = format!("select execution.send_message('{tenant}', {arguments})::text");
        let told = refusal(ask(&mut client, sql).await)?;
        assert!(told.message.contains(problem), "{arguments}: {told:?}");
    }
    assert_eq!(number(&stage.admin, "select count(*) from execution.messages").await?, 1);
    client.close().await?;
    application.end(&stage).await
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_keep_limits_suppressions_and_their_time_like_items() -> anyhow::Result<()> {
    let world = World::new().await?;
    let sim = Sim::start(&[])?;
    let stage = Stage::with_sim(&world, &sim, 2).await?;
    let send = |key: &str, more: &str| {
        format!(
            "select execution.send_message(tenancy.current_tenant_id(), 'email', 'sim', '{key}@example.com', '{key}',
                                           p_content => '{{\"subject\": \"{{{{ title }}}}\", \"text\": \"hello\"}}' {more})::text"
        )
    };
    execute(
        &stage.admin,
        "update execution.leads set suppressed_at = now(), suppression_reason = 'unsubscribed' where email = 'all0@example.com'",
    )
    .await?;
    stage.ask(&send("ALL0", ", p_variables => '{\"title\": \"a\"}'")).await?;
    stage.ask(&send("undefined", "")).await?;
    stage.ask(&send("good", ", p_variables => '{\"title\": \"a\"}'")).await?;
    stage
        .ask(&send(
            "late",
            ", p_variables => '{\"title\": \"a\"}', p_send_after => now() + interval '1 hour'",
        ))
        .await?;
    let _worker = Server::start(&world, "campaigns", BY_HINTS.replace("60000", "50").as_str())?;
    let ended = "select key || ' ' || item.status || ' ' || coalesce(item.error, '-')
                   from execution.messages as message join execution.channel_outbox as item on item.recipient_id = message.id
                  where item.status <> 'queued' order by 1";
    eventually("three messages end", || async { Ok(texts(&stage.admin, ended).await?.len() == 3) }).await?;
    let ends = texts(&stage.admin, ended).await?;
    assert_eq!(ends[0], "ALL0 skipped suppressed: unsubscribed");
    assert_eq!(ends[1], "good sent -");
    assert!(ends[2].starts_with("undefined failed the subject cannot be filled in"), "{}", ends[2]);
    assert_eq!(reached(&sim)?, ["good@example.com"]);
    let waiting = "select key from execution.messages where run_id is null";
    assert_eq!(texts(&stage.admin, waiting).await?, ["late"]);
    // The account may make one call a day: of two messages, one waits in its send job.
    execute(&stage.admin, "update tenancy.provider_accounts set limits = '{\"daily\": 1}'").await?;
    for key in ["today", "tomorrow"] {
        stage.ask(&send(key, ", p_variables => '{\"title\": \"a\"}'")).await?;
    }
    let put_off = "select count(*) from execution.job_queue where waits_for = 'daily'";
    eventually("one waits for its account", || async { Ok(number(&stage.admin, put_off).await? == 1) })
        .await?;
    assert_eq!(reached(&sim)?.len(), 2);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_in_doubt_is_settled_by_the_resolver_and_never_called_again() -> anyhow::Result<()> {
    let world = World::new().await?;
    // It acts and hangs up.
    let sim = Sim::start(&["--rule", r#"{"fault": "reset"}"#])?;
    let stage = Stage::with_sim(&world, &sim, 1).await?;
    let _server = Server::start(&world, "campaigns,resolver", BY_HINTS.replace("60000", "50").as_str())?;
    let id = stage
        .ask(
            "select execution.send_message(tenancy.current_tenant_id(), 'email', 'sim', 'ann@example.com', 'k',
                                           p_content => '{\"subject\": \"a\", \"text\": \"b\"}')::text",
        )
        .await?;
    let doubted = "select count(*) from execution.campaign_audit_log where action = 'item.in_doubt' and campaign_id is null";
    eventually("it is in doubt", || async { Ok(number(&stage.admin, doubted).await? == 1) }).await?;
    sim.release()?;
    let settled = format!(
        "select status from execution.channel_outbox where recipient_id = '{id}' and status <> 'queued'"
    );
    eventually("the resolver settles it", || async { Ok(texts(&stage.admin, &settled).await? == ["sent"]) })
        .await?;
    assert_eq!(reached(&sim)?, ["ann@example.com"], "it was looked up, not repeated");
    assert_eq!(number(&stage.admin, doubted).await?, 1);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn many_messages_at_once_share_runs() -> anyhow::Result<()> {
    const MESSAGES: usize = 4_000;
    let world = World::new().await?;
    let sim = Sim::start(&[])?;
    let stage = Stage::with_sim(&world, &sim, 1).await?;
    let all = format!(
        "select count(execution.send_message(tenancy.current_tenant_id(), 'email', 'sim', n || '@example.com', n::text,
                                             p_content => '{{\"subject\": \"{{{{ n }}}}\", \"text\": \"b\"}}',
                                             p_variables => jsonb_build_object('n', n)))::text
           from generate_series(1, {MESSAGES}) as n"
    );
    stage.ask(&all).await?;
    let begun = Instant::now();
    let _worker = Server::start(&world, "campaigns", BY_HINTS.replace("60000", "50").as_str())?;
    let sent = "select count(*) from execution.channel_outbox where status = 'sent'";
    eventually("every message is sent", || async {
        Ok(number(&stage.admin, sent).await? as usize == MESSAGES)
    })
    .await?;
    eprintln!("{MESSAGES} messages in {:?}, the start of the worker included", begun.elapsed());
    let runs = number(&stage.admin, "select count(*) from execution.campaign_runs").await?;
    assert_eq!(runs, 1, "messages that wait together are one run");
    let receipts = sim.receipts()?;
    let keys: BTreeSet<_> = receipts.iter().filter_map(|receipt| receipt["key"].as_str()).collect();
    assert_eq!((receipts.len(), keys.len()), (MESSAGES, MESSAGES));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_erasure_removes_what_messages_say_and_their_keys_stay_used() -> anyhow::Result<()> {
    let world = World::new().await?;
    let sim = Sim::start(&[])?;
    let stage = Stage::with_sim(&world, &sim, 1).await?;
    let send = |key: &str, more: &str| {
        format!(
            "select execution.send_message(tenancy.current_tenant_id(), 'email', 'sim', 'All0@example.com', 'all0@example.com {key}',
                                           p_content => '{{\"subject\": \"Dear {{{{ name }}}}\", \"text\": \"b\"}}',
                                           p_variables => '{{\"name\": \"Zandvoort\"}}' {more})::text"
        )
    };
    let sent = stage.ask(&send("sent", "")).await?;
    let late = stage.ask(&send("late", ", p_send_after => now() + interval '1 hour'")).await?;
    let worker = Server::start(&world, "campaigns", BY_HINTS.replace("60000", "50").as_str())?;
    let ended = "select count(*) from execution.campaign_runs where status = 'completed'";
    eventually("the first is sent", || async { Ok(number(&stage.admin, ended).await? == 1) }).await?;
    drop(worker);
    let erased = world.postrider(&[
        "leads",
        "erase",
        "--tenant",
        &stage.tenant.to_string(),
        "--yes",
        "all0@example.com",
    ])?;
    anyhow::ensure!(erased.code == 0, "{}", erased.stderr);
    let left = "select count(*) from execution.messages as message
                 where (message.*)::text ilike '%all0@%' or (message.*)::text ilike '%zandvoort%'";
    assert_eq!(number(&stage.admin, left).await?, 0);
    let items = "select count(*) from execution.channel_outbox as item where (item.*)::text ilike any (array['%all0@%', '%zandvoort%'])";
    assert_eq!(number(&stage.admin, items).await?, 0);
    let ends = "select coalesce(ended_as, 'in a run') from execution.messages order by created_at";
    assert_eq!(texts(&stage.admin, ends).await?, ["in a run", "skipped"]);
    // The keys are used for ever, and nothing is sent under them.
    assert_eq!(stage.ask(&send("sent", "")).await?, sent);
    assert_eq!(stage.ask(&send("late", ", p_send_after => now() + interval '1 hour'")).await?, late);
    assert_eq!(reached(&sim)?.len(), 1);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn retention_deletes_what_messages_say_and_keeps_their_keys_and_ends() -> anyhow::Result<()> {
    let world = World::new().await?;
    let sim = Sim::start(&[])?;
    let stage = Stage::with_sim(&world, &sim, 1).await?;
    let send =
        "select execution.send_message(tenancy.current_tenant_id(), 'email', 'sim', 'ann@example.com', 'k',
                                              p_content => '{\"subject\": \"a\", \"text\": \"b\"}')::text";
    let id = stage.ask(send).await?;
    let worker = Server::start(&world, "campaigns", BY_HINTS.replace("60000", "50").as_str())?;
    let ended = "select count(*) from execution.campaign_runs where status = 'completed'";
    eventually("it is sent", || async { Ok(number(&stage.admin, ended).await? == 1) }).await?;
    drop(worker);
    let age = "set session_replication_role = replica;
               update execution.campaign_runs set created_at = now() - interval '9 days', finished_at = now() - interval '9 days';
               reset session_replication_role";
    execute(&stage.admin, age).await?;
    let run = texts(&stage.admin, "select id::text from execution.campaign_runs").await?.remove(0);
    stage.ask(&format!("select execution.archive_run(tenancy.current_tenant_id(), '{run}', now() - interval '5 days', null, 'r')::text")).await?;
    for _ in 0..3 {
        stage.ask(&format!("select execution.prune_run(tenancy.current_tenant_id(), '{run}')::text")).await?;
    }
    assert_eq!(number(&stage.admin, "select count(*) from execution.channel_outbox").await?, 0);
    let kept = "select concat_ws(' ', key, ended_as, ended_at is not null, recipient, content, variables) from execution.messages";
    assert_eq!(texts(&stage.admin, kept).await?, ["k sent t {}"]);
    let certificate =
        format!("select sent::text from execution.verify_launch(tenancy.current_tenant_id(), '{run}')");
    assert_eq!(stage.ask(&certificate).await?, "1");
    // The same message again is the old one, whatever was deleted, and nothing waits to be sent.
    assert_eq!(stage.ask(send).await?, id);
    let other = send.replace("\"b\"", "\"c\"");
    assert!(stage.ask(&other).await.is_err(), "another message under its key is refused");
    assert_eq!(
        number(&stage.admin, "select count(*) from execution.messages where run_id is null").await?,
        0
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiting_message_of_a_restored_copy_becomes_in_doubt() -> anyhow::Result<()> {
    let world = World::new().await?;
    let sim = Sim::start(&[])?;
    let stage = Stage::with_sim(&world, &sim, 1).await?;
    let id = stage
        .ask(
            "select execution.send_message(tenancy.current_tenant_id(), 'email', 'sim', 'ann@example.com', 'k',
                                           p_content => '{\"subject\": \"{{ n }}\", \"text\": \"b\"}', p_variables => '{\"n\": 1}')::text",
        )
        .await?;
    let items = stage
        .ask("select items::text from tenancy.adopt_tenant(tenancy.current_tenant_id(), gen_random_uuid(), now() - interval '1 hour', 'me')")
        .await?;
    assert_eq!(items, "1");
    let item = format!(
        "select status || ' ' || recipient || ' ' || (in_doubt_since is not null)
           from execution.channel_outbox
          where idempotency_key = '{}'",
        IdempotencyKey::of_message(SingleMessageId(id.parse().context("an id")?))
    );
    assert_eq!(texts(&stage.admin, item).await?, ["queued ann@example.com true"]);
    Ok(())
}
