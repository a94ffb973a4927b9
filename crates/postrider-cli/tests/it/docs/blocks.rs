//! The fenced code blocks of a Markdown page.
//!
//! The words after the language say how the tests use a block; a reader sees none of them:
//!
//! | info string | use |
//! |---|---|
//! | `sh` | run in the page's shell, after the blocks above it |
//! | `sql` | given to psql, with the page's `$DB` as the database |
//! | `toml` | read as a configuration file |
//! | `toml file=NAME`, `sh file=NAME`, … | saved under this name in the working directory of the page's shell |
//! | `json` | parsed |
//! | `rust` | compiled as a test program, and run |
//! | `text output` | compared with the output of the `sh` block above it; `…` stands for any text |
//! | `text`, `mermaid` | a drawing or words: neither run nor checked here |
//! | `… no-run` | not run; an HTML comment right above the block says why |
//!
//! In a `sh` block, a command whose comment begins with `# refused` must fail, and a comment line that begins with `# {`, `# [`
//! or `# …` is a line of the block's output.

use anyhow::{Context, ensure};

/// A code block.
#[derive(Debug)]
pub struct Block {
    /// Number of the line with the opening fence, from 1.
    pub line: usize,
    pub text: String,
    pub usage: Usage,
}

/// How the tests use a block.
#[derive(Debug, PartialEq)]
pub enum Usage {
    Shell,
    Sql,
    Configuration,
    /// Saved under this name.
    File(String),
    Json,
    Rust,
    /// Expected output of the shell block before it.
    Output,
    /// Words, or a block that is marked with a reason.
    Shown,
}

/// Finds the blocks of a page. An unmarked block that no test can use is an error.
pub fn blocks(page: &str) -> anyhow::Result<Vec<Block>> {
    let lines: Vec<&str> = page.lines().collect();
    let mut blocks: Vec<Block> = Vec::new();
    let mut at = 0;
    while at < lines.len() {
        let Some(info) = lines[at].trim_start().strip_prefix("```") else {
            at += 1;
            continue;
        };
        let indent = lines[at].len() - lines[at].trim_start().len();
        let length = lines[at + 1..]
            .iter()
            .position(|line| line.trim() == "```")
            .with_context(|| format!("the block of line {} has no end", at + 1))?;
        let text = lines[at + 1..at + 1 + length].iter().map(|line| line.get(indent..).unwrap_or_default());
        let usage = usage(info, reason_above(&lines[..at])).with_context(|| format!("line {}", at + 1))?;
        if usage == Usage::Output {
            let before = blocks.last().map(|block| &block.usage);
            ensure!(before == Some(&Usage::Shell), "line {}: no sh block before this output", at + 1);
        }
        blocks.push(Block { line: at + 1, text: text.map(|line| format!("{line}\n")).collect(), usage });
        at += length + 2;
    }
    Ok(blocks)
}

fn usage(info: &str, reason: Option<&str>) -> anyhow::Result<Usage> {
    let mut words = info.split_whitespace();
    let language = words.next().unwrap_or_default();
    let attributes: Vec<&str> = words.collect();
    if attributes == ["no-run"] {
        let reason = reason.context("`no-run` needs an HTML comment above the block that says why")?;
        ensure!(reason.split_whitespace().count() >= 3, "`{reason}` is no reason");
        return Ok(Usage::Shown);
    }
    if let [attribute] = attributes[..]
        && let Some(name) = attribute.strip_prefix("file=")
    {
        return Ok(Usage::File(name.to_owned()));
    }
    match (language, &attributes[..]) {
        ("sh", []) => Ok(Usage::Shell),
        ("sql", []) => Ok(Usage::Sql),
        ("toml", []) => Ok(Usage::Configuration),
        ("json", []) => Ok(Usage::Json),
        ("rust", []) => Ok(Usage::Rust),
        ("text", ["output"]) => Ok(Usage::Output),
        ("text" | "mermaid", []) => Ok(Usage::Shown),
        _ => anyhow::bail!(
            "no test runs a block `{info}`; mark it `no-run` and say why in an HTML comment above it"
        ),
    }
}

/// The HTML comment in the last line above a block that is not empty.
fn reason_above<'a>(above: &[&'a str]) -> Option<&'a str> {
    let last = above.iter().rev().find(|line| !line.trim().is_empty())?;
    Some(last.trim().strip_prefix("<!--")?.strip_suffix("-->")?.trim())
}

#[test]
fn a_block_that_is_neither_used_nor_marked_is_an_error() {
    let error = |page: &str| format!("{:#}", blocks(page).unwrap_err());
    assert!(error("text\n\n```python\nprint()\n```\n").contains("line 3: no test runs a block `python`"));
    assert!(error("```\nls\n```\n").contains("no test runs a block ``"));
    assert!(error("```sh no-run\nls\n```\n").contains("HTML comment"));
    assert!(error("<!-- because -->\n```sh no-run\nls\n```\n").contains("is no reason"));
    assert!(error("```sh\nls\n").contains("has no end"));
    assert!(error("```text output\nls\n```\n").contains("no sh block before"));
}

#[test]
fn blocks_are_found_with_their_lines_and_without_their_indentation() -> anyhow::Result<()> {
    let page = "1. a\n\n   ```sh\n   ls |\n     wc\n   ```\n<!-- it needs a vendor -->\n```sh no-run\ncurl\n```\n```toml file=a.toml\nb = 1\n```\n";
    let found = blocks(page)?;
    let seen: Vec<_> = found.iter().map(|block| (block.line, &*block.text, &block.usage)).collect();
    let file = Usage::File("a.toml".to_owned());
    let expected = [(3, "ls |\n  wc\n", &Usage::Shell), (8, "curl\n", &Usage::Shown), (11, "b = 1\n", &file)];
    assert_eq!(seen, expected);
    Ok(())
}
