//! Delivery status: the events that a provider reports about an item after it accepted the item.
//!
//! Reports come late, repeated and out of order. The rank decides which status an item keeps: a report of a higher rank replaces one of
//! a lower rank, and no other report changes anything. So the status does not depend on the order of arrival.

use jiff::Timestamp;

use crate::words::words;

words!(
    /// The delivery status of an item.
    DeliveryStatus, "delivery status" {
        /// The provider has the e-mail or the call, and reported no result yet.
        Accepted => "accepted",
        /// The phone rings.
        Ringing => "ringing",
        /// The mail server of the recipient does not take the e-mail for now; the provider tries again.
        Delayed => "delayed",
        /// The call was answered and goes on.
        Answered => "answered",
        /// The call was canceled before it was answered.
        Canceled => "canceled",
        /// The provider could not deliver the e-mail or connect the call.
        Failed => "failed",
        /// The call was not answered.
        NoAnswer => "no_answer",
        /// The line was busy.
        Busy => "busy",
        /// The mail server of the recipient took the e-mail.
        Delivered => "delivered",
        /// The call was answered and has ended.
        Completed => "completed",
        /// A machine answered the call.
        AnsweredByMachine => "answered_by_machine",
        /// The mail server of the recipient returned the e-mail.
        Bounced => "bounced",
        /// The recipient reported the e-mail as spam.
        Complained => "complained",
    }
);

impl DeliveryStatus {
    /// The rank, from 1. No two statuses have the same one. The database has the same table (`execution.delivery_rank`), and a test
    /// compares both.
    #[must_use]
    pub const fn rank(self) -> i32 {
        match self {
            Self::Accepted => 1,
            Self::Ringing => 2,
            Self::Delayed => 3,
            Self::Answered => 4,
            Self::Canceled => 5,
            Self::Failed => 6,
            Self::NoAnswer => 7,
            Self::Busy => 8,
            Self::Delivered => 9,
            Self::Completed => 10,
            Self::AnsweredByMachine => 11,
            Self::Bounced => 12,
            Self::Complained => 13,
        }
    }

    /// Whether a report of this status replaces an earlier one.
    #[must_use]
    pub const fn replaces(self, earlier: Self) -> bool {
        self.rank() > earlier.rank()
    }

    /// Whether a person or a machine answered the call.
    #[must_use]
    pub const fn is_answered(self) -> bool {
        matches!(self, Self::Answered | Self::Completed | Self::AnsweredByMachine)
    }
}

/// A verified report of a provider about the delivery of an item.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delivery {
    /// The status.
    pub status: DeliveryStatus,
    /// Details, in the provider's words.
    pub detail: Option<String>,
    /// The provider's time of the status.
    pub at: Option<Timestamp>,
    /// Whether, and why, the lead gets no more messages.
    pub suppresses: Option<Suppression>,
}

/// The reason why a report suppresses a lead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Suppression {
    /// The address of the item does not exist. A lead that has another address by now is not suppressed.
    HardBounce,
    /// The person reported the message as spam.
    Complaint,
}

impl Suppression {
    /// The reason that is stored with the lead.
    #[must_use]
    pub const fn reason(self) -> &'static str {
        match self {
            Self::HardBounce => "hard bounce",
            Self::Complaint => "complaint",
        }
    }

    /// Whether the report is about the address, and not about the person.
    #[must_use]
    pub const fn is_about_address(self) -> bool {
        matches!(self, Self::HardBounce)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn ranks_are_a_total_order() {
        let mut ranks: Vec<i32> = DeliveryStatus::ALL.iter().map(|status| status.rank()).collect();
        ranks.sort_unstable();
        ranks.dedup();
        assert_eq!(ranks.len(), DeliveryStatus::ALL.len());
    }

    #[test]
    fn a_final_status_replaces_each_status_before_it() {
        use DeliveryStatus::{
            Accepted, Answered, AnsweredByMachine, Bounced, Busy, Canceled, Complained, Completed, Delayed,
            Delivered, Failed, NoAnswer, Ringing,
        };
        for last in [Canceled, Failed, NoAnswer, Busy, Completed, AnsweredByMachine] {
            assert!([Accepted, Ringing, Answered].iter().all(|earlier| last.replaces(*earlier)), "{last}");
        }
        assert!(Delivered.replaces(Delayed) && Bounced.replaces(Delayed) && Bounced.replaces(Delivered));
        // A person can complain only about a mail that arrived; Twilio repeats `completed` without the machine.
        assert!(Complained.replaces(Bounced) && !Completed.replaces(AnsweredByMachine));
    }

    proptest! {
        #[test]
        fn the_order_of_reports_does_not_matter(
            reports in prop::collection::vec(prop::sample::select(DeliveryStatus::ALL), 1..8).prop_shuffle(),
        ) {
            let mut kept = reports[0];
            for next in &reports {
                if next.replaces(kept) {
                    kept = *next;
                }
            }
            prop_assert_eq!(Some(kept), reports.iter().copied().max_by_key(|status| status.rank()));
        }
    }
}
