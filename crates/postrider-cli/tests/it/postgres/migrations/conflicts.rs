//! A migration that meets schemas or roles of the same names changes nothing.

use postrider_store::postgres::migrate::{self, Tree};
use sqlx::PgPool;

use super::{all_files, all_paths, logins::OwnCluster, recorded};
use crate::{
    sql::{execute, number, texts},
    world::World,
};

/// Every role, schema, table and function of the database.
const EVERYTHING: &str = "select 'role ' || rolname from pg_roles
                           union all select 'schema ' || nspname || ' ' || nspowner::regrole from pg_namespace
                           union all select 'class ' || oid::regclass from pg_class
                           union all select 'function ' || oid::regprocedure from pg_proc
                           order by 1";

#[tokio::test(flavor = "multi_thread")]
async fn a_foreign_schema_of_any_of_our_names_stops_the_migration_before_it_changes_anything()
-> anyhow::Result<()> {
    let own = tokio::task::spawn_blocking(OwnCluster::start).await??;
    let maintenance = PgPool::connect(&own.url("postgres", "postgres")).await?;
    execute(&maintenance, "create role stranger").await?;
    for (number, names) in [
        &["channels"][..],
        &["tenancy"],
        &["m10_recovery"],
        &["execution"],
        &["jobs"],
        &["events"],
        &["postrider"],
        &["channels", "jobs", "postrider"],
    ]
    .iter()
    .enumerate()
    {
        execute(&maintenance, format!("create database shop{number}")).await?;
        let url = own.url("postgres", &format!("shop{number}"));
        let admin = PgPool::connect(&url).await?;
        for name in *names {
            execute(
                &admin,
                format!("create schema {name} authorization stranger; create table {name}.sources (id int)"),
            )
            .await?;
        }
        let before = texts(&admin, EVERYTHING).await?;

        let error = migrate::run(&url).await.unwrap_err().to_string();

        for name in *names {
            assert!(error.contains(&format!("`{name}` (owned by stranger)")), "{error}");
        }
        assert!(error.contains("nothing was changed; rename them (`alter schema … rename to …`)"), "{error}");
        assert_eq!(texts(&admin, EVERYTHING).await?, before, "{names:?}");
        // The script for psql refuses as well.
        let by_script = execute(&admin, migrate::script()).await.unwrap_err().to_string();
        assert!(
            by_script.contains(&format!("names that Postrider uses: {}", names.join(", "))),
            "{by_script}"
        );
        assert_eq!(texts(&admin, EVERYTHING).await?, before, "{names:?}");
        admin.close().await;
    }

    // Once the schemas are out of the way, it succeeds, and leaves them alone.
    let url = own.url("postgres", "shop7");
    let admin = PgPool::connect(&url).await?;
    for name in ["channels", "jobs", "postrider"] {
        execute(&admin, format!("alter schema {name} rename to shop_{name}")).await?;
    }
    assert_eq!(migrate::run(&url).await?, all_paths());
    assert_eq!(recorded(&admin).await?, all_files());
    assert_eq!(number(&admin, "select count(*) from shop_channels.sources").await?, 0);
    admin.close().await;
    maintenance.close().await;
    tokio::task::spawn_blocking(move || drop(own)).await?;
    Ok(())
}

/// A later release adds a schema whose name is taken.
#[tokio::test(flavor = "multi_thread")]
async fn a_foreign_schema_beside_an_older_installation_stops_the_upgrade_before_its_first_step()
-> anyhow::Result<()> {
    let world = World::new().await?;
    let admin = world.client("postgres").await?;
    execute(&admin, "create schema letters").await?;
    let before = recorded(&admin).await?;
    let later = Tree::current()
        .with_step("upgrades/0001_first.sql", "create table jobs.first ();\n")
        .with_step("upgrades/0002_letters.sql", "create schema letters;\n");

    let error = migrate::apply(&world.admin_url(), &later).await.unwrap_err().to_string();

    assert!(
        error.contains("names that Postrider uses: `letters` (owned by postgres); nothing was"),
        "{error}"
    );
    assert_eq!(recorded(&admin).await?, before);
    execute(&admin, "alter schema letters rename to shop_letters").await?;
    assert_eq!(
        migrate::apply(&world.admin_url(), &later).await?,
        ["upgrades/0001_first.sql", "upgrades/0002_letters.sql"]
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_role_of_one_of_our_names_with_too_many_rights_stops_the_migration() -> anyhow::Result<()> {
    let own = tokio::task::spawn_blocking(OwnCluster::start).await??;
    let url = own.url("postgres", "postgres");
    let admin = PgPool::connect(&url).await?;
    for (make, problem) in [
        ("create role postrider_app login superuser", "postrider_app is a superuser"),
        ("create role postrider_worker bypassrls", "postrider_worker bypasses row-level security"),
        ("create role postrider_read createrole", "postrider_read may create roles"),
        ("create role postrider_publish createdb", "postrider_publish may create databases"),
        ("create role postrider_owner login", "postrider_owner can log in"),
        (
            "create role postrider_app in role pg_read_all_data",
            "postrider_app is a member of pg_read_all_data",
        ),
    ] {
        execute(&admin, make).await?;
        let before = texts(&admin, EVERYTHING).await?;

        let error = migrate::run(&url).await.unwrap_err().to_string();

        assert!(
            error.contains(problem) && error.contains("nothing was changed; take the right away"),
            "{error}"
        );
        assert_eq!(texts(&admin, EVERYTHING).await?, before, "{problem}");
        let name = make.split(' ').nth(2).unwrap();
        execute(&admin, format!("drop role {name}")).await?;
    }
    // A role that has no more than ours is taken as it is.
    execute(&admin, "create role postrider_app login password 'x'").await?;
    assert_eq!(migrate::run(&url).await?, all_paths());
    admin.close().await;
    tokio::task::spawn_blocking(move || drop(own)).await?;
    Ok(())
}
