//! The response to an invocation, for every end of its job run.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{begin, claim_all, end, end_all, end_what_comes, invocation, job_id, meanwhile, noop};
use crate::api::Stage;

/// Far longer than any of these tests.
const WAIT: &str = "sync/invoke?wait=600";

#[tokio::test(flavor = "multi_thread")]
async fn an_invocation_answers_with_the_result_and_the_next_one_with_what_is_in_the_way() -> anyhow::Result<()>
{
    let stage = Stage::new().await?;
    noop(
        &stage,
        "sync",
        &json!({ "grain": "day", "retry": { "initial_delay_ms": 86_400_000, "max_delay_ms": 86_400_000 } }),
    )?;
    let call = |path: &str| invocation(&stage, &stage.acme, path, &json!({ "input": { "n": 1 } }));
    let waiting = meanwhile(call(WAIT));
    end_what_comes(&stage, &Ok(json!({ "processed": 7 }))).await?;
    let done = waiting.await??.expect(200)?;
    let first = job_id(&done)?;
    assert_eq!(done, json!({ "success": true, "job_id": first, "result": { "processed": 7 } }));

    let conflict = |path: &str, existing: &str, state: &str| {
        let problem = call(path).send()?.problem(409)?;
        assert_eq!((&problem["success"], &problem["existing_job_id"]), (&json!(false), &json!(existing)));
        assert_eq!((&problem["reason"], &problem["current_state"]), (&problem["detail"], &json!(state)));
        anyhow::Ok(problem)
    };
    let problem = conflict(WAIT, &first, "completed")?;
    let reason = problem["reason"].as_str().unwrap_or_default();
    assert!(
        reason.starts_with("Job already completed in this grain (day 20") && reason.contains("send `force`"),
        "{reason}"
    );

    // Forced, what is completed does not count; what is active does.
    let second = job_id(&call("sync/invoke?wait=0&force=true").send()?.expect(202)?)?;
    let problem = conflict("sync/invoke?force=true", &second, "running")?;
    assert_eq!(problem["reason"], "Job already running; wait for its run, or cancel it");
    end_all(&stage, &Err(("it broke".to_owned(), true))).await?;
    let problem = conflict(WAIT, &second, "failed")?;
    let at = problem["retry_at"].as_str().unwrap_or_default();
    let expected =
        format!("Job failed and waits for its retry at {at}; retry its run to have it tried at once");
    assert!(!at.is_empty() && problem["reason"] == expected, "{problem}");
    let forced = "select count(*) from tenancy.audit_log where action = 'run.forced'";
    assert_eq!(stage.count(forced).await?, 1);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiting_caller_learns_of_a_final_failure_or_a_cancellation() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    noop(&stage, "sync", &json!({ "retry": { "max_retries": 0 } }))?;
    let waiting = meanwhile(invocation(&stage, &stage.acme, WAIT, &json!({})));
    end_what_comes(&stage, &Err(("disk full".to_owned(), true))).await?;
    let problem = waiting.await??.problem(500)?;
    let run = job_id(&problem)?;
    assert_eq!((&problem["success"], &problem["error"]), (&json!(false), &json!("disk full")));
    assert_eq!(problem["detail"], "the function failed: disk full");
    stage.get(&stage.acme.viewer, &format!("/job-runs/{run}"))?.expect(200)?;

    let waiting = meanwhile(invocation(&stage, &stage.acme, WAIT, &json!({})));
    let running = || stage.get(&stage.acme.viewer, "/job-runs?status=running");
    crate::world::eventually("a run", || async { Ok(running()?.expect(200)?["items"] != json!([])) }).await?;
    let second = running()?.expect(200)?["items"][0]["id"].as_str().unwrap_or_default().to_owned();
    let note = json!({ "note": "too late" });
    stage.post(&stage.acme.operator, &format!("/job-runs/{second}/cancel"), &note)?.expect(200)?;
    let problem = waiting.await??.problem(409)?;
    assert_eq!((&problem["success"], job_id(&problem)?), (&json!(false), second));
    let reason = problem["reason"].as_str().unwrap_or_default();
    assert!(reason.starts_with("Job was cancelled: ") && reason.ends_with("too late"), "{reason}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repeated_invocation_answers_for_the_run_of_the_first() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    noop(
        &stage,
        "sync",
        &json!({ "retry": { "initial_delay_ms": 86_400_000, "max_delay_ms": 86_400_000 } }),
    )?;
    let call = || invocation(&stage, &stage.acme, "sync/invoke?wait=0", &json!({})).idempotency_key("k");
    let first = call().send()?;
    let made = first.expect(202)?;
    let run = job_id(&made)?;
    assert_eq!(made, json!({ "success": true, "job_id": run, "status": "running", "retry_at": null }));
    assert_eq!(first.header("idempotent-replayed"), None);
    let again = |status: u16| {
        let reply = call().send()?;
        assert_eq!(reply.header("idempotent-replayed"), Some("true"), "{}", reply.text());
        reply.expect(status)
    };
    assert_eq!(again(202)?, made);
    end_all(&stage, &Err(("try again".to_owned(), true))).await?;
    let failed = again(202)?;
    assert_eq!((&failed["status"], failed["retry_at"].is_string()), (&json!("failed"), true), "{failed}");
    stage.call("POST", &format!("/job-runs/{run}/retry")).key(&stage.acme.operator).send()?.expect(200)?;
    end_all(&stage, &Ok(json!(null))).await?;
    assert_eq!(again(200)?, json!({ "success": true, "job_id": run, "result": null }));
    assert_eq!(stage.count("select count(*) from jobs.job_runs").await?, 1);

    // It waits as a first one does.
    noop(&stage, "slow", &json!({}))?;
    let call = || invocation(&stage, &stage.acme, "slow/invoke?wait=600", &json!({})).idempotency_key("slow");
    let waiting = meanwhile(call());
    crate::world::eventually("a run", || async {
        Ok(stage.count("select count(*) from jobs.job_runs where status = 'running'").await? == 1)
    })
    .await?;
    let repeated = meanwhile(call());
    // Also when the hint that it is over is lost.
    end(&stage, &claim_all(&stage).await?, &Ok(json!("done"))).await?;
    let (first, second) = (waiting.await??, repeated.await??);
    assert_eq!(first.expect(200)?, second.expect(200)?);
    assert_eq!(
        (first.header("idempotent-replayed"), second.header("idempotent-replayed")),
        (None, Some("true"))
    );
    // A request that made no job run leaves its key free.
    let refused = invocation(&stage, &stage.acme, "slow/invoke?wait=0", &json!({})).idempotency_key("free");
    refused.send()?.problem(409)?;
    assert_eq!(stage.count("select count(*) from tenancy.requests").await?, 2);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn past_the_wait_and_when_the_process_stops_the_run_goes_on_without_its_caller() -> anyhow::Result<()> {
    let mut stage = Stage::new().await?;
    noop(&stage, "sync", &json!({}))?;
    let waited = invocation(&stage, &stage.acme, "sync/invoke?wait=1", &json!({})).send()?.expect(202)?;
    assert_eq!(waited["status"], "running");
    end_all(&stage, &Ok(json!(null))).await?;

    noop(&stage, "slow", &json!({}))?;
    let waiting = meanwhile(invocation(&stage, &stage.acme, "slow/invoke?wait=600", &json!({})));
    let running = "select count(*) from jobs.job_runs where status = 'running'";
    crate::world::eventually("a run", || async { Ok(stage.count(running).await? == 1) }).await?;
    let began = Instant::now();
    stage.server.process.signal("TERM")?;
    let answered: Value = waiting.await??.expect(202)?;
    assert_eq!(answered["status"], "running");
    assert!(stage.server.process.wait()?.success());
    assert!(began.elapsed() < Duration::from_secs(60), "nobody was waited for");
    assert_eq!(stage.count(running).await?, 1);
    Ok(())
}

#[tokio::test]
async fn a_built_in_function_exists_for_every_tenant_after_its_first_use() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let shown = || stage.get(&stage.acme.viewer, "/functions/noop");
    shown()?.problem(404)?;
    let run = begin(&stage, "noop")?;
    let function = shown()?.expect(200)?;
    assert_eq!((&function["target"], &function["grain"]), (&json!({ "builtin": "noop" }), &json!("5min")));
    let other = stage.tenant("other").await?;
    stage.get(&other.viewer, "/functions/noop")?.problem(404)?;
    stage.get(&other.viewer, &format!("/job-runs/{run}"))?.problem(404)?;
    let theirs = invocation(&stage, &other, "noop/invoke?wait=0", &json!({})).send()?.expect(202)?;
    assert_ne!(job_id(&theirs)?, run);
    Ok(())
}
