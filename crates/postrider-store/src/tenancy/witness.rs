//! Records of what processes know to be committed, kept in a second database (`witness.url`).
//!
//! The table is made on first use, in a schema of its own, by a login that may create one. It is no part of the installation's schema, so
//! its statements are not checked when they are compiled.

use uuid::Uuid;

use crate::{Pool, StoreError, postgres::pool};

/// The second database.
#[derive(Debug, Clone)]
pub struct WitnessDatabase(Pool);

impl WitnessDatabase {
    /// Opens it, and makes the table if it is missing.
    pub async fn open(url: &str) -> Result<Self, StoreError> {
        let pool = pool::connect(url, pool::Settings { connections_max: 1, ..Default::default() }).await?;
        let mut transaction = pool::begin(&pool).await?;
        sqlx::raw_sql(
            "select pg_advisory_xact_lock(7521962890165645427);
             create schema if not exists postrider_witness;
             create table if not exists postrider_witness.records (
                 witness_id      uuid        not null primary key,
                 installation_id uuid        not null,
                 record          text        not null,
                 written_at      timestamptz not null default now());",
        )
        .execute(&mut *transaction)
        .await
        .map_err(StoreError::on("preparing the witness database"))?;
        pool::commit(transaction).await?;
        Ok(Self(pool))
    }

    /// Keeps the record of a witness. After `Ok` it is committed.
    pub async fn write(&self, witness: Uuid, installation: Uuid, record: &str) -> Result<(), StoreError> {
        let mut transaction = pool::begin(&self.0).await?;
        sqlx::query(
            "insert into postrider_witness.records (witness_id, installation_id, record) values ($1, $2, $3)
                 on conflict (witness_id) do update
                set installation_id = excluded.installation_id, record = excluded.record, written_at = now()",
        )
        .persistent(false)
        .bind(witness)
        .bind(installation)
        .bind(record)
        .execute(&mut *transaction)
        .await
        .map_err(StoreError::on("writing to the witness database"))?;
        pool::commit(transaction).await
    }

    /// Every record of an installation that is not older than the marks are kept.
    pub async fn read(&self, installation: Uuid) -> Result<Vec<String>, StoreError> {
        let mut transaction = pool::begin(&self.0).await?;
        let records = sqlx::query_scalar(
            "select record from postrider_witness.records
              where installation_id = $1 and written_at > now() - interval '80 days'",
        )
        .persistent(false)
        .bind(installation)
        .fetch_all(&mut *transaction)
        .await
        .map_err(StoreError::on("reading the witness database"))?;
        pool::commit(transaction).await?;
        Ok(records)
    }
}
