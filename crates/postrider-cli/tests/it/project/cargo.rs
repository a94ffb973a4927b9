//! Cargo, and its description of the workspace that these tests were built in.

use std::{
    env,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::ensure;
use serde_json::Value;

/// The folder of this run's build, such as `target`.
pub fn target_dir() -> anyhow::Result<PathBuf> {
    let test = env::current_exe()?;
    Ok(test.ancestors().nth(3).unwrap_or(Path::new("")).to_owned())
}

/// Cargo in the repository, without network, and without the variables that cargo sets for a test: they would make some build scripts
/// run again.
pub fn cargo(arguments: &[&str]) -> Command {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(arguments).arg("--offline").current_dir(env!("CARGO_MANIFEST_DIR"));
    for (name, _) in env::vars_os() {
        let text = name.to_string_lossy();
        if ["CARGO_PKG_", "CARGO_MANIFEST_"].iter().any(|prefix| text.starts_with(prefix)) {
            cargo.env_remove(&name);
        }
    }
    cargo
}

/// The output of a cargo command that must succeed.
pub fn output(cargo: &mut Command) -> anyhow::Result<String> {
    let output = cargo.output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8(output.stdout)?)
}

/// Everything that the tests of the workspace are built with, as cargo reports it. It has nothing left to build after
/// `cargo nextest run --workspace` or `cargo test --workspace`.
pub fn artifacts() -> anyhow::Result<Vec<Value>> {
    let built = output(&mut cargo(&["test", "--workspace", "--no-run", "--message-format=json"]))?;
    let messages = built.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    Ok(messages.filter(|message| message["reason"] == "compiler-artifact").collect())
}
