//! An execution ends on its own: whoever goes away, and whatever stops.

use std::io::Write;

use super::{
    agent::Does,
    stage::{Stage, status},
    vendors::Vendor,
};
use crate::{
    api::Call,
    http::{connect, get},
    postgres::Postgres,
    world::{MASTER_KEY, Server, eventually, postrider, run},
};

#[tokio::test(flavor = "multi_thread")]
async fn a_message_is_executed_to_its_end_although_who_delivered_it_is_gone() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let bot = stage.bot(Vendor::Slack).await?;
    stage.agent.at("/agent", Does::Holds("at last".to_owned()));
    let webhook = bot.vendor.message(1, "hello");
    let (mut stream, address) = connect(&stage.server.http_url)?;
    let mut request = format!(
        "POST {} HTTP/1.1\r\nhost: {address}\r\ncontent-length: {}\r\n",
        bot.path(),
        webhook.body.len()
    );
    for (name, value) in webhook.signed("own") {
        request.push_str(&format!("{name}: {value}\r\n"));
    }
    stream.write_all(format!("{request}\r\n").as_bytes())?;
    stream.write_all(&webhook.body)?;
    stage.agent.wait_for("/agent", 1)?;
    drop(stream);
    // The server has heard that its peer is gone once it has answered somebody who came later.
    assert_eq!(stage.say(&bot, 1, "hello")?, "duplicate");
    stage.agent.release();
    eventually("the message is executed", async || Ok(stage.statuses().await? == ["executed"])).await?;
    assert_eq!(stage.agent.asked("/agent").len(), 1);
    stage.check().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_told_to_stop_ends_what_it_executes_and_begins_nothing() -> anyhow::Result<()> {
    let mut stage = Stage::new().await?;
    let bot = stage.bot(Vendor::Webhook).await?;
    stage.agent.at("/agent", Does::Holds("at last".to_owned()));
    let webhook = bot.vendor.message(1, "hello");
    let first = stage.delivering(&bot, &webhook);
    stage.agent.wait_for("/agent", 1)?;
    stage.server.process.signal("TERM")?;
    stage.server.process.wait_for_line("a second signal stops the process at once")?;
    let refused = stage.deliver(&bot, &bot.vendor.message(2, "hello"))?.problem(503)?;
    assert!(refused["detail"].as_str().unwrap_or_default().contains("shutting down"), "{refused}");
    // It is alive as long as it has something to end.
    assert_eq!(get(&stage.server.http_url, "/healthz")?.status, 200);
    stage.agent.release();
    assert_eq!(status(&first.answer()?.expect(200)?)?, "executed");
    assert_eq!(stage.server.process.wait()?.code(), Some(0));
    assert_eq!(stage.statuses().await?, ["executed"]);
    stage.check().await
}

#[tokio::test(flavor = "multi_thread")]
async fn there_are_no_more_executions_at_a_time_than_there_is_room_for() -> anyhow::Result<()> {
    // For one account.
    const ROOM: u32 = 64;
    const PER_WEBHOOK: u32 = 8;
    let stage = Stage::new().await?;
    let bot = stage.bot(Vendor::Whatsapp).await?;
    stage.agent.at("/agent", Does::Holds("at last".to_owned()));
    let sender = bot.vendor.sender();
    let several = |first: u32| {
        let said: Vec<_> = (first..first + PER_WEBHOOK).map(|n| (n, sender, "hello")).collect();
        bot.vendor.messages(&said)
    };
    let full: Vec<_> = (0..ROOM)
        .step_by(PER_WEBHOOK as usize)
        .map(|first| stage.delivering(&bot, &several(first)))
        .collect();
    stage.agent.wait_for("/agent", ROOM as usize)?;
    let refused = stage.deliver(&bot, &bot.vendor.message(ROOM, "hello"))?;
    refused.problem(503)?;
    let retry_after = refused.header("retry-after").and_then(|seconds| seconds.parse().ok());
    assert!(retry_after.is_some_and(|seconds: u64| seconds > 0), "{:?}", refused.headers);
    // One slow agent does not take the capacity from other accounts.
    let other = stage.bot(Vendor::Slack).await?;
    let elsewhere = stage.delivering(&other, &other.vendor.message(1, "hello"));
    stage.agent.wait_for("/agent", ROOM as usize + 1)?;
    stage.agent.release();
    elsewhere.answer()?.expect(200)?;
    for delivery in full {
        let answer = delivery.answer()?.expect(200)?;
        let messages = answer["messages"].as_array().unwrap();
        let all = messages.len() == PER_WEBHOOK as usize;
        assert!(all && messages.iter().all(|it| it["status"] == "executed"), "{answer}");
    }
    // The refused message left no row, and the vendor delivers it again.
    assert_eq!(stage.statuses().await?.len(), ROOM as usize + 1);
    assert_eq!(stage.say(&bot, ROOM, "hello")?, "executed");
    stage.check().await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_is_put_off_while_the_database_is_away() -> anyhow::Result<()> {
    let mut postgres = Postgres::start().await?;
    let admin_url = postgres.url("postgres");
    assert_eq!(run(postrider().args(["--database-url", &admin_url, "migrate"]))?.code, 0);
    let config = tempfile::NamedTempFile::new()?;
    let (worker, app) = (postgres.url("postrider_worker"), postgres.url("postrider_app"));
    std::fs::write(
        config.path(),
        format!(
            "master_key = '{MASTER_KEY}'\n[database]\nurl = '{worker}'\napp_url = '{app}'\n[http]\nlisten = '127.0.0.1:0'\n[log]\nformat = 'json'\n"
        ),
    )?;
    let server = Server::start_with(config, "api")?;
    postgres.stop()?;
    eventually("the server is not ready", async || Ok(get(&server.http_url, "/readyz")?.status == 503))
        .await?;
    let path = "/api/v2/tenants/019a0000-0000-7000-8000-000000000001/channels/slack/019a0000-0000-7000-8000-000000000000/webhook";
    Call::new(&server.http_url, "POST", path).json(&serde_json::json!({})).send()?.problem(503)?;
    postgres.start_again().await?;
    eventually("the server is ready again", async || Ok(get(&server.http_url, "/readyz")?.status == 200))
        .await?;
    Call::new(&server.http_url, "POST", path).json(&serde_json::json!({})).send()?.problem(404)?;
    Ok(())
}
