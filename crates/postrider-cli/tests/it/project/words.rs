//! Sentences whose subject is hidden: they begin with who, whoever, what, whatever, nobody or somebody and ask nothing.
//!
//! CONTRIBUTING.md ("Plain words") has the rule. The check reads Markdown, comments and CLI help (doc comments) of Rust, comments of SQL and
//! the texts of `comment on`, and `#` comments of everything else.

use std::{collections::BTreeMap, fs, path::Path};

use super::root;

/// Files and folders in which no such sentence is left. Add a folder once it is clean;
/// `cargo test -p postrider-cli --test it -- --ignored --nocapture unchecked_folders` counts the sentences of the others.
const CLEAN: &[&str] = &[
    ".cargo",
    ".ci",
    ".config",
    ".editorconfig",
    ".github",
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "CODE_OF_CONDUCT.md",
    "CONTRIBUTING.md",
    "Cargo.toml",
    "Makefile",
    "README.md",
    "SECURITY.md",
    "bench",
    "crates/postrider",
    "crates/postrider-api",
    "crates/postrider-cli/src",
    "crates/postrider-cli/tests/it/project",
    "crates/postrider-model",
    "crates/postrider-providers",
    "crates/postrider-sim",
    "clippy.toml",
    "deny.toml",
    "docs",
    "examples/application/src",
    "packaging",
    "rust-toolchain.toml",
    "rustfmt.toml",
    "scripts",
    "sql",
];

const HIDDEN: [&str; 6] = ["Who", "Whoever", "What", "Whatever", "Nobody", "Somebody"];

/// A piece of text that a reader sees as one: a paragraph, a list item, a table cell, a comment. With the number of its first line.
type Passage = (usize, String);

/// The sentences of a file that hide their subject, as `line: sentence`.
fn findings(path: &str, text: &str) -> Vec<String> {
    let passages = match Path::new(path).extension().and_then(|extension| extension.to_str()) {
        Some("md") => markdown(text),
        Some("rs") => comments(text, "//"),
        Some("sql") => {
            let mut passages = comments(text, "--");
            passages.extend(texts_of_comment_on(text));
            passages
        }
        _ => comments(text, "#"),
    };
    let found = passages.iter().flat_map(|(line, passage)| {
        hidden(passage).into_iter().map(move |sentence| format!("{path}:{line}: {sentence}"))
    });
    found.collect()
}

/// The sentences of a passage that hide their subject.
fn hidden(passage: &str) -> Vec<String> {
    let mut found = Vec::new();
    for sentence in sentences(passage) {
        let bare = sentence.trim_start_matches(|char: char| !char.is_alphanumeric() && char != '`');
        let first = bare.split(|char: char| !char.is_alphabetic()).next().unwrap_or_default();
        if HIDDEN.contains(&first) && !sentence.trim_end_matches(['*', '"', ')', '_']).ends_with('?') {
            found.push(sentence);
        }
    }
    found
}

/// Cuts a passage after full stops, question marks and exclamation marks that a space follows.
fn sentences(passage: &str) -> Vec<String> {
    let words: Vec<&str> = passage.split_whitespace().collect();
    let mut sentences = vec![String::new()];
    for word in words {
        if let Some(last) = sentences.last_mut() {
            last.push_str(if last.is_empty() { "" } else { " " });
            last.push_str(word);
        }
        if word.trim_end_matches(['*', '"', ')', '_']).ends_with(['.', '?', '!']) {
            sentences.push(String::new());
        }
    }
    sentences.retain(|sentence| !sentence.is_empty());
    sentences
}

/// Adds a line to the passage that is open, or begins one.
fn add(passages: &mut Vec<Passage>, is_open: &mut bool, line: usize, text: &str) {
    match passages.last_mut() {
        Some((_, passage)) if *is_open => {
            passage.push(' ');
            passage.push_str(text);
        }
        _ => passages.push((line, text.to_owned())),
    }
    *is_open = true;
}

/// Paragraphs, list items, headings and table cells, without code blocks.
fn markdown(page: &str) -> Vec<Passage> {
    let mut passages = Vec::new();
    let (mut is_code, mut is_open) = (false, false);
    for (at, line) in page.lines().enumerate() {
        let text = line.trim();
        if text.starts_with("```") {
            is_code = !is_code;
            is_open = false;
        } else if is_code {
        } else if text.is_empty() {
            is_open = false;
        } else if let Some(cells) = text.strip_prefix('|') {
            is_open = false;
            passages.extend(cells.split('|').map(|cell| (at + 1, cell.trim().to_owned())));
        } else {
            let begins = text.starts_with(['#', '>']) || text.starts_with("- ") || text.starts_with("* ");
            let is_numbered = text.split_once(". ").is_some_and(|(number, _)| number.parse::<u32>().is_ok());
            is_open &= !begins && !is_numbered;
            let text = if is_numbered { text.split_once(". ").map_or(text, |(_, rest)| rest) } else { text };
            add(&mut passages, &mut is_open, at + 1, text);
            is_open &= !text.starts_with('#');
        }
    }
    passages
}

/// Comments; those on successive lines are one. A comment after code counts by itself.
fn comments(text: &str, marker: &str) -> Vec<Passage> {
    let mut passages = Vec::new();
    let mut is_open = false;
    for (at, line) in text.lines().enumerate() {
        let line = line.trim();
        if let Some(comment) = line.strip_prefix(marker) {
            let comment = comment.trim_start_matches(['/', '!', '-', '#']).trim();
            if comment.is_empty() {
                is_open = false;
            } else {
                add(&mut passages, &mut is_open, at + 1, comment);
            }
            continue;
        }
        is_open = false;
        // A marker inside of a string begins no comment.
        if let Some((code, comment)) = line.split_once(&format!(" {marker} "))
            && code.matches('"').count() % 2 == 0
        {
            passages.push((at + 1, comment.to_owned()));
        }
    }
    passages
}

/// The texts of `comment on … is '…'`.
fn texts_of_comment_on(text: &str) -> Vec<Passage> {
    let mut passages = Vec::new();
    for (at, _) in text.match_indices("comment on ") {
        let statement = text[at..].split(";\n").next().unwrap_or_default();
        if let Some((_, quoted)) = statement.split_once(" is\n").or_else(|| statement.split_once(" is ")) {
            let line = text[..at].lines().count() + 1;
            passages.push((line, quoted.trim().trim_matches('\'').to_owned()));
        }
    }
    passages
}

/// The findings of a file, or of all files of a folder.
fn findings_in(path: &str) -> anyhow::Result<Vec<String>> {
    let place = root().join(path);
    if !place.is_dir() {
        // Some files are not text.
        return Ok(fs::read_to_string(place).map(|text| findings(path, &text)).unwrap_or_default());
    }
    let mut entries: Vec<_> = fs::read_dir(place)?.collect::<Result<_, _>>()?;
    entries.sort_by_key(fs::DirEntry::file_name);
    let mut found = Vec::new();
    for entry in entries {
        found.extend(findings_in(&format!("{path}/{}", entry.file_name().to_string_lossy()))?);
    }
    Ok(found)
}

#[test]
fn no_sentence_of_a_clean_folder_hides_its_subject() -> anyhow::Result<()> {
    let mut found = Vec::new();
    for path in CLEAN {
        anyhow::ensure!(root().join(path).exists(), "{path} does not exist");
        found.extend(findings_in(path)?);
    }
    assert!(
        found.is_empty(),
        "name the actor, then the verb (CONTRIBUTING.md, \"Plain words\"):\n{}",
        found.join("\n")
    );
    Ok(())
}

#[test]
#[ignore = "counts what is left to rewrite"]
fn unchecked_folders() -> anyhow::Result<()> {
    let mut counts = BTreeMap::<String, usize>::new();
    for folder in ["bench", "crates"] {
        for finding in findings_in(folder)? {
            let path = finding.split(':').next().unwrap_or_default();
            if CLEAN.iter().any(|clean| Path::new(path).starts_with(clean)) {
                continue;
            }
            println!("{finding}");
            let parts: Vec<&str> = path.split('/').collect();
            let depth = if parts.get(2) == Some(&"tests") { 4 } else { 3 };
            *counts.entry(parts[..depth.min(parts.len() - 1)].join("/")).or_default() += 1;
        }
    }
    for (folder, count) in counts {
        println!("{count:5} {folder}");
    }
    Ok(())
}

#[test]
fn hidden_subjects_are_found_in_each_kind_of_file() {
    let lines = |path: &str, text: &str| -> Vec<String> {
        let found = findings(path, text).into_iter();
        found.map(|finding| finding.trim_start_matches(path).trim_start_matches(':').to_owned()).collect()
    };
    assert_eq!(
        lines(
            "a.md",
            "Fine. What is\nlost, is lost. Why?\n\n- Who asks? Ada.\n- **Nobody** waits.\n\n| Whoever comes | what |\n"
        ),
        ["1: What is lost, is lost.", "5: - **Nobody** waits.", "7: Whoever comes"]
    );
    assert_eq!(lines("a.md", "```sh\n# What it does\n```\nWhat next?\n"), [""; 0]);
    assert_eq!(
        lines("a.rs", "/// Whatever\n/// it is.\nfn a() {} // Somebody else\nlet b = \"What\";\n"),
        ["1: Whatever it is.", "3: Somebody else"]
    );
    assert_eq!(
        lines("a.sql", "-- Who comes late.\nselect 1;\ncomment on table a is\n    'What was\n    sent.';\n"),
        ["1: Who comes late.", "3: What was sent."]
    );
    assert_eq!(lines("a.toml", "a = 1 # What a is\n"), ["1: What a is"]);
}
