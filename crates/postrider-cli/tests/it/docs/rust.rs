//! The Rust blocks of the documentation, given to the compiler with the libraries that these tests were built with (decision 0017).
//!
//! All Rust blocks of a page are one crate. A page that shows a `Cargo.toml` gets the dependencies listed there and no others.

use std::{
    collections::{BTreeMap, BTreeSet},
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, ensure};
use serde_json::Value;

use crate::project::cargo::artifacts;

use super::{
    blocks::{Usage, blocks},
    pages::files,
    read, root,
};

/// Dependencies of a page without a manifest.
const USUAL: &[&str] = &["postrider", "serde_json", "sqlx", "tokio"];

#[test]
fn every_rust_block_compiles_and_its_tests_pass() -> anyhow::Result<()> {
    let mut libraries = None;
    let mut pages = 0;
    for page in files()? {
        let blocks = blocks(&read(&page)?)?;
        let source: Vec<&str> =
            blocks.iter().filter(|block| block.usage == Usage::Rust).map(|block| &*block.text).collect();
        if source.is_empty() {
            continue;
        }
        let manifest = blocks.iter().find(|block| block.usage == Usage::File("Cargo.toml".to_owned()));
        let dependencies = match manifest {
            Some(manifest) => dependencies(&manifest.text).with_context(|| page.clone())?,
            None => USUAL.iter().map(|name| (*name).to_owned()).collect(),
        };
        if libraries.is_none() {
            libraries = Some(built_libraries()?);
        }
        let libraries = libraries.as_ref().context("no libraries")?;
        compile_and_run(&source.join("\n"), &dependencies, libraries).with_context(|| page.clone())?;
        pages += 1;
    }
    ensure!(pages >= 2, "only {pages} pages have Rust blocks");
    Ok(())
}

/// Names of the libraries that a manifest lists. Its paths must lead into this repository.
fn dependencies(manifest: &str) -> anyhow::Result<BTreeSet<String>> {
    let manifest: toml::Table = manifest.parse()?;
    let mut names = BTreeSet::new();
    for section in ["dependencies", "dev-dependencies"] {
        for (name, dependency) in manifest.get(section).and_then(toml::Value::as_table).into_iter().flatten()
        {
            if let Some(path) = dependency.get("path").and_then(toml::Value::as_str) {
                let path =
                    path.strip_prefix("../postrider/").context("a path that does not lead into the clone")?;
                let theirs: toml::Table =
                    fs::read_to_string(root().join(path).join("Cargo.toml"))?.parse()?;
                ensure!(theirs["package"]["name"].as_str() == Some(name), "{path} is not {name}");
                for feature in
                    dependency.get("features").and_then(toml::Value::as_array).into_iter().flatten()
                {
                    let feature = feature.as_str().unwrap_or_default();
                    ensure!(theirs["features"].get(feature).is_some(), "{name} has no feature {feature}");
                }
            }
            names.insert(name.replace('-', "_"));
        }
    }
    Ok(names)
}

/// Files of the libraries that these tests were built with, by name. Cargo says where they are; it has nothing left to build.
fn built_libraries() -> anyhow::Result<BTreeMap<String, Vec<PathBuf>>> {
    let mut libraries: BTreeMap<String, Vec<PathBuf>> = BTreeMap::new();
    for message in artifacts()?.iter().filter(|message| message["profile"]["test"] == false) {
        let files = message["filenames"].as_array().into_iter().flatten().filter_map(Value::as_str);
        let library = files.into_iter().find(|file| file.ends_with(".rlib") || file.ends_with(".so"));
        if let (Some(name), Some(library)) = (message["target"]["name"].as_str(), library) {
            libraries.entry(name.replace('-', "_")).or_default().push(PathBuf::from(library));
        }
    }
    Ok(libraries)
}

/// Whether a library was built with this file. Cargo builds some libraries twice, once for macros and build scripts; the metadata of a library names
/// the files of its dependencies.
fn uses(library: &[u8], file: &Path) -> bool {
    let name = file.file_stem().unwrap_or_default().to_string_lossy();
    let hash = name.rsplit('-').next().unwrap_or_default().as_bytes();
    !hash.is_empty() && library.windows(hash.len()).any(|window| window == hash)
}

fn compile_and_run(
    source: &str,
    dependencies: &BTreeSet<String>,
    libraries: &BTreeMap<String, Vec<PathBuf>>,
) -> anyhow::Result<()> {
    let scratch = tempfile::tempdir()?;
    let (file, program) = (scratch.path().join("page.rs"), scratch.path().join("page"));
    fs::write(&file, source)?;
    let mut compiler = Command::new(env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()));
    compiler.args([
        "--edition=2024",
        "--test",
        "-D",
        "warnings",
        "-A",
        "dead_code",
        "-C",
        "debuginfo=0",
        "-o",
    ]);
    compiler.arg(&program).arg(&file);
    let mut folders = BTreeSet::new();
    let ours =
        libraries.get("postrider").and_then(|files| files.first()).context("cargo built no postrider")?;
    let ours = fs::read(ours)?;
    for name in dependencies {
        let files = libraries.get(name).with_context(|| format!("cargo built no {name}"))?;
        let library = match &files[..] {
            [library] => library,
            files => {
                files.iter().find(|file| uses(&ours, file)).with_context(|| format!("no {name} is ours"))?
            }
        };
        compiler.arg("--extern").arg(format!("{name}={}", library.display()));
        folders.extend(library.parent().map(Path::to_owned));
    }
    for folder in folders {
        compiler.arg("-L").arg(format!("dependency={}", folder.display()));
    }
    let compiled = compiler.output()?;
    ensure!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    let mut tests = Command::new(program);
    for (name, _) in env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("POSTRIDER_")) {
        tests.env_remove(name);
    }
    let ran = tests.current_dir(scratch.path()).output()?;
    ensure!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stdout));
    Ok(())
}
