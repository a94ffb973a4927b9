//! `postrider tenants remove`: nothing of the tenant is left, and nothing of another tenant changes.

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicBool, Ordering},
};

use serde_json::Value;
use sqlx::PgPool;
use uuid::Uuid;

use crate::{
    campaigns::execution::{
        Stage, Tenant,
        calls::{Windows, claim, complete, finalize, reserve_all},
    },
    postgres::catalogue::visibility::Tenant as Filled,
    sql::{execute, number, refusal, texts},
    world::World,
};

/// Every table with a tenant.
async fn tables(admin: &PgPool) -> Result<Vec<String>, sqlx::Error> {
    let sql = "select class.oid::regclass::text from pg_class as class
                 join pg_attribute as tenant on tenant.attrelid = class.oid and tenant.attname = 'tenant_id' and not tenant.attisdropped
                where class.relkind in ('r', 'p') and class.relnamespace::regnamespace::text !~ '^pg_' order by 1";
    texts(admin, sql).await
}

/// Number and checksum of the rows of everybody but one tenant, by table.
async fn others(admin: &PgPool, removed: Uuid) -> anyhow::Result<BTreeMap<String, String>> {
    let mut sums = BTreeMap::new();
    for table in tables(admin).await? {
        let sql = format!(
            "select count(*) || ' ' || coalesce(md5(string_agg(t::text, '|' order by t::text)), '-') from {table} as t
              where tenant_id not in ('{removed}', tenancy.system_tenant_id())"
        );
        sums.insert(table, texts(admin, sql).await?.concat());
    }
    Ok(sums)
}

/// Number of rows of a tenant, by table.
async fn rows(admin: &PgPool, tenant: Uuid) -> anyhow::Result<BTreeMap<String, i64>> {
    let mut counts = BTreeMap::new();
    for table in tables(admin).await? {
        let sql = format!("select count(*) from {table} where tenant_id = '{tenant}'");
        counts.insert(table, number(admin, sql).await?);
    }
    Ok(counts)
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_of_a_removed_tenant_is_left_and_nothing_of_another_changes() -> anyhow::Result<()> {
    let world = World::new().await?;
    let admin = world.client("postgres").await?;
    let gone = Filled::create(&admin, "gone").await?;
    let stays = Filled::create(&admin, "stays").await?;
    let before = others(&admin, gone.id).await?;
    let counts = rows(&admin, gone.id).await?;
    let empty: Vec<&String> = counts.iter().filter(|(_, rows)| **rows == 0).map(|(table, _)| table).collect();
    assert!(empty.is_empty(), "the tenant has no rows in {empty:?}");

    let directory = tempfile::tempdir()?;
    let export = directory.path().join("gone");
    let export = export.to_str().unwrap();
    let remove = |more: &[&str]| world.postrider(&[&["tenants", "remove", "gone"], more].concat());
    let with = ["--export", export];
    for (more, words) in [
        (&[][..], "--export"),
        (&["--export", export, "--no-export"][..], "cannot be used with"),
        (&with[..], "nothing was removed; add --yes 'gone'"),
        (&["--export", export, "--yes", "stays"][..], "is not the name `gone`; nothing was removed"),
        (&["--export", env!("CARGO_MANIFEST_DIR"), "--yes", "gone"][..], "is not empty; nothing was removed"),
    ] {
        let refused = remove(more)?;
        assert!(refused.code != 0 && refused.stderr.contains(words), "{more:?}: {}", refused.stderr);
    }
    assert_eq!(rows(&admin, gone.id).await?, counts);
    // The guards hold as long as the tenant is not being removed.
    for table in [
        "execution.campaign_runs",
        "execution.run_archives",
        "execution.campaign_audit_log",
        "tenancy.audit_log",
        "execution.assets",
    ] {
        let sql = format!("delete from {table} where tenant_id = '{}'", gone.id);
        assert_eq!(refusal(execute(&admin, sql).await)?.code, "23514", "{table}");
    }
    let one = format!("select tenancy.remove_rows('{}', 'execution.leads', 10)", gone.id);
    assert_eq!(refusal(number(&admin, one).await)?.code, "22023");
    for role in ["postrider_app", "postrider_worker"] {
        let begin = format!("select tenancy.begin_removal('{}')", gone.id);
        assert_eq!(refusal(execute(&world.client(role).await?, begin).await)?.code, "42501", "{role}");
    }

    let done = remove(&["--export", export, "--yes", "gone", "--json"])?;
    assert_eq!(done.code, 0, "{}", done.stderr);
    let said: Value = serde_json::from_str(&done.stdout)?;
    assert_eq!(said["tenant_id"], gone.id.to_string());
    for (table, rows) in &counts {
        let file = std::fs::read_to_string(directory.path().join(format!("gone/{table}.ndjson")))?;
        let lines: Vec<Value> = file.lines().map(serde_json::from_str).collect::<Result<_, _>>()?;
        assert!(lines.iter().all(|line| line["tenant_id"] == gone.id.to_string()), "{table}: {file}");
        // Its keys and their sessions were gone before the export.
        let are_gone =
            ["tenancy.api_keys", "tenancy.sessions", "tenancy.login_codes"].contains(&table.as_str());
        let expected = if are_gone { 0 } else { *rows };
        assert_eq!(i64::try_from(lines.len())?, expected, "{table}");
    }
    assert!(
        rows(&admin, gone.id).await?.values().all(|rows| *rows == 0),
        "{:?}",
        rows(&admin, gone.id).await?
    );
    assert_eq!(
        number(&admin, format!("select count(*) from tenancy.tenants where id = '{}'", gone.id)).await?,
        0
    );
    assert_eq!(others(&admin, gone.id).await?, before);
    let log = "select action || ' ' || subject from tenancy.audit_log where tenant_id = tenancy.system_tenant_id() and action like 'tenant.%'";
    assert_eq!(texts(&admin, log).await?, [format!("tenant.removed tenant:{}", gone.id)]);
    assert!(
        world
            .postrider(&["tenants", "remove", "gone", "--no-export", "--yes", "gone"])?
            .stderr
            .contains("there is no tenant `gone`")
    );
    let system = world.postrider(&["tenants", "remove", "system", "--no-export", "--yes", "system"])?;
    assert!(system.stderr.contains("there is no tenant `system`"), "{}", system.stderr);
    assert!(stays.id != gone.id);
    Ok(())
}

/// Sends everything of a tenant, run after run, until it is told to stop. Returns the number of items.
async fn send(stage: &Stage, tenant: Tenant, stop: &AtomicBool) -> anyhow::Result<usize> {
    let mut items = 0;
    while !stop.load(Ordering::Relaxed) || items == 0 {
        stage.run_of(tenant, 20, 10, &serde_json::json!({})).await?;
        for job in claim(&stage.worker, "w", 100).await?.into_iter().filter(|job| job.tenant_id == tenant.id)
        {
            let reserved = reserve_all(&stage.worker, "w", &job).await?;
            let sent: Vec<_> = reserved.iter().map(|item| (*item, "sent")).collect();
            finalize(&stage.worker, tenant.id, "w", &sent).await?;
            complete(&stage.worker, "w", &job).await?;
            items += sent.len();
        }
    }
    Ok(items)
}

#[tokio::test(flavor = "multi_thread")]
async fn another_tenant_sends_on_while_a_tenant_is_removed() -> anyhow::Result<()> {
    let mut stage = Stage::new().await?;
    let gone = Tenant::create(&stage.admin, "gone").await?;
    for _ in 0..3 {
        stage.run_of(gone, 4000, 500, &serde_json::json!({})).await?;
    }
    for job in claim(&stage.worker, "w", 100).await? {
        reserve_all(&stage.worker, "w", &job).await?;
    }
    // A statement of a worker that waits for a lock for a tenth of a second fails, and the test with it.
    let limit = format!(
        "alter role postrider_worker in database {} set lock_timeout = '100ms'",
        stage.world.database()
    );
    execute(&stage.admin, limit).await?;
    stage.worker = stage.world.client("postrider_worker").await?;
    let stop = AtomicBool::new(false);
    let removing = async {
        let url = stage.world.admin_url();
        let done = tokio::task::spawn_blocking(move || {
            crate::world::run(crate::world::postrider().args([
                "--database-url",
                &url,
                "tenants",
                "remove",
                "gone",
                "--no-export",
                "--yes",
                "gone",
            ]))
        })
        .await??;
        stop.store(true, Ordering::Relaxed);
        anyhow::ensure!(done.code == 0, "{}", done.stderr);
        anyhow::Ok(())
    };
    let (sent, removed) = tokio::join!(send(&stage, stage.own, &stop), removing);
    removed?;
    let items = sent?;
    assert_eq!(
        number(
            &stage.admin,
            format!(
                "select count(*) from execution.channel_outbox where tenant_id = '{}' and status = 'sent'",
                stage.own.id
            )
        )
        .await?,
        i64::try_from(items)?
    );
    assert!(rows(&stage.admin, gone.id).await?.values().all(|rows| *rows == 0));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tenant_that_is_being_removed_sends_nothing_new_and_a_second_command_finishes() -> anyhow::Result<()>
{
    let stage = Stage::new().await?;
    let gone = Tenant::create(&stage.admin, "gone").await?;
    stage.run_of(gone, 4, 2, &serde_json::json!({})).await?;
    let jobs = claim(&stage.worker, "w", 10).await?;
    reserve_all(&stage.worker, "w", &jobs[0]).await?;
    // A deployment that has not committed yet holds the removal up.
    let phase = stage.phase(gone, 2, &serde_json::json!({})).await?;
    let campaign = stage.campaign(gone, &serde_json::json!([phase])).await?;
    let deploy = format!(
        "select execution.deploy_campaign(tenancy.current_tenant_id(), '{campaign}', null, 'a test')"
    );
    let mut deploying = stage.acting_for(gone).await?;
    execute(&mut *deploying, &deploy).await?;
    let begin = format!("select tenancy.begin_removal('{}')", gone.id);
    let admin = stage.admin.clone();
    let beginning = tokio::spawn(async move { execute(&admin, begin).await });
    crate::sql::someone_waits(&stage.admin).await?;
    deploying.commit().await?;
    beginning.await??;
    let more = stage.phase(gone, 2, &serde_json::json!({})).await?;
    let more = stage.campaign(gone, &serde_json::json!([more])).await?;
    let refused = refusal(stage.deploy(gone, more, 500).await)?;
    assert_eq!(
        (refused.code.as_str(), refused.message.contains("is being removed")),
        ("23514", true),
        "{refused:?}"
    );
    // Half of it is gone when the command comes again.
    execute(&stage.admin, format!("delete from execution.job_queue where tenant_id = '{}'", gone.id)).await?;
    let again = Windows::of(&jobs[0], 1, 2).begin(&stage.worker, "w").await?;
    assert_eq!(again[0].verdict, "lost");
    let done = stage.world.postrider(&["tenants", "remove", "gone", "--no-export", "--yes", "gone"])?;
    assert_eq!(done.code, 0, "{}", done.stderr);
    assert!(rows(&stage.admin, gone.id).await?.values().all(|rows| *rows == 0));
    Ok(())
}
