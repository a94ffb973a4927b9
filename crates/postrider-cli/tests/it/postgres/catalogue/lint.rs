//! The SQL source: linted by plpgsql_check, one definition per function, a comment on everything.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use anyhow::Context;
use postrider_store::postgres::migrate;
use sqlx::PgPool;

use crate::{
    sql::{execute, texts},
    world::World,
};

/// Functions in schemas of Postrider.
const OURS: &str =
    "routine.pronamespace in (select oid from pg_namespace where nspowner = 'postrider_owner'::regrole)";

/// Every finding of plpgsql_check, with all its warnings. A trigger function is checked once per table that it is a trigger of.
async fn findings(admin: &PgPool) -> anyhow::Result<Vec<String>> {
    let sql = format!(
        "with checks as (
             select distinct routine.oid, coalesce(tgrelid, 0) as table_oid
               from pg_proc as routine
               join pg_language on pg_language.oid = routine.prolang and lanname = 'plpgsql'
               left join pg_trigger on tgfoid = routine.oid and not tgisinternal
              where {OURS}
         )
         select concat_ws(' ', checks.oid::regprocedure, 'line', lineno, level || ':', message, detail, hint)
           from checks
          cross join lateral plpgsql_check_function_tb(
                    checks.oid, table_oid::regclass, other_warnings => true, performance_warnings => true,
                    extra_warnings => true, security_warnings => true)
          order by 1"
    );
    let mut transaction = admin.begin().await?;
    // Some functions refuse to begin without a tenant.
    execute(&mut *transaction, "set local app.current_tenant_id = '018f0000-0000-7000-8000-000000000001'")
        .await?;
    Ok(texts(&mut *transaction, sql).await?)
}

#[tokio::test(flavor = "multi_thread")]
async fn plpgsql_check_has_nothing_to_say_about_any_function() -> anyhow::Result<()> {
    let world = World::new().await?;
    let admin = world.client("postgres").await?;
    execute(&admin, "create extension plpgsql_check")
        .await
        .context("plpgsql_check is missing; `scripts/setup tests` installs it with the system's packages")?;

    let found = findings(&admin).await?;
    assert!(found.is_empty(), "{} findings:\n{}", found.len(), found.join("\n"));

    // It does find a mistake in a function and in a trigger function.
    execute(
        &admin,
        "create function jobs.mistaken() returns void language plpgsql set search_path = pg_catalog as
         $$ begin perform nothing from jobs.job_runs; end $$;
         create function jobs.mistaken_trigger() returns trigger language plpgsql set search_path = pg_catalog as
         $$ begin new.nothing := 1; return new; end $$;
         create trigger mistaken before insert on jobs.job_runs for each row execute function jobs.mistaken_trigger();
         alter function jobs.mistaken() owner to postrider_owner;
         alter function jobs.mistaken_trigger() owner to postrider_owner",
    )
    .await?;
    let found = findings(&admin).await?.join("\n");
    assert!(found.contains("jobs.mistaken() line 1 error: column \"nothing\""), "{found}");
    assert!(found.contains("jobs.mistaken_trigger() line 1 error: record \"new\" has no field"), "{found}");
    Ok(())
}

/// Every text file of the repository below a folder, without what is built and what is not ours.
fn files_below(folder: &Path, found: &mut Vec<PathBuf>) -> anyhow::Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if path.is_dir() {
            if !name.starts_with('.') && !["target", "node_modules", "dist"].contains(&&*name) {
                files_below(&path, found)?;
            }
        } else if ["sql", "rs", "sh", "md", "py", "toml"].iter().any(|end| name.ends_with(end)) {
            found.push(path);
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn every_function_has_one_definition_in_sql_and_none_elsewhere() -> anyhow::Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize()?;
    let mut files = Vec::new();
    files_below(&root, &mut files)?;
    let mut defined: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for path in files {
        let path_shown = path.strip_prefix(&root)?.display().to_string();
        // The dump, and tests that try to break things.
        if path_shown == "sql/schema.sql"
            || path_shown.starts_with("crates/postrider-cli/tests/")
            || path_shown == "crates/postrider-store/src/postgres/migrate/signatures.rs"
        {
            continue;
        }
        for signature in migrate::signatures(&std::fs::read_to_string(&path)?) {
            defined.entry(signature).or_default().push(path_shown.clone());
        }
    }
    let elsewhere: Vec<_> = defined
        .iter()
        .filter(|(_, paths)| {
            paths.len() != 1 || !paths[0].starts_with("sql/") || !paths[0].contains("/functions/")
        })
        .collect();
    assert!(elsewhere.is_empty(), "{elsewhere:#?}");

    // The functions of the source files are those of the database.
    let admin = World::new().await?.client("postgres").await?;
    let names = "select routine.oid::regproc::text || ' ' || pronargs from pg_proc as routine where ";
    let mut in_database = texts(&admin, format!("{names} {OURS}")).await?;
    in_database.sort_unstable();
    let counted = |signature: &String| {
        let (name, types) = signature.split_once('(').unwrap();
        let types = types.strip_suffix(')').unwrap();
        // No type of ours has a comma but numeric(4, 1).
        let count = if types.is_empty() { 0 } else { types.replace("(4, 1)", "").split(", ").count() };
        format!("{name} {count}")
    };
    let mut in_tree: Vec<String> = defined.keys().map(counted).collect();
    in_tree.sort_unstable();
    assert_eq!(in_tree, in_database);
    Ok(())
}

/// Every function in plain SQL whose text Postgres refuses. The migrator applies the files with `check_function_bodies = off`, because
/// functions may name tables and functions of later files, so a mistake would show only at the first call.
async fn refused_sql_functions(admin: &PgPool) -> anyhow::Result<Vec<String>> {
    let written = format!(
        "select pg_get_functiondef(routine.oid) from pg_proc as routine
          where {OURS} and routine.prosqlbody is null
            and routine.prolang = (select oid from pg_language where lanname = 'sql')
          order by routine.oid"
    );
    let mut found = Vec::new();
    let definitions = texts(admin, written).await?;
    anyhow::ensure!(definitions.len() > 10, "only {} functions in plain SQL", definitions.len());
    for definition in definitions {
        let mut transaction = admin.begin().await?;
        execute(&mut *transaction, "set local check_function_bodies = on").await?;
        if let Err(error) = execute(&mut *transaction, definition.clone()).await {
            found.push(format!("{}: {error}", definition.lines().next().unwrap_or_default()));
        }
        transaction.rollback().await?;
    }
    Ok(found)
}

#[tokio::test(flavor = "multi_thread")]
async fn postgres_accepts_the_text_of_every_function_in_plain_sql() -> anyhow::Result<()> {
    let admin = World::new().await?.client("postgres").await?;
    assert_eq!(refused_sql_functions(&admin).await?, [""; 0]);

    // It finds a mistake.
    execute(
        &admin,
        "begin; set local check_function_bodies = off;
         create function jobs.mistaken() returns bigint language sql set search_path = pg_catalog as
         $$ select count(nothing) from jobs.job_runs $$;
         commit",
    )
    .await?;
    let found = refused_sql_functions(&admin).await?.join("\n");
    assert!(found.contains("jobs.mistaken()") && found.contains("\"nothing\" does not exist"), "{found}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn every_table_and_function_has_a_comment() -> anyhow::Result<()> {
    let admin = World::new().await?.client("postgres").await?;
    let bare = format!(
        "select 'table ' || class.oid::regclass
           from pg_class as class
          where class.relnamespace in (select oid from pg_namespace where nspowner = 'postrider_owner'::regrole)
            and class.relkind in ('r', 'p', 'v', 'm')
            and coalesce(obj_description(class.oid, 'pg_class'), '') = ''
          union all
         select 'function ' || routine.oid::regprocedure
           from pg_proc as routine
          where {OURS}
            and coalesce(obj_description(routine.oid, 'pg_proc'), '') = ''
          order by 1"
    );
    assert_eq!(texts(&admin, bare).await?, [""; 0]);
    Ok(())
}

/// The one function that notifies.
const NOTIFYING: &[&str] = &["tenancy.send_hint(text)"];

#[tokio::test(flavor = "multi_thread")]
async fn one_function_notifies() -> anyhow::Result<()> {
    let admin = World::new().await?.client("postgres").await?;
    let notifying = format!(
        "select routine.oid::regprocedure::text from pg_proc as routine
          where {OURS} and prosrc ~* '\\m(pg_)?notify\\M'
          order by routine.oid::regprocedure::text collate \"C\""
    );
    assert_eq!(texts(&admin, notifying).await?, NOTIFYING);
    Ok(())
}
