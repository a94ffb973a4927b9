//! The files of `sql/` in the order of application.

use std::borrow::Cow;

use sha2::{Digest, Sha256};

/// When a file is applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Schemas and tables: once, to an empty database.
    Baseline,
    /// A table or data step of a later release: once.
    Upgrade,
    /// Functions, triggers, views, policies and grants: whenever the text changed.
    Replaceable,
}

impl Kind {
    /// The name in `postrider.sources`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Baseline => "baseline",
            Self::Upgrade => "upgrade",
            Self::Replaceable => "replaceable",
        }
    }
}

/// One file.
#[derive(Debug, Clone)]
pub struct Source {
    /// When it is applied.
    pub kind: Kind,
    /// Path below `sql/`.
    pub path: Cow<'static, str>,
    /// The statements.
    pub sql: Cow<'static, str>,
}

macro_rules! sources {
    ($($kind:ident $path:literal,)*) => {
        &[$(Source {
            kind: Kind::$kind,
            path: Cow::Borrowed($path),
            sql: Cow::Borrowed(include_str!(concat!("../../../../../sql/", $path))),
        }),*]
    };
}

/// The roles and the records of the migrator. Runs at every migration, as the login that migrates.
pub(super) const ROLES: &str = include_str!("../../../../../sql/roles.sql");

/// Version of the baseline files. It grows when a later release folds its upgrade steps into new ones.
const BASELINE: i32 = 1;

/// Every file but `roles.sql`, in the order in which an empty database gets them. `scripts/sqlx` reads this list, too.
const SOURCES: &[Source] = sources![
    Baseline "schemas.sql",

    // Functions that column defaults of tables call.
    Replaceable "jobs/functions/base.sql",

    // Tables. A table refers only to tables above it.
    Baseline "tenancy/tables.sql",
    Baseline "events/tables.sql",
    Baseline "campaigns/tables/audience.sql",
    Baseline "campaigns/tables/campaigns.sql",
    Baseline "campaigns/tables/runs.sql",
    Baseline "campaigns/tables/messages.sql",
    Baseline "campaigns/tables/jobs.sql",
    Baseline "campaigns/tables/outbox.sql",
    Baseline "campaigns/tables/accounts.sql",
    Baseline "campaigns/tables/history.sql",
    Baseline "channels/tables.sql",
    Baseline "jobs/tables.sql",

    // Upgrade steps of later releases, in order: `Upgrade "upgrades/0001_purpose.sql",`.

    // Functions, triggers, views, policies and grants. tenancy comes first: policies call current_tenant_id, and the guards
    // of every area use protect and refuse_change.
    Replaceable "tenancy/functions/context.sql",
    Replaceable "tenancy/functions/guards.sql",
    Replaceable "tenancy/functions/overview.sql",
    Replaceable "tenancy/functions/transactions.sql",
    Replaceable "tenancy/functions/keys.sql",
    Replaceable "tenancy/functions/sessions.sql",
    Replaceable "tenancy/functions/accounts.sql",
    Replaceable "tenancy/functions/requests.sql",
    Replaceable "tenancy/functions/master_key.sql",
    Replaceable "tenancy/functions/installation.sql",
    Replaceable "tenancy/functions/adoption.sql",
    Replaceable "tenancy/functions/removal.sql",

    Replaceable "events/functions/guards.sql",
    Replaceable "events/functions/contract.sql",
    Replaceable "events/functions/relay.sql",
    Replaceable "events/functions/operate.sql",

    Replaceable "campaigns/functions/access.sql",
    Replaceable "campaigns/functions/guards.sql",
    Replaceable "campaigns/functions/keys.sql",
    Replaceable "campaigns/functions/history.sql",
    Replaceable "campaigns/functions/audience.sql",
    Replaceable "campaigns/functions/people.sql",
    Replaceable "campaigns/functions/create.sql",
    Replaceable "campaigns/functions/deploy.sql",
    Replaceable "campaigns/functions/messages.sql",
    Replaceable "campaigns/functions/claim.sql",
    Replaceable "campaigns/functions/read.sql",
    Replaceable "campaigns/functions/limits.sql",
    Replaceable "campaigns/functions/circuits.sql",
    Replaceable "campaigns/functions/reserve.sql",
    Replaceable "campaigns/functions/settle.sql",
    Replaceable "campaigns/functions/release.sql",
    Replaceable "campaigns/functions/finish.sql",
    Replaceable "campaigns/functions/doubt.sql",
    Replaceable "campaigns/functions/resolve.sql",
    Replaceable "campaigns/functions/phases.sql",
    Replaceable "campaigns/functions/pause.sql",
    Replaceable "campaigns/functions/advance.sql",
    Replaceable "campaigns/functions/progress.sql",
    Replaceable "campaigns/functions/status.sql",
    Replaceable "campaigns/functions/retain.sql",

    Replaceable "channels/functions/guards.sql",
    Replaceable "channels/functions/receive.sql",
    Replaceable "channels/functions/sweep.sql",
    Replaceable "channels/functions/dispatch.sql",
    Replaceable "channels/functions/operate.sql",

    Replaceable "jobs/functions/guards.sql",
    Replaceable "jobs/functions/lock_keys.sql",
    Replaceable "jobs/functions/entity_hash.sql",
    Replaceable "jobs/functions/registry.sql",
    Replaceable "jobs/functions/invoke.sql",
    Replaceable "jobs/functions/claim.sql",
    Replaceable "jobs/functions/finish.sql",
    Replaceable "jobs/functions/operate.sql",
    Replaceable "jobs/functions/dependencies.sql",
    Replaceable "jobs/functions/schedule.sql",
    Replaceable "jobs/functions/fire.sql",
    Replaceable "jobs/functions/alerts.sql",
    Replaceable "jobs/functions/notify.sql",
    Replaceable "jobs/functions/measure.sql",
    Replaceable "jobs/functions/retain.sql",
];

/// The first line of an upgrade step that builds indexes `concurrently` and so runs outside a transaction.
pub const CONCURRENTLY: &str = "-- Runs outside a transaction.";

impl Source {
    /// SHA-256 over the text, in hex.
    #[must_use]
    pub fn checksum(&self) -> String {
        hex::encode(Sha256::digest(self.sql.as_bytes()))
    }

    /// The number of an upgrade step, which is the start of its file name.
    pub(super) fn step(&self) -> Option<i32> {
        let name = self.path.rsplit('/').next()?;
        (self.kind == Kind::Upgrade).then(|| name.get(..4)?.parse().ok())?
    }

    /// Whether it cannot run in a transaction.
    pub(super) fn is_concurrent(&self) -> bool {
        self.kind == Kind::Upgrade && self.sql.starts_with(CONCURRENTLY)
    }

    /// The text for a database without rows, where indexes need not be built concurrently.
    pub(super) fn for_an_empty_database(&self) -> Cow<'_, str> {
        if self.is_concurrent() {
            Cow::Owned(self.sql.replace(" concurrently ", " "))
        } else {
            Cow::Borrowed(&self.sql)
        }
    }

    /// Its statements, for a file that runs outside a transaction. Each ends with a semicolon at the end of a line.
    pub(super) fn statements(&self) -> impl Iterator<Item = &str> {
        let has_code = |part: &&str| {
            part.lines().any(|line| !line.trim().is_empty() && !line.trim_start().starts_with("--"))
        };
        self.sql.split_inclusive(";\n").filter(has_code)
    }

    /// Names of the tables whose triggers it replaces.
    pub(super) fn trigger_tables(&self) -> impl Iterator<Item = &str> {
        let statements = self.sql.split("create or replace trigger ").skip(1);
        statements
            .filter_map(|statement| statement.split_whitespace().skip_while(|word| *word != "on").nth(1))
    }

    /// Names of the schemas that it creates.
    pub(super) fn schemas(&self) -> impl Iterator<Item = &str> {
        self.sql.lines().filter_map(|line| line.strip_prefix("create schema ")?.strip_suffix(';'))
    }
}

/// A release of Postrider, as the records name it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Release(pub u32, pub u32, pub u32);

impl Release {
    /// The release that this library belongs to.
    fn current() -> Self {
        env!("CARGO_PKG_VERSION").parse().unwrap_or(Self(0, 0, 0))
    }
}

impl std::str::FromStr for Release {
    type Err = std::num::ParseIntError;

    /// Reads `1.2.3`. The part after a `-` or `+` does not count.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let numbers = text.split(['-', '+']).next().unwrap_or_default();
        let mut parts = numbers.split('.').map(str::parse::<u32>);
        let mut next = || parts.next().unwrap_or(Ok(0));
        Ok(Self(next()?, next()?, next()?))
    }
}

impl std::fmt::Display for Release {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}.{}", self.0, self.1, self.2)
    }
}

/// All files of a release. Tests make releases of their own from the current one.
#[derive(Debug, Clone)]
pub struct Tree {
    /// The release.
    pub release: Release,
    /// Version of its baseline files.
    pub baseline: i32,
    /// Its files, in the order in which an empty database gets them.
    pub sources: Vec<Source>,
}

impl Tree {
    /// The files of this release.
    #[must_use]
    pub fn current() -> Self {
        Self { release: Release::current(), baseline: BASELINE, sources: SOURCES.to_vec() }
    }

    /// Adds an upgrade step after all others.
    #[must_use]
    pub fn with_step(mut self, path: &str, sql: &str) -> Self {
        let after =
            self.sources.iter().rposition(|source| source.kind != Kind::Replaceable).map_or(0, |at| at + 1);
        let step = Source { kind: Kind::Upgrade, path: path.to_owned().into(), sql: sql.to_owned().into() };
        self.sources.insert(after, step);
        self
    }

    /// Replaces the text of a file, or adds a replaceable file after all others.
    #[must_use]
    pub fn with_file(mut self, path: &str, sql: &str) -> Self {
        let text: Cow<'static, str> = sql.to_owned().into();
        match self.sources.iter_mut().find(|source| source.path == path) {
            Some(source) => source.sql = text,
            None => {
                self.sources.push(Source {
                    kind: Kind::Replaceable,
                    path: path.to_owned().into(),
                    sql: text,
                });
            }
        }
        self
    }

    /// Makes it the files of another release.
    #[must_use]
    pub fn of_release(mut self, release: Release) -> Self {
        self.release = release;
        self
    }

    /// The recorded version of a file: that of the baseline, or the number of the step.
    pub(super) fn version_of(&self, source: &Source) -> Option<i32> {
        match source.kind {
            Kind::Baseline => Some(self.baseline),
            Kind::Upgrade => source.step(),
            Kind::Replaceable => None,
        }
    }

    /// Names of all schemas that a complete installation has.
    pub(super) fn schemas(&self) -> impl Iterator<Item = &str> {
        std::iter::once(super::RECORDS_SCHEMA).chain(self.sources.iter().flat_map(Source::schemas))
    }

    /// The text of a file.
    #[must_use]
    pub fn file(&self, path: &str) -> Option<&str> {
        self.sources.iter().find(|source| source.path == path).map(|source| source.sql.as_ref())
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn files_below(folder: &Path, root: &Path, found: &mut Vec<String>) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                files_below(&path, root, found);
            } else if path.extension().is_some_and(|extension| extension == "sql") {
                found.push(path.strip_prefix(root).unwrap().display().to_string());
            }
        }
    }

    #[test]
    fn every_sql_file_is_listed_once_under_its_kind() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../sql");
        let mut files = Vec::new();
        files_below(&root, &root, &mut files);
        files.retain(|path| path != "schema.sql" && path != "roles.sql");
        files.sort_unstable();
        let mut listed: Vec<_> = SOURCES.iter().map(|source| source.path.as_ref()).collect();
        listed.sort_unstable();
        assert_eq!(files, listed);
        for source in SOURCES {
            let kind = match &*source.path {
                path if path.starts_with("upgrades/") => Kind::Upgrade,
                path if path.contains("/functions/") => Kind::Replaceable,
                _ => Kind::Baseline,
            };
            assert_eq!(source.kind, kind, "{}", source.path);
        }
    }

    #[test]
    fn upgrade_steps_are_numbered_from_one_and_explain_why_they_are_safe() {
        let steps = SOURCES.iter().filter(|source| source.kind == Kind::Upgrade);
        for (number, step) in (1..).zip(steps) {
            assert_eq!(step.step(), Some(number), "{}", step.path);
            assert!(step.sql.contains("Safe while workers run"), "{} says why it is safe", step.path);
        }
    }

    #[test]
    fn a_release_is_ordered_by_its_numbers() {
        let release = |text: &str| text.parse::<Release>().unwrap();
        assert!(release("0.10.0") > release("0.9.9") && release("1.0.0-rc.1") == Release(1, 0, 0));
        assert!("one".parse::<Release>().is_err());
    }

    #[test]
    fn a_concurrent_step_is_split_into_statements() {
        let step = Source {
            kind: Kind::Upgrade,
            path: "upgrades/0007_faster.sql".into(),
            sql: format!("{CONCURRENTLY}\n-- Why.\ndrop index concurrently if exists x;\ncreate index concurrently x\n    on t (a);\n-- End.\n").into(),
        };
        assert!(step.is_concurrent());
        assert_eq!(step.step(), Some(7));
        assert_eq!(step.statements().count(), 2);
        assert!(step.for_an_empty_database().contains("create index x\n"));
    }
}
