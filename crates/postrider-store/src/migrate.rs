//! Brings the schema forward.
//!
//! Steps are SQL files compiled into the binary, applied in the order of their numbers, each in a transaction of its
//! own together with the row that records it. There is no way back: a step that was applied is never edited, and a
//! database that knows a step this binary does not is left alone.

use std::time::Duration;

use sha2::{Digest, Sha256};
use sqlx::{Connection, PgConnection};

use crate::{StoreError, pool, unnamed::unnamed};

/// One step.
#[derive(Debug, Clone, Copy)]
pub struct Migration {
    /// Its place in the order.
    pub version: i32,
    /// Where it stands, which also says what it is about.
    pub path: &'static str,
    /// What it does.
    pub sql: &'static str,
}

macro_rules! steps {
    ($($version:literal => $path:literal),* $(,)?) => {
        &[$(Migration {
            version: $version,
            path: $path,
            sql: include_str!(concat!("../../../migrations/", $path)),
        }),*]
    };
}

/// Every step there is.
pub const MIGRATIONS: &[Migration] = steps![
    1 => "tenancy/0001_tenants_and_keys.sql",
    2 => "tenancy/0002_provider_accounts.sql",
    3 => "m10_recovery/0003_outbox.sql",
    4 => "m10_recovery/0004_operating_the_outbox.sql",
    5 => "execution/0005_audience.sql",
    6 => "execution/0006_campaigns.sql",
    7 => "execution/0007_deploying.sql",
    8 => "execution/0008_ending_jobs.sql",
    9 => "execution/0009_claiming_jobs.sql",
    10 => "execution/0010_reserving_and_settling.sql",
    11 => "execution/0011_doubt_and_launch.sql",
    12 => "execution/0012_lighter_reservations.sql",
    13 => "execution/0013_resolving.sql",
    14 => "execution/0014_limits.sql",
    15 => "execution/0015_claiming_doubts.sql",
    16 => "execution/0016_phases.sql",
    17 => "tenancy/0017_requests.sql",
    18 => "execution/0018_listing.sql",
    19 => "execution/0019_controlling_phases.sql",
    20 => "execution/0020_pausing.sql",
    21 => "execution/0021_going_on.sql",
    22 => "channels/0022_messages_and_replies.sql",
    23 => "channels/0023_receiving.sql",
    24 => "channels/0024_dispatching.sql",
    25 => "jobs/0025_lock_keys.sql",
    26 => "jobs/0026_entity_hashes.sql",
    27 => "jobs/0027_functions_and_runs.sql",
    28 => "jobs/0028_functions.sql",
    29 => "jobs/0029_running.sql",
    30 => "jobs/0030_operating_runs.sql",
    31 => "jobs/0031_scheduling.sql",
    32 => "jobs/0032_alerts.sql",
    33 => "jobs/0033_notifying.sql",
    34 => "jobs/0034_measuring_and_pruning.sql",
    35 => "execution/0035_items_as_arrays.sql",
];

const BOOTSTRAP: &str = include_str!("../../../migrations/bootstrap.sql");

const CATALOGUE: &str = include_str!("../sql/catalogue.sql");

/// Whoever waited for the lock must see what the one before it did, whatever the login's default is; nobody queues
/// behind us for long; and "already exists, skipping" is no news.
const PREAMBLE: &str = "set transaction isolation level read committed;
                        set local lock_timeout = '2s';
                        set local client_min_messages = warning";

/// Any number will do, as long as every migration of Postrider takes the same.
const LOCK_KEY: i64 = 0x706f_7374_7269_6465;

/// How often a step is tried when somebody holds a lock that it needs.
const TRIES: u32 = 30;

impl Migration {
    /// SHA-256 over the text, in hex.
    #[must_use]
    pub fn checksum(&self) -> String {
        hex::encode(Sha256::digest(self.sql))
    }
}

/// Everything that [`run`] would execute on an empty database, as one script for psql.
#[must_use]
pub fn script() -> String {
    let mut script =
        String::from("-- Postrider's schema: all steps, in order. Run with: psql -v ON_ERROR_STOP=1 -f -\n");
    script.push_str(&format!("\nbegin;\n{BOOTSTRAP}commit;\n"));
    for step in MIGRATIONS {
        script
            .push_str(&format!("\n-- {}\nbegin;\nset local role postrider_owner;\n{}", step.path, step.sql));
        script.push_str(&format!(
            "insert into postrider.migrations (version, name, checksum) values ({}, '{}', '{}');\ncommit;\n",
            step.version,
            step.path,
            step.checksum()
        ));
    }
    // `doctor` compares with this.
    script.push_str(&format!(
        "\nbegin;\nset local role postrider_owner;\ninsert into postrider.catalogue (line)\n{CATALOGUE};\ncommit;\n"
    ));
    script
}

/// Applies what is missing, and says what that was. Needs CREATEROLE and the ownership of the database.
pub async fn run(url: &str) -> Result<Vec<&'static Migration>, StoreError> {
    let mut connection = connect(url).await?;
    let mut tries = 0;
    let applied = loop {
        match apply_missing(&mut connection).await {
            // Another session holds a lock that we need. We gave up our place in the queue, so that nobody waits
            // behind us, and come back.
            Err(StoreError::Failed { source, .. }) if is_lock_timeout(&source) && tries < TRIES => {
                tries += 1;
                tracing::info!(tries, "a migration waits for a lock; trying again");
                tokio::time::sleep(Duration::from_millis(100 * u64::from(tries.min(10)))).await;
            }
            Err(StoreError::Failed { source, .. }) if is_lock_timeout(&source) => {
                return Err(StoreError::Unfit(
                    "the migration did not get the locks it needs; end long transactions (`postrider doctor` lists \
                     them) and try again"
                        .to_owned(),
                ));
            }
            outcome => break outcome?,
        }
    };
    let _ = connection.close().await;
    Ok(applied)
}

/// Refuses a schema that this binary was not made for. Needs no rights but to read.
pub async fn verify(connection: &mut PgConnection) -> Result<(), StoreError> {
    let applied = applied(connection).await.map_err(|error| match error.as_database_error() {
        Some(refused) if refused.code().as_deref() == Some("42501") => StoreError::Unfit(
            "this login has none of Postrider's roles; `grant postrider_app, postrider_worker to …` lets it in".to_owned(),
        ),
        _ => StoreError::on("reading the applied migrations")(error),
    })?;
    compare(&applied)?;
    let missing = MIGRATIONS.len() - applied.len();
    if missing > 0 {
        return Err(StoreError::Unfit(format!(
            "the database is {missing} migration{} behind this version of Postrider; run `postrider migrate`",
            if missing == 1 { "" } else { "s" }
        )));
    }
    Ok(())
}

async fn connect(url: &str) -> Result<PgConnection, StoreError> {
    // The pool's errors explain themselves, and check the server's version.
    let pool = pool::connect(url, pool::Settings { connections_max: 1, ..pool::Settings::default() }).await?;
    let connection = pool.acquire().await.map_err(StoreError::on("connecting"))?;
    Ok(connection.detach())
}

async fn apply_missing(connection: &mut PgConnection) -> Result<Vec<&'static Migration>, StoreError> {
    let mut done = Vec::new();
    while let Some(step) = apply_next(connection).await? {
        tracing::info!(step.version, "applied {}", step.path);
        done.push(step);
    }
    Ok(done)
}

/// Applies the first step that is missing, or none.
async fn apply_next(connection: &mut PgConnection) -> Result<Option<&'static Migration>, StoreError> {
    let failed = StoreError::on("migrating");
    let mut transaction = connection.begin().await.map_err(&failed)?;
    execute(&mut transaction, PREAMBLE).await.map_err(&failed)?;
    sqlx::query!("select pg_advisory_xact_lock($1)", LOCK_KEY)
        .fetch_one(unnamed(&mut transaction))
        .await
        .map_err(&failed)?;
    let applied = applied(&mut transaction).await.map_err(explain_rights)?;
    compare(&applied)?;
    let Some(step) = MIGRATIONS.get(applied.len()) else { return Ok(None) };

    execute(&mut transaction, BOOTSTRAP).await.map_err(explain_rights)?;
    execute(&mut transaction, step.sql).await.map_err(&failed)?;
    record(&mut transaction, step).await.map_err(&failed)?;
    if applied.len() + 1 == MIGRATIONS.len() {
        record_catalogue(&mut transaction).await.map_err(&failed)?;
    }
    transaction.commit().await.map_err(&failed)?;
    Ok(Some(step))
}

struct Applied {
    version: i32,
    name: String,
    checksum: String,
}

async fn applied(connection: &mut PgConnection) -> Result<Vec<Applied>, sqlx::Error> {
    let exists =
        sqlx::query_scalar!(r#"select to_regclass('postrider.migrations') is not null as "exists!""#)
            .fetch_one(unnamed(&mut *connection))
            .await?;
    if !exists {
        return Ok(Vec::new());
    }
    sqlx::query_as!(Applied, "select version, name, checksum from postrider.migrations order by version")
        .fetch_all(unnamed(connection))
        .await
}

/// The applied steps must be a beginning of ours, letter for letter.
fn compare(applied: &[Applied]) -> Result<(), StoreError> {
    for (at, row) in applied.iter().enumerate() {
        let Some(known) = MIGRATIONS.get(at) else {
            return Err(StoreError::Unfit(format!(
                "the database has migration {} ({}), which this version of Postrider does not know: it was migrated \
                 by a newer one; run that version, or restore a backup from before",
                row.version, row.name
            )));
        };
        if (row.version, row.name.as_str()) != (known.version, known.path) || row.checksum != known.checksum()
        {
            return Err(StoreError::Unfit(format!(
                "migration {} of the database ({}, checksum {:.12}) is not the one this version of Postrider has ({}, \
                 checksum {:.12}): the binary or the record was changed; run the version that migrated it",
                row.version,
                row.name,
                row.checksum,
                known.path,
                known.checksum()
            )));
        }
    }
    Ok(())
}

async fn record(connection: &mut PgConnection, step: &Migration) -> Result<(), sqlx::Error> {
    sqlx::query!(
        "insert into postrider.migrations (version, name, checksum) values ($1, $2, $3)",
        step.version,
        step.path,
        step.checksum(),
    )
    .execute(unnamed(connection))
    .await?;
    Ok(())
}

async fn record_catalogue(connection: &mut PgConnection) -> Result<(), sqlx::Error> {
    let lines = catalogue(&mut *connection).await?;
    sqlx::query!("delete from postrider.catalogue").execute(unnamed(&mut *connection)).await?;
    sqlx::query!("insert into postrider.catalogue (line) select unnest($1::text[])", &lines)
        .execute(unnamed(connection))
        .await?;
    Ok(())
}

/// The catalogue as it is now, one line per object.
pub(crate) async fn catalogue(connection: &mut PgConnection) -> Result<Vec<String>, sqlx::Error> {
    sqlx::query_file_scalar!("sql/catalogue.sql").fetch_all(unnamed(connection)).await
}

async fn execute(connection: &mut PgConnection, sql: &'static str) -> Result<(), sqlx::Error> {
    sqlx::raw_sql(sql).execute(connection).await?;
    Ok(())
}

fn explain_rights(error: sqlx::Error) -> StoreError {
    match error.as_database_error() {
        Some(refused) if refused.code().as_deref() == Some("42501") => StoreError::Unfit(format!(
            "this login may not migrate ({}); it needs CREATEROLE and must own the database: `alter role … createrole` \
             and `alter database … owner to …`",
            refused.message()
        )),
        _ => StoreError::on("preparing the roles")(error),
    }
}

/// Somebody else is at the same thing: a lock that did not come in time, or rights that were changed under our hands.
fn is_lock_timeout(error: &sqlx::Error) -> bool {
    error.as_database_error().is_some_and(|error| match error.code().as_deref() {
        Some("55P03") => true,
        Some("XX000") => error.message().contains("concurrently updated"),
        _ => false,
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn every_migration_file_is_in_the_list_and_in_order() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../migrations");
        let mut files = Vec::new();
        for folder in std::fs::read_dir(&root).unwrap() {
            let folder = folder.unwrap().path();
            if folder.is_dir() {
                for file in std::fs::read_dir(&folder).unwrap() {
                    files.push(file.unwrap().path().strip_prefix(&root).unwrap().display().to_string());
                }
            }
        }
        files.sort_by_key(|path| path.split_once('/').unwrap().1.to_owned());
        assert_eq!(files, MIGRATIONS.iter().map(|step| step.path).collect::<Vec<_>>());
        for (at, step) in MIGRATIONS.iter().enumerate() {
            assert_eq!(step.version, i32::try_from(at).unwrap() + 1);
            assert!(step.path.contains(&format!("/{:04}_", step.version)), "{}", step.path);
            assert!(step.sql.contains("Safe beside running workers"), "{} says why it is safe", step.path);
        }
    }

    fn row(step: &Migration) -> Applied {
        Applied { version: step.version, name: step.path.to_owned(), checksum: step.checksum() }
    }

    #[test]
    fn a_newer_or_changed_schema_is_refused_with_an_explanation() {
        let ours: Vec<Applied> = MIGRATIONS.iter().map(row).collect();
        assert!(compare(&ours).is_ok() && compare(&ours[..1]).is_ok() && compare(&[]).is_ok());

        let mut newer: Vec<Applied> = MIGRATIONS.iter().map(row).collect();
        newer.push(Applied { version: 999, name: "jobs/0999_x.sql".to_owned(), checksum: String::new() });
        assert!(compare(&newer).unwrap_err().to_string().contains("migrated by a newer one"));

        let mut changed: Vec<Applied> = MIGRATIONS.iter().map(row).collect();
        changed[0].checksum = "0".repeat(64);
        assert!(compare(&changed).unwrap_err().to_string().contains("is not the one this version"));
    }
}
