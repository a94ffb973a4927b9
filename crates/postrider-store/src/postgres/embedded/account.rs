//! The user that runs the server. Postgres refuses root, so root hands the server to another user.

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use super::errors::EmbeddedError;

/// The user of the server: ourselves, or another if we are root.
#[derive(Debug, Clone)]
pub(super) struct ServerUser {
    account: Account,
    we_are_root: bool,
}

#[derive(Debug, Clone)]
struct Account {
    name: String,
    uid: u32,
    gid: u32,
}

impl ServerUser {
    /// The owner of the existing data. Without data, our own user, or `postgres` or `nobody` if we are root.
    pub fn for_data(pgdata: &Path) -> Result<Self, EmbeddedError> {
        let me = rustix::process::geteuid().as_raw();
        let my_group = rustix::process::getegid().as_raw();
        let we_are_root = me == 0;
        // A directory that cannot be seen is reported when it is used.
        let owner = fs::metadata(pgdata).ok().map(|meta| (meta.uid(), meta.gid()));
        let account = match owner {
            Some((uid, gid)) if we_are_root && uid != 0 => {
                by_uid(uid).unwrap_or(Account { name: uid.to_string(), uid, gid })
            }
            Some(_) if we_are_root => {
                let reason = "it belongs to root, as whom PostgreSQL refuses to run".to_owned();
                return Err(EmbeddedError::DataDir { path: pgdata.to_owned(), reason });
            }
            Some((uid, _)) if uid != me => {
                let owner = by_uid(uid).map_or(uid.to_string(), |account| account.name);
                return Err(EmbeddedError::OtherOwner { pgdata: pgdata.to_owned(), owner });
            }
            None if we_are_root => {
                by_name("postgres").or_else(|| by_name("nobody")).ok_or(EmbeddedError::NoServerUser)?
            }
            _ => Account {
                name: by_uid(me).map_or(me.to_string(), |account| account.name),
                uid: me,
                gid: my_group,
            },
        };
        Ok(Self { account, we_are_root })
    }

    /// Runs a server program as this user, and waits for it.
    pub fn run(&self, command: &mut Command) -> Result<Output, EmbeddedError> {
        command.output().map_err(|source| EmbeddedError::Run {
            program: command.get_program().into(),
            user: self.account.name.clone(),
            source,
        })
    }

    /// A command that will run as this user, untouched by the `PG…` variables meant for clients.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        for (name, _) in env::vars_os() {
            if name.as_encoded_bytes().starts_with(b"PG") {
                command.env_remove(name);
            }
        }
        command.env("LC_ALL", "C").env("TZ", "UTC").current_dir("/").stdin(Stdio::null());
        if self.we_are_root {
            // Setting the user while root also clears the supplementary groups.
            command
                .uid(self.account.uid)
                .gid(self.account.gid)
                .env("HOME", "/")
                .env("USER", &self.account.name);
        }
        command
    }

    /// Makes this user the owner of a file that we made.
    pub fn own(&self, path: &Path) -> io::Result<()> {
        if self.we_are_root { chown(path, Some(self.account.uid), Some(self.account.gid)) } else { Ok(()) }
    }

    /// Whether the server's user differs from ours, so that it needs access to the directories.
    pub fn is_another(&self) -> bool {
        self.we_are_root
    }

    /// Fails if this user may not enter `dir` or one of its parents.
    pub fn must_reach(&self, dir: &Path) -> Result<(), EmbeddedError> {
        if !self.we_are_root {
            return Ok(());
        }
        let mut parents: Vec<&Path> = dir.ancestors().collect();
        parents.reverse();
        match parents.into_iter().find(|parent| !self.may_enter(parent)) {
            Some(parent) => Err(EmbeddedError::Untraversable {
                user: self.account.name.clone(),
                parent: parent.to_owned(),
            }),
            None => Ok(()),
        }
    }

    /// Whether the mode of `dir` allows this user to enter.
    pub fn may_enter(&self, dir: &Path) -> bool {
        let Ok(meta) = fs::metadata(dir) else {
            return false;
        };
        let needed = if meta.uid() == self.account.uid {
            0o100
        } else if meta.gid() == self.account.gid {
            0o010
        } else {
            0o001
        };
        meta.mode() & needed != 0
    }
}

fn by_name(name: &str) -> Option<Account> {
    accounts().into_iter().find(|account| account.name == name)
}

fn by_uid(uid: u32) -> Option<Account> {
    accounts().into_iter().find(|account| account.uid == uid)
}

fn accounts() -> Vec<Account> {
    let passwd = fs::read_to_string(PathBuf::from("/etc/passwd")).unwrap_or_default();
    passwd.lines().filter_map(parse_account).collect()
}

fn parse_account(line: &str) -> Option<Account> {
    let mut fields = line.split(':');
    let name = fields.next()?.to_owned();
    let _password = fields.next()?;
    let uid = parse_id(fields.next()?)?;
    let gid = parse_id(fields.next()?)?;
    Some(Account { name, uid, gid })
}

/// macOS writes the id of `nobody` as -2.
fn parse_id(text: &str) -> Option<u32> {
    text.parse().ok().or_else(|| text.parse::<i32>().ok().map(i32::cast_unsigned))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accounts_are_read_from_passwd_lines() {
        let account =
            parse_account("postgres:x:101:104:PostgreSQL,,,:/var/lib/postgresql:/bin/bash").unwrap();
        assert_eq!((account.name.as_str(), account.uid, account.gid), ("postgres", 101, 104));
        assert_eq!(parse_account("nobody:*:-2:-2:x:/:/bin/false").unwrap().uid, u32::MAX - 1);
        assert!(parse_account("# a comment").is_none());
    }
}
