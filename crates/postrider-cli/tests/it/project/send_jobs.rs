//! "Job" alone would be a send job or a job run. Texts about campaigns say "send job" (ARCHITECTURE.md, "Glossary").

use std::collections::BTreeSet;

use serde_json::Value;

use super::{root, words};
use crate::world::{postrider, run};

/// The places of a text that say only "job".
fn bare(text: &str) -> Vec<String> {
    let words: Vec<&str> = text.split_whitespace().collect();
    let plain = |word: &str| {
        let word = word.trim_matches(|char: char| !char.is_alphanumeric() && char != '`' && char != '_');
        word.trim_end_matches("'s").to_lowercase()
    };
    let is_bare = |at: usize| {
        let before = at.checked_sub(1).map(|before| plain(words[before])).unwrap_or_default();
        let after = words.get(at + 1).map(|word| plain(word)).unwrap_or_default();
        ["job", "jobs"].contains(&plain(words[at]).as_str())
            && before != "send"
            && !["run", "runs"].contains(&after.as_str())
    };
    let places = (0..words.len()).filter(|at| is_bare(*at));
    places.map(|at| words[at.saturating_sub(3)..words.len().min(at + 4)].join(" ")).collect()
}

#[test]
fn a_bare_job_is_found() {
    assert_eq!(
        bare("A job of a run. Send jobs' items, a send job's end, the job runs and `jobs`."),
        ["A job of a run."]
    );
    assert_eq!(bare("job % is not held"), ["job % is not"]);
    assert_eq!(bare("jobs_max, job.failed, /job-runs"), [""; 0]);
}

#[test]
fn sql_of_campaigns_has_no_bare_job() -> anyhow::Result<()> {
    let mut found = Vec::new();
    for folder in ["sql/campaigns", "crates/postrider-store/sql/campaigns"] {
        for (path, text) in words::files(folder)? {
            let passages = words::comments(&text, "--").into_iter().chain(words::sql_texts(&text));
            for (line, passage) in passages {
                found.extend(bare(&passage).into_iter().map(|place| format!("{path}:{line}: {place}")));
            }
        }
    }
    assert!(found.is_empty(), "say \"send job\":\n{}", found.join("\n"));
    Ok(())
}

/// Adds the texts of a part of the document, and the schemas that it names.
fn read(part: &Value, document: &Value, seen: &mut BTreeSet<String>, texts: &mut Vec<String>) {
    match part {
        Value::Array(parts) => parts.iter().for_each(|part| read(part, document, seen, texts)),
        Value::Object(fields) => {
            for (name, field) in fields {
                match (name.as_str(), field) {
                    ("summary" | "description", Value::String(text)) => texts.push(text.clone()),
                    ("$ref", Value::String(target)) if seen.insert(target.clone()) => {
                        if let Some(schema) = document.pointer(target.trim_start_matches('#')) {
                            read(schema, document, seen, texts);
                        }
                    }
                    _ => read(field, document, seen, texts),
                }
            }
        }
        _ => {}
    }
}

#[test]
fn the_openapi_document_of_campaigns_has_no_bare_job() -> anyhow::Result<()> {
    let document = serde_json::to_value(postrider_api::document())?;
    let (mut seen, mut texts) = (BTreeSet::new(), Vec::new());
    for operations in document["paths"].as_object().into_iter().flatten().map(|(_, path)| path) {
        for operation in operations.as_object().into_iter().flatten().map(|(_, operation)| operation) {
            let tag = operation["tags"][0].as_str().unwrap_or_default();
            if ["audience and content", "callbacks", "campaigns", "in doubt", "phases", "runs"].contains(&tag)
            {
                read(operation, &document, &mut seen, &mut texts);
            }
        }
    }
    anyhow::ensure!(texts.len() > 200, "only {} texts were found", texts.len());
    let found: Vec<String> = texts.iter().flat_map(|text| bare(text)).collect();
    assert!(found.is_empty(), "say \"send job\":\n{}", found.join("\n"));
    Ok(())
}

#[test]
fn the_help_of_campaign_commands_has_no_bare_job() -> anyhow::Result<()> {
    let pages = tempfile::tempdir()?;
    let written = run(postrider().arg("man").arg("--out").arg(pages.path()))?;
    anyhow::ensure!(written.code == 0, "{}", written.stderr);
    let (mut count, mut found) = (0, Vec::new());
    for entry in std::fs::read_dir(pages.path())? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if ["postrider-campaign", "postrider-in-doubt", "postrider-trace"]
            .iter()
            .any(|begin| name.starts_with(begin))
        {
            count += 1;
            let page = std::fs::read_to_string(entry.path())?;
            found.extend(bare(&page).into_iter().map(|place| format!("{name}: {place}")));
        }
    }
    anyhow::ensure!(count > 10, "only {count} pages were found in {}", root().display());
    assert!(found.is_empty(), "say \"send job\":\n{}", found.join("\n"));
    Ok(())
}
