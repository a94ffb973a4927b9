//! A migration that cannot have its locks steps back and comes again, so that nobody queues behind it.

use std::{collections::BTreeSet, sync::Mutex, time::Duration};

use postrider_store::migrate::{self, MIGRATIONS, Migration};
use sqlx::{Connection, PgPool};
use tokio::task::JoinHandle;

use crate::{
    sql::{execute, number, refusal, texts},
    world::{PATIENCE, World, eventually},
};

type Running = JoinHandle<Result<Vec<&'static Migration>, postrider_store::StoreError>>;

/// Starts a migration that has something to do and watches until it has waited for a lock of this kind in so many
/// transactions.
async fn start_and_see_it_wait(
    world: &World,
    admin: &PgPool,
    locktype: &str,
    transactions: usize,
) -> anyhow::Result<Running> {
    let url = world.admin_url();
    let running = tokio::spawn(async move { migrate::run(&url).await });
    let waiting = format!(
        "select xact_start::text from pg_locks join pg_stat_activity using (pid) \
          where not granted and locktype = '{locktype}' and application_name = 'postrider' and datname = current_database()"
    );
    let seen = Mutex::new(BTreeSet::new());
    eventually("the migration waits for a lock", async || {
        anyhow::ensure!(!running.is_finished(), "the migration did not wait");
        let now = texts(admin, &*waiting).await?;
        let mut seen = seen.lock().unwrap();
        seen.extend(now);
        Ok(seen.len() >= transactions)
    })
    .await?;
    Ok(running)
}

/// A database that lacks the last step.
async fn one_step_behind() -> anyhow::Result<World> {
    before(MIGRATIONS.last().unwrap()).await
}

/// A database as it is before a step.
pub(super) async fn before(step: &Migration) -> anyhow::Result<World> {
    let world = World::empty().await?;
    let script = migrate::script();
    let (before, _) = script.split_once(&format!("-- {}\n", step.path)).unwrap();
    execute(&world.client("postgres").await?, before).await?;
    Ok(world)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_migration_comes_again_while_another_one_takes_long() -> anyhow::Result<()> {
    let world = one_step_behind().await?;
    let admin = world.client("postgres").await?;
    let mut other = admin.begin().await?;
    execute(&mut *other, "lock table postrider.migrations in share row exclusive mode").await?;

    let running = start_and_see_it_wait(&world, &admin, "relation", 2).await?;
    assert_eq!(number(&admin, "select count(*) from m10_recovery.outbox").await?, 0);
    other.rollback().await?;

    assert_eq!(running.await??.len(), 1);
    Ok(())
}

/// A login of another role takes every lock that it can take and that a migration might use for itself.
#[tokio::test(flavor = "multi_thread")]
async fn no_login_but_the_owners_can_hold_the_migration_lock() -> anyhow::Result<()> {
    let world = one_step_behind().await?;
    for role in ["postrider_app", "postrider_worker", "postrider_read"] {
        let mut login = sqlx::PgConnection::connect(&world.url(role)).await?;
        for mode in
            ["share update exclusive", "share", "share row exclusive", "exclusive", "access exclusive"]
        {
            let lock = format!("begin; lock table postrider.migrations in {mode} mode");
            let refused = refusal(execute(&mut login, lock).await)?;
            assert_eq!(refused.code, "42501", "{role}, {mode}: {refused:?}");
            execute(&mut login, "rollback").await?;
        }
    }
    let mut login = sqlx::PgConnection::connect(&world.url("postrider_app")).await?;
    execute(&mut login, format!("select pg_advisory_lock({})", 0x706f_7374_7269_6465_i64)).await?;
    execute(&mut login, "begin; lock table postrider.migrations in access share mode").await?;

    assert_eq!(migrate::run(&world.admin_url()).await?.len(), 1);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_migration_comes_again_when_its_own_record_was_locked() -> anyhow::Result<()> {
    let world = one_step_behind().await?;
    let admin = world.client("postgres").await?;
    let mut other = admin.begin().await?;
    execute(&mut *other, "lock table postrider.migrations in access exclusive mode").await?;

    let running = start_and_see_it_wait(&world, &admin, "relation", 2).await?;
    other.rollback().await?;

    assert_eq!(running.await??.len(), 1);
    Ok(())
}

/// The fourth step refers to the outbox and so needs a lock that a long transaction's writes forbid. Whoever writes
/// next queues behind the migration, and without its timeout would do so until the long transaction ends.
#[tokio::test(flavor = "multi_thread")]
async fn while_a_migration_waits_for_a_long_transaction_others_read_and_publish() -> anyhow::Result<()> {
    let fourth = MIGRATIONS.iter().find(|step| step.version == 4).unwrap();
    let world = before(fourth).await?;
    let (admin, app) = (world.client("postgres").await?, world.client("postrider_app").await?);
    let publish = "select m10_recovery.publish_outbox('order', '42', 'order.placed', '{}')";
    let mut long = app.begin().await?;
    execute(&mut *long, publish).await?;

    let running = start_and_see_it_wait(&world, &admin, "relation", 1).await?;
    for _ in 0..3 {
        number(&app, "select count(*) from m10_recovery.outbox").await?;
        let published = tokio::time::timeout(PATIENCE, execute(&app, publish)).await;
        assert!(matches!(published, Ok(Ok(()))), "a publisher hangs behind the migration: {published:?}");
    }
    assert!(!running.is_finished(), "the long transaction is still open");
    long.commit().await?;

    let applied = tokio::time::timeout(PATIENCE + Duration::from_secs(60), running).await???;
    let versions = |steps: &[&Migration]| steps.iter().map(|step| step.version).collect::<Vec<_>>();
    assert_eq!(versions(&applied), versions(&MIGRATIONS.iter().skip(3).collect::<Vec<_>>()));
    assert_eq!(number(&admin, "select count(*) from m10_recovery.outbox").await?, 4);
    Ok(())
}
