//! Phases over HTTP: the whole table, many at once, and the snapshot.

use std::sync::{Arc, Barrier};

use anyhow::Context;
use postrider_model::campaigns::{PhaseKind, PhaseStatus, PhaseTrigger};
use serde_json::{Value, json};
use sqlx::AssertSqlSafe;

use super::{Call, Reply, Stage};

/// A campaign with phases that another service does.
fn external(stage: &Stage, name: &str, phases: &[&str]) -> anyhow::Result<String> {
    let phases: Vec<Value> =
        phases.iter().map(|phase| json!({ "phase": phase, "kind": "external" })).collect();
    let body = json!({ "name": name, "auto_advance": false, "phases": phases });
    let made = stage.post(&stage.acme.operator, "/campaigns", &body)?.expect(201)?;
    Ok(made["id"].as_str().context("no id")?.to_owned())
}

fn control(stage: &Stage, campaign: &str, phase: &str, control: &str, body: &Value) -> anyhow::Result<Reply> {
    let path = format!("/campaigns/{campaign}/phases/{phase}/{control}");
    stage.post(&stage.acme.operator, &path, body)
}

fn status(stage: &Stage, campaign: &str) -> anyhow::Result<Value> {
    stage.get(&stage.acme.viewer, &format!("/campaigns/{campaign}/status"))?.expect(200)
}

/// Puts the phases of a campaign into a state, whatever they were.
async fn force(stage: &Stage, campaign: &str, state: PhaseStatus) -> anyhow::Result<()> {
    let sql = format!(
        "set session_replication_role = replica;
         update execution.campaign_phases set status = '{state}' where campaign_id = '{campaign}';
         reset session_replication_role"
    );
    sqlx::raw_sql(AssertSqlSafe(sql)).execute(&stage.admin).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn every_control_from_every_state_is_answered_as_the_contract_says() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let campaign = external(&stage, "all of it", &["only"])?;
    for from in PhaseStatus::ALL {
        for by in PhaseTrigger::ALL {
            for expected in [None, Some(*from), Some(PhaseStatus::Failed), Some(PhaseStatus::NotStarted)] {
                force(&stage, &campaign, *from).await?;
                let before = status(&stage, &campaign)?["sequence"].as_i64().context("no sequence")?;
                let body =
                    expected.map_or_else(|| json!({}), |expected| json!({ "expected_state": expected }));
                let reply = control(&stage, &campaign, "only", by.as_str(), &body)?;
                let case = format!("{from} {by} expecting {expected:?}: {}", reply.text());
                let is_expected = expected.is_none_or(|expected| expected == *from);
                let after = status(&stage, &campaign)?;
                if *from == by.goal() && by.is_for(PhaseKind::External) {
                    let answer = reply.expect(200).context(case.clone())?;
                    assert_eq!(
                        (&answer["changed"], &answer["sequence"]),
                        (&json!(false), &json!(before)),
                        "{case}"
                    );
                    assert_eq!(after["sequence"], before, "{case}");
                } else if is_expected && from.after(*by).is_some() {
                    let answer = reply.expect(200).context(case.clone())?;
                    assert_eq!(
                        (&answer["changed"], &answer["status"]),
                        (&json!(true), &json!(by.goal())),
                        "{case}"
                    );
                    assert_eq!(after["phases"][0]["status"], json!(by.goal()), "{case}");
                } else {
                    let problem = reply.problem(409).context(case.clone())?;
                    assert_eq!(problem["currentState"], json!(from), "{case}");
                    let allowed: Vec<_> = from.allowed(PhaseKind::External).collect();
                    assert_eq!(problem["allowed"], json!(allowed), "{case}");
                    assert_eq!(after["sequence"], before, "{case}");
                }
            }
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_control_many_times_at_once_is_one_change_and_one_event() -> anyhow::Result<()> {
    const MANY: usize = 16;
    let stage = Stage::new().await?;
    let campaign = external(&stage, "crowd", &["only"])?;
    for (n, by) in ["start", "pause", "resume", "complete", "rerun", "fail", "retry"].into_iter().enumerate()
    {
        let barrier = Arc::new(Barrier::new(MANY));
        let path = format!("/campaigns/{campaign}/phases/only/{by}");
        let asking: Vec<_> = (0..MANY)
            .map(|_| {
                let (call, barrier): (Call, _) =
                    (stage.call("POST", &path).key(&stage.acme.operator), Arc::clone(&barrier));
                std::thread::spawn(move || {
                    barrier.wait();
                    call.send()
                })
            })
            .collect();
        let mut changed = 0;
        for asked in asking {
            let answer = asked.join().map_err(|_| anyhow::anyhow!("a client died"))??.expect(200)?;
            changed += usize::from(answer["changed"] == true);
        }
        assert_eq!(changed, 1, "{by}");
        let sql = format!(
            "select count(*) from execution.campaign_events where campaign_id = '{campaign}' and type <> 'campaign_progress'"
        );
        let events: i64 = sqlx::query_scalar(AssertSqlSafe(sql)).fetch_one(&stage.admin).await?;
        assert_eq!(events, i64::try_from(n)? + 1, "{by}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_controls_that_exclude_each_other_one_wins() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    for round in 0..10 {
        let campaign = external(&stage, &format!("duel {round}"), &["only"])?;
        control(&stage, &campaign, "only", "start", &json!({}))?.expect(200)?;
        let barrier = Arc::new(Barrier::new(2));
        let asking = ["complete", "fail"].map(|by| {
            let call = stage
                .call("POST", &format!("/campaigns/{campaign}/phases/only/{by}"))
                .key(&stage.acme.operator)
                .json(&json!({ "expected_state": "in_progress" }));
            let barrier = Arc::clone(&barrier);
            std::thread::spawn(move || {
                barrier.wait();
                call.send()
            })
        });
        let mut replies = Vec::new();
        for asked in asking {
            replies.push(asked.join().map_err(|_| anyhow::anyhow!("a client died"))??);
        }
        replies.sort_by_key(|reply| reply.status);
        let (won, lost) = (replies[0].expect(200)?, replies[1].problem(409)?);
        assert_eq!(won["status"], lost["currentState"]);
        assert_eq!(status(&stage, &campaign)?["phases"][0]["status"], won["status"]);
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_control_under_a_key_is_done_once_however_late_it_is_repeated() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let campaign = external(&stage, "again", &["only"])?;
    for by in ["start", "complete"] {
        control(&stage, &campaign, "only", by, &json!({}))?.expect(200)?;
    }
    let rerun = || {
        stage
            .call("POST", &format!("/campaigns/{campaign}/phases/only/rerun"))
            .key(&stage.acme.operator)
            .idempotency_key("one rerun")
            .send()
    };
    let first = rerun()?;
    assert_eq!(first.expect(200)?["changed"], true);
    // It has completed again by the time the client, who never got the answer, asks once more.
    control(&stage, &campaign, "only", "complete", &json!({}))?.expect(200)?;
    let again = rerun()?;
    assert_eq!(again.header("idempotent-replayed"), Some("true"));
    assert_eq!(again.expect(200)?, first.expect(200)?);
    assert_eq!(status(&stage, &campaign)?["phases"][0]["status"], "completed", "it was not run a third time");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn progress_is_reported_for_phases_that_others_do_and_never_touches_their_state() -> anyhow::Result<()>
{
    let stage = Stage::new().await?;
    let campaign = external(&stage, "progress", &["only"])?;
    let path = format!("/campaigns/{campaign}/phases/only/progress");
    let report =
        |value: Value| stage.post(&stage.acme.operator, &path, &json!({ "progressPercentage": value }));
    let problem = report(json!(5))?.problem(409)?;
    assert_eq!(problem["currentState"], "not_started");
    control(&stage, &campaign, "only", "start", &json!({}))?.expect(200)?;
    assert_eq!(report(json!(12.34))?.expect(200)?["status"], "in_progress");
    let standing = status(&stage, &campaign)?;
    assert_eq!(standing["phases"][0]["progressPercentage"], 12.3);
    assert_eq!(standing["phases"][0]["status"], "in_progress");
    for wrong in [json!(-1), json!(100.5)] {
        assert_eq!(report(wrong)?.field(422)?, "progressPercentage");
    }
    for wrong in [json!("ten"), json!(null), json!([1])] {
        assert_eq!(report(wrong)?.field(400)?, "progressPercentage");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_control_names_its_reason() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let campaign = external(&stage, "wrong", &["only"])?;
    let other = stage.tenant("other").await?;
    let path = |campaign: &str, rest: &str| format!("/campaigns/{campaign}/{rest}");
    let unknown = "018f0000-0000-7000-8000-000000000000";

    assert_eq!(
        control(&stage, &campaign, "only", "start", &json!({ "expected_state": "asleep" }))?.field(400)?,
        "expected_state"
    );
    assert_eq!(
        control(&stage, &campaign, "only", "start", &json!({ "status": "completed" }))?.field(400)?,
        "status"
    );
    for (campaign, phase, by) in [
        (campaign.as_str(), "only", "explode"),
        (&campaign, "second", "start"),
        (unknown, "only", "start"),
        ("not-an-id", "only", "start"),
    ] {
        control(&stage, campaign, phase, by, &json!({}))?.problem(404)?;
    }
    // A stranger is told what somebody who made the id up is told.
    for (method, rest) in [
        ("POST", "phases/only/start"),
        ("POST", "phases/only/progress"),
        ("GET", "status"),
        ("GET", "events"),
    ] {
        let ask = |key: &str, campaign: &str| {
            let call = stage.call(method, &path(campaign, rest)).key(key);
            let call = if method == "POST" && rest.ends_with("progress") {
                call.json(&json!({ "progressPercentage": 1 }))
            } else {
                call
            };
            let mut problem = call.send()?.problem(404)?;
            problem["request_id"] = Value::Null;
            anyhow::Ok(problem)
        };
        assert_eq!(ask(&other.admin, &campaign)?, ask(&stage.acme.admin, unknown)?, "{method} {rest}");
    }
    let looking = stage.call("POST", &path(&campaign, "phases/only/start")).key(&stage.acme.viewer).send()?;
    assert!(looking.problem(403)?["detail"].as_str().unwrap_or_default().contains("operator"));
    assert_eq!(status(&stage, &campaign)?["sequence"], 0, "nothing was changed by any of it");
    Ok(())
}
