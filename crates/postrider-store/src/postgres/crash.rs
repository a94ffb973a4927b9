//! Points at which a test can end the process, as if the power had failed. Release builds have none.
//!
//! `CRASH_AT=reserve.after_commit@3` kills the process the third time it reaches that point. With `CRASH_BY=panic` the task that
//! reaches it panics instead, as after a mistake in the code.

use std::sync::{
    LazyLock,
    atomic::{AtomicU32, Ordering},
};

/// Every crash point of an item, in the order in which it reaches them.
pub const POINTS: &[&str] = &[
    "claim.before",
    "claim.after_statement",
    "claim.commit_sent",
    "claim.after_commit",
    "reserve.before",
    "reserve.after_statement",
    "reserve.commit_sent",
    "reserve.after_commit",
    "call.before",
    "call.after",
    "finalize.before",
    "finalize.after_statement",
    "finalize.commit_sent",
    "finalize.after_commit",
    "complete.before",
    "complete.after_statement",
    "complete.commit_sent",
    "complete.after_commit",
];

/// Every crash point of a resolver, in order.
pub const RESOLVER_POINTS: &[&str] =
    &["doubt.claimed", "resolve.before", "resolve.after_statement", "resolve.after_commit"];

/// Every crash point of a received message, in order.
pub const RECEIVING_POINTS: &[&str] = &[
    "receive.before",
    "receive.after_statement",
    "receive.after_commit",
    "enqueue.before",
    "enqueue.after_statement",
    "enqueue.after_commit",
];

/// Every crash point of a reply, in order.
pub const REPLY_POINTS: &[&str] = &[
    "reply.before_claim",
    "reply.claimed",
    "reply.after_claim",
    "reply.before_call",
    "reply.after_call",
    "reply.before_settling",
    "reply.settled",
    "reply.after_settling",
];

/// Every crash point of a run of a function, in order.
pub const JOB_POINTS: &[&str] = &[
    "schedule.before_fire",
    "schedule.fired",
    "schedule.after_fire",
    "run.before_claim",
    "run.claimed",
    "run.after_claim",
    "run.before_call",
    "run.after_call",
    "run.before_end",
    "run.ended",
    "run.after_end",
];

/// Every crash point of a rotation of the master key, in order.
pub const MASTER_KEY_POINTS: &[&str] = &["master_key.resealed", "master_key.rotated"];

struct Armed {
    point: String,
    left: AtomicU32,
}

static ARMED: LazyLock<Option<Armed>> = LazyLock::new(|| {
    let wanted = std::env::var("CRASH_AT").ok()?;
    let (point, nth) = wanted.split_once('@').unwrap_or((&wanted, "1"));
    Some(Armed { point: point.to_owned(), left: AtomicU32::new(nth.parse().unwrap_or(1)) })
});

/// Whether the process is to crash at this point, this time.
#[must_use]
pub fn is_due(point: &str) -> bool {
    debug_assert!(
        [POINTS, RESOLVER_POINTS, RECEIVING_POINTS, REPLY_POINTS, JOB_POINTS, MASTER_KEY_POINTS]
            .concat()
            .contains(&point),
        "there is no crash point {point}"
    );
    ARMED
        .as_ref()
        .is_some_and(|armed| armed.point == point && armed.left.fetch_sub(1, Ordering::Relaxed) == 1)
}

/// Kills the process; or panics in the task only.
#[expect(clippy::panic, reason = "a test asks for it, of a debug build")]
pub fn die() {
    if std::env::var("CRASH_BY").is_ok_and(|how| how == "panic") {
        panic!("a test asked for it");
    }
    let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
    // The signal reaches every thread in a moment.
    std::process::abort();
}

/// Marks a crash point.
#[macro_export]
macro_rules! crash_point {
    ($point:expr) => {
        if cfg!(debug_assertions) && $crate::postgres::crash::is_due($point) {
            $crate::postgres::crash::die();
        }
    };
}
