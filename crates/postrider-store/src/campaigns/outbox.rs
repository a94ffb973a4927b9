//! Reserving and settling items, many at a time, in one transaction.
//!
//! Only this module makes a [`Reservation`] (`failover` moves one to another account), and only after the COMMIT of its row was seen, on a connection that was idle before.

use std::borrow::Cow;

use postrider_model::{
    Channel, IdempotencyKey, Outcome,
    campaigns::ItemStatus,
    ids::{JobId, OutboxId, TenantId},
};
use sqlx::{PgConnection, Postgres, pool::PoolConnection};
use uuid::Uuid;

use crate::{
    Pool, Reservation, Settlement, StoreError,
    campaigns::reservation::Asked,
    crash_point,
    postgres::{
        crash,
        pool::{self, TransactionOn},
        unprepared::unprepared,
    },
    tenancy::fence::{Fence, Pass},
};

/// A send job and the attempt that every write names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JobHold {
    /// Id of the send job.
    pub job_id: JobId,
    /// The tenant.
    pub tenant_id: TenantId,
    /// Number of the attempt.
    pub attempt: i32,
    /// The channel of its items.
    pub channel: Channel,
}

impl JobHold {
    /// The send job without the attempt.
    #[must_use]
    pub const fn job(self) -> JobRef {
        JobRef { tenant: self.tenant_id, id: self.job_id }
    }
}

/// A send job and its tenant. Ids of send jobs are unique within a tenant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobRef {
    /// The tenant of the send job.
    pub tenant: TenantId,
    /// The id of the send job.
    pub id: JobId,
}

/// An item and its tenant. Ids of items are unique within a tenant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct ItemRef {
    pub(super) tenant: TenantId,
    pub(super) id: OutboxId,
}

impl ItemRef {
    pub(super) fn of(reservation: &Reservation) -> Self {
        Self { tenant: reservation.tenant_id(), id: reservation.outbox_id() }
    }
}

/// A stretch of a send job's items to reserve.
#[derive(Debug)]
pub struct Window {
    /// The send job they belong to.
    pub job: JobHold,
    /// The place of the first one among the send job's items, from 0.
    pub first: usize,
    /// The items, in the send job's order.
    pub items: Vec<PlannedItem>,
    asked: Asked,
}

impl Window {
    /// Asks for the items of a send job from `first` on. The reservations count as old as this request.
    #[must_use]
    pub fn new(job: JobHold, first: usize, items: Vec<PlannedItem>) -> Self {
        Self { job, first, items, asked: Asked::now() }
    }
}

/// An item to reserve.
#[derive(Debug)]
pub struct PlannedItem {
    /// The item of the send job.
    pub item_id: Uuid,
    /// The id that its row will have.
    pub outbox_id: OutboxId,
    /// The address, for people who read the row.
    pub recipient: Option<String>,
    /// The plan for it.
    pub plan: Plan,
}

/// The plan for an item.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Plan {
    /// A provider call with a message of this fingerprint.
    Call {
        /// See [`postrider_model::Message::hash`].
        message_hash: [u8; 32],
    },
    /// The item fails before any call.
    Fail {
        /// The reason.
        reason: String,
    },
    /// The item is left out on purpose.
    Skip {
        /// The reason.
        reason: String,
    },
}

/// The result for a planned item.
#[derive(Debug)]
pub enum Reserved {
    /// The item is reserved: call it once.
    Yours(Reservation),
    /// The item is in this state, now or from before; it is not called again.
    Already(ItemStatus),
}

/// The result for a window.
#[derive(Debug)]
pub enum WindowAnswer {
    /// An answer per item, in its order.
    Items(Vec<Reserved>),
    /// The phase is paused; nothing was reserved.
    Paused,
    /// The fence is closed; nothing was reserved.
    Closed,
    /// The send job is not held any more.
    Lost,
}

/// Records settlements and reserves windows over one connection, which it keeps.
///
/// The pool checks whether a connection is inside an open transaction before it hands it out. A connection whose last COMMIT was
/// acknowledged here is not; after any other result the writer returns it to the pool.
#[derive(Debug)]
pub struct Writer {
    pool: Pool,
    connection: Option<PoolConnection<Postgres>>,
    fence: Fence,
    number: usize,
}

/// Another one over the same pool, which has no connection yet.
impl Clone for Writer {
    fn clone(&self) -> Self {
        Self::fenced(self.pool.clone(), self.fence.clone())
    }
}

impl Writer {
    /// A writer without a fence, which has no connection yet.
    #[must_use]
    pub fn new(pool: Pool) -> Self {
        Self::fenced(pool, Fence::default())
    }

    /// A writer that reserves only while this fence is open.
    #[must_use]
    pub fn fenced(pool: Pool, fence: Fence) -> Self {
        let number = fence.writer();
        Self { pool, connection: None, fence, number }
    }

    /// The same that reserves only while this fence is open.
    #[must_use]
    pub fn with_fence(self, fence: Fence) -> Self {
        Self::fenced(self.pool, fence)
    }

    /// The same over another pool, behind the same fence. It counts as the same writer, so use one of the two at a time.
    #[must_use]
    pub fn over(&self, pool: Pool) -> Self {
        Self { pool, connection: None, fence: self.fence.clone(), number: self.number }
    }

    /// Gets a connection, if there is none. After an error nothing has reached the database.
    pub async fn connect(&mut self) -> Result<(), StoreError> {
        if self.connection.is_none() {
            self.connection = Some(pool::acquire(&self.pool).await?);
        }
        Ok(())
    }

    /// Whether there is a connection, as far as is known.
    #[must_use]
    pub const fn is_connected(&self) -> bool {
        self.connection.is_some()
    }

    /// Does both in one transaction. After an error the result of either is not known; calling again with the same values is safe, and the
    /// way to find out. Where nothing may be sent from this database, settlements are written and windows get [`WindowAnswer::Closed`].
    pub async fn settle_and_reserve(
        &mut self,
        worker: &str,
        settlements: &[&Settlement],
        windows: &[&Window],
    ) -> Result<Vec<WindowAnswer>, StoreError> {
        let pass = self.fence.pass();
        if !windows.is_empty() && pass != Pass::Closed {
            match self.write(worker, settlements, windows, &pass).await {
                Err(StoreError::SendingRefused { message }) => {
                    self.fence.close();
                    tracing::warn!("nothing was reserved: {message}");
                }
                answered => return answered,
            }
        }
        self.write(worker, settlements, &[], &pass).await?;
        Ok(windows.iter().map(|_| WindowAnswer::Closed).collect())
    }

    async fn write(
        &mut self,
        worker: &str,
        settlements: &[&Settlement],
        windows: &[&Window],
        pass: &Pass,
    ) -> Result<Vec<WindowAnswer>, StoreError> {
        if settlements.is_empty() && windows.is_empty() {
            return Ok(Vec::new());
        }
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => pool::acquire(&self.pool).await?,
        };
        let answers = settle_and_reserve(&mut connection, worker, settlements, windows, pass).await?;
        self.connection = Some(connection);
        let mut reserved = answers.iter().rev().filter_map(|answer| match answer {
            WindowAnswer::Items(items) => items.iter().find_map(|item| match item {
                Reserved::Yours(reservation) => Some((reservation.tenant_id(), reservation.outbox_id())),
                Reserved::Already(_) => None,
            }),
            WindowAnswer::Paused | WindowAnswer::Closed | WindowAnswer::Lost => None,
        });
        if let Some((tenant, id)) = reserved.next() {
            self.fence.committed(self.number, tenant, id);
        }
        Ok(answers)
    }
}

async fn settle_and_reserve(
    connection: &mut PgConnection,
    worker: &str,
    settlements: &[&Settlement],
    windows: &[&Window],
    pass: &Pass,
) -> Result<Vec<WindowAnswer>, StoreError> {
    let mut transaction = match pass {
        Pass::Naming(fence) => pool::begin_fenced(connection, fence).await?,
        Pass::Unfenced | Pass::Closed => pool::begin_on(connection).await?,
    };
    if !settlements.is_empty() {
        crash_point!("finalize.before");
        finalize(&mut transaction, worker, settlements).await?;
        crash_point!("finalize.after_statement");
    }
    // In the order of tenants and send jobs, so that two writers never wait for each other in a circle.
    let mut order: Vec<usize> = (0..windows.len()).collect();
    order.sort_unstable_by_key(|n| windows[*n].job.job());
    let in_order: Vec<&Window> = order.iter().map(|n| windows[*n]).collect();
    let mut begun = None;
    if !windows.is_empty() {
        crash_point!("reserve.before");
        begun = Some(begin(&mut transaction, worker, &in_order).await?);
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
    let answered = begun.map(|begun| answers(&in_order, begun)).unwrap_or_default();
    let mut answers: Vec<(usize, WindowAnswer)> = order.into_iter().zip(answered).collect();
    answers.sort_unstable_by_key(|(n, _)| *n);
    Ok(answers.into_iter().map(|(_, answer)| answer).collect())
}

/// Commits. A test can kill the process between the COMMIT and its acknowledgement.
pub(crate) async fn commit(
    transaction: TransactionOn<'_>,
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
    // In the order of tenants and ids, so that two writers never wait for each other in a circle.
    let mut settlements = settlements.to_vec();
    settlements.sort_unstable_by_key(|settlement| (settlement.tenant_id, settlement.outbox_id));
    let tenants: Vec<Uuid> = settlements.iter().map(|settlement| settlement.tenant_id.0).collect();
    let ids: Vec<Uuid> = settlements.iter().map(|settlement| settlement.outbox_id.0).collect();
    let statuses: Vec<&str> = settlements
        .iter()
        .map(|settlement| match settlement.outcome.ends_as(settlement.channel) {
            Some(status) => status.as_str(),
            None if settlement.outcome.waits_for_account() => "put_back",
            None => "in_doubt",
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
            outcome => Some(storable(outcome.text())),
        })
        .collect();
    sqlx::query_scalar!(
        "select count(*) from execution.finalize_outbox_items($1, $2, $3, $4, $5, $6)",
        &tenants,
        worker,
        &ids,
        &statuses as _,
        &message_ids as _,
        &errors as _,
    )
    .fetch_one(unprepared(connection))
    .await
    .map_err(StoreError::on("settling items"))?;
    Ok(())
}

/// Text from other programs in a form that Postgres can store: without NUL.
pub(crate) fn storable(text: &str) -> Cow<'_, str> {
    if text.contains('\0') { text.replace('\0', "\u{fffd}").into() } else { text.into() }
}

/// The database's answer about windows, in the order of the request.
struct Begun {
    windows: Vec<String>,
    outbox_ids: Vec<Option<Uuid>>,
    item_ids: Vec<Option<Uuid>>,
    keys: Vec<Option<String>>,
    verdicts: Vec<Option<String>>,
}

async fn begin(
    connection: &mut PgConnection,
    worker: &str,
    windows: &[&Window],
) -> Result<Begun, StoreError> {
    let number = |n: usize| i32::try_from(n).unwrap_or(i32::MAX);
    let tenants: Vec<Uuid> = windows.iter().map(|window| window.job.tenant_id.0).collect();
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
        Begun,
        r#"
        select windows as "windows!",
               outbox_ids as "outbox_ids!: Vec<Option<Uuid>>",
               item_ids as "item_ids!: Vec<Option<Uuid>>",
               idempotency_keys as "keys!: Vec<Option<String>>",
               verdicts as "verdicts!: Vec<Option<String>>"
          from execution.begin_windows($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)
        "#,
        &tenants,
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
    .fetch_one(unprepared(connection))
    .await
    .map_err(StoreError::on("reserving items"))
}

/// Splits the answer among the windows. An answer about other items than those of the request counts as lost.
fn answers(windows: &[&Window], begun: Begun) -> Vec<WindowAnswer> {
    let Begun { windows: states, outbox_ids, item_ids, keys, verdicts } = begun;
    let mut entries = item_ids.into_iter().zip(keys).zip(outbox_ids.into_iter().zip(verdicts));
    let mut states = states.into_iter();
    let mut answer = |window: &Window| {
        let entries: Vec<_> = entries.by_ref().take(window.items.len()).collect();
        let of_items = entries.iter().map(|((item_id, _), _)| *item_id);
        let is_about_them = of_items.eq(window.items.iter().map(|item| Some(item.item_id)));
        match states.next().as_deref() {
            Some("open") if is_about_them => {
                let items = window.items.iter().zip(entries);
                let items = items.map(|(item, ((_, key), (id, verdict)))| {
                    // An item that was put back keeps the id of its row.
                    reserved(window, id.map_or(item.outbox_id, OutboxId), key, verdict)
                });
                WindowAnswer::Items(items.collect())
            }
            Some("paused") => WindowAnswer::Paused,
            _ => WindowAnswer::Lost,
        }
    };
    windows.iter().map(|window| answer(window)).collect()
}

fn reserved(window: &Window, id: OutboxId, key: Option<String>, verdict: Option<String>) -> Reserved {
    let job = window.job;
    match (verdict, key) {
        (None, Some(key)) => Reserved::Yours(Reservation::committed(
            id,
            job.tenant_id,
            job.channel,
            IdempotencyKey::from_row(key),
            window.asked,
        )),
        (state, _) => {
            Reserved::Already(state.and_then(|state| state.parse().ok()).unwrap_or(ItemStatus::Queued))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window(items: usize) -> Window {
        let job =
            JobHold { job_id: JobId::new(), tenant_id: TenantId::new(), attempt: 1, channel: Channel::Email };
        let item = |_| PlannedItem {
            item_id: Uuid::now_v7(),
            outbox_id: OutboxId::new(),
            recipient: None,
            plan: Plan::Call { message_hash: [0; 32] },
        };
        Window::new(job, 0, (0..items).map(item).collect())
    }

    /// The database's answer when it reserves everything, but for the states of the windows.
    fn begun(windows: &[&Window], states: &[&str]) -> Begun {
        let items = || windows.iter().flat_map(|window| &window.items);
        Begun {
            windows: states.iter().map(|&state| state.to_owned()).collect(),
            outbox_ids: items().map(|item| Some(item.outbox_id.0)).collect(),
            item_ids: items().map(|item| Some(item.item_id)).collect(),
            keys: items().map(|item| Some(format!("key of {}", item.item_id))).collect(),
            verdicts: items().map(|_| None).collect(),
        }
    }

    /// The keys of the reserved items, or the other answer.
    fn keys_of(answer: &WindowAnswer) -> Result<Vec<String>, &'static str> {
        let key = |item: &Reserved| match item {
            Reserved::Yours(reservation) => reservation.key().to_string(),
            Reserved::Already(status) => status.as_str().to_owned(),
        };
        match answer {
            WindowAnswer::Items(items) => Ok(items.iter().map(key).collect()),
            WindowAnswer::Paused => Err("paused"),
            WindowAnswer::Closed => Err("closed"),
            WindowAnswer::Lost => Err("lost"),
        }
    }

    fn keys(window: &Window) -> Vec<String> {
        window.items.iter().map(|item| format!("key of {}", item.item_id)).collect()
    }

    #[test]
    fn each_window_gets_its_own_part_of_the_answer() {
        let (a, b, c, d) = (window(2), window(1), window(3), window(1));
        let windows = [&a, &b, &c, &d];
        let mut begun = begun(&windows, &["open", "lost", "open", "paused"]);
        begun.item_ids[2] = None;
        begun.verdicts[4] = Some("sent".to_owned());
        let answers = answers(&windows, begun);
        let mut of_c = keys(&c);
        of_c[1] = "sent".to_owned();
        let found: Vec<_> = answers.iter().map(keys_of).collect();
        assert_eq!(found, [Ok(keys(&a)), Err("lost"), Ok(of_c), Err("paused")]);
    }

    #[test]
    fn an_answer_about_other_items_reserves_nothing() {
        let (a, b) = (window(2), window(2));
        let lost = |begun: Begun| answers(&[&a], begun).iter().all(|answer| keys_of(answer) == Err("lost"));
        assert!(!lost(begun(&[&a], &["open"])));
        assert!(lost(begun(&[&b], &["open"])), "other items");
        assert!(lost(begun(&[&a], &[])), "no state");
        assert!(lost(begun(&[&a], &["new"])), "a state that this version does not know");
        let mut swapped = begun(&[&a], &["open"]);
        swapped.item_ids.swap(0, 1);
        assert!(lost(swapped), "in another order");
        let mut short = begun(&[&a], &["open"]);
        short.keys.pop();
        assert!(lost(short), "too few");
    }

    #[test]
    fn an_item_without_a_key_or_with_an_unknown_word_is_not_called() {
        let a = window(2);
        let mut begun = begun(&[&a], &["open"]);
        begun.keys[0] = None;
        begun.verdicts[1] = Some("missing".to_owned());
        let answers = answers(&[&a], begun);
        assert_eq!(answers.iter().map(keys_of).collect::<Vec<_>>(), [Ok(vec!["queued".to_owned(); 2])]);
    }
}
