//! How jobs are doing.

use serde_json::json;

use super::{begin, end_all, noop};
use crate::{api::Stage, sql::execute};

#[tokio::test]
async fn health_counts_the_last_day_and_says_which_thresholds_are_crossed() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let health = |key: &str| stage.get(key, "/jobs/health")?.expect(200);
    let fine = json!({
        "failed_24h": { "value": 0.0, "threshold": 5.0, "crossed": false },
        "long_running": { "value": 0.0, "threshold": 0.0, "crossed": false },
        "retry_rate": { "value": 0.0, "threshold": 0.1, "crossed": false },
    });
    assert_eq!(health(&stage.acme.viewer)?, json!({ "functions": [], "alerts": fine }));

    noop(&stage, "a", &json!({ "retry": { "max_retries": 0 } }))?;
    for _ in 0..6 {
        begin(&stage, "a")?;
        end_all(&stage, &Err(("broken".to_owned(), true))).await?;
    }
    let run = begin(&stage, "a")?;
    end_all(&stage, &Err(("broken".to_owned(), true))).await?;
    stage.call("POST", &format!("/job-runs/{run}/retry")).key(&stage.acme.operator).send()?.expect(200)?;
    execute(
        &stage.admin,
        "update jobs.job_runs set started_at = now() - interval '31 minutes' where status = 'running'",
    )
    .await?;
    let now = health(&stage.acme.viewer)?;
    let alerts = &now["alerts"];
    for (name, value) in [("failed_24h", 6.0), ("long_running", 1.0), ("retry_rate", 1.0 / 7.0)] {
        assert_eq!(
            (&alerts[name]["value"], &alerts[name]["crossed"]),
            (&json!(value), &json!(true)),
            "{alerts}"
        );
    }
    let row = |at: usize, member: &str| now["functions"][at][member].clone();
    assert_eq!(
        (row(0, "function_name"), row(0, "status"), row(0, "count")),
        (json!("a"), json!("failed"), json!(6))
    );
    assert_eq!((row(1, "status"), row(1, "retried_count")), (json!("running"), json!(1)));
    assert!(row(0, "avg_duration_ms").is_number() && row(1, "max_duration_ms").is_null(), "{now}");

    let other = stage.tenant("other").await?;
    assert_eq!(health(&other.viewer)?, json!({ "functions": [], "alerts": fine }));
    Ok(())
}
