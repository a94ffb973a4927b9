//! An item goes to the second account only when the first provably did not send it, and never to both.

use std::{collections::BTreeSet, os::unix::process::ExitStatusExt};

use jiff::{Timestamp, ToSpan, tz::TimeZone};
use serde_json::{Value, json};

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

/// The first provider's answer for a key.
fn by_key(key: &str) -> Answer {
    match key.as_bytes().first() {
        Some(b'0'..=b'3') => Answer::IsBusy,
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
    assert_eq!(moved, keys(Answer::IsBusy), "void, or something else went over");
    assert!(!moved.is_empty() && !keys(Answer::IsCutOff).is_empty() && !keys(Answer::Rejects).is_empty());
    let rows = |condition: &str| {
        format!("select idempotency_key from execution.channel_outbox where run_id = '{run}' and {condition}")
    };
    for (condition, expected) in [
        (format!("moved_to_account_id = '{to}' and status = 'sent'"), keys(Answer::IsBusy)),
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
    assert!((1..150).contains(&called), "{called} calls to a provider that refuses the account");
    assert_eq!((second.acted().len(), second.calls().len(), first.acted().len()), (300, 300, 0));
    assert!(second.most_under_way() <= 4, "the limits of the second do not count");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn items_over_the_first_accounts_daily_limit_go_to_the_second() -> anyhow::Result<()> {
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

/// Hours around now by the clock of leads, of which every second one lives where it is half a day later.
async fn half_of_them_are_asleep(stage: &Stage) -> anyhow::Result<Value> {
    let zones = "update execution.leads
                    set timezone = case (attributes ->> 'n')::integer % 2 when 0 then 'Etc/GMT-12' else 'UTC' end";
    execute(&stage.admin, zones).await?;
    let now = Timestamp::now().to_zoned(TimeZone::UTC);
    let (from, to) = (now.checked_sub(2.hours())?, now.checked_add(2.hours())?);
    Ok(json!({ "hours": {
        "from": from.strftime("%H:%M").to_string(), "to": to.strftime("%H:%M").to_string(), "by": "lead",
    } }))
}

/// The results of recipients outside of their sending hours.
const ASLEEP: &str = "select item.status || ' ' || (item.moved_to_account_id is not null)
                        from execution.channel_outbox as item join execution.leads as lead on lead.id = item.recipient_id
                       where lead.timezone = 'Etc/GMT-12'";

#[tokio::test(flavor = "multi_thread")]
async fn failover_respects_the_sending_hours_of_the_first_account() -> anyhow::Result<()> {
    let (first, second) = (Provider::start(Answer::DoesNotLetIn)?, Provider::start(Answer::Accepts)?);
    let world = World::new().await?;
    let stage = Stage::new(&world, "acme").await?;
    stage.leads("all", 200).await?;
    let hours = half_of_them_are_asleep(&stage).await?;
    account(&world, &stage, "first", &first, &hours).await?;
    account(&world, &stage, "second", &second, &json!({})).await?;
    let _worker = worker(&world, "tries_max = 1\nwindow = 4")?;
    let run = deploy(&stage, "first", Some("second"), 500).await?;
    eventually("those who are awake are done, and the job waits", || async {
        Ok(super::jobs(&stage, run, "status || ' ' || coalesce(waits_for, '')").await? == "queued hours")
    })
    .await?;
    assert!(first.calls().len() < 90, "void: the circuit of the first did not open");
    assert_eq!(texts(&stage.admin, ASLEEP).await?, [""; 0], "somebody was woken");
    assert_eq!(second.acted().len(), 100);
    let later = super::jobs(&stage, run, "run_after > now() + interval '1 hour'").await?;
    assert_eq!(later, "true", "it waits for the circuit");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_hours_of_the_second_account_count_for_what_would_go_there() -> anyhow::Result<()> {
    let (first, second) = (Provider::start(Answer::DoesNotLetIn)?, Provider::start(Answer::Accepts)?);
    let world = World::new().await?;
    let stage = Stage::new(&world, "acme").await?;
    // Few enough for one window: each of them goes by itself.
    stage.leads("all", 8).await?;
    let hours = half_of_them_are_asleep(&stage).await?;
    account(&world, &stage, "first", &first, &json!({})).await?;
    account(&world, &stage, "second", &second, &hours).await?;
    let _worker = worker(&world, "tries_max = 1")?;
    let run = deploy(&stage, "first", Some("second"), 500).await?;
    eventually("the others wait for the first account", || async {
        Ok(super::jobs(&stage, run, "status || ' ' || coalesce(waits_for, '')").await? == "queued circuit")
    })
    .await?;
    assert_eq!(texts(&stage.admin, ASLEEP).await?, ["queued false"; 4], "somebody was woken");
    assert_eq!((first.calls().len(), second.acted().len()), (8, 4));
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
    stage.no_worker_runs().await?;
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
