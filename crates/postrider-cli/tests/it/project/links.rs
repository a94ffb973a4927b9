//! Links and paths in the Markdown pages: each target exists, and each anchor is a heading of its page.

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

/// The paths that a page names between backticks: `tests/it/…`, `store/src/…`, `providers/tests/…` and the like. `{a,b}.rs` is two paths.
fn named_paths(page: &str) -> Vec<String> {
    let mut paths = Vec::new();
    for quoted in page.split('`').skip(1).step_by(2) {
        let krate = quoted.trim_start_matches("crates/").trim_start_matches("postrider-");
        let path = match krate.split('/').collect::<Vec<_>>()[..] {
            ["tests", "it", ..] => format!("crates/postrider-cli/{quoted}"),
            ["postrider", "src", ..] => format!("crates/{krate}"),
            [_, "src" | "tests", ..] => format!("crates/postrider-{krate}"),
            ["sql" | "docs" | "scripts", ..] => quoted.to_owned(),
            _ => continue,
        };
        // A place for any name, or a command.
        if path.contains(['<', '*', '…', ' ']) {
            continue;
        }
        match (path.split_once('{'), path.split_once('}')) {
            (Some((before, _)), Some((inside, after))) => {
                let names = inside.rsplit('{').next().unwrap_or_default().split(',');
                paths.extend(names.map(|name| format!("{before}{name}{after}")));
            }
            _ => paths.push(path),
        }
    }
    paths
}

/// The tests that a page names between backticks, as `it::area::file::test`.
fn named_tests(page: &str) -> Vec<&str> {
    page.split('`').skip(1).step_by(2).filter_map(|quoted| quoted.strip_prefix("it::")).collect()
}

#[test]
fn every_path_and_test_that_a_page_names_exists() -> anyhow::Result<()> {
    let (mut paths, mut tests) = (0, 0);
    // A page of the releases names paths as they were.
    for file in files()?.into_iter().filter(|file| file != "CHANGELOG.md") {
        let page = read(&file)?;
        for path in named_paths(&page) {
            ensure!(root().join(&path).exists(), "{file} names {path}, which does not exist");
            paths += 1;
        }
        for test in named_tests(&page) {
            let (module, name) = test.rsplit_once("::").unwrap_or(("", test));
            let source = format!("crates/postrider-cli/tests/it/{}.rs", module.replace("::", "/"));
            ensure!(
                read(&source)?.contains(&format!("fn {name}(")),
                "{file} names the test {test}, which is not in {source}"
            );
            tests += 1;
        }
    }
    ensure!(paths > 60 && tests > 0, "only {paths} paths and {tests} tests were found");
    Ok(())
}

/// The last cells of the rows under a head that ends with this column.
fn cells_of<'a>(page: &'a str, column: &str) -> Vec<&'a str> {
    let mut cells = Vec::new();
    let mut is_under = false;
    for line in page.lines() {
        let Some(row) = line.trim().strip_prefix('|').and_then(|row| row.strip_suffix('|')) else {
            is_under = false;
            continue;
        };
        let cell = row.rsplit(" | ").next().unwrap_or_default().trim();
        if cell == column {
            is_under = true;
        } else if is_under && !row.starts_with("---") {
            cells.push(cell);
        }
    }
    cells
}

#[test]
fn every_guarantee_names_the_file_or_the_test_that_proves_it() -> anyhow::Result<()> {
    let page = read("docs/guarantees.md")?;
    let proofs = cells_of(&page, "how it is proved");
    for proof in &proofs {
        let files = named_paths(proof).into_iter().filter(|path| path.ends_with(".rs"));
        // Another test checks that each of them exists.
        ensure!(files.count() + named_tests(proof).len() > 0, "no file and no test: {proof}");
    }
    ensure!(proofs.len() > 40, "only {} rows were found", proofs.len());
    Ok(())
}

#[test]
fn the_rows_under_a_column_are_found() {
    let page = "| a | b |\n|---|---|\n| 1 | `x` |\n| 2 | y |\n\n| c | d |\n|---|---|\n| 3 | z |\n";
    assert_eq!(cells_of(page, "b"), ["`x`", "y"]);
}

#[test]
fn paths_and_tests_are_found() {
    let page = "`tests/it/a/{b,c}.rs` `store/src/d.rs` `postrider/src/e.rs` `crates/postrider-model/tests/f` `providers/src/<channel>/` `it::g::h`";
    assert_eq!(
        named_paths(page),
        [
            "crates/postrider-cli/tests/it/a/b.rs",
            "crates/postrider-cli/tests/it/a/c.rs",
            "crates/postrider-store/src/d.rs",
            "crates/postrider/src/e.rs",
            "crates/postrider-model/tests/f",
        ]
    );
    assert_eq!(named_tests(page), ["g::h"]);
}

#[test]
fn links_and_anchors_are_found() {
    let page = "# A `b` (c)\n[x](a.md#b), [y](https://example.com)\n```sh\n# no heading [z](z.md)\n```\n## When …\n`[n](n.md)`\n";
    assert_eq!(targets(page), ["a.md#b", "https://example.com"]);
    assert_eq!(anchors(page), ["a-b-c", "when-"]);
}
