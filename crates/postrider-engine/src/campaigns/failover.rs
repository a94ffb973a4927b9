//! Failover: an item that its account provably did not send moves to the failover account. The move is committed before the call.

use postrider_model::{Message, Outcome};
use postrider_store::{
    Reservation,
    campaigns::failover::{self, Kept, MoveFailed, MovedOver},
};
use uuid::Uuid;

use super::{
    Shared,
    admission::{Openings, Target},
    call,
    prepare::Prepared,
};

/// Whether an item may move after this outcome. An item that may have been sent stays, and so does one that the provider rejected.
fn may_move(outcome: &Outcome) -> bool {
    match outcome {
        Outcome::NotSent { .. } | Outcome::AccountRefused { .. } => true,
        Outcome::Delivered { .. } | Outcome::Rejected { .. } | Outcome::Unknown { .. } => false,
    }
}

/// Whether there is a failover account, and an item may move there after this outcome.
pub(super) fn may_follow(prepared: &Prepared, outcome: &Outcome) -> bool {
    prepared.failover.is_some() && may_move(outcome)
}

/// Moves an item to the failover account and calls it there, if the hours are open and a permit and a call token come soon.
pub(super) async fn follow(
    shared: &Shared,
    prepared: &Prepared,
    item: Uuid,
    reservation: Reservation,
    message: &Message,
    outcome: Outcome,
) -> (Reservation, Outcome) {
    let Some(failover) = &prepared.failover else {
        return (reservation, outcome);
    };
    let is_open = || Openings::new(prepared, Target::Failover).opens_at(prepared.leads.get(&item)).is_none();
    if shared.hurry.is_cancelled() || !is_open() {
        return (reservation, outcome);
    }
    let permit = failover.take_one(shared, shared.settings.call_within / 2).await;
    // The hours may have closed meanwhile.
    let Some(_permit) = permit.filter(|_| is_open()) else {
        return (reservation, outcome);
    };
    match failover::move_one_over(&shared.pool, &shared.worker, reservation).await {
        Ok(reservation) => {
            metrics::counter!("postrider_items_moved_total").increment(1);
            let outcome = call::try_at(shared, failover, &reservation, message).await;
            (reservation, outcome)
        }
        Err(Kept { reservation, error }) => {
            if let Some(error) = error {
                tracing::warn!(error = ?error, "an item was not moved to the failover account: {error}");
            }
            (reservation, outcome)
        }
    }
}

/// Moves reservations. Those that are kept must be settled as not sent: no provider was called.
pub(super) async fn move_over(shared: &Shared, reservations: Vec<Reservation>) -> MovedOver {
    match failover::move_over(&shared.pool, &shared.worker, reservations).await {
        Ok(moved) => {
            metrics::counter!("postrider_items_moved_total").increment(moved.moved.len() as u64);
            moved
        }
        Err(MoveFailed { reservations, error }) => {
            tracing::warn!(error = ?error, "items were not moved to the failover account: {error}");
            MovedOver { moved: Vec::new(), kept: reservations }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn only_items_that_were_provably_not_sent_move() {
        let reason = || "why".to_owned();
        let table = [
            (Outcome::Delivered { message_id: "m".to_owned() }, false),
            (Outcome::Rejected { reason: reason() }, false),
            (Outcome::Unknown { reason: reason() }, false),
            (Outcome::AccountRefused { reason: reason(), is_login: true }, true),
            (Outcome::NotSent { reason: reason(), retry_after: None }, true),
            (Outcome::NotSent { reason: reason(), retry_after: Some(Duration::from_secs(90)) }, true),
        ];
        for (outcome, expected) in table {
            assert_eq!(may_move(&outcome), expected, "{outcome:?}");
        }
    }
}
