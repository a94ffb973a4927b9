//! A worker without connections to write with: it holds no jobs, says that it cannot work, and recovers by itself.

use std::collections::BTreeSet;

use sqlx::AssertSqlSafe;

use super::refusals::Login;
use crate::{
    campaigns::stage::Stage,
    http::get,
    sql::{execute, number},
    world::{Server, Sim, World, eventually},
};

const LEADS: usize = 300;
const CAMPAIGNS: &str =
    "[outbound]\nallow_private = true\n[campaigns]\nwindow = 4\njobs_max = 6\npoll_interval_ms = 50\n";

/// The configuration of a server whose loops use this login.
fn config_as(world: &World, login: &str) -> anyhow::Result<tempfile::NamedTempFile> {
    let file = world.config(CAMPAIGNS)?;
    let text = std::fs::read_to_string(file.path())?;
    std::fs::write(file.path(), text.replace(&world.url("postrider_worker"), &world.url(login)))?;
    Ok(file)
}

/// Sessions of a login that write, or all others of it.
async fn sessions(login: &Login, that_write: bool) -> anyhow::Result<i64> {
    let sql = format!(
        "select count(*) from pg_stat_activity
          where usename = '{}' and (application_name = 'postrider commits') = {that_write}",
        login.name
    );
    Ok(number(&login.admin, sql).await?)
}

/// Ends the sessions that write, and allows no new ones.
async fn starve(login: &Login) -> anyhow::Result<()> {
    let (name, others) = (&login.name, sessions(login, false).await?);
    execute(&login.admin, format!("alter role {name} connection limit {others}")).await?;
    let end = format!(
        "select pg_terminate_backend(pid) from pg_stat_activity
          where usename = '{name}' and application_name = 'postrider commits'"
    );
    sqlx::raw_sql(AssertSqlSafe(end)).execute(&login.admin).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_cannot_write_releases_its_jobs_and_another_one_finishes_them() -> anyhow::Result<()> {
    let (world, sim) = (World::new().await?, Sim::start(&[])?);
    let stage = Stage::with_sim(&world, &sim, LEADS).await?;
    let login = Login::create(&world, "in role postrider_worker").await?;
    let starved = Server::start_with(config_as(&world, &login.name)?, "campaigns")?;
    assert_eq!(sessions(&login, true).await?, 2, "the write connections are open before there is work");
    assert_eq!(get(&starved.http_url, "/readyz")?.status, 200);

    starve(&login).await?;
    let run = stage.deploy_one("mail", "email").await?;
    eventually("the worker releases its jobs", async || {
        let released = "select count(*) from execution.campaign_audit_log where action = 'job.released'";
        let held = "select count(*) from execution.job_queue where locked_by is not null";
        Ok(number(&stage.admin, released).await? > 0 && number(&stage.admin, held).await? == 0)
    })
    .await?;
    let counted = "select coalesce(sum(attempts), 0) from execution.job_queue";
    assert_eq!(number(&stage.admin, counted).await?, 0, "no attempt is counted");
    let ready = get(&starved.http_url, "/readyz")?;
    assert_eq!(ready.status, 503, "{}", ready.body);
    assert!(
        ready.body.contains("campaigns cannot work: it gets no database connection to write with"),
        "{}",
        ready.body
    );

    // New send jobs are left to workers that can write.
    let later = stage.deploy_one("later mail", "email").await?;
    let other = Server::start(&world, "campaigns", CAMPAIGNS)?;
    for run in [run, later] {
        assert_eq!(stage.ended(run).await?, "completed");
        assert_eq!(stage.items(run).await?, [("sent".to_owned(), LEADS)].into());
    }
    let released = format!(
        "select count(*) from execution.campaign_audit_log where run_id = '{later}' and action = 'job.released'"
    );
    assert_eq!(number(&stage.admin, released).await?, 0, "the starved worker claimed a job");
    let keys: Vec<String> = sim
        .receipts()?
        .iter()
        .filter(|receipt| receipt["acted"] == true)
        .filter_map(|receipt| receipt["key"].as_str().map(str::to_owned))
        .collect();
    assert_eq!((keys.len(), keys.iter().collect::<BTreeSet<_>>().len()), (2 * LEADS, 2 * LEADS));
    drop(other);

    // It is ready again as soon as it can have connections, without a restart, and works.
    assert_eq!(get(&starved.http_url, "/readyz")?.status, 503);
    execute(&login.admin, format!("alter role {} connection limit -1", login.name)).await?;
    eventually("the worker is ready again", async || Ok(get(&starved.http_url, "/readyz")?.status == 200))
        .await?;
    let run = stage.deploy_one("more mail", "email").await?;
    assert_eq!(stage.ended(run).await?, "completed");
    Ok(())
}

// Its process cannot write its mark, so it may not reserve. Other workers can.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_may_not_reserve_claims_no_jobs_and_another_one_finishes_them() -> anyhow::Result<()> {
    let (world, sim) = (World::new().await?, Sim::start(&[])?);
    let stage = Stage::with_sim(&world, &sim, LEADS).await?;
    let fenced = Server::start(&world, "campaigns", CAMPAIGNS)?;
    let ready = || get(&fenced.http_url, "/readyz");
    eventually("it is ready", async || Ok(ready()?.status == 200)).await?;

    let mut marks = stage.admin.begin().await?;
    sqlx::raw_sql("select from tenancy.process_marks for update").execute(&mut *marks).await?;
    eventually("it is not ready", async || {
        let ready = ready()?;
        Ok(ready.status == 503 && ready.body.contains("witness cannot work: every pass has failed for "))
    })
    .await?;
    // The fence closes ten seconds after the last mark was written.
    let is_stale = "select count(*) from tenancy.process_marks where marked_at < clock_timestamp() - interval '12 seconds'";
    eventually("its last mark is too old", async || Ok(number(&stage.admin, is_stale).await? == 1)).await?;
    let run = stage.deploy_one("mail", "email").await?;
    let other = Server::start(&world, "campaigns", CAMPAIGNS)?;
    assert_eq!(stage.ended(run).await?, "completed");
    assert_eq!(stage.items(run).await?, [("sent".to_owned(), LEADS)].into());
    let released = "select count(*) from execution.campaign_audit_log where action = 'job.released'";
    assert_eq!(
        number(&stage.admin, released).await?,
        0,
        "the worker claimed a job that it could not work on"
    );
    assert_eq!(ready()?.status, 503);
    drop(other);

    marks.rollback().await?;
    eventually("it is ready again", async || Ok(ready()?.status == 200)).await?;
    let run = stage.deploy_one("later mail", "email").await?;
    assert_eq!(stage.ended(run).await?, "completed");
    Ok(())
}
