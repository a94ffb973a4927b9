//! Upgrade steps and changed files of later releases.

use postrider_store::postgres::{
    doctor::{self, Finding, Severity},
    migrate::{self, CONCURRENTLY, Tree},
};
use sqlx::PgPool;

use super::{all_paths, recorded};
use crate::{
    sql::{execute, number, texts},
    world::World,
};

const FILE: &str = "jobs/functions/lock_keys.sql";

/// The current release with a changed function and a step.
fn later() -> Tree {
    let current = Tree::current();
    let changed = format!(
        "{}\ncreate or replace function jobs.new_function()\nreturns integer\nlanguage sql\nreturn 1;\n\
         revoke all on function jobs.new_function() from public;\n",
        current.file(FILE).unwrap()
    );
    current
        .with_file(FILE, &changed)
        .with_step("upgrades/0001_note.sql", "create table jobs.notes (tenant_id uuid not null);\n")
}

async fn failures(admin: &PgPool) -> anyhow::Result<Vec<Finding>> {
    let mut findings = doctor::examine(&mut *admin.acquire().await?).await?;
    findings.retain(|finding| finding.severity == Severity::Failure);
    Ok(findings)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upgrade_applies_its_steps_and_the_changed_files_in_one_transaction() -> anyhow::Result<()> {
    let world = World::new().await?;
    let admin = world.client("postgres").await?;

    assert_eq!(migrate::apply(&world.admin_url(), &later()).await?, ["upgrades/0001_note.sql", FILE]);

    assert_eq!(number(&admin, "select jobs.new_function()::bigint").await?, 1);
    let of_upgrade = "select count(distinct xmin::text) from postrider.sources where path in ('upgrades/0001_note.sql', \
                      'jobs/functions/lock_keys.sql')";
    assert_eq!(number(&admin, of_upgrade).await?, 1);
    assert!(migrate::apply(&world.admin_url(), &later()).await?.is_empty());
    // The release before does not know the step, and leaves the database alone.
    let error = migrate::run(&world.admin_url()).await.unwrap_err().to_string();
    assert!(
        error.contains("upgrades/0001_note.sql, which this version of Postrider does not know"),
        "{error}"
    );

    // An empty database gets the same.
    let fresh = World::empty().await?;
    assert_eq!(migrate::apply(&fresh.admin_url(), &later()).await?.len(), all_paths().len() + 1);
    let catalogue = "select line from postrider.catalogue order by line collate \"C\"";
    assert_eq!(texts(&fresh.client("postgres").await?, catalogue).await?, texts(&admin, catalogue).await?);
    Ok(())
}

// A process of the release before may still call the old signature.
#[tokio::test(flavor = "multi_thread")]
async fn a_signature_that_changes_in_place_or_disappears_is_refused_without_a_step_that_drops_it()
-> anyhow::Result<()> {
    let world = World::new().await?;
    let admin = world.client("postgres").await?;
    migrate::apply(&world.admin_url(), &later()).await?;
    let before = recorded(&admin).await?;
    let file = later().file(FILE).unwrap().to_owned();
    let changed = file.replace("jobs.new_function()", "jobs.new_function(p_n integer)");
    let without = Tree::current().file(FILE).unwrap().to_owned();
    for text in [&changed, &without] {
        let tree = later().with_file(FILE, text);
        let error = migrate::apply(&world.admin_url(), &tree).await.unwrap_err().to_string();
        assert!(
            error.contains(
                "the database has functions that no file of this release defines: jobs.new_function()"
            ),
            "{error}"
        );
        assert!(error.contains("the migration was rolled back"), "{error}");
        assert_eq!(recorded(&admin).await?, before);
    }

    // The old signature beside the new one, and a later step that drops it.
    let both = format!("{file}\n{}", changed.split_at(without.len()).1);
    assert_eq!(migrate::apply(&world.admin_url(), &later().with_file(FILE, &both)).await?, [FILE]);
    let drop = later()
        .with_file(FILE, &changed)
        .with_step("upgrades/0002_drop.sql", "drop function if exists jobs.new_function();\n");
    assert_eq!(migrate::apply(&world.admin_url(), &drop).await?, ["upgrades/0002_drop.sql", FILE]);
    let left = "select oid::regprocedure::text from pg_proc where proname = 'new_function'";
    assert_eq!(texts(&admin, left).await?, ["jobs.new_function(integer)"]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_fails_undoes_the_whole_migration_and_is_named() -> anyhow::Result<()> {
    let world = World::new().await?;
    let admin = world.client("postgres").await?;
    let before = recorded(&admin).await?;
    let broken = later().with_file("jobs/functions/retain.sql", "select 1 / 0;\n");

    let error = migrate::apply(&world.admin_url(), &broken).await.unwrap_err().to_string();

    assert!(error.starts_with("jobs/functions/retain.sql cannot be applied: division by zero; "), "{error}");
    assert_eq!(recorded(&admin).await?, before);
    assert_eq!(number(&admin, "select count(*) from pg_class where relname = 'notes'").await?, 0);
    assert!(failures(&admin).await?.is_empty());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_step_that_builds_an_index_concurrently_runs_outside_a_transaction_and_in_its_order()
-> anyhow::Result<()> {
    let build = format!(
        "{CONCURRENTLY}\n-- Safe while workers run.\ndrop index concurrently if exists jobs.notes_by_tenant;\n\
         create index concurrently notes_by_tenant\n    on jobs.notes (tenant_id);\n"
    );
    let tree = later()
        .with_step("upgrades/0002_index.sql", &build)
        .with_step("upgrades/0003_use.sql", "comment on index jobs.notes_by_tenant is 'Fast.';\n");
    let world = World::new().await?;
    let admin = world.client("postgres").await?;

    let applied = migrate::apply(&world.admin_url(), &tree).await?;

    assert_eq!(applied, ["upgrades/0001_note.sql", "upgrades/0002_index.sql", "upgrades/0003_use.sql", FILE]);
    let index =
        "select count(*) from pg_index where indexrelid = 'jobs.notes_by_tenant'::regclass and indisvalid";
    assert_eq!(number(&admin, index).await?, 1);
    let transactions = "select count(distinct xmin::text) from postrider.sources where path ~ 'upgrades' or path = 'jobs/functions/lock_keys.sql'";
    assert_eq!(number(&admin, transactions).await?, 3);

    let fresh = World::empty().await?;
    migrate::apply(&fresh.admin_url(), &tree).await?;
    let fresh = fresh.client("postgres").await?;
    assert_eq!(number(&fresh, index).await?, 1);
    assert_eq!(number(&fresh, "select count(distinct xmin::text) from postrider.sources").await?, 1);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_time_limits_of_the_login_do_not_end_a_long_migration() -> anyhow::Result<()> {
    let world = World::new().await?;
    let admin = world.client("postgres").await?;
    let database = texts(&admin, "select quote_ident(current_database())").await?.concat();
    let limits = [("idle_in_transaction_session_timeout", "50ms"), ("statement_timeout", "150ms")];
    for (limit, time) in limits {
        execute(&admin, format!("alter database {database} set {limit} = '{time}'")).await?;
    }
    // The sleeps stand for work on a large table. In the second step the session that holds the lock is idle meanwhile.
    let build = format!(
        "{CONCURRENTLY}\n-- Safe while workers run.\ndrop index concurrently if exists jobs.by_start;\n\
         create index concurrently by_start on jobs.job_runs (tenant_id, created_at, id);\nselect pg_sleep(0.4);\n"
    );
    let tree = Tree::current()
        .with_step("upgrades/0001_long.sql", "select pg_sleep(0.4);\n")
        .with_step("upgrades/0002_index.sql", &build);

    let applied = migrate::apply(&world.admin_url(), &tree).await?;

    assert_eq!(applied, ["upgrades/0001_long.sql", "upgrades/0002_index.sql"]);
    for (limit, _) in limits {
        execute(&admin, format!("alter database {database} reset {limit}")).await?;
    }
    // The index is in the recorded catalogue, although no step follows it.
    let drift = failures(&admin).await?;
    assert!(drift.iter().all(|finding| finding.check != "drift"), "{drift:#?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn every_replaceable_file_can_be_applied_again_and_changes_nothing() -> anyhow::Result<()> {
    let world = World::new().await?;
    let admin = world.client("postgres").await?;
    let catalogue = "select line from postrider.catalogue order by line collate \"C\"";
    let before = texts(&admin, catalogue).await?;
    execute(&admin, "update postrider.sources set checksum = 'x' where kind = 'replaceable'").await?;
    let behind = migrate::verify(&mut *admin.acquire().await?).await.unwrap_err().to_string();
    assert!(behind.contains("files behind this version of Postrider; run `postrider migrate`"), "{behind}");

    let applied = migrate::run(&world.admin_url()).await?;

    assert!(applied.iter().all(|path| path.contains("/functions/")), "{applied:?}");
    assert_eq!(texts(&admin, catalogue).await?, before);
    assert!(failures(&admin).await?.is_empty());
    // A file that a release no longer has is forgotten.
    execute(
        &admin,
        "insert into postrider.sources values ('jobs/functions/old.sql', 'replaceable', null, 'x', '0.0.9')",
    )
    .await?;
    assert_eq!(migrate::run(&world.admin_url()).await?, ["jobs/functions/old.sql (removed)"]);
    migrate::verify(&mut *admin.acquire().await?).await?;
    Ok(())
}

/// Each kind of object that an operator could edit by hand.
#[tokio::test(flavor = "multi_thread")]
async fn doctor_finds_every_object_that_was_edited_by_hand() -> anyhow::Result<()> {
    let world = World::new().await?;
    let admin = world.client("postgres").await?;
    for edit in [
        "create or replace function jobs.grain_length(p_grain text) returns interval language sql immutable parallel safe return interval '1 day'",
        "alter function tenancy.named_tenant_id() volatile",
        "alter function m10_recovery.publish_outbox(text, text, text, jsonb) security invoker",
        "alter function m10_recovery.publish_outbox(text, text, text, jsonb) set work_mem = '1MB'",
        "drop trigger assets_never_change on execution.assets",
        "alter table execution.assets disable trigger assets_never_change",
        "drop policy tenant_sees_its_own on execution.leads",
        "alter policy owner_passes on execution.leads using (false)",
        "grant insert on execution.leads to postrider_app",
        "grant select (email) on execution.leads to public",
        "revoke execute on function m10_recovery.publish_outbox(text, text, text, jsonb) from postrider_app",
        "grant create on schema jobs to postrider_worker",
        "alter table execution.channel_outbox drop constraint channel_outbox_status_check",
        "alter table execution.channel_outbox drop constraint channel_outbox_status_check, add constraint channel_outbox_status_check check (status <> '')",
        "alter table execution.leads alter column email set default 'x'",
        "alter table channels.channel_outbox alter column tenant_id set statistics -1",
        "create index by_hand on execution.leads (email)",
        "create rule by_hand as on delete to execution.leads do instead nothing",
        "alter table execution.leads no force row level security",
    ] {
        let mut transaction = admin.begin().await?;
        execute(&mut *transaction, edit).await?;
        let findings = doctor::examine(&mut transaction).await?;
        let drift = findings.iter().find(|finding| finding.check == "drift").unwrap();
        assert_eq!(drift.severity, Severity::Failure, "{edit}: {}", drift.found);
        transaction.rollback().await?;
    }
    assert!(failures(&admin).await?.is_empty());
    Ok(())
}
