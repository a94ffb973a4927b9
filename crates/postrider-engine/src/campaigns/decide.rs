//! Decides the record or the next call from an outcome. Pure.

use std::time::Duration;

use postrider_model::Outcome;

/// How often and how long an item is tried again under its reservation, when provably nothing was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetryPolicy {
    /// Most calls, the first one included.
    pub tries_max: u32,
    /// The first pause, where the provider names none. Each further one is twice as long.
    pub pause: Duration,
    /// Longest time to spend on pauses altogether.
    pub wait_max: Duration,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self { tries_max: 8, pause: Duration::from_millis(500), wait_max: Duration::from_secs(60) }
    }
}

/// The decision about an item after a call.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// That was the last word: write it down.
    Settle(Outcome),
    /// Nothing was sent: call again after so long, under the same reservation.
    CallAgainIn(Duration),
}

/// `tries` calls were made and `waited` was spent on pauses. `spread`, from 0 to 1, keeps items that were refused together
/// from coming back together.
pub(super) fn decide(
    outcome: Outcome,
    tries: u32,
    waited: Duration,
    spread: f64,
    policy: &RetryPolicy,
) -> Verdict {
    // A refused account waits as a whole, and an item that waits longer than here is put back.
    let Outcome::NotSent { retry_after, .. } = &outcome else {
        return Verdict::Settle(outcome);
    };
    let pause =
        retry_after.unwrap_or_else(|| policy.pause.saturating_mul(1 << tries.clamp(1, 16).wrapping_sub(1)));
    // Never earlier than the provider asked for.
    let pause = pause.saturating_add(pause.mul_f64(spread.clamp(0.0, 1.0) / 4.0));
    if tries >= policy.tries_max || waited.saturating_add(pause) > policy.wait_max {
        return Verdict::Settle(outcome);
    }
    Verdict::CallAgainIn(pause)
}

/// How long a send job stays away after its nth attempt: one minute, then twice as long each time, up to an hour.
pub(super) fn job_pause(base: Duration, attempt: i32) -> Duration {
    const PAUSE_MAX: Duration = Duration::from_secs(60 * 60);
    let doublings = u32::try_from(attempt.saturating_sub(1)).unwrap_or(0).min(16);
    base.saturating_mul(1 << doublings).min(PAUSE_MAX.max(base))
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLICY: RetryPolicy =
        RetryPolicy { tries_max: 3, pause: Duration::from_secs(1), wait_max: Duration::from_secs(10) };

    fn not_sent(retry_after: Option<u64>) -> Outcome {
        Outcome::NotSent { reason: "busy".to_owned(), retry_after: retry_after.map(Duration::from_secs) }
    }

    #[test]
    fn only_what_was_provably_not_sent_is_called_again() {
        let secs = Duration::from_secs;
        let again = |seconds| Verdict::CallAgainIn(secs(seconds));
        let delivered = || Outcome::Delivered { message_id: "m".to_owned() };
        let rejected = || Outcome::Rejected { reason: "no".to_owned() };
        let unknown = || Outcome::Unknown { reason: "silence".to_owned() };
        let refused = || Outcome::AccountRefused { reason: "who?".to_owned(), is_login: false };
        #[rustfmt::skip]
        let table = [
            // outcome             tries  waited      verdict
            (delivered(),          1,     secs(0),    Verdict::Settle(delivered())),
            (rejected(),           1,     secs(0),    Verdict::Settle(rejected())),
            (unknown(),            1,     secs(0),    Verdict::Settle(unknown())),
            (refused(),            1,     secs(0),    Verdict::Settle(refused())),
            (not_sent(None),       1,     secs(0),    again(1)),
            (not_sent(None),       2,     secs(1),    again(2)),
            (not_sent(None),       3,     secs(3),    Verdict::Settle(not_sent(None))),
            (not_sent(Some(7)),    1,     secs(0),    again(7)),
            (not_sent(Some(0)),    1,     secs(0),    again(0)),
            (not_sent(Some(10)),   1,     secs(0),    again(10)),
            (not_sent(Some(11)),   1,     secs(0),    Verdict::Settle(not_sent(Some(11)))),
            (not_sent(Some(5)),    2,     secs(6),    Verdict::Settle(not_sent(Some(5)))),
            (not_sent(Some(9999)), 1,     secs(0),    Verdict::Settle(not_sent(Some(9999)))),
            // An answer after a pause counts as one without.
            (delivered(),          3,     secs(10),   Verdict::Settle(delivered())),
            (unknown(),            2,     secs(1),    Verdict::Settle(unknown())),
        ];
        for (outcome, tries, waited, expected) in table {
            let shown = format!("{outcome:?} after {tries} tries and {waited:?}");
            assert_eq!(decide(outcome, tries, waited, 0.0, &POLICY), expected, "{shown}");
        }
    }

    #[test]
    fn the_spread_only_ever_adds() {
        let Verdict::CallAgainIn(pause) = decide(not_sent(Some(4)), 1, Duration::ZERO, 1.0, &POLICY) else {
            unreachable!()
        };
        assert_eq!(pause, Duration::from_secs(5));
    }

    #[test]
    fn the_pauses_of_a_job_double_up_to_an_hour() {
        let base = Duration::from_secs(60);
        let minutes: Vec<u64> = (1..=8).map(|attempt| job_pause(base, attempt).as_secs() / 60).collect();
        assert_eq!(minutes, [1, 2, 4, 8, 16, 32, 60, 60]);
        assert_eq!(job_pause(base, 0), base);
        assert_eq!(job_pause(base, i32::MAX).as_secs(), 3600);
    }
}
