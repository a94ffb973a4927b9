//! Brings the schema forward.
//!
//! The files of `sql/` are compiled into the binary. An empty database gets all of them in one transaction. An existing one gets
//! the upgrade steps that it lacks and the replaceable files whose text changed, also in one transaction; a step that
//! builds an index `concurrently` runs alone. There is no way back: a step that was applied is never edited, and a
//! database that a newer release migrated is left alone.

mod catalogue;
mod records;
mod script;
mod signatures;
mod sources;

use std::time::Duration;

use records::Pending;
use sqlx::{AssertSqlSafe, Connection, PgConnection};

pub(crate) use self::catalogue::{catalogue, recorded_catalogue};
pub use self::{
    script::script,
    signatures::signatures,
    sources::{CONCURRENTLY, Kind, Release, Source, Tree},
};
use crate::{
    StoreError,
    postgres::{contract, pool, unprepared::unprepared},
};

/// A migration that waited for the lock must see the commit of the one before it, whatever the login's default isolation is.
/// It waits two seconds for a lock at most, because other sessions queue behind it. Apart from that it may take as long as it needs, so
/// the time limits of the login do not apply (`transaction_timeout` exists from Postgres 17 on). Notices are not shown.
const PREAMBLE: &str = "set transaction isolation level read committed;
                        select set_config(name, '0', true) from pg_catalog.pg_settings
                         where name in ('statement_timeout', 'idle_in_transaction_session_timeout', 'transaction_timeout');
                        set local lock_timeout = '2s';
                        set local client_min_messages = warning;
                        set local check_function_bodies = off";

/// Serializes migrations. Only the owner may take this lock: a login of another role could hold an advisory lock and block every
/// migration.
const LOCK: &str = "lock table postrider.sources in share row exclusive mode";

/// The same before `roles.sql`, where its table exists and the login may lock it: two migrations at once would otherwise
/// change the same rights, and one of them would have to try again.
const LOCK_EARLY: &str = "do $$
begin
    if to_regclass('postrider.sources') is not null and has_table_privilege('postrider.sources', 'update') then
        lock table postrider.sources in share row exclusive mode;
    end if;
end
$$";

/// The time within which a migration gets the locks of all tables whose triggers it replaces, or gives up and tries again. It is
/// shorter than `deadlock_timeout` (one second), so that no worker is chosen as the victim of a deadlock with it.
const LOCKING_TIME: &str = "800ms";

/// Statements of a concurrent step run outside a transaction, so this holds for the session.
const NO_TIMEOUT: &str = "set statement_timeout = 0";

/// The schema that `roles.sql` creates.
const RECORDS_SCHEMA: &str = "postrider";

/// Number of tries when another session holds a lock that the migration needs.
const TRIES: u32 = 30;

/// Applies the files that are missing or changed, and returns their paths. Needs CREATEROLE and the ownership of the
/// database.
pub async fn run(url: &str) -> Result<Vec<String>, StoreError> {
    apply(url, &Tree::current()).await
}

/// Number of files of this release.
#[must_use]
pub fn files() -> usize {
    Tree::current().sources.len()
}

/// The same as [`run`] with the files of any release.
pub async fn apply(url: &str, tree: &Tree) -> Result<Vec<String>, StoreError> {
    let mut connection = connect(url).await?;
    let mut tries = 0;
    let mut applied = Vec::new();
    loop {
        match apply_next(&mut connection, url, tree).await {
            Ok(paths) if paths.is_empty() => break,
            Ok(paths) => {
                for path in &paths {
                    tracing::info!("applied {path}");
                }
                applied.extend(paths);
                tries = 0;
            }
            // The migration gave up its place in the queue, so that no session waits behind it, and is tried again.
            Err(Stop::Busy) if tries < TRIES => {
                tries += 1;
                tracing::info!(tries, "the migration waits for a lock; trying again");
                tokio::time::sleep(Duration::from_millis(100 * u64::from(tries.min(10)))).await;
            }
            Err(Stop::Busy) => {
                return Err(StoreError::Unfit(
                    "the migration did not get the locks it needs; end long transactions (`postrider doctor` lists \
                     them) and try again"
                        .to_owned(),
                ));
            }
            Err(Stop::Refused(error)) => return Err(error),
        }
    }
    let _ = connection.close().await;
    Ok(applied)
}

/// Refuses a schema of another version. Needs only the right to read.
pub async fn verify(connection: &mut PgConnection) -> Result<(), StoreError> {
    let records = records::read(connection).await.map_err(|error| match error.as_database_error() {
        Some(refused) if refused.code().as_deref() == Some("42501") => StoreError::Unfit(
            "this login has none of Postrider's roles; `grant postrider_app, postrider_worker to …` gives it the roles".to_owned(),
        ),
        _ => StoreError::on("reading the applied files")(error),
    })?;
    let tree = Tree::current();
    let pending = records.pending(&tree)?;
    if pending.is_empty_database {
        return Err(StoreError::Unfit(
            "the database has no schema of Postrider; run `postrider migrate`".to_owned(),
        ));
    }
    let lost = catalogue::lost(connection).await.map_err(StoreError::on("reading the recorded catalogue"))?;
    refuse_incomplete(&lost)?;
    if !pending.is_empty() {
        let count = pending.len();
        return Err(StoreError::Unfit(format!(
            "the schema is {count} file{} behind this version of Postrider; run `postrider migrate`",
            if count == 1 { "" } else { "s" }
        )));
    }
    Ok(())
}

/// The reason why a migration stopped.
enum Stop {
    /// Another session holds a lock, or changes the same rights; a retry may succeed.
    Busy,
    /// A retry would fail again.
    Refused(StoreError),
}

impl From<StoreError> for Stop {
    fn from(error: StoreError) -> Self {
        Self::Refused(error)
    }
}

/// Sorts the error of a statement.
fn stop(explain: impl Fn(sqlx::Error) -> StoreError) -> impl Fn(sqlx::Error) -> Stop {
    move |error| if is_busy(&error) { Stop::Busy } else { Stop::Refused(explain(error)) }
}

fn on(doing: &'static str) -> impl Fn(sqlx::Error) -> Stop {
    stop(StoreError::on(doing))
}

async fn connect(url: &str) -> Result<PgConnection, StoreError> {
    // The pool's errors explain themselves, and connecting checks the server's version.
    let pool = pool::connect(url, pool::Settings { connections_max: 1, ..pool::Settings::default() }).await?;
    let connection = pool.acquire().await.map_err(StoreError::on("connecting"))?;
    Ok(connection.detach())
}

/// Applies the next files that fit into one transaction, or the next step that needs to run outside one. Returns their
/// paths; none means that nothing is missing.
async fn apply_next(connection: &mut PgConnection, url: &str, tree: &Tree) -> Result<Vec<String>, Stop> {
    let mut transaction = connection.begin().await.map_err(on("migrating"))?;
    execute(&mut transaction, PREAMBLE).await.map_err(on("migrating"))?;
    let pending = missing(&mut transaction, tree).await?;
    if pending.is_empty() {
        return Ok(Vec::new());
    }
    if let Some(step) =
        pending.steps.first().filter(|step| step.is_concurrent() && !pending.is_empty_database)
    {
        transaction.rollback().await.map_err(on("migrating"))?;
        return apply_concurrent(connection, url, tree, step).await;
    }
    execute(&mut transaction, LOCK_EARLY).await.map_err(stop(explain_rights))?;
    execute(&mut transaction, sources::ROLES).await.map_err(stop(explain_rights))?;
    execute(&mut transaction, LOCK).await.map_err(stop(explain_rights))?;
    // Another migration may have applied files while this one waited for the lock.
    let pending = missing(&mut transaction, tree).await?;
    if pending.is_empty() {
        return Ok(Vec::new());
    }

    let steps: Vec<&Source> =
        pending.steps.iter().take_while(|step| !step.is_concurrent()).copied().collect();
    let is_last = pending.is_empty_database || steps.len() == pending.steps.len();
    let sources: Vec<&Source> = if pending.is_empty_database {
        tree.sources.iter().collect()
    } else if is_last {
        lock_tables_of_triggers(&mut transaction, &pending.files).await?;
        steps.iter().chain(&pending.files).copied().collect()
    } else {
        steps
    };
    for source in &sources {
        let sql = if pending.is_empty_database {
            source.for_an_empty_database()
        } else {
            source.sql.as_ref().into()
        };
        execute(&mut transaction, sql).await.map_err(stop(|error| explain_source(source, error)))?;
        records::write(&mut transaction, tree, source).await.map_err(on("recording a migration"))?;
    }
    let mut paths: Vec<String> = sources.iter().map(|source| source.path.to_string()).collect();
    if is_last {
        records::forget(&mut transaction, &pending.removed).await.map_err(on("recording a migration"))?;
        refuse_broken_contracts(&mut transaction).await?;
        refuse_orphans(&mut transaction, tree).await?;
        paths.extend(pending.removed.iter().map(|path| format!("{path} (removed)")));
    }
    catalogue::record(&mut transaction).await.map_err(on("recording the catalogue"))?;
    transaction.commit().await.map_err(on("migrating"))?;
    Ok(paths)
}

/// Runs a step outside a transaction. A second connection holds the lock of migrations meanwhile. The step is not
/// recorded before it has ended, and must be able to run again.
async fn apply_concurrent(
    connection: &mut PgConnection,
    url: &str,
    tree: &Tree,
    step: &Source,
) -> Result<Vec<String>, Stop> {
    let mut other = connect(url).await?;
    let mut holder = other.begin().await.map_err(on("migrating"))?;
    execute(&mut holder, PREAMBLE).await.map_err(on("migrating"))?;
    execute(&mut holder, LOCK).await.map_err(stop(explain_rights))?;
    let is_pending =
        missing(&mut holder, tree).await?.steps.first().is_some_and(|next| next.path == step.path);
    if is_pending {
        execute(connection, NO_TIMEOUT).await.map_err(on("migrating"))?;
        for statement in step.statements() {
            execute(connection, statement).await.map_err(stop(|error| explain_source(step, error)))?;
        }
        execute(&mut holder, "set local role postrider_owner").await.map_err(stop(explain_rights))?;
        records::write(&mut holder, tree, step).await.map_err(on("recording a migration"))?;
        catalogue::record(&mut holder).await.map_err(on("recording the catalogue"))?;
    }
    holder.commit().await.map_err(on("migrating"))?;
    let _ = other.close().await;
    Ok(vec![step.path.to_string()])
}

/// Locks the tables whose triggers these files replace, all of them before anything else is locked.
async fn lock_tables_of_triggers(connection: &mut PgConnection, files: &[&Source]) -> Result<(), Stop> {
    let mut names: Vec<String> =
        files.iter().flat_map(|file| file.trigger_tables()).map(str::to_owned).collect();
    names.sort_unstable();
    names.dedup();
    let existing = sqlx::query_scalar!(
        r#"select name as "name!" from unnest($1::text[]) as name where to_regclass(name) is not null order by name"#,
        &names
    )
    .fetch_all(unprepared(&mut *connection))
    .await
    .map_err(on("reading the tables"))?;
    if existing.is_empty() {
        return Ok(());
    }
    let lock = format!(
        "set local statement_timeout = '{LOCKING_TIME}'; lock table {} in share row exclusive mode; \
         set local statement_timeout = 0",
        existing.join(", ")
    );
    execute(connection, lock).await.map_err(on("locking the tables"))
}

/// The files to apply. Refuses a database in which one of them would fail because a schema or a role of that name
/// exists that is not Postrider's; nothing was changed then.
async fn missing<'a>(connection: &mut PgConnection, tree: &'a Tree) -> Result<Pending<'a>, Stop> {
    let schemas = schemas_in(connection, tree).await.map_err(on("reading the schemas"))?;
    let is_foreign = |schema: &Schema| schema.name == RECORDS_SCHEMA && schema.owner != "postrider_owner";
    let records = if schemas.iter().any(is_foreign) {
        // A table `postrider.sources` would not be ours.
        records::Records::default()
    } else {
        records::read(connection).await.map_err(stop(explain_rights))?
    };
    let pending = records.pending(tree)?;
    if !pending.is_empty_database {
        refuse_incomplete(&catalogue::lost(connection).await.map_err(stop(explain_rights))?)?;
    }
    if pending.is_empty() {
        return Ok(pending);
    }

    let creating = tree.sources.iter().filter(|source| match source.kind {
        Kind::Baseline => pending.is_empty_database,
        Kind::Upgrade => pending.steps.iter().any(|step| step.path == source.path),
        Kind::Replaceable => false,
    });
    let wanted: Vec<&str> = creating.flat_map(Source::schemas).collect();
    let conflicts: Vec<String> = schemas
        .iter()
        .filter(|schema| wanted.contains(&schema.name.as_str()) || is_foreign(schema))
        .map(|schema| format!("`{}` (owned by {})", schema.name, schema.owner))
        .collect();
    if !conflicts.is_empty() {
        return Err(Stop::Refused(StoreError::Unfit(format!(
            "this database has schemas with names that Postrider uses: {}; nothing was changed; rename them (`alter \
             schema … rename to …`) or install Postrider into a database of its own",
            conflicts.join(", ")
        ))));
    }
    let powerful = powerful_roles(connection).await.map_err(on("reading the roles"))?;
    if !powerful.is_empty() {
        return Err(Stop::Refused(StoreError::Unfit(format!(
            "roles with names that Postrider uses have rights that would undo its protection: {}; nothing was changed; \
             take the right away with `alter role` or `revoke`, or rename the role if it is not Postrider's",
            powerful.join("; ")
        ))));
    }
    Ok(pending)
}

/// Refuses an installation that has lost schemas or tables since the last migration.
fn refuse_incomplete(lost: &[String]) -> Result<(), StoreError> {
    if lost.is_empty() {
        return Ok(());
    }
    Err(StoreError::Unfit(format!(
        "the installation is incomplete; its record lists {}, and the database does not have them; nothing was changed; restore a \
         backup, or create a new database and run `postrider migrate` there",
        lost.join(", ")
    )))
}

/// Refuses files that would change the frozen contracts.
async fn refuse_broken_contracts(connection: &mut PgConnection) -> Result<(), Stop> {
    let violations = contract::violations(connection).await.map_err(on("checking the contracts"))?;
    if violations.is_empty() {
        return Ok(());
    }
    Err(Stop::Refused(StoreError::Unfit(format!(
        "the migration would break the frozen contracts: {}; it was rolled back; docs/contract.md has the rule for changing \
         them",
        violations.join("; ")
    ))))
}

/// Refuses files that changed a signature in place, or removed a function, without a step that drops the old one. Processes of the
/// release before may still call it.
async fn refuse_orphans(connection: &mut PgConnection, tree: &Tree) -> Result<(), Stop> {
    let orphans = signatures::orphans(connection, tree).await.map_err(on("checking the functions"))?;
    if orphans.is_empty() {
        return Ok(());
    }
    Err(Stop::Refused(StoreError::Unfit(format!(
        "the database has functions that no file of this release defines: {}; the migration was rolled back; define them for one \
         more release, or add an upgrade step that drops them, as sql/README.md says",
        orphans.join(", ")
    ))))
}

struct Schema {
    name: String,
    owner: String,
}

/// The schemas of this database that have names of Postrider's schemas.
async fn schemas_in(connection: &mut PgConnection, tree: &Tree) -> Result<Vec<Schema>, sqlx::Error> {
    let names: Vec<String> = tree.schemas().map(str::to_owned).collect();
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
    .fetch_all(unprepared(connection))
    .await
}

/// Roles of Postrider with rights that `roles.sql` does not give them.
pub(crate) async fn powerful_roles(connection: &mut PgConnection) -> Result<Vec<String>, sqlx::Error> {
    sqlx::query_file_scalar!("sql/postgres/powerful_roles.sql").fetch_all(unprepared(connection)).await
}

async fn execute(connection: &mut PgConnection, sql: impl Into<String>) -> Result<(), sqlx::Error> {
    sqlx::raw_sql(AssertSqlSafe(sql.into())).execute(connection).await?;
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

fn explain_source(source: &Source, error: sqlx::Error) -> StoreError {
    match error.as_database_error() {
        Some(refused) => StoreError::Unfit(format!(
            "{} cannot be applied: {}; the migration was rolled back; put right what it names and try again",
            source.path,
            refused.message()
        )),
        None => StoreError::on("migrating")(error),
    }
}

/// Whether another session is migrating: a lock that did not come in time, or rights that it changed meanwhile.
fn is_busy(error: &sqlx::Error) -> bool {
    error.as_database_error().is_some_and(|error| match error.code().as_deref() {
        // No lock in time, no time to lock several tables, a deadlock of which the migration was the victim.
        Some("55P03" | "57014" | "40P01") => true,
        // Two first migrations at once: the other one has created the schema, and committed.
        Some("23505") => error.table() == Some("pg_namespace"),
        Some("XX000") => error.message().contains("concurrently updated"),
        _ => false,
    })
}
