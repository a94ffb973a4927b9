//! Hints of job runs, and the processes that they wake.

use postrider_engine::WakeupChannel;
use postrider_store::postgres::wakeups;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::world::{PATIENCE, World};

const CHANNEL: &str = "postrider_a_test";
const ROUNDS: usize = 20;

#[tokio::test]
async fn a_bell_wakes_its_own_once_and_everybody_elsewhere() -> anyhow::Result<()> {
    let world = World::new().await?;
    let (pool, url) = (world.pool("postrider_worker").await?, world.url("postrider_worker"));
    let shutdown = CancellationToken::new();
    let [here, there] = [CHANNEL; 2].map(WakeupChannel::new);
    let (mut heard_here, mut heard_there) = (here.wakeups(), there.wakeups());
    for bell in [&here, &there] {
        tokio::spawn(bell.listen(&url, &shutdown)?);
    }
    // A new listener is woken at once, because it may have missed a hint.
    tokio::time::timeout(PATIENCE, heard_here.changed()).await??;
    tokio::time::timeout(PATIENCE, heard_there.changed()).await??;

    let (counted, count) = watch::channel(0);
    let counting = tokio::spawn(async move {
        while heard_here.changed().await.is_ok() {
            counted.send_modify(|count| *count += 1);
        }
    });
    let woken = async |times: usize| {
        tokio::time::timeout(PATIENCE, count.clone().wait_for(|count| *count >= times)).await.is_ok()
    };

    here.hints.send();
    assert!(woken(1).await, "without the database: nobody passes hints on yet");
    tokio::spawn(here.hints.clone().run(pool.clone(), shutdown.clone()));
    tokio::time::timeout(PATIENCE, heard_there.changed()).await??;
    for _ in 1..ROUNDS {
        here.hints.send();
        tokio::time::timeout(PATIENCE, heard_there.changed()).await??;
    }
    // Notifications arrive in their order: its own came before this one.
    wakeups::notify(&pool, CHANNEL).await?;
    assert!(woken(ROUNDS + 1).await);
    assert_eq!(*count.borrow(), ROUNDS + 1, "once by each of its own hints, and by that of another");
    counting.abort();
    shutdown.cancel();
    Ok(())
}
