//! The documentation against the code.

use postrider_model::event::{EventStep, TRANSITIONS};

use crate::world::{postrider, run};

fn read(path: &str) -> anyhow::Result<String> {
    Ok(std::fs::read_to_string(format!("{}/../../{path}", env!("CARGO_MANIFEST_DIR")))?)
}

#[test]
fn the_diagram_of_an_event_is_the_model_s_table() -> anyhow::Result<()> {
    let text = read("docs/lifecycle.md")?;
    let section = text.split("\n## An item\n").next().unwrap_or_default();
    let drawn: Vec<&str> = section
        .lines()
        .map(str::trim)
        .filter(|line| line.contains(" --> ") && !line.starts_with("[*]"))
        .collect();
    let word = |debug: String| debug.to_lowercase();
    let modelled: Vec<String> = TRANSITIONS
        .iter()
        .map(|(from, step, to)| {
            format!("{} --> {}: {}", word(format!("{from:?}")), word(format!("{to:?}")), step_name(*step))
        })
        .collect();
    assert_eq!(drawn, modelled);
    Ok(())
}

fn step_name(step: EventStep) -> String {
    format!("{step:?}").to_lowercase()
}

#[test]
fn every_setting_is_in_the_operations_page_with_its_default() -> anyhow::Result<()> {
    let printed = run(postrider().arg("--print-config"))?;
    assert_eq!(printed.code, 0, "{}", printed.stderr);
    let page = read("docs/operations.md")?;
    let config: toml::Table = printed.stdout.parse()?;
    for (section, keys) in config {
        let Some(keys) = keys.as_table() else { continue };
        for (key, value) in keys {
            let row = page.lines().find(|line| line.starts_with(&format!("| `{section}.{key}")));
            let row = row.unwrap_or_else(|| panic!("docs/operations.md has no row for {section}.{key}"));
            if !value.is_table() {
                let default = value.to_string().trim_matches('"').to_owned();
                assert!(row.contains(&default), "the default of {section}.{key} is {default}: {row}");
            }
        }
    }
    Ok(())
}

#[test]
fn every_metric_that_is_counted_is_in_the_operations_page() -> anyhow::Result<()> {
    let page = read("docs/operations.md")?;
    let mut counted = 0;
    let files = ["relay/mod.rs", "relay/lane.rs", "relay/complete.rs"];
    let more = [
        "campaigns/mod.rs",
        "campaigns/job.rs",
        "campaigns/route.rs",
        "campaigns/failover.rs",
        "campaigns/committer.rs",
        "jobs/keep.rs",
        "jobs/perform.rs",
        "jobs/settle.rs",
        "scheduler.rs",
    ];
    for file in files.into_iter().chain(more) {
        for line in read(&format!("crates/postrider-engine/src/{file}"))?.lines() {
            let Some(rest) = line.split("\"postrider_").nth(1) else { continue };
            let name = format!("postrider_{}", rest.split('"').next().unwrap_or_default());
            let short = name.replace("postrider_events", "…");
            assert!(
                page.contains(&name) || page.contains(&short),
                "docs/operations.md does not explain {name}"
            );
            counted += 1;
        }
    }
    assert!(counted >= 12, "the metrics were not found where they were");
    Ok(())
}

#[test]
fn the_readme_names_only_commands_that_exist() -> anyhow::Result<()> {
    let text = read("README.md")?;
    let help = run(postrider().arg("--help"))?;
    for line in text.lines().filter(|line| line.starts_with("postrider ")) {
        let command = line.split_whitespace().nth(1).unwrap_or_default();
        assert!(help.stdout.contains(&format!("  {command}")), "no command `{command}`: {line}");
    }
    let targets = read("Makefile")?;
    for target in ["demo", "test"] {
        assert!(targets.contains(&format!("\n{target}: ")), "no make target {target}");
    }
    Ok(())
}

/// The arrows of the first diagram below a text, in order.
fn drawn(page: &str, above: &str) -> Vec<String> {
    let section = page.split(above).nth(1).unwrap_or_default();
    let diagram =
        section.split("```mermaid").nth(1).unwrap_or_default().split("```").next().unwrap_or_default();
    let arrows = diagram.lines().filter(|line| line.contains("-->") && !line.contains("[*]"));
    let mut arrows: Vec<String> =
        arrows.map(|line| line.split(':').next().unwrap_or_default().trim().to_owned()).collect();
    arrows.sort();
    arrows
}

/// The arrows of a table, in order.
fn told<S: std::fmt::Display>(table: &[(S, S)]) -> Vec<String> {
    let mut arrows: Vec<String> = table.iter().map(|(from, to)| format!("{from} --> {to}")).collect();
    arrows.sort();
    arrows
}

#[test]
fn the_diagrams_of_channels_are_the_model_s_tables() -> anyhow::Result<()> {
    use postrider_model::chat::{MESSAGE_MACHINE, REPLY_MACHINE};

    let lifecycle = read("docs/lifecycle.md")?;
    assert_eq!(drawn(&lifecycle, "\n## A message\n"), told(MESSAGE_MACHINE));
    assert_eq!(drawn(&lifecycle, "\n## A reply\n"), told(REPLY_MACHINE));
    let channels = read("docs/channels.md")?;
    assert_eq!(drawn(&channels, "\nA message:\n"), told(MESSAGE_MACHINE));
    assert_eq!(drawn(&channels, "\nA reply:\n"), told(REPLY_MACHINE));
    Ok(())
}

#[test]
fn the_diagram_of_a_job_run_is_the_model_s_table() -> anyhow::Result<()> {
    let page = read("docs/lifecycle.md")?;
    assert_eq!(drawn(&page, "\n## A job run\n"), told(postrider_model::job::JOB_RUN_MACHINE));
    Ok(())
}

#[test]
fn every_metric_of_the_alert_rules_is_in_the_operations_page() -> anyhow::Result<()> {
    let (rules, page) = (read("docs/prometheus-alerts.yml")?, read("docs/operations.md")?);
    let names: Vec<&str> = rules
        .split(|char: char| !(char.is_ascii_alphanumeric() || char == '_'))
        .filter(|word| word.starts_with("postrider_"))
        .collect();
    assert!(names.len() >= 10, "the rules name {} metrics", names.len());
    for name in names {
        assert!(page.contains(name), "docs/operations.md does not explain {name}");
    }
    Ok(())
}

#[test]
fn the_diagrams_of_campaigns_are_the_model_s_tables() -> anyhow::Result<()> {
    use postrider_model::campaign::{ITEM_TRANSITIONS, JOB_TRANSITIONS, PHASE_MACHINE, RUN_TRANSITIONS};

    let page = read("docs/lifecycle.md")?;
    let drawn = |heading: &str| drawn(&page, &format!("\n## {heading}\n"));
    assert_eq!(drawn("An item"), told(ITEM_TRANSITIONS));
    assert_eq!(drawn("A job"), told(JOB_TRANSITIONS));
    assert_eq!(drawn("A run"), told(RUN_TRANSITIONS));
    let phases: Vec<_> = PHASE_MACHINE.iter().map(|(from, _, to)| (*from, *to)).collect();
    assert_eq!(drawn("A phase"), told(&phases));
    // A phase's arrows carry their triggers.
    for (from, by, to) in PHASE_MACHINE {
        let arrow = format!("{from} --> {to}: {by}");
        assert!(page.contains(&arrow), "the diagram of phases does not have `{arrow}`");
    }
    Ok(())
}
