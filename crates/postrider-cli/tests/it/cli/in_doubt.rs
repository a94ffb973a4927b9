//! `postrider in-doubt`: what nobody knows is listed, and settled by what somebody finds out.

use insta::assert_snapshot;
use serde_json::json;
use uuid::Uuid;

use super::{
    assert_misused, assert_refused,
    stage::{SPRING, Stage, redacted},
    succeeded,
};

impl Stage {
    /// The ids that are listed, the longest in doubt first.
    fn listed(&self) -> anyhow::Result<Vec<Uuid>> {
        let listed = self.json(&["in-doubt", "list"])?;
        let ids =
            listed.as_array().into_iter().flatten().filter_map(|doubt| doubt["id"].as_str()?.parse().ok());
        Ok(ids.collect())
    }

    fn resolve(&self, item: Uuid, resolved_as: &str) -> anyhow::Result<crate::world::Output> {
        self.run(&["in-doubt", "resolve", &item.to_string(), "--as", resolved_as, "--note", "asked them"])
    }
}

#[tokio::test]
async fn items_in_doubt_are_listed_with_their_reason_and_the_end_of_the_quiet_time() -> anyhow::Result<()> {
    let stage = Stage::new(3).await?;
    let run_id = stage.deploy_spring(500).await?;
    assert_eq!(succeeded(stage.run(&["in-doubt", "list"])?)?.stderr, "no item is in doubt\n");
    let worker = stage.worker("hand").await?;
    let job = worker.claim().await?;
    let items = worker.reserve(&job, 3).await?;
    // A worker that is at work leaves nothing in doubt.
    assert!(stage.listed()?.is_empty());

    worker.settle(&[(items[0], "sent", "m-1"), (items[1], "in_doubt", "no answer within 30 s")]).await?;
    stage
        .world
        .as_superuser("update execution.channel_outbox set in_doubt_since = now() - interval '2 hours' where in_doubt_since is not null")
        .await?;
    let listed = succeeded(stage.run(&["in-doubt", "list"])?)?;
    assert_snapshot!(redacted(&listed.stdout), @r"
    ITEM CAMPAIGN PHASE RECIPIENT PROVIDER FOR QUIET SETTLED BY REASON
    item_[id] spring mail lead2@example.com sim 2h 0m yes a look-up no answer within 30 s
    ");
    assert!(
        listed.stderr.contains("postrider in-doubt resolve ITEM --as sent|failed --note"),
        "{}",
        listed.stderr
    );

    // The worker that reserved the third item sends no heartbeat for a minute.
    stage
        .world
        .as_superuser("update execution.job_queue set locked_at = now() - interval '61 seconds'")
        .await?;
    let listed = stage.json(&["in-doubt", "list"])?;
    assert_eq!(listed.as_array().map(Vec::len), Some(2));
    assert_eq!(listed[0]["id"], json!(items[1]));
    assert_eq!(listed[0]["run_id"], json!(run_id));
    assert_eq!((&listed[0]["campaign"], &listed[0]["phase"]), (&json!("spring"), &json!("mail")));
    assert_eq!(listed[1]["reason"], "its worker is not heard of");
    assert_eq!((&listed[1]["is_quiet"], &listed[1]["reserved_by"]), (&json!(false), &json!("hand")));
    let one = succeeded(stage.run(&["in-doubt", "list", "--limit", "1"])?)?;
    assert!(
        one.stdout.lines().count() == 2 && one.stderr.contains("1 of 2 items are shown"),
        "{}{}",
        one.stdout,
        one.stderr
    );

    // The worker is heard of again.
    stage.world.as_superuser("update execution.job_queue set locked_at = now()").await?;
    assert_eq!(stage.listed()?, [items[1]]);
    // Its job goes on without it: somebody else holds it.
    stage
        .world
        .as_superuser("update execution.job_queue set locked_by = 'another', attempts = attempts + 1")
        .await?;
    let listed = stage.json(&["in-doubt", "list"])?;
    assert_eq!(listed[1]["reason"], "its send job is not held by the worker that reserved it");

    // Taken over when the lock is stale: marked, with the same two.
    stage
        .world
        .as_superuser("update execution.job_queue set locked_at = now() - interval '6 minutes'")
        .await?;
    stage.worker("third").await?.claim().await?;
    assert_eq!(stage.listed()?, [items[1], items[2]]);
    Ok(())
}

#[tokio::test]
async fn that_it_was_sent_counts_at_once_and_the_job_can_end() -> anyhow::Result<()> {
    let stage = Stage::new(1).await?;
    stage.deploy_spring(500).await?;
    let worker = stage.worker("hand").await?;
    let job = worker.claim().await?;
    let items = worker.reserve(&job, 1).await?;
    worker.settle(&[(items[0], "in_doubt", "no answer")]).await?;
    worker.complete(&job).await?;
    stage.world.as_superuser("update execution.job_queue set run_after = now() + interval '1 hour'").await?;

    let mut listener = sqlx::postgres::PgListener::connect(&stage.world.admin_url()).await?;
    listener.listen("postrider_jobs").await?;
    let item = format!("item_{}", items[0]);
    let resolved = succeeded(stage.run(&[
        "in-doubt",
        "resolve",
        &item,
        "--as",
        "sent",
        "--note",
        "it is in their log",
        "--message-id",
        "m-77",
    ])?)?;
    assert_eq!((resolved.stdout.as_str(), resolved.stderr), ("", format!("{item} is now sent\n")));
    tokio::time::timeout(crate::world::PATIENCE, listener.recv()).await??;
    assert!(stage.listed()?.is_empty());
    // It does not wait for the hour to pass.
    let job = worker.claim().await?;
    assert_eq!(worker.complete(&job).await?, "completed");

    let row: (String, Option<String>) =
        sqlx::query_as("select status, provider_message_id from execution.channel_outbox")
            .fetch_one(&stage.admin)
            .await?;
    assert_eq!(row, ("sent".to_owned(), Some("m-77".to_owned())));
    let audited: (String, String, Option<String>) = sqlx::query_as(
        "select actor, action, note from execution.campaign_audit_log where action like 'item.resolved%'",
    )
    .fetch_one(&stage.admin)
    .await?;
    let expected = ("cli:ada", "item.resolved_as_sent", "it is in their log");
    assert_eq!((audited.0.as_str(), audited.1.as_str(), audited.2.as_deref().unwrap_or_default()), expected);
    Ok(())
}

#[tokio::test]
async fn that_it_was_not_sent_counts_only_after_the_quiet_time() -> anyhow::Result<()> {
    let stage = Stage::new(1).await?;
    stage.deploy_spring(500).await?;
    let worker = stage.worker("hand").await?;
    let job = worker.claim().await?;
    let items = worker.reserve(&job, 1).await?;
    worker.settle(&[(items[0], "in_doubt", "no answer")]).await?;

    let before = stage.world.dump().await?;
    let refused = stage.resolve(items[0], "failed")?;
    assert_refused(&refused, "may still arrive until ");
    assert_refused(
        &refused,
        "; that it was not sent counts only after the quiet time. That it was sent counts at once",
    );
    assert_eq!(stage.world.dump().await?, before);

    stage
        .world
        .as_superuser("update execution.channel_outbox set in_doubt_since = now() - interval '11 minutes'")
        .await?;
    assert_eq!(stage.json(&["in-doubt", "list"])?[0]["is_quiet"], json!(true));
    let resolved = succeeded(stage.resolve(items[0], "failed")?)?;
    assert_eq!(resolved.stderr, format!("item_{} is now failed\n", items[0]));
    let error: Option<String> =
        sqlx::query_scalar("select error from execution.channel_outbox").fetch_one(&stage.admin).await?;
    assert_eq!(error.as_deref(), Some("asked them"));
    Ok(())
}

#[tokio::test]
async fn bad_resolutions_are_refused_and_write_nothing() -> anyhow::Result<()> {
    let stage = Stage::new(3).await?;
    stage.deploy_spring(500).await?;
    let worker = stage.worker("hand").await?;
    let job = worker.claim().await?;
    let items = worker.reserve(&job, 3).await?;
    worker.settle(&[(items[0], "sent", "m-1"), (items[1], "in_doubt", "no answer")]).await?;
    let [ended, doubted, at_work] = [items[0], items[1], items[2]].map(|id| id.to_string());
    let unknown = Uuid::now_v7().to_string();
    let resolve = |item: &str, more: &[&str]| stage.run(&[&["in-doubt", "resolve", item][..], more].concat());
    let before = stage.world.dump().await?;
    for (item, more, says) in [
        (&doubted, &["--as", "sent", "--note", " "][..], "--note is empty; explain how you know"),
        (
            &doubted,
            &["--as", "failed", "--note", "x", "--message-id", "m"],
            "--message-id belongs to an item that was sent; leave it out",
        ),
        (&unknown, &["--as", "sent", "--note", "x"], "; `postrider in-doubt list` shows what is in doubt"),
        (
            &ended,
            &["--as", "sent", "--note", "x"],
            "is sent already; an item that has ended is never reopened",
        ),
        (
            &at_work,
            &["--as", "sent", "--note", "x"],
            "is not in doubt: its worker is at work; look again in a minute",
        ),
    ] {
        assert_refused(&resolve(item, more)?, says);
        assert_eq!(stage.world.dump().await?, before, "{item} {more:?}");
    }
    for (item, more, says) in [
        (doubted.as_str(), &["--as", "sent"][..], "--note <NOTE>"),
        (&doubted, &["--note", "x"], "--as <RESOLVED_AS>"),
        (&doubted, &["--as", "lost", "--note", "x"], "[possible values: sent, failed]"),
        ("seven", &["--as", "sent", "--note", "x"], "`seven` is not a item id"),
        (&format!("run_{unknown}"), &["--as", "sent", "--note", "x"], "is not a item id"),
    ] {
        assert_misused(&resolve(item, more)?, says);
    }
    assert_misused(&stage.run(&["in-doubt", "list", "--limit", "0"])?, "0 is not in 1..=10000");
    assert_eq!(stage.world.dump().await?, before);
    Ok(())
}

#[tokio::test]
async fn json_and_the_table_agree_on_who_settles_a_doubt() -> anyhow::Result<()> {
    for (provider, shown, settled_by, is_for_person) in
        [("sim", "a look-up", "look_up", false), ("smtp", "a person", "person", true)]
    {
        let stage = Stage::new(1).await?;
        stage.add_account("post", provider).await?;
        succeeded(stage.create(&SPRING.replace("\"mailer\"", "\"post\""))?)?;
        stage.stdout(&["campaign", "deploy", "spring"])?;
        let worker = stage.worker("hand").await?;
        let job = worker.claim().await?;
        let items = worker.reserve(&job, 1).await?;
        worker.settle(&[(items[0], "in_doubt", "no answer")]).await?;
        assert!(stage.stdout(&["in-doubt", "list"])?.contains(shown));
        let listed = &stage.json(&["in-doubt", "list"])?[0];
        assert_eq!(
            (&listed["settled_by"], &listed["is_for_person"]),
            (&json!(settled_by), &json!(is_for_person)),
            "{provider}"
        );
    }
    Ok(())
}

#[tokio::test]
async fn several_items_are_resolved_with_one_finding_and_a_refused_one_leaves_the_others()
-> anyhow::Result<()> {
    let stage = Stage::new(5).await?;
    stage.deploy_spring(500).await?;
    let worker = stage.worker("hand").await?;
    let job = worker.claim().await?;
    let items = worker.reserve(&job, 5).await?;
    let doubted: Vec<_> = items.iter().map(|item| (*item, "in_doubt", "no answer")).collect();
    worker.settle(&doubted).await?;
    let given: Vec<String> = items.iter().map(ToString::to_string).collect();
    let resolve = |more: &[&str]| {
        stage.run(&[&["in-doubt", "resolve"][..], more, &["--as", "sent", "--note", "their log"]].concat())
    };
    let both = succeeded(resolve(&[&given[0], &given[1]])?)?;
    assert_eq!(both.stdout, format!("item_{} is now sent\nitem_{} is now sent\n", given[0], given[1]));
    assert_eq!(both.stderr, "2 items were resolved, 0 were refused\n");

    let folder = tempfile::tempdir()?;
    let file = folder.path().join("found.txt");
    std::fs::write(
        &file,
        format!("# from their log\n{} m-2\n{}\n\nitem_{},m-3\n", given[2], given[0], given[3]),
    )?;
    let file = file.display().to_string();
    let some = resolve(&["--file", &file, "--json"])?;
    assert_eq!(some.code, 1, "{}", some.stderr);
    let told: serde_json::Value = serde_json::from_str(&some.stdout)?;
    assert_eq!(
        told["resolved"],
        json!([{ "id": items[2], "status": "sent" }, { "id": items[3], "status": "sent" }])
    );
    assert_eq!(told["refused"][0]["id"], json!(items[0]));
    assert!(told["refused"][0]["reason"].to_string().contains("is sent already"), "{told}");
    let ids: Vec<Option<String>> = sqlx::query_scalar(
        "select provider_message_id from execution.channel_outbox where provider_message_id is not null order by 1",
    )
    .fetch_all(&stage.admin)
    .await?;
    assert_eq!(ids, [Some("m-2".to_owned()), Some("m-3".to_owned())]);

    let before = stage.world.dump().await?;
    assert_misused(&resolve(&[])?, "<ITEM>");
    assert_misused(&resolve(&["--file", &file, "--message-id", "m"])?, "--message-id");
    let two = resolve(&[&given[3], &given[4], "--message-id", "m"])?;
    assert_refused(&two, "--message-id belongs to one item");
    assert_refused(&resolve(&["--file", "/nowhere/found.txt"])?, "cannot read items from /nowhere/found.txt");
    std::fs::write(folder.path().join("found.txt"), "seven\n")?;
    assert_refused(&resolve(&["--file", &file])?, "line 1: `seven` is not a item id");
    std::fs::write(folder.path().join("found.txt"), "# nothing\n")?;
    assert_refused(&resolve(&["--file", &file])?, "names no item");
    assert_eq!(stage.world.dump().await?, before);
    Ok(())
}
