//! Bringing the schema forward: by whom, once, beside others, and never onto a schema that is not ours.

mod conflicts;
mod dump;
mod locks;
mod logins;
mod upgrade;

use postrider_store::migrate::{self, MIGRATIONS};
use sqlx::PgPool;

use crate::{
    sql::{execute, number, texts},
    world::World,
};

/// Every step that there is, by its place.
fn all_steps() -> Vec<String> {
    MIGRATIONS.iter().map(|step| format!("{} {} {}", step.version, step.path, step.checksum())).collect()
}

/// Every step that was recorded.
async fn recorded(client: &PgPool) -> Result<Vec<String>, sqlx::Error> {
    texts(client, "select concat_ws(' ', version, name, checksum) from postrider.migrations order by version")
        .await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_empty_database_gets_every_step_in_order_and_a_second_run_does_nothing() -> anyhow::Result<()> {
    let world = World::empty().await?;
    let admin = world.client("postgres").await?;
    let verify = async || {
        migrate::verify(&mut admin.acquire().await.unwrap()).await.map_err(|error| error.to_string())
    };
    let behind = verify().await.unwrap_err();
    assert!(
        behind.contains("migrations behind this version of Postrider; run `postrider migrate`"),
        "{behind}"
    );

    let first = migrate::run(&world.admin_url()).await?;
    assert_eq!(
        first.iter().map(|step| step.version).collect::<Vec<_>>(),
        Vec::from_iter(1..=first.len() as i32)
    );
    assert_eq!(recorded(&admin).await?, all_steps());
    assert_eq!(verify().await, Ok(()));

    let everything = "select md5(string_agg(xmin::text || migrations::text, ',')) from postrider.migrations";
    let before = texts(&admin, everything).await?;
    assert!(migrate::run(&world.admin_url()).await?.is_empty());
    assert_eq!(texts(&admin, everything).await?, before);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn several_migrations_at_once_all_succeed_and_each_step_runs_once() -> anyhow::Result<()> {
    let world = World::empty().await?;
    let running: Vec<_> = (0..4)
        .map(|_| {
            let url = world.admin_url();
            tokio::spawn(async move { migrate::run(&url).await })
        })
        .collect();

    let mut applied = Vec::new();
    for run in running {
        applied.extend(run.await??.into_iter().map(|step| step.version));
    }

    applied.sort_unstable();
    assert_eq!(applied, MIGRATIONS.iter().map(|step| step.version).collect::<Vec<_>>());
    let admin = world.client("postgres").await?;
    assert_eq!(recorded(&admin).await?, all_steps());
    assert_eq!(number(&admin, "select count(*) - count(distinct line) from postrider.catalogue").await?, 0);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_changed_or_newer_schema_is_refused_with_an_explanation_and_left_as_it_is() -> anyhow::Result<()> {
    for (change, expected) in [
        (
            "update postrider.migrations set checksum = repeat('0', 64) where version = 2",
            "migration 2 of the database (tenancy/0002_provider_accounts.sql, checksum 000000000000) is not the one \
             this version of Postrider has",
        ),
        (
            "update postrider.migrations set name = 'x/0001_y.sql' where version = 1",
            "migration 1 of the database (x/0001_y.sql",
        ),
        ("delete from postrider.migrations where version = 1", "migration 2 of the database (tenancy/0002"),
        (
            "insert into postrider.migrations values (999, 'jobs/0999_later.sql', 'x')",
            "the database has migration 999 (jobs/0999_later.sql), which this version of Postrider does not know: it \
             was migrated by a newer one; run that version, or restore a backup from before",
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

        assert!(by_run.starts_with(expected), "{by_run}");
        assert_eq!((&by_verify, &by_server), (&by_run, &by_run));
        assert_ne!(by_command.code, 0);
        assert!(by_command.stderr.contains(expected), "{}", by_command.stderr);
        assert_eq!(recorded(&admin).await?, before);
    }
    Ok(())
}
