//! The database of a cluster that Postrider runs itself, before its first migration.

use sqlx::{Connection, PgConnection};

use crate::{
    StoreError,
    postgres::{pool, unprepared::unprepared},
};

/// Makes the database if it is missing, and revokes the rights that PUBLIC has in a new one. `url` leads to the maintenance database as
/// superuser.
pub async fn ensure_database(url: &str, name: &'static str) -> Result<(), StoreError> {
    let failed = StoreError::on("creating the database");
    let options = pool::options(url)?;
    let mut connection = PgConnection::connect_with(&options).await.map_err(&failed)?;
    let exists = sqlx::query_scalar!(
        r#"select exists (select from pg_database where datname = $1) as "exists!""#,
        name
    )
    .fetch_one(unprepared(&mut connection))
    .await
    .map_err(&failed)?;
    if !exists {
        for statement in [
            format!(r#"create database "{name}""#),
            // Temporary tables could shadow ours, and no login needs them here.
            format!(r#"revoke temporary, create on database "{name}" from public"#),
        ] {
            while let Err(error) =
                sqlx::raw_sql(sqlx::AssertSqlSafe(statement.clone())).execute(&mut connection).await
            {
                match error.as_database_error().and_then(sqlx::error::DatabaseError::code).as_deref() {
                    // Another process was faster.
                    Some("42P04" | "23505") => break,
                    // Another process changes the rights on the same database at this moment; it does not take long.
                    Some("XX000") if error.to_string().contains("concurrently updated") => {}
                    _ => return Err(failed(error)),
                }
            }
        }
    }
    let _ = connection.close().await;
    Ok(())
}

/// Revokes the right to create large objects from PUBLIC in the database that `url` leads to as superuser. A cluster of our own has no
/// use for them, and they could fill its disk.
pub async fn restrict_public(url: &str) -> Result<(), StoreError> {
    let failed = StoreError::on("restricting the rights of PUBLIC");
    let mut connection = PgConnection::connect_with(&pool::options(url)?).await.map_err(&failed)?;
    while let Err(error) = sqlx::raw_sql(RESTRICT_PUBLIC).execute(&mut connection).await {
        // Another process changes the same rights at this moment; it does not take long.
        if !error.to_string().contains("concurrently updated") {
            return Err(failed(error));
        }
    }
    let _ = connection.close().await;
    Ok(())
}

/// Changes only what is not yet so, because every start of a process runs it.
const RESTRICT_PUBLIC: &str = "
do $$
declare
    v_function regprocedure;
begin
    foreach v_function in array array['lo_creat(integer)', 'lo_create(oid)', 'lo_from_bytea(oid, bytea)']::regprocedure[] loop
        if has_function_privilege('public', v_function, 'execute') then
            execute format('revoke execute on function %s from public', v_function);
        end if;
    end loop;
end
$$";
