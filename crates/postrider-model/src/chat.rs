//! Chat: somebody writes, the product answers, and the answer reaches them.
//!
//! What is absent from a table of transitions cannot happen: the database refuses it too, and a test compares the two.

use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::{ids::OutboxId, words::words};

words!(
    /// What became of a message that came in.
    MessageStatus, "message status" {
        /// It is written down, and is being executed.
        Accepted => "accepted",
        /// It was executed, and its reply is in the outbox.
        Executed => "executed",
        /// Nobody knows who wrote it.
        DeniedUnlinked => "denied_unlinked",
        /// Who wrote it may not.
        DeniedRbac => "denied_rbac",
        /// The sentinel does not want it executed.
        DeniedSentinel => "denied_sentinel",
        /// It could not be executed, or its reply could not be put into the outbox. It is taken up again.
        DispatchFailed => "dispatch_failed",
    }
);

words!(
    /// The state of a reply.
    ReplyStatus, "reply status" {
        /// It waits for its time.
        Pending => "pending",
        /// A dispatcher holds it.
        Sending => "sending",
        /// The provider has it.
        Sent => "sent",
        /// It failed too often, or for good. A person may queue it again.
        Dead => "dead",
    }
);

/// Every legal change of a message.
pub const MESSAGE_MACHINE: &[(MessageStatus, MessageStatus)] = &[
    (MessageStatus::Accepted, MessageStatus::Executed),
    (MessageStatus::Accepted, MessageStatus::DeniedUnlinked),
    (MessageStatus::Accepted, MessageStatus::DeniedRbac),
    (MessageStatus::Accepted, MessageStatus::DeniedSentinel),
    (MessageStatus::Accepted, MessageStatus::DispatchFailed),
    (MessageStatus::DispatchFailed, MessageStatus::Executed),
    (MessageStatus::DispatchFailed, MessageStatus::DeniedUnlinked),
    (MessageStatus::DispatchFailed, MessageStatus::DeniedRbac),
    (MessageStatus::DispatchFailed, MessageStatus::DeniedSentinel),
];

/// Every legal change of a reply. The last one is a person's.
pub const REPLY_MACHINE: &[(ReplyStatus, ReplyStatus)] = &[
    (ReplyStatus::Pending, ReplyStatus::Sending),
    (ReplyStatus::Sending, ReplyStatus::Sent),
    (ReplyStatus::Sending, ReplyStatus::Pending),
    (ReplyStatus::Sending, ReplyStatus::Dead),
    (ReplyStatus::Dead, ReplyStatus::Pending),
];

/// Longest text of a message or a reply, in bytes.
pub const TEXT_BYTES_MAX: usize = 64 * 1024;

/// What somebody wrote, whatever the provider calls the parts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InboundMessage {
    /// The provider's name for it: the same each time it is delivered.
    pub provider_message_id: String,
    /// Who wrote it, in the provider's words.
    pub sender_id: String,
    /// Where a reply goes: a conversation, a chat, a number.
    pub recipient_id: String,
    /// The part of the conversation that a reply belongs to.
    pub thread: Option<String>,
    /// The words.
    pub text: String,
}

/// What a provider tells about a reply without being asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeliveryReport {
    /// Which reply, where the provider gives back what it was given.
    pub reply_id: Option<OutboxId>,
    /// The provider's own name for what it sent.
    pub provider_message_id: String,
    /// How that goes, in the provider's word.
    pub status: String,
    /// Whether it proves that the provider acted.
    pub proves_action: bool,
    /// When that was so.
    pub at: Option<Timestamp>,
    /// What went wrong, in the provider's words.
    pub error: Option<String>,
}

/// A reply, whatever the provider calls the parts: `channel_outbox.payload`. A newer version may have written more into it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reply {
    /// The words.
    pub text: String,
    /// The part of the conversation that it belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thread: Option<String>,
}

/// What must not be executed, although its sender may write.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Sentinel {
    /// Words and phrases, in any case; a word is not found inside another one.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub blocked_words: Vec<String>,
    /// Most messages of one sender in a minute.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub messages_per_minute: Option<u32>,
    /// Who is asked last, by HTTP.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
}

impl Sentinel {
    /// Most words and phrases.
    pub const WORDS_MAX: usize = 1000;
    /// The highest rate: more messages of a minute are not counted.
    pub const RATE_MAX: u32 = 999;

    /// What is wrong with these rules, and what to do about it.
    #[must_use]
    pub fn problem(&self) -> Option<String> {
        if self.blocked_words.len() > Self::WORDS_MAX {
            return Some(format!("there are more than {} blocked words", Self::WORDS_MAX));
        }
        if let Some(word) = self.blocked_words.iter().find(|word| plain(word) == " " || word.len() > 255) {
            return Some(format!(
                "`{word}` is no word that could be blocked: it needs letters, and at most 255 bytes"
            ));
        }
        self.messages_per_minute.filter(|most| !(1..=Self::RATE_MAX).contains(most)).map(|_| {
            format!(
                "messages_per_minute must lie between 1 and {}; leave it out for no limit",
                Self::RATE_MAX
            )
        })
    }

    /// Why a message must not be executed, if its rules say so. `recent` counts the sender's messages of the last minute, this one
    /// included.
    #[must_use]
    pub fn objection(&self, text: &str, recent: u32) -> Option<String> {
        if let Some(most) = self.messages_per_minute.filter(|most| recent > *most) {
            return Some(format!("more than {most} messages in a minute"));
        }
        let text = plain(text);
        let found = self.blocked_words.iter().find(|word| text.contains(&plain(word)));
        found.map(|word| format!("`{word}` is blocked"))
    }
}

/// The words of a text in lower case, with one space before, between and after them.
fn plain(text: &str) -> String {
    let mut plain = String::from(" ");
    for word in text.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty()) {
        plain.extend(word.chars().flat_map(char::to_lowercase));
        plain.push(' ');
    }
    plain
}

/// When a reply that failed is tried again: `base × 2^n`, jittered and capped.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RetrySchedule {
    /// The pause after the first failure, before jitter.
    pub base: Duration,
    /// The pause is multiplied by a number between this …
    pub jitter_min: f64,
    /// … and this.
    pub jitter_max: f64,
    /// No pause is longer.
    pub pause_max: Duration,
}

impl RetrySchedule {
    /// How long to wait after so many failures, the first is 1. `random` lies between 0 and 1 and decides the jitter.
    #[must_use]
    pub fn pause(&self, failures: u32, random: f64) -> Duration {
        let doubled =
            self.base.as_secs_f64() * 2f64.powi(i32::try_from(failures.max(1) - 1).unwrap_or(i32::MAX));
        let jitter = self.jitter_min + (self.jitter_max - self.jitter_min) * random.clamp(0.0, 1.0);
        let seconds = (doubled * jitter).min(self.pause_max.as_secs_f64());
        Duration::try_from_secs_f64(seconds).unwrap_or(self.pause_max)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SCHEDULE: RetrySchedule = RetrySchedule {
        base: Duration::from_secs(10),
        jitter_min: 0.5,
        jitter_max: 1.5,
        pause_max: Duration::from_secs(900),
    };

    #[test]
    fn pauses_double_until_the_cap() {
        let pauses: Vec<u64> = [1, 2, 3, 4, 5, 7, 8, 40, u32::MAX]
            .map(|failures| SCHEDULE.pause(failures, 0.5).as_secs())
            .to_vec();
        assert_eq!(pauses, [10, 20, 40, 80, 160, 640, 900, 900, 900]);
        assert_eq!(SCHEDULE.pause(0, 0.5), SCHEDULE.pause(1, 0.5));
    }

    proptest! {
        #[test]
        fn a_pause_stays_within_its_jitter_and_the_cap(failures in 1u32..100, random in 0f64..=1.0) {
            let plain = (10.0 * 2f64.powi(failures as i32 - 1)).min(f64::MAX);
            let pause = SCHEDULE.pause(failures, random).as_secs_f64();
            prop_assert!(pause <= 900.0 && pause <= plain * 1.5 + 1e-6);
            prop_assert!(pause >= (plain * 0.5).min(900.0) - 1e-6);
        }
    }

    #[test]
    fn a_sentinel_knows_words_from_parts_of_words() {
        let words = |words: &[&str]| Sentinel {
            blocked_words: words.iter().map(|&word| word.to_owned()).collect(),
            ..Sentinel::default()
        };
        for (blocked, text, is_blocked) in [
            ("refund", "I want a REFUND!", true),
            ("refund", "refunded", false),
            ("Wire Transfer", "please: wire -- transfer now", true),
            ("wire transfer", "wire the transfer", false),
            ("\u{dc}BERWEISUNG", "eine \u{fc}berweisung, bitte", true),
            ("a", "", false),
        ] {
            assert_eq!(words(&[blocked]).objection(text, 1).is_some(), is_blocked, "{blocked} in {text}");
        }
        assert!(words(&["ok", "--"]).problem().is_some());
        assert_eq!(words(&["ok"]).problem(), None);
    }

    #[test]
    fn a_sentinel_counts_the_message_that_is_asked_about() {
        let slow = Sentinel { messages_per_minute: Some(2), ..Sentinel::default() };
        assert_eq!([1, 2, 3].map(|recent| slow.objection("hi", recent).is_some()), [false, false, true]);
        for (rate, is_fine) in [(0, false), (1, true), (999, true), (1000, false)] {
            let sentinel = Sentinel { messages_per_minute: Some(rate), ..Sentinel::default() };
            assert_eq!(sentinel.problem().is_none(), is_fine, "{rate}");
        }
    }

    #[test]
    fn nothing_leaves_a_state_that_is_final() {
        let left: Vec<MessageStatus> = MESSAGE_MACHINE.iter().map(|(from, _)| *from).collect();
        for last in [
            MessageStatus::Executed,
            MessageStatus::DeniedUnlinked,
            MessageStatus::DeniedRbac,
            MessageStatus::DeniedSentinel,
        ] {
            assert!(!left.contains(&last), "{last}");
        }
        assert!(!REPLY_MACHINE.iter().any(|(from, _)| *from == ReplyStatus::Sent));
    }
}
