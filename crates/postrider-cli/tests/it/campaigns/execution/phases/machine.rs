//! The whole table: every trigger from every state, with every expectation, by one and by many.

use std::sync::Arc;

use postrider_model::campaigns::{PhaseKind, PhaseStatus, PhaseTrigger};
use tokio::sync::Barrier;

use super::{control, delivery, events, external, force, history, published, status};
use crate::{
    campaigns::execution::Stage,
    sql::{execute, number, refusal, texts},
};

/// The contract of a trigger, in the order of its checks: the target state, then the expected state, then the table.
fn expected_outcome(
    from: PhaseStatus,
    by: PhaseTrigger,
    expected: Option<PhaseStatus>,
    kind: PhaseKind,
) -> &'static str {
    if !by.is_for(kind) {
        "conflict"
    } else if from == by.goal() {
        "unchanged"
    } else if expected.is_some_and(|expected| expected != from) || from.after(by).is_none() {
        "conflict"
    } else {
        "changed"
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_database_has_the_model_s_table() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    for from in PhaseStatus::ALL {
        for by in PhaseTrigger::ALL {
            let sql = format!(
                "select coalesce(execution.phase_target('{by}', '{from}'), 'null') || ' ' || execution.phase_goal('{by}')"
            );
            let to = from.after(*by).map_or("null", PhaseStatus::as_str);
            assert_eq!(texts(&stage.admin, sql).await?, [format!("{to} {}", by.goal())], "{from} {by}");
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn every_trigger_from_every_state_does_what_the_table_says() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let campaign = external(&stage).await?;
    let expectations = PhaseStatus::ALL.iter().map(|state| Some(*state)).chain([None]);
    for expected in expectations {
        for from in PhaseStatus::ALL {
            for by in PhaseTrigger::ALL {
                force(&stage, campaign, from.as_str()).await?;
                let before = events(&stage, campaign).await?;
                let case = format!("{from} {by} expecting {expected:?}");
                let answer =
                    control(&stage, campaign, "only", by.as_str(), expected.map(PhaseStatus::as_str)).await?;
                let outcome = expected_outcome(*from, *by, expected, PhaseKind::External);
                assert_eq!(answer.outcome, outcome, "{case}: {answer:?}");
                let becomes = if outcome == "changed" { by.goal() } else { *from };
                assert_eq!(answer.status, becomes.as_str(), "{case}");
                assert_eq!(status(&stage, campaign, "only").await?, becomes.as_str(), "{case}");
                let told = texts(
                    &stage.admin,
                    format!(
                        "select type from execution.campaign_events
                          where campaign_id = '{campaign}' and sequence > {before} and type <> 'campaign_progress'"
                    ),
                )
                .await?;
                let event = (outcome == "changed").then(|| by.event().as_str().to_owned());
                assert_eq!(told, Vec::from_iter(event), "{case}");
                assert_eq!(answer.reason.is_some(), outcome == "conflict", "{case}");
                let newest = events(&stage, campaign).await?;
                assert!(answer.sequence <= newest && answer.sequence >= before, "{case}");
            }
        }
    }
    // No gaps, and everything but progress went out, in the same order.
    let sequences = format!(
        "select count(*) from (select sequence, row_number() over (order by sequence) as place
                                 from execution.campaign_events where campaign_id = '{campaign}') as numbered
          where sequence <> place"
    );
    assert_eq!(number(&stage.admin, sequences).await?, 0);
    let told = format!(
        "select 'campaign.' || type || ' ' || sequence from execution.campaign_events
          where campaign_id = '{campaign}' and type <> 'campaign_progress' order by sequence"
    );
    assert_eq!(published(&stage, stage.own, campaign).await?, texts(&stage.admin, told).await?);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_delivery_is_not_ended_by_hand() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let campaign = delivery(&stage, 2, &serde_json::json!({})).await?;
    for by in ["complete", "fail"] {
        for from in PhaseStatus::ALL {
            force(&stage, campaign, from.as_str()).await?;
            let answer = control(&stage, campaign, "first", by, None).await?;
            assert_eq!(answer.outcome, "conflict", "{from} {by}");
            assert_eq!(status(&stage, campaign, "first").await?, from.as_str());
        }
    }
    assert_eq!(events(&stage, campaign).await?, 0);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_control_many_times_at_once_is_one_change_and_one_event() -> anyhow::Result<()> {
    const MANY: usize = 24;
    let stage = Arc::new(Stage::new().await?);
    let campaign = delivery(&stage, 5, &serde_json::json!({})).await?;
    let barrier = Arc::new(Barrier::new(MANY));
    let asking: Vec<_> = (0..MANY)
        .map(|_| {
            let (stage, barrier) = (Arc::clone(&stage), Arc::clone(&barrier));
            tokio::spawn(async move {
                barrier.wait().await;
                control(&stage, campaign, "first", "start", Some("not_started")).await
            })
        })
        .collect();
    let mut outcomes = Vec::new();
    for asked in asking {
        outcomes.push(asked.await??);
    }
    assert_eq!(outcomes.iter().filter(|answer| answer.outcome == "changed").count(), 1);
    assert_eq!(outcomes.iter().filter(|answer| answer.outcome == "unchanged").count(), MANY - 1);
    assert!(outcomes.iter().all(|answer| answer.run_id == outcomes[0].run_id), "all name the one run");
    assert_eq!(history(&stage, campaign).await?, ["1 phase_started first"]);
    assert_eq!(number(&stage.admin, "select count(*) from execution.campaign_runs").await?, 1);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_controls_that_exclude_each_other_one_wins() -> anyhow::Result<()> {
    let stage = Arc::new(Stage::new().await?);
    for _ in 0..20 {
        let campaign = external(&stage).await?;
        control(&stage, campaign, "only", "start", None).await?;
        let barrier = Arc::new(Barrier::new(2));
        let asking: Vec<_> = ["complete", "fail"]
            .map(|by| {
                let (stage, barrier) = (Arc::clone(&stage), Arc::clone(&barrier));
                tokio::spawn(async move {
                    barrier.wait().await;
                    control(&stage, campaign, "only", by, Some("in_progress")).await
                })
            })
            .into_iter()
            .collect();
        let mut answers = Vec::new();
        for asked in asking {
            answers.push(asked.await??);
        }
        let mut outcomes: Vec<&str> = answers.iter().map(|answer| answer.outcome.as_str()).collect();
        outcomes.sort_unstable();
        assert_eq!(outcomes, ["changed", "conflict"]);
        // Both are told the same state: the one that won.
        assert_eq!(answers[0].status, answers[1].status);
        assert_eq!(status(&stage, campaign, "only").await?, answers[0].status);
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn unknown_names_and_an_empty_actor_are_refused() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let campaign = external(&stage).await?;
    let unknown = refusal(control(&stage, uuid::Uuid::now_v7(), "only", "start", None).await)?;
    assert_eq!((unknown.code.as_str(), unknown.message.starts_with("there is no campaign")), ("P0002", true));
    let unknown = refusal(control(&stage, campaign, "second", "start", None).await)?;
    assert_eq!((unknown.code.as_str(), unknown.hint.as_str()), ("P0002", "It has: only."));
    let unknown = refusal(control(&stage, campaign, "only", "explode", None).await)?;
    assert_eq!(unknown.code, "22023");

    let other = crate::campaigns::execution::Tenant::create(&stage.admin, "other").await?;
    let sql = format!(
        "select outcome from execution.control_phase(tenancy.current_tenant_id(), '{campaign}', 'only', 'start', null, 'a test')"
    );
    let foreign = refusal(stage.ask::<String>(other, sql).await)?;
    assert_eq!(foreign.message, format!("there is no campaign {campaign}"));
    let sql = format!(
        "select outcome from execution.control_phase(tenancy.current_tenant_id(), '{campaign}', 'only', 'start', null, ' ')"
    );
    assert_eq!(refusal(stage.ask::<String>(stage.own, sql).await)?.code, "22023");
    assert_eq!(events(&stage, campaign).await?, 0);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_of_a_campaign_never_changes() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let campaign = external(&stage).await?;
    control(&stage, campaign, "only", "start", None).await?;
    for sql in [
        "update execution.campaign_events set type = 'phase_failed'",
        "delete from execution.campaign_events",
        "truncate execution.campaign_events",
    ] {
        assert_eq!(refusal(execute(&stage.admin, sql).await)?.code, "23514", "{sql}");
    }
    assert_eq!(history(&stage, campaign).await?, ["1 phase_started only"]);
    Ok(())
}
