//! The database catalogue as a list of lines, which `doctor` compares with the list of the last migration.
//!
//! The lines hold the meaning of an object, not its text: expressions in the short form, in which Postgres leaves out parentheses
//! that change nothing, rights sorted and with the defaults written out. So a database that was restored from a dump has the same
//! lines.

use sqlx::PgConnection;

use crate::postgres::unprepared::unprepared;

pub(super) const CATALOGUE: &str = include_str!("../../../sql/postgres/catalogue.sql");

/// Records the catalogue as it is now.
pub(super) async fn record(connection: &mut PgConnection) -> Result<(), sqlx::Error> {
    let lines = catalogue(&mut *connection).await?;
    sqlx::query!("delete from postrider.catalogue").execute(unprepared(&mut *connection)).await?;
    sqlx::query!("insert into postrider.catalogue (line) select unnest($1::text[])", &lines)
        .execute(unprepared(connection))
        .await?;
    Ok(())
}

/// The catalogue as the last migration left it.
pub(crate) async fn recorded_catalogue(connection: &mut PgConnection) -> Result<Vec<String>, sqlx::Error> {
    sqlx::query_scalar!(r#"select line from postrider.catalogue order by line collate "C""#)
        .fetch_all(unprepared(connection))
        .await
}

/// Recorded schemas and tables that the database no longer has.
pub(super) async fn lost(connection: &mut PgConnection) -> Result<Vec<String>, sqlx::Error> {
    sqlx::query_file_scalar!("sql/postgres/lost_objects.sql").fetch_all(unprepared(connection)).await
}

/// The catalogue as it is now, one line per object.
pub(crate) async fn catalogue(connection: &mut PgConnection) -> Result<Vec<String>, sqlx::Error> {
    sqlx::query_file_scalar!("sql/postgres/catalogue.sql").fetch_all(unprepared(connection)).await
}
