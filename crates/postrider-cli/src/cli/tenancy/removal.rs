//! `postrider tenants remove`.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{BufWriter, Write},
    path::Path,
    time::Duration,
};

use anyhow::Context;
use postrider_model::ids::TenantId;
use postrider_store::{
    Pool,
    postgres::pool,
    tenancy::{removal, tenants},
};
use serde_json::json;

use crate::cli::{actor, ask, output};

/// Rows per transaction, so that other tenants wait for none of them.
const STEP: i32 = 1000;
/// Pause between two transactions.
const PAUSE: Duration = Duration::from_millis(20);
/// After so many deleted rows, a table is vacuumed.
const VACUUM_AFTER: i64 = 10_000;

/// Removes a tenant with all its rows.
pub async fn run(
    pool: &Pool,
    name: &str,
    export: Option<&Path>,
    yes: Option<&str>,
    json: bool,
) -> anyhow::Result<()> {
    let mut transaction = pool::begin(pool).await?;
    let tenant = tenants::find(&mut transaction, name).await?;
    let tables = removal::tables(&mut transaction).await?;
    pool::commit(transaction).await?;
    let consequence =
        format!("this removes tenant `{}` ({}) with everything that it has", tenant.name, tenant.id);
    ask::confirm_name(yes, &tenant.name, &consequence, "nothing was removed")?;
    if let Some(directory) = export {
        create_empty(directory)?;
    }

    let mut transaction = pool::begin(pool).await?;
    removal::begin(&mut transaction, tenant.id).await?;
    pool::commit(transaction).await?;
    let exported = match export {
        Some(directory) => export_tables(pool, tenant.id, &tables, directory).await?,
        None => BTreeMap::new(),
    };
    let mut removed = BTreeMap::new();
    for table in &tables {
        removed.insert(table.clone(), remove_rows(pool, tenant.id, table).await?);
    }
    let mut transaction = pool::begin(pool).await?;
    removal::finish(&mut transaction, tenant.id, &tables, &actor()).await?;
    pool::commit(transaction).await?;

    let rows: i64 = removed.values().sum();
    if json {
        output::json(&json!({ "tenant_id": tenant.id.0, "exported": exported, "removed": removed }))?;
    }
    if let Some(directory) = export {
        let lines: u64 = exported.values().sum();
        message!("exported {lines} rows to {}", directory.display());
    }
    message!("removed tenant `{}` with {rows} rows", tenant.name);
    Ok(())
}

/// Creates the directory of the export. Files that are there already would be mixed with those of this tenant.
fn create_empty(directory: &Path) -> anyhow::Result<()> {
    let shown = directory.display();
    fs::create_dir_all(directory).with_context(|| format!("cannot create {shown}; nothing was removed"))?;
    let mut entries =
        fs::read_dir(directory).with_context(|| format!("cannot read {shown}; nothing was removed"))?;
    anyhow::ensure!(
        entries.next().is_none(),
        "{shown} is not empty; nothing was removed; name a new directory"
    );
    Ok(())
}

/// Writes the rows of the tenant, one file per table. Returns the number of rows per table.
async fn export_tables(
    pool: &Pool,
    tenant: TenantId,
    tables: &[String],
    directory: &Path,
) -> anyhow::Result<BTreeMap<String, u64>> {
    let mut exported = BTreeMap::new();
    for table in tables {
        let path = directory.join(format!("{table}.ndjson"));
        let failed = || format!("cannot write {}; rows of the tenant are still there", path.display());
        let mut file = BufWriter::new(File::create(&path).with_context(failed)?);
        let mut transaction = pool::begin(pool).await?;
        let rows = removal::export(&mut transaction, tenant, table, |line| writeln!(file, "{line}")).await?;
        pool::commit(transaction).await?;
        let rows = rows.with_context(failed)?;
        file.flush().and_then(|()| file.get_ref().sync_all()).with_context(failed)?;
        exported.insert(table.clone(), rows);
    }
    Ok(exported)
}

async fn remove_rows(pool: &Pool, tenant: TenantId, table: &str) -> anyhow::Result<i64> {
    let mut removed = 0;
    loop {
        let mut transaction = pool::begin(pool).await?;
        let step = removal::remove_rows(&mut transaction, tenant, table, STEP).await?;
        pool::commit(transaction).await?;
        removed += step;
        if step < i64::from(STEP) {
            break;
        }
        tokio::time::sleep(PAUSE).await;
    }
    if removed > VACUUM_AFTER {
        removal::vacuum(pool, table).await?;
    }
    Ok(removed)
}
