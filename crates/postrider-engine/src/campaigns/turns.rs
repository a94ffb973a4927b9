//! Which account takes the next items, and how long a job waits in its place. Nothing is done here.

use std::time::Duration;

use postrider_model::Why;

use super::gate::Look;

/// Longest time that a job waits in its place. After that it is handed back, and its slot is free for others.
pub(super) const IN_PLACE: Duration = Duration::from_secs(2);
/// So much of an account's rate is asked for at a time: little enough that processes share it evenly.
const BATCH: Duration = Duration::from_millis(150);

/// One of a job's accounts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    /// Its own.
    First,
    /// The one that it fails over to.
    Second,
}

/// What a job does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Choice {
    /// It begins items at this account.
    Go(Way),
    /// It waits in its place.
    Pause(Duration),
    /// It is handed back for so long.
    PutOff(Duration, Why),
}

/// What follows from how the accounts stand. What was not called at the first account may go to the second; but sending hours
/// are a wish of the tenant's, and no reason to go elsewhere.
pub(super) fn choose(first: Look, second: Option<Look>) -> Choice {
    let Look::Wait { wait, why } = first else {
        return Choice::Go(Way::First);
    };
    let is_reason = why != Why::Hours && (wait > IN_PLACE || why == Why::Circuit);
    match second.filter(|_| is_reason) {
        Some(Look::Clear | Look::HalfOpen) => Choice::Go(Way::Second),
        Some(Look::Wait { wait: other, .. }) => stay(wait.min(other), why),
        None => stay(wait, why),
    }
}

fn stay(wait: Duration, why: Why) -> Choice {
    if wait <= IN_PLACE { Choice::Pause(wait) } else { Choice::PutOff(wait, why) }
}

/// How many turns to ask for at a time.
pub(super) fn batch(rate: Option<f64>) -> usize {
    match rate {
        // The rate is at most a million.
        Some(rate) => (rate * BATCH.as_secs_f64()).max(1.0) as usize,
        None => usize::MAX,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_goes_where_it_may_and_gives_its_place_up_when_that_takes_long() {
        let secs = Duration::from_secs;
        let wait = |seconds, why| Look::Wait { wait: secs(seconds), why };
        let (clear, half) = (Look::Clear, Look::HalfOpen);
        let go = Choice::Go;
        #[rustfmt::skip]
        let table = [
            // first                       second                              choice
            (clear,                        None,                               go(Way::First)),
            (clear,                        Some(clear),                        go(Way::First)),
            // Somebody must find out whether it answers again.
            (half,                         Some(clear),                        go(Way::First)),
            (wait(2, Why::RetryAfter),     None,                               Choice::Pause(secs(2))),
            (wait(3, Why::RetryAfter),     None,                               Choice::PutOff(secs(3), Why::RetryAfter)),
            (wait(9000, Why::Daily),       None,                               Choice::PutOff(secs(9000), Why::Daily)),
            (wait(30, Why::Circuit),       None,                               Choice::PutOff(secs(30), Why::Circuit)),
            // The other account, where nothing was called yet.
            (wait(30, Why::Circuit),       Some(clear),                        go(Way::Second)),
            (wait(1, Why::Circuit),        Some(clear),                        go(Way::Second)),
            (wait(9000, Why::Daily),       Some(half),                         go(Way::Second)),
            (wait(30, Why::RetryAfter),    Some(clear),                        go(Way::Second)),
            // A moment is no reason.
            (wait(1, Why::RetryAfter),     Some(clear),                        Choice::Pause(secs(1))),
            // Both wait: until the first of them may.
            (wait(9000, Why::Daily),       Some(wait(30, Why::Circuit)),       Choice::PutOff(secs(30), Why::Daily)),
            (wait(30, Why::Circuit),       Some(wait(1, Why::RetryAfter)),     Choice::Pause(secs(1))),
            // Nobody is woken at night because there is another account.
            (wait(9000, Why::Hours),       Some(clear),                        Choice::PutOff(secs(9000), Why::Hours)),
        ];
        for (first, second, expected) in table {
            assert_eq!(choose(first, second), expected, "{first:?}, {second:?}");
        }
    }

    #[test]
    fn a_batch_is_a_moment_of_the_rate_and_one_at_least() {
        let batches = [Some(0.01), Some(1.0), Some(50.0), Some(1_000_000.0), None].map(batch);
        assert_eq!(batches, [1, 1, 7, 150_000, usize::MAX]);
    }
}
