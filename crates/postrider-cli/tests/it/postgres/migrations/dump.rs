//! The files as a script for psql, and the schema they lead to, as it is committed.

use std::{
    fs::File,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::Context;
use postrider_store::postgres::doctor::{self, Severity};
use sqlx::PgPool;

use super::{all_files, recorded};
use crate::{
    sql::{number, texts},
    world::{World, postrider, run},
};

/// A client program of the server's own version.
async fn program(admin: &PgPool, name: &str) -> anyhow::Result<PathBuf> {
    let folder = texts(admin, "select setting from pg_config where name = 'BINDIR'").await?;
    let beside = Path::new(&folder[0]).join(name);
    Ok(if beside.exists() { beside } else { name.into() })
}

async fn major(admin: &PgPool) -> Result<i64, sqlx::Error> {
    number(admin, "select current_setting('server_version_num')::bigint / 10000").await
}

/// The schema of a database in the words of pg_dump, without what differs from one run or minor version to the next.
async fn schema(world: &World, more: &[&str]) -> anyhow::Result<String> {
    let pg_dump = program(&world.client("postgres").await?, "pg_dump").await?;
    let dumped =
        run(Command::new(pg_dump).args(["--schema-only", "--dbname", &world.admin_url()]).args(more))?;
    anyhow::ensure!(dumped.code == 0, "pg_dump: {}", dumped.stderr);
    Ok(normalise(&dumped.stdout))
}

/// Drops comments, settings of the session, psql's own commands, and all but one of several blank lines.
fn normalise(dump: &str) -> String {
    let mut schema = String::new();
    for line in dump.lines() {
        let noise = ["--", "SET ", "SELECT pg_catalog.set_config(", "\\restrict ", "\\unrestrict "];
        let blank_again = line.is_empty() && (schema.is_empty() || schema.ends_with("\n\n"));
        if !blank_again && !noise.iter().any(|start| line.starts_with(start)) {
            schema.push_str(line);
            schema.push('\n');
        }
    }
    schema.truncate(schema.trim_end().len());
    schema + "\n"
}

#[test]
fn normalising_keeps_what_is_schema() {
    let dump = "--\n-- PostgreSQL database dump\n--\n\n\\restrict abc\n\n-- Dumped by\n\nSET statement_timeout = 0;\n\
                SELECT pg_catalog.set_config('search_path', '', false);\n\nCREATE FUNCTION f()\n    SET search_path TO 'x'\n    \
                AS $$\n    -- why\n\n\n$$;\n\n\n\nREVOKE ALL ON x FROM y;\n\n\\unrestrict abc\n\n";
    let schema = "CREATE FUNCTION f()\n    SET search_path TO 'x'\n    AS $$\n    -- why\n\n$$;\n\nREVOKE ALL ON x FROM y;\n";
    assert_eq!(normalise(dump), schema);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_dumped_script_piped_to_psql_makes_the_same_database_as_migrate() -> anyhow::Result<()> {
    let (migrated, piped) = (World::empty().await?, World::empty().await?);
    let by_command = migrated.postrider(&["migrate"])?;
    assert_eq!(by_command.code, 0, "{}", by_command.stderr);

    let admin = piped.client("postgres").await?;
    let script = tempfile::NamedTempFile::new()?;
    let dumped = run(postrider().args(["migrate", "--dump"]))?;
    assert_eq!(dumped.code, 0, "{}", dumped.stderr);
    std::fs::write(script.path(), dumped.stdout)?;
    let psql = Command::new(program(&admin, "psql").await?)
        .args(["-X", "-v", "ON_ERROR_STOP=1", "-f", "-", &piped.admin_url()])
        .stdin(File::open(script.path())?)
        .output()?;
    assert!(psql.status.success(), "{}", String::from_utf8_lossy(&psql.stderr));

    assert_eq!(schema(&piped, &[]).await?, schema(&migrated, &[]).await?);
    assert_eq!(recorded(&admin).await?, all_files());
    let catalogue = "select line from postrider.catalogue order by line collate \"C\"";
    let expected = texts(&migrated.client("postgres").await?, catalogue).await?;
    assert_eq!(texts(&admin, catalogue).await?, expected);
    let findings = doctor::examine(&mut *admin.acquire().await?).await?;
    assert!(findings.iter().all(|finding| finding.severity != Severity::Failure), "{findings:#?}");
    Ok(())
}

/// With UPDATE_SCHEMA set, the file is written anew instead.
#[tokio::test(flavor = "multi_thread")]
async fn the_committed_schema_is_what_the_files_lead_to() -> anyhow::Result<()> {
    let world = World::new().await?;
    let major = major(&world.client("postgres").await?).await?;
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../sql/schema.sql");
    let made_by = |major: &str| format!("-- Made from the pg_dump of PostgreSQL {major}");
    let header = format!(
        "-- The schema as it is after `postrider migrate`. To read, not to run.\n{}; a test compares \
         it. Refresh it with `make schema`.\n\n",
        made_by(&major.to_string())
    );
    let schema = header + &schema(&world, &["--no-owner"]).await?;
    if std::env::var_os("UPDATE_SCHEMA").is_some() {
        std::fs::write(&path, schema)?;
        return Ok(());
    }

    let committed = std::fs::read_to_string(&path).context("sql/schema.sql is missing; run `make schema`")?;
    if !committed.contains(&format!("{};", made_by(&major.to_string()))) {
        println!("skipped: sql/schema.sql was made by another major than this server's, {major}");
        assert!(committed.contains(&made_by("")), "its header must say by which major it was made");
        return Ok(());
    }
    let first = committed.lines().zip(schema.lines()).find(|(committed, now)| committed != now);
    assert!(committed == schema, "sql/schema.sql is stale, run `make schema`; first difference: {first:?}");
    Ok(())
}
