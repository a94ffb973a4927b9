//! Runs: listing, retrying and cancelling them.

use serde_json::{Value, json};

use super::{begin, end_all, invocation, noop};
use crate::{
    api::{
        Stage,
        material::{assert_same_404, column, walk},
    },
    sql::execute,
};

fn post(stage: &Stage, path: &str) -> anyhow::Result<crate::api::Reply> {
    stage.call("POST", path).key(&stage.acme.operator).send()
}

#[tokio::test]
async fn runs_are_listed_by_function_state_and_schedule() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    noop(&stage, "a", &json!({}))?;
    noop(&stage, "b", &json!({}))?;
    let first = begin(&stage, "a")?;
    end_all(&stage, &Ok(json!([1]))).await?;
    let second = begin(&stage, "b")?;
    let schedule =
        stage.post(&stage.acme.operator, "/schedules", &json!({ "function_name": "a", "cron": "@daily" }))?;
    let schedule = schedule.expect(201)?["id"].as_str().unwrap_or_default().to_owned();
    let third = uuid::Uuid::now_v7().to_string();
    execute(
        &stage.admin,
        format!(
            "update jobs.schedules set next_fire_at = now() - interval '1 second';
             select jobs.fire_schedule(tenant_id, id, next_fire_at, version, array[now() - interval '2 days'], array['{third}'::uuid],
                                       null, null, now() + interval '1 day')
               from jobs.schedules;"
        ),
    )
    .await?;
    let list = |query: &str| {
        let listed = walk(&stage, &stage.acme.viewer, &format!("/job-runs{query}"), 1, |_| Ok(()))?;
        anyhow::Ok(column(&listed, "id"))
    };
    assert_eq!(list("")?, [third.clone(), second.clone(), first.clone()]);
    assert_eq!(list("?function=a")?, [third.clone(), first.clone()]);
    assert_eq!(list("?status=running")?, [third.clone(), second]);
    assert_eq!(list("?function=a&status=failed")?, Vec::<String>::new());
    assert_eq!(list(&format!("?schedule_id={schedule}"))?, [third]);
    for query in ["status=done", "schedule_id=x", "limit=0", "cursor=x", "name=a"] {
        let field = stage.get(&stage.acme.viewer, &format!("/job-runs?{query}"))?.field(400)?;
        assert_eq!(Some(field.as_str()), query.split('=').next());
    }
    let run = stage.get(&stage.acme.viewer, &format!("/job-runs/{first}"))?.expect(200)?;
    for (member, expected) in [
        ("function_name", json!("a")),
        ("status", json!("completed")),
        ("result", json!([1])),
        ("retry_count", json!(0)),
        ("grain", json!("day")),
        ("is_forced", json!(false)),
        ("locked_by", Value::Null),
        ("schedule_id", Value::Null),
    ] {
        assert_eq!(run[member], expected, "{member}");
    }
    Ok(())
}

#[tokio::test]
async fn only_what_failed_is_retried_and_only_where_its_key_is_free() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    noop(&stage, "sync", &json!({ "retry": { "max_retries": 0 } }))?;
    let run = begin(&stage, "sync")?;
    let retry = format!("/job-runs/{run}/retry");
    let refused = |state: &str, words: &str| {
        let problem = post(&stage, &retry)?.problem(409)?;
        assert_eq!(problem["current_state"], state, "{problem}");
        assert!(problem["detail"].as_str().unwrap_or_default().contains(words), "{problem}");
        anyhow::Ok(problem)
    };
    refused("running", "running already")?;
    end_all(&stage, &Err(("broken".to_owned(), true))).await?;
    let keyed = || stage.call("POST", &retry).key(&stage.acme.operator).idempotency_key("k").send();
    let again = keyed()?.expect(200)?;
    assert_eq!((&again["status"], &again["retry_count"]), (&json!("running"), &json!(1)));
    let replay = keyed()?;
    assert_eq!((replay.header("idempotent-replayed"), replay.expect(200)?), (Some("true"), again));
    end_all(&stage, &Err(("broken".to_owned(), true))).await?;
    // Another run takes the key, which the failed one has let go of.
    let other = begin(&stage, "sync")?;
    let problem = refused("failed", "another run has the lock key")?;
    assert_eq!(problem["existing_job_id"], json!(other));
    end_all(&stage, &Ok(json!(null))).await?;
    assert_eq!(refused("failed", "another run")?["existing_job_id"], json!(other));
    let problem = post(&stage, &format!("/job-runs/{other}/retry"))?.problem(409)?;
    assert_eq!(problem["current_state"], "completed");
    assert!(problem["detail"].as_str().is_some_and(|words| words.contains("with `force`")), "{problem}");
    Ok(())
}

#[tokio::test]
async fn an_unfinished_job_run_is_cancelled_once_and_for_ever() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    noop(&stage, "sync", &json!({ "retry": { "max_retries": 0 } }))?;
    let run = begin(&stage, "sync")?;
    let cancel = |run: &str, note: &str| {
        stage.post(&stage.acme.operator, &format!("/job-runs/{run}/cancel"), &json!({ "note": note }))
    };
    let cancelled = cancel(&run, "too late")?.expect(200)?;
    assert_eq!(cancelled["status"], "cancelled");
    assert!(
        cancelled["error_message"].as_str().is_some_and(|words| words.ends_with(": too late")),
        "{cancelled}"
    );
    // Once more, also without a word, is the same.
    assert_eq!(cancel(&run, "again")?.expect(200)?, cancelled);
    assert_eq!(post(&stage, &format!("/job-runs/{run}/cancel"))?.expect(200)?, cancelled);
    assert_eq!(post(&stage, &format!("/job-runs/{run}/retry"))?.problem(409)?["current_state"], "cancelled");
    assert_eq!(
        stage.count("select count(*) from tenancy.audit_log where action = 'run.cancelled'").await?,
        1
    );

    let failed = begin(&stage, "sync")?;
    end_all(&stage, &Err(("broken".to_owned(), false))).await?;
    let given_up = cancel(&failed, "")?.expect(200)?;
    assert_eq!((&given_up["status"], &given_up["error_message"]), (&json!("cancelled"), &json!("broken")));
    let done = begin(&stage, "sync")?;
    end_all(&stage, &Ok(json!(null))).await?;
    let problem = cancel(&done, "")?.problem(409)?;
    assert_eq!(problem["current_state"], "completed");
    assert_eq!(cancel(&done, &"x".repeat(2001))?.field(422)?, "note");
    let unknown =
        stage.post(&stage.acme.operator, &format!("/job-runs/{done}/cancel"), &json!({ "why": "x" }))?;
    assert_eq!(unknown.field(400)?, "why");
    stage.call("POST", &format!("/job-runs/{done}/cancel")).key(&stage.acme.viewer).send()?.problem(403)?;

    let other = stage.tenant("other").await?;
    let theirs = invocation(&stage, &other, "noop/invoke?wait=0", &json!({})).send()?.expect(202)?;
    let calls = [
        ("GET", "/job-runs/{id}", Value::Null),
        ("POST", "/job-runs/{id}/retry", Value::Null),
        ("POST", "/job-runs/{id}/cancel", json!({ "note": "mine" })),
    ];
    assert_same_404(&stage, &stage.acme.admin, &calls, theirs["job_id"].as_str().unwrap_or_default())
}
