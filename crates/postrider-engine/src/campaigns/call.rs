//! One item's call, tried again in place only where provably nothing was sent. Time and panics become outcomes here.
//!
//! Thousands of these futures exist at a time. Rare branches are boxed, so that each future takes hundreds of bytes and not thousands.

use std::{
    ops::ControlFlow,
    panic::AssertUnwindSafe,
    time::{Duration, Instant},
};

use futures::FutureExt;
use postrider_model::{Message, Outcome, ids::OutboxId};
use postrider_store::{Reservation, Settlement, campaigns::send_jobs::ClaimedJob, crash_point};

use super::{
    Shared,
    admission::{Route, Target},
    calls::Call,
    decide::{Verdict, decide},
    failover,
    prepare::Prepared,
};

/// Calls a reserved item at this account; and at the failover account, if this one provably did not send it.
pub(super) async fn call(
    shared: &Shared,
    prepared: &Prepared,
    job: &ClaimedJob,
    target: Target,
    Call { item, reservation, message, permit }: Call,
) -> Settlement {
    prepared.route(target).record_wait(prepared.claimed_at);
    let mut outcome = try_at(shared, prepared.route(target), &reservation, &message).await;
    drop(permit);
    let mut reservation = reservation;
    if target == Target::Account && failover::may_follow(prepared, &outcome) {
        let follow = failover::follow(shared, prepared, item, reservation, &message, outcome);
        (reservation, outcome) = Box::pin(follow).await;
    }
    log(job, &reservation, &outcome);
    reservation.settle(outcome)
}

/// Calls under one reservation at one account, again only where provably nothing was sent.
pub(super) async fn try_at(
    shared: &Shared,
    route: &Route,
    reservation: &Reservation,
    message: &Message,
) -> Outcome {
    let settings = &shared.settings;
    let (mut tries, mut waited, mut waits_for_account) = (0, Duration::ZERO, false);
    loop {
        if reservation.age() > settings.call_within {
            // After this time the item may be settled as not sent, so it must not be sent any more.
            // An item that waited for its account in the meantime is put back.
            return Outcome::NotSent {
                reason: "the worker was delayed before the call".to_owned(),
                retry_after: waits_for_account.then_some(Duration::ZERO),
            };
        }
        crash_point!("call.before");
        tries += 1;
        let began = Instant::now();
        let called = AssertUnwindSafe(route.provider.call(reservation, message)).catch_unwind();
        let outcome = match tokio::time::timeout(settings.call_timeout, called).await {
            Ok(Ok(outcome)) => outcome,
            Ok(Err(_)) => Outcome::Unknown { reason: "the adapter panicked".to_owned() },
            Err(_) => Outcome::Unknown { reason: format!("no answer within {:?}", settings.call_timeout) },
        };
        crash_point!("call.after");
        if let Some(signal) = route.note(shared, &outcome, began.elapsed()) {
            Box::pin(route.publish(shared, signal)).await;
        }
        waits_for_account = outcome.waits_for_account();
        match decide(outcome, tries, waited, spread(reservation.outbox_id()), &settings.retry) {
            Verdict::Settle(outcome) => return outcome,
            Verdict::CallAgainIn(pause) => {
                waited += pause;
                if Box::pin(wait(shared, route, pause)).await.is_break() {
                    return Outcome::NotSent {
                        reason: "the worker stopped while the item waited".to_owned(),
                        retry_after: waits_for_account.then_some(Duration::ZERO),
                    };
                }
            }
        }
    }
}

/// Waits for the next try and its call token. Breaks if the worker stops meanwhile.
async fn wait(shared: &Shared, route: &Route, pause: Duration) -> ControlFlow<()> {
    tokio::select! {
        () = tokio::time::sleep(pause) => {}
        () = shared.hurry.cancelled() => return ControlFlow::Break(()),
    }
    route.take_again(shared).await;
    ControlFlow::Continue(())
}

fn log(job: &ClaimedJob, reservation: &Reservation, outcome: &Outcome) {
    let id = reservation.outbox_id();
    match outcome {
        Outcome::Delivered { message_id } => {
            tracing::debug!(item.id = %id, correlation_id = %job.correlation_id, message_id, "{id} was delivered");
        }
        waits if waits.waits_for_account() => {
            let reason = waits.text();
            tracing::info!(item.id = %id, correlation_id = %job.correlation_id, "{id} waits for its account: {reason}");
        }
        Outcome::Rejected { reason }
        | Outcome::NotSent { reason, .. }
        | Outcome::AccountRefused { reason, .. } => {
            tracing::warn!(item.id = %id, correlation_id = %job.correlation_id, "{id} failed: {reason}");
        }
        Outcome::Unknown { reason } => {
            tracing::warn!(item.id = %id, correlation_id = %job.correlation_id, "{id} is in doubt: {reason}");
        }
    }
}

/// A number from 0 to 1 that differs between neighbouring ids.
fn spread(id: OutboxId) -> f64 {
    (id.0.as_u128() as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) as f64 / u64::MAX as f64
}
