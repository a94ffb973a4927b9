//! Fail-over: moves reservations whose first account provably did not send them to the account that their run fails over to.

use postrider_model::ids::{OutboxId, TenantId};
use uuid::Uuid;

use crate::{
    Pool, Reservation, StoreError,
    campaigns::{outbox::ItemRef, reservation::Asked},
    postgres::{pool, unprepared::unprepared},
};

/// The result of moving reservations to the account that their run fails over to.
#[derive(Debug)]
pub struct MovedOver {
    /// The reservations that moved: call each there, once.
    pub moved: Vec<Reservation>,
    /// The reservations that did not move and must not be called: another session has settled them.
    pub kept: Vec<Reservation>,
}

/// Moves reservations whose first account provably did not send them. They are returned only after the COMMIT was seen, so nothing is
/// called without a committed row that names the account. After an error nothing was called there, and nothing will be.
pub async fn move_over(
    pool: &Pool,
    worker: &str,
    reservations: Vec<Reservation>,
) -> Result<MovedOver, MoveFailed> {
    let asked = Asked::now();
    let items = reservations.iter().filter(|reservation| !reservation.has_moved()).map(ItemRef::of).collect();
    let items = match commit_move(pool, worker, items).await {
        Ok(items) => items,
        Err(error) => return Err(MoveFailed { reservations, error }),
    };
    let (moved, kept): (Vec<_>, Vec<_>) =
        reservations.into_iter().partition(|reservation| items.contains(&ItemRef::of(reservation)));
    Ok(MovedOver { moved: moved.into_iter().map(|reservation| reservation.moved(asked)).collect(), kept })
}

/// The same for one. A reservation that did not move is the error's value, and must not be called.
pub async fn move_one_over(pool: &Pool, worker: &str, reservation: Reservation) -> Result<Reservation, Kept> {
    let asked = Asked::now();
    let item = ItemRef::of(&reservation);
    if reservation.has_moved() {
        return Err(Kept { reservation, error: None });
    }
    match commit_move(pool, worker, vec![item]).await {
        Ok(items) if items.contains(&item) => Ok(reservation.moved(asked)),
        Ok(_) => Err(Kept { reservation, error: None }),
        Err(error) => Err(Kept { reservation, error: Some(error) }),
    }
}

/// A reservation that did not move. Settle it as not sent.
#[derive(Debug)]
pub struct Kept {
    /// The reservation.
    pub reservation: Reservation,
    /// The error, unless another session has settled it.
    pub error: Option<StoreError>,
}

/// A move that may or may not have been committed. No call was made because of it.
#[derive(Debug)]
pub struct MoveFailed {
    /// The reservations. Settle them as not sent.
    pub reservations: Vec<Reservation>,
    /// The error.
    pub error: StoreError,
}

async fn commit_move(pool: &Pool, worker: &str, mut items: Vec<ItemRef>) -> Result<Vec<ItemRef>, StoreError> {
    // In the order of tenants and ids, so that two writers never wait for each other in a circle.
    items.sort_unstable();
    let (tenants, ids): (Vec<Uuid>, Vec<Uuid>) = items.iter().map(|item| (item.tenant.0, item.id.0)).unzip();
    let mut transaction = pool::begin(pool).await?;
    let moved = sqlx::query!(
        r#"select tenant_id as "tenant_id!", id as "id!" from execution.move_outbox_items($1, $2, $3)"#,
        &tenants,
        worker,
        &ids,
    )
    .fetch_all(unprepared(&mut transaction))
    .await
    .map_err(StoreError::on("moving items to the other account"))?;
    pool::commit(transaction).await?;
    let item = |tenant, id| ItemRef { tenant: TenantId(tenant), id: OutboxId(id) };
    Ok(moved.into_iter().map(|row| item(row.tenant_id, row.id)).collect())
}
