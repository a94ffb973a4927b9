//! How an attempt ends: completed, failed until its next try, or failed for good with a letter to people.

use serde_json::{Value, json};
use uuid::Uuid;

use super::stage::{Capacity, Claimed, End, Stage, claim, ends};
use crate::sql::{execute, number, texts};

/// Claims the one run there is, although its next try is not yet due.
async fn again(stage: &Stage) -> anyhow::Result<Claimed> {
    execute(&stage.admin, "update jobs.job_runs set retry_at = now() where retry_at is not null").await?;
    Ok(claim(&stage.worker, "w", &Capacity::of(1)).await?.remove(0))
}

/// The open letters, as JSON.
async fn letters(stage: &Stage) -> anyhow::Result<Vec<Value>> {
    let open =
        "select to_jsonb(error)::text from jobs.sync_errors as error where not is_resolved order by id";
    texts(&stage.admin, open).await?.iter().map(|text| Ok(serde_json::from_str(text)?)).collect()
}

const PAUSE_MS: &str = "round(extract(epoch from retry_at - completed_at) * 1000)::integer";

#[tokio::test(flavor = "multi_thread")]
async fn a_run_is_tried_again_after_1_5_and_25_seconds_and_then_given_up() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let mut held = stage.held(stage.own, "f").await?;
    let row = format!(
        "concat_ws(' ', status, retry_count, claims, error_message, {PAUSE_MS}, locked_by, heartbeat_at)"
    );
    for (retries, pause_ms) in [(0, 1000), (1, 5000), (2, 25000)] {
        assert_eq!(held.retry_count, retries);
        assert_eq!(ends(&stage.worker, "w", &[(&held, End::Failed)]).await?, ["failed again"]);
        assert_eq!(
            stage.look_at_run(&row, held.id).await?,
            format!("failed {retries} {} it failed {pause_ms}", retries + 1)
        );
        assert_eq!(letters(&stage).await?, [Value::Null; 0]);
        // Not before its time.
        assert_eq!(claim(&stage.worker, "w", &Capacity::of(1)).await?, []);
        held = again(&stage).await?;
    }
    assert_eq!(ends(&stage.worker, "w", &[(&held, End::Failed)]).await?, ["failed"]);
    assert_eq!(stage.look_at_run(&row, held.id).await?, "failed 3 4 it failed");
    let [letter] = &letters(&stage).await?[..] else { anyhow::bail!("not one letter") };
    let ended = "to_char(completed_at at time zone 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.MS\"Z\"')";
    let expected = json!({
        "tenant_id": stage.own,
        "error_type": "job_failure",
        "error_code": "MAX_RETRIES_EXCEEDED",
        "error_message": "it failed",
        "error_details": {
            "function_name": "f",
            "lock_key": stage.look_at_run("lock_key", held.id).await?,
            "input_params": { "a": 1 },
            "retry_count": 3,
            "last_attempt_at": stage.look_at_run(ended, held.id).await?,
        },
        "source_entity_type": "job_run",
        "source_entity_id": held.id,
        "is_resolved": false,
        "resolved_at": null,
        "resolved_by": null,
        "resolution_note": null,
        "id": letter["id"],
        "created_at": letter["created_at"],
        "updated_at": letter["updated_at"],
    });
    assert_eq!(*letter, expected);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failure_that_would_come_again_is_given_up_at_once() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    stage.function(stage.own, "another").await?;
    let held = stage.held(stage.own, "f").await?;
    assert_eq!(ends(&stage.worker, "w", &[(&held, End::Refused)]).await?, ["failed"]);
    let [letter] = &letters(&stage).await?[..] else { anyhow::bail!("not one letter") };
    assert_eq!(letter["error_code"], "EXECUTION_ERROR");
    assert_eq!(letter["error_message"], "it never will");
    assert_eq!(letter["error_details"]["retry_count"], 0);
    assert_eq!(letter["error_details"]["input_params"], json!({ "a": 1 }));

    // A letter about another run is not touched by what follows.
    let another = stage.ended(stage.own, "another", End::Refused).await?;
    let letters = async || -> anyhow::Result<Vec<Value>> {
        let (other, open) = letters(&stage)
            .await?
            .into_iter()
            .partition(|letter| letter["source_entity_id"] == another.to_string());
        let other: Vec<Value> = other;
        anyhow::ensure!(other.len() == 1);
        Ok(open)
    };
    // A person tries it again: the same letter says what became of it, until the run completes.
    for word in ["failed", "completed"] {
        let retry =
            format!("select outcome from jobs.retry_run(tenancy.current_tenant_id(), '{}', 'me')", held.id);
        assert_eq!(stage.ask::<String>(stage.own, retry).await?, "retried");
        let held = claim(&stage.worker, "w", &Capacity::of(1)).await?.remove(0);
        if word == "failed" {
            assert_eq!(letters().await?.len(), 1, "it is not closed by trying");
            ends(&stage.worker, "w", &[(&held, End::Refused)]).await?;
            let [again] = &letters().await?[..] else { anyhow::bail!("not one letter") };
            assert_eq!((&again["id"], &again["error_details"]["retry_count"]), (&letter["id"], &json!(1)));
        } else {
            assert_eq!(ends(&stage.worker, "w", &[(&held, End::Done)]).await?, [word]);
        }
    }
    let closed = "select concat_ws(' ', is_resolved, resolved_by, resolution_note) from jobs.sync_errors where is_resolved";
    assert_eq!(texts(&stage.admin, closed).await?, ["t postrider a later attempt completed the run"]);
    // A later final failure makes a new dead letter.
    stage.function(stage.own, "g").await?;
    stage.ended(stage.own, "g", End::Refused).await?;
    assert_eq!(number(&stage.admin, "select count(*) from jobs.sync_errors").await?, 3);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn each_function_has_its_own_policy_and_its_longest_pause() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let other = stage.another("other").await?;
    for (name, columns, values, pauses) in [
        ("capped", "max_retries, max_delay_ms", "4, 7000", &[1000, 5000, 7000, 7000][..]),
        ("flat", "max_retries, initial_delay_ms, backoff_multiplier", "2, 250, 1", &[250, 250]),
        ("never", "max_retries", "0", &[]),
        ("at-once", "max_retries, initial_delay_ms", "1, 0", &[0]),
        ("half", "max_retries, initial_delay_ms, backoff_multiplier", "3, 100, 1.5", &[100, 150, 225]),
        // After a hundred tries it is still the longest pause, and no number too large.
        (
            "long",
            "max_retries, backoff_multiplier, initial_delay_ms",
            "3, 100, 86400000",
            &[30000, 30000, 30000],
        ),
    ] {
        stage.function_with(stage.own, name, columns, values).await?;
        // Another tenant's function of this name is very patient.
        let patient = "100, 86400000, 100, 86400000";
        let columns = "max_retries, initial_delay_ms, backoff_multiplier, max_delay_ms";
        stage.function_with(other, name, columns, patient).await?;
        let mut held = stage.held(stage.own, name).await?;
        for pause in pauses {
            assert_eq!(ends(&stage.worker, "w", &[(&held, End::Failed)]).await?, ["failed again"], "{name}");
            assert_eq!(stage.look_at_run(PAUSE_MS, held.id).await?, pause.to_string(), "{name}");
            held = again(&stage).await?;
        }
        assert_eq!(ends(&stage.worker, "w", &[(&held, End::Failed)]).await?, ["failed"], "{name}");
    }
    // A function that is gone has the policy that functions have.
    stage.function_with(stage.own, "gone", "max_retries", "0").await?;
    let held = stage.held(stage.own, "gone").await?;
    stage
        .ask::<bool>(stage.own, "select jobs.remove_function(tenancy.current_tenant_id(), 'gone', 'me')")
        .await?;
    assert_eq!(ends(&stage.worker, "w", &[(&held, End::Failed)]).await?, ["failed again"]);
    assert_eq!(stage.look_at_run(PAUSE_MS, held.id).await?, "1000");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_completed_run_has_its_result_and_its_duration_and_no_error() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let held = stage.held(stage.own, "f").await?;
    ends(&stage.worker, "w", &[(&held, End::Failed)]).await?;
    let held = again(&stage).await?;
    execute(&stage.admin, "update jobs.job_runs set started_at = now() - interval '1500 milliseconds'")
        .await?;
    assert_eq!(stage.look_at_run("concat_ws(' ', error_message, duration_ms)", held.id).await?, "it failed");
    assert_eq!(ends(&stage.worker, "w", &[(&held, End::Done)]).await?, ["completed"]);
    let row = "concat_ws(' ', status, result, error_message, locked_by, heartbeat_at, retry_at, completed_at <= now(),
                         duration_ms between 1500 and 60000, retry_count)";
    assert_eq!(stage.look_at_run(row, held.id).await?, "completed {\"sum\": 3} t t 1");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_newest_claim_of_the_holder_ends_a_run() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    for name in ["g", "h"] {
        stage.function(stage.own, name).await?;
    }
    let old = stage.held(stage.own, "f").await?;
    execute(&stage.admin, "update jobs.job_runs set heartbeat_at = now() - interval '1 day'").await?;
    assert_eq!(
        number(
            &stage.worker,
            "select count(*) from jobs.tenants_with_stale_runs('1 minute') as stale
                 cross join lateral jobs.recover_runs(stale.tenant_id, '1 minute')"
        )
        .await?,
        1
    );
    let late = [(&old, End::Done), (&old, End::Failed), (&old, End::Refused)];
    let fenced = async |worker: &str, run: &Claimed| -> anyhow::Result<()> {
        let before = stage.everything().await?;
        for (_, end) in late {
            assert_eq!(
                ends(&stage.worker, worker, &[(run, end)]).await?,
                [""; 0],
                "{worker} {run:?} {end:?}"
            );
        }
        assert_eq!(stage.everything().await?, before, "{worker} {run:?}");
        Ok(())
    };
    // It waits for its retry; then the same runner has it under a newer claim, and another one holds it not at all.
    fenced("w", &old).await?;
    let new = again(&stage).await?;
    fenced("w", &old).await?;
    fenced("v", &new).await?;
    fenced("w", &Claimed { id: Uuid::now_v7(), ..new.clone() }).await?;
    // Of several, those that are held are ended.
    let other = stage.held(stage.own, "g").await?;
    assert_eq!(
        ends(&stage.worker, "w", &[(&old, End::Refused), (&other, End::Done), (&new, End::Failed)]).await?,
        ["failed again", "completed"]
    );
    fenced("w", &new).await?;
    fenced("w", &other).await?;
    let cancelled = stage.held(stage.own, "h").await?;
    stage
        .ask::<String>(
            stage.own,
            format!("select jobs.cancel_run(tenancy.current_tenant_id(), '{}', null, 'me')", cancelled.id),
        )
        .await?;
    fenced("w", &cancelled).await
}
