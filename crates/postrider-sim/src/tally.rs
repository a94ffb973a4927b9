//! The counts over all receipts on disk.

use std::collections::{BTreeMap, HashSet};

use serde::Serialize;

use super::faults::Fault;
use super::receipts::Receipt;

/// Counts receipts as they are added.
#[derive(Default)]
pub struct Tally {
    counts: Counts,
    ids: HashSet<String>,
    deliveries: HashSet<String>,
    messages: HashSet<String>,
    texts: HashSet<String>,
}

/// The answer to `GET /receipts`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Requests with a receipt.
    pub received: u64,
    /// Requests on which the sim acted, even if the client got no answer.
    pub accepted: u64,
    /// Requests with a complete 2xx answer.
    pub acknowledged: u64,
    /// Different webhook ids among the accepted.
    pub distinct_ids: u64,
    /// Accepted requests whose id had been accepted on the same path before.
    pub duplicates: u64,
    /// Different messages among the accepted, by `Idempotency-Key` or, for a mail, by `Message-ID`.
    pub distinct_keys: u64,
    /// Accepted messages whose key had been accepted before: the recipient got the message twice.
    pub duplicate_keys: u64,
    /// Accepted chat messages without a key whose sender, recipient and text had been accepted before.
    pub repeated_texts: u64,
    /// Requests that an outage turned away.
    pub turned_away: u64,
    /// Requests without a valid signature or token.
    pub bad_signatures: u64,
    /// Requests by fault.
    pub by_fault: BTreeMap<Fault, u64>,
}

impl Tally {
    /// Adds one receipt.
    pub fn add(&mut self, receipt: &Receipt) {
        self.counts.received += 1;
        if receipt.verified == Some(false) {
            self.counts.bad_signatures += 1;
        }
        if receipt.outage.is_some() {
            self.counts.turned_away += 1;
        }
        if let Some(fault) = receipt.fault {
            *self.counts.by_fault.entry(fault).or_default() += 1;
        }
        if receipt.answered.is_some_and(|status| (200..300).contains(&status)) {
            self.counts.acknowledged += 1;
        }
        if receipt.acted {
            self.add_accepted(receipt);
        }
    }

    /// The counts so far.
    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    fn add_accepted(&mut self, receipt: &Receipt) {
        self.counts.accepted += 1;
        if let (None, Some(text)) = (&receipt.key, &receipt.text) {
            // The id of each message is unique, so it does not show a repeat.
            let whose = [&receipt.provider, &receipt.from, &receipt.to]
                .map(|name| name.as_deref().unwrap_or_default());
            if !self.texts.insert(format!("{}\n{text}", whose.join("\n"))) {
                self.counts.repeated_texts += 1;
            }
        } else if let Some(key) = receipt.key.as_ref().or(receipt.message_id.as_ref()) {
            if self.messages.insert(key.clone()) {
                self.counts.distinct_keys += 1;
            } else {
                self.counts.duplicate_keys += 1;
            }
        }
        let Some(id) = &receipt.webhook_id else { return };
        if self.ids.insert(id.clone()) {
            self.counts.distinct_ids += 1;
        }
        // An event may go to several receivers; only a second delivery to the same one is a duplicate. Paths contain no space.
        if !self.deliveries.insert(format!("{} {id}", receipt.path)) {
            self.counts.duplicates += 1;
        }
    }
}
