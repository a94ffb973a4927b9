//! Events through the whole server into a real JetStream.

use std::{collections::BTreeSet, process::Command};

use async_nats::jetstream::{self, stream};
use futures::TryStreamExt;

use crate::{
    events::relay::publish,
    world::{Process, Server, World, eventually},
};

#[tokio::test(flavor = "multi_thread")]
async fn events_reach_jetstream_under_their_ids() -> anyhow::Result<()> {
    let store = tempfile::tempdir()?;
    let nats = Process::start(
        Command::new("nats-server").args(["-js", "-a", "127.0.0.1", "-p", "-1", "-sd"]).arg(store.path()),
    )?;
    let line = nats.wait_for_line("client connections on 127.0.0.1:")?;
    let port: u16 = line.rsplit(':').next().unwrap_or_default().trim().parse()?;
    nats.wait_for_line("Server is ready")?;
    let context = jetstream::new(async_nats::connect(format!("127.0.0.1:{port}")).await?);

    let world = World::new().await?;
    let admin = world.client("postgres").await?;
    let more = format!(
        "[relay.sinks.bus]\nkind = 'nats'\nservers = ['nats://127.0.0.1:{port}']\nsubject = 'postrider'\n"
    );
    let _server = Server::start(&world, "relay", &more)?;
    let app = world.client("postrider_app").await?;

    // Without a stream nobody would keep the events, so they are not delivered yet.
    publish(&app, "order.placed", 1).await?;
    eventually("the missing stream is reported", async || {
        let error: Option<String> =
            sqlx::query_scalar("select last_error from m10_recovery.outbox").fetch_one(&admin).await?;
        Ok(error.is_some_and(|error| error.contains("stream")))
    })
    .await?;

    let config =
        stream::Config { name: "EVENTS".into(), subjects: vec!["postrider.>".into()], ..Default::default() };
    let mut stream = context.create_stream(config).await?;
    let published = publish(&app, "order.item.added", 50).await?;
    eventually("every event is processed", async || {
        let waiting = sqlx::query_scalar::<_, i64>(
            "select count(*) from m10_recovery.outbox where processed_at is null",
        );
        Ok(waiting.fetch_one(&admin).await? == 0)
    })
    .await?;

    assert_eq!(stream.info().await?.state.messages, 51);
    let consumer = stream.create_consumer(jetstream::consumer::pull::Config::default()).await?;
    let fetched = consumer.fetch().max_messages(51).messages().await?;
    let messages: Vec<_> = fetched.try_collect().await.map_err(|error| anyhow::anyhow!(error))?;
    let items = messages.iter().filter(|message| message.subject.as_str() == "postrider.order.item.added");
    let ids: BTreeSet<String> =
        items.filter_map(|message| Some(message.headers.as_ref()?.get("Nats-Msg-Id")?.to_string())).collect();
    assert_eq!(ids, published);
    Ok(())
}
