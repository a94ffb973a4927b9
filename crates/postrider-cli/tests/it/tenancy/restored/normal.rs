//! Restarts, crashes, failovers that lose nothing, a lost witness and maintenance are no restore: processes go on sending.

use std::{fs::Permissions, os::unix::fs::PermissionsExt};

use uuid::Uuid;

use super::{ANSWERED, Site, WAITS, assert_called_once, calls, slow_sim, standing};
use crate::{
    campaigns::stage::Stage,
    postgres::Postgres,
    sql::{execute, number},
    world::{Server, Sim, World, eventually},
};

/// A run that goes through, with a server that never believed to be on a copy.
async fn sends(stage: &Stage, server: &Server, name: &str) -> anyhow::Result<Uuid> {
    let run = stage.deploy_one(name, "email").await?;
    assert_eq!(stage.ended(run).await?, "completed", "{name}");
    let lines = server.process.lines();
    assert!(!lines.iter().any(|line| line.contains(WAITS)), "{name}: {}", lines.join("\n"));
    Ok(run)
}

#[tokio::test(flavor = "multi_thread")]
async fn crashes_restarts_maintenance_and_a_lost_witness_are_no_restore() -> anyhow::Result<()> {
    let (mut postgres, sim) = (Postgres::start().await?, Sim::start(&[])?);
    let site = Site::at(postgres.home())?;
    let stage = site.stage(&sim, 5).await?;
    let mut server = site.serve()?;
    sends(&stage, &server, "at first").await?;

    postgres.crash()?;
    postgres.start_again().await?;
    let stage = site.same_stage(&stage).await?;
    sends(&stage, &server, "after a crash of the server").await?;
    // The process does not live to say goodbye.
    server.process.signal("KILL")?;
    server.process.wait()?;
    server = site.serve()?;
    sends(&stage, &server, "after the process was killed").await?;
    let second = site.serve()?;
    sends(&stage, &second, "beside another process").await?;
    drop(second);
    postgres.crash()?;
    server.process.signal("KILL")?;
    server.process.wait()?;
    postgres.start_again().await?;
    let stage = site.same_stage(&stage).await?;
    server = site.serve()?;
    sends(&stage, &server, "after both were killed at once").await?;

    for statement in
        ["vacuum full tenancy.epochs", "vacuum full", "reindex table tenancy.epochs", "checkpoint"]
    {
        execute(&stage.admin, statement).await?;
    }
    sends(&stage, &server, "after maintenance").await?;
    server.process.signal("TERM")?;
    server.process.wait()?;
    std::fs::remove_dir_all(site.witness.path().join("w"))?;
    server = site.serve()?;
    sends(&stage, &server, "after the witness was lost").await?;
    let elsewhere = site.elsewhere()?;
    let other = elsewhere.serve()?;
    sends(&stage, &other, "on another machine").await?;
    // A file that cannot be read counts as none.
    other.process.signal("KILL")?;
    drop(other);
    for file in std::fs::read_dir(elsewhere.witness.path().join("w"))? {
        std::fs::write(file?.path(), "\0nonsense")?;
    }
    let other = elsewhere.serve()?;
    sends(&stage, &other, "with a broken witness").await?;
    assert!(!site.doctor()?.1);
    assert_eq!(number(&stage.admin, "select count(*) from tenancy.epochs").await?, 1);
    assert_called_once(&sim, 45)?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_that_lost_nothing_is_promoted_and_the_processes_go_on() -> anyhow::Result<()> {
    let (mut primary, sim) = (Postgres::start().await?, slow_sim()?);
    let home = tempfile::Builder::new().permissions(Permissions::from_mode(0o755)).tempdir()?;
    let socket = home.path().join("s");
    std::os::unix::fs::symlink(primary.home(), &socket)?;
    let site = Site::at(&socket)?;
    let stage = site.stage(&sim, 60).await?;
    let settings = format!("primary_conninfo = 'host={} user=postgres'\n", primary.home().display());
    let mut replica = primary.base_backup("standby.signal", &settings)?;
    replica.start_again().await?;
    // Two processes: each waits until the other has looked, too.
    let servers = [site.serve()?, site.serve()?];
    let run = stage.deploy_one("news", "email").await?;
    eventually("they are in the middle", async || Ok(calls(&sim)?.len() > ANSWERED)).await?;
    stage.admin.close().await;
    // A server that stops in order sends its replica everything first.
    primary.stop()?;
    replica.promote().await?;
    std::fs::remove_file(&socket)?;
    std::os::unix::fs::symlink(replica.home(), &socket)?;
    sim.release()?;

    let stage = site.same_stage(&stage).await?;
    eventually("every item has an end or is in doubt", async || {
        let items = stage.items(run).await?;
        let ended: usize = ["sent", "in doubt"].iter().filter_map(|state| items.get(*state)).sum();
        Ok(ended == 60)
    })
    .await?;
    for server in &servers {
        let lines = server.process.lines();
        assert!(!lines.iter().any(|line| line.contains(WAITS)), "{}", lines.join("\n"));
    }
    assert_eq!(standing(&stage, run).await?.1, 0);
    assert_called_once(&sim, 60)?;
    assert!(!site.doctor()?.1);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn of_many_processes_that_start_at_once_one_records_the_installation() -> anyhow::Result<()> {
    let world = World::new().await?;
    let worker = world.client("postrider_worker").await?;
    let mut enrolling = tokio::task::JoinSet::new();
    for n in 0..32 {
        let worker = worker.clone();
        enrolling.spawn(async move {
            sqlx::query("select tenancy.enrol($1)").bind(format!("process {n}")).execute(&worker).await
        });
    }
    while let Some(done) = enrolling.join_next().await {
        done??;
    }
    let admin = world.client("postgres").await?;
    assert_eq!(number(&admin, "select count(*) from tenancy.epochs").await?, 1);
    assert_eq!(
        number(
            &admin,
            "select count(*) from tenancy.epochs where id = installation_id and cause = 'enrolled'"
        )
        .await?,
        1
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_only_serves_the_api_records_nothing() -> anyhow::Result<()> {
    let world = World::new().await?;
    let _server = Server::start(&world, "api", "")?;
    let admin = world.client("postgres").await?;
    assert_eq!(number(&admin, "select count(*) from tenancy.epochs").await?, 0);
    Ok(())
}
