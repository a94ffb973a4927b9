//! Copies of every kind: a dump, files, a base backup, a replica. Each is refused, adopted, and settles without a second call.

use std::{
    fs::Permissions,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::Context;
use serde_json::Value;
use sqlx::Connection;
use uuid::Uuid;

use super::{
    ANSWERED, AT_ONCE, Site, WAITS, assert_called_once, calls, hold_in_the_middle, slow_sim, standing,
};
use crate::{
    campaigns::stage::Stage,
    http::get,
    postgres::Postgres,
    sql::{execute, number, refusal, texts},
    world::{Server, Sim, World, eventually},
};

const PEOPLE: usize = 80;

fn stop(server: &mut Server) -> anyhow::Result<()> {
    server.process.signal("TERM")?;
    assert!(server.process.wait()?.success(), "{}", server.process.lines().join("\n"));
    Ok(())
}

/// Until it is adopted a copy serves reads, says what it is, certifies nothing, and refuses every reservation.
async fn is_refused(site: &Site, stage: &Stage, server: &Server, run: Uuid) -> anyhow::Result<()> {
    server.process.wait_for_line(WAITS)?;
    eventually("the process serves reads, and says what waits", async || {
        // The process restarts its HTTP server when the roles that it may serve change, and drops a connection that it has not read.
        let Ok(ready) = get(&server.http_url, "/readyz") else { return Ok(false) };
        let waits = ready.json()?["sending_waits"].as_str().is_some_and(|waits| waits.starts_with(WAITS));
        Ok(ready.status == 200 && waits)
    })
    .await?;
    let (found, is_failure) = site.doctor()?;
    assert!(is_failure && found.starts_with(WAITS), "{found}");
    let certified = format!(
        "select duplicates_are_impossible::text from execution.verify_launch(tenancy.current_tenant_id(), '{run}')"
    );
    eventually("every process knows", async || Ok(stage.ask(&certified).await? == "false")).await?;
    let verified = site.postrider(&["campaign", "verify", "--tenant", "acme", &run.to_string()])?;
    assert_ne!(verified.code, 0);
    assert!(verified.stdout.contains("which is a restored copy"), "{}", verified.stdout);
    let insert = "insert into execution.channel_outbox (tenant_id, workspace_id, run_id, job_id, channel, provider, idempotency_key)
                  select tenant_id, workspace_id, run_id, id, 'email', 'sim', 'k' from execution.job_queue limit 1";
    let refused = refusal(execute(&stage.admin, insert).await)?;
    assert!(refused.code == "PR002" && refused.message.starts_with(WAITS), "{refused:?}");
    Ok(())
}

/// Adopts, and waits until everything is settled with evidence, by the process that has waited.
async fn adopt_and_settle(
    site: &Site,
    stage: &Stage,
    sim: &Sim,
    run: Uuid,
    people: usize,
) -> anyhow::Result<Value> {
    let (sent, _) = standing(stage, run).await?;
    let adopted = site.json(&["adopt", "--yes"])?;
    assert_eq!(adopted["adopted"], true);
    assert_eq!(adopted["items_in_doubt"], people - sent, "everything unfinished is in doubt: {adopted}");
    eventually("every item was settled", async || {
        Ok(stage.items(run).await?.get("sent").copied() == Some(people))
    })
    .await?;
    stage.ended(run).await?;
    assert_called_once(sim, people)?;
    let verified = site.json(&["campaign", "verify", "--tenant", "acme", &run.to_string()])?;
    let certificate = &verified["certificates"][0];
    assert_eq!(certificate["launched"], true, "{verified}");
    assert_eq!(certificate["evidence"]["cause"], "adopted");
    assert_eq!(certificate["evidence"]["items_adopted"], people - sent);
    assert!(!site.doctor()?.1);
    Ok(adopted)
}

fn succeeds(command: &mut Command) -> anyhow::Result<Vec<u8>> {
    let output = command.output()?;
    anyhow::ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(output.stdout)
}

/// A dump, made as operations.md says.
fn dump(original: &Postgres, site: &Site) -> anyhow::Result<PathBuf> {
    let dump = original.home().join("dump");
    succeeds(original.program("pg_dump").args(["-Fc", "-d", &site.url("postgres"), "-f"]).arg(&dump))?;
    Ok(dump)
}

/// Restores it as operations.md says: the roles first, then the dump.
fn restore(
    original: &Postgres,
    site: &Site,
    dump: &Path,
    other: &Postgres,
    copy: &Site,
) -> anyhow::Result<()> {
    let roles = succeeds(original.program("pg_dumpall").args(["--roles-only", "-d", &site.url("postgres")]))?;
    let roles_file = original.home().join("roles.sql");
    std::fs::write(&roles_file, roles)?;
    // Some roles exist already.
    other.program("psql").args(["-X", "-q", "-d", &copy.url("postgres"), "-f"]).arg(&roles_file).output()?;
    succeeds(other.program("pg_restore").args(["--exit-on-error", "-d", &copy.url("postgres")]).arg(dump))?;
    Ok(())
}

/// Every table of Postrider with the number of its rows.
async fn counts(admin: &sqlx::PgPool) -> anyhow::Result<Vec<String>> {
    let tables = "select class.oid::regclass::text from pg_class as class
                   where class.relkind = 'r'
                     and class.relnamespace in (select oid from pg_namespace where nspowner = 'postrider_owner'::regrole)
                   order by 1";
    let mut counts = Vec::new();
    for table in texts(admin, tables).await? {
        let rows = number(admin, format!("select count(*) from {table}")).await?;
        counts.push(format!("{table} {rows}"));
    }
    Ok(counts)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restored_dump_has_the_schema_and_the_rows_of_the_original() -> anyhow::Result<()> {
    let (original, sim) = (Postgres::start().await?, slow_sim()?);
    let site = Site::at(original.home())?;
    let stage = site.stage(&sim, 10).await?;
    let mut server = site.serve()?;
    let run = stage.deploy_one("news", "email").await?;
    assert_eq!(stage.ended(run).await?, "completed");
    stop(&mut server)?;
    let before = counts(&stage.admin).await?;
    assert!(before.contains(&"execution.channel_outbox 10".to_owned()), "{before:?}");

    let other = Postgres::start().await?;
    let copy = Site::at(other.home())?;
    restore(&original, &site, &dump(&original, &site)?, &other, &copy)?;

    let copied = copy.same_stage(&stage).await?;
    assert_eq!(counts(&copied.admin).await?, before);
    let findings = copy.findings()?;
    for check in
        ["schema", "drift", "contracts", "roles", "row-level security", "grants", "definer functions"]
    {
        let finding = findings.iter().find(|finding| finding["check"] == check).context(check)?;
        assert_eq!(finding["severity"], "ok", "{finding}");
    }
    // A function that was edited in the copy is found, and so is a difference that the restore could have made.
    for (edit, object) in [
        (
            "create or replace function jobs.grain_length(p_grain text) returns interval language sql immutable \
             parallel safe return interval '1 day'",
            "2 differences from what the last migration made: now: function jobs.grain_length(",
        ),
        (
            "alter table execution.channel_outbox drop constraint channel_outbox_status_check",
            "constraint execution.channel_outbox.channel_outbox_status_check",
        ),
    ] {
        execute(&copied.admin, edit).await?;
        let findings = copy.findings()?;
        let drift = findings.iter().find(|finding| finding["check"] == "drift").context("drift")?;
        assert_eq!(drift["severity"], "failure", "{drift}");
        assert!(drift["found"].as_str().unwrap_or_default().contains(object), "{drift}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn each_part_of_the_recorded_identity_tells_a_copy_by_itself() -> anyhow::Result<()> {
    let admin = World::new().await?.client("postgres").await?;
    for (part, recorded, says) in [
        ("nothing", "", ""),
        ("system_identifier", "'7'", "the database was recorded in cluster 7, and this is cluster "),
        ("database_oid", "7", "(oid 7), and this is database "),
        ("table_oid", "7", "its tables were created again after it was recorded"),
    ] {
        let of_here = ["system_identifier", "database_oid", "database_name", "table_oid"];
        let values = of_here.map(|column| if column == part { recorded } else { column });
        let mut transaction = admin.begin().await?;
        let record = format!(
            "insert into tenancy.epochs (number, installation_id, cause, actor, {}) select 1, gen_random_uuid(), 'enrolled', 'a test', {}
               from tenancy.database_identity()",
            of_here.join(", "),
            values.join(", ")
        );
        execute(&mut *transaction, record).await?;
        let refusal =
            texts(&mut *transaction, "select coalesce(tenancy.sending_refusal(), '')").await?.concat();
        assert!(refusal.contains(says) && refusal.is_empty() == says.is_empty(), "{part}: {refusal}");
        transaction.rollback().await?;
    }
    Ok(())
}

// A process names the epoch and the timeline that it has compared, through whatever connection it reserves.
#[tokio::test(flavor = "multi_thread")]
async fn a_reservation_under_another_epoch_or_timeline_than_the_compared_one_is_refused() -> anyhow::Result<()>
{
    let (world, sim) = (World::new().await?, Sim::start(&[])?);
    let stage = Stage::with_sim(&world, &sim, 1).await?;
    stage.deploy_one("news", "email").await?;
    execute(&stage.admin, "select tenancy.enrol('a test')").await?;
    let here =
        "select id || '/' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8) from tenancy.epochs";
    let here = texts(&stage.admin, here).await?.concat();
    let (epoch, timeline) = here.split_once('/').context("no timeline")?;
    let reserve = "insert into execution.channel_outbox (tenant_id, workspace_id, run_id, job_id, channel, provider, idempotency_key)
                   select tenant_id, workspace_id, run_id, id, 'email', 'sim', gen_random_uuid()::text from execution.job_queue";
    for (fence, is_compared) in [
        (here.clone(), true),
        (String::new(), true), // a client without a witness
        (format!("{epoch}/0000FFFF"), false),
        (format!("{}/{timeline}", Uuid::now_v7()), false),
        (epoch.to_owned(), false),
    ] {
        let mut transaction = stage.admin.begin().await?;
        execute(&mut *transaction, format!("set local app.fence = '{fence}'")).await?;
        let reserved = execute(&mut *transaction, reserve).await;
        if is_compared {
            reserved.with_context(|| format!("under `{fence}`"))?;
        } else {
            assert_eq!(refusal(reserved)?.code, "PR003", "under `{fence}`");
        }
        transaction.rollback().await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dump_that_is_restored_elsewhere_sends_nothing_again() -> anyhow::Result<()> {
    let (original, sim) = (Postgres::start().await?, slow_sim()?);
    let site = Site::at(original.home())?;
    let stage = site.stage(&sim, PEOPLE).await?;
    let mut server = site.serve()?;
    let run = stage.deploy_one("news", "email").await?;
    hold_in_the_middle(&sim, &stage, run, ANSWERED).await?;
    let dump = dump(&original, &site)?;
    sim.release()?;
    assert_eq!(stage.ended(run).await?, "completed");
    assert_called_once(&sim, PEOPLE)?;
    stop(&mut server)?;

    let other = Postgres::start().await?;
    let copy = Site::at(other.home())?;
    restore(&original, &site, &dump, &other, &copy)?;
    let copied = copy.same_stage(&stage).await?;
    assert_eq!(standing(&copied, run).await?, (ANSWERED, PEOPLE - ANSWERED - AT_ONCE));

    let server = copy.serve()?;
    is_refused(&copy, &copied, &server, run).await?;
    adopt_and_settle(&copy, &copied, &sim, run, PEOPLE).await?;
    server.process.wait_for_line("sending continues")?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn files_that_are_older_than_the_witness_send_nothing_again() -> anyhow::Result<()> {
    let (mut postgres, sim) = (Postgres::start().await?, slow_sim()?);
    let site = Site::at(postgres.home())?;
    let stage = site.stage(&sim, PEOPLE).await?;
    let mut server = site.serve()?;
    let run = stage.deploy_one("news", "email").await?;
    hold_in_the_middle(&sim, &stage, run, ANSWERED).await?;
    postgres.crash()?;
    postgres.copy_files()?;
    postgres.start_again().await?;
    sim.release()?;
    eventually("everybody was called", async || Ok(calls(&sim)?.len() == PEOPLE)).await?;
    stop(&mut server)?;

    postgres.stop()?;
    postgres.restore_files()?;
    postgres.start_again().await?;
    let stage = site.same_stage(&stage).await?;
    assert!(standing(&stage, run).await?.0 < PEOPLE);
    let server = site.serve()?;
    is_refused(&site, &stage, &server, run).await?;
    adopt_and_settle(&site, &stage, &sim, run, PEOPLE).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_recovery_to_a_point_in_time_sends_nothing_again_even_where_the_witness_is_lost()
-> anyhow::Result<()> {
    let (mut original, sim) = (Postgres::start().await?, slow_sim()?);
    original.archive().await?;
    let site = Site::at(original.home())?;
    let stage = site.stage(&sim, PEOPLE).await?;
    let mut server = site.serve()?;
    // The backup is older than the run: its middle is in the archive alone.
    let mut other = original.base_backup("recovery.signal", "")?;
    let run = stage.deploy_one("news", "email").await?;
    hold_in_the_middle(&sim, &stage, run, ANSWERED).await?;
    let middle = stage.ask("select clock_timestamp()::text").await?;
    sim.release()?;
    assert_eq!(stage.ended(run).await?, "completed");
    stop(&mut server)?;
    original.archive_everything().await?;
    original.stop()?;

    let restore_command = original.restore_command();
    other.configure(&format!(
        "restore_command = '{restore_command}'\nrecovery_target_time = '{middle}'\nrecovery_target_action = 'promote'\n"
    ))?;
    other.start_again().await?;
    let mut copy = Site::at(other.home())?;
    eventually("it is recovered", async || {
        // While the server promotes itself it may refuse or end connections.
        let Ok(mut admin) = sqlx::PgConnection::connect(&copy.url("postgres")).await else {
            return Ok(false);
        };
        let recovers =
            sqlx::query_scalar::<_, bool>("select pg_is_in_recovery()").fetch_one(&mut admin).await;
        Ok(recovers.is_ok_and(|recovers| !recovers))
    })
    .await?;
    let copied = copy.same_stage(&stage).await?;
    assert_eq!(standing(&copied, run).await?, (ANSWERED, PEOPLE - ANSWERED - AT_ONCE));
    // On a new machine: the copy itself shows a process that has not confirmed.
    let mut server = copy.serve()?;
    server.process.wait_for_line("has not confirmed")?;
    assert!(copy.doctor()?.1);
    stop(&mut server)?;
    // Where the witness is: it knows more than the copy.
    copy.witness = site.witness;
    let server = copy.serve()?;
    is_refused(&copy, &copied, &server, run).await?;
    adopt_and_settle(&copy, &copied, &sim, run, PEOPLE).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_that_is_promoted_while_behind_sends_nothing_again_from_a_process_that_lives_on()
-> anyhow::Result<()> {
    let (mut primary, sim) = (Postgres::start().await?, slow_sim()?);
    let home = tempfile::Builder::new().permissions(Permissions::from_mode(0o755)).tempdir()?;
    let socket = home.path().join("s");
    std::os::unix::fs::symlink(primary.home(), &socket)?;
    // The address stays, and the server behind it changes, as with a name that moves.
    let site = Site::at(&socket)?;
    let stage = site.stage(&sim, PEOPLE).await?;
    let settings = format!("primary_conninfo = 'host={} user=postgres'\n", primary.home().display());
    let mut replica = primary.base_backup("standby.signal", &settings)?;
    replica.start_again().await?;
    let server = site.serve()?;
    let run = stage.deploy_one("news", "email").await?;
    hold_in_the_middle(&sim, &stage, run, ANSWERED).await?;
    eventually("the replica has begun to follow", async || {
        let of_replica = Site::at(replica.home())?.same_stage(&stage).await?;
        Ok(standing(&of_replica, run).await.is_ok_and(|(sent, _)| sent > 0))
    })
    .await?;
    replica.stop()?;
    // The calls that were held are answered, and as many again.
    sim.hold_after(ANSWERED)?;
    hold_in_the_middle(&sim, &stage, run, 2 * ANSWERED + AT_ONCE).await?;
    primary.crash()?;
    sim.release()?;
    stage.admin.close().await;

    replica.start_again().await?;
    replica.promote().await?;
    std::fs::remove_file(&socket)?;
    std::os::unix::fs::symlink(replica.home(), &socket)?;
    let stage = site.same_stage(&stage).await?;
    is_refused(&site, &stage, &server, run).await?;
    // The replica does not know what was called after it stopped, and no process calls it again.
    if let Err(error) = adopt_and_settle_what_was_called(&site, &stage, &sim, run).await {
        anyhow::bail!("{error:#}; {:?}; {}", stage.items(run).await?, server.process.lines().join("\n"));
    }
    server.process.wait_for_line("sending continues")?;
    Ok(())
}

/// Of a run that had not ended at the original either: items that were called are `sent`, the others are `failed`, both by the
/// provider's word, and no key is called twice.
async fn adopt_and_settle_what_was_called(
    site: &Site,
    stage: &Stage,
    sim: &Sim,
    run: Uuid,
) -> anyhow::Result<()> {
    let adopted = site.json(&["adopt", "--yes"])?;
    assert_eq!(adopted["adopted"], true);
    eventually("every item was settled", async || {
        let items = stage.items(run).await?;
        let settled: usize = ["sent", "failed"].iter().filter_map(|state| items.get(*state)).sum();
        Ok(settled == PEOPLE)
    })
    .await?;
    let sent = stage.items(run).await?["sent"];
    assert_called_once(sim, sent)?;
    assert_eq!(sent, 2 * (ANSWERED + AT_ONCE), "the others were reserved by no process");
    Ok(())
}
