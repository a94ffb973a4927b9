//! The first SIGTERM drains, the second one stops.

use std::io::Write;

use super::{SECRET, publish};
use crate::http::{Receiver, connect, get};
use crate::world::{Server, World, eventually};

#[tokio::test]
async fn sigterm_and_sigint_end_an_idle_server_with_exit_code_zero() -> anyhow::Result<()> {
    let world = World::new().await?;
    for signal in ["TERM", "INT"] {
        let mut server = Server::start(&world, "api,resolver", "")?;
        // A client that keeps its connection does not keep the server.
        let _idle = connect(&server.http_url)?;
        server.process.signal(signal)?;
        assert_eq!(server.process.wait()?.code(), Some(0), "{signal}");
        // Its last words may be read a moment after its end.
        server.process.wait_for_line("\"stopped\"")?;
    }
    Ok(())
}

#[tokio::test]
async fn the_first_sigterm_lets_a_delivery_finish_and_the_server_is_not_ready_meanwhile() -> anyhow::Result<()>
{
    let (world, receiver) = (World::new().await?, Receiver::start()?);
    // The delivery does not time out while the test looks.
    let config = format!("{}[relay]\ndelivery_timeout_seconds = 100\n", receiver.sink(SECRET)?);
    let mut server = Server::start(&world, "api,relay", &config)?;
    publish(&world)?;
    let delivery = receiver.receive().await?;
    assert_eq!(get(&server.http_url, "/readyz")?.status, 200);

    server.process.signal("TERM")?;
    eventually("the server is not ready", async || Ok(get(&server.http_url, "/readyz")?.status == 503))
        .await?;
    let answer = get(&server.http_url, "/readyz")?;
    assert!(answer.body.contains("not ready: the process is shutting down"), "{}", answer.body);
    assert_eq!(get(&server.http_url, "/healthz")?.status, 200);
    assert_eq!(get(&server.http_url, "/metrics")?.status, 200);
    // Events published from now on are left to other processes.
    publish(&world)?;
    assert!(server.process.child.try_wait()?.is_none(), "it waits for the delivery");

    delivery.accept();
    assert_eq!(server.process.wait()?.code(), Some(0));
    let admin = world.client("postgres").await?;
    let events: Vec<(bool, bool)> = sqlx::query_as(
        "select processed_at is not null, claimed_by is not null from m10_recovery.outbox order by id",
    )
    .fetch_all(&admin)
    .await?;
    assert_eq!(events, [(true, true), (false, false)]);
    Ok(())
}

#[tokio::test]
async fn the_second_sigterm_stops_at_once_and_the_event_stays_claimed() -> anyhow::Result<()> {
    let (world, receiver) = (World::new().await?, Receiver::start()?);
    let mut server = Server::start(&world, "relay", &receiver.sink(SECRET)?)?;
    publish(&world)?;
    let _delivery = receiver.receive().await?;
    server.process.signal("TERM")?;
    server.process.wait_for_line("a second signal stops the process at once")?;
    assert!(server.process.child.try_wait()?.is_none());
    server.process.signal("TERM")?;
    assert_eq!(server.process.wait()?.code(), Some(130));
    server.process.wait_for_line("a second signal stopped the process")?;

    let admin = world.client("postgres").await?;
    let event: (bool, bool, i32) = sqlx::query_as(
        "select processed_at is null, claimed_by is not null, retry_count from m10_recovery.outbox",
    )
    .fetch_one(&admin)
    .await?;
    assert_eq!(event, (true, true, 0), "it becomes free when its claim is five minutes old");
    Ok(())
}

#[tokio::test]
async fn a_client_that_never_finishes_its_request_does_not_keep_the_server_from_ending() -> anyhow::Result<()>
{
    let world = World::new().await?;
    let mut server = Server::start(&world, "api", "")?;
    let (mut client, _) = connect(&server.http_url)?;
    client.write_all(b"GET /healthz HTTP/1.1\r\nhost: ")?;
    // The server has read it when it answers somebody who came later.
    assert_eq!(get(&server.http_url, "/healthz")?.status, 200);
    server.process.signal("TERM")?;
    assert_eq!(server.process.wait()?.code(), Some(0));
    Ok(())
}
