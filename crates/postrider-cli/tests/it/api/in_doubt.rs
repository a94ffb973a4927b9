//! Items in doubt, and how a person settles them.

use postrider_store::{campaigns::send_jobs, postgres::wakeups};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::{
    Stage,
    material::{account, assert_same_404, column, doubt, run, take_all, walk},
};
use crate::{campaigns::execution::calls::finalize, sql::execute, world::PATIENCE};

#[tokio::test(flavor = "multi_thread")]
async fn items_in_doubt_are_listed_and_settled_with_evidence() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    account(&stage, &stage.acme).await?;
    let (run, item) = doubt(&stage, &stage.acme, "spring").await?;
    let listed = stage.get(&stage.acme.viewer, "/in-doubt")?.expect(200)?;
    let shown = &listed["items"][0];
    for (member, expected) in [
        ("outbox_id", json!(item)),
        ("run_id", json!(run)),
        ("campaign", json!("spring")),
        ("phase", json!("mail")),
        ("provider", json!("sim")),
        ("reason", json!("why")),
        ("is_quiet", json!(false)),
    ] {
        assert_eq!(shown[member], expected, "{member}");
    }
    assert!(shown["settled_by"].is_string(), "{shown}");

    let cancelled = CancellationToken::new();
    let (mut hints, listening) =
        wakeups::listen(&stage.world.url("postrider_worker"), send_jobs::HINT_CHANNEL, cancelled.clone())?;
    let listener = tokio::spawn(listening);
    // The test ignores a hint that arrived while the listener started.
    hints.changed().await?;
    hints.mark_unchanged();

    let path = format!("/in-doubt/{item}/resolve");
    let key = &stage.acme.operator;
    let early =
        stage.post(key, &path, &json!({ "as": "failed", "note": "their log has nothing" }))?.problem(409)?;
    assert!(early["detail"].to_string().contains("may still arrive until"), "{early}");
    let sent = json!({ "as": "sent", "provider_message_id": "m-7", "note": "their log has it" });
    let resolve = || stage.call("POST", &path).key(key).idempotency_key("k").json(&sent).send();
    assert_eq!(resolve()?.expect(200)?, json!({ "outbox_id": item, "status": "sent" }));
    tokio::time::timeout(PATIENCE, hints.changed()).await??;
    assert_eq!(resolve()?.header("idempotent-replayed"), Some("true"));
    let again = stage.post(key, &path, &sent)?.problem(409)?;
    assert!(again["detail"].to_string().contains("is sent already"), "{again}");
    assert_eq!(stage.get(&stage.acme.viewer, "/in-doubt")?.expect(200)?["items"], json!([]));
    let kept =
        "select count(*) from execution.channel_outbox where status = 'sent' and provider_message_id = 'm-7'";
    assert_eq!(stage.count(kept).await?, 1);
    let logged = "select count(*) from execution.campaign_audit_log \
                   where action = 'item.resolved_as_sent' and actor like 'key:%' and note = 'their log has it'";
    assert_eq!(stage.count(logged).await?, 1);
    cancelled.cancel();
    listener.await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn after_the_quiet_time_an_item_can_have_failed() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    account(&stage, &stage.acme).await?;
    let (_, item) = doubt(&stage, &stage.acme, "spring").await?;
    execute(&stage.admin, "update execution.channel_outbox set in_doubt_since = now() - interval '1 day'")
        .await?;
    let verdict = json!({ "as": "failed", "note": "their log has nothing" });
    let settled =
        stage.post(&stage.acme.operator, &format!("/in-doubt/{item}/resolve"), &verdict)?.expect(200)?;
    assert_eq!(settled["status"], "failed");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_verdict_that_makes_no_sense_is_refused() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    account(&stage, &stage.acme).await?;
    let (_, item) = doubt(&stage, &stage.acme, "spring").await?;
    let path = format!("/in-doubt/{item}/resolve");
    for (body, status, field) in [
        (json!({ "as": "sent" }), 400, ""),
        (json!({ "as": "lost", "note": "a" }), 400, "as"),
        (json!({ "as": "sent", "note": " " }), 422, "note"),
        (json!({ "as": "sent", "note": "x".repeat(2001) }), 422, "note"),
        (json!({ "as": "sent", "note": "a", "provider_message_id": "" }), 422, "provider_message_id"),
        (
            json!({ "as": "sent", "note": "a", "provider_message_id": "x".repeat(501) }),
            422,
            "provider_message_id",
        ),
        (json!({ "as": "failed", "note": "a", "provider_message_id": "m" }), 422, "provider_message_id"),
        (json!({ "as": "sent", "note": "a", "actor": "me" }), 400, "actor"),
    ] {
        assert_eq!(stage.post(&stage.acme.operator, &path, &body)?.field(status)?, field, "{body}");
    }
    stage.post(&stage.acme.viewer, &path, &json!({ "as": "sent", "note": "a" }))?.problem(403)?;
    // An item whose worker is at work is not in doubt.
    run(&stage, &stage.acme, "summer", 1, 500).await?;
    let (_, taken) = take_all(&stage).await?;
    let at_work = format!("/in-doubt/{}/resolve", taken[0].1[0]);
    let refused =
        stage.post(&stage.acme.operator, &at_work, &json!({ "as": "sent", "note": "a" }))?.problem(409)?;
    assert!(refused["detail"].to_string().contains("its worker is at work"), "{refused}");
    assert_eq!(
        stage.count("select count(*) from execution.channel_outbox where status <> 'queued'").await?,
        0
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_walk_shows_every_doubt_once_while_some_are_settled_and_others_come() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    account(&stage, &stage.acme).await?;
    run(&stage, &stage.acme, "spring", 100, 10).await?;
    let (worker, taken) = take_all(&stage).await?;
    let items: Vec<_> = taken.iter().flat_map(|(_, items)| items.clone()).collect();
    // Half of them are marked; of the others the worker has fallen silent.
    let marked: Vec<_> = items.iter().step_by(2).map(|item| (*item, "in_doubt")).collect();
    finalize(&worker, stage.acme.id.0, "w", &marked).await?;
    execute(&stage.admin, "update execution.job_queue set locked_at = now() - interval '2 minutes'").await?;
    let handle = tokio::runtime::Handle::current();
    let walked = tokio::task::block_in_place(|| {
        walk(&stage, &stage.acme.viewer, "/in-doubt", 9, |page| {
            // One that was silent is marked meanwhile, which changes since when it is in doubt; one that was shown is settled.
            handle.block_on(finalize(
                &worker,
                stage.acme.id.0,
                "w",
                &[(items[99 - 2 * page], "in_doubt")],
            ))?;
            handle.block_on(finalize(&worker, stage.acme.id.0, "w", &[(items[page], "sent")]))?;
            Ok(())
        })
    })?;
    let mut seen = column(&walked, "outbox_id");
    seen.sort();
    let mut expected: Vec<String> = items.iter().map(ToString::to_string).collect();
    expected.sort();
    assert_eq!(seen, expected);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn doubts_of_others_do_not_exist() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let beta = stage.tenant("beta").await?;
    account(&stage, &beta).await?;
    let (_, theirs) = doubt(&stage, &beta, "spring").await?;
    let verdict: Value = json!({ "as": "sent", "note": "a" });
    let calls = [("POST", "/in-doubt/{id}/resolve", verdict)];
    assert_same_404(&stage, &stage.acme.admin, &calls, &theirs.to_string())?;
    assert_eq!(stage.get(&stage.acme.admin, "/in-doubt")?.expect(200)?["items"], json!([]));
    assert_eq!(stage.get(&beta.viewer, "/in-doubt")?.expect(200)?["items"].as_array().map(Vec::len), Some(1));
    Ok(())
}
