//! The choice of the account for the next items, as a table.

use std::time::Duration;

use postrider_model::Why;

use super::account::Availability;

/// Longest time that a send job waits while this process holds it. After that it is released, and its slot is free for other send jobs.
pub(in crate::campaigns) const IN_PLACE: Duration = Duration::from_secs(2);
/// Call tokens are requested for this much time of the account's rate, so that processes share the rate evenly.
const BATCH: Duration = Duration::from_millis(150);

/// One of a send job's two accounts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::campaigns) enum Target {
    /// The account of the phase.
    Account,
    /// The failover account of the phase.
    Failover,
}

/// The choice for a send job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::campaigns) enum Choice {
    /// Begin items at this account.
    Go(Target),
    /// Wait for so long.
    Pause(Duration),
    /// Release the send job for so long.
    PutOff(Duration, Why),
}

/// Chooses by the availability of the two accounts. Items that were not called yet may go to the failover account. Closed sending
/// hours are no reason for that: the tenant set them for the recipients.
pub(in crate::campaigns) fn choose(account: Availability, failover: Option<Availability>) -> Choice {
    let Availability::Wait { wait, why } = account else {
        return Choice::Go(Target::Account);
    };
    let is_reason = why != Why::Hours && (wait > IN_PLACE || why == Why::Circuit);
    match failover.filter(|_| is_reason) {
        Some(Availability::Clear | Availability::HalfOpen) => Choice::Go(Target::Failover),
        Some(Availability::Wait { wait: other, .. }) => stay(wait.min(other), why),
        None => stay(wait, why),
    }
}

fn stay(wait: Duration, why: Why) -> Choice {
    if wait <= IN_PLACE { Choice::Pause(wait) } else { Choice::PutOff(wait, why) }
}

/// How many call tokens to request at a time.
pub(in crate::campaigns) fn batch(rate: Option<f64>) -> usize {
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
    fn a_job_fails_over_waits_or_is_put_off_by_the_availability_of_its_accounts() {
        let secs = Duration::from_secs;
        let wait = |seconds, why| Availability::Wait { wait: secs(seconds), why };
        let (clear, half) = (Availability::Clear, Availability::HalfOpen);
        let go = Choice::Go;
        #[rustfmt::skip]
        let table = [
            // account                     failover                            choice
            (clear,                        None,                               go(Target::Account)),
            (clear,                        Some(clear),                        go(Target::Account)),
            // One call must probe whether the provider answers again.
            (half,                         Some(clear),                        go(Target::Account)),
            (wait(2, Why::RetryAfter),     None,                               Choice::Pause(secs(2))),
            (wait(3, Why::RetryAfter),     None,                               Choice::PutOff(secs(3), Why::RetryAfter)),
            (wait(9000, Why::Daily),       None,                               Choice::PutOff(secs(9000), Why::Daily)),
            (wait(30, Why::Circuit),       None,                               Choice::PutOff(secs(30), Why::Circuit)),
            // The failover account takes items that were not called yet.
            (wait(30, Why::Circuit),       Some(clear),                        go(Target::Failover)),
            (wait(1, Why::Circuit),        Some(clear),                        go(Target::Failover)),
            (wait(9000, Why::Daily),       Some(half),                         go(Target::Failover)),
            (wait(30, Why::RetryAfter),    Some(clear),                        go(Target::Failover)),
            // A short wait is no reason to fail over.
            (wait(1, Why::RetryAfter),     Some(clear),                        Choice::Pause(secs(1))),
            // Both must wait: until the earlier one is available.
            (wait(9000, Why::Daily),       Some(wait(30, Why::Circuit)),       Choice::PutOff(secs(30), Why::Daily)),
            (wait(30, Why::Circuit),       Some(wait(1, Why::RetryAfter)),     Choice::Pause(secs(1))),
            // A failover account does not open closed sending hours.
            (wait(9000, Why::Hours),       Some(clear),                        Choice::PutOff(secs(9000), Why::Hours)),
        ];
        for (account, failover, expected) in table {
            assert_eq!(choose(account, failover), expected, "{account:?}, {failover:?}");
        }
    }

    #[test]
    fn a_batch_is_a_fraction_of_a_second_of_the_rate_and_at_least_one() {
        let batches = [Some(0.01), Some(1.0), Some(50.0), Some(1_000_000.0), None].map(batch);
        assert_eq!(batches, [1, 1, 7, 150_000, usize::MAX]);
    }
}
