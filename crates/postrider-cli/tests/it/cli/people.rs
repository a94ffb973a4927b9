//! `postrider leads` and `postrider trace` of a person.

use insta::assert_snapshot;
use serde_json::{Value, json};

use super::{
    assert_misused, assert_refused,
    stage::{Stage, redacted},
    succeeded,
};

#[tokio::test]
async fn a_person_is_traced_by_address_with_the_reason_of_every_item() -> anyhow::Result<()> {
    let stage = Stage::new(2).await?;
    stage.deploy_spring(500).await?;
    let worker = stage.worker("hand").await?;
    let job = worker.claim().await?;
    let items = worker.reserve(&job, 2).await?;
    worker.settle(&[(items[0], "sent", "m-1"), (items[1], "failed", "550 no such user")]).await?;
    worker.complete(&job).await?;
    assert_snapshot!(redacted(&stage.stdout(&["trace", "LEAD2@example.com"])?), @r"
    lead_[id] lead2@example.com
    │ created [date] [time], not suppressed
    └─ [date] [time] failed spring/mail lead2@example.com 550 no such user item_[id]
    ");
    let traced = stage.json(&["trace", "lead1@example.com"])?;
    assert_eq!(traced["subject"], json!({ "kind": "person", "id": "lead1@example.com" }));
    let item = &traced["leads"][0]["items"][0];
    assert_eq!(
        (&item["status"], &item["provider_message_id"], &item["campaign"]),
        (&json!("sent"), &json!("m-1"), &json!("spring"))
    );
    let lead = traced["leads"][0]["id"].as_str().unwrap().to_owned();
    assert_eq!(stage.json(&["trace", &lead])?["leads"], traced["leads"]);
    assert_eq!(stage.json(&["leads", "show", "lead1@example.com"])?, traced["leads"]);
    assert_refused(
        &stage.run(&["trace", "nobody@example.com"])?,
        "tenant `acme` has no campaign, run, send job, item, key, correlation id or person `nobody@example.com`",
    );
    Ok(())
}

#[tokio::test]
async fn a_person_is_suppressed_unsuppressed_and_erased() -> anyhow::Result<()> {
    let stage = Stage::new(3).await?;
    let listed = |more: &[&str]| -> anyhow::Result<usize> {
        Ok(stage.json(&[&["leads", "list"], more].concat())?.as_array().map_or(0, Vec::len))
    };
    assert_eq!(
        [
            listed(&[])?,
            listed(&["--suppressed"])?,
            listed(&["--recipient", "lead2@example.com"])?,
            listed(&["--list", "customers"])?
        ],
        [3, 0, 1, 3]
    );
    let done =
        succeeded(stage.run(&["leads", "suppress", "Lead1@example.com", "--reason", "asked by phone"])?)?;
    assert!(done.stderr.contains("is suppressed"), "{}", done.stderr);
    assert_eq!(listed(&["--suppressed"])?, 1);
    let shown = stage.json(&["leads", "show", "lead1@example.com"])?;
    assert_eq!(shown[0]["suppression_reason"], "asked by phone");
    assert_misused(&stage.run(&["leads", "unsuppress", "lead1@example.com"])?, "--note");
    assert_refused(
        &stage.run(&["leads", "unsuppress", "lead1@example.com", "--note", " "])?,
        "--note is empty",
    );
    assert_refused(
        &stage.run(&["leads", "suppress", "lead1@example.com", "--reason", ""])?,
        "--reason is empty",
    );
    let back = stage.json(&["leads", "unsuppress", "lead1@example.com", "--note", "signed up again"])?;
    assert_eq!(back[0]["suppressed_at"], Value::Null);
    assert_eq!(listed(&["--suppressed"])?, 0);

    assert_refused(
        &stage.run(&["leads", "erase", "nobody@example.com", "--yes"])?,
        "has no lead with the id",
    );
    assert_refused(&stage.run(&["leads", "erase", "lead1@example.com"])?, "nothing was erased; add --yes");
    assert_eq!(listed(&["--recipient", "lead1@example.com"])?, 1);
    let erased = stage.json(&["leads", "erase", "lead1@example.com", "--yes"])?;
    assert_eq!(
        (&erased[0]["erasure"]["items"], erased[0]["erasure"]["erased_at"].is_string()),
        (&json!(0), true)
    );
    assert_eq!(
        [listed(&[])?, listed(&["--with-erased"])?, listed(&["--recipient", "lead1@example.com"])?],
        [2, 3, 0]
    );
    let log = "select string_agg(action || ' ' || actor || ' ' || coalesce(note, '-'), ', ' order by id) from tenancy.audit_log where subject like 'lead:%'";
    let log: String = sqlx::query_scalar(log).fetch_one(&stage.admin).await?;
    assert_eq!(
        log,
        "lead.suppressed cli:ada erased, lead.unsuppressed cli:ada erased, lead.erased cli:ada -"
    );
    Ok(())
}

#[tokio::test]
async fn a_person_in_doubt_is_not_erased_and_the_command_says_what_to_do() -> anyhow::Result<()> {
    let stage = Stage::new(1).await?;
    stage.deploy_spring(500).await?;
    let worker = stage.worker("hand").await?;
    let job = worker.claim().await?;
    let items = worker.reserve(&job, 1).await?;
    worker.settle(&[(items[0], "in_doubt", "no answer")]).await?;
    let refused = stage.run(&["leads", "erase", "lead1@example.com", "--yes"])?;
    assert_refused(
        &refused,
        "resolve the items in doubt (`postrider in-doubt list`), then run the command again",
    );
    assert!(refused.stderr.contains("1 item is in flight or in doubt"), "{}", refused.stderr);
    stage.stdout(&[
        "in-doubt",
        "resolve",
        &items[0].to_string(),
        "--as",
        "sent",
        "--note",
        "their log has it",
    ])?;
    succeeded(stage.run(&["leads", "erase", "lead1@example.com", "--yes"])?)?;
    Ok(())
}
