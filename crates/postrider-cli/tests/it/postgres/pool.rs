//! A dropped `begin` must not lose what a later statement was told is written.

use std::{future::poll_fn, pin::pin, task::Poll};

use postrider_store::Pool;
use sqlx::{PgPool, postgres::PgPoolOptions};

use crate::{sql::execute, world::World};

/// How far a `begin` gets before it is dropped: polled so often, and then, perhaps, left until its answer is there.
const POLLS_MAX: usize = 12;

/// Polls a future so many times and drops it. True when it was not finished by then.
async fn cancel_after<F: Future>(polls: usize, until_woken: bool, future: F) -> bool {
    let mut future = pin!(future);
    let mut polled = 0;
    poll_fn(|context| {
        if polled == polls {
            return Poll::Ready(true);
        }
        polled += 1;
        match future.as_mut().poll(context) {
            Poll::Ready(_) => Poll::Ready(false),
            Poll::Pending if polled == polls && !until_woken => Poll::Ready(true),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

/// One connection, so that whoever comes next gets the one that was cancelled.
async fn plain_pool(world: &World) -> anyhow::Result<PgPool> {
    Ok(PgPoolOptions::new().max_connections(1).connect(&world.admin_url()).await?)
}

/// Inserts without a transaction. After `Ok` the server has acknowledged it.
async fn insert(pool: &PgPool, note: &str) -> Result<(), sqlx::Error> {
    sqlx::query("insert into notes values ($1)").bind(note).execute(pool).await.map(drop)
}

/// Whether another connection sees it.
async fn is_written(witness: &PgPool, note: &str) -> Result<bool, sqlx::Error> {
    sqlx::query_scalar("select exists (select from notes where note = $1)")
        .bind(note)
        .fetch_one(witness)
        .await
}

/// Documents the trap in sqlx that the checkout guard is for. When this test fails, the guard may go.
#[tokio::test(flavor = "multi_thread")]
async fn a_plain_pool_loses_an_acknowledged_insert_after_a_cancelled_begin() -> anyhow::Result<()> {
    let world = World::empty().await?;
    let witness = world.client("postgres").await?;
    execute(&witness, "create table notes (note text)").await?;

    for attempt in 0..50 * POLLS_MAX {
        let pool = plain_pool(&world).await?;
        cancel_after(1 + attempt % POLLS_MAX, attempt % 2 == 0, pool.begin()).await;
        let note = format!("note {attempt}");
        insert(&pool, &note).await?; // acknowledged
        let seen = is_written(&witness, &note).await?;
        pool.close().await;
        if !seen {
            assert!(!is_written(&witness, &note).await?, "it is not merely late: it is gone");
            return Ok(());
        }
    }
    anyhow::bail!("no insert was lost: sqlx may have been repaired")
}

#[tokio::test(flavor = "multi_thread")]
async fn postriders_pool_loses_nothing_after_begins_cancelled_at_any_point() -> anyhow::Result<()> {
    let world = World::empty().await?;
    let witness = world.client("postgres").await?;
    execute(&witness, "create table notes (note text)").await?;
    let settings = postrider_store::postgres::pool::Settings { connections_max: 1, ..Default::default() };
    let pool: Pool = postrider_store::postgres::pool::connect(&world.admin_url(), settings).await?;

    // How many polls a `begin` needs is the machine's: it goes on until enough of them were cut short.
    let (mut cancelled, mut round) = (0, 0);
    while round < 10 || cancelled <= 20 {
        anyhow::ensure!(round < 200, "only {cancelled} were cancelled");
        round += 1;
        for polls in 1..=POLLS_MAX {
            for until_woken in [false, true] {
                cancelled += usize::from(cancel_after(polls, until_woken, pool.begin()).await);
                let note = format!("note {round} {polls} {until_woken}");
                insert(&pool, &note).await?;
                assert!(is_written(&witness, &note).await?, "{note} was acknowledged and is not there");
            }
        }
    }
    Ok(())
}

/// A setting that is local to a transaction must end with its statement when no transaction is open.
#[tokio::test(flavor = "multi_thread")]
async fn a_tenant_set_after_a_cancelled_begin_does_not_stay_for_the_next_user() -> anyhow::Result<()> {
    let world = World::new().await?;
    let settings = postrider_store::postgres::pool::Settings { connections_max: 1, ..Default::default() };
    let pool = postrider_store::postgres::pool::connect(&world.url("postrider_app"), settings).await?;

    for polls in 1..=POLLS_MAX {
        for until_woken in [false, true] {
            cancel_after(polls, until_woken, pool.begin()).await;
            let tenant = uuid::Uuid::now_v7().to_string();
            sqlx::query("select set_config('app.current_tenant_id', $1, true)")
                .bind(tenant)
                .execute(&pool)
                .await?;
            let left: Option<uuid::Uuid> =
                sqlx::query_scalar("select tenancy.current_tenant_id()").fetch_one(&pool).await?;
            assert_eq!(left, None, "{polls} {until_woken}");
        }
    }
    Ok(())
}
