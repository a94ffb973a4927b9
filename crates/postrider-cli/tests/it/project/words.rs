//! Sentences whose subject is hidden: they begin with who, whoever, what, whatever, nobody or somebody and ask nothing.
//!
//! CONTRIBUTING.md ("Plain words") has the rule. The check reads Markdown; comments, CLI help (doc comments), errors, log lines and names of
//! functions of Rust; comments of SQL, the texts of `comment on` and of exceptions; and `#` comments of everything else.

use std::{fs, path::Path};

use super::root;

/// The files and folders that are checked.
const CHECKED: &[&str] = &[
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
    "clippy.toml",
    "crates",
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
pub(super) type Passage = (usize, String);

/// The sentences of a file that hide their subject, and such names of functions, as `line: sentence`.
fn findings(path: &str, text: &str) -> Vec<String> {
    let (passages, texts) = match Path::new(path).extension().and_then(|extension| extension.to_str()) {
        Some("md") => (markdown(text), Vec::new()),
        Some("rs") => (comments(text, "//"), rust_texts(text)),
        Some("sql") => (comments(text, "--"), sql_texts(text)),
        _ => (comments(text, "#"), Vec::new()),
    };
    let mut found: Vec<Passage> = Vec::new();
    for (line, passage) in passages {
        found.extend(hidden(&passage, false).into_iter().map(|sentence| (line, sentence)));
    }
    for (line, passage) in texts {
        found.extend(hidden(&passage, true).into_iter().map(|sentence| (line, sentence)));
    }
    if path.ends_with(".rs") {
        found.extend(names(text));
    }
    found.into_iter().map(|(line, sentence)| format!("{path}:{line}: {sentence}")).collect()
}

/// The sentences of a passage that hide their subject. Errors and log lines begin with a small letter.
fn hidden(passage: &str, may_begin_small: bool) -> Vec<String> {
    let mut found = Vec::new();
    for sentence in sentences(passage) {
        let bare = sentence.trim_start_matches(|char: char| !char.is_alphanumeric() && !"`{".contains(char));
        let first = bare.split(|char: char| !char.is_alphabetic()).next().unwrap_or_default();
        let is_hidden = |word: &&str| first == *word || may_begin_small && first == word.to_lowercase();
        if HIDDEN.iter().any(is_hidden) && !sentence.trim_end_matches(['*', '"', ')', '_']).ends_with('?') {
            found.push(sentence);
        }
    }
    found
}

/// The names of functions that hide their subject.
fn names(text: &str) -> Vec<Passage> {
    let hides = |name: &str| {
        let words: Vec<&str> = name.split('_').collect();
        let is = |word: &str, hidden: &[&str]| hidden.iter().any(|hidden| hidden.to_lowercase() == word);
        words.len() > 1 && is(words[0], &HIDDEN)
            || words.iter().any(|word| is(word, &["whoever", "nobody", "somebody"]))
    };
    let mut found = Vec::new();
    for (at, line) in text.lines().enumerate() {
        let line = line.trim_start_matches("    ");
        let starts = ["fn ", "async fn ", "pub fn ", "pub async fn ", "pub(super) fn ", "pub(crate) fn "];
        if let Some(rest) = starts.iter().find_map(|start| line.strip_prefix(start)) {
            let name =
                rest.split(|char: char| !char.is_alphanumeric() && char != '_').next().unwrap_or_default();
            if hides(name) {
                found.push((at + 1, name.to_owned()));
            }
        }
    }
    found
}

/// The string literals of errors and log lines.
fn rust_texts(text: &str) -> Vec<Passage> {
    let mut passages = Vec::new();
    for marker in ["bail!(", "ensure!(", "anyhow!(", "error!(", "warn!(", "info!(", "debug!(", "#[error("] {
        for (at, _) in text.match_indices(marker) {
            let statement = &text[at + marker.len()..];
            let line = text[..at].matches('\n').count() + 1;
            passages.extend(literals(statement).into_iter().map(|literal| (line, literal)));
        }
    }
    passages
}

/// The string literals before the end of the call, without the line breaks that a backslash hides.
fn literals(statement: &str) -> Vec<String> {
    let (mut literals, mut literal, mut depth) = (Vec::new(), None::<String>, 1);
    let mut chars = statement.chars();
    while let Some(char) = chars.next() {
        match (&mut literal, char) {
            (Some(text), '\\') => text.extend(chars.next().filter(|next| !next.is_whitespace())),
            (Some(_), '"') => literals.extend(literal.take()),
            (Some(text), _) => text.push(char),
            (None, '"') => literal = Some(String::new()),
            (None, '(') => depth += 1,
            (None, ')') if depth == 1 => break,
            (None, ')') => depth -= 1,
            (None, _) => {}
        }
    }
    literals
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
pub(super) fn comments(text: &str, marker: &str) -> Vec<Passage> {
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

/// The texts of `comment on … is '…'`, of exceptions with their hints, and of refused changes; adjacent literals are one text.
pub(super) fn sql_texts(text: &str) -> Vec<Passage> {
    let mut passages = Vec::new();
    for marker in ["comment on ", "raise exception ", "hint = ", "detail = ", "message = ", "refuse_change("]
    {
        for (at, _) in text.match_indices(marker) {
            let mut rest = &text[at + marker.len()..];
            if marker == "comment on " {
                let statement = rest.split(";\n").next().unwrap_or_default();
                let Some((_, quoted)) =
                    statement.split_once(" is\n").or_else(|| statement.split_once(" is "))
                else {
                    continue;
                };
                rest = quoted;
            }
            let mut passage = String::new();
            while let Some(literal) = rest.trim_start().strip_prefix('\'') {
                let Some((inside, after)) = literal.split_once('\'') else { break };
                passage.push_str(inside);
                // Two quotes without a space between them are one quote.
                if after.starts_with('\'') {
                    passage.push('\'');
                }
                rest = after;
            }
            if !passage.is_empty() {
                passages.push((text[..at].matches('\n').count() + 1, passage));
            }
        }
    }
    passages
}

/// The files of a folder with their text, or the file itself. Some files are not text.
pub(super) fn files(path: &str) -> anyhow::Result<Vec<(String, String)>> {
    let place = root().join(path);
    if !place.is_dir() {
        return Ok(fs::read_to_string(place).map(|text| (path.to_owned(), text)).into_iter().collect());
    }
    let mut entries: Vec<_> = fs::read_dir(place)?.collect::<Result<_, _>>()?;
    entries.sort_by_key(fs::DirEntry::file_name);
    let mut found = Vec::new();
    for entry in entries {
        found.extend(files(&format!("{path}/{}", entry.file_name().to_string_lossy()))?);
    }
    Ok(found)
}

#[test]
fn no_text_and_no_name_hides_its_subject() -> anyhow::Result<()> {
    let mut found = Vec::new();
    for path in CHECKED {
        anyhow::ensure!(root().join(path).exists(), "{path} does not exist");
        for (path, text) in files(path)? {
            // This file has samples of such texts.
            if !path.ends_with("tests/it/project/words.rs") {
                found.extend(findings(&path, &text));
            }
        }
    }
    assert!(
        found.is_empty(),
        "name the actor, then the verb (CONTRIBUTING.md, \"Plain words\"):\n{}",
        found.join("\n")
    );
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
    assert_eq!(
        lines(
            "b.sql",
            "select 'what';\nraise exception 'nobody must be'\n    using hint = 'it''s fine; name '\n'one';\nx.refuse_change('what was stays');\n"
        ),
        ["2: nobody must be", "5: what was stays"]
    );
    // Put together at run time, so that this file has no such texts.
    let (bail, fun) = ("bail!(", "fn ");
    assert_eq!(
        lines(
            "b.rs",
            &format!("{bail}\"what (a) \\\n  is not\");\nlet x = \"what\";\n{bail}\"{{what}}: fine\")\n")
        ),
        ["1: what (a) is not"]
    );
    assert_eq!(
        lines(
            "c.rs",
            &format!("{fun}what_is_lost() {{}}\npub {fun}a_key_of_nobody() {{}}\n{fun}what() {{}}\n")
        ),
        ["1: what_is_lost", "2: a_key_of_nobody"]
    );
    assert_eq!(lines("a.toml", "a = 1 # What a is\n"), ["1: What a is"]);
}
