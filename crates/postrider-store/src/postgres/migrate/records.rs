//! The record of the files that were applied, and its comparison with the files of a release.

use std::collections::HashMap;

use sqlx::PgConnection;

use super::sources::{Kind, Release, Source, Tree};
use crate::{StoreError, postgres::unprepared::unprepared};

/// One row of `postrider.sources`.
#[derive(Debug, Clone)]
pub(super) struct Record {
    path: String,
    kind: String,
    version: Option<i32>,
    checksum: String,
    release: String,
}

/// The record of a database.
#[derive(Debug, Default)]
pub(super) struct Records {
    rows: Vec<Record>,
    /// Whether the database has the numbered steps of versions before the first release.
    has_numbered_steps: bool,
}

/// Files that a database lacks.
#[derive(Debug)]
pub(super) struct Pending<'a> {
    /// Whether the database has no schema of Postrider. Then every file is pending.
    pub is_empty_database: bool,
    /// Upgrade steps, in order.
    pub steps: Vec<&'a Source>,
    /// Replaceable files that are new or changed, in order.
    pub files: Vec<&'a Source>,
    /// Recorded replaceable files that the release no longer has.
    pub removed: Vec<String>,
}

impl Pending<'_> {
    /// How many files differ.
    pub fn len(&self) -> usize {
        self.steps.len() + self.files.len() + self.removed.len()
    }

    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        !self.is_empty_database && self.len() == 0
    }
}

const NEWER: &str = "which this version of Postrider does not know: it was migrated by a newer one; run that version, or \
                     restore a backup from before";

/// Reads the record. A database that was never migrated has an empty one.
pub(super) async fn read(connection: &mut PgConnection) -> Result<Records, sqlx::Error> {
    let exists = sqlx::query!(
        r#"
        select to_regclass('postrider.sources') is not null as "sources!",
               to_regclass('postrider.migrations') is not null as "numbered!"
        "#
    )
    .fetch_one(unprepared(&mut *connection))
    .await?;
    let mut records = Records { rows: Vec::new(), has_numbered_steps: exists.numbered };
    if exists.sources {
        records.rows = sqlx::query_as!(
            Record,
            r#"
            select path, kind, version, checksum, release
              from postrider.sources
             order by kind, version, path collate "C"
            "#
        )
        .fetch_all(unprepared(connection))
        .await?;
    }
    Ok(records)
}

/// Records that a file was applied.
pub(super) async fn write(
    connection: &mut PgConnection,
    tree: &Tree,
    source: &Source,
) -> Result<(), sqlx::Error> {
    sqlx::query!(
        r#"
        insert into postrider.sources (path, kind, version, checksum, release)
        values ($1, $2, $3, $4, $5)
            on conflict (path) do update
           set checksum = excluded.checksum,
               release = excluded.release,
               applied_at = now()
        "#,
        &source.path,
        source.kind.name(),
        tree.version_of(source),
        source.checksum(),
        tree.release.to_string(),
    )
    .execute(unprepared(connection))
    .await?;
    Ok(())
}

/// Removes the record of replaceable files that no longer exist.
pub(super) async fn forget(connection: &mut PgConnection, paths: &[String]) -> Result<(), sqlx::Error> {
    sqlx::query!("delete from postrider.sources where path = any ($1)", paths)
        .execute(unprepared(connection))
        .await?;
    Ok(())
}

impl Records {
    /// The files that the database lacks. Refuses a database that another version made.
    pub(super) fn pending<'a>(&self, tree: &'a Tree) -> Result<Pending<'a>, StoreError> {
        if self.has_numbered_steps {
            return Err(StoreError::Unfit(
                "this database was migrated by numbered steps of a version before the first release, which no release \
                 upgrades; nothing was changed; create a new database, run `postrider migrate` there, and set \
                 database.url to it"
                    .to_owned(),
            ));
        }
        let of_kind = |kind: Kind| tree.sources.iter().filter(move |source| source.kind == kind);
        if !self.rows.iter().any(|row| row.kind == Kind::Baseline.name()) {
            return Ok(Pending {
                is_empty_database: true,
                steps: of_kind(Kind::Upgrade).collect(),
                files: of_kind(Kind::Replaceable).collect(),
                removed: Vec::new(),
            });
        }

        let known: HashMap<&str, &Source> =
            tree.sources.iter().map(|source| (source.path.as_ref(), source)).collect();
        let recorded: HashMap<&str, &Record> = self.rows.iter().map(|row| (row.path.as_str(), row)).collect();
        let mut removed = Vec::new();
        for row in &self.rows {
            row.refuse_newer_baseline(tree)?;
            match known.get(row.path.as_str()).filter(|source| source.kind.name() == row.kind) {
                Some(source) => row.refuse_difference(source, tree)?,
                None if row.kind == Kind::Replaceable.name() && row.release_is_known(tree.release) => {
                    removed.push(row.path.clone());
                }
                None => return Err(StoreError::Unfit(format!("the database has {}, {NEWER}", row.path))),
            }
        }
        if let Some(missing) = of_kind(Kind::Baseline).find(|source| !recorded.contains_key(&*source.path)) {
            return Err(StoreError::Unfit(format!(
                "the record of the database lacks {}: the binary or the record was changed; run the version that \
                 migrated it",
                missing.path
            )));
        }
        Ok(Pending {
            is_empty_database: false,
            steps: of_kind(Kind::Upgrade).filter(|step| !recorded.contains_key(&*step.path)).collect(),
            files: of_kind(Kind::Replaceable)
                .filter(|file| recorded.get(&*file.path).is_none_or(|row| row.checksum != file.checksum()))
                .collect(),
            removed,
        })
    }
}

impl Record {
    /// Whether this release or an earlier one applied it.
    fn release_is_known(&self, release: Release) -> bool {
        self.release.parse::<Release>().is_ok_and(|applied| applied <= release)
    }

    fn refuse_newer_baseline(&self, tree: &Tree) -> Result<(), StoreError> {
        match self.version.filter(|_| self.kind == Kind::Baseline.name()) {
            Some(version) if version > tree.baseline => {
                Err(StoreError::Unfit(format!("the database has version {version} of the baseline, {NEWER}")))
            }
            Some(version) if version < tree.baseline => Err(StoreError::Unfit(format!(
                "the database has version {version} of the baseline, and this version of Postrider begins with version {}; \
                 run `postrider migrate` of the last release before it first",
                tree.baseline
            ))),
            _ => Ok(()),
        }
    }

    /// Refuses a baseline file or a step with another text, and a replaceable file that a newer release changed.
    fn refuse_difference(&self, source: &Source, tree: &Tree) -> Result<(), StoreError> {
        if self.checksum == source.checksum() {
            return Ok(());
        }
        if source.kind != Kind::Replaceable {
            return Err(StoreError::Unfit(format!(
                "{} of the database (checksum {:.12}) is not the one this version of Postrider has (checksum {:.12}): the \
                 binary or the record was changed; run the version that migrated it",
                self.path,
                self.checksum,
                source.checksum()
            )));
        }
        if self.release_is_known(tree.release) {
            return Ok(());
        }
        Err(StoreError::Unfit(format!("the database has {} of release {}, {NEWER}", self.path, self.release)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(tree: &Tree, source: &Source) -> Record {
        Record {
            path: source.path.to_string(),
            kind: source.kind.name().to_owned(),
            version: tree.version_of(source),
            checksum: source.checksum(),
            release: tree.release.to_string(),
        }
    }

    fn of(tree: &Tree) -> Records {
        Records {
            rows: tree.sources.iter().map(|source| row(tree, source)).collect(),
            has_numbered_steps: false,
        }
    }

    #[test]
    fn pending_are_new_steps_and_changed_files_of_this_or_an_earlier_release() {
        let old = Tree::current()
            .with_step("upgrades/0001_a.sql", "select 1")
            .with_file("x/functions/a.sql", "select 1");
        let new = old
            .clone()
            .with_step("upgrades/0002_b.sql", "select 2")
            .with_file("x/functions/a.sql", "select 2")
            .with_file("x/functions/b.sql", "select 3");
        let records = of(&old);
        assert!(records.pending(&old).unwrap().is_empty());
        let pending = records.pending(&new).unwrap();
        assert_eq!(pending.steps.iter().map(|step| &*step.path).collect::<Vec<_>>(), ["upgrades/0002_b.sql"]);
        let files: Vec<_> = pending.files.iter().map(|file| &*file.path).collect();
        assert_eq!(files, ["x/functions/a.sql", "x/functions/b.sql"]);
        assert!(!pending.is_empty_database && pending.removed.is_empty());

        // A file that was renamed is applied under its new name, and its old name is forgotten.
        let renamed = Tree::current()
            .with_step("upgrades/0001_a.sql", "select 1")
            .with_file("x/functions/c.sql", "select 1");
        let pending = records.pending(&renamed).unwrap();
        assert_eq!((pending.files.len(), pending.removed), (1, vec!["x/functions/a.sql".to_owned()]));

        assert!(Records::default().pending(&new).unwrap().is_empty_database);
    }

    #[test]
    fn a_newer_or_changed_schema_is_refused_with_an_explanation() {
        let ours = Tree::current();
        let refused = |records: &Records| records.pending(&ours).unwrap_err().to_string();

        let newer = Tree::current().with_step("upgrades/0001_later.sql", "select 1");
        assert!(refused(&of(&newer)).contains("has upgrades/0001_later.sql, which this version"));
        let later = |tree: Tree| tree.of_release(Release(99, 0, 0));
        assert!(
            refused(&of(&later(Tree::current().with_file("x/functions/a.sql", ""))))
                .contains("migrated by a newer one")
        );
        let path = "tenancy/functions/keys.sql";
        assert!(
            refused(&of(&later(Tree::current().with_file(path, "select 1"))))
                .contains("of release 99.0.0, which")
        );
        // A later release that changed nothing is no obstacle.
        assert!(of(&later(Tree::current())).pending(&ours).unwrap().is_empty());

        let mut baseline = Tree::current();
        baseline.baseline += 1;
        assert!(refused(&of(&baseline)).contains("version 2 of the baseline, which"));
        let mut edited = of(&Tree::current());
        edited.rows[0].checksum = "0".repeat(64);
        assert!(refused(&edited).contains("is not the one this version"));
        let mut incomplete = of(&Tree::current());
        incomplete.rows.retain(|row| row.path != "jobs/tables.sql");
        assert!(refused(&incomplete).contains("lacks jobs/tables.sql"));
        let numbered = Records { rows: Vec::new(), has_numbered_steps: true };
        assert!(refused(&numbered).contains("create a new database"));
    }
}
