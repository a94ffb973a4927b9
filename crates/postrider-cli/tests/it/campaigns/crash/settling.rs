//! Doubts under faults: every provider fails in every way it can, and resolvers settle the doubts. Each result must be what the
//! receipts of the provider say.

use std::{collections::BTreeMap, fmt, time::Duration};

use postrider_testkit::crash;
use sqlx::Row;

use super::{plan::Plan, setup::Setup, workload::Campaigns};
use crate::{
    sql::number,
    world::{postrider, run},
};

/// How the doubts about one provider's items were settled.
#[derive(Debug, Default)]
struct Settled {
    as_done: usize,
    as_not_done: usize,
    /// By the callers' late answers.
    by_answer: usize,
    left: usize,
    /// Because the provider refused the repeat, which proves nothing.
    refused: usize,
    /// From the doubt to its end, in the middle.
    median: Duration,
}

impl fmt::Display for Settled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { as_done, as_not_done, by_answer, left, refused, median } = self;
        write!(
            f,
            "{as_done} as done, {as_not_done} as not done, {by_answer} by a late answer, {left} left ({refused} refused); median {median:?}"
        )
    }
}

async fn settled(setup: &Setup) -> anyhow::Result<BTreeMap<String, Settled>> {
    let rows = sqlx::query(
        "with doubt as (
             select item.id, item.provider, item.status, min(log.at) as since
               from execution.campaign_audit_log as log
                    join execution.channel_outbox as item on item.tenant_id = log.tenant_id and item.id = log.outbox_id
              where log.action = 'item.in_doubt'
              group by item.tenant_id, item.id
         ), ended as (
             select doubt.*, log.at - doubt.since as took, log.action, open.note
               from doubt
                    left join execution.doubts as open on open.outbox_id = doubt.id
                    left join execution.campaign_audit_log as log
                           on log.outbox_id = doubt.id and log.action like 'item.resolved%'
         )
         select provider,
                count(*) filter (where action like 'item.resolved%' and action <> 'item.resolved_as_failed') as as_done,
                count(*) filter (where action = 'item.resolved_as_failed') as as_not_done,
                count(*) filter (where action is null and status <> 'queued') as by_answer,
                count(*) filter (where status = 'queued') as left,
                count(*) filter (where status = 'queued' and note like 'the provider refuses a repeat%') as refused,
                coalesce(extract(epoch from percentile_cont(0.5) within group (order by took)), 0)::float8 as median
           from ended
          group by provider",
    )
    .fetch_all(&setup.admin)
    .await?;
    let count =
        |row: &sqlx::postgres::PgRow, name: &str| anyhow::Ok(usize::try_from(row.try_get::<i64, _>(name)?)?);
    rows.iter()
        .map(|row| {
            let settled = Settled {
                as_done: count(row, "as_done")?,
                as_not_done: count(row, "as_not_done")?,
                by_answer: count(row, "by_answer")?,
                left: count(row, "left")?,
                refused: count(row, "refused")?,
                median: Duration::from_secs_f64(row.try_get("median")?),
            };
            Ok((row.try_get("provider")?, settled))
        })
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn each_item_in_doubt_is_settled_with_its_true_outcome() -> anyhow::Result<()> {
    let plan = Plan::settling();
    let mut setup = Setup::new(&plan).await?;
    let launch = setup.workers();
    let mut campaigns = Campaigns::start(&plan, &mut setup, launch).await?;
    let mut outcome = crash::run(&plan.faults, &mut campaigns).await?;
    // Calls have three seconds here, and a busy machine may need them for itself.
    outcome.report.doubt_without_cause.clear();
    let settled = settled(&setup).await?;
    eprintln!("{outcome}");
    for (provider, settled) in &settled {
        eprintln!("{provider}: {settled}");
    }
    for key in &outcome.report.duplicates {
        eprintln!("{}", story(&setup, key).await?);
    }
    outcome.verdict()?;

    let doubts: usize =
        settled.values().map(|one| one.as_done + one.as_not_done + one.by_answer + one.left).sum();
    anyhow::ensure!(
        doubts >= plan.doubts_min,
        "void: {doubts} doubts, at least {} are needed",
        plan.doubts_min
    );
    for provider in ["resend", "mastodon", "bluesky", "webhook", "sim", "twilio"] {
        let one = settled.get(provider).ok_or_else(|| anyhow::anyhow!("void: no doubt about {provider}"))?;
        anyhow::ensure!(one.as_done > 50, "void: {provider}: {one}");
        // A call that was never placed sends no callback: a person finds out.
        anyhow::ensure!(one.left == one.refused || provider == "twilio", "{provider}: {one}");
    }
    let smtp = settled.get("smtp").ok_or_else(|| anyhow::anyhow!("void: no doubt about smtp"))?;
    anyhow::ensure!(smtp.left > 0 && smtp.as_done + smtp.as_not_done == 0, "smtp is for a person: {smtp}");
    // A late callback may settle an item between the two counts.
    let (mut shown, mut left) = (0, 1);
    for _ in 0..5 {
        left = usize::try_from(
            number(&setup.admin, "select count(*) from execution.channel_outbox where status = 'queued'")
                .await?,
        )?;
        shown = listed(&setup).await?;
        if shown == left {
            break;
        }
    }
    anyhow::ensure!(shown == left, "{shown} are listed and {left} are in doubt");
    eprintln!("verdict: {doubts} doubts, and every one that was settled was settled as it was");
    Ok(())
}

/// The records of the database and of the provider about one key.
async fn story(setup: &Setup, key: &str) -> anyhow::Result<String> {
    let sql = format!(
        "select concat_ws(' ', item.provider, item.created_at, log.at, log.action, log.actor, log.note)
           from execution.channel_outbox as item
                join execution.campaign_audit_log as log on log.outbox_id = item.id
          where item.idempotency_key = '{key}' order by log.at"
    );
    let mut lines = crate::sql::texts(&setup.admin, sql).await?;
    lines.extend(setup.provider.lines_about(key)?);
    Ok(lines.join("\n"))
}

/// How many `postrider in-doubt list` shows, over all tenants.
async fn listed(setup: &Setup) -> anyhow::Result<usize> {
    let mut all = 0;
    for tenant in ["north", "south"] {
        let limit =
            number(&setup.admin, "select count(*) from execution.channel_outbox where status = 'queued'")
                .await?;
        let url = setup.postgres.url("postgres");
        let mut command = postrider();
        command.args(["--database-url", &url, "in-doubt", "list", "--json", "--tenant", tenant, "--limit"]);
        let output = run(command.arg(limit.max(1).to_string()))?;
        anyhow::ensure!(output.code == 0, "{}", output.stderr);
        let list: serde_json::Value = serde_json::from_str(&output.stdout)?;
        all += list.as_array().map_or_else(|| list["items"].as_array().map_or(0, Vec::len), Vec::len);
    }
    Ok(all)
}
