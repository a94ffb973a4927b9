//! One item's call, tried again in place only where provably nothing was sent. Time and panics become outcomes here.
//!
//! Thousands of these futures exist at a time. Rare branches are boxed, so that each future takes hundreds of bytes and not thousands.

use std::{
    panic::AssertUnwindSafe,
    time::{Duration, Instant},
};

use futures::FutureExt;
use postrider_model::{Message, Outcome, ResponseExcerpt, ids::OutboxId};
use postrider_providers::response::recorded;
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
    let mut answered = try_at(shared, prepared.route(target), &reservation, &message).await;
    drop(permit);
    let mut reservation = reservation;
    if target == Target::Account && failover::may_follow(prepared, &answered.outcome) {
        let follow = failover::follow(shared, prepared, item, reservation, &message, answered);
        (reservation, answered) = Box::pin(follow).await;
    }
    log(job, &reservation, &answered.outcome);
    reservation.settle(answered.outcome).with_response(answered.response)
}

/// The outcome of a call, with the last response of the provider.
pub(super) struct Answered {
    pub(super) outcome: Outcome,
    pub(super) response: Option<ResponseExcerpt>,
}

/// Calls under one reservation at one account, again only where provably nothing was sent.
pub(super) async fn try_at(
    shared: &Shared,
    route: &Route,
    reservation: &Reservation,
    message: &Message,
) -> Answered {
    let settings = &shared.settings;
    let (mut tries, mut waited) = (0, Duration::ZERO);
    let mut response = None;
    loop {
        if reservation.age() > settings.call_within {
            // After this time the item may be settled as not sent, so it must not be sent any more.
            let reason = "the worker was delayed before the call".to_owned();
            return Answered { outcome: Outcome::NotSent { reason, retry_after: None }, response };
        }
        crash_point!("call.before");
        tries += 1;
        let began = Instant::now();
        let called = AssertUnwindSafe(recorded(route.provider.call(reservation, message))).catch_unwind();
        let outcome = match tokio::time::timeout(settings.call_timeout, called).await {
            Ok(Ok((outcome, answer))) => {
                response = answer;
                outcome
            }
            Ok(Err(_)) => Outcome::Unknown { reason: "the adapter panicked".to_owned() },
            Err(_) => Outcome::Unknown { reason: format!("no answer within {:?}", settings.call_timeout) },
        };
        crash_point!("call.after");
        if let Some(signal) = route.note(shared, &outcome, began.elapsed()) {
            Box::pin(route.publish(shared, signal)).await;
        }
        match decide(outcome, tries, waited, spread(reservation.outbox_id()), &settings.retry) {
            Verdict::Settle(outcome) => return Answered { outcome, response },
            Verdict::CallAgainIn(pause) => {
                waited += pause;
                if let Some(outcome) = Box::pin(wait(shared, route, pause)).await {
                    return Answered { outcome, response };
                }
            }
        }
    }
}

/// Waits for the next try and its call token. Returns an outcome if the worker stops meanwhile.
async fn wait(shared: &Shared, route: &Route, pause: Duration) -> Option<Outcome> {
    tokio::select! {
        () = tokio::time::sleep(pause) => {}
        () = shared.hurry.cancelled() => return Some(Outcome::NotSent {
            reason: "the worker stopped while the provider asked to wait".to_owned(),
            retry_after: None,
        }),
    }
    route.take_again(shared).await;
    None
}

fn log(job: &ClaimedJob, reservation: &Reservation, outcome: &Outcome) {
    let id = reservation.outbox_id();
    match outcome {
        Outcome::Delivered { message_id } => {
            tracing::debug!(item.id = %id, correlation_id = %job.correlation_id, message_id, "{id} was delivered");
        }
        Outcome::Rejected { reason } | Outcome::NotSent { reason, .. } => {
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
