//! No tenant reads another's rows, and without one there is nothing to read.

use uuid::Uuid;

use super::{
    firing::{fire, schedule},
    stage::{End, Stage, ask},
};
use crate::sql::{number, texts};

/// Tables and the view, of which each has rows.
const READABLE: [&str; 9] = [
    "functions",
    "schedules",
    "job_runs",
    "schedule_firings",
    "sync_errors",
    "alert_instances",
    "decision_cards",
    "alert_notifications",
    "job_health",
];

#[tokio::test(flavor = "multi_thread")]
async fn a_tenant_sees_nothing_of_anothers_jobs() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let (own, other) = (stage.own, stage.another("other").await?);
    stage.ended(own, "f", End::Refused).await?;
    let id = schedule(&stage, "f", &[]).await?;
    fire(&stage.worker, &stage, id).await?;
    stage.ask::<Uuid>(own, "select jobs.raise_alert('a', null, 't')").await?;
    stage.ask_as_worker::<i32>(own, "select opened from jobs.generate_decision_cards()").await?;
    stage
        .ask_as_worker::<i32>(own, "select jobs.plan_notifications(array[gen_random_uuid()], '{ann}')")
        .await?;
    let all = "select relname::text from pg_class where relnamespace = 'jobs'::regnamespace and relkind in ('r', 'v') order by 1";
    let mut readable = READABLE;
    readable.sort_unstable();
    assert_eq!(texts(&stage.admin, all).await?, readable);
    let reader = stage.world.client("postrider_read").await?;
    for table in READABLE {
        let count = format!("select count(*) from jobs.{table}");
        // Both have the function `f`; the rest is the first one's.
        let theirs = i64::from(table == "functions");
        for client in [&stage.app, &stage.worker, &reader] {
            assert!(ask::<i64>(client, own, &count).await? >= 1, "{table}");
            assert_eq!(ask::<i64>(client, other, &count).await?, theirs, "{table}");
            assert_eq!(number(client, &count).await?, 0, "{table}");
        }
    }
    Ok(())
}
