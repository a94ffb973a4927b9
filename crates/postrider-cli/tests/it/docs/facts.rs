//! The statements of the documentation against the code.

use anyhow::Context;
use postrider_engine::common::metrics::{Kind, METRICS, Metric};
use postrider_model::events::{EventStep, TRANSITIONS};

use super::read;
use crate::world::{postrider, run};

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

#[test]
fn applications_are_granted_postrider_publish_and_no_other_role() -> anyhow::Result<()> {
    let applications = [" to your_application", "create role shop_app "];
    let mut granted = 0;
    for page in [
        "README.md",
        "docs/events.md",
        "docs/operations.md",
        "docs/production.md",
        "docs/jobs.md",
        "docs/guarantees.md",
    ] {
        let text = read(page)?;
        for line in text.lines().filter(|line| applications.iter().any(|words| line.contains(words))) {
            assert!(line.contains("postrider_publish"), "{page}: {line}");
            let others = ["postrider_app", "postrider_worker", "postrider_read", "postrider_owner"];
            assert!(!others.iter().any(|role| line.contains(role)), "{page}: {line}");
            granted += 1;
        }
    }
    assert!(granted >= 2, "the pages say how an application gets its role");
    Ok(())
}

fn step_name(step: EventStep) -> String {
    format!("{step:?}").to_lowercase()
}

#[test]
fn every_setting_is_in_the_operations_page_with_its_default() -> anyhow::Result<()> {
    let printed = run(postrider().env_remove("POSTRIDER_WITNESS__DIR").arg("--print-config"))?;
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
fn the_operations_page_has_one_row_for_each_metric_with_its_help_text() -> anyhow::Result<()> {
    let page = read("docs/operations.md")?;
    let table = page.split("| metric | meaning | look when |").nth(1).unwrap_or_default();
    let written: Vec<&str> =
        table.lines().skip(2).take_while(|line| line.starts_with("| `postrider_")).collect();
    let expected: Vec<String> = METRICS
        .iter()
        .map(|Metric { name, labels, help, .. }| {
            let labels = if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
            format!("| `{name}{labels}` | {help} | ")
        })
        .collect();
    for (at, row) in expected.iter().enumerate() {
        let has = written.get(at).copied().unwrap_or("nothing");
        assert!(
            has.starts_with(row.trim_end()),
            "docs/operations.md should have\n{row}…\nwhere it has\n{has}"
        );
    }
    assert_eq!(written.len(), METRICS.len());
    Ok(())
}

/// The names of metrics in the sources, each with the module that writes it: a folder below a crate's `src`, or a file beside them.
fn writers() -> anyhow::Result<Vec<(String, String)>> {
    let crates = format!("{}/..", env!("CARGO_MANIFEST_DIR"));
    let mut found = Vec::new();
    for krate in [
        "postrider-store",
        "postrider-providers",
        "postrider-engine",
        "postrider-api",
        "postrider",
        "postrider-cli",
    ] {
        let root = std::path::PathBuf::from(format!("{crates}/{krate}/src"));
        let mut folders = vec![root.clone()];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder)? {
                let path = entry?.path();
                if path.is_dir() {
                    folders.push(path);
                    continue;
                }
                let inside = path.strip_prefix(&root)?.to_string_lossy().into_owned();
                if path.extension().is_none_or(|extension| extension != "rs") {
                    continue;
                }
                let module =
                    inside.rsplit_once('/').map_or(inside.trim_end_matches(".rs"), |(folder, _)| folder);
                let text = std::fs::read_to_string(&path)?;
                for name in written(&text).with_context(|| inside.clone())? {
                    found.push((name, format!("{krate}/{module}")));
                }
            }
        }
    }
    Ok(found)
}

/// The metrics that a source file writes, however it imports the macros.
fn written(text: &str) -> anyhow::Result<Vec<String>> {
    let mut names = Vec::new();
    for part in ["counter!(", "gauge!(", "histogram!("] {
        for (at, _) in text.match_indices(part) {
            // Another macro whose name ends like this.
            if text[..at].ends_with(|char: char| char.is_alphanumeric() || char == '_') {
                continue;
            }
            let name = text[at + part.len()..].trim_start().strip_prefix('"');
            let name = name.and_then(|rest| rest.split('"').next());
            names.push(name.with_context(|| format!("{part} without a name in quotes"))?.to_owned());
        }
    }
    Ok(names)
}

#[test]
fn a_metric_is_found_with_and_without_the_path_of_its_macro() -> anyhow::Result<()> {
    let text = r#"use metrics::counter; counter!("a").increment(1); metrics::gauge!(
        "b", "x" => "y"); describe_counter!("c")"#;
    assert_eq!(written(text)?, ["a", "b"]);
    assert!(written("histogram!(NAME)").is_err());
    Ok(())
}

#[test]
fn no_metric_has_two_writers_and_each_one_that_is_written_is_in_the_table() -> anyhow::Result<()> {
    let writers = writers()?;
    for (name, module) in &writers {
        assert!(METRICS.iter().any(|metric| metric.name == name), "METRICS does not have {name} ({module})");
    }
    for Metric { name, kind, .. } in METRICS {
        let places: Vec<&str> =
            writers.iter().filter(|(written, _)| written == name).map(|(_, module)| &**module).collect();
        let mut modules = places.clone();
        modules.sort_unstable();
        modules.dedup();
        assert_eq!(modules.len(), 1, "{name} is written by {modules:?}");
        // A counter may be increased in several places of its module; of a gauge the last one would win.
        assert!(*kind != Kind::Gauge || places.len() == 1, "{name} is set in {} places", places.len());
    }
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
    use postrider_model::channels::{MESSAGE_MACHINE, REPLY_MACHINE};

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
    assert_eq!(drawn(&page, "\n## A job run\n"), told(postrider_model::jobs::JOB_RUN_MACHINE));
    Ok(())
}

#[test]
fn every_metric_of_the_alert_rules_exists() -> anyhow::Result<()> {
    let rules = read("docs/prometheus-alerts.yml")?;
    let names: Vec<&str> = rules
        .split(|char: char| !(char.is_ascii_alphanumeric() || char == '_'))
        .filter(|word| word.starts_with("postrider_"))
        .collect();
    assert!(names.len() >= 10, "the rules name {} metrics", names.len());
    for name in names {
        let known = METRICS.iter().any(|metric| {
            let is_bucket =
                matches!(metric.kind, Kind::Histogram(_)) && name == format!("{}_bucket", metric.name);
            metric.name == name || is_bucket
        });
        assert!(known, "docs/prometheus-alerts.yml names {name}, which is no metric");
    }
    Ok(())
}

#[test]
fn the_diagrams_of_campaigns_are_the_model_s_tables() -> anyhow::Result<()> {
    use postrider_model::campaigns::{ITEM_TRANSITIONS, JOB_TRANSITIONS, PHASE_MACHINE, RUN_TRANSITIONS};

    let page = read("docs/lifecycle.md")?;
    let drawn = |heading: &str| drawn(&page, &format!("\n## {heading}\n"));
    assert_eq!(drawn("An item"), told(ITEM_TRANSITIONS));
    assert_eq!(drawn("A send job"), told(JOB_TRANSITIONS));
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
