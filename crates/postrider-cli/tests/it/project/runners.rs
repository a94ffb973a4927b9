//! Tests that measure by the clock, or keep every core busy, run alone under both test runners.

use anyhow::Context;

use super::read;

/// The tests that `make test` runs one at a time where cargo-nextest is not installed.
fn alone(makefile: &str) -> anyhow::Result<Vec<&str>> {
    let list = makefile.lines().find_map(|line| line.strip_prefix("ALONE := "));
    Ok(list.context("the Makefile has no ALONE")?.split_whitespace().collect())
}

/// The tests that nextest gives at least three of its five threads, as the filters name them.
fn heavy(config: &str) -> anyhow::Result<Vec<String>> {
    let config: toml::Value = toml::from_str(config)?;
    let overrides = config["profile"]["default"]["overrides"].as_array().context("no overrides")?;
    let mut heavy = Vec::new();
    for one in overrides {
        if one.get("threads-required").and_then(toml::Value::as_integer).is_none_or(|threads| threads < 3) {
            continue;
        }
        for test in one["filter"].as_str().context("no filter")?.split(" or ") {
            let name = test.trim_start_matches("test(").trim_end_matches(')');
            heavy.push(name.trim_matches(['=', '/', '^']).to_owned());
        }
    }
    Ok(heavy)
}

#[test]
fn cargo_test_runs_the_tests_one_at_a_time_that_nextest_runs_alone() -> anyhow::Result<()> {
    let makefile = read("Makefile")?;
    let alone = alone(&makefile)?;
    let heavy = heavy(&read(".config/nextest.toml")?)?;
    assert!(heavy.len() > 5, "{heavy:?}");
    // The long runs are ignored unless a target of the Makefile names them.
    for test in heavy.iter().filter(|test| !test.ends_with("::the_long_run")) {
        assert!(
            alone.iter().any(|prefix| test.starts_with(prefix)),
            "{test} is not in ALONE of the Makefile"
        );
    }
    for prefix in &alone {
        let path =
            format!("crates/postrider-cli/tests/it/{}", prefix.trim_end_matches("::").replace("::", "/"));
        let exists = [format!("{path}.rs"), format!("{path}/mod.rs")].iter().any(|file| read(file).is_ok());
        assert!(prefix.ends_with("::") && exists, "{prefix} is no module of the tests");
    }
    let without = "\t$(CARGO) test --workspace -- $(addprefix --skip=,$(ALONE))\n";
    let then = "\t$(CARGO) test -p postrider-cli --test it -- --test-threads=1 $(ALONE)\n";
    assert!(makefile.contains(&format!("else\n{without}{then}endif")), "{makefile}");
    Ok(())
}
