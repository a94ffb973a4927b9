//! A migration that cannot have its locks steps back and comes again, so that nobody queues behind it.

use std::{collections::BTreeSet, sync::Mutex, time::Duration};

use postrider_store::postgres::migrate::{self, Tree};
use sqlx::{Connection, PgPool};
use tokio::task::JoinHandle;

use crate::{
    sql::{execute, number, refusal, texts},
    world::{PATIENCE, World, eventually},
};

type Running = JoinHandle<Result<Vec<String>, postrider_store::StoreError>>;

/// Starts a migration that has something to do and watches until it has waited for a lock in so many transactions.
async fn start_and_see_it_wait(
    world: &World,
    admin: &PgPool,
    tree: Tree,
    transactions: usize,
) -> anyhow::Result<Running> {
    let url = world.admin_url();
    let running = tokio::spawn(async move { migrate::apply(&url, &tree).await });
    let waiting = "select xact_start::text from pg_locks join pg_stat_activity using (pid) \
                    where not granted and locktype = 'relation' and application_name = 'postrider' and datname = current_database()";
    let seen = Mutex::new(BTreeSet::new());
    eventually("the migration waits for a lock", async || {
        anyhow::ensure!(!running.is_finished(), "the migration did not wait");
        let now = texts(admin, waiting).await?;
        let mut seen = seen.lock().unwrap();
        seen.extend(now);
        Ok(seen.len() >= transactions)
    })
    .await?;
    Ok(running)
}

const FILE: &str = "jobs/functions/claim.sql";

/// A database that lacks one file.
async fn one_file_behind() -> anyhow::Result<World> {
    let world = World::new().await?;
    let admin = world.client("postgres").await?;
    execute(&admin, format!("delete from postrider.sources where path = '{FILE}'")).await?;
    Ok(world)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_migration_comes_again_while_another_one_takes_long() -> anyhow::Result<()> {
    let world = one_file_behind().await?;
    let admin = world.client("postgres").await?;
    let mut other = admin.begin().await?;
    execute(&mut *other, "lock table postrider.sources in share row exclusive mode").await?;

    let running = start_and_see_it_wait(&world, &admin, Tree::current(), 2).await?;
    assert_eq!(number(&admin, "select count(*) from m10_recovery.outbox").await?, 0);
    other.rollback().await?;

    assert_eq!(running.await??, [FILE]);
    Ok(())
}

/// A login of another role takes every lock that it can take and that a migration might use for itself.
#[tokio::test(flavor = "multi_thread")]
async fn no_login_but_the_owners_can_hold_the_migration_lock() -> anyhow::Result<()> {
    let world = one_file_behind().await?;
    let admin = world.client("postgres").await?;
    // Roles belong to the cluster, so it is dropped with its test.
    let publisher = format!("publisher_{}", uuid::Uuid::now_v7().simple());
    execute(&admin, format!("create role {publisher} login in role postrider_publish")).await?;
    for role in ["postrider_app", "postrider_worker", "postrider_read", &publisher] {
        let mut login = sqlx::PgConnection::connect(&world.url(role)).await?;
        for mode in
            ["share update exclusive", "share", "share row exclusive", "exclusive", "access exclusive"]
        {
            let lock = format!("begin; lock table postrider.sources in {mode} mode");
            let refused = refusal(execute(&mut login, lock).await)?;
            assert_eq!(refused.code, "42501", "{role}, {mode}: {refused:?}");
            execute(&mut login, "rollback").await?;
        }
    }
    execute(&admin, format!("drop role {publisher}")).await?;
    let mut login = sqlx::PgConnection::connect(&world.url("postrider_app")).await?;
    execute(&mut login, format!("select pg_advisory_lock({})", 0x706f_7374_7269_6465_i64)).await?;
    execute(&mut login, "begin; lock table postrider.sources in access share mode").await?;

    assert_eq!(migrate::run(&world.admin_url()).await?, [FILE]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_migration_comes_again_when_its_own_record_was_locked() -> anyhow::Result<()> {
    let world = one_file_behind().await?;
    let admin = world.client("postgres").await?;
    let mut other = admin.begin().await?;
    execute(&mut *other, "lock table postrider.sources in access exclusive mode").await?;

    let running = start_and_see_it_wait(&world, &admin, Tree::current(), 2).await?;
    other.rollback().await?;

    assert_eq!(running.await??, [FILE]);
    Ok(())
}

/// The step changes the outbox and so needs a lock that a long transaction's writes forbid. The next writer
/// queues behind the migration, and without its timeout would do so until the long transaction ends.
#[tokio::test(flavor = "multi_thread")]
async fn while_a_migration_waits_for_a_long_transaction_others_read_and_publish() -> anyhow::Result<()> {
    let world = World::new().await?;
    let (admin, app) = (world.client("postgres").await?, world.client("postrider_app").await?);
    let publish = "select m10_recovery.publish_outbox('order', '42', 'order.placed', '{}')";
    let mut long = app.begin().await?;
    execute(&mut *long, publish).await?;
    let step = "create index outbox_by_payload on m10_recovery.outbox using gin (payload);\n";
    let later = Tree::current().with_step("upgrades/0001_search.sql", step);

    let running = start_and_see_it_wait(&world, &admin, later, 1).await?;
    for _ in 0..3 {
        number(&app, "select count(*) from m10_recovery.outbox").await?;
        let published = tokio::time::timeout(PATIENCE, execute(&app, publish)).await;
        assert!(matches!(published, Ok(Ok(()))), "a publisher hangs behind the migration: {published:?}");
    }
    assert!(!running.is_finished(), "the long transaction is still open");
    long.commit().await?;

    let applied = tokio::time::timeout(PATIENCE + Duration::from_secs(60), running).await???;
    assert_eq!(applied, ["upgrades/0001_search.sql"]);
    assert_eq!(number(&admin, "select count(*) from m10_recovery.outbox").await?, 4);
    Ok(())
}

/// A writer holds a lock on one table while the migration replaces triggers on several: the migration gives up all its
/// locks within a second, and the writer goes on to the other tables without a deadlock.
#[tokio::test(flavor = "multi_thread")]
async fn a_writer_never_deadlocks_with_the_replacement_of_triggers() -> anyhow::Result<()> {
    let world = World::new().await?;
    let admin = world.client("postgres").await?;
    execute(&admin, "update postrider.sources set checksum = 'x' where path ~ 'functions/guards'").await?;
    let mut writer = admin.begin().await?;
    // The last of the locked tables, so that the migration holds all others while it waits for this one.
    execute(&mut *writer, "lock table tenancy.requests in row exclusive mode").await?;

    let running = start_and_see_it_wait(&world, &admin, Tree::current(), 1).await?;
    for _ in 0..3 {
        execute(&mut *writer, "lock table execution.channel_outbox in row exclusive mode").await?;
    }
    writer.commit().await?;

    let applied = tokio::time::timeout(PATIENCE + Duration::from_secs(60), running).await???;
    assert_eq!(applied.len(), 5, "{applied:?}");
    Ok(())
}
