//! A test that needs environment variables runs itself again in a child process with these variables.

use std::process::Command;

const MARK: &str = "POSTRIDER_TEST_CHILD";

/// Whether this process is the child process.
pub fn is_child() -> bool {
    std::env::var_os(MARK).is_some()
}

/// Runs one test of this binary with these variables. A failure shows its output.
pub fn run_again(test: &str, variables: &[(&str, &str)]) {
    let output = Command::new(std::env::current_exe().unwrap())
        .args([test, "--exact", "--nocapture"])
        .env(MARK, "1")
        .envs(variables.iter().copied())
        .output()
        .unwrap();
    let printed = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{printed}{errors}");
    assert!(printed.contains("1 passed"), "no test is called `{test}`: {printed}");
}
