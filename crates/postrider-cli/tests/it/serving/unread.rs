//! Whether anybody reads the log changes nothing: its reader may die, and its disk may be full.

use std::process::Stdio;

use super::{SECRET, publish};
use crate::{
    campaigns::stage::Stage,
    http::{Receiver, get},
    world::{Server, Sim, World, eventually, postrider},
};

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_with_an_unread_log_works_and_ends_on_its_signal() -> anyhow::Result<()> {
    // Each refusal is a line of the log, between the call and its outcome.
    let (world, sim) = (World::new().await?, Sim::start(&["--fault", "refuse=1"])?);
    let stage = Stage::with_sim(&world, &sim, 20).await?;
    let settings = "[outbound]\nallow_private = true\n[campaigns]\npoll_interval_ms = 50\n";
    let mut server = Server::start_unread(&world, "api,campaigns", settings)?;

    let run = stage.deploy_one("news", "email").await?;
    assert_eq!(stage.ended(run).await?, "failed");
    assert_eq!(stage.items(run).await?, [("failed".to_owned(), 20)].into());
    assert_eq!(get(&server.http_url, "/readyz")?.status, 200);
    server.process.signal("TERM")?;
    assert_eq!(server.process.wait()?.code(), Some(0));
    Ok(())
}

#[tokio::test]
async fn the_second_signal_stops_a_server_with_an_unread_log() -> anyhow::Result<()> {
    let (world, receiver) = (World::new().await?, Receiver::start()?);
    let mut server = Server::start_unread(&world, "api,relay", &receiver.sink(SECRET)?)?;
    publish(&world)?;
    let _delivery = receiver.receive().await?;
    server.process.signal("TERM")?;
    eventually("it drains", async || Ok(get(&server.http_url, "/readyz")?.status == 503)).await?;
    server.process.signal("TERM")?;
    assert_eq!(server.process.wait()?.code(), Some(130));
    Ok(())
}

#[tokio::test]
async fn a_command_does_what_it_was_told_where_its_words_cannot_be_written() -> anyhow::Result<()> {
    let world = World::new().await?;
    let on_full_disk = || anyhow::Ok(Stdio::from(std::fs::File::create("/dev/full")?));
    let create = |name: &str| {
        let mut command = postrider();
        command.args(["--database-url", &world.admin_url(), "tenants", "create", name]);
        command
    };
    // Words for people are not missed.
    let output = create("heard").stderr(on_full_disk()?).output()?;
    assert_eq!(output.status.code(), Some(0));
    assert!(String::from_utf8(output.stdout)?.contains("admin_key"));
    // The command did its work, and its error says so.
    let output = create("unheard").stdout(on_full_disk()?).output()?;
    assert_eq!(output.status.code(), Some(1));
    let words = String::from_utf8(output.stderr)?;
    assert!(words.contains("No space left on device") && !words.contains("panicked"), "{words}");
    Ok(())
}

#[tokio::test]
async fn a_command_whose_reader_has_read_enough_ends_quietly() -> anyhow::Result<()> {
    let world = World::new().await?;
    for args in [&["migrate", "--dump"][..], &["tenants", "list", "--json"]] {
        let mut command = postrider();
        command.args(["--database-url", &world.admin_url()]).args(args);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        drop(child.stdout.take());
        let output = child.wait_with_output()?;
        let words = String::from_utf8(output.stderr)?;
        assert_eq!((output.status.code(), words.as_str()), (Some(0), ""), "{args:?}");
    }
    Ok(())
}
