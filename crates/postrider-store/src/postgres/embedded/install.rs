//! The one command that installs Postgres on this system.

use std::fs;

/// The command for this system, for a certain major version or for the newest.
pub(super) fn command(major: Option<u32>) -> String {
    if cfg!(target_os = "macos") {
        return major
            .map_or("brew install postgresql".to_owned(), |n| format!("brew install postgresql@{n}"));
    }
    command_for(&fs::read_to_string("/etc/os-release").unwrap_or_default(), major)
}

fn command_for(os_release: &str, major: Option<u32>) -> String {
    let family: Vec<&str> = os_release
        .lines()
        .filter_map(|line| line.strip_prefix("ID=").or_else(|| line.strip_prefix("ID_LIKE=")))
        .flat_map(|ids| ids.trim_matches('"').split_whitespace())
        .collect();
    let is = |names: &[&str]| names.iter().any(|name| family.contains(name));
    // Distributions differ in whether a package carries its major version, and how.
    let (install, package, versioned): (_, _, fn(u32) -> String) = if is(&["alpine"]) {
        ("apk add", "postgresql", |n| format!("postgresql{n}"))
    } else if is(&["fedora", "rhel", "centos"]) {
        ("dnf install", "postgresql-server", |n| format!("postgresql{n}-server"))
    } else if is(&["arch"]) {
        ("pacman -S", "postgresql", |_| "postgresql-old-upgrade".to_owned())
    } else if is(&["suse", "opensuse"]) {
        ("zypper install", "postgresql-server", |n| format!("postgresql{n}-server"))
    } else {
        ("apt-get install", "postgresql", |n| format!("postgresql-{n}"))
    };
    format!("{install} {}", major.map_or(package.to_owned(), versioned))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_system_has_its_own_command() {
        for (os_release, major, expected) in [
            ("ID=debian\n", None, "apt-get install postgresql"),
            ("ID=ubuntu\nID_LIKE=debian\n", Some(16), "apt-get install postgresql-16"),
            ("ID=\"rocky\"\nID_LIKE=\"rhel centos fedora\"\n", None, "dnf install postgresql-server"),
            ("ID=alpine\n", Some(17), "apk add postgresql17"),
            ("", None, "apt-get install postgresql"),
        ] {
            assert_eq!(command_for(os_release, major), expected);
        }
    }
}
