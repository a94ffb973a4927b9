//! Hints: soon after they are sent, few however many are sent, and empty.

use std::time::{Duration, Instant};

use postrider_engine::Hints;
use sqlx::postgres::PgListener;
use tokio_util::sync::CancellationToken;

use crate::world::World;

const CHANNEL: &str = "postrider_test_hints";
const PATIENCE: Duration = Duration::from_secs(20);

#[tokio::test(flavor = "multi_thread")]
async fn many_hints_are_few_notifications_and_none_that_matters_is_lost() -> anyhow::Result<()> {
    let world = World::empty().await?;
    let admin = world.client("postgres").await?;
    let mut listener = PgListener::connect_with(&admin).await?;
    listener.listen(CHANNEL).await?;
    let (hints, shutdown) = (Hints::new(CHANNEL), CancellationToken::new());
    let running = tokio::spawn(hints.clone().run(world.pool("postgres").await?, shutdown.clone()));
    let mut next = async || {
        let heard = tokio::time::timeout(PATIENCE, listener.recv()).await??;
        anyhow::Ok(heard.payload().to_owned())
    };

    // Hints of one batch make one notification, or two if a listener took the first meanwhile.
    let began = Instant::now();
    for _ in 0..10 {
        for _ in 0..1000 {
            hints.send();
        }
        assert_eq!(next().await?, "");
    }
    assert!(began.elapsed() >= Duration::from_millis(9 * 10), "{:?}", began.elapsed());

    // Behind those that nobody waited for is the end.
    shutdown.cancel();
    running.await?;
    sqlx::query("select pg_notify($1, 'end')").bind(CHANNEL).execute(&admin).await?;
    let mut rest = 0;
    while next().await? != "end" {
        rest += 1;
    }
    assert!(rest <= 10, "{rest} more than needed");
    Ok(())
}
