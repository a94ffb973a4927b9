//! Reserving and settling items, many at a time, in one transaction.
//!
//! This is the only place where a [`Reservation`] comes into being, and it does so after the COMMIT of its row was seen, on a
//! connection that was idle before.

use std::{
    borrow::Cow,
    cmp::Reverse,
    collections::{HashMap, HashSet},
};

use postrider_model::{
    Channel, IdempotencyKey, Outcome,
    campaign::ItemStatus,
    ids::{JobId, OutboxId, TenantId},
};
use sqlx::PgConnection;
use uuid::Uuid;

use crate::{
    Pool, Reservation, Settlement, StoreError, crash, crash_point, pool, pool::Transaction,
    reservation::Asked, unnamed::unnamed,
};

/// A job as its holder knows it. Every write names the attempt it acts under.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JobHold {
    /// Which job.
    pub job_id: JobId,
    /// Whose.
    pub tenant_id: TenantId,
    /// Which attempt.
    pub attempt: i32,
    /// The channel of its items.
    pub channel: Channel,
}

/// A stretch of a job's items to reserve.
#[derive(Debug)]
pub struct Window {
    /// The job they belong to.
    pub job: JobHold,
    /// The place of the first one among the job's items, from 0.
    pub first: usize,
    /// The items, in the job's order.
    pub items: Vec<PlannedItem>,
    asked: Asked,
}

impl Window {
    /// Asks for the items of a job from `first` on. Whatever is reserved is as old as this.
    #[must_use]
    pub fn new(job: JobHold, first: usize, items: Vec<PlannedItem>) -> Self {
        Self { job, first, items, asked: Asked::now() }
    }
}

/// An item that is about to be reserved.
#[derive(Debug)]
pub struct PlannedItem {
    /// The item of the job.
    pub item_id: Uuid,
    /// The id that its row will have.
    pub outbox_id: OutboxId,
    /// The address, for people who look at the row.
    pub recipient: Option<String>,
    /// What is going to happen.
    pub plan: Plan,
}

/// What is going to happen to an item.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Plan {
    /// A provider call with a message of this fingerprint.
    Call {
        /// See [`postrider_model::Message::hash`].
        message_hash: [u8; 32],
    },
    /// It fails before any call.
    Fail {
        /// Why.
        reason: String,
    },
    /// It is left out on purpose.
    Skip {
        /// Why.
        reason: String,
    },
}

/// What became of a planned item.
#[derive(Debug)]
pub enum Reserved {
    /// It is ours to call, once.
    Yours(Reservation),
    /// It is in this state, now or from before; nobody calls it again.
    Already(ItemStatus),
}

/// What a window came to.
#[derive(Debug)]
pub enum WindowAnswer {
    /// An answer per item, in its order.
    Items(Vec<Reserved>),
    /// The phase is paused; nothing was reserved.
    Paused,
    /// The job is not ours any more.
    Lost,
}

/// Writes settlements down and reserves windows, all in one transaction. After an error nothing is known about either;
/// calling again with the same values is safe, and the way to find out.
pub async fn settle_and_reserve(
    pool: &Pool,
    worker: &str,
    settlements: &[&Settlement],
    windows: &[&Window],
) -> Result<Vec<WindowAnswer>, StoreError> {
    let mut transaction = pool::begin(pool).await?;
    if !settlements.is_empty() {
        crash_point!("finalize.before");
        finalize(&mut transaction, worker, settlements).await?;
        crash_point!("finalize.after_statement");
    }
    let mut rows = Vec::new();
    if !windows.is_empty() {
        crash_point!("reserve.before");
        rows = begin(&mut transaction, worker, windows).await?;
        crash_point!("reserve.after_statement");
    }
    let settling = (!settlements.is_empty()).then_some("finalize.commit_sent");
    let reserving = (!windows.is_empty()).then_some("reserve.commit_sent");
    commit(transaction, &[settling, reserving]).await?;
    if !settlements.is_empty() {
        crash_point!("finalize.after_commit");
    }
    if !windows.is_empty() {
        crash_point!("reserve.after_commit");
    }
    Ok(answers(windows, rows))
}

/// What became of reservations that were to move to the account that their run fails over to.
#[derive(Debug)]
pub struct MovedOver {
    /// They are to be called there, once.
    pub moved: Vec<Reservation>,
    /// They did not move, and must not be called: somebody else has decided about them.
    pub kept: Vec<Reservation>,
}

/// Moves reservations whose first account provably did not send them. They come back only after the COMMIT was seen, so nothing
/// is called without a committed row that says where. After an error nothing was called there, and nothing will be.
pub async fn move_over(
    pool: &Pool,
    worker: &str,
    reservations: Vec<Reservation>,
) -> Result<MovedOver, MoveFailed> {
    let asked = Asked::now();
    let ids = reservations
        .iter()
        .filter(|reservation| !reservation.has_moved())
        .map(|reservation| reservation.outbox_id().0)
        .collect();
    let ids = match commit_move(pool, worker, ids).await {
        Ok(ids) => ids,
        Err(error) => return Err(MoveFailed { reservations, error }),
    };
    let (moved, kept): (Vec<_>, Vec<_>) =
        reservations.into_iter().partition(|reservation| ids.contains(&reservation.outbox_id().0));
    Ok(MovedOver { moved: moved.into_iter().map(|reservation| reservation.moved(asked)).collect(), kept })
}

/// The same for one. What did not move comes back as the error's value, and must not be called.
pub async fn move_one_over(pool: &Pool, worker: &str, reservation: Reservation) -> Result<Reservation, Kept> {
    let asked = Asked::now();
    let id = reservation.outbox_id().0;
    if reservation.has_moved() {
        return Err(Kept { reservation, error: None });
    }
    match commit_move(pool, worker, vec![id]).await {
        Ok(ids) if ids.contains(&id) => Ok(reservation.moved(asked)),
        Ok(_) => Err(Kept { reservation, error: None }),
        Err(error) => Err(Kept { reservation, error: Some(error) }),
    }
}

/// A reservation that did not move. It is to be settled as not sent.
#[derive(Debug)]
pub struct Kept {
    /// Which one.
    pub reservation: Reservation,
    /// What went wrong, unless somebody else has decided about it.
    pub error: Option<StoreError>,
}

/// A move of which nobody knows whether it was committed. Nobody was called because of it.
#[derive(Debug)]
pub struct MoveFailed {
    /// They are to be settled as not sent.
    pub reservations: Vec<Reservation>,
    /// Why.
    pub error: StoreError,
}

async fn commit_move(pool: &Pool, worker: &str, mut ids: Vec<Uuid>) -> Result<Vec<Uuid>, StoreError> {
    // In the order of ids, so that two writers never wait for each other in a circle.
    ids.sort_unstable();
    let mut transaction = pool::begin(pool).await?;
    let moved = sqlx::query_scalar!(r#"select execution.move_outbox_items($1, $2) as "id!""#, worker, &ids,)
        .fetch_all(unnamed(&mut transaction))
        .await
        .map_err(StoreError::on("moving items to the other account"))?;
    pool::commit(transaction).await?;
    Ok(moved)
}

/// Commits. A test can have the process die between the COMMIT and its acknowledgement.
pub(crate) async fn commit(
    transaction: Transaction,
    crash_points: &[Option<&'static str>],
) -> Result<(), StoreError> {
    if cfg!(debug_assertions) && crash_points.iter().flatten().any(|point| crash::is_due(point)) {
        // The first poll sends it.
        let _ = futures::poll!(Box::pin(pool::commit(transaction)));
        crash::die();
        return Ok(());
    }
    pool::commit(transaction).await
}

async fn finalize(
    connection: &mut PgConnection,
    worker: &str,
    settlements: &[&Settlement],
) -> Result<(), StoreError> {
    // In the order of ids, so that two writers never wait for each other in a circle.
    let mut settlements = settlements.to_vec();
    settlements.sort_unstable_by_key(|settlement| settlement.outbox_id);
    let ids: Vec<Uuid> = settlements.iter().map(|settlement| settlement.outbox_id.0).collect();
    let statuses: Vec<&str> = settlements
        .iter()
        .map(|settlement| {
            settlement.outcome.ends_as(settlement.channel).map_or("in_doubt", ItemStatus::as_str)
        })
        .collect();
    let message_ids: Vec<Option<Cow<'_, str>>> = settlements
        .iter()
        .map(|settlement| match &settlement.outcome {
            Outcome::Delivered { message_id } => Some(storable(message_id)),
            _ => None,
        })
        .collect();
    let errors: Vec<Option<Cow<'_, str>>> = settlements
        .iter()
        .map(|settlement| match &settlement.outcome {
            Outcome::Delivered { .. } => None,
            Outcome::Rejected { reason } | Outcome::NotSent { reason, .. } | Outcome::Unknown { reason } => {
                Some(storable(reason))
            }
        })
        .collect();
    sqlx::query_scalar!(
        "select count(*) from execution.finalize_outbox_items($1, $2, $3, $4, $5)",
        worker,
        &ids,
        &statuses as _,
        &message_ids as _,
        &errors as _,
    )
    .fetch_one(unnamed(connection))
    .await
    .map_err(StoreError::on("settling items"))?;
    Ok(())
}

/// Words of others, as Postgres can keep them: it has no NUL in its texts.
pub(crate) fn storable(text: &str) -> Cow<'_, str> {
    if text.contains('\0') { text.replace('\0', "\u{fffd}").into() } else { text.into() }
}

/// How the database says that a phase is not in progress.
const PAUSED: &str = "paused";

struct Row {
    job_id: Uuid,
    outbox_id: Option<Uuid>,
    item_id: Option<Uuid>,
    idempotency_key: Option<String>,
    verdict: String,
}

async fn begin(
    connection: &mut PgConnection,
    worker: &str,
    windows: &[&Window],
) -> Result<Vec<Row>, StoreError> {
    // In the order of jobs, so that two writers never wait for each other in a circle.
    let mut windows = windows.to_vec();
    windows.sort_unstable_by_key(|window| window.job.job_id);
    let number = |n: usize| i32::try_from(n).unwrap_or(i32::MAX);
    let jobs: Vec<Uuid> = windows.iter().map(|window| window.job.job_id.0).collect();
    let attempts: Vec<i32> = windows.iter().map(|window| window.job.attempt).collect();
    let firsts: Vec<i32> = windows.iter().map(|window| number(window.first + 1)).collect();
    let counts: Vec<i32> = windows.iter().map(|window| number(window.items.len())).collect();

    let items = || windows.iter().flat_map(|window| &window.items);
    let ids: Vec<Uuid> = items().map(|item| item.outbox_id.0).collect();
    let recipients: Vec<Option<&str>> = items().map(|item| item.recipient.as_deref()).collect();
    let hashes: Vec<Option<&[u8]>> = items()
        .map(|item| match &item.plan {
            Plan::Call { message_hash } => Some(message_hash.as_slice()),
            Plan::Fail { .. } | Plan::Skip { .. } => None,
        })
        .collect();
    let (verdicts, reasons): (Vec<Option<&str>>, Vec<Option<Cow<'_, str>>>) = items()
        .map(|item| match &item.plan {
            Plan::Call { .. } => (None, None),
            Plan::Fail { reason } => (Some("failed"), Some(storable(reason))),
            Plan::Skip { reason } => (Some("skipped"), Some(storable(reason))),
        })
        .unzip();
    sqlx::query_as!(
        Row,
        r#"
        select job_id as "job_id!",
               outbox_id,
               item_id,
               idempotency_key,
               verdict as "verdict!"
          from execution.begin_outbox_items($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)
        "#,
        worker,
        &jobs,
        &attempts,
        &firsts,
        &counts,
        &ids,
        &recipients as _,
        &hashes as _,
        &verdicts as _,
        &reasons as _,
    )
    .fetch_all(unnamed(connection))
    .await
    .map_err(StoreError::on("reserving items"))
}

/// Puts the rows back into the order of the windows. A window that was not answered item by item is not ours any more, or not now.
fn answers(windows: &[&Window], rows: Vec<Row>) -> Vec<WindowAnswer> {
    let paused: HashSet<Uuid> =
        rows.iter().filter(|row| row.verdict == PAUSED).map(|row| row.job_id).collect();
    let mut by_item: HashMap<(Uuid, Uuid), Row> =
        rows.into_iter().filter_map(|row| Some(((row.job_id, row.item_id?), row))).collect();
    let mut answers: Vec<WindowAnswer> = windows.iter().map(|_| WindowAnswer::Lost).collect();
    // A job may be here twice, when this worker took over from itself. Then the rows are those of the later attempt.
    let mut order: Vec<usize> = (0..windows.len()).collect();
    order.sort_by_key(|n| Reverse(windows[*n].job.attempt));
    let mut seen = HashSet::new();
    for n in order {
        let window = windows[n];
        let job = window.job.job_id.0;
        let mut answer = |item: &PlannedItem| {
            let row = by_item.remove(&(job, item.item_id))?;
            Some(reserved(window, row))
        };
        let items: Option<Vec<Reserved>> = window.items.iter().map(&mut answer).collect();
        answers[n] = match items {
            Some(items) => WindowAnswer::Items(items),
            None if seen.insert(job) && paused.contains(&job) => WindowAnswer::Paused,
            None => WindowAnswer::Lost,
        };
    }
    answers
}

fn reserved(window: &Window, row: Row) -> Reserved {
    let job = window.job;
    match (row.verdict.as_str(), row.outbox_id, row.idempotency_key) {
        ("reserved", Some(id), Some(key)) => Reserved::Yours(Reservation::committed(
            OutboxId(id),
            job.tenant_id,
            job.channel,
            IdempotencyKey::from_row(key),
            window.asked,
        )),
        (state, _, _) => Reserved::Already(state.parse().unwrap_or(ItemStatus::Queued)),
    }
}
