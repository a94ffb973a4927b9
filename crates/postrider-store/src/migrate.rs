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
    36 => "tenancy/0036_installation.sql",
    37 => "events/0037_sinks.sql",
    38 => "tenancy/0038_context.sql",
    39 => "jobs/0039_shares.sql",
    40 => "execution/0040_identities.sql",
    41 => "tenancy/0041_master_key.sql",
];

const BOOTSTRAP: &str = include_str!("../../../migrations/bootstrap.sql");

const CATALOGUE: &str = include_str!("../sql/catalogue.sql");

/// Whoever waited for the lock must see what the one before it did, whatever the login's default is; nobody queues
/// behind us for long; and "already exists, skipping" is no news.
const PREAMBLE: &str = "set transaction isolation level read committed;
                        set local lock_timeout = '2s';
                        set local client_min_messages = warning";

/// Lets one migration work at a time. Only the owner may take this lock: a login of another role could hold an
/// advisory lock and block every migration.
const LOCK: &str = "lock table postrider.migrations in share row exclusive mode";

/// The same before the bootstrap, where its table exists and the login may lock it: two migrations at once would otherwise
/// change the same rights, and one of them would have to try again.
const LOCK_EARLY: &str = "do $$
begin
    if to_regclass('postrider.migrations') is not null and has_table_privilege('postrider.migrations', 'update') then
        lock table postrider.migrations in share row exclusive mode;
    end if;
end
$$";

/// The schema that the bootstrap creates.
const BOOTSTRAP_SCHEMA: &str = "postrider";

/// The first statement of the script for psql: nothing is changed where a name is taken.
const REFUSE_FOREIGN_SCHEMAS: &str = "
do $$
declare
    v_taken constant text := (select string_agg(nspname, ', ' order by nspname)
                                from pg_catalog.pg_namespace
                               where nspname in (SCHEMAS));
begin
    if v_taken is not null then
        raise exception 'this database has schemas with names that Postrider uses: %', v_taken
            using hint = 'Rename them, or install Postrider into a database of its own.';
    end if;
end
$$;
";

/// How often a step is tried when somebody holds a lock that it needs.
const TRIES: u32 = 30;

impl Migration {
    /// SHA-256 over the text, in hex.
    #[must_use]
    pub fn checksum(&self) -> String {
        hex::encode(Sha256::digest(self.sql))
    }

    /// Names of the schemas that it creates.
    fn schemas(&self) -> impl Iterator<Item = &'static str> + use<> {
        self.sql.lines().filter_map(|line| line.strip_prefix("create schema ")?.strip_suffix(';'))
    }
}

/// Everything that [`run`] would execute on an empty database, as one script for psql.
#[must_use]
pub fn script() -> String {
    let mut script =
        String::from("-- Postrider's schema: all steps, in order. Run with: psql -v ON_ERROR_STOP=1 -f -\n");
    let schemas: Vec<String> = all_schemas().map(|schema| format!("'{schema}'")).collect();
    script.push_str(&REFUSE_FOREIGN_SCHEMAS.replace("SCHEMAS", &schemas.join(", ")));
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
    let mut applied = Vec::new();
    loop {
        match apply_next(&mut connection).await {
            Ok(Some(step)) => {
                tracing::info!(step.version, "applied {}", step.path);
                applied.push(step);
                tries = 0;
            }
            Ok(None) => break,
            // Another session holds a lock that this step needs. The step gave up its place in the queue, so that no
            // session waits behind it, and is tried again.
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
            Err(error) => return Err(error),
        }
    }
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

/// Applies the first step that is missing, or none.
async fn apply_next(connection: &mut PgConnection) -> Result<Option<&'static Migration>, StoreError> {
    let failed = StoreError::on("migrating");
    let mut transaction = connection.begin().await.map_err(&failed)?;
    execute(&mut transaction, PREAMBLE).await.map_err(&failed)?;
    if missing(&mut transaction).await?.is_empty() {
        return Ok(None);
    }
    execute(&mut transaction, LOCK_EARLY).await.map_err(explain_rights)?;
    execute(&mut transaction, BOOTSTRAP).await.map_err(explain_rights)?;
    execute(&mut transaction, LOCK).await.map_err(explain_rights)?;
    // Another migration may have applied steps while this one waited for the lock.
    let steps = missing(&mut transaction).await?;
    let Some(step) = steps.first() else { return Ok(None) };

    execute(&mut transaction, step.sql).await.map_err(&failed)?;
    record(&mut transaction, step).await.map_err(&failed)?;
    if steps.len() == 1 {
        record_catalogue(&mut transaction).await.map_err(&failed)?;
    }
    transaction.commit().await.map_err(&failed)?;
    Ok(Some(step))
}

/// The steps to apply. Refuses a database in which one of them would fail because a schema or a role of that name
/// exists that is not Postrider's; nothing was changed then.
async fn missing(connection: &mut PgConnection) -> Result<&'static [Migration], StoreError> {
    let schemas = schemas_in(connection).await.map_err(StoreError::on("reading the schemas"))?;
    let is_foreign = |name: &str, owner: &str| name == BOOTSTRAP_SCHEMA && owner != "postrider_owner";
    let applied = if schemas.iter().any(|schema| is_foreign(&schema.name, &schema.owner)) {
        // A table `postrider.migrations` would not be ours.
        Vec::new()
    } else {
        applied(connection).await.map_err(explain_rights)?
    };
    compare(&applied)?;
    let steps = MIGRATIONS.get(applied.len()..).unwrap_or_default();
    if steps.is_empty() {
        return Ok(steps);
    }

    let wanted: Vec<&str> = steps.iter().flat_map(Migration::schemas).collect();
    let conflicts: Vec<String> = schemas
        .iter()
        .filter(|schema| wanted.contains(&schema.name.as_str()) || is_foreign(&schema.name, &schema.owner))
        .map(|schema| format!("`{}` (owned by {})", schema.name, schema.owner))
        .collect();
    if !conflicts.is_empty() {
        return Err(StoreError::Unfit(format!(
            "this database has schemas with names that Postrider uses: {}; nothing was changed; rename them (`alter \
             schema … rename to …`) or install Postrider into a database of its own",
            conflicts.join(", ")
        )));
    }
    let powerful = powerful_roles(connection).await.map_err(StoreError::on("reading the roles"))?;
    if !powerful.is_empty() {
        return Err(StoreError::Unfit(format!(
            "roles with names that Postrider uses have rights that would undo its protection: {}; nothing was changed; \
             take the right away with `alter role` or `revoke`, or rename the role if it is not Postrider's",
            powerful.join("; ")
        )));
    }
    Ok(steps)
}

/// Names of all schemas that a complete installation has.
fn all_schemas() -> impl Iterator<Item = &'static str> {
    std::iter::once(BOOTSTRAP_SCHEMA).chain(MIGRATIONS.iter().flat_map(Migration::schemas))
}

struct Schema {
    name: String,
    owner: String,
}

/// The schemas of this database that have names of ours.
async fn schemas_in(connection: &mut PgConnection) -> Result<Vec<Schema>, sqlx::Error> {
    let names: Vec<String> = all_schemas().map(str::to_owned).collect();
    sqlx::query_as!(
        Schema,
        r#"
        select nspname::text as "name!", pg_get_userbyid(nspowner)::text as "owner!"
          from pg_catalog.pg_namespace
         where nspname = any ($1)
         order by nspname
        "#,
        &names,
    )
    .fetch_all(unnamed(connection))
    .await
}

/// Roles of ours with rights that the migrations do not give them.
pub(crate) async fn powerful_roles(connection: &mut PgConnection) -> Result<Vec<String>, sqlx::Error> {
    sqlx::query_file_scalar!("sql/powerful_roles.sql").fetch_all(unnamed(connection)).await
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

/// Records the catalogue anew where it differs only in the parentheses of expressions: a dump writes them down as Postgres read them, and
/// Postgres reads them differently when they are restored. Answers whether nothing else differs.
pub async fn accept_restored_catalogue(connection: &mut PgConnection) -> Result<bool, StoreError> {
    let failed = StoreError::on("comparing the catalogue");
    let plain = |lines: &[String]| {
        let mut lines: Vec<String> = lines.iter().map(|line| line.replace(['(', ')', ' '], "")).collect();
        lines.sort_unstable();
        lines
    };
    let now = catalogue(&mut *connection).await.map_err(&failed)?;
    let then = recorded_catalogue(&mut *connection).await.map_err(&failed)?;
    if now == then {
        return Ok(true);
    }
    if plain(&now) != plain(&then) {
        return Ok(false);
    }
    execute(&mut *connection, "set local role postrider_owner").await.map_err(&failed)?;
    record_catalogue(&mut *connection).await.map_err(&failed)?;
    execute(connection, "reset role").await.map_err(&failed)?;
    Ok(true)
}

/// The catalogue as the last migration left it.
pub(crate) async fn recorded_catalogue(connection: &mut PgConnection) -> Result<Vec<String>, sqlx::Error> {
    sqlx::query_scalar!(r#"select line from postrider.catalogue order by line collate "C""#)
        .fetch_all(unnamed(connection))
        .await
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
        // Two first migrations at once: the other one has created the schema, and committed.
        Some("23505") => error.table() == Some("pg_namespace"),
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
