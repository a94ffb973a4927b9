//! The dashboard's copies of the state machines and of the OpenAPI document. `make mirror` writes both.

use std::{fmt::Write, fs};

use postrider_model::{
    campaigns::{
        CONTROL_STEPS, EventType, ITEM_TRANSITIONS, JOB_TRANSITIONS, PHASE_MACHINE, PhaseKind, PhaseTrigger,
        RUN_TRANSITIONS,
    },
    channels::{MESSAGE_MACHINE, REPLY_MACHINE},
    events,
    jobs::JOB_RUN_MACHINE,
};
use serde::Serialize;

use super::root;

/// Compares a file of the dashboard with its text, or writes it if UPDATE_DASHBOARD is set.
fn compare(path: &str, text: &str) -> anyhow::Result<()> {
    let file = root().join("dashboard").join(path);
    if std::env::var_os("UPDATE_DASHBOARD").is_some() {
        if let Some(folder) = file.parent() {
            fs::create_dir_all(folder)?;
        }
        fs::write(&file, text)?;
        return Ok(());
    }
    let committed = fs::read_to_string(&file).unwrap_or_default();
    let first = committed.lines().zip(text.lines()).find(|(committed, now)| committed != now);
    assert!(committed == text, "dashboard/{path} is stale, run `make mirror`; first difference: {first:?}");
    Ok(())
}

#[test]
fn the_dashboard_s_machines_are_the_model_s() -> anyhow::Result<()> {
    let mut text =
        "// The state machines of postrider-model, written by `make mirror`. Do not edit: a test compares this file with the model.\n"
            .to_owned();
    constant(&mut text, "PHASE_MACHINE", PHASE_MACHINE)?;
    constant(&mut text, "CONTROL_STEPS", CONTROL_STEPS)?;
    let kinds = PhaseTrigger::ALL.iter().map(|trigger| {
        let kinds: Vec<PhaseKind> =
            PhaseKind::ALL.iter().copied().filter(|kind| trigger.is_for(*kind)).collect();
        (trigger.as_str(), kinds)
    });
    record(&mut text, "TRIGGER_KINDS", kinds)?;
    let sets = EventType::ALL.iter().map(|event| (event.as_str(), event.sets()));
    record(&mut text, "EVENT_SETS", sets)?;
    constant(&mut text, "RUN_TRANSITIONS", RUN_TRANSITIONS)?;
    constant(&mut text, "JOB_TRANSITIONS", JOB_TRANSITIONS)?;
    constant(&mut text, "ITEM_TRANSITIONS", ITEM_TRANSITIONS)?;
    constant(&mut text, "MESSAGE_TRANSITIONS", MESSAGE_MACHINE)?;
    constant(&mut text, "REPLY_TRANSITIONS", REPLY_MACHINE)?;
    constant(&mut text, "JOB_RUN_TRANSITIONS", JOB_RUN_MACHINE)?;
    // Several steps lead from one state to another.
    let mut steps: Vec<_> = events::TRANSITIONS.iter().map(|(from, _, to)| (*from, *to)).collect();
    let mut seen = Vec::new();
    steps.retain(|step| {
        !seen.contains(step) && {
            seen.push(*step);
            true
        }
    });
    constant(&mut text, "EVENT_TRANSITIONS", &steps)?;
    compare("src/model/machines.gen.ts", &text)
}

#[test]
fn the_dashboard_s_document_is_the_server_s() -> anyhow::Result<()> {
    let document = serde_json::to_value(postrider_api::document())?;
    compare("openapi.json", &format!("{}\n", serde_json::to_string_pretty(&document)?))
}

/// A list of rows.
fn constant<T: Serialize>(text: &mut String, name: &str, rows: &[T]) -> anyhow::Result<()> {
    write!(text, "\nexport const {name} = [\n")?;
    for row in rows {
        writeln!(text, "  {},", spaced(row)?)?;
    }
    text.push_str("] as const;\n");
    Ok(())
}

/// A value per name.
fn record<'a, T: Serialize>(
    text: &mut String,
    name: &str,
    values: impl Iterator<Item = (&'a str, T)>,
) -> anyhow::Result<()> {
    write!(text, "\nexport const {name} = {{\n")?;
    for (key, value) in values {
        writeln!(text, "  {key}: {},", spaced(&value)?)?;
    }
    text.push_str("} as const;\n");
    Ok(())
}

/// JSON with a space after each comma. No word has a comma.
fn spaced<T: Serialize>(value: &T) -> anyhow::Result<String> {
    Ok(serde_json::to_string(value)?.replace(',', ", "))
}
