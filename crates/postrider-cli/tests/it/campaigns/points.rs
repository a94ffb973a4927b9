//! A worker dies at every boundary an item passes, or panics there, alone, and the next worker finds what it left.
//!
//! One job of two items, one at a time, so a worker commits: reserve 1; settle 1 and reserve 2; settle 2; complete.
#![cfg(debug_assertions)]

use std::{os::unix::process::ExitStatusExt, path::Path};

use postrider_store::postgres::crash::POINTS;
use serde_json::json;
use tokio::task::JoinSet;
use uuid::Uuid;

use super::{
    life::worker,
    scripted::{Provider, Stage as Moment},
    stage::Stage,
};
use crate::{
    exits::{Exit, all},
    sql::{number, texts},
    world::{Process, Sim, World, eventually, postrider},
};

/// How an item ended, and how often the provider acted on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Sent,
    /// In doubt, and the provider was never called.
    Uncalled,
    /// In doubt, and the provider has acted.
    Called,
}
use End::{Called, Sent, Uncalled};

/// The allowed ends of the two items, and the allowed numbers of attempts.
type Allowed = ([End; 2], &'static [i64]);

/// Where the first worker dies, what the items must have become, and how many attempts it took. A commit that was sent and not
/// acknowledged has gone through or not.
#[rustfmt::skip]
const CASES: &[(&str, &[Allowed])] = &[
    // The next worker sends the items that were not claimed or not reserved.
    ("claim.before@1",             &[([Sent, Sent], &[1])]),
    ("claim.after_statement@1",    &[([Sent, Sent], &[1])]),
    ("claim.commit_sent@1",        &[([Sent, Sent], &[1, 2])]),
    ("claim.after_commit@1",       &[([Sent, Sent], &[2])]),
    ("reserve.before@1",           &[([Sent, Sent], &[2])]),
    ("reserve.after_statement@1",  &[([Sent, Sent], &[2])]),
    ("reserve.commit_sent@1",      &[([Sent, Sent], &[2]), ([Uncalled, Sent], &[2])]),
    // A reserved item is never called again.
    ("reserve.after_commit@1",     &[([Uncalled, Sent], &[2])]),
    ("call.before@1",              &[([Uncalled, Sent], &[2])]),
    ("call.after@1",               &[([Called, Sent], &[2])]),
    ("finalize.before@1",          &[([Called, Sent], &[2])]),
    ("finalize.after_statement@1", &[([Called, Sent], &[2])]),
    ("finalize.commit_sent@1",     &[([Called, Sent], &[2]), ([Sent, Uncalled], &[2])]),
    ("finalize.after_commit@1",    &[([Sent, Uncalled], &[2])]),
    // The same for the second item, whose reservation shares a transaction with the end of the first.
    ("reserve.before@2",           &[([Called, Sent], &[2])]),
    ("reserve.after_statement@2",  &[([Called, Sent], &[2])]),
    ("reserve.commit_sent@2",      &[([Called, Sent], &[2]), ([Sent, Uncalled], &[2])]),
    ("reserve.after_commit@2",     &[([Sent, Uncalled], &[2])]),
    ("call.before@2",              &[([Sent, Uncalled], &[2])]),
    ("call.after@2",               &[([Sent, Called], &[2])]),
    ("finalize.before@2",          &[([Sent, Called], &[2])]),
    ("finalize.after_statement@2", &[([Sent, Called], &[2])]),
    ("finalize.commit_sent@2",     &[([Sent, Called], &[2]), ([Sent, Sent], &[2])]),
    ("finalize.after_commit@2",    &[([Sent, Sent], &[2])]),
    // Everything is settled; the job ends.
    ("complete.before@1",          &[([Sent, Sent], &[2])]),
    ("complete.after_statement@1", &[([Sent, Sent], &[2])]),
    ("complete.commit_sent@1",     &[([Sent, Sent], &[1, 2])]),
    ("complete.after_commit@1",    &[([Sent, Sent], &[1])]),
];

const ONE_AT_A_TIME: &str = "window = 1\naccount_concurrency = 1\npoll_interval_ms = 20";

#[tokio::test(flavor = "multi_thread", worker_threads = 8)]
async fn a_worker_that_dies_at_any_point_leaves_what_the_next_one_can_finish() -> anyhow::Result<()> {
    for point in POINTS {
        assert!(CASES.iter().any(|(case, _)| case.split('@').next() == Some(point)), "{point} is not tried");
    }
    at_every_point(false).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 8)]
async fn a_worker_that_panics_at_any_point_does_not_live_on_by_half() -> anyhow::Result<()> {
    at_every_point(true).await
}

async fn at_every_point(panics: bool) -> anyhow::Result<()> {
    let sim = Sim::start(&[])?;
    // Nothing of ours runs between sending a COMMIT and its answer, so nothing can panic there.
    let cases = CASES.iter().filter(|(point, _)| !panics || !point.contains("commit_sent"));
    all(cases.map(|(point, allowed)| {
        let of_one_job = point.starts_with("call.") || point.starts_with("complete.");
        let by = match (panics, of_one_job) {
            (false, _) => Exit::Kill,
            (true, true) => Exit::PanicOfOne,
            (true, false) => Exit::Panic,
        };
        let (url, receipts) = (sim.http_url.clone(), sim.receipts.clone());
        let case = async move {
            let ended = die_at(point, by, &url, &receipts).await?;
            // A job whose worker panicked may still have come to its end.
            let counts = |attempts: &[i64]| panics || attempts.contains(&ended.1);
            let fits = allowed.iter().any(|(ends, attempts)| *ends == ended.0 && counts(attempts));
            anyhow::ensure!(fits, "{ended:?}, allowed are {allowed:?}");
            Ok(())
        };
        ((*point).to_owned(), case)
    }))
    .await
}

/// How the items ended, and after how many attempts, when a worker died at this point and another one came.
async fn die_at(point: &str, by: Exit, url: &str, receipts: &Path) -> anyhow::Result<([End; 2], i64)> {
    let (world, stage, run) = two_items(url).await?;
    let config =
        world.config(&format!("[outbound]\nallow_private = true\n[campaigns]\n{ONE_AT_A_TIME}\n"))?;
    let mut command = postrider();
    command.envs(by.environment(point));
    let mut victim =
        Process::start(command.arg("--config").arg(config.path()).args(["serve", "--roles", "campaigns"]))?;
    by.ended(&mut victim)?;

    let acted = |key: &str| {
        let text = std::fs::read_to_string(receipts)?;
        let of_the_key = text.lines().filter(|line| line.contains(key));
        Ok(of_the_key.filter(|line| line.contains(r#""acted":true"#)).count())
    };
    finish(&world, &stage, run, &acted).await
}

/// A campaign of two e-mails to the provider at this address.
async fn two_items(url: &str) -> anyhow::Result<(World, Stage, Uuid)> {
    let world = World::new().await?;
    let stage = Stage::new(&world, "acme").await?;
    stage.account(&world, "sim", "sim", &json!({ "url": url }), "").await?;
    stage.leads("all", 2).await?;
    let run = stage.deploy_one("short", "email").await?;
    Ok((world, stage, run))
}

/// A healthy worker takes over and finishes, twice where something is in doubt.
async fn finish(
    world: &World,
    stage: &Stage,
    run: Uuid,
    acted: &(dyn Fn(&str) -> anyhow::Result<usize> + Sync),
) -> anyhow::Result<([End; 2], i64)> {
    stage.no_worker_runs().await?;
    stage.age_locks("6 minutes").await?;
    // A worker that panicked may have had the time to say that its attempt failed.
    let failed = job(stage, run, "case status when 'failed' then attempts else 0 end").await?;
    stage.make_due().await?;
    let _alive = tokio::task::block_in_place(|| worker(world, ONE_AT_A_TIME))?;
    let attempts = rested(stage, run, failed.parse::<i64>()? + 1).await?;
    let before = ends(stage, run, acted).await?;
    let status = job(stage, run, "status").await?;
    if before == [Sent, Sent] {
        anyhow::ensure!(
            status == "completed" && stage.ended(run).await? == "completed",
            "the job is {status}"
        );
    } else {
        anyhow::ensure!(status == "failed", "the job is {status}");
        // Another look changes nothing, whoever takes it.
        stage.make_due().await?;
        rested(stage, run, attempts + 1).await?;
        anyhow::ensure!(ends(stage, run, acted).await? == before, "another attempt changed something");
    }
    Ok((before, attempts))
}

/// Waits until nobody works on the job any more, after at least so many attempts.
async fn rested(stage: &Stage, run: Uuid, attempts_min: i64) -> anyhow::Result<i64> {
    let sql = format!(
        "select coalesce(max(attempts), 0)::bigint from execution.job_queue where run_id = '{run}' and status in ('completed', 'failed', 'dead')"
    );
    eventually("the job rests", || async { Ok(number(&stage.admin, sql.clone()).await? >= attempts_min) })
        .await?;
    Ok(number(&stage.admin, sql.clone()).await?)
}

async fn job(stage: &Stage, run: Uuid, column: &str) -> anyhow::Result<String> {
    stage.ask(&format!("select ({column})::text from execution.job_queue where run_id = '{run}'")).await
}

/// How the two items stand, in the job's order. An inconsistent row is an error.
async fn ends(
    stage: &Stage,
    run: Uuid,
    acted: &(dyn Fn(&str) -> anyhow::Result<usize> + Sync),
) -> anyhow::Result<[End; 2]> {
    let sql = format!(
        "select item.status || ' ' || (item.in_doubt_since is not null) || ' ' || item.idempotency_key
           from execution.job_queue as job, unnest(job.item_ids) with ordinality as wanted (id, place)
                join execution.channel_outbox as item on item.recipient_id = wanted.id
          where job.run_id = '{run}' and item.run_id = job.run_id
          order by wanted.place"
    );
    let mut ends = Vec::new();
    for row in texts(&stage.admin, sql).await? {
        let parts: Vec<&str> = row.split(' ').collect();
        ends.push(match (parts[0], parts[1], acted(parts[2])?) {
            ("sent", "false", 1) => Sent,
            ("queued", "true", 0) => Uncalled,
            ("queued", "true", 1) => Called,
            (_, _, calls) => anyhow::bail!("{row} with {calls} calls"),
        });
    }
    ends.try_into().map_err(|ends| anyhow::anyhow!("not two rows: {ends:?}"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 8)]
async fn a_worker_that_dies_in_the_middle_of_a_call_leaves_it_in_doubt() -> anyhow::Result<()> {
    let moments = [
        (Moment::Connected, Uncalled),
        (Moment::HalfOfTheBody, Uncalled),
        (Moment::AllOfTheBody, Uncalled),
        (Moment::Acted, Called),
        (Moment::HeadersOut, Called),
        (Moment::AnswerOut, Called),
    ];
    let mut cases = JoinSet::new();
    for (moment, expected) in moments {
        cases.spawn(async move {
            let ended = die_during(moment).await.map_err(|error| error.context(format!("{moment:?}")))?;
            anyhow::ensure!(ended == ([expected, Sent], 2), "{moment:?}: {ended:?}");
            anyhow::Ok(())
        });
    }
    while let Some(case) = cases.join_next().await {
        case??;
    }
    Ok(())
}

async fn die_during(moment: Moment) -> anyhow::Result<([End; 2], i64)> {
    let provider = Provider::start(moment)?;
    let (world, stage, run) = two_items(&provider.url()).await?;
    let mut victim = tokio::task::block_in_place(|| worker(&world, ONE_AT_A_TIME))?;
    provider.kill_when_it_comes(victim.process.child.id());
    let status = tokio::task::block_in_place(|| victim.process.wait())?;
    anyhow::ensure!(status.signal() == Some(9), "it did not die: {status}");
    finish(&world, &stage, run, &|key: &str| Ok(provider.acted(key))).await
}
