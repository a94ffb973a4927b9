//! Commands that only read. They never create a private cluster, and scripts can use them without `--json`.

/// Paths of the commands. The test below requires that every command is here or in one of its two lists, and that a command that changes
/// something has `--json`.
pub const COMMANDS: &[&str] = &[
    "accounts check",
    "accounts list",
    "campaign export",
    "campaign failures",
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
    "leads list",
    "leads show",
    "overview",
    "relay sinks",
    "tenants context",
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
        &["bench", "catalogue", "completions", "demo", "man", "master-key generate", "serve", "sim"];

    /// Commands that change the installation. In embedded mode they make a private cluster where there is none.
    const CHANGING: &[&str] = &[
        "accounts add",
        "accounts limit",
        "accounts remove",
        "accounts rotate",
        "adopt",
        "campaign complete",
        "campaign create",
        "campaign deploy",
        "campaign fail",
        "campaign import",
        "campaign pause",
        "campaign rerun",
        "campaign resume",
        "campaign retry",
        "campaign start",
        "channels executor remove",
        "channels executor set",
        "channels link",
        "channels requeue",
        "channels retry",
        "channels unlink",
        "dashboard",
        "events close",
        "events publish",
        "events retry",
        "in-doubt resolve",
        "jobs cancel",
        "jobs decide",
        "jobs function put",
        "jobs function remove",
        "jobs invoke",
        "jobs monitor",
        "jobs resolve",
        "jobs retry",
        "jobs schedule add",
        "jobs schedule disable",
        "jobs schedule enable",
        "jobs schedule remove",
        "keys create",
        "keys revoke",
        "leads erase",
        "leads suppress",
        "leads unsuppress",
        "master-key replace-lost",
        "master-key rotate",
        "migrate",
        "relay sinks set",
        "send",
        "tenants create",
        "tenants remove",
        "tenants rotate-context-key",
    ];

    /// Every command that can be run, by its path.
    fn commands() -> Vec<(String, clap::Command)> {
        fn walk(command: &clap::Command, path: &str, into: &mut Vec<(String, clap::Command)>) {
            for below in command.get_subcommands().filter(|below| below.get_name() != "help") {
                let path = format!("{path} {}", below.get_name()).trim().to_owned();
                walk(below, &path, into);
                if !below.is_subcommand_required_set() {
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
        for (path, command) in commands().iter().filter(|(path, _)| CHANGING.contains(&path.as_str())) {
            let has_json = command.get_arguments().any(|argument| argument.get_id() == "json");
            assert!(has_json, "`postrider {path}` changes something and has no --json");
        }
    }

    #[test]
    fn every_command_is_in_one_list_and_every_listed_command_exists() {
        let mut commands: Vec<String> = commands().into_iter().map(|(path, _)| path).collect();
        let mut listed = [COMMANDS, CHANGING, NOT_ABOUT_DATA].concat();
        commands.sort_unstable();
        listed.sort_unstable();
        assert_eq!(commands, listed);
    }
}
