//! The identity of the database, the marks that its processes write, and the adoption of a restored copy.
//!
//! The installation is recorded when a process with a sending role first starts (`enrol`). From then on the database refuses
//! reservations where the record describes another cluster, another database or other tables. A copy with the same identity is
//! found by comparison: see `postrider-engine`'s witness.

use jiff::Timestamp;
use jiff_sqlx::ToSqlx;
use postrider_model::ids::{OutboxId, TenantId};
use serde::Serialize;
use sqlx::PgConnection;
use uuid::Uuid;

use crate::{
    Pool, StoreError,
    postgres::{pool, unprepared::unprepared},
};

/// The state that a process knows to be committed, to be compared with the database.
#[derive(Debug, Clone, Default)]
pub struct Known {
    /// The witness whose mark it is.
    pub witness: Option<Uuid>,
    /// The epoch under which it was written.
    pub epoch: Option<Uuid>,
    /// Reservations, with their tenants.
    pub reservations: Vec<(TenantId, OutboxId)>,
}

/// The newest epoch of an installation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Epoch {
    /// The installation, the same in every epoch.
    pub installation_id: Uuid,
    /// The epoch.
    pub id: Uuid,
    /// 1 for the first.
    pub number: i32,
    /// `enrolled`, `adopted` or `moved`.
    pub cause: String,
    /// When it began.
    pub began_at: Timestamp,
}

/// The result of a comparison.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Observed {
    /// `None` when no sending process ever started on it.
    pub epoch: Option<Epoch>,
    /// The reason why nothing may be sent from it.
    pub refusal: Option<String>,
    /// The cluster's identifier; empty where the server does not show it.
    pub system_identifier: String,
    /// The database's number in the cluster.
    pub database_oid: i64,
    /// Its name.
    pub database_name: String,
    /// The timeline of its log.
    pub timeline: Option<i32>,
    /// Position up to which its log is written to disk.
    pub lsn: i64,
    /// The mark of the witness in question.
    pub mark: Option<i64>,
    /// Whether the epoch in question is one of the installation's.
    pub knows_epoch: bool,
    /// Whether the reservations in question are there.
    pub has_reservations: bool,
    /// Processes that have not compared since the timeline changed, and may miss something.
    pub unconfirmed: Vec<String>,
    /// When a process last wrote its mark.
    pub last_mark_at: Option<Timestamp>,
    /// Whether every process of the epoch has stopped in order.
    pub all_stopped: bool,
}

/// Records the database as the installation, if none is recorded.
pub async fn enrol(pool: &Pool, actor: &str) -> Result<(), StoreError> {
    let mut transaction = pool::begin(pool).await?;
    sqlx::query!("select tenancy.enrol($1)", actor)
        .fetch_one(unprepared(&mut transaction))
        .await
        .map_err(StoreError::on("recording the installation"))?;
    pool::commit(transaction).await
}

/// Compares the database with what a process knows.
pub async fn observe(connection: &mut PgConnection, known: &Known) -> Result<Observed, StoreError> {
    let (tenants, reservations): (Vec<Uuid>, Vec<Uuid>) =
        known.reservations.iter().map(|(tenant, id)| (tenant.0, id.0)).unzip();
    let row = sqlx::query!(
        r#"
        select installation_id, epoch_id, epoch_number, cause, began_at as "began_at: jiff_sqlx::Timestamp", refusal,
               system_identifier as "system_identifier!", database_oid as "database_oid!", database_name as "database_name!",
               timeline, lsn, mark, knows_epoch as "knows_epoch!", has_reservations as "has_reservations!",
               unconfirmed as "unconfirmed!", last_mark_at as "last_mark_at: jiff_sqlx::Timestamp",
               all_stopped as "all_stopped!"
          from tenancy.read_installation($1, $2, $3, $4)
        "#,
        known.witness,
        known.epoch,
        &tenants,
        &reservations,
    )
    .fetch_one(unprepared(connection))
    .await
    .map_err(StoreError::on("reading the installation"))?;
    let epoch = match (row.installation_id, row.epoch_id, row.epoch_number, row.cause, row.began_at) {
        (Some(installation_id), Some(id), Some(number), Some(cause), Some(began_at)) => {
            Some(Epoch { installation_id, id, number, cause, began_at: began_at.to_jiff() })
        }
        _ => None,
    };
    Ok(Observed {
        epoch,
        refusal: row.refusal,
        system_identifier: row.system_identifier,
        database_oid: row.database_oid,
        database_name: row.database_name,
        timeline: row.timeline,
        lsn: row.lsn.unwrap_or_default(),
        mark: row.mark,
        knows_epoch: row.knows_epoch,
        has_reservations: row.has_reservations,
        unconfirmed: row.unconfirmed,
        last_mark_at: row.last_mark_at.map(jiff_sqlx::Timestamp::to_jiff),
        all_stopped: row.all_stopped,
    })
}

/// The reason why sending waits while these processes have not compared.
#[must_use]
pub fn unconfirmed(processes: &[String]) -> String {
    format!(
        "the database changed its timeline (a replica was promoted, or it was recovered to a point in time), and \
         {} has not confirmed that none of its reservations is missing; start the process again where its witness is, or adopt",
        processes.join(", ")
    )
}

/// A committed mark, and the position of the log before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mark {
    /// The number.
    pub mark: i64,
    /// The position.
    pub lsn: i64,
}

/// Increments the mark of a witness, and records that nothing is missing on this timeline. After `Ok` it is committed.
pub async fn mark(
    pool: &Pool,
    witness: Uuid,
    epoch: Uuid,
    process: &str,
    timeline: Option<i32>,
    is_stopping: bool,
) -> Result<Mark, StoreError> {
    let mut transaction = pool::begin(pool).await?;
    let marked = sqlx::query!(
        r#"select mark as "mark!", lsn from tenancy.mark_process($1, $2, $3, $4, $5)"#,
        witness,
        epoch,
        process,
        timeline,
        is_stopping,
    )
    .fetch_one(unprepared(&mut transaction))
    .await
    .map_err(StoreError::on("writing the mark"))?;
    pool::commit(transaction).await?;
    Ok(Mark { mark: marked.mark, lsn: marked.lsn.unwrap_or_default() })
}

/// Records for a process that ended that nothing which its witness knows is missing on this timeline.
pub async fn confirm(pool: &Pool, witness: Uuid, timeline: i32) -> Result<(), StoreError> {
    let mut transaction = pool::begin(pool).await?;
    sqlx::query!("select tenancy.confirm_process($1, $2)", witness, timeline)
        .fetch_one(unprepared(&mut transaction))
        .await
        .map_err(StoreError::on("confirming for a process that ended"))?;
    pool::commit(transaction).await
}

/// Records that the database lacks something that is known to be committed: sending waits for adopt, in every process.
pub async fn suspect(pool: &Pool, epoch: Uuid, reason: &str) -> Result<(), StoreError> {
    let mut transaction = pool::begin(pool).await?;
    sqlx::query!("select tenancy.suspect($1, $2)", epoch, reason)
        .fetch_one(unprepared(&mut transaction))
        .await
        .map_err(StoreError::on("noting that the database is behind"))?;
    pool::commit(transaction).await
}

/// Counts of unfinished work in a database.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Unfinished {
    /// Items that are reserved, in doubt or not.
    pub reserved_items: i64,
    /// Items of unfinished jobs that are not reserved, and not scheduled for later.
    pub unreserved_items: i64,
    /// Chat replies on their way.
    pub replies: i64,
    /// Notifications about alerts that were not sent.
    pub notifications: i64,
    /// Schedules whose time has come.
    pub schedules: i64,
    /// Firings that wait for what they depend on.
    pub firings: i64,
    /// Campaigns that would start their next phase by themselves.
    pub campaigns: i64,
    /// Events that were not delivered.
    pub events: i64,
    /// Runs of functions that have not ended.
    pub job_runs: i64,
}

/// Counts what is unfinished. For operators.
pub async fn unfinished(connection: &mut PgConnection) -> Result<Unfinished, StoreError> {
    sqlx::query_as!(
        Unfinished,
        r#"
        select reserved_items as "reserved_items!", begun_items as "unreserved_items!", replies as "replies!",
               notifications as "notifications!", schedules as "schedules!", firings as "firings!", campaigns as "campaigns!",
               events as "events!", job_runs as "job_runs!"
          from tenancy.count_unfinished()
        "#
    )
    .fetch_one(unprepared(connection))
    .await
    .map_err(StoreError::on("counting what is unfinished"))
}

/// The reason why another epoch begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// The database is a copy, and the original may have sent since it was taken.
    Adopted,
    /// Nothing can have been sent since: every process had stopped before the database was moved.
    Moved,
}

/// Result of an adoption.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Adoption {
    /// The installation.
    pub installation_id: Uuid,
    /// The epoch that began.
    pub epoch: i32,
    /// `adopted` or `moved`.
    pub cause: String,
    /// Items that are in doubt now.
    pub items_in_doubt: i64,
    /// Chat replies that are looked up before they are sent.
    pub replies_in_doubt: i64,
    /// Campaigns whose next phase is started by hand.
    pub campaigns_stopped: i64,
    /// Firings that were skipped.
    pub firings_skipped: i64,
}

/// Begins another epoch in the caller's transaction: nothing has changed before that is committed.
pub async fn begin_epoch(
    connection: &mut PgConnection,
    cause: Cause,
    reason: &str,
    actor: &str,
) -> Result<Adoption, StoreError> {
    let cause = match cause {
        Cause::Adopted => "adopted",
        Cause::Moved => "moved",
    };
    sqlx::query_as!(
        Adoption,
        r#"
        select installation_id as "installation_id!", number as "epoch!", cause as "cause!", items_in_doubt as "items_in_doubt!",
               replies_in_doubt as "replies_in_doubt!", campaigns_stopped as "campaigns_stopped!",
               firings_skipped as "firings_skipped!"
          from tenancy.begin_epoch($1, $2, $3)
        "#,
        cause,
        reason,
        actor,
    )
    .fetch_one(unprepared(connection))
    .await
    .map_err(StoreError::on("adopting the database"))
}

/// Moves a schedule past its due firings, in the transaction of [`begin_epoch`]. False when it was changed meanwhile.
pub async fn skip_firings(
    connection: &mut PgConnection,
    schedule: &crate::jobs::schedules::DueSchedule,
    last_skipped: Timestamp,
    next: Option<Timestamp>,
) -> Result<bool, StoreError> {
    sqlx::query_scalar!(
        r#"select tenancy.skip_firings($1, $2, $3, $4, $5, $6) as "is_done!""#,
        schedule.tenant.0,
        schedule.id.0,
        schedule.due.to_sqlx() as _,
        schedule.version,
        last_skipped.to_sqlx() as _,
        next.map(ToSqlx::to_sqlx) as _,
    )
    .fetch_one(unprepared(connection))
    .await
    .map_err(StoreError::on("skipping firings"))
}
