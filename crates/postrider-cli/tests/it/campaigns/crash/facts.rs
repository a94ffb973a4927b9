//! Reads what the auditor compares.

use std::collections::{BTreeMap, HashMap};

use postrider_model::IdempotencyKey;
use postrider_providers::social::record_key;
use postrider_testkit::crash::provider_faults;
use sqlx::Row;

use super::{
    applications,
    audit::{Facts, Item, Job, Run},
    setup::{IN_FLIGHT_MAX, Setup},
};
use crate::sql::number;

/// The facts, and how often each fault of the provider occurred.
pub async fn gather(
    setup: &Setup,
    struck: BTreeMap<String, usize>,
) -> anyhow::Result<(Facts, BTreeMap<String, usize>)> {
    let (mut receipts, faults): (Vec<_>, Vec<_>) = setup.provider.receipts()?.into_iter().unzip();
    let faults = provider_faults(faults.iter().map(Option::as_deref));
    let (items, jobs, runs) = (items(setup).await?, jobs(setup).await?, runs(setup).await?);
    let keys: HashMap<String, &String> = items
        .iter()
        .map(|item| (record_key(&IdempotencyKey::from_row(item.key.clone())), &item.key))
        .collect();
    for receipt in receipts.iter_mut().filter(|receipt| receipt.key.is_none()) {
        receipt.key = receipt.record.as_ref().and_then(|record| keys.get(record)).map(|key| (*key).clone());
    }
    let messages = applications::violations(&setup.admin).await?;
    Ok((Facts { receipts, items, jobs, runs, messages, struck, in_flight_max: IN_FLIGHT_MAX }, faults))
}

async fn items(setup: &Setup) -> anyhow::Result<Vec<Item>> {
    let rows = sqlx::query(
        "select item.idempotency_key,
                item.idempotency_key = execution.outbox_key(run.id, item.recipient_id, run.key_part, run.scheduled_for)
                and item.tenant_id = run.tenant_id as key_is_right,
                item.job_id, item.recipient_id, item.status, item.in_doubt_since is not null as in_doubt,
                item.reserved_by
           from execution.channel_outbox as item join execution.campaign_runs as run on run.id = item.run_id",
    )
    .fetch_all(&setup.admin)
    .await?;
    let item = |row: &sqlx::postgres::PgRow| {
        Ok(Item {
            key: row.try_get("idempotency_key")?,
            key_is_right: row.try_get("key_is_right")?,
            job: row.try_get("job_id")?,
            id: row.try_get("recipient_id")?,
            status: row.try_get("status")?,
            in_doubt: row.try_get("in_doubt")?,
            reserved_by: row.try_get("reserved_by")?,
        })
    };
    rows.iter().map(item).collect()
}

async fn jobs(setup: &Setup) -> anyhow::Result<Vec<Job>> {
    let rows = sqlx::query(
        "select id, run_id, status, outcome, item_ids, succeeded, failed, skipped from execution.job_queue",
    )
    .fetch_all(&setup.admin)
    .await?;
    let count = |row: &sqlx::postgres::PgRow, name: &str| {
        row.try_get::<Option<i32>, _>(name).map(|count| count.and_then(|count| usize::try_from(count).ok()))
    };
    let job = |row: &sqlx::postgres::PgRow| {
        let counts = [count(row, "succeeded")?, count(row, "failed")?, count(row, "skipped")?];
        Ok(Job {
            id: row.try_get("id")?,
            run: row.try_get("run_id")?,
            status: row.try_get("status")?,
            outcome: row.try_get("outcome")?,
            intended: row.try_get("item_ids")?,
            counts: match counts {
                [Some(succeeded), Some(failed), Some(skipped)] => Some([succeeded, failed, skipped]),
                _ => None,
            },
        })
    };
    rows.iter().map(job).collect()
}

async fn runs(setup: &Setup) -> anyhow::Result<Vec<Run>> {
    let rows = sqlx::query("select id, status, intended from execution.campaign_runs")
        .fetch_all(&setup.admin)
        .await?;
    let run = |row: &sqlx::postgres::PgRow| {
        let intended: i32 = row.try_get("intended")?;
        Ok(Run {
            id: row.try_get("id")?,
            status: row.try_get("status")?,
            intended: usize::try_from(intended)?,
        })
    };
    rows.iter().map(run).collect()
}

/// Items that were in doubt until their answer came after all.
pub async fn settled_late(setup: &Setup) -> anyhow::Result<usize> {
    let sql = "select count(distinct item.id)
                 from execution.campaign_audit_log as log join execution.channel_outbox as item on item.id = log.outbox_id
                where log.action = 'item.in_doubt' and item.status <> 'queued'";
    Ok(usize::try_from(number(&setup.admin, sql).await?)?)
}
