//! The documentation: its statements against the code, and its code blocks in a shell.

mod blocks;
mod examples;
mod facts;
pub mod pages;
mod rust;
mod session;

use std::path::{Path, PathBuf};

/// The repository.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(path: &str) -> anyhow::Result<String> {
    Ok(std::fs::read_to_string(root().join(path))?)
}
