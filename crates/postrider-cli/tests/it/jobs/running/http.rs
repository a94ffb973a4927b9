//! Functions behind URLs, and what they may answer.

use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use serde_json::{Value, json};
use standardwebhooks::Webhook;

use super::super::{
    endpoint::{Asked, Does, Endpoint, JSON},
    operators::{Operators, soon},
    stage::ask,
};
use crate::world::Sim;

/// No test waits for this lease: a hint stops a job run, or the test fails.
const LONG_LEASE: &str = "lease_seconds = 3600";

fn headers(asked: &Asked) -> anyhow::Result<HeaderMap> {
    let mut headers = HeaderMap::new();
    for (name, value) in &asked.headers {
        headers.insert(HeaderName::from_bytes(name.as_bytes())?, HeaderValue::from_str(value)?);
    }
    Ok(headers)
}

#[tokio::test(flavor = "multi_thread")]
async fn every_attempt_is_signed_under_the_runs_id_and_an_answer_is_the_result() -> anyhow::Result<()> {
    let (operators, sim, endpoint) = (Operators::new().await?, Sim::start(&[])?, Endpoint::start()?);
    let server = operators.serve("api,scheduler", LONG_LEASE)?;

    // The sim plays a function that works.
    let url = format!("{}/functions/sync", sim.http_url);
    operators.put(&server, "sync", &json!({ "target": { "http": url } }))?;
    let run = operators.invoke(&server, "sync", &json!({ "sim_answer": { "synced": 12 } }))?;
    let run = operators.ends(run, "completed").await?;
    assert_eq!((run.result, run.retry_count, run.claims), (Some(json!({ "synced": 12 })), 0, 1));
    let receipts = sim.receipts()?;
    assert_eq!((receipts.len(), &receipts[0]["key"]), (1, &json!(run.id)), "{receipts:?}");
    assert_eq!(receipts[0]["tenant_id"], json!(operators.tenant));
    assert!(!operators.is_free("sync").await?, "it is done for today");

    // One that fails for as long as it is asked.
    let url = endpoint.at("down", Does::Answers(503, JSON, r#"{"error": "closed for today"}"#.to_owned()));
    let put = operators.put(&server, "down", &json!({ "target": { "http": url }, "retry": soon(3) }))?;
    let run = operators.invoke(&server, "down", &json!({ "since": "yesterday" }))?;
    let run = operators.ends(run, "failed").await?;
    assert_eq!((run.retry_count, run.claims), (3, 4), "{run:?}");
    assert!(run.error().contains("503") && run.error().contains("closed for today"), "{run:?}");
    let asked = endpoint.asked("down");
    let attempts: Vec<_> = asked.iter().map(|asked| asked.data("attempt").as_i64()).collect();
    assert_eq!(attempts, [Some(1), Some(2), Some(3), Some(4)]);
    let signer = Webhook::new(put["secret"].as_str().unwrap())?;
    for asked in &asked {
        signer.verify(&asked.raw, &headers(asked)?)?;
        assert_eq!(asked.headers["webhook-id"], run.id.to_string(), "the same over all attempts");
        assert_eq!(asked.data("job_id"), &json!(run.id));
        assert_eq!(asked.data("function_name"), "down");
        assert_eq!(asked.data("input"), &json!({ "since": "yesterday" }));
    }
    let letter = operators
        .text(&format!(
            "select jsonb_build_object('code', error_code, 'open', not is_resolved, 'name', error_details ->> 'function_name',
                                       'input', error_details -> 'input_params', 'retries', error_details -> 'retry_count',
                                       'key', error_details ->> 'lock_key' = run.lock_key,
                                       'last', (error_details ->> 'last_attempt_at')::timestamptz between run.started_at and now())::text
               from jobs.sync_errors as error join jobs.job_runs as run on run.id = error.source_entity_id
              where run.id = '{}'",
            run.id
        ))
        .await?;
    let expected = json!({ "code": "MAX_RETRIES_EXCEEDED", "open": true, "name": "down", "input": { "since": "yesterday" },
                           "retries": 3, "key": true, "last": true });
    assert_eq!(serde_json::from_str::<Value>(&letter)?, expected);
    assert!(operators.is_free("down").await?);

    // It works again: one more try by hand completes the run, and closes the letter.
    endpoint.at("down", Does::Answers(200, JSON, "17".to_owned()));
    operators.call(&server, "POST", &format!("/job-runs/{}/retry", run.id), &Value::Null)?.expect(200)?;
    let run = operators.ends(run.id, "completed").await?;
    assert_eq!((run.result.clone(), run.retry_count), (Some(json!(17)), 4), "{run:?}");
    assert_eq!(endpoint.asked("down")[4].data("attempt"), 5);
    assert_eq!(operators.letters(run.id).await?, ["MAX_RETRIES_EXCEEDED resolved"]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn every_answer_of_a_function_ends_its_job_run_with_a_reason() -> anyhow::Result<()> {
    let (operators, endpoint) = (Operators::new().await?, Endpoint::start()?);
    let server = operators.serve("api,scheduler", LONG_LEASE)?;
    let answers = |status, content_type, body: &str| Does::Answers(status, content_type, body.to_owned());
    let huge = format!("[\"{}\"]", "x".repeat(5 * 1024 * 1024));
    // The endpoint's reaction, the expected number of calls, and the error of the job run.
    let cases = [
        ("garbage", answers(200, JSON, "{not json"), 1, "JSON"),
        ("page", answers(200, "text/html", "<html>"), 1, "content type `text/html`"),
        ("huge", answers(200, JSON, &huge), 1, "65536 bytes"),
        ("moved", Does::Moves("http://127.0.0.1:1/".to_owned()), 1, "307"),
        ("refused", answers(422, JSON, r#"{"error": "no such order"}"#), 1, "no such order"),
        ("busy", answers(429, JSON, "{}"), 2, "429"),
        ("half", Does::BreaksOff, 2, "broke"),
        ("silent", Does::Holds, 2, "within 1s"),
    ];
    let mut runs = Vec::new();
    for (name, does, asked, says) in cases {
        let url = endpoint.at(name, does);
        let function = json!({ "target": { "http": url }, "timeout_seconds": 1, "retry": soon(1) });
        operators.put(&server, name, &function)?;
        runs.push((name, operators.invoke(&server, name, &Value::Null)?, asked, says));
    }
    // No server listens there.
    operators.put(
        &server,
        "nobody",
        &json!({ "target": { "http": "http://127.0.0.1:1/" }, "retry": soon(1) }),
    )?;
    runs.push(("nobody", operators.invoke(&server, "nobody", &Value::Null)?, 0, "reach"));
    for (name, run, asked, says) in runs {
        let run = operators.ends(run, "failed").await?;
        assert!(run.error().contains(says), "{name}: {run:?}");
        assert_eq!(endpoint.asked(name).len(), asked, "{name}");
        let code = if asked == 1 { "EXECUTION_ERROR" } else { "MAX_RETRIES_EXCEEDED" };
        assert_eq!((operators.letters(run.id).await?, run.is_held), (vec![code.to_owned()], false), "{name}");
        assert!(operators.is_free(name).await?, "{name}");
    }
    endpoint.wait_for_hang_up("silent")?;
    assert_eq!(
        operators
            .count("select count(*) from jobs.job_runs where status = 'running' or retry_at is not null")
            .await?,
        0
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_function_is_hung_up_on_and_its_late_answer_changes_nothing() -> anyhow::Result<()> {
    let (operators, endpoint) = (Operators::new().await?, Endpoint::start()?);
    let server = operators.serve("api,scheduler", LONG_LEASE)?;
    for name in ["told", "untold"] {
        let url = endpoint.at(name, Does::Holds);
        operators.put(
            &server,
            name,
            &json!({ "target": { "http": url }, "timeout_seconds": 900, "retry": soon(1) }),
        )?;
    }
    let (told, untold) = (
        operators.invoke(&server, "told", &Value::Null)?,
        operators.invoke(&server, "untold", &Value::Null)?,
    );
    endpoint.wait_for("told")?;
    endpoint.wait_for("untold")?;

    let note = json!({ "note": "not needed any more" });
    operators.call(&server, "POST", &format!("/job-runs/{told}/cancel"), &note)?.expect(200)?;
    endpoint.wait_for_hang_up("told")?;
    // Cancelled behind the runner's back: it learns that from the answer to its own end.
    let sql = format!("select jobs.cancel_run(tenancy.current_tenant_id(), '{untold}', null, 'me')");
    assert_eq!(ask::<String>(&operators.app, operators.tenant, sql).await?, "cancelled");
    assert!(operators.is_free("untold").await?, "the key is free before the answer");
    let again = operators.invoke(&server, "untold", &Value::Null)?;
    endpoint.release("untold");
    server.process.wait_for_line("the end of a run came too late")?;

    for run in [told, untold] {
        let run = operators.ends(run, "cancelled").await?;
        assert_eq!((run.result.clone(), run.claims, run.is_held), (None, 1, false), "{run:?}");
        assert!(operators.letters(run.id).await?.is_empty());
    }
    // The one that took its place is another, and has an answer of its own.
    let again = operators.ends(again, "completed").await?;
    assert_eq!((again.result, again.claims), (Some(json!({ "late": true })), 1));
    assert_eq!(endpoint.asked("untold").len(), 2);
    Ok(())
}
