//! Code that must not compile: a provider call without a reservation, a second call with the same one, and a reservation made by hand.
//!
//! Each case names the errors that the compiler must report, on the lines where it must report them: `//~ E0308`. The first case has
//! none, which shows that the others do not fail because of the way they are compiled.

use std::{
    collections::BTreeSet,
    env,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, bail, ensure};
use serde_json::Value;

/// A line, and the error reported there.
type Errors = BTreeSet<(u64, String)>;

#[test]
fn no_call_without_a_reservation_no_copy_no_use_after_settling_none_made_by_hand() -> anyhow::Result<()> {
    let libraries = built_libraries()?;
    let cases = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/compile_fail");
    let mut seen = 0;
    for case in std::fs::read_dir(cases)? {
        let case = case?.path();
        let expected = expected_errors(&std::fs::read_to_string(&case)?);
        let is_correct = case.ends_with("correct_use.rs");
        ensure!(expected.is_empty() == is_correct, "{} must name the errors to expect", case.display());
        let (reported, printed) = compile(&case, &libraries)?;
        ensure!(
            reported == expected,
            "{}: expected {expected:?}, not {reported:?}\n{printed}",
            case.display()
        );
        seen += 1;
    }
    ensure!(seen == 7, "{seen} cases");
    Ok(())
}

/// The libraries that these tests were built with. Cargo prints their paths; it has nothing left to build.
fn built_libraries() -> anyhow::Result<Vec<(String, PathBuf)>> {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["test", "--workspace", "--no-run", "--offline", "--message-format=json"]);
    // The variables that cargo sets for a test would make some build scripts run again.
    for (name, _) in env::vars_os() {
        let text = name.to_string_lossy();
        if ["CARGO_PKG_", "CARGO_MANIFEST_"].iter().any(|prefix| text.starts_with(prefix)) {
            cargo.env_remove(&name);
        }
    }
    let built = cargo.current_dir(env!("CARGO_MANIFEST_DIR")).output()?;
    ensure!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    let messages = String::from_utf8(built.stdout)?;
    let mut libraries = Vec::new();
    for name in ["postrider_model", "postrider_store", "postrider_providers"] {
        let found = messages.lines().find_map(|line| {
            let message: Value = serde_json::from_str(line).ok()?;
            let is_library = message["target"]["name"] == name && message["profile"]["test"] == false;
            let files = is_library.then(|| message["filenames"].as_array().cloned())??;
            files.iter().filter_map(Value::as_str).find(|file| file.ends_with(".rlib")).map(PathBuf::from)
        });
        libraries.push((name.to_owned(), found.with_context(|| format!("cargo built no {name}"))?));
    }
    Ok(libraries)
}

fn expected_errors(source: &str) -> Errors {
    let noted =
        source.lines().zip(1..).filter_map(|(line, number)| Some((line.split_once("//~ ")?.1, number)));
    noted.flat_map(|(codes, number)| codes.split(' ').map(move |code| (number, code.to_owned()))).collect()
}

/// The errors that the compiler reports, and its whole output.
fn compile(case: &Path, libraries: &[(String, PathBuf)]) -> anyhow::Result<(Errors, String)> {
    let nowhere = tempfile::tempdir()?;
    let mut compiler = Command::new(env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()));
    compiler.args([
        "--edition=2024",
        "--crate-type=lib",
        "--emit=metadata",
        "--error-format=json",
        "--out-dir",
    ]);
    compiler.arg(nowhere.path()).arg(case);
    for (name, file) in libraries {
        compiler.arg("--extern").arg(format!("{name}={}", file.display()));
        let dependencies = file.parent().context("a library lies in a folder")?;
        compiler.arg("-L").arg(format!("dependency={}", dependencies.display()));
    }
    let output = compiler.output()?;
    let printed = String::from_utf8(output.stderr)?;
    let mut errors = Errors::new();
    for line in printed.lines() {
        let diagnostic: Value = serde_json::from_str(line).with_context(|| printed.clone())?;
        // The last error only counts the others, and has no span.
        let place = diagnostic["spans"]
            .as_array()
            .and_then(|spans| spans.iter().find(|span| span["is_primary"] == true));
        if let (true, Some(place)) = (diagnostic["level"] == "error", place) {
            let code = diagnostic["code"]["code"].as_str().unwrap_or("an error without a code");
            errors.insert((place["line_start"].as_u64().unwrap_or_default(), code.to_owned()));
        }
    }
    if output.status.success() != errors.is_empty() {
        bail!("{}: {}\n{printed}", case.display(), output.status);
    }
    Ok((errors, printed))
}
