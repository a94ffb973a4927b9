//! The files of the project: versions, licenses, links, and the words of comments and documentation.
pub mod cargo;
mod links;
mod mirror;
mod packaging;
mod runners;
mod send_jobs;
mod words;

use std::{collections::BTreeSet, path::PathBuf, process::Command};

use anyhow::{Context, ensure};

/// The repository.
fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(path: &str) -> anyhow::Result<String> {
    std::fs::read_to_string(root().join(path)).with_context(|| path.to_owned())
}

#[test]
fn every_file_names_the_same_version_of_rust() -> anyhow::Result<()> {
    let toolchain: toml::Table = read("rust-toolchain.toml")?.parse()?;
    let pinned = toolchain["toolchain"]["channel"].as_str().context("no channel")?.to_owned();
    let components = toolchain["toolchain"]["components"].as_array().context("no components")?;
    for needed in ["rustfmt", "clippy"] {
        ensure!(components.iter().any(|component| component.as_str() == Some(needed)), "no {needed}");
    }
    let manifest: toml::Table = read("Cargo.toml")?.parse()?;
    let oldest = manifest["workspace"]["package"]["rust-version"].as_str().context("no rust-version")?;
    ensure!(
        pinned == oldest || pinned.starts_with(&format!("{oldest}.")),
        "rust-toolchain.toml has {pinned}, rust-version in Cargo.toml is {oldest}"
    );
    for (file, words) in [
        ("README.md", format!("Rust ({oldest} or newer)")),
        ("scripts/setup", format!("version {oldest} or newer")),
    ] {
        ensure!(read(file)?.contains(&words), "{file} does not say `{words}`");
    }
    // CI reads rust-toolchain.toml, so its file has no version that could differ.
    let workflow = read(".github/workflows/ci.yml")?;
    ensure!(workflow.contains("run: rustup toolchain install\n"), "CI names a toolchain");
    ensure!(workflow.contains("run: make test\n"), "CI runs another command than the README names");
    ensure!(read(".ci/run")?.contains("\nexec make test\n"), ".ci/run runs another command");
    Ok(())
}

/// The licenses that deny.toml allows.
fn allowed_licenses() -> anyhow::Result<BTreeSet<String>> {
    let rules: toml::Table = read("deny.toml")?.parse()?;
    let allowed = rules["licenses"]["allow"].as_array().context("no list of licenses")?;
    Ok(allowed.iter().filter_map(|license| Some(license.as_str()?.to_owned())).collect())
}

/// The packages of Cargo.lock that this machine needs.
fn packages() -> anyhow::Result<Vec<serde_json::Value>> {
    let compiler = Command::new("rustc").arg("-vV").output().context("rustc")?;
    let compiler = String::from_utf8(compiler.stdout)?;
    let host =
        compiler.lines().find_map(|line| line.strip_prefix("host: ")).context("rustc names no host")?;
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let listed = Command::new(cargo)
        .args(["metadata", "--format-version=1", "--locked", "--offline", "--filter-platform", host])
        .current_dir(root())
        .output()?;
    ensure!(listed.status.success(), "{}", String::from_utf8_lossy(&listed.stderr));
    let metadata: serde_json::Value = serde_json::from_slice(&listed.stdout)?;
    Ok(metadata["packages"].as_array().context("no packages")?.clone())
}

#[test]
fn every_dependency_has_a_license_that_deny_toml_allows() -> anyhow::Result<()> {
    let allowed = allowed_licenses()?;
    let packages = packages()?;
    ensure!(packages.len() > 100, "cargo lists only {} packages", packages.len());
    for package in &packages {
        let name = &package["name"];
        let license = package["license"].as_str().with_context(|| format!("{name} states no license"))?;
        ensure!(is_allowed(license, &allowed)?, "deny.toml does not allow the license of {name}: {license}");
    }
    Ok(())
}

#[test]
fn no_dependency_is_banned_or_comes_from_elsewhere_than_the_registry() -> anyhow::Result<()> {
    let rules: toml::Table = read("deny.toml")?.parse()?;
    let banned = rules["bans"]["deny"].as_array().context("no list of bans")?;
    let banned: Vec<&str> = banned.iter().filter_map(|ban| ban["crate"].as_str()).collect();
    ensure!(banned.contains(&"aws-lc-rs") && banned.contains(&"openssl-sys"), "{banned:?}");
    let lock: toml::Table = read("Cargo.lock")?.parse()?;
    for package in lock["package"].as_array().context("no packages")? {
        let name = package["name"].as_str().context("a package without a name")?;
        ensure!(!banned.contains(&name), "deny.toml bans {name}");
        let source = package.get("source").and_then(toml::Value::as_str);
        // Packages of the workspace have no source.
        if let Some(source) = source {
            ensure!(source == "registry+https://github.com/rust-lang/crates.io-index", "{name}: {source}");
        }
    }
    Ok(())
}

/// Whether a license expression (SPDX, or with the old `/` for `OR`) can be met by allowed licenses alone.
fn is_allowed(expression: &str, allowed: &BTreeSet<String>) -> anyhow::Result<bool> {
    let spaced = expression.replace('(', " ( ").replace(')', " ) ").replace('/', " OR ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut at = 0;
    let met = any_of(&words, &mut at, allowed)?;
    ensure!(at == words.len(), "`{expression}` does not end at `{}`", words[at]);
    Ok(met)
}

fn any_of(words: &[&str], at: &mut usize, allowed: &BTreeSet<String>) -> anyhow::Result<bool> {
    let mut met = all_of(words, at, allowed)?;
    while words.get(*at) == Some(&"OR") {
        *at += 1;
        met |= all_of(words, at, allowed)?;
    }
    Ok(met)
}

fn all_of(words: &[&str], at: &mut usize, allowed: &BTreeSet<String>) -> anyhow::Result<bool> {
    let mut met = one(words, at, allowed)?;
    while words.get(*at) == Some(&"AND") {
        *at += 1;
        met &= one(words, at, allowed)?;
    }
    Ok(met)
}

fn one(words: &[&str], at: &mut usize, allowed: &BTreeSet<String>) -> anyhow::Result<bool> {
    let word = *words.get(*at).context("the expression ends too early")?;
    *at += 1;
    if word == "(" {
        let met = any_of(words, at, allowed)?;
        ensure!(words.get(*at) == Some(&")"), "a bracket is not closed");
        *at += 1;
        return Ok(met);
    }
    if words.get(*at) == Some(&"WITH") {
        let exception = words.get(*at + 1).context("the expression ends too early")?;
        *at += 2;
        return Ok(allowed.contains(&format!("{word} WITH {exception}")));
    }
    Ok(allowed.contains(word))
}

#[test]
fn a_license_expression_is_met_by_allowed_licenses_alone() -> anyhow::Result<()> {
    let allowed: BTreeSet<String> = ["MIT", "ISC"].map(str::to_owned).into();
    for (expression, expected) in [
        ("MIT", true),
        ("GPL-3.0", false),
        ("MIT OR GPL-3.0", true),
        ("GPL-3.0/MIT", true),
        ("MIT AND GPL-3.0", false),
        ("(MIT OR GPL-3.0) AND ISC", true),
        ("(MIT OR ISC) AND GPL-3.0", false),
        ("MIT WITH LLVM-exception", false),
        ("GPL-3.0 OR MIT AND ISC", true),
    ] {
        assert_eq!(is_allowed(expression, &allowed)?, expected, "{expression}");
    }
    assert!(is_allowed("MIT AND", &allowed).is_err());
    assert!(is_allowed("(MIT", &allowed).is_err());
    assert!(is_allowed("MIT ISC", &allowed).is_err());
    Ok(())
}

#[test]
fn the_license_of_the_crates_is_there_in_full() -> anyhow::Result<()> {
    let manifest: toml::Table = read("Cargo.toml")?.parse()?;
    assert_eq!(manifest["workspace"]["package"]["license"].as_str(), Some("MIT OR Apache-2.0"));
    let mit = read("LICENSE-MIT")?;
    ensure!(
        mit.contains("Copyright (c) The Postrider authors") && mit.contains("WITHOUT WARRANTY OF ANY KIND"),
        "{mit}"
    );
    let apache = read("LICENSE-APACHE")?;
    ensure!(apache.contains("Copyright The Postrider authors"), "no copyright line");
    ensure!(
        apache.contains("END OF TERMS AND CONDITIONS") && apache.lines().count() > 190,
        "the text is not complete"
    );
    Ok(())
}
