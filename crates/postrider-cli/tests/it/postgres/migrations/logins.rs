//! The login that may migrate: one with CREATEROLE that owns the database. Superuser is never needed.
//!
//! Roles belong to the cluster, which other tests share, so each test makes a login of its own.

use std::path::PathBuf;

use postrider_store::postgres::{
    doctor::{self, Severity},
    embedded::{Cluster, Options, SUPERUSER},
    migrate,
};
use sqlx::{Connection, PgConnection, PgPool};

use super::{all_files, all_paths, recorded};
use crate::{
    sql::{execute, number, texts},
    world::{World, eventually},
};

/// A new login with these rights, which owns the database of the test if it says so.
async fn login(admin: &PgPool, rights: &str, owns: bool) -> anyhow::Result<String> {
    let name = format!("login_{}", uuid::Uuid::now_v7().simple());
    execute(admin, format!("create role {name} login {rights}")).await?;
    let database = &texts(admin, "select current_database()::text").await?[0];
    if owns {
        execute(admin, format!("alter database {database} owner to {name}")).await?;
    }
    let major = number(admin, "select current_setting('server_version_num')::bigint / 10000").await?;
    if rights == "createrole" && major >= 16 {
        // There, CREATEROLE covers only roles that the login has made, and ours were made by the first test.
        execute(admin, format!("grant postrider_owner to {name} with admin option")).await?;
    }
    Ok(name)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_login_with_createrole_that_owns_the_database_migrates_it() -> anyhow::Result<()> {
    let world = World::empty().await?;
    let admin = world.client("postgres").await?;
    let login = login(&admin, "createrole", true).await?;

    migrate::run(&world.url(&login)).await?;
    assert!(migrate::run(&world.url(&login)).await?.is_empty());

    assert_eq!(recorded(&admin).await?, all_files());
    let findings = doctor::examine(&mut PgConnection::connect(&world.url(&login)).await?).await?;
    assert!(findings.iter().all(|finding| finding.severity != Severity::Failure), "{findings:#?}");
    // The same as what a superuser's migration leaves behind.
    let catalogue = "select line from postrider.catalogue order by line collate \"C\"";
    let template = World::new().await?.client("postgres").await?;
    assert_eq!(texts(&admin, catalogue).await?, texts(&template, catalogue).await?);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_login_that_may_not_migrate_is_told_what_it_needs() -> anyhow::Result<()> {
    for (rights, owns) in [("", true), ("createrole", false), ("", false), ("createdb", false)] {
        for migrated in [false, true] {
            let world = if migrated { World::new().await? } else { World::empty().await? };
            let admin = world.client("postgres").await?;
            if migrated {
                // Something is left to do.
                execute(&admin, "delete from postrider.sources where path = 'jobs/functions/claim.sql'")
                    .await?;
            }
            let login = login(&admin, rights, owns).await?;
            let before = number(&admin, "select count(*) from pg_class").await?;

            let error = migrate::run(&world.url(&login)).await.unwrap_err().to_string();

            assert!(
                error.starts_with("this login may not migrate ("),
                "`{rights}`, {owns}, {migrated}: {error}"
            );
            assert!(
                error.contains("it needs CREATEROLE and must own the database: `alter role … createrole`"),
                "{error}"
            );
            assert_eq!(number(&admin, "select count(*) from pg_class").await?, before);
        }
    }
    Ok(())
}

/// Two databases of one cluster, the same new login, at the same moment: both grant it the same membership.
#[tokio::test(flavor = "multi_thread")]
async fn a_login_that_migrates_two_databases_at_once_succeeds_in_both() -> anyhow::Result<()> {
    let (world, other) = (World::empty().await?, World::empty().await?);
    let (admin, other_admin) = (world.client("postgres").await?, other.client("postgres").await?);
    let login = login(&admin, "createrole", true).await?;
    // As the other database's migration would, up to its commit.
    let mut elsewhere = other_admin.begin().await?;
    execute(&mut *elsewhere, format!("grant postrider_owner to {login}")).await?;

    let url = world.url(&login);
    let running = tokio::spawn(async move { migrate::run(&url).await });
    let waits = format!(
        "select count(*) from pg_stat_activity where usename = '{login}' and wait_event_type = 'Lock'"
    );
    eventually("the migration waits for the other one", async || Ok(number(&admin, &*waits).await? == 1))
        .await?;
    elsewhere.commit().await?;

    assert_eq!(running.await??, all_paths());
    Ok(())
}

/// A cluster of its own, because the roles must not be there yet. It ends with the test.
pub(super) struct OwnCluster {
    cluster: Option<Cluster>,
    data_dir: PathBuf,
}

impl OwnCluster {
    pub(super) fn start() -> anyhow::Result<Self> {
        let data_dir =
            std::env::temp_dir().join(format!("postrider-test-own-{}", uuid::Uuid::now_v7().simple()));
        let options = Options { data_dir: data_dir.clone(), ..Options::default() };
        Ok(Self { cluster: Some(Cluster::start_or_adopt(&options)?), data_dir })
    }

    pub(super) fn url(&self, user: &str, database: &str) -> String {
        self.cluster.as_ref().unwrap().url(user, database)
    }
}

impl Drop for OwnCluster {
    fn drop(&mut self) {
        let _ = self.cluster.take().map(Cluster::stop);
        let _ = std::fs::remove_dir_all(&self.data_dir);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn on_a_new_cluster_the_roles_are_made_without_a_superuser_and_serving_needs_no_such_right()
-> anyhow::Result<()> {
    let own = tokio::task::spawn_blocking(OwnCluster::start).await??;
    let admin = PgPool::connect(&own.url(SUPERUSER, "postgres")).await?;
    execute(&admin, "create role deployer login createrole").await?;
    execute(&admin, "create database one owner deployer").await?;
    execute(&admin, "create database two owner deployer").await?;

    // At once, so that both find the roles missing.
    let (one, two) = (own.url("deployer", "one"), own.url("deployer", "two"));
    let (one, two) = tokio::join!(migrate::run(&one), migrate::run(&two));
    assert_eq!((one?, two?), (all_paths(), all_paths()));

    let roles = "select concat_ws(' ', rolname, rolcanlogin, rolsuper or rolcreaterole or rolcreatedb or rolbypassrls) \
                   from pg_roles where rolname ~ '^postrider' order by rolname";
    assert_eq!(
        texts(&admin, roles).await?,
        [
            "postrider_app t f",
            "postrider_owner f f",
            "postrider_publish f f",
            "postrider_read t f",
            "postrider_worker t f"
        ]
    );
    for database in ["one", "two"] {
        let mut worker = PgConnection::connect(&own.url("postrider_worker", database)).await?;
        migrate::verify(&mut worker).await?;
        doctor::refuse_powerful_login(&mut worker).await?;
        execute(&mut worker, "select m10_recovery.publish_outbox('a', '1', 'e', '{}')").await?;
        assert_eq!(
            number(&mut worker, "select count(*) from m10_recovery.claim_outbox_events('p')").await?,
            1
        );
        let findings =
            doctor::examine(&mut PgConnection::connect(&own.url("deployer", database)).await?).await?;
        assert!(findings.iter().all(|finding| finding.severity != Severity::Failure), "{findings:#?}");
        worker.close().await?;
    }
    admin.close().await;
    tokio::task::spawn_blocking(move || drop(own)).await?;
    Ok(())
}
