//! The writes of a job run in plain SQL: insert, claim and complete, without triggers.

use std::time::{Duration, Instant};

use anyhow::Context;
use postrider_store::postgres::embedded::SUPERUSER;
use serde_json::json;
use sqlx::{Connection, PgConnection, Row};
use tokio::{sync::mpsc, task::JoinSet};
use uuid::Uuid;

use super::{ACTOR, CONNECTIONS, RUNNING};
use crate::{
    drive::RAW_PLAN,
    meter::{Cost, Meter},
    place::{Database, connect},
};

/// Runs per second, and their cost.
#[derive(Debug, Clone, Copy)]
pub(super) struct Raw {
    pub(super) rate: f64,
    pub(super) cost: Cost,
}

impl Raw {
    async fn since(
        database: &Database<'_>,
        before: Meter,
        runs: u64,
        took: Duration,
    ) -> anyhow::Result<Self> {
        let cost = Meter::of_this_process(database).await?.since(before, i64::try_from(runs)?, took);
        Ok(Self { rate: runs as f64 / took.as_secs_f64(), cost })
    }
}

/// Measures one connection: three statements and three commits per run.
pub(super) async fn one_by_one(database: &Database<'_>, runs: u64) -> anyhow::Result<Raw> {
    let mut connection = prepared(database).await?;
    let tenant = Uuid::now_v7();
    let before = Meter::of_this_process(database).await?;
    let begun = Instant::now();
    for number in 0..runs {
        insert(&mut connection, tenant, number).await?;
        let ended = claim_and_complete(&mut connection, tenant).await?;
        anyhow::ensure!(ended == 1, "{ended} runs were claimed instead of one");
    }
    let took = begun.elapsed();
    connection.close().await?;
    Raw::since(database, before, runs, took).await
}

/// Measures several connections that insert with a commit each, and another one that claims and completes in batches.
pub(super) async fn together(database: &Database<'_>, runs: u64) -> anyhow::Result<Raw> {
    let (tenant, each) = (Uuid::now_v7(), runs / u64::from(CONNECTIONS));
    let (made, mut waiting) = mpsc::unbounded_channel();
    let mut worker = prepared(database).await?;
    let mut callers = Vec::new();
    for _ in 0..CONNECTIONS {
        callers.push(prepared(database).await?);
    }
    let before = Meter::of_this_process(database).await?;
    let begun = Instant::now();
    let mut tasks = JoinSet::new();
    for (caller, mut connection) in (0_u64..).zip(callers) {
        let made = made.clone();
        tasks.spawn(async move {
            for number in 0..each {
                insert(&mut connection, tenant, caller * each + number).await?;
                made.send(()).context("the claiming task has ended")?;
            }
            anyhow::Ok(connection.close().await?)
        });
    }
    drop(made);
    // One claim may take runs of several hints, so the claims are counted and not the hints.
    let mut left = each * u64::from(CONNECTIONS);
    let mut hints = Vec::new();
    while left > 0 {
        waiting.recv_many(&mut hints, RUNNING).await;
        hints.clear();
        left -= claim_and_complete(&mut worker, tenant).await?;
    }
    let took = begun.elapsed();
    while let Some(ended) = tasks.join_next().await {
        ended??;
    }
    worker.close().await?;
    Raw::since(database, before, each * u64::from(CONNECTIONS), took).await
}

async fn prepared(database: &Database<'_>) -> anyhow::Result<PgConnection> {
    let mut connection = connect(&database.url(SUPERUSER)).await?;
    sqlx::raw_sql(RAW_PLAN).execute(&mut connection).await?;
    Ok(connection)
}

async fn insert(connection: &mut PgConnection, tenant: Uuid, number: u64) -> anyhow::Result<()> {
    sqlx::query(include_str!("../../sql/jobs/raw_insert.sql"))
        .bind(Uuid::now_v7())
        .bind(tenant)
        .bind(format!("noop:{tenant}:2026-02-06T14:05:{number:012x}"))
        .bind(json!({ "order": number }))
        .execute(connection)
        .await
        .context("making a run")?;
    Ok(())
}

/// Claims and completes a batch. Returns its size.
async fn claim_and_complete(connection: &mut PgConnection, tenant: Uuid) -> anyhow::Result<u64> {
    let claimed = sqlx::query(include_str!("../../sql/jobs/raw_claim.sql"))
        .bind(ACTOR)
        .bind(i32::try_from(RUNNING)?)
        .bind(tenant)
        .fetch_all(&mut *connection)
        .await
        .context("claiming")?;
    let ids = claimed.iter().map(|row| row.try_get::<Uuid, _>(0)).collect::<Result<Vec<_>, _>>()?;
    if !ids.is_empty() {
        sqlx::query(include_str!("../../sql/jobs/raw_complete.sql"))
            .bind(ACTOR)
            .bind(&ids)
            .execute(connection)
            .await
            .context("completing")?;
    }
    Ok(ids.len() as u64)
}
