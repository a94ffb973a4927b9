//! Commands that only read. They never create a private cluster, and scripts can use them without `--json`.

/// Paths of the commands. A command that is neither here nor in the list of the test below changes something and must have `--json`.
pub const COMMANDS: &[&str] = &[
    "accounts check",
    "accounts list",
    "campaign status",
    "campaign verify",
    "campaign watch",
    "channels dead",
    "channels executors",
    "channels links",
    "channels messages",
    "channels outbox",
    "channels show",
    "doctor",
    "events list",
    "events stuck",
    "in-doubt list",
    "jobs alerts",
    "jobs cards",
    "jobs errors",
    "jobs function list",
    "jobs health",
    "jobs list",
    "jobs schedule list",
    "jobs schedule preview",
    "jobs schedule show",
    "jobs show",
    "keys list",
    "tenants list",
    "trace",
];

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::cli::Cli;

    /// Programs that run until they are stopped, or print something that is no data of the installation.
    const NOT_ABOUT_DATA: &[&str] =
        &["bench", "completions", "demo", "man", "master-key generate", "serve", "sim"];

    /// Every command that can be run, by its path.
    fn commands() -> Vec<(String, clap::Command)> {
        fn walk(command: &clap::Command, path: &str, into: &mut Vec<(String, clap::Command)>) {
            for below in command.get_subcommands().filter(|below| below.get_name() != "help") {
                let path = format!("{path} {}", below.get_name()).trim().to_owned();
                if below.has_subcommands() {
                    walk(below, &path, into);
                } else {
                    into.push((path, below.clone()));
                }
            }
        }
        let mut root = Cli::command();
        root.build();
        let mut commands = Vec::new();
        walk(&root, "", &mut commands);
        commands
    }

    #[test]
    fn every_command_that_changes_something_has_json() {
        let commands = commands();
        assert!(commands.len() > 50, "{}", commands.len());
        for (path, command) in &commands {
            let is_exempt = [COMMANDS, NOT_ABOUT_DATA].iter().any(|list| list.contains(&path.as_str()));
            let has_json = command.get_arguments().any(|argument| argument.get_id() == "json");
            assert!(is_exempt || has_json, "`postrider {path}` changes something and has no --json");
        }
    }

    #[test]
    fn every_command_in_the_lists_exists() {
        let commands = commands();
        for listed in COMMANDS.iter().chain(NOT_ABOUT_DATA) {
            assert!(commands.iter().any(|(path, _)| path == listed), "there is no `postrider {listed}`");
        }
    }
}
