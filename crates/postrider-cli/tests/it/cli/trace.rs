//! `postrider trace`: one story, from whichever end somebody holds it.

use insta::assert_snapshot;
use serde_json::json;
use uuid::Uuid;

use super::{
    assert_misused, assert_refused,
    stage::{SPRING, Stage, redacted},
    succeeded,
};
use crate::campaigns::execution::calls::Job;

/// Two jobs: one with an item of each kind, one that nobody has taken.
async fn tell_a_story(stage: &Stage) -> anyhow::Result<(Uuid, Job, Vec<Uuid>)> {
    let run_id = stage.deploy_spring(3).await?;
    let worker = stage.worker("hand").await?;
    let job = worker.claim().await?;
    let items = worker.reserve(&job, 3).await?;
    worker
        .settle(&[
            (items[0], "sent", "m-1"),
            (items[1], "failed", "550 no such user"),
            (items[2], "in_doubt", "no answer"),
        ])
        .await?;
    worker.complete(&job).await?;
    Ok((run_id, job, items))
}

#[tokio::test]
async fn a_run_is_traced_from_its_jobs_to_its_items_with_the_log() -> anyhow::Result<()> {
    let stage = Stage::new(5).await?;
    let (run_id, _, _) = tell_a_story(&stage).await?;
    let of_run = stage.stdout(&["trace", &run_id.to_string()])?;
    assert_snapshot!(redacted(&of_run), @r"
    run_[id] spring, phase mail, email via sim
    │ running, 5 intended, deployed [date] [time], began [date] [time]
    │ correlation id [id]
    ├─ job_[id] failed, attempt 1 of 5, 3 intended, 1 succeeded, 1 failed, 1 in doubt
    │ │ 1 items in doubt
    │ ├─ item_[id] sent lead1@example.com message id m-1 attempt 1
    │ ├─ item_[id] failed lead2@example.com 550 no such user attempt 1
    │ └─ item_[id] in doubt lead3@example.com no answer attempt 1
    └─ job_[id] queued, attempt 0 of 5, 2 intended
    log
    [date] [time] cli:ada run.deployed run_[id] 5 items
    [date] [time] cli:ada phase.in_progress run_[id] mail (start)
    [date] [time] hand job.locked job_[id] attempt 1
    [date] [time] hand run.running run_[id]
    [date] [time] hand item.in_doubt item_[id] no answer
    [date] [time] hand job.failed job_[id]
    ");
    let correlation: Uuid = sqlx::query_scalar("select correlation_id from execution.campaign_runs")
        .fetch_one(&stage.admin)
        .await?;
    for id in [format!("run_{run_id}"), correlation.to_string()] {
        assert_eq!(stage.stdout(&["trace", &id])?, of_run);
    }
    Ok(())
}

#[tokio::test]
async fn a_campaign_is_traced_by_name_or_id_whether_deployed_or_not() -> anyhow::Result<()> {
    let stage = Stage::new(5).await?;
    succeeded(stage.create(&SPRING.replace("\"spring\"", "\"summer\""))?)?;
    let undeployed = succeeded(stage.run(&["trace", "summer"])?)?;
    assert_snapshot!(redacted(&undeployed.stdout), @r"
    log
    [date] [time] cli:ada campaign.created summer
    ");
    assert_eq!(undeployed.stderr, "no phase of the campaign was deployed\n");

    let (run_id, _, _) = tell_a_story(&stage).await?;
    let by_name = stage.json(&["trace", "spring"])?;
    assert_eq!(by_name["subject"]["kind"], "campaign");
    assert_eq!(by_name["runs"][0]["id"], json!(run_id));
    assert_eq!(by_name["audit"][0]["action"], "campaign.created");
    let id = by_name["subject"]["id"].as_str().unwrap();
    for id in [id.to_owned(), format!("campaign_{id}")] {
        assert_eq!(stage.json(&["trace", &id])?, by_name);
    }
    Ok(())
}

#[tokio::test]
async fn a_job_and_an_item_are_traced_alone_with_what_is_above_them() -> anyhow::Result<()> {
    let stage = Stage::new(5).await?;
    let (run_id, job, items) = tell_a_story(&stage).await?;
    let of_job = stage.json(&["trace", &format!("job_{}", job.job_id)])?;
    let jobs = &of_job["runs"][0]["jobs"];
    assert_eq!((jobs.as_array().map(Vec::len), &jobs[0]["id"]), (Some(1), &json!(job.job_id)));
    assert_eq!(jobs[0]["items"].as_array().map(Vec::len), Some(3));
    assert_eq!(of_job["runs"][0]["id"], json!(run_id));

    let item = &jobs[0]["items"][2];
    let key = item["idempotency_key"].as_str().unwrap();
    let of_item = stage.stdout(&["trace", &items[2].to_string()])?;
    assert_snapshot!(redacted(&of_item), @r"
    run_[id] spring, phase mail, email via sim
    │ running, 5 intended, deployed [date] [time], began [date] [time]
    │ correlation id [id]
    └─ job_[id] failed, attempt 1 of 5, 3 intended, 1 succeeded, 1 failed, 1 in doubt
    │ 1 items in doubt
    └─ item_[id] in doubt lead3@example.com no answer attempt 1
    key [key]
    log
    [date] [time] cli:ada run.deployed run_[id] 5 items
    [date] [time] cli:ada phase.in_progress run_[id] mail (start)
    [date] [time] hand job.locked job_[id] attempt 1
    [date] [time] hand run.running run_[id]
    [date] [time] hand item.in_doubt item_[id] no answer
    [date] [time] hand job.failed job_[id]
    ");
    for id in [format!("item_{}", items[2]), key.to_owned(), key.to_uppercase()] {
        assert_eq!(stage.stdout(&["trace", &id])?, of_item);
    }
    let as_json = stage.json(&["trace", key])?;
    assert_eq!(as_json["subject"], json!({ "kind": "item", "id": items[2] }));
    assert_eq!(as_json["runs"][0]["jobs"][0]["items"], json!([item]));
    // The log of one item is not that of its neighbours.
    let of_first = stage.json(&["trace", &items[0].to_string()])?;
    let actions: Vec<_> =
        of_first["audit"].as_array().unwrap().iter().map(|line| line["action"].as_str().unwrap()).collect();
    assert!(!actions.contains(&"item.in_doubt"), "{actions:?}");
    Ok(())
}

#[tokio::test]
async fn rows_over_the_limit_are_counted_and_problems_come_first() -> anyhow::Result<()> {
    let stage = Stage::new(5).await?;
    let (run_id, _, _) = tell_a_story(&stage).await?;
    let short = succeeded(stage.run(&["trace", &run_id.to_string(), "--limit", "1"])?)?;
    assert_snapshot!(redacted(&short.stdout), @r"
    run_[id] spring, phase mail, email via sim
    │ running, 5 intended, deployed [date] [time], began [date] [time]
    │ correlation id [id]
    ├─ job_[id] failed, attempt 1 of 5, 3 intended, 1 succeeded, 1 failed, 1 in doubt
    │ │ 1 items in doubt
    │ ├─ item_[id] in doubt lead3@example.com no answer attempt 1
    │ └─ … 2 more items
    └─ … 1 more send jobs
    log
    [date] [time] hand job.failed job_[id]
    ");
    assert_eq!(short.stderr, "5 older lines of the log are left out; --limit shows more\n");
    Ok(())
}

#[tokio::test]
async fn a_missing_subject_is_reported_with_the_next_step() -> anyhow::Result<()> {
    let stage = Stage::new(1).await?;
    let run_id = stage.deploy_spring(500).await?;
    let (unknown, key) = (Uuid::now_v7(), "f".repeat(64));
    // An id of one kind is not taken for another.
    for id in
        [&unknown.to_string(), &format!("job_{run_id}"), &format!("item_{unknown}"), &key, "no such thing"]
    {
        assert_refused(
            &stage.run(&["trace", id])?,
            &format!(
                "tenant `acme` has no campaign, run, send job, item, key, correlation id or person `{id}`; `postrider campaign status`"
            ),
        );
    }
    assert_misused(&stage.run(&["trace"])?, "<ID>");
    assert_misused(&stage.run(&["trace", "spring", "--limit", "0"])?, "0 is not in 1..=100000");
    Ok(())
}

#[tokio::test]
async fn text_from_a_provider_cannot_steer_the_terminal() -> anyhow::Result<()> {
    let stage = Stage::new(1).await?;
    stage.deploy_spring(500).await?;
    stage.worker("hand").await?.finish_one("failed", "no\u{1b}[2J\nlog").await?;
    let traced = stage.stdout(&["trace", "spring"])?;
    assert!(!traced.contains('\u{1b}') && traced.contains("no\u{fffd}[2J\u{fffd}log"), "{traced}");
    Ok(())
}
