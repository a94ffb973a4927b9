//! Firing: the number of schedules that one scheduler fires per second.

use std::time::{Duration, Instant};

use postrider_engine::{Health, Hints, Scheduler, SchedulerSettings};
use postrider_model::jobs::lock_key::Grain;
use postrider_store::{
    jobs::{functions, runs},
    postgres::{pool, wakeups},
    tenancy::tenants,
};
use sqlx::Connection;
use tokio_util::sync::CancellationToken;

use super::{ACTOR, PATIENCE};
use crate::{place::Place, report::Report};

const SCHEDULES: i32 = 1_000;

/// All schedules are due when the scheduler starts.
pub(super) async fn measure(place: &Place, report: &mut Report) -> anyhow::Result<()> {
    let database = place.fresh("bench_firing").await?;
    let mut admin = database.admin().await?;
    let mut transaction = admin.begin().await?;
    let (tenant, _) = tenants::create(&mut transaction, ACTOR, ACTOR).await?;
    pool::act_as(&mut transaction, tenant).await?;
    functions::put_builtin(&mut transaction, tenant, "noop", Grain::FiveMinutes).await?;
    transaction.commit().await?;
    sqlx::query(include_str!("../../sql/jobs/schedules.sql"))
        .bind(tenant.0)
        .bind(SCHEDULES)
        .execute(&mut admin)
        .await?;
    sqlx::raw_sql("vacuum analyze").execute(&mut admin).await?;

    let url = database.url("postrider_worker");
    let worker = pool::connect(&url, pool::Settings::default()).await?;
    let shutdown = CancellationToken::new();
    let (ends, listening) = wakeups::listen(&url, runs::ENDS_CHANNEL, shutdown.clone())?;
    let listening = tokio::spawn(listening);
    let settings = SchedulerSettings {
        poll_interval: Duration::from_millis(500),
        misfire_grace: Duration::from_secs(60),
        dependency_patience: Duration::from_secs(24 * 60 * 60),
    };
    let runs = Hints::new(runs::HINT_CHANNEL);
    let begun = Instant::now();
    let firing = Scheduler { pool: worker.clone(), ends, runs, settings, health: Health::new("scheduler") }
        .run(shutdown.clone());
    let firing = tokio::spawn(firing);
    let fired = "select count(*) from jobs.schedule_firings where outcome = 'started'";
    while sqlx::query_scalar::<_, i64>(fired).fetch_one(&mut admin).await? < i64::from(SCHEDULES) {
        anyhow::ensure!(begun.elapsed() < PATIENCE, "the scheduler does not come to an end");
        tokio::time::sleep(Duration::from_millis(5)).await; // poll interval
    }
    let rate = f64::from(SCHEDULES) / begun.elapsed().as_secs_f64();
    shutdown.cancel();
    firing.await?;
    listening.await?;
    worker.close().await;
    admin.close().await?;
    database.remove().await?;
    report.single("schedules that one scheduler fires per second", &format!("{rate:.0}"), None);
    Ok(())
}
