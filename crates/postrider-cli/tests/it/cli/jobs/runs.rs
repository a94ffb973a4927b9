//! Runs: invoked, failed, mended, run again, given up.

use insta::assert_snapshot;
use serde_json::{Value, json};

use super::{
    super::{
        assert_refused,
        channels::by_ada,
        stage::{Stage, redacted},
        succeeded,
    },
    id, timeless,
};
use crate::{sql, world::Server};

#[tokio::test]
async fn a_function_is_invoked_and_what_fails_is_mended_and_run_again() -> anyhow::Result<()> {
    let stage = Stage::new(0).await?;
    let _server = Server::start(&stage.world, "scheduler", "[jobs]\nsql_schemas = ['public']\n")?;
    let noop = ["invoke", "noop", "--input", r#"{"a": [1, "ü"]}"#];
    let done = succeeded(stage.jobs(&noop)?)?;
    assert_eq!(serde_json::from_str::<Value>(&done.stdout)?, json!({ "a": [1, "ü"] }));

    // Once per grain, for the same entities.
    stage.put_daily().await?;
    succeeded(stage.jobs(&["invoke", "daily"])?)?;
    let again = stage.jobs(&["invoke", "daily"])?;
    assert_refused(&again, "`daily` completed in this grain (day), as job_run_");
    assert!(again.stderr.contains("shows its result, --force runs it once more"), "{}", again.stderr);
    let of_one = stage.jobs_json(&["invoke", "daily", "--entities", r#"{"rule_id": "r1"}"#])?;
    assert_eq!((&of_one["status"], &of_one["is_forced"]), (&json!("completed"), &json!(false)));
    let forced = stage.jobs_json(&["invoke", "daily", "--force"])?;
    assert_eq!(forced["is_forced"], true);
    assert_eq!(
        stage.audited(&format!("job_run:{}", id(&forced["id"]))).await?,
        by_ada(&["run.forced"]),
        "{forced}"
    );

    stage
        .sql_function("rebuild", "raise exception 'no such\u{1b}[2J month' using errcode = 'PR400';")
        .await?;
    let put = ["function", "put", "rebuild", "--sql", "public.rebuild", "--max-retries", "0"];
    assert_snapshot!(stage.told(&put)?, @"`rebuild` is new; `postrider jobs invoke rebuild --tenant acme` runs it");
    let refused = stage.jobs(&["invoke", "rebuild", "--input", "null"])?;
    assert_refused(&refused, "failed for good as sync_error_");
    assert_snapshot!(redacted(&refused.stderr), @"error: job_run_[id] failed for good as sync_error_[id]: public.rebuild: no such�[2J month; fix the cause, then `postrider jobs retry job_run_[id] --tenant acme` runs it again");
    assert_snapshot!(stage.told(&["errors"])?, @r"
    ERROR FUNCTION CODE RETRIES SINCE MESSAGE RESOLVED
    sync_error_[id] rebuild EXECUTION_ERROR 0 [date] [time] public.rebuild: no such�[2J month -
    `postrider jobs retry ERROR` runs its function again, `postrider jobs resolve ERROR --note …` closes it without a retry
    ");
    let letter = id(&stage.jobs_json(&["errors"])?[0]["id"]);
    let failed = &stage.jobs_json(&["list", "--status", "failed"])?[0];
    let run = id(&failed["id"]);
    assert_snapshot!(timeless(&stage.told(&["show", &run])?, failed), @r"
    job_run_[id] rebuild, failed
    │ invoked [date] [time], last attempt [date] [time], took [n] s, retried never
    │ lock key rebuild:[id]:[grain]
    │ once per day, this one from [date] [time]
    │ input null
    │ for good: public.rebuild: no such�[2J month
    └─ sync_error_[id] EXECUTION_ERROR, [date] [time]
    public.rebuild: no such�[2J month
    ");

    stage.sql_function("rebuild", "return jsonb_build_object('rebuilt', p_input);").await?;
    assert_snapshot!(stage.told(&["retry", &format!("sync_error_{letter}")])?, @"job_run_[id] runs again; `postrider jobs show job_run_[id] --tenant acme` shows its progress");
    crate::world::eventually("the run is completed", async || {
        Ok(stage.jobs_json(&["show", &run])?["run"]["status"] == "completed")
    })
    .await?;
    assert_snapshot!(timeless(&stage.told(&["show", &run])?, failed), @r#"
    job_run_[id] rebuild, completed
    │ invoked [date] [time], last attempt [date] [time], took [n] s, retried once
    │ lock key rebuild:[id]:[grain]
    │ once per day, this one from [date] [time]
    │ input null
    │ result {"rebuilt":null}
    └─ sync_error_[id] EXECUTION_ERROR, [date] [time]
    public.rebuild: no such�[2J month
    resolved [date] [time] by postrider: a later attempt completed the run
    log
    [date] [time] run.retried by cli:ada: rebuild:[id]:[grain]
    "#);
    assert_snapshot!(stage.told(&["errors", "--all"])?, @r"
    ERROR FUNCTION CODE RETRIES SINCE MESSAGE RESOLVED
    sync_error_[id] rebuild EXECUTION_ERROR 0 [date] [time] public.rebuild: no such�[2J month by postrider: a later attempt completed the run
    ");
    assert_refused(&stage.jobs(&["retry", &run])?, "is completed, and only a failed run can be retried");
    assert_refused(&stage.jobs(&["cancel", &run])?, "is completed, and a completed run cannot be cancelled");
    let listed = stage.told(&["list", "--function", "rebuild"])?;
    assert_snapshot!(timeless(&listed, failed), @r#"
    RUN FUNCTION STATUS GRAIN INVOKED TOOK RETRIES HOW IT STANDS
    job_run_[id] rebuild completed [date] [date] [time] [n] s 1 {"rebuilt":null}
    "#);
    let health = stage.jobs_json(&["health"])?;
    assert_eq!(health["functions"][2]["retried_count"], json!(1), "{health}");
    assert_eq!(health["thresholds"][2]["is_exceeded"], json!(true), "{health}");
    Ok(())
}

#[tokio::test]
async fn a_job_run_that_no_runner_claims_is_reported_and_can_be_cancelled() -> anyhow::Result<()> {
    let stage = Stage::new(0).await?;
    stage.put_daily().await?;
    let waited = stage.jobs(&["invoke", "daily", "--wait", "1"])?;
    assert_eq!(waited.code, 2, "{}", waited.stderr);
    let run = waited.stdout.trim();
    assert_snapshot!(redacted(&waited.stderr), @r"
    no runner has claimed the run yet: is a process with the role scheduler running?
    job_run_[id] has not ended and continues; `postrider jobs show job_run_[id] --tenant acme` shows its progress
    ");
    let taken = stage.jobs(&["invoke", "daily", "--force"])?;
    assert_refused(
        &taken,
        &format!("`daily` is running already, as job_run_{run}; wait for it, `postrider jobs show"),
    );
    assert_refused(&stage.jobs(&["retry", run])?, "is running, and only a failed run can be retried");
    assert_snapshot!(stage.told(&["list"])?, @r"
    RUN FUNCTION STATUS GRAIN INVOKED TOOK RETRIES HOW IT STANDS
    job_run_[id] daily running [date] [date] [time] - 0 waits for a runner
    ");
    assert_snapshot!(stage.told(&["health"])?, @r"
    FUNCTION STATUS COUNT AVG DURATION MAX DURATION RETRIED
    daily running 1 - - 0

    WHAT NOW ALERT OVER
    failed in 24 hours 0 5 ok
    running for too long 0 0, after 30 min ok
    retried in 24 hours 0.0 % 10 % ok
    ");

    let mut listener = sqlx::postgres::PgListener::connect(&stage.world.admin_url()).await?;
    listener.listen_all(["postrider_job_runs", "postrider_job_cancels"]).await?;
    assert_snapshot!(stage.told(&["cancel", run, "--note", "a mistake"])?, @"job_run_[id] is cancelled; its lock key is free");
    succeeded(stage.jobs(&["cancel", run])?)?;
    for _ in 0..2 {
        let hint = tokio::time::timeout(crate::world::PATIENCE, listener.recv()).await??;
        assert_eq!(hint.channel(), "postrider_job_cancels");
    }
    assert_eq!(stage.audited(&format!("job_run:{run}")).await?, by_ada(&["run.cancelled"]));
    assert_refused(
        &stage.jobs(&["retry", run])?,
        "is cancelled, and only a failed run can be retried; that is final",
    );

    let next = succeeded(stage.jobs(&["invoke", "daily", "--wait", "0"])?)?;
    let hint = tokio::time::timeout(crate::world::PATIENCE, listener.recv()).await??;
    assert_eq!(hint.channel(), "postrider_job_runs");
    // It failed, and waits for its retry.
    let wait = format!(
        "update jobs.job_runs set status = 'failed', completed_at = now(), error_message = 'no', retry_at = now() + interval '1 hour'
          where id = '{}'",
        next.stdout.trim()
    );
    sql::execute(&stage.admin, wait).await?;
    let pending = stage.jobs(&["invoke", "daily"])?;
    assert_refused(
        &pending,
        "and waits for its retry; wait for it, or retry at once with `postrider jobs retry job_run_",
    );
    assert_snapshot!(stage.told(&["retry", next.stdout.trim()])?, @"job_run_[id] runs again; `postrider jobs show job_run_[id] --tenant acme` shows its progress");
    Ok(())
}
