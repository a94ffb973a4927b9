//! Runs: list, look, their items, whether they are launched, their whole story.

use anyhow::Context;
use serde_json::{Value, json};

use super::{
    Stage,
    material::{UNKNOWN, account, assert_same_404, column, doubt, run, take_all, walk},
};
use crate::{
    campaigns::execution::calls::{complete, finalize},
    sql::{execute, texts},
};

#[tokio::test(flavor = "multi_thread")]
async fn a_run_is_told_from_its_beginning_to_its_end() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    account(&stage, &stage.acme).await?;
    let (campaign, run) = run(&stage, &stage.acme, "spring", 3, 500).await?;
    let key = &stage.acme.viewer;
    let queued = stage.get(key, &format!("/runs/{run}"))?.expect(200)?;
    assert_eq!((&queued["status"], &queued["campaign_id"]), (&json!("queued"), &json!(campaign)));
    assert_eq!(
        (&queued["progress"]["intended"], &queued["progress"]["jobs"]["queued"]),
        (&json!(3), &json!(1))
    );
    let campaign_now = stage.get(key, &format!("/campaigns/{campaign}"))?.expect(200)?;
    assert_eq!(campaign_now["phases"][0]["run_id"], json!(run));

    let (worker, taken) = take_all(&stage).await?;
    let (job, items) = &taken[0];
    finalize(&worker, stage.acme.id.0, "w", &[(items[0], "sent"), (items[1], "failed"), (items[2], "sent")])
        .await?;
    let certificate = stage.get(key, &format!("/runs/{run}/launch"))?.expect(200)?;
    assert_eq!(
        (&certificate["launched"], &certificate["every_item_is_terminal"]),
        (&json!(false), &json!(true))
    );
    complete(&worker, "w", job).await?;
    let certificate = stage.get(key, &format!("/runs/{run}/launch"))?.expect(200)?;
    assert_eq!([&certificate["sent"], &certificate["failed"], &certificate["missing"]], [2, 1, 0]);
    assert_eq!((&certificate["launched"], &certificate["run_status"]), (&json!(true), &json!("partial")));
    // No process has sent from this database.
    let evidence = &certificate["evidence"];
    assert!(evidence["installation_id"].is_null() && evidence["last_compared_at"].is_null(), "{evidence}");
    assert_eq!((&evidence["restored_copy"], &evidence["items_adopted"]), (&json!(false), &json!(0)));
    let here = "select current_database() || ' ' || system_identifier from pg_control_system()";
    let here = texts(&stage.admin, here).await?.concat();
    let named =
        ["database_name", "system_identifier"].map(|name| evidence[name].as_str().unwrap_or_default());
    assert_eq!(named.join(" "), here);
    execute(&stage.admin, "select tenancy.enrol('a test')").await?;
    let certificate = stage.get(key, &format!("/runs/{run}/launch"))?.expect(200)?;
    let evidence = &certificate["evidence"];
    assert!(evidence["installation_id"].is_string() && evidence["epoch_began_at"].is_string(), "{evidence}");
    assert_eq!((&evidence["epoch"], &evidence["cause"]), (&json!(1), &json!("enrolled")));

    let told = stage.get(key, &format!("/runs/{run}/trace"))?.expect(200)?;
    assert_eq!((&told["run"]["id"], &told["jobs"][0]["status"]), (&json!(run), &json!("completed")));
    assert_eq!(told["jobs"][0]["items"].as_array().map(Vec::len), Some(3), "{told}");
    let actions: Vec<&str> = told["audit"]
        .as_array()
        .context("no log")?
        .iter()
        .filter_map(|line| line["action"].as_str())
        .collect();
    assert!(actions.contains(&"run.deployed") || actions.len() >= 2, "{actions:?}");
    let short = stage.get(key, &format!("/runs/{run}/trace?limit=1"))?.expect(200)?;
    assert_eq!(short["jobs"][0]["items_left_out"], 2);
    assert!(short["audit_left_out"].as_i64().is_some_and(|left_out| left_out > 0), "{short}");

    for query in ["limit=0", "limit=1001", "limit=x"] {
        assert_eq!(stage.get(key, &format!("/runs/{run}/trace?{query}"))?.field(400)?, "limit");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn runs_are_listed_by_campaign_and_by_status() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    account(&stage, &stage.acme).await?;
    let (first_campaign, first) = run(&stage, &stage.acme, "first", 1, 500).await?;
    take_all(&stage).await?;
    let (second_campaign, second) = run(&stage, &stage.acme, "second", 1, 500).await?;
    for (query, expected) in [
        (String::new(), vec![&second, &first]),
        (format!("?campaign_id={first_campaign}"), vec![&first]),
        (format!("?campaign_id={second_campaign}&status=running"), vec![]),
        ("?status=running".to_owned(), vec![&first]),
        ("?status=queued".to_owned(), vec![&second]),
        (format!("?campaign_id={UNKNOWN}"), vec![]),
    ] {
        let items = walk(&stage, &stage.acme.viewer, &format!("/runs{query}"), 1, |_| Ok(()))?;
        assert_eq!(column(&items, "id").iter().collect::<Vec<_>>(), expected, "{query}");
    }
    for (query, field) in
        [("?status=lost", "status"), ("?campaign_id=7", "campaign_id"), ("?phase=a", "phase")]
    {
        assert_eq!(stage.get(&stage.acme.viewer, &format!("/runs{query}"))?.field(400)?, field, "{query}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn items_are_found_by_their_state() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    account(&stage, &stage.acme).await?;
    let (_, run) = run(&stage, &stage.acme, "spring", 40, 10).await?;
    let (worker, taken) = take_all(&stage).await?;
    // The first job is done, the second failed through and through, of the third one item is in doubt, the fourth is at work.
    let all = |status: &'static str, at: usize| {
        taken[at].1.iter().map(move |item| (*item, status)).collect::<Vec<_>>()
    };
    finalize(&worker, stage.acme.id.0, "w", &all("sent", 0)).await?;
    finalize(&worker, stage.acme.id.0, "w", &all("failed", 1)).await?;
    finalize(&worker, stage.acme.id.0, "w", &[(taken[2].1[4], "in_doubt")]).await?;
    for at in [0, 1] {
        complete(&worker, "w", &taken[at].0).await?;
    }
    let path = format!("/runs/{run}/items");
    let in_order: Vec<String> = taken.iter().flat_map(|(_, items)| items).map(ToString::to_string).collect();
    for (query, expected) in [
        ("", 40),
        ("?status=sent", 10),
        ("?status=failed", 10),
        ("?status=skipped", 0),
        ("?status=called", 0),
        ("?status=queued", 19),
        ("?status=in_doubt", 1),
    ] {
        let items = walk(&stage, &stage.acme.viewer, &format!("{path}{query}"), 7, |_| Ok(()))?;
        assert_eq!(items.len(), expected, "{query}");
        let ids = column(&items, "id");
        let known: Vec<&String> = in_order.iter().filter(|id| ids.contains(id)).collect();
        assert_eq!(ids.iter().collect::<Vec<_>>(), known, "{query}: in the order of the jobs");
    }
    let doubted = stage.get(&stage.acme.viewer, &format!("{path}?status=in_doubt"))?.expect(200)?;
    let item = &doubted["items"][0];
    assert_eq!((&item["status"], &item["error"]), (&json!("queued"), &json!("why")));
    assert!(
        item["doubted_since"].is_string()
            && item["idempotency_key"].as_str().is_some_and(|key| key.len() == 64)
    );
    assert_eq!(stage.get(&stage.acme.viewer, &format!("{path}?status=lost"))?.field(400)?, "status");

    // A worker that is not heard of puts the rest in doubt, without anybody having marked it.
    execute(
        &stage.admin,
        "update execution.job_queue set locked_at = now() - interval '2 minutes' where status = 'locked'",
    )
    .await?;
    let silent = walk(&stage, &stage.acme.viewer, &format!("{path}?status=in_doubt"), 6, |_| Ok(()))?;
    assert_eq!(silent.len(), 20);
    let at_work = stage.get(&stage.acme.viewer, &format!("{path}?status=queued"))?.expect(200)?;
    assert_eq!(at_work["items"], json!([]));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_walk_shows_every_item_once_while_they_end() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    account(&stage, &stage.acme).await?;
    let (_, run) = run(&stage, &stage.acme, "spring", 1000, 100).await?;
    let (worker, taken) = take_all(&stage).await?;
    let items: Vec<_> = taken.iter().flat_map(|(_, items)| items.clone()).collect();
    let handle = tokio::runtime::Handle::current();
    let walked = tokio::task::block_in_place(|| {
        walk(&stage, &stage.acme.viewer, &format!("/runs/{run}/items"), 90, |page| {
            let settled: Vec<_> = items.iter().skip(page * 80).take(80).map(|item| (*item, "sent")).collect();
            handle.block_on(finalize(&worker, stage.acme.id.0, "w", &settled))?;
            Ok(())
        })
    })?;
    assert_eq!(column(&walked, "id"), items.iter().map(ToString::to_string).collect::<Vec<_>>());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn runs_of_others_do_not_exist() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let beta = stage.tenant("beta").await?;
    account(&stage, &beta).await?;
    let (theirs, _) = doubt(&stage, &beta, "spring").await?;
    let calls = ["", "/items", "/launch", "/trace"].map(|tail| format!("/runs/{{id}}{tail}"));
    let calls: Vec<(&str, &str, Value)> =
        calls.iter().map(|path| ("GET", path.as_str(), Value::Null)).collect();
    assert_same_404(&stage, &stage.acme.admin, &calls, &theirs)?;
    let campaign = stage.get(&beta.viewer, "/campaigns")?.expect(200)?["items"][0]["id"].clone();
    for query in [String::new(), format!("?campaign_id={}", campaign.as_str().unwrap_or_default())] {
        let seen = stage.get(&stage.acme.admin, &format!("/runs{query}"))?.expect(200)?;
        assert_eq!(seen["items"], json!([]));
    }
    Ok(())
}
