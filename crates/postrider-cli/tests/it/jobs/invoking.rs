//! Many who invoke at once, in many processes, and what each of them is told.

use std::collections::BTreeMap;

use anyhow::Context;
use serde_json::{Value, json};
use uuid::Uuid;

use super::{
    endpoint::{Does, Endpoint, JSON},
    operators::{Operators, soon},
};
use crate::{
    api::client::Reply,
    sql::texts,
    world::{Server, Sim},
};

const PROCESSES: usize = 4;
const INVOKERS: usize = 64;

impl Operators {
    fn invocation(&self, server: &Server, name: &str, query: &str, body: &Value) -> anyhow::Result<Reply> {
        self.call(server, "POST", &format!("/functions/{name}/invoke{query}"), body)
    }
}

fn id(answer: &Value, member: &str) -> anyhow::Result<Uuid> {
    Ok(answer[member].as_str().with_context(|| answer.to_string())?.parse()?)
}

#[tokio::test(flavor = "multi_thread")]
async fn of_64_invokers_in_four_processes_one_runs_and_the_others_are_told_which() -> anyhow::Result<()> {
    let (operators, sim, endpoint) = (Operators::new().await?, Sim::start(&[])?, Endpoint::start()?);
    let doors = (0..PROCESSES).map(|_| operators.serve("api", "")).collect::<anyhow::Result<Vec<_>>>()?;
    let runner = operators.serve("scheduler", "")?;
    operators.put(
        &doors[0],
        "sync",
        &json!({ "target": { "http": format!("{}/functions/sync", sim.http_url) } }),
    )?;

    let start = std::sync::Barrier::new(INVOKERS);
    let body =
        json!({ "input": { "sim_answer": [1, 2] }, "entities": { "sku": "SKU001", "rule_id": "r123" } });
    let answers: Vec<Value> = std::thread::scope(|scope| {
        let invoking: Vec<_> = (0..INVOKERS)
            .map(|n| {
                let (operators, door, start, body) =
                    (&operators, &*doors[n % PROCESSES].http_url, &start, &body);
                scope.spawn(move || {
                    start.wait();
                    let reply = operators.call_at(door, "POST", "/functions/sync/invoke", body)?;
                    let mut answer = reply.json()?;
                    answer["status"] = json!(reply.status);
                    anyhow::Ok(answer)
                })
            })
            .collect();
        invoking.into_iter().map(|invoking| invoking.join().unwrap()).collect::<anyhow::Result<_>>()
    })?;
    let runs =
        texts(&operators.admin, "select concat_ws(' ', id, status, claims, retry_count) from jobs.job_runs")
            .await?;
    let (won, lost): (Vec<_>, Vec<_>) = answers.iter().partition(|answer| answer["status"] == 200);
    assert_eq!((won.len(), lost.len(), runs.len()), (1, INVOKERS - 1, 1), "{answers:?}");
    let run = id(won[0], "job_id")?;
    assert_eq!(runs, [format!("{run} completed 1 0")]);
    assert_eq!((&won[0]["success"], &won[0]["result"]), (&json!(true), &json!([1, 2])));
    let mut reasons = BTreeMap::<String, usize>::new();
    for answer in lost {
        assert_eq!((&answer["status"], &answer["success"]), (&json!(409), &json!(false)), "{answer}");
        assert_eq!(id(answer, "existing_job_id")?, run, "{answer}");
        *reasons.entry(answer["current_state"].to_string()).or_default() += 1;
    }
    assert!(
        reasons.keys().all(|state| ["\"running\"", "\"completed\""].contains(&state.as_str())),
        "{reasons:?}"
    );
    let receipts = sim.receipts()?;
    assert_eq!((receipts.len(), &receipts[0]["key"]), (1, &json!(run)), "{receipts:?}");

    // Once more on purpose, through another process; with an audit entry, and under an id of its own.
    let forced = json!({ "force": true, "entities": body["entities"], "input": body["input"] });
    let answer = operators.invocation(&doors[1], "sync", "", &forced)?.expect(200)?;
    let again = id(&answer, "job_id")?;
    assert!(again != run && sim.receipts()?.len() == 2, "{answer}");
    let log =
        texts(&operators.admin, "select subject from tenancy.audit_log where action = 'run.forced'").await?;
    assert_eq!(log, [format!("job_run:{again}")]);

    // A caller that does not want to wait reads the job run later; `force` changes nothing while a job run is active.
    let url = endpoint.at("slow", Does::Holds);
    operators.put(&doors[2], "slow", &json!({ "target": { "http": url } }))?;
    let answer = operators.invocation(&doors[2], "slow", "?wait=1", &Value::Null)?.expect(202)?;
    assert_eq!((&answer["success"], &answer["status"]), (&json!(true), &json!("running")), "{answer}");
    let slow = id(&answer, "job_id")?;
    let busy = operators.invocation(&doors[3], "slow", "?force=true", &Value::Null)?.problem(409)?;
    assert_eq!((id(&busy, "existing_job_id")?, &busy["success"]), (slow, &json!(false)), "{busy}");
    endpoint.release("slow");
    operators.ends(slow, "completed").await?;
    let shown = operators.call(&doors[3], "GET", &format!("/job-runs/{slow}"), &Value::Null)?.expect(200)?;
    assert_eq!(
        (&shown["status"], &shown["result"]),
        (&json!("completed"), &json!({ "late": true })),
        "{shown}"
    );

    // Retries are waited for; what failed for good says so, and the next invocation is a new run.
    let url = endpoint.at("down", Does::Answers(500, JSON, r#"{"error": "out of order"}"#.to_owned()));
    operators.put(&doors[0], "down", &json!({ "target": { "http": url }, "retry": soon(2) }))?;
    for _ in 0..2 {
        let before = endpoint.asked("down").len();
        let failed = operators.invocation(&doors[0], "down", "", &Value::Null)?.problem(500)?;
        assert_eq!(failed["success"], false, "{failed}");
        assert!(failed["error"].as_str().is_some_and(|error| error.contains("out of order")), "{failed}");
        let run = operators.run(id(&failed, "job_id")?).await?;
        assert_eq!((run.status.as_str(), run.retry_count, run.waits), ("failed", 2, false), "{run:?}");
        assert_eq!(endpoint.asked("down").len() - before, 3);
    }
    drop(runner);
    Ok(())
}
