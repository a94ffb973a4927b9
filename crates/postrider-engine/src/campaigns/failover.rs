//! From one account to the other: only what the first provably did not send, and only after the move is committed.

use postrider_model::{Message, Outcome};
use postrider_store::{
    Reservation,
    outbox::{self, Kept, MoveFailed, MovedOver},
};
use uuid::Uuid;

use super::{Shared, call, hours::Openings, prepare::Prepared, turns::Way};

/// Whether an item may go to the other account after this. Whatever may have been sent stays where it is, and so does what the
/// provider refused: that is an answer.
fn may_move(outcome: &Outcome) -> bool {
    match outcome {
        Outcome::NotSent { .. } => true,
        Outcome::Delivered { .. } | Outcome::Rejected { .. } | Outcome::Unknown { .. } => false,
    }
}

/// Whether there is another account, and an item may go there after this.
pub(super) fn may_follow(prepared: &Prepared, outcome: &Outcome) -> bool {
    prepared.second.is_some() && may_move(outcome)
}

/// Takes an item to the second account, if it may go there at this hour and if there is room for it soon.
pub(super) async fn follow(
    shared: &Shared,
    prepared: &Prepared,
    item: Uuid,
    reservation: Reservation,
    message: &Message,
    outcome: Outcome,
) -> (Reservation, Outcome) {
    let Some(second) = &prepared.second else {
        return (reservation, outcome);
    };
    let is_open = || Openings::new(prepared, Way::Second).opens_at(prepared.leads.get(&item)).is_none();
    if shared.hurry.is_cancelled() || !is_open() {
        return (reservation, outcome);
    }
    let turn = second.take_one(shared, shared.settings.call_within / 2).await;
    // The turn may have taken a while.
    let Some(_turn) = turn.filter(|_| is_open()) else {
        return (reservation, outcome);
    };
    match outbox::move_one_over(&shared.pool, &shared.worker, reservation).await {
        Ok(reservation) => {
            metrics::counter!("postrider_items_moved_total").increment(1);
            let outcome = call::try_at(shared, second, &reservation, message).await;
            (reservation, outcome)
        }
        Err(Kept { reservation, error }) => {
            if let Some(error) = error {
                tracing::warn!(error = ?error, "an item was not moved to the other account: {error}");
            }
            (reservation, outcome)
        }
    }
}

/// Moves reservations. Those that are kept must be settled as not sent: nothing was called anywhere.
pub(super) async fn move_over(shared: &Shared, reservations: Vec<Reservation>) -> MovedOver {
    match outbox::move_over(&shared.pool, &shared.worker, reservations).await {
        Ok(moved) => {
            metrics::counter!("postrider_items_moved_total").increment(moved.moved.len() as u64);
            moved
        }
        Err(MoveFailed { reservations, error }) => {
            tracing::warn!(error = ?error, "items were not moved to the other account: {error}");
            MovedOver { moved: Vec::new(), kept: reservations }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn only_what_was_provably_not_sent_moves() {
        let reason = || "why".to_owned();
        let table = [
            (Outcome::Delivered { message_id: "m".to_owned() }, false),
            (Outcome::Rejected { reason: reason() }, false),
            (Outcome::Unknown { reason: reason() }, false),
            (Outcome::NotSent { reason: reason(), retry_after: None }, true),
            (Outcome::NotSent { reason: reason(), retry_after: Some(Duration::from_secs(90)) }, true),
        ];
        for (outcome, expected) in table {
            assert_eq!(may_move(&outcome), expected, "{outcome:?}");
        }
    }
}
