//! Removal of a tenant with all its rows. Only a member of the owner role removes tenants.
//!
//! ```text
//! begin ──▶ export ──▶ remove_rows … (small steps, tables that refer to others first) ──▶ finish
//!   └─ the keys are gone, and the guards let rows be deleted; from here it can be repeated until it is done
//! ```

use std::collections::{BTreeMap, BTreeSet};

use futures::TryStreamExt;
use postrider_model::ids::TenantId;
use sqlx::{AssertSqlSafe, PgConnection, Row};

use crate::{
    Pool, StoreError,
    postgres::{pool, unprepared::unprepared},
};

/// The send jobs, to which no other table refers.
const SEND_JOBS: &str = "execution.job_queue";

/// Marks a tenant as being removed, and deletes its API keys. Doing it twice is the same as once.
pub async fn begin(connection: &mut PgConnection, tenant: TenantId) -> Result<(), StoreError> {
    sqlx::query!("select tenancy.begin_removal($1)", tenant.0)
        .fetch_one(unprepared(connection))
        .await
        .map_err(StoreError::on("beginning the removal of the tenant"))?;
    Ok(())
}

/// The tables with rows of tenants, those that refer to others first, so that no foreign key stands in the way of a deletion.
pub async fn tables(connection: &mut PgConnection) -> Result<Vec<String>, StoreError> {
    let rows = sqlx::query!(
        r#"select name as "name!", referenced_by as "referenced_by!" from tenancy.tenant_tables()"#
    )
    .fetch_all(unprepared(connection))
    .await
    .map_err(StoreError::on("reading the tables of tenants"))?;
    let references =
        rows.into_iter().map(|row| (row.name, row.referenced_by.into_iter().collect())).collect();
    let mut ordered = in_order(references).map_err(|left| StoreError::Refused {
        message: format!("the foreign keys of these tables form a circle: {}", left.join(", ")),
        hint: None,
    })?;
    // No foreign key says so: as long as a send job exists, a worker may reserve its items, so their keys must exist.
    ordered.sort_by_key(|table| table != SEND_JOBS);
    Ok(ordered)
}

/// Orders tables by their foreign keys: a table comes after all tables that refer to it. Tables that refer to each other in a circle are
/// the error.
fn in_order(mut referenced_by: BTreeMap<String, BTreeSet<String>>) -> Result<Vec<String>, Vec<String>> {
    let mut ordered: Vec<String> = Vec::new();
    while !referenced_by.is_empty() {
        let next: Vec<String> = referenced_by
            .iter()
            .filter(|(_, by)| by.iter().all(|table| !referenced_by.contains_key(table)))
            .map(|(table, _)| table.clone())
            .collect();
        if next.is_empty() {
            return Err(referenced_by.into_keys().collect());
        }
        for table in next {
            referenced_by.remove(&table);
            ordered.push(table);
        }
    }
    Ok(ordered)
}

/// Gives every row of the tenant in one table to `take`, as a line of JSON. Returns the number of rows.
pub async fn export(
    connection: &mut PgConnection,
    tenant: TenantId,
    table: &str,
    mut take: impl FnMut(&str) -> std::io::Result<()>,
) -> Result<Result<u64, std::io::Error>, StoreError> {
    // The name comes from the catalog, which quotes it.
    let sql =
        format!("select to_jsonb(exported)::text from {table} as exported where exported.tenant_id = $1");
    let query = sqlx::query(AssertSqlSafe(sql)).persistent(false).bind(tenant.0);
    let mut rows = query.fetch(&mut *connection);
    let mut count = 0;
    while let Some(row) = rows.try_next().await.map_err(StoreError::on("exporting the rows of the tenant"))? {
        let line: String = row.try_get(0).map_err(StoreError::on("exporting the rows of the tenant"))?;
        if let Err(error) = take(&line) {
            return Ok(Err(error));
        }
        count += 1;
    }
    Ok(Ok(count))
}

/// Deletes up to `limit` rows of a tenant that is being removed from one table, and returns their number.
pub async fn remove_rows(
    connection: &mut PgConnection,
    tenant: TenantId,
    table: &str,
    limit: i32,
) -> Result<i64, StoreError> {
    sqlx::query_scalar!(r#"select tenancy.remove_rows($1, $2, $3) as "removed!""#, tenant.0, table, limit)
        .fetch_one(unprepared(connection))
        .await
        .map_err(StoreError::on("deleting rows of the tenant"))
}

/// Frees the space of deleted rows in a table, so that checks of foreign keys do not read past them. It blocks no reader or writer.
pub async fn vacuum(pool: &Pool, table: &str) -> Result<(), StoreError> {
    let mut connection = pool::acquire(pool).await?;
    let sql = format!("vacuum (truncate false, skip_locked true) {table}");
    sqlx::raw_sql(AssertSqlSafe(sql))
        .execute(&mut *connection)
        .await
        .map_err(StoreError::on("vacuuming a table of the tenant"))?;
    Ok(())
}

/// Deletes the last rows of the tenant and the tenant itself, in the transaction of the caller.
pub async fn finish(
    connection: &mut PgConnection,
    tenant: TenantId,
    tables: &[String],
    actor: &str,
) -> Result<(), StoreError> {
    sqlx::query!("select tenancy.finish_removal($1, $2, $3)", tenant.0, tables, actor)
        .fetch_one(unprepared(connection))
        .await
        .map_err(StoreError::on("removing the tenant"))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_comes_after_all_tables_that_refer_to_it() {
        let of =
            |table: &str, by: &[&str]| (table.to_owned(), by.iter().map(|by| (*by).to_owned()).collect());
        let tables =
            BTreeMap::from([of("a", &["b", "c"]), of("b", &["c"]), of("c", &[]), of("d", &["other"])]);
        assert_eq!(in_order(tables).unwrap(), ["c", "d", "b", "a"]);
        let circle = BTreeMap::from([of("a", &["b"]), of("b", &["a"]), of("c", &[])]);
        assert_eq!(in_order(circle).unwrap_err(), ["a", "b"]);
    }
}
