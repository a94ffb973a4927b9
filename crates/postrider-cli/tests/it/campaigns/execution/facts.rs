//! Facts are facts, ends are final, and nothing is ever removed; even against the superuser.

use sqlx::PgPool;

use super::{Stage, claim, reserve_all, states::Place};
use crate::sql::{execute, refusal, texts};

/// The columns that may change before the end; all others are facts.
const CHANGING: &[(&str, &[&str])] = &[
    ("campaign_runs", &["status", "started_at", "finished_at"]),
    (
        "job_queue",
        &[
            "status",
            "outcome",
            "attempts",
            "run_after",
            "locked_by",
            "locked_at",
            "last_error",
            "succeeded",
            "failed",
            "skipped",
            "finished_at",
            "waits_for",
            "account_version",
            "failover_version",
        ],
    ),
    (
        "channel_outbox",
        &["status", "skipped", "provider_message_id", "error", "finalized_at", "in_doubt_since"],
    ),
];

async fn columns(admin: &PgPool, table: &str) -> Result<Vec<String>, sqlx::Error> {
    let sql = format!(
        "select attname::text from pg_attribute \
          where attrelid = 'execution.{table}'::regclass and attnum > 0 and not attisdropped"
    );
    texts(admin, sql).await
}

#[tokio::test(flavor = "multi_thread")]
async fn deployed_runs_send_jobs_and_reservations_never_change() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let job = stage.job("w", 1).await?;
    reserve_all(&stage.worker, "w", &job).await?;
    for (table, changing) in CHANGING {
        let columns = columns(&stage.admin, table).await?;
        assert!(changing.iter().all(|column| columns.iter().any(|known| known == column)), "{columns:?}");
        for column in columns {
            let update = format!("update execution.{table} set {column} = {column}");
            if !changing.contains(&column.as_str()) {
                let refused = refusal(execute(&stage.admin, &update).await)
                    .map_err(|error| error.context(update.clone()))?;
                assert_eq!(refused.code, "23514", "{update}: {refused:?}");
            } else if column != "status" {
                execute(&stage.admin, update).await?;
            }
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_that_has_ended_never_changes_in_any_column() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let place = Place::on(&stage).await?;
    let ends = [
        (
            "campaign_runs",
            place.runs().states.into_iter().filter(|s| s.state.is_terminal()).map(|s| s.insert).collect(),
        ),
        (
            "job_queue",
            place.jobs().states.into_iter().filter(|s| s.state.is_terminal()).map(|s| s.insert).collect(),
        ),
        (
            "channel_outbox",
            place
                .items()
                .states
                .into_iter()
                .filter(|s| s.state.0.is_terminal())
                .map(|s| s.insert)
                .collect::<Vec<_>>(),
        ),
    ];
    for (table, rows) in ends {
        let columns = columns(&stage.admin, table).await?;
        for insert in rows {
            let id = format!("insert into execution.{table} {insert} returning id::text");
            let id = texts(&stage.admin, id).await?.join("");
            for column in &columns {
                let update = format!("update execution.{table} set {column} = {column} where id = '{id}'");
                let refused = refusal(execute(&stage.admin, &update).await)
                    .map_err(|error| error.context(update.clone()))?;
                assert_eq!(refused.code, "23514", "{update}: {refused:?}");
            }
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn runs_jobs_items_versions_and_the_log_are_never_removed() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    stage.run(2, 1).await?;
    let jobs = claim(&stage.worker, "w", 2).await?;
    reserve_all(&stage.worker, "w", &jobs[0]).await?;
    let before = stage.census().await?;
    for table in ["campaign_runs", "job_queue", "channel_outbox", "campaign_audit_log", "assets"] {
        for attempt in [
            format!("delete from execution.{table}"),
            format!("truncate execution.{table} cascade"),
            format!("with gone as (delete from execution.{table} returning 1) select count(*) from gone"),
        ] {
            let refused = refusal(execute(&stage.admin, &attempt).await)
                .map_err(|error| error.context(attempt.clone()))?;
            assert_eq!(refused.code, "23514", "{attempt}: {refused:?}");
            // By its own guard, and not only by that of a table behind it.
            assert!(refused.message.starts_with(&format!("execution.{table}: ")), "{attempt}: {refused:?}");
        }
    }
    for attempt in [
        "truncate execution.campaign_phases cascade",
        "truncate execution.campaigns cascade",
        "truncate execution.lead_lists cascade",
        "truncate tenancy.workspaces cascade",
        "truncate tenancy.tenants cascade",
        "update execution.campaign_audit_log set note = 'x'",
        "update execution.assets set content = '{}'",
    ] {
        let refused = refusal(execute(&stage.admin, attempt).await)?;
        assert_eq!(refused.code, "23514", "{attempt}: {refused:?}");
    }
    // A phase or campaign with a run cannot be removed either.
    for table in ["campaign_phases", "campaigns"] {
        assert_eq!(
            refusal(execute(&stage.admin, format!("delete from execution.{table}")).await)?.code,
            "23503"
        );
    }
    assert_eq!(stage.census().await?, before);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lead_stays_who_it_is_and_where_it_is() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    stage.list(stage.own, "all", 1).await?;
    for column in [
        "id = gen_random_uuid()",
        "tenant_id = gen_random_uuid()",
        "workspace_id = gen_random_uuid()",
        "identity = 'x'",
    ] {
        let refused = refusal(execute(&stage.admin, format!("update execution.leads set {column}")).await)?;
        assert_eq!(refused.code, "23514", "{column}");
        assert!(refused.message.contains("a lead stays who it is"), "{refused:?}");
    }
    execute(&stage.admin, "update execution.leads set identity = identity, email = 'new@example.com'")
        .await?;
    Ok(())
}
