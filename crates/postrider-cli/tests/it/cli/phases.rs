//! `postrider campaign start|pause|resume|retry|rerun|cancel|complete|fail`.

use serde_json::json;

use super::{
    assert_misused, assert_refused,
    stage::{SPRING, Stage},
    succeeded,
};
use crate::cli::terminal::Terminal;

const TWO_CHECKS: &str = "name = 'checks'\nauto_advance = false\n\
                          [[phase]]\nphase = 'dns'\nkind = 'external'\n\
                          [[phase]]\nphase = 'legal'\nkind = 'external'\n";

#[tokio::test]
async fn a_delivery_is_started_paused_resumed_and_rerun() -> anyhow::Result<()> {
    let stage = Stage::new(3).await?;
    succeeded(stage.create(SPRING)?)?;
    let started = succeeded(stage.run(&["campaign", "start", "spring"])?)?;
    assert_eq!(started.stdout, "in_progress\n");
    assert!(
        started.stderr.contains("phase `mail` of `spring` is in_progress (event 1)"),
        "{}",
        started.stderr
    );
    assert!(started.stderr.contains("has 3 items"), "{}", started.stderr);
    let again = succeeded(stage.run(&["campaign", "start", "spring"])?)?;
    assert!(again.stderr.contains("was in_progress already; nothing was changed"), "{}", again.stderr);

    let worker = stage.worker("hand").await?;
    let job = worker.claim().await?;
    let items = worker.reserve(&job, 1).await?;
    let paused = stage.json(&["campaign", "pause", "spring"])?;
    assert_eq!(
        (&paused["status"], &paused["changed"], &paused["in_flight"]),
        (&json!("paused"), &json!(true), &json!(1))
    );
    let paused = succeeded(stage.run(&["campaign", "pause", "spring"])?)?;
    assert!(paused.stderr.contains("1 call in progress finishes"), "{}", paused.stderr);
    let status = succeeded(stage.run(&["campaign", "status", "spring"])?)?;
    assert!(status.stderr.contains("no call begins until `postrider campaign resume`"), "{}", status.stderr);
    worker.settle(&[(items[0], "sent", "m-1")]).await?;

    assert_refused(
        &stage.run(&["campaign", "retry", "spring", "--phase", "mail"])?,
        "phase `mail`: a phase that is paused cannot retry; it can: resume, cancel",
    );
    assert_refused(
        &stage.run(&["campaign", "complete", "spring", "--phase", "mail"])?,
        "a delivery ends when its items have; `complete` is for phases that another service does",
    );
    assert_refused(
        &stage.run(&["campaign", "resume", "spring", "--expected-state", "failed"])?,
        "phase `mail`: the phase is paused, not failed as expected",
    );
    assert_eq!(succeeded(stage.run(&["campaign", "resume", "spring"])?)?.stdout, "in_progress\n");
    Ok(())
}

#[tokio::test]
async fn a_rerun_that_sends_second_messages_needs_a_yes() -> anyhow::Result<()> {
    let stage = Stage::new(3).await?;
    let run_id = stage.deploy_spring(500).await?;
    stage.worker("hand").await?.finish_one("sent", "m").await?;
    let rerun = ["campaign", "rerun", "spring"];

    // Without a terminal nobody can answer, and nothing is sent.
    let before = stage.world.rows().await?;
    for more in [&[][..], &["--json"]] {
        let refused = stage.run(&[&rerun, more].concat())?;
        assert_refused(&refused, "3 people get this message a second time, or may");
        assert!(refused.stderr.contains("nothing was sent; add --yes"), "{}", refused.stderr);
    }
    // On a terminal, everything but yes is no.
    for answer in ["", "n", "what?"] {
        let mut terminal = Terminal::start(&mut stage.command(&rerun), 100)?;
        terminal.wait_for("3 people get this message a second time, or may")?;
        terminal.wait_for("[y/N]")?;
        terminal.type_line(answer)?;
        let (code, shown) = terminal.finish()?;
        assert_eq!(code, 1, "{shown}");
        assert!(shown.contains("nothing was sent"), "{shown}");
    }
    assert_eq!(stage.world.rows().await?, before);

    let mut terminal = Terminal::start(&mut stage.command(&rerun), 100)?;
    terminal.wait_for("[y/N]")?;
    terminal.type_line("y")?;
    let (code, shown) = terminal.finish()?;
    assert_eq!(code, 0, "{shown}");
    assert!(shown.contains("3 of 3 items go to people who got this message before, or may have"), "{shown}");

    stage.worker("hand").await?.finish_one("sent", "m").await?;
    let again = stage.json(&["campaign", "rerun", "spring", "--yes"])?;
    assert_eq!((&again["changed"], &again["second_messages"]), (&json!(true), &json!(3)));
    assert_ne!(again["run_id"], json!(run_id));
    Ok(())
}

#[tokio::test]
async fn a_rerun_without_second_messages_asks_nothing() -> anyhow::Result<()> {
    let stage = Stage::new(1).await?;
    succeeded(stage.create(TWO_CHECKS)?)?;
    for control in ["start", "complete"] {
        succeeded(stage.run(&["campaign", control, "checks", "--phase", "dns"])?)?;
    }
    let rerun = stage.json(&["campaign", "rerun", "checks", "--phase", "dns"])?;
    assert_eq!((&rerun["changed"], &rerun["status"]), (&json!(true), &json!("in_progress")));
    Ok(())
}

#[tokio::test]
async fn which_phase_is_meant_is_clear_or_asked() -> anyhow::Result<()> {
    let stage = Stage::new(1).await?;
    succeeded(stage.create(TWO_CHECKS)?)?;
    // Phases begin in their order.
    succeeded(stage.run(&["campaign", "start", "checks"])?)?;
    assert_eq!(stage.json(&["campaign", "status", "checks"])?["phases"][0]["status"], "in_progress");
    succeeded(stage.run(&["campaign", "start", "checks", "--phase", "legal"])?)?;
    assert_refused(
        &stage.run(&["campaign", "complete", "checks"])?,
        "cannot choose the phase; name one with --phase: dns is in_progress, legal is in_progress",
    );
    let failed = succeeded(stage.run(&[
        "campaign",
        "fail",
        "checks",
        "--phase",
        "legal",
        "--reason",
        "not in this country",
    ])?)?;
    assert_eq!(failed.stdout, "failed\n");
    succeeded(stage.run(&["campaign", "complete", "checks"])?)?;
    let status = stage.json(&["campaign", "status", "checks"])?;
    assert_eq!(status["phases"][0]["status"], "completed");
    assert_eq!(status["phases"][0]["progress"], 100.0);
    assert_refused(
        &stage.run(&["campaign", "pause", "checks", "--phase", "third"])?,
        "the campaign has no phase `third`",
    );
    assert_refused(&stage.run(&["campaign", "pause", "spring"])?, "there is no campaign `spring`");
    assert_misused(
        &stage.run(&["campaign", "pause", "checks", "--expected-state", "asleep"])?,
        "`asleep` is not a phase status; known are not_started",
    );
    Ok(())
}

#[tokio::test]
async fn a_cancel_asks_with_the_number_of_items_that_are_not_tried() -> anyhow::Result<()> {
    let stage = Stage::new(3).await?;
    let run_id = stage.deploy_spring(500).await?;
    let cancel = ["campaign", "cancel", "spring"];
    let before = stage.world.rows().await?;
    let refused = stage.run(&cancel)?;
    assert_refused(&refused, "3 of 3 items that were not tried yet are skipped, and the phase fails");
    assert!(refused.stderr.contains("nothing was canceled; add --yes"), "{}", refused.stderr);
    let mut terminal = Terminal::start(&mut stage.command(&cancel), 100)?;
    terminal.wait_for("[y/N]")?;
    terminal.type_line("n")?;
    assert_eq!(terminal.finish()?.0, 1);
    assert_eq!(stage.world.rows().await?, before);

    let worker = stage.worker("hand").await?;
    let job = worker.claim().await?;
    let items = worker.reserve(&job, 1).await?;
    let done = succeeded(stage.run(&[&cancel[..], &["--yes", "--reason", "wrong text"]].concat())?)?;
    assert_eq!(done.stdout, "failed\n");
    assert!(done.stderr.contains("1 call in progress finishes and is recorded"), "{}", done.stderr);
    assert!(
        done.stderr.contains("`postrider campaign retry --include-canceled` sends them"),
        "{}",
        done.stderr
    );
    let again = stage.json(&[&cancel[..], &["--yes", "--phase", "mail"]].concat())?;
    assert_eq!((&again["changed"], &again["status"]), (&json!(false), &json!("failed")));
    let status = stage.json(&["campaign", "status", "spring"])?;
    assert_eq!(
        (&status["phases"][0]["canceled"], &status["phases"][0]["run"]["id"]),
        (&json!(true), &json!(run_id))
    );

    // The worker ends its send job, and with it the run.
    let retry = ["campaign", "retry", "spring", "--phase", "mail"];
    assert_refused(&stage.run(&retry)?, "its canceled run has not ended yet");
    worker.settle(&[(items[0], "sent", "m-1")]).await?;
    worker.complete(&job).await?;
    let sequence = stage.json(&["campaign", "status", "spring"])?["sequence"].to_string();
    assert_refused(&stage.run(&retry)?, "2 items were canceled, which a retry with `include_canceled` sends");
    let all = [&retry[..], &["--include-canceled", "--expected-sequence", &sequence]].concat();
    let counted = stage.json(&[&all[..], &["--dry-run"]].concat())?;
    assert_eq!((&counted["items"], &counted["second_messages"]), (&json!(2), &json!(0)));
    let retried = stage.json(&all)?;
    assert_eq!((&retried["changed"], &retried["items"]), (&json!(true), &json!(2)));
    worker.finish_one("failed", "550 no").await?;
    assert_refused(&stage.run(&all)?, "as expected");
    assert_misused(
        &stage.run(&["campaign", "cancel", "spring", "--expected-sequence", "x"])?,
        "--expected-sequence",
    );
    Ok(())
}

#[tokio::test]
async fn a_rerun_of_the_failed_items_asks_nothing() -> anyhow::Result<()> {
    let stage = Stage::new(2).await?;
    stage.deploy_spring(500).await?;
    let worker = stage.worker("hand").await?;
    let job = worker.claim().await?;
    let items = worker.reserve(&job, 2).await?;
    sqlx::raw_sql("update execution.campaign_phases set failure_tolerance = 0.5")
        .execute(&stage.admin)
        .await?;
    worker.settle(&[(items[0], "sent", "m-1"), (items[1], "failed", "550 no")]).await?;
    worker.complete(&job).await?;
    let rerun = stage.json(&["campaign", "rerun", "spring", "--only", "failed"])?;
    assert_eq!((&rerun["items"], &rerun["second_messages"]), (&json!(1), &json!(0)));
    Ok(())
}
