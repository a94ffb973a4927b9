//! A campaign from its first phase to its last, with a failure on the way: by real workers, and counted by the provider.

use std::{
    collections::HashSet,
    sync::{Mutex, PoisonError},
};

use serde_json::json;

use crate::{
    campaigns::{
        limits::provider::{Answer, Provider},
        stage::Stage,
    },
    sql::texts,
    world::{Server, World, eventually},
};

const LEADS: usize = 40;
const REFUSED: usize = 10;

#[tokio::test(flavor = "multi_thread")]
async fn failed_items_are_retried_and_then_the_next_phase_begins_by_itself() -> anyhow::Result<()> {
    let world = World::new().await?;
    let stage = Stage::new(&world, "acme").await?;
    stage.leads("all", LEADS).await?;
    // Ten messages are refused, whichever come first.
    let refused = Mutex::new(HashSet::new());
    let first = Provider::scripted(move |key| {
        let mut refused = refused.lock().unwrap_or_else(PoisonError::into_inner);
        if refused.len() < REFUSED {
            refused.insert(key.to_owned());
        }
        if refused.contains(key) { Answer::Rejects } else { Answer::Accepts }
    })?;
    let second = Provider::start(Answer::Accepts)?;
    stage.account(&world, "first", "sim", &json!({ "url": first.url() }), "").await?;
    stage.account(&world, "second", "sim", &json!({ "url": second.url() }), "").await?;
    let campaign = stage
        .campaign(
            "news",
            &[("mail", "email", Some("all"), "first"), ("reminder", "email", Some("all"), "second")],
        )
        .await?;
    let _worker = Server::start(
        &world,
        "campaigns",
        "[outbound]\nallow_private = true\n[campaigns]\npoll_interval_ms = 50\n",
    )?;
    let control = async |by: &str| {
        stage
            .ask(&format!(
                "select outcome || ' ' || coalesce(items, 0) from execution.control_phase(tenancy.current_tenant_id(), '{campaign}', 'mail', '{by}', null, 'a test')"
            ))
            .await
    };
    let becomes = async |phase: &str, status: &str| {
        let sql = format!(
            "select status from execution.campaign_phases where campaign_id = '{campaign}' and phase = '{phase}'"
        );
        eventually(&format!("{phase} is {status}"), async || {
            Ok(texts(&stage.admin, sql.clone()).await?.concat() == status)
        })
        .await
    };
    assert_eq!(control("start").await?, format!("changed {LEADS}"));
    becomes("mail", "failed").await?;
    assert!(second.calls().is_empty(), "a phase that failed leads nowhere");
    assert_eq!(control("retry").await?, format!("changed {REFUSED}"));
    becomes("mail", "completed").await?;
    becomes("reminder", "completed").await?;
    assert_eq!(first.calls().len(), LEADS + REFUSED);
    let mut acted: Vec<String> =
        first.calls().iter().filter(|call| call.acted()).map(|call| call.key.clone()).collect();
    acted.sort();
    acted.dedup();
    assert_eq!(acted.len(), LEADS, "everybody got it once");
    assert_eq!(second.calls().len(), LEADS);

    let told = texts(
        &stage.admin,
        format!(
            "select type || ' ' || phase from execution.campaign_events
              where campaign_id = '{campaign}' and type <> 'campaign_progress' order by sequence"
        ),
    )
    .await?;
    let expected = [
        "phase_started mail",
        "phase_failed mail",
        "phase_started mail",
        "phase_completed mail",
        "phase_started reminder",
        "phase_completed reminder",
    ];
    assert_eq!(told, expected);
    Ok(())
}
