//! Pages show the code of the example programs, which `library.rs` runs.

use anyhow::{Context, ensure};

use super::{
    blocks::{Usage, blocks},
    read, root,
};

/// Example programs of the library, and the page that shows each of them.
const SHOWN: &[(&str, &str)] = &[
    ("adapter", "docs/providers.md"),
    ("function", "docs/jobs.md"),
    ("publish", "docs/events.md"),
    ("relay_handler", "docs/events.md"),
    ("serve", "docs/library.md"),
];

#[test]
fn pages_show_the_code_of_the_examples() -> anyhow::Result<()> {
    for (name, page) in SHOWN {
        let path = format!("crates/postrider/examples/{name}.rs");
        let source = read(&path)?;
        let (_, after) =
            source.split_once("// docs:begin\n").with_context(|| format!("{path}: no docs:begin"))?;
        let (code, _) = after.split_once("// docs:end").with_context(|| format!("{path}: no docs:end"))?;
        let blocks = blocks(&read(page)?)?;
        let is_shown = blocks.iter().any(|block| block.usage == Usage::Rust && block.text == code);
        ensure!(is_shown, "no block of {page} is the code between the marks of {path}");
    }
    Ok(())
}

#[test]
fn every_example_is_on_a_page_and_in_the_table_of_the_library() -> anyhow::Result<()> {
    let mut names = Vec::new();
    for file in std::fs::read_dir(root().join("crates/postrider/examples"))? {
        names.push(file?.path().file_stem().context("no name")?.to_string_lossy().into_owned());
    }
    names.sort();
    assert_eq!(names, SHOWN.iter().map(|(name, _)| *name).collect::<Vec<_>>());
    let (page, front) = (read("docs/library.md")?, read("crates/postrider/src/lib.rs")?);
    for name in names {
        assert!(page.contains(&format!("| `{name}.rs` |")), "docs/library.md does not name {name}.rs");
        assert!(
            front.contains(&format!("| `{name}.rs` |")),
            "the front page of the crate does not name {name}.rs"
        );
    }
    Ok(())
}
