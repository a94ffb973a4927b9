//! Bringing the schema forward: by whom, once, beside others, and never onto a schema that is not ours.

mod conflicts;
mod contracts;
mod dump;
mod locks;
mod logins;
mod steps;
mod under_load;

use postrider_store::postgres::migrate::{self, Tree};
use sqlx::PgPool;

use crate::{
    sql::{execute, number, texts},
    world::World,
};

/// Every file of this release, as it is recorded.
fn all_files() -> Vec<String> {
    let mut files: Vec<String> = Tree::current()
        .sources
        .iter()
        .map(|source| format!("{} {} {}", source.kind.name(), source.path, source.checksum()))
        .collect();
    files.sort_unstable();
    files
}

/// The paths of the files, in the order of application.
fn all_paths() -> Vec<String> {
    Tree::current().sources.iter().map(|source| source.path.to_string()).collect()
}

/// Every file that was recorded.
async fn recorded(client: &PgPool) -> Result<Vec<String>, sqlx::Error> {
    texts(
        client,
        "select file from (select concat_ws(' ', kind, path, checksum) as file from postrider.sources) as recorded
          order by file collate \"C\"",
    )
        .await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_empty_database_gets_every_file_in_order_and_a_second_run_does_nothing() -> anyhow::Result<()> {
    let world = World::empty().await?;
    let admin = world.client("postgres").await?;
    let verify = async || {
        migrate::verify(&mut admin.acquire().await.unwrap()).await.map_err(|error| error.to_string())
    };
    let behind = verify().await.unwrap_err();
    assert_eq!(behind, "the database has no schema of Postrider; run `postrider migrate`");

    assert_eq!(migrate::run(&world.admin_url()).await?, all_paths());
    assert_eq!(recorded(&admin).await?, all_files());
    assert_eq!(verify().await, Ok(()));

    let everything = "select md5(string_agg(xmin::text || sources::text, ',')) from postrider.sources";
    let before = texts(&admin, everything).await?;
    assert!(migrate::run(&world.admin_url()).await?.is_empty());
    assert_eq!(texts(&admin, everything).await?, before);
    let transactions = number(&admin, "select count(distinct xmin::text) from postrider.sources").await?;
    assert_eq!(transactions, 1, "an empty database gets everything in one transaction");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn several_migrations_at_once_all_succeed_and_each_file_is_applied_once() -> anyhow::Result<()> {
    let world = World::empty().await?;
    let running: Vec<_> = (0..4)
        .map(|_| {
            let url = world.admin_url();
            tokio::spawn(async move { migrate::run(&url).await })
        })
        .collect();

    let mut applied = Vec::new();
    for run in running {
        applied.extend(run.await??);
    }

    assert_eq!(applied, all_paths());
    let admin = world.client("postgres").await?;
    assert_eq!(recorded(&admin).await?, all_files());
    assert_eq!(number(&admin, "select count(*) - count(distinct line) from postrider.catalogue").await?, 0);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_changed_or_newer_schema_is_refused_with_an_explanation_and_left_as_it_is() -> anyhow::Result<()> {
    let newer = "which this version of Postrider does not know: it was migrated by a newer one; run that version, or restore a \
                 backup from before";
    for (change, expected) in [
        (
            "update postrider.sources set checksum = repeat('0', 64) where path = 'tenancy/tables.sql'",
            "tenancy/tables.sql of the database (checksum 000000000000) is not the one this version of Postrider has"
                .to_owned(),
        ),
        (
            "delete from postrider.sources where path = 'tenancy/tables.sql'",
            "the record of the database lacks tenancy/tables.sql".to_owned(),
        ),
        (
            "insert into postrider.sources values ('upgrades/0999_later.sql', 'upgrade', 999, 'x', '0.1.0')",
            format!("the database has upgrades/0999_later.sql, {newer}"),
        ),
        (
            "update postrider.sources set version = 2 where kind = 'baseline'",
            format!("the database has version 2 of the baseline, {newer}"),
        ),
        (
            "update postrider.sources set checksum = 'x', release = '99.0.0' where path = 'jobs/functions/claim.sql'",
            format!("the database has jobs/functions/claim.sql of release 99.0.0, {newer}"),
        ),
        (
            "insert into postrider.sources values ('jobs/functions/later.sql', 'replaceable', null, 'x', '99.0.0')",
            format!("the database has jobs/functions/later.sql, {newer}"),
        ),
        (
            "create table postrider.migrations (version integer); grant select on postrider.migrations to postrider_worker",
            "this database was migrated by numbered steps of a version before the first release, which no release upgrades; \
             nothing was changed; create a new database"
                .to_owned(),
        ),
        (
            "drop table jobs.decision_cards cascade",
            "the installation is incomplete; its record lists table jobs.decision_cards, and the database does not have them; \
             nothing was changed; restore a backup"
                .to_owned(),
        ),
        (
            "drop schema channels cascade",
            "the installation is incomplete; its record lists schema channels, table channels.channel_executors, ".to_owned(),
        ),
    ] {
        let world = World::new().await?;
        let admin = world.client("postgres").await?;
        execute(&admin, change).await?;
        let before = recorded(&admin).await?;

        let by_run = migrate::run(&world.admin_url()).await.unwrap_err().to_string();
        let by_verify = migrate::verify(&mut *admin.acquire().await?).await.unwrap_err().to_string();
        let serving = world.client("postrider_worker").await?;
        let by_server = migrate::verify(&mut *serving.acquire().await?).await.unwrap_err().to_string();
        let by_command = world.postrider(&["migrate"])?;

        assert!(by_run.starts_with(&expected), "{by_run}");
        assert_eq!((&by_verify, &by_server), (&by_run, &by_run));
        assert_ne!(by_command.code, 0);
        assert!(by_command.stderr.contains(&expected), "{}", by_command.stderr);
        assert_eq!(recorded(&admin).await?, before);
    }
    Ok(())
}
