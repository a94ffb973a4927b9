//! Chat: the messages of chat users, and the replies to them.
//!
//! A transition that is not in its table cannot happen: the database refuses it, too, and a test compares both.

use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::{ids::OutboxId, words::words};

words!(
    /// The state of an inbound message.
    MessageStatus, "message status" {
        /// The message is stored, and an executor works on it.
        Accepted => "accepted",
        /// The message was executed, and its reply is in the outbox.
        Executed => "executed",
        /// The sender is not linked to a user.
        DeniedUnlinked => "denied_unlinked",
        /// The sender's role does not permit it.
        DeniedRbac => "denied_rbac",
        /// The sentinel refused it.
        DeniedSentinel => "denied_sentinel",
        /// The execution failed, or the reply could not be stored in the outbox. The message is executed again.
        DispatchFailed => "dispatch_failed",
    }
);

words!(
    /// The state of a reply.
    ReplyStatus, "reply status" {
        /// The reply waits until `next_attempt_at`.
        Pending => "pending",
        /// A dispatcher claimed the reply.
        Sending => "sending",
        /// The provider accepted the reply.
        Sent => "sent",
        /// The reply failed too often, or cannot succeed. A person may queue it again.
        Dead => "dead",
    }
);

/// Every legal transition of a message.
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

/// Every legal transition of a reply. Only a person causes the last one.
pub const REPLY_MACHINE: &[(ReplyStatus, ReplyStatus)] = &[
    (ReplyStatus::Pending, ReplyStatus::Sending),
    (ReplyStatus::Sending, ReplyStatus::Sent),
    (ReplyStatus::Sending, ReplyStatus::Pending),
    (ReplyStatus::Sending, ReplyStatus::Dead),
    (ReplyStatus::Dead, ReplyStatus::Pending),
];

/// Longest text of a message or a reply, in bytes.
pub const TEXT_BYTES_MAX: usize = 64 * 1024;

/// A message from a chat user, in the same form for every provider.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InboundMessage {
    /// The provider's id of the message, the same for every delivery.
    pub provider_message_id: String,
    /// The provider's id of the sender.
    pub sender_id: String,
    /// The address of a reply: a conversation, a chat or a number.
    pub recipient_id: String,
    /// The part of the conversation that a reply belongs to.
    pub thread: Option<String>,
    /// The text.
    pub text: String,
}

/// A status callback of a provider about a reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeliveryReport {
    /// Id of the reply, if the provider returns the id that it received with the call.
    pub reply_id: Option<OutboxId>,
    /// The provider's id of the sent message.
    pub provider_message_id: String,
    /// The delivery status, in the provider's words.
    pub status: String,
    /// Whether this report proves that the provider acted.
    pub proves_action: bool,
    /// Time of the status.
    pub at: Option<Timestamp>,
    /// The error, in the provider's words.
    pub error: Option<String>,
}

/// A reply, in the same form for every provider: `channel_outbox.payload`. A newer version may add fields.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reply {
    /// The text.
    pub text: String,
    /// The part of the conversation that it belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thread: Option<String>,
}

/// Rules that refuse messages of permitted senders.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Sentinel {
    /// Blocked words and phrases, compared without case; a word does not match inside another word.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub blocked_words: Vec<String>,
    /// Most messages of one sender in a minute.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub messages_per_minute: Option<u32>,
    /// URL of an HTTP service that is asked after the other rules.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
}

impl Sentinel {
    /// Most words and phrases.
    pub const WORDS_MAX: usize = 1000;
    /// The highest rate: more messages of a minute are not counted.
    pub const RATE_MAX: u32 = 999;

    /// The first problem of these rules, if there is one.
    #[must_use]
    pub fn problem(&self) -> Option<String> {
        if self.blocked_words.len() > Self::WORDS_MAX {
            return Some(format!("there are more than {} blocked words", Self::WORDS_MAX));
        }
        if let Some(word) = self.blocked_words.iter().find(|word| plain(word) == " " || word.len() > 255) {
            return Some(format!(
                "`{word}` is not a word that can be blocked: it needs letters or digits, and at most 255 bytes"
            ));
        }
        self.messages_per_minute.filter(|most| !(1..=Self::RATE_MAX).contains(most)).map(|_| {
            format!(
                "messages_per_minute must lie between 1 and {}; leave it out for no limit",
                Self::RATE_MAX
            )
        })
    }

    /// The reason why these rules refuse a message, if they do. `recent` counts the sender's messages of the last minute, including
    /// this one.
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

/// Backoff of failed replies: `base × 2^n`, with jitter and a cap.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RetrySchedule {
    /// The pause after the first failure, before jitter.
    pub base: Duration,
    /// The pause is multiplied by a number between this …
    pub jitter_min: f64,
    /// … and this.
    pub jitter_max: f64,
    /// Longest pause.
    pub pause_max: Duration,
}

impl RetrySchedule {
    /// The pause after this many failures, counted from 1. `random` lies between 0 and 1 and decides the jitter.
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
    fn a_sentinel_does_not_match_parts_of_words() {
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
    fn a_sentinel_counts_the_message_that_it_checks() {
        let slow = Sentinel { messages_per_minute: Some(2), ..Sentinel::default() };
        assert_eq!([1, 2, 3].map(|recent| slow.objection("hi", recent).is_some()), [false, false, true]);
        for (rate, is_fine) in [(0, false), (1, true), (999, true), (1000, false)] {
            let sentinel = Sentinel { messages_per_minute: Some(rate), ..Sentinel::default() };
            assert_eq!(sentinel.problem().is_none(), is_fine, "{rate}");
        }
    }

    #[test]
    fn no_transition_leaves_a_final_state() {
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
