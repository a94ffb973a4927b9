//! An item goes to the second account only when the first provably did not send it, and never to both.

use std::{collections::BTreeSet, os::unix::process::ExitStatusExt};

use serde_json::json;

use super::{
    account, deploy,
    provider::{Answer, Provider},
    worker,
};
use crate::{
    campaigns::stage::Stage,
    sql::{execute, texts},
    world::{Process, World, eventually, postrider},
};

/// What the first provider does with a key.
fn by_key(key: &str) -> Answer {
    match key.as_bytes().first() {
        Some(b'0'..=b'3') => Answer::DoesNotLetIn,
        Some(b'4'..=b'6') => Answer::Rejects,
        Some(b'7'..=b'9') => Answer::IsCutOff,
        _ => Answer::Accepts,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn only_what_the_first_provably_did_not_send_goes_to_the_second() -> anyhow::Result<()> {
    let (first, second) = (Provider::scripted(by_key)?, Provider::start(Answer::Accepts)?);
    let world = World::new().await?;
    let stage = Stage::new(&world, "acme").await?;
    stage.leads("all", 200).await?;
    account(&world, &stage, "first", &first, &json!({})).await?;
    let to = account(&world, &stage, "second", &second, &json!({ "rate_per_second": 200 })).await?;
    let _worker = worker(&world, "tries_max = 1\nwindow = 8")?;
    let run = deploy(&stage, "first", Some("second"), 50).await?;
    eventually("every item has a row with an end or a doubt", || async {
        let sql = format!(
            "select count(*)::text from execution.channel_outbox where run_id = '{run}' and (status <> 'queued' or in_doubt_since is not null)"
        );
        Ok(stage.ask(&sql).await? == "200")
    })
    .await?;

    let (at_first, at_second) = (first.acted(), second.acted());
    let both: Vec<_> = at_first.keys().filter(|key| at_second.contains_key(*key)).collect();
    assert!(both.is_empty(), "sent by both: {both:?}");
    assert!(at_first.values().chain(at_second.values()).all(|times| *times == 1), "sent twice");
    let keys = |answer: Answer| -> BTreeSet<String> {
        first.calls().into_iter().filter(|call| call.answer == answer).map(|call| call.key).collect()
    };
    let moved: BTreeSet<String> = at_second.into_keys().collect();
    assert_eq!(moved, keys(Answer::DoesNotLetIn), "void, or something else went over");
    assert!(!moved.is_empty() && !keys(Answer::IsCutOff).is_empty() && !keys(Answer::Rejects).is_empty());
    let rows = |condition: &str| {
        format!("select idempotency_key from execution.channel_outbox where run_id = '{run}' and {condition}")
    };
    for (condition, expected) in [
        (format!("moved_to_account_id = '{to}' and status = 'sent'"), keys(Answer::DoesNotLetIn)),
        ("moved_to_account_id is null and in_doubt_since is not null".to_owned(), keys(Answer::IsCutOff)),
        ("moved_to_account_id is null and status = 'failed'".to_owned(), keys(Answer::Rejects)),
        ("moved_to_account_id is null and status = 'sent'".to_owned(), keys(Answer::Accepts)),
    ] {
        let found: BTreeSet<String> = texts(&stage.admin, rows(&condition)).await?.into_iter().collect();
        assert_eq!(found, expected, "{condition}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn while_the_circuit_of_the_first_is_open_everything_goes_to_the_second() -> anyhow::Result<()> {
    let (first, second) = (Provider::start(Answer::DoesNotLetIn)?, Provider::start(Answer::Accepts)?);
    let world = World::new().await?;
    let stage = Stage::new(&world, "acme").await?;
    stage.leads("all", 300).await?;
    account(&world, &stage, "first", &first, &json!({})).await?;
    account(&world, &stage, "second", &second, &json!({ "concurrency": 4 })).await?;
    let _worker = worker(&world, "tries_max = 1\nwindow = 4")?;
    let run = deploy(&stage, "first", Some("second"), 50).await?;
    assert_eq!(stage.ended(run).await?, "completed");
    assert_eq!(stage.items(run).await?, [("sent".to_owned(), 300)].into());
    let called = first.calls().len();
    assert!((10..150).contains(&called), "{called} calls to a provider that fails");
    assert_eq!((second.acted().len(), second.calls().len(), first.acted().len()), (300, 300, 0));
    assert!(second.most_under_way() <= 4, "the limits of the second do not count");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_first_has_no_calls_left_for_today_goes_to_the_second() -> anyhow::Result<()> {
    let (first, second) = (Provider::start(Answer::Accepts)?, Provider::start(Answer::Accepts)?);
    let world = World::new().await?;
    let stage = Stage::new(&world, "acme").await?;
    stage.leads("all", 60).await?;
    account(&world, &stage, "first", &first, &json!({ "daily": 20 })).await?;
    account(&world, &stage, "second", &second, &json!({ "daily": 30 })).await?;
    let _worker = worker(&world, "")?;
    let run = deploy(&stage, "first", Some("second"), 500).await?;
    eventually("both have had their day", || async {
        Ok(super::jobs(&stage, run, "status || ' ' || coalesce(waits_for, '')").await? == "queued daily")
    })
    .await?;
    assert_eq!((first.calls().len(), second.calls().len()), (20, 30));
    execute(&stage.admin, "update execution.account_states set day = day - 1").await?;
    super::make_due(&stage).await?;
    assert_eq!(stage.ended(run).await?, "completed");
    assert_eq!((first.acted().len(), second.acted().len()), (30, 30));
    Ok(())
}

/// The first call is at the first account, the second at the other one.
#[cfg(debug_assertions)]
#[tokio::test(flavor = "multi_thread")]
async fn a_crash_between_the_move_and_the_call_leaves_the_item_in_doubt_at_the_second() -> anyhow::Result<()>
{
    let (first, second) = (Provider::start(Answer::DoesNotLetIn)?, Provider::start(Answer::Accepts)?);
    let world = World::new().await?;
    let stage = Stage::new(&world, "acme").await?;
    stage.leads("all", 1).await?;
    account(&world, &stage, "first", &first, &json!({})).await?;
    let to = account(&world, &stage, "second", &second, &json!({})).await?;
    let run = deploy(&stage, "first", Some("second"), 500).await?;
    let config = world.config("[outbound]\nallow_private = true\n[campaigns]\ntries_max = 1\n")?;
    let mut command = postrider();
    command.env("CRASH_AT", "call.before@2").arg("--config").arg(config.path()).args([
        "serve",
        "--roles",
        "campaigns",
    ]);
    let mut victim = Process::start(&mut command)?;
    let status = tokio::task::block_in_place(|| victim.wait())?;
    anyhow::ensure!(status.signal() == Some(9), "{status}: {}", victim.lines().join("\n"));
    stage.nobody_works().await?;
    stage.age_locks("6 minutes").await?;

    let _alive = worker(&world, "tries_max = 1")?;
    eventually("the item is in doubt", || async {
        Ok(stage.items(run).await? == [("in doubt".to_owned(), 1)].into())
    })
    .await?;
    assert_eq!((first.calls().len(), second.calls().len()), (1, 0));
    assert_eq!(texts(&stage.admin, "select account_id::text from execution.doubts").await?, [to.to_string()]);
    // Another attempt calls nobody.
    eventually("the job was looked at", || async {
        Ok(super::jobs(&stage, run, "status").await? == "failed")
    })
    .await?;
    assert_eq!((first.calls().len(), second.calls().len()), (1, 0));
    Ok(())
}
