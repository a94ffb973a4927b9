//! Waiting burns no attempts, says what it waits for, and ends when its reason does.

use jiff::{Timestamp, ToSpan, tz::TimeZone};
use serde_json::json;

use super::{
    account, deploy, jobs, limit, make_due,
    provider::{Answer, Provider},
    worker,
};
use crate::{
    campaigns::stage::Stage,
    sql::{execute, texts},
    world::{World, eventually},
};

#[tokio::test(flavor = "multi_thread")]
async fn a_days_calls_are_counted_exactly_and_the_rest_waits_for_the_next_day() -> anyhow::Result<()> {
    let (world, provider) = (World::new().await?, Provider::start(Answer::Accepts)?);
    let stage = Stage::new(&world, "acme").await?;
    stage.leads("all", 100).await?;
    // It is about noon there, so no day ends during the test. POSIX counts zones westwards.
    let zone = format!("Etc/GMT{:+}", Timestamp::now().to_zoned(TimeZone::UTC).hour() - 12);
    let mail = account(&world, &stage, "mail", &provider, &json!({ "daily": 37, "time_zone": zone })).await?;
    let workers = [worker(&world, "")?, worker(&world, "")?];
    let run = deploy(&stage, "mail", None, 10).await?;
    eventually("everything that is left waits", || async {
        Ok(provider.calls().len() == 37 && jobs(&stage, run, "status").await? == "completed,queued")
    })
    .await?;
    let waiting = format!(
        "select distinct waits_for || ' ' || attempts || ' ' || to_char(run_after at time zone '{zone}', 'HH24:MI') || ' ' ||
                (run_after < now() + interval '1 day')
           from execution.job_queue where run_id = '{run}' and status = 'queued'"
    );
    assert_eq!(texts(&stage.admin, waiting).await?, ["daily 0 00:00 true"]);
    let notes = "select note from execution.campaign_audit_log where action = 'job.put_off'";
    let notes = texts(&stage.admin, notes).await?;
    let says_why = |note: &String| note.contains("Z: the account's calls for today are used up");
    assert!(notes.iter().all(says_why), "{notes:?}");

    // The next day.
    execute(&stage.admin, "update execution.account_states set day = day - 1").await?;
    make_due(&stage).await?;
    eventually("another day's calls", || async { Ok(provider.calls().len() == 74) }).await?;
    // An operator raises the limit.
    limit(&stage, mail, &json!({})).await?;
    assert_eq!(stage.ended(run).await?, "completed");
    assert_eq!((provider.calls().len(), provider.acted().len()), (100, 100));
    assert!(
        ["0", "1", "0,1"].contains(&&*jobs(&stage, run, "attempts").await?),
        "waiting has burnt attempts"
    );
    drop(workers);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn people_are_written_to_when_it_is_their_time_of_day() -> anyhow::Result<()> {
    let (world, provider) = (World::new().await?, Provider::start(Answer::Accepts)?);
    let stage = Stage::new(&world, "acme").await?;
    stage.leads("all", 30).await?;
    // Every third lives where it is half a day later, and every third nobody knows where.
    let zones = "update execution.leads set timezone = case (attributes ->> 'n')::integer % 3
                        when 0 then 'Etc/GMT-12' when 1 then 'UTC' end";
    execute(&stage.admin, zones).await?;
    let now = Timestamp::now().to_zoned(TimeZone::UTC);
    let (from, to) = (now.checked_sub(2.hours())?, now.checked_add(2.hours())?);
    let hours = json!({
        "from": from.strftime("%H:%M").to_string(), "to": to.strftime("%H:%M").to_string(), "time_zone": "UTC", "by": "lead",
    });
    let mail = account(&world, &stage, "mail", &provider, &json!({ "hours": hours })).await?;
    let _worker = worker(&world, "")?;
    let run = deploy(&stage, "mail", None, 500).await?;
    eventually("those who are awake are done, and the job waits", || async {
        Ok(jobs(&stage, run, "status || ' ' || coalesce(waits_for, '')").await? == "queued hours")
    })
    .await?;
    assert_eq!(stage.items(run).await?, [("sent".to_owned(), 20)].into());
    let asleep = "select count(*)::text from execution.channel_outbox as item join execution.leads as lead
                   on lead.id = item.recipient_id where lead.timezone = 'Etc/GMT-12'";
    assert_eq!(stage.ask(asleep).await?, "0", "somebody was woken");
    let opens = jobs(
        &stage,
        run,
        "to_char(run_after at time zone 'UTC', 'HH24:MI') || ' ' || (run_after < now() + interval '13 hours') || ' ' || attempts",
    )
    .await?;
    assert_eq!(opens, format!("{} true 0", from.checked_sub(12.hours())?.strftime("%H:%M")));

    // It becomes noon there, too.
    limit(&stage, mail, &json!({})).await?;
    assert_eq!(stage.ended(run).await?, "completed");
    assert_eq!((provider.calls().len(), provider.acted().len()), (30, 30));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn hours_by_the_accounts_clock_put_off_the_whole_run_before_anybody_is_reserved() -> anyhow::Result<()>
{
    let (world, provider) = (World::new().await?, Provider::start(Answer::Accepts)?);
    let stage = Stage::new(&world, "acme").await?;
    stage.leads("all", 50).await?;
    let now = Timestamp::now().to_zoned(TimeZone::UTC);
    let (from, to) = (now.checked_add(2.hours())?, now.checked_add(3.hours())?);
    let hours = json!({
        "from": from.strftime("%H:%M").to_string(), "to": to.strftime("%H:%M").to_string(), "by": "account",
    });
    account(&world, &stage, "mail", &provider, &json!({ "hours": hours })).await?;
    let run = deploy(&stage, "mail", None, 5).await?;
    let worker = worker(&world, "jobs_max = 1\njobs_per_tenant_max = 1")?;
    let line = worker.process.wait_for_line("the current time is outside the sending hours")?;
    let span = line.split("waits ").nth(1).and_then(|rest| rest.split(": ").next()).unwrap_or_default();
    assert!(span.starts_with("1h ") && span.ends_with('m') || span == "2h 0m", "for people: {line}");
    eventually("all jobs wait", || async {
        Ok(jobs(&stage, run, "status || ' ' || coalesce(waits_for, '') || ' ' || attempts").await?
            == "queued hours 0")
    })
    .await?;
    assert_eq!(stage.items(run).await?, [].into());
    let handed_back = "select count(*)::text from execution.campaign_audit_log where action = 'job.put_off'";
    assert_eq!(stage.ask(handed_back).await?, "1", "one row says it for all ten jobs");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_provider_that_asks_for_patience_gets_it_from_every_process_and_others_go_on() -> anyhow::Result<()>
{
    let (patient, other) = (Provider::start(Answer::Keeps)?, Provider::start(Answer::Accepts)?);
    let world = World::new().await?;
    let stage = Stage::new(&world, "acme").await?;
    stage.leads("all", 60).await?;
    account(&world, &stage, "patient", &patient, &json!({})).await?;
    account(&world, &stage, "other", &other, &json!({})).await?;
    let workers = [
        worker(&world, "window = 2\nwait_max_seconds = 1")?,
        worker(&world, "window = 2\nwait_max_seconds = 1")?,
    ];
    let run = deploy(&stage, "patient", None, 5).await?;
    // Two of each of the twelve jobs.
    let called = 24;
    eventually("every window is full", || async { Ok(patient.calls().len() == called) }).await?;
    let asked_at = stage.ask("select clock_timestamp()::text").await?;
    patient.set(Answer::AsksForAMinute);
    eventually("the whole run waits", || async {
        Ok(jobs(&stage, run, "status || ' ' || coalesce(waits_for, '')").await? == "queued retry_after")
    })
    .await?;
    let run = deploy(&stage, "other", None, 5).await?;
    assert_eq!(stage.ended(run).await?, "completed");
    assert_eq!(patient.calls().len(), called, "it was called again");
    let until = format!(
        "select (wait_until between '{asked_at}'::timestamptz + interval '59 seconds' and now() + interval '60 seconds')::text
           from execution.account_states where wait_until is not null"
    );
    assert_eq!(stage.ask(&until).await?, "true");
    drop(workers);
    Ok(())
}
