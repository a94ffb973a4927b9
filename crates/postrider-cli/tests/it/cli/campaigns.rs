//! `postrider campaign create|deploy|status|watch|verify`: from a file to a launch certificate.

use insta::assert_snapshot;
use postrider_model::ids::{RunId, TenantId, WorkspaceId};
use postrider_store::{
    campaigns::{
        self, assets, doubts, runs,
        trace::{self, Subject},
    },
    postgres::pool,
};
use serde_json::{Value, json};
use uuid::Uuid;

use super::{
    assert_refused,
    stage::{SPRING, Stage, redacted},
    succeeded,
};
use crate::world::{Process, run, run_with_input};

#[tokio::test]
async fn a_campaign_is_created_deployed_done_and_verified() -> anyhow::Result<()> {
    let stage = Stage::new(3).await?;
    let nothing = succeeded(stage.run(&["campaign", "status"])?)?;
    assert_eq!(nothing.stdout, "");
    assert!(nothing.stderr.contains("`postrider campaign create FILE` creates one"), "{}", nothing.stderr);

    let created = succeeded(stage.create(SPRING)?)?;
    assert_snapshot!(redacted(&created.stdout), @"[id]");
    assert_snapshot!(created.stderr, @"created `spring` with 1 phase; `postrider campaign deploy spring --tenant acme` starts it");
    assert_snapshot!(redacted(&stage.stdout(&["campaign", "status"])?), @r"
    NAME ID PHASES CREATED
    spring campaign_[id] 1 not started [date] [time]
    ");
    assert_snapshot!(redacted(&stage.stdout(&["campaign", "status", "spring"])?), @r"
    PHASE CHANNEL STATUS RUN RUN STATUS DONE SENT FAILED SKIPPED IN DOUBT
    mail email not started - - - - - - -
    ");
    assert_refused(
        &stage.run(&["campaign", "watch", "spring"])?,
        "no phase of `spring` was started; `postrider campaign deploy spring --tenant acme` starts one",
    );
    let early = stage.run(&["campaign", "verify", "spring"])?;
    assert_eq!((early.code, early.stdout.as_str()), (5, ""));
    assert!(early.stderr.contains("phase `mail` was not deployed"), "{}", early.stderr);

    let deployed = succeeded(stage.run(&["campaign", "deploy", "spring", "--job-size", "2"])?)?;
    assert_snapshot!(redacted(&deployed.stdout), @"[id]");
    assert_snapshot!(deployed.stderr, @r"
    deployed phase `mail` of `spring`: 3 items in 2 send jobs
    `postrider campaign watch spring --tenant acme` shows its progress
    ");
    let again = succeeded(stage.run(&["campaign", "deploy", "spring", "--phase", "mail"])?)?;
    assert_eq!(again.stdout, deployed.stdout);
    assert!(
        again.stderr.contains("was deployed before as this run; nothing was changed"),
        "{}",
        again.stderr
    );

    stage.put_jobs_in_order().await?;
    let worker = stage.worker("hand").await?;
    let job = worker.claim().await?;
    let items = worker.reserve(&job, 2).await?;
    worker.settle(&[(items[0], "sent", "m-1")]).await?;
    assert_snapshot!(redacted(&stage.stdout(&["campaign", "status", "spring"])?), @r"
    PHASE CHANNEL STATUS RUN RUN STATUS DONE SENT FAILED SKIPPED IN DOUBT
    mail email in progress run_[id] running 1/3 1 0 0 0
    ");
    let halfway = stage.json(&["campaign", "status", "spring"])?;
    let progress = &halfway["phases"][0]["run"]["progress"];
    assert_eq!((&progress["in_flight"], &progress["jobs"]["locked"]), (&json!(1), &json!(1)));

    worker.settle(&[(items[1], "failed", "550 no such user")]).await?;
    assert_eq!(worker.complete(&job).await?, "completed");
    assert_eq!(worker.finish_one("sent", "m-3").await?, "completed");
    assert_snapshot!(redacted(&stage.stdout(&["campaign", "status", "spring"])?), @r"
    PHASE CHANNEL STATUS RUN RUN STATUS DONE SENT FAILED SKIPPED IN DOUBT
    mail email failed run_[id] partial 3/3 2 1 0 0
    ");
    let run_id = deployed.stdout.trim();
    let verified = stage.run(&["campaign", "verify", "spring"])?;
    assert_eq!(verified.code, 3);
    assert_snapshot!(redacted(&verified.stdout), @r"
    spring, phase mail, run_[id]: 2 sent, 1 failed, 0 skipped, 0 in doubt, 0 missing of 3; launched
    ✓ the run has ended partial
    ✓ every intended item has an end 3 of 3
    ✓ a second call is impossible one row per key, which never goes and never reopens
    based on: database [database] of cluster [cluster], from which no process has sent
    ");
    let watched = stage.run(&["campaign", "watch", "spring"])?;
    assert_eq!((watched.code, watched.stdout.as_str()), (3, ""));
    assert_snapshot!(redacted(&watched.stderr), @r"
    mail: failed, 100 %
    mail: launched, 1 of 3 failed; `postrider trace run_[id]` says why
    ");
    let watched = stage.run(&["campaign", "watch", run_id])?;
    assert_eq!((watched.code, watched.stdout.as_str()), (3, ""));
    assert_snapshot!(redacted(&watched.stderr), @r"
    mail: 3/3 done, 2 sent, 1 failed, 0 skipped, 0 in doubt; partial
    mail: launched, 1 of 3 failed; `postrider trace run_[id]` says why
    ");
    for run_id in [run_id, &format!("run_{run_id}")] {
        assert_eq!(stage.run(&["campaign", "verify", run_id])?.stdout, verified.stdout);
        assert_eq!(stage.run(&["campaign", "watch", run_id])?.stderr, watched.stderr);
    }
    let certificate = stage.run(&["campaign", "verify", "spring", "--phase", "mail", "--json"])?;
    let certificate: Value = serde_json::from_str(&certificate.stdout)?;
    assert_eq!(certificate["launched"], json!(true));
    assert_eq!(certificate["certificates"][0]["run_id"], json!(run_id));
    assert_refused(
        &stage.run(&["campaign", "deploy", "spring"])?,
        "every phase of the campaign was deployed already; `postrider campaign status` shows how they stand",
    );
    assert_refused(
        &stage.run(&["campaign", "deploy", "spring", "--phase", "mail"])?,
        "phase `mail` is failed and is not deployed twice",
    );
    Ok(())
}

#[tokio::test]
async fn watching_ends_with_the_run_and_tells_each_change_once() -> anyhow::Result<()> {
    let stage = Stage::new(2).await?;
    let run_id = stage.deploy_spring(1).await?.to_string();
    let mut watching = Process::start(&mut stage.command(&["campaign", "watch", &run_id]))?;
    let mut all = Process::start(&mut stage.command(&["campaign", "watch", "spring"]))?;
    watching.wait_for_line("mail: 0/2 done, 0 sent, 0 failed, 0 skipped, 0 in doubt; queued")?;
    all.wait_for_line("mail: in progress, 0 %")?;
    let worker = stage.worker("hand").await?;
    worker.finish_one("sent", "m-1").await?;
    watching.wait_for_line("mail: 1/2 done, 1 sent, 0 failed, 0 skipped, 0 in doubt; running")?;
    worker.finish_one("sent", "m-2").await?;
    for watching in [&mut watching, &mut all] {
        assert_eq!(watching.wait()?.code(), Some(0));
        watching.wait_for_line("mail: launched")?;
        let lines = watching.lines();
        let distinct: std::collections::HashSet<&String> = lines.iter().collect();
        assert_eq!(distinct.len(), lines.len(), "{lines:?}");
    }
    all.wait_for_line("mail: completed, 100 %")?;

    let json = stage.stdout(&["campaign", "watch", &run_id, "--json"])?;
    let last: Value = serde_json::from_str(json.lines().last().unwrap_or_default())?;
    assert_eq!((&last[0]["status"], &last[0]["progress"]["succeeded"]), (&json!("completed"), &json!(2)));

    // Of a campaign, the events: all that are kept, or those from now on, which are none.
    let json = stage.stdout(&["campaign", "watch", "spring", "--json", "--after", "0"])?;
    let events: Vec<Value> = json.lines().map(serde_json::from_str).collect::<Result<_, _>>()?;
    assert!(events.iter().zip(1..).all(|(event, expected)| event["sequence"] == json!(expected)), "{json}");
    assert_eq!(events.last().map(|event| &event["type"]), Some(&json!("phase_completed")));
    assert_eq!(stage.stdout(&["campaign", "watch", "spring", "--json"])?, "");
    Ok(())
}

#[tokio::test]
async fn deploying_can_watch_at_once_and_still_prints_nothing_but_the_run() -> anyhow::Result<()> {
    let stage = Stage::new(1).await?;
    succeeded(stage.create(SPRING)?)?;
    let mut watching = Process::start(&mut stage.command(&["campaign", "deploy", "spring", "--watch"]))?;
    watching.wait_for_line("mail: 0/1 done")?;
    stage.worker("hand").await?.finish_one("sent", "m-1").await?;
    assert_eq!(watching.wait()?.code(), Some(0));
    let ids = watching.lines().iter().filter(|line| line.parse::<Uuid>().is_ok()).count();
    assert_eq!(ids, 1, "{:?}", watching.lines());
    Ok(())
}

#[tokio::test]
async fn a_run_that_ends_in_doubt_or_failed_is_reported_with_its_exit_code() -> anyhow::Result<()> {
    let stage = Stage::new(2).await?;
    stage.deploy_spring(500).await?;
    let worker = stage.worker("hand").await?;
    let job = worker.claim().await?;
    let items = worker.reserve(&job, 2).await?;
    worker.settle(&[(items[0], "sent", "m-1"), (items[1], "in_doubt", "no answer")]).await?;
    assert_eq!(worker.complete(&job).await?, "failed");
    let waits = succeeded(stage.run(&["campaign", "status", "spring"])?)?;
    assert!(waits.stderr.contains("mail: 1 in doubt, and the run waits for them"), "{}", waits.stderr);
    worker.wear_out().await?;

    let watched = stage.run(&["campaign", "watch", "spring"])?;
    assert_eq!((watched.code, watched.stdout.as_str()), (5, ""));
    assert_snapshot!(watched.stderr, @r"
    mail: failed, 50 %
    mail: not launched, 1 in doubt; `postrider in-doubt list` shows them
    ");
    let verified = stage.run(&["campaign", "verify", "spring"])?;
    assert_eq!(verified.code, 5);
    assert_snapshot!(redacted(&verified.stdout), @r"
    spring, phase mail, run_[id]: 1 sent, 0 failed, 0 skipped, 1 in doubt, 0 missing of 2; not launched
    ✓ the run has ended partial
    ✗ every intended item has an end 1 of 2
    ✓ a second call is impossible one row per key, which never goes and never reopens
    based on: database [database] of cluster [cluster], from which no process has sent
    ");
    // Settled after its job is dead: the item is counted all the same.
    let item = items[1].to_string();
    stage.stdout(&["in-doubt", "resolve", &item, "--as", "sent", "--note", "seen in their log"])?;
    assert_snapshot!(redacted(&stage.stdout(&["campaign", "status", "spring"])?), @r"
    PHASE CHANNEL STATUS RUN RUN STATUS DONE SENT FAILED SKIPPED IN DOUBT
    mail email failed run_[id] partial 2/2 2 0 0 0
    ");
    succeeded(stage.run(&["campaign", "verify", "spring"])?)?;

    let all_failed = Stage::new(1).await?;
    all_failed.deploy_spring(500).await?;
    all_failed.worker("hand").await?.finish_one("failed", "550 no").await?;
    let watched = all_failed.run(&["campaign", "watch", "spring"])?;
    assert_eq!(watched.code, 4);
    assert!(watched.stderr.contains("mail: every item failed; `postrider trace run_"), "{}", watched.stderr);
    Ok(())
}

#[tokio::test]
async fn a_run_that_no_worker_has_ended_is_not_launched() -> anyhow::Result<()> {
    let stage = Stage::new(2).await?;
    let run_id = stage.deploy_spring(500).await?.to_string();
    let verified = stage.run(&["campaign", "verify", &run_id])?;
    assert_eq!(verified.code, 5);
    assert_snapshot!(redacted(&verified.stdout), @r"
    spring, phase mail, run_[id]: 0 sent, 0 failed, 0 skipped, 0 in doubt, 2 missing of 2; not launched
    ✗ the run has ended queued
    ✗ every intended item has an end 0 of 2
    ✓ a second call is impossible one row per key, which never goes and never reopens
    based on: database [database] of cluster [cluster], from which no process has sent
    ");
    stage
        .world
        .as_superuser("alter table execution.channel_outbox disable trigger channel_outbox_ends_are_final")
        .await?;
    let verified = stage.run(&["campaign", "verify", &run_id])?;
    assert!(verified.stdout.contains("✗ a second call is impossible"), "{}", verified.stdout);
    Ok(())
}

/// A campaign of three people with one job each.
async fn three_jobs() -> anyhow::Result<(Stage, super::stage::Worker)> {
    let stage = Stage::new(3).await?;
    stage.deploy_spring(1).await?;
    let worker = stage.worker("hand").await?;
    Ok((stage, worker))
}

#[tokio::test]
async fn verification_leads_with_the_counts_and_its_exit_code_tells_failures_apart() -> anyhow::Result<()> {
    let cases = [
        (
            ["sent", "sent", "sent"],
            "3 sent, 0 failed, 0 skipped, 0 in doubt, 0 missing of 3; launched",
            0,
            "launched",
        ),
        (
            ["sent", "failed", "sent"],
            "2 sent, 1 failed, 0 skipped, 0 in doubt, 0 missing of 3; launched",
            3,
            "some_failed",
        ),
        (
            ["failed", "failed", "failed"],
            "0 sent, 3 failed, 0 skipped, 0 in doubt, 0 missing of 3; launched",
            4,
            "all_failed",
        ),
        (
            ["failed", "sent", ""],
            "1 sent, 1 failed, 0 skipped, 0 in doubt, 1 missing of 3; not launched",
            5,
            "not_launched",
        ),
    ];
    for (statuses, counts, code, verdict) in cases {
        let (stage, worker) = three_jobs().await?;
        for status in statuses.into_iter().filter(|status| !status.is_empty()) {
            worker.finish_one(status, "x").await?;
        }
        let verified = stage.run(&["campaign", "verify", "spring"])?;
        assert_eq!(verified.code, code, "{statuses:?}: {}{}", verified.stdout, verified.stderr);
        let first = redacted(verified.stdout.lines().next().unwrap_or_default());
        assert_eq!(first, format!("spring, phase mail, run_[id]: {counts}"));
        let json = stage.run(&["campaign", "verify", "spring", "--json"])?;
        assert_eq!(json.code, code);
        let json: Value = serde_json::from_str(&json.stdout)?;
        assert_eq!((&json["result"], &json["phases"][0]["result"]), (&json!(verdict), &json!(verdict)));
        // The certificate's conditions do not ask whether items failed.
        assert_eq!(json["launched"], json!(code != 5));
        if code != 5 {
            assert_eq!(stage.run(&["campaign", "watch", "spring"])?.code, code, "{statuses:?}");
        }
    }
    let unknown = Stage::new(1).await?.run(&["campaign", "verify", "winter"])?;
    assert_eq!(unknown.code, 1, "a command that fails has a code of its own");
    let help = run(crate::world::postrider().args(["campaign", "verify", "--help"]))?.stdout;
    for line in [
        "0  launched",
        "3  launched, and some items failed",
        "4  launched, and every item",
        "5  not launched",
    ] {
        assert!(help.contains(line), "{line} is not in: {help}");
    }
    Ok(())
}

#[tokio::test]
async fn items_that_a_retry_has_sent_no_longer_count_as_failed() -> anyhow::Result<()> {
    let (stage, worker) = three_jobs().await?;
    for status in ["failed", "failed", "sent"] {
        worker.finish_one(status, "x").await?;
    }
    stage.stdout(&["campaign", "retry", "spring"])?;
    let job = worker.claim().await?;
    let items = worker.reserve(&job, 2).await?;
    worker.settle(&[(items[0], "sent", "m"), (items[1], "failed", "550 no")]).await?;
    worker.complete(&job).await?;
    assert_eq!(stage.run(&["campaign", "verify", "spring"])?.code, 3);
    assert_eq!(stage.run(&["campaign", "watch", "spring"])?.code, 3);
    stage.stdout(&["campaign", "retry", "spring"])?;
    worker.finish_one("sent", "m").await?;
    let verified = succeeded(stage.run(&["campaign", "verify", "spring"])?)?;
    assert!(verified.stderr.contains("mail: 3 of 3 sent, in 3 runs"), "{}", verified.stderr);
    let json = stage.json(&["campaign", "verify", "spring"])?;
    assert_eq!(
        (&json["phases"][0]["succeeded"], &json["phases"][0]["failed"], &json["phases"][0]["intended"]),
        (&json!(3), &json!(0), &json!(3))
    );
    Ok(())
}

#[tokio::test]
async fn watching_says_what_a_phase_waits_for_and_until_when() -> anyhow::Result<()> {
    let until = |line: &str| -> anyhow::Result<jiff::Timestamp> {
        let text = line.split("until ").nth(1).and_then(|rest| rest.get(..20)).unwrap_or_default();
        Ok(text.replace(' ', "T").parse()?)
    };
    for (why, sentence) in [
        ("hours", "the current time is outside the sending hours"),
        ("daily", "the account's calls for today are used up"),
        ("rate", "the account's rate is used up"),
        ("retry_after", "the provider asked to wait"),
        ("circuit", "the provider fails, and its circuit is open"),
    ] {
        let stage = Stage::new(2).await?;
        let run_id = stage.deploy_spring(1).await?.to_string();
        let worker = stage.worker("hand").await?;
        let job = worker.claim().await?;
        worker.put_off(&job, why, 7200.0).await?;
        let (began, two_hours) = (jiff::Timestamp::now(), jiff::SignedDuration::from_hours(2));
        for what in ["spring", &run_id] {
            let watching = Process::start(&mut stage.command(&["campaign", "watch", what]))?;
            let line = watching.wait_for_line(&format!("Z: {sentence}"))?;
            assert!(line.starts_with("mail: ") && line.contains("2 send jobs wait until "), "{line}");
            let off = until(&line)?.duration_since(began + two_hours);
            assert!(off.abs() < jiff::SignedDuration::from_secs(120), "{line}");
        }
    }

    let stage = Stage::new(1).await?;
    let scheduled = SPRING.replace("content.text", "scheduled_for = 2130-03-01T09:00:00+01:00\ncontent.text");
    succeeded(stage.create(&scheduled)?)?;
    let run_id = stage.stdout(&["campaign", "deploy", "spring"])?;
    for what in ["spring", run_id.trim()] {
        let watching = Process::start(&mut stage.command(&["campaign", "watch", what]))?;
        watching.wait_for_line("the phase begins at 2130-03-01 08:00:00Z, as scheduled")?;
    }
    stage.stdout(&["campaign", "pause", "spring"])?;
    let watching = Process::start(&mut stage.command(&["campaign", "watch", "spring"]))?;
    watching.wait_for_line("mail: paused, 0 %; `postrider campaign resume` continues it")?;
    Ok(())
}

#[tokio::test]
async fn a_phase_deployed_many_times_at_once_has_one_run() -> anyhow::Result<()> {
    let stage = Stage::new(20).await?;
    succeeded(stage.create(SPRING)?)?;
    let deployments: Vec<std::process::Child> = (0..8)
        .map(|_| {
            let mut command = stage.command(&["campaign", "deploy", "spring"]);
            command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped()).spawn()
        })
        .collect::<Result<_, _>>()?;
    let mut runs = std::collections::HashSet::new();
    let mut new = 0;
    for deployment in deployments {
        let output = deployment.wait_with_output()?;
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        new += usize::from(String::from_utf8_lossy(&output.stderr).contains("20 items in 1 send job"));
        runs.insert(String::from_utf8(output.stdout)?);
    }
    assert_eq!((runs.len(), new), (1, 1));
    let rows: (i64, i64) = sqlx::query_as(
        "select (select count(*) from execution.campaign_runs), (select count(*) from execution.job_queue)",
    )
    .fetch_one(&stage.admin)
    .await?;
    assert_eq!(rows, (1, 1));
    Ok(())
}

#[tokio::test]
async fn deploying_wakes_a_listener_after_the_jobs_are_there() -> anyhow::Result<()> {
    let stage = Stage::new(1).await?;
    let mut listener = sqlx::postgres::PgListener::connect(&stage.world.admin_url()).await?;
    listener.listen("postrider_jobs").await?;
    stage.deploy_spring(500).await?;
    tokio::time::timeout(crate::world::PATIENCE, listener.recv()).await??;
    stage.worker("hand").await?.claim().await?;
    Ok(())
}

#[tokio::test]
async fn another_tenant_sees_nothing_of_a_campaign_and_can_do_nothing_to_it() -> anyhow::Result<()> {
    let stage = Stage::new(2).await?;
    let run_id = stage.deploy_spring(500).await?.to_string();
    let worker = stage.worker("hand").await?;
    let job = worker.claim().await?;
    let items = worker.reserve(&job, 2).await?;
    worker.settle(&[(items[0], "sent", "m-1"), (items[1], "in_doubt", "no answer")]).await?;
    let campaign =
        stage.json(&["campaign", "status", "spring"])?["campaign"]["id"].as_str().unwrap().to_owned();
    let job = job.job_id.to_string();
    let item = items[1].to_string();
    let key: String = sqlx::query_scalar("select idempotency_key from execution.channel_outbox limit 1")
        .fetch_one(&stage.admin)
        .await?;

    stage.world.stdout(&["tenants", "create", "other"])?;
    let before = stage.world.dump().await?;
    let as_other = |args: &[&str]| stage.world.postrider(&[args, &["--tenant", "other"]].concat());
    for (args, says) in [
        (&["campaign", "status", "spring"][..], "there is no campaign `spring`"),
        (&["campaign", "status", &campaign], "there is no campaign with the id"),
        (&["campaign", "deploy", &campaign], "there is no campaign with the id"),
        (&["campaign", "watch", &campaign], "there is no campaign or run"),
        (&["campaign", "watch", &run_id], "there is no campaign or run"),
        (&["campaign", "verify", &run_id], "there is no campaign or run"),
        (&["trace", &campaign], "tenant `other` has no campaign"),
        (&["trace", &run_id], "tenant `other` has no campaign"),
        (&["trace", &job], "tenant `other` has no campaign"),
        (&["trace", &item], "tenant `other` has no campaign"),
        (&["trace", &key], "tenant `other` has no campaign"),
        (&["in-doubt", "resolve", &item, "--as", "sent", "--note", "x"], "there is no item"),
    ] {
        assert_refused(&as_other(args)?, says);
    }
    assert_eq!(succeeded(as_other(&["campaign", "status"])?)?.stdout, "");
    assert_eq!(succeeded(as_other(&["in-doubt", "list"])?)?.stderr, "no item is in doubt\n");
    assert_eq!(stage.world.dump().await?, before);

    // A campaign's list, account and asset are its tenant's own, too.
    let output = run_with_input(
        crate::world::postrider().args([
            "--database-url",
            &stage.world.admin_url(),
            "campaign",
            "create",
            "-",
            "--tenant",
            "other",
        ]),
        &SPRING.replace("\"spring\"", "\"theirs\""),
    )?;
    assert_refused(&output, "there is no provider account `mailer`; the tenant has none");
    assert_eq!(stage.world.dump().await?, before);
    Ok(())
}

#[tokio::test]
async fn the_role_of_requests_reads_its_own_tenant_and_nothing_by_naming_another() -> anyhow::Result<()> {
    let stage = Stage::new(2).await?;
    let run_id = RunId(stage.deploy_spring(500).await?);
    let worker = stage.worker("hand").await?;
    let job = worker.claim().await?;
    let items = worker.reserve(&job, 2).await?;
    worker.settle(&[(items[0], "sent", "m-1"), (items[1], "in_doubt", "no answer")]).await?;
    let acme = TenantId(stage.tenant);
    let other = TenantId(crate::sql::tenant(&stage.admin, "other").await?.0);
    let app = stage.world.pool("postrider_app").await?;
    // Whose context it is, whom the call names, and whether there is anything to see.
    for (context, named, sees) in
        [(acme, acme, true), (other, other, false), (other, acme, false), (acme, other, false)]
    {
        let mut transaction = pool::begin_as(&app, context).await?;
        let connection = &mut *transaction;
        let workspace = WorkspaceId(stage.workspace);
        let seen = [
            campaigns::find(connection, named, "spring").await?.is_some(),
            !campaigns::list(connection, named, 10).await?.is_empty(),
            assets::find(connection, named, workspace, "spring/mail").await?.is_some(),
            runs::find(connection, named, run_id).await?.is_some(),
            doubts::list(connection, named, 10).await?.total == 1,
            trace::find(connection, named, &items[1].to_string()).await?.is_some(),
            !trace::read(connection, named, Subject::Run(run_id), 10).await?.audit.is_empty(),
        ];
        assert_eq!(seen, [sees; 7], "{context} names {named}");
        // Functions of the database refuse a tenant other than that of the context.
        let progress = runs::progress(connection, named, &[run_id]).await;
        assert_eq!(progress.is_ok(), context == named, "{context} names {named}");
        assert_eq!(progress.is_ok_and(|progress| !progress.is_empty()), sees, "{context} names {named}");
        drop(transaction);
        let mut transaction = pool::begin_as(&app, context).await?;
        let certificate = runs::verify(&mut transaction, named, run_id).await;
        assert_eq!(certificate.is_ok(), sees, "{context} names {named}");
    }
    Ok(())
}

#[tokio::test]
async fn people_who_share_an_address_are_addressed_once_and_the_deployment_says_so() -> anyhow::Result<()> {
    let stage = Stage::new(0).await?;
    let emails = ["ann@example.com", "ANN@example.com", "bob@example.com"].map(str::to_owned);
    stage.add_list("twins", &emails).await?;
    succeeded(stage.create(&SPRING.replace("\"customers\"", "\"twins\""))?)?;
    let deployed = succeeded(stage.run(&["campaign", "deploy", "spring"])?)?;
    assert_snapshot!(deployed.stderr, @r"
    deployed phase `mail` of `spring`: 2 items in 1 send job
    1 lead left out, because another one has the same address
    `postrider campaign watch spring --tenant acme` shows its progress
    ");
    Ok(())
}

#[tokio::test]
async fn a_later_risk_is_a_warning_beside_the_new_campaign() -> anyhow::Result<()> {
    let stage = Stage::new(1).await?;
    let mut command = stage.command(&["campaign", "create", "-"]);
    command.env("POSTRIDER_MASTER_KEY", super::MASTER_KEY);
    let created = succeeded(run_with_input(&mut command, &format!("{SPRING}quiet_time_seconds = 5\n"))?)?;
    assert_snapshot!(redacted(&created.stdout), @"[id]");
    let warnings: Vec<&str> = created.stderr.lines().filter(|line| line.starts_with("warning: ")).collect();
    assert_eq!(warnings.len(), 2, "{}", created.stderr);
    assert!(warnings[0].contains("shorter than a call may take (180 seconds)"), "{}", warnings[0]);
    assert!(warnings[1].contains("account `mailer` cannot work as it is set up"), "{}", warnings[1]);
    Ok(())
}

#[tokio::test]
async fn progress_reads_only_the_items_of_jobs_that_are_under_way() -> anyhow::Result<()> {
    let stage = Stage::new(60).await?;
    let run_id = stage.deploy_spring(20).await?;
    let worker = stage.worker("hand").await?;
    worker.finish_one("sent", "m").await?;
    worker.finish_one("failed", "no").await?;
    let job = worker.claim().await?;
    worker.reserve(&job, 7).await?;

    let mut transaction = stage.admin.begin().await?;
    sqlx::query("select set_config('app.current_tenant_id', $1, true)")
        .bind(stage.tenant.to_string())
        .execute(&mut *transaction)
        .await?;
    let counted: i64 = sqlx::query_scalar(
        "select succeeded + failed + in_flight from execution.run_progress(tenancy.current_tenant_id(), $1)",
    )
    .bind(vec![run_id])
    .fetch_one(&mut *transaction)
    .await?;
    let read: i64 = sqlx::query_scalar(
        "select seq_tup_read + idx_tup_fetch from pg_stat_xact_user_tables where relid = 'execution.channel_outbox'::regclass",
    )
    .fetch_one(&mut *transaction)
    .await?;
    assert_eq!((counted, read), (47, 7));
    drop(transaction);
    let status = stage.json(&["campaign", "status", "spring"])?;
    let progress = &status["phases"][0]["run"]["progress"];
    assert_eq!(
        (&progress["succeeded"], &progress["failed"], &progress["in_flight"]),
        (&json!(20), &json!(20), &json!(7))
    );
    Ok(())
}

#[tokio::test]
async fn help_names_every_command_and_what_it_takes() -> anyhow::Result<()> {
    let help = succeeded(run(crate::world::postrider().args(["campaign", "--help"]))?)?.stdout;
    for command in ["import", "create", "deploy", "status", "watch", "verify"] {
        assert!(help.lines().any(|line| line.trim_start().starts_with(command)), "{command}: {help}");
    }
    Ok(())
}
