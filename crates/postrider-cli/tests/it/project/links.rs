//! Links of the Markdown pages: each target exists, and each anchor is a heading of its page.

use std::path::Path;

use anyhow::ensure;

use super::{read, root};
use crate::docs::pages;

/// Every Markdown page of the repository, relative to it.
fn files() -> anyhow::Result<Vec<String>> {
    let mut files = pages::files()?;
    files
        .extend(["CONTRIBUTING.md", "SECURITY.md", "CODE_OF_CONDUCT.md", "sql/README.md"].map(str::to_owned));
    Ok(files)
}

/// The text of a page outside its code.
fn prose(page: &str) -> String {
    let mut is_code = false;
    let mut prose = String::new();
    for line in page.lines() {
        if line.trim_start().starts_with("```") {
            is_code = !is_code;
        } else if !is_code {
            // Every second piece is between backticks.
            prose.extend(line.split('`').step_by(2));
            prose.push('\n');
        }
    }
    prose
}

/// The targets of a page's links.
fn targets(page: &str) -> Vec<String> {
    let prose = prose(page);
    let targets = prose.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    targets.map(str::to_owned).collect()
}

/// The anchors of a page's headings, as forges make them.
fn anchors(page: &str) -> Vec<String> {
    let mut is_code = false;
    let mut anchors = Vec::new();
    for line in page.lines() {
        is_code ^= line.trim_start().starts_with("```");
        if !is_code && line.starts_with('#') {
            let text = line.trim_start_matches('#').trim().to_lowercase();
            let kept = text.chars().filter(|char| char.is_alphanumeric() || " -_".contains(*char));
            anchors.push(kept.collect::<String>().replace(' ', "-"));
        }
    }
    anchors
}

#[test]
fn every_link_of_the_documentation_leads_somewhere() -> anyhow::Result<()> {
    let mut count = 0;
    for file in files()? {
        let page = read(&file)?;
        for target in targets(&page) {
            if target.contains("://") {
                continue;
            }
            count += 1;
            let (path, anchor) = target.split_once('#').unwrap_or((&target, ""));
            let folder = Path::new(&file).parent().unwrap_or(Path::new(""));
            let path = if path.is_empty() { Path::new(&file).to_owned() } else { folder.join(path) };
            ensure!(root().join(&path).exists(), "{file} links to {target}, which does not exist");
            if !anchor.is_empty() {
                let headings = anchors(&read(&path.to_string_lossy())?);
                ensure!(headings.iter().any(|heading| heading == anchor), "{file}: no heading for {target}");
            }
        }
    }
    ensure!(count > 60, "only {count} links were found");
    Ok(())
}

#[test]
fn links_and_anchors_are_found() {
    let page = "# A `b` (c)\n[x](a.md#b), [y](https://example.com)\n```sh\n# no heading [z](z.md)\n```\n## When …\n`[n](n.md)`\n";
    assert_eq!(targets(page), ["a.md#b", "https://example.com"]);
    assert_eq!(anchors(page), ["a-b-c", "when-"]);
}
