//! Every page: each block is run, checked, or marked with a reason.

use std::path::Path;

use anyhow::{Context, ensure};

use super::{
    blocks::{Block, Usage, blocks},
    read, root, session,
};

/// One test for each page that has something to run.
macro_rules! pages {
    ($($test:ident: $page:literal,)*) => {
        const PAGES: &[&str] = &[$($page),*];
        $(
            #[test]
            fn $test() -> anyhow::Result<()> {
                session::run($page, &blocks(&read($page)?)?)
            }
        )*
    };
}

pages! {
    the_readme_runs: "README.md",
    the_page_on_campaigns_runs: "docs/campaigns.md",
    the_page_on_channels_runs: "docs/channels.md",
    the_page_on_conformance_runs: "docs/conformance.md",
    the_page_on_events_runs: "docs/events.md",
    the_page_on_jobs_runs: "docs/jobs.md",
    the_page_on_the_library_runs: "docs/library.md",
    the_page_on_limits_runs: "docs/limits.md",
    the_page_on_operations_runs: "docs/operations.md",
    the_page_on_production_runs: "docs/production.md",
    the_page_on_providers_runs: "docs/providers.md",
    the_page_on_streams_runs: "docs/stream.md",
    the_page_on_the_api_runs: "docs/api.md",
}

/// The Markdown files of the documentation, relative to the repository.
pub fn files() -> anyhow::Result<Vec<String>> {
    fn gather(folder: &Path, under: &str, found: &mut Vec<String>) -> anyhow::Result<()> {
        for entry in std::fs::read_dir(folder)? {
            let entry = entry?;
            let name = format!("{under}/{}", entry.file_name().to_string_lossy());
            if entry.file_type()?.is_dir() {
                gather(&entry.path(), &name, found)?;
            } else if Path::new(&name).extension().is_some_and(|extension| extension == "md") {
                found.push(name);
            }
        }
        Ok(())
    }
    let mut found = vec!["README.md".to_owned(), "ARCHITECTURE.md".to_owned(), "CHANGELOG.md".to_owned()];
    gather(&root().join("docs"), "docs", &mut found)?;
    Ok(found)
}

#[test]
fn every_code_block_is_run_or_checked_or_marked_with_a_reason() -> anyhow::Result<()> {
    let mut count = 0;
    for page in files()? {
        let blocks = blocks(&read(&page)?).with_context(|| page.clone())?;
        let runs = |block: &Block| {
            matches!(block.usage, Usage::Shell | Usage::Sql | Usage::Configuration | Usage::File(_))
        };
        if blocks.iter().any(runs) {
            ensure!(PAGES.contains(&&*page), "no test runs {page}; add it to `pages!`");
        }
        for block in blocks.iter().filter(|block| block.usage == Usage::Json) {
            let parsed = serde_json::from_str::<serde_json::Value>(&block.text);
            parsed.with_context(|| format!("{page}: the block of line {}", block.line))?;
        }
        count += blocks.len();
    }
    ensure!(count >= 60, "only {count} blocks were found");
    Ok(())
}
