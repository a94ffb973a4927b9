//! Rendered messages: their text is final, and no part of it can become a header or an address.

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::campaigns::Channel;

/// A rendered message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "channel", rename_all = "snake_case")]
pub enum Message {
    /// An e-mail.
    Email {
        /// The address of the lead.
        to: String,
        /// Subject, one line.
        subject: String,
        /// The plain part.
        text: Option<String>,
        /// The HTML part. At least one of the two is there.
        html: Option<String>,
        /// The link to unsubscribe, for the headers. A transactional mail has none.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        unsubscribe_url: Option<String>,
    },
    /// A call.
    Voice {
        /// The number of the lead, E.164.
        to: String,
        /// Spoken text.
        script: String,
    },
    /// A post.
    Social {
        /// Published text.
        text: String,
    },
    /// An answer in a conversation.
    Chat {
        /// Conversation, chat or number, as the provider identifies it.
        to: String,
        /// Part of the conversation that the message belongs to.
        thread: Option<String>,
        /// Text of the reply.
        text: String,
    },
}

impl Message {
    /// The channel it belongs to.
    #[must_use]
    pub fn channel(&self) -> Channel {
        match self {
            Self::Email { .. } => Channel::Email,
            Self::Voice { .. } => Channel::Voice,
            Self::Social { .. } => Channel::Social,
            Self::Chat { .. } => Channel::Chat,
        }
    }

    /// The address, where there is one.
    #[must_use]
    pub fn recipient(&self) -> Option<&str> {
        match self {
            Self::Email { to, .. } | Self::Voice { to, .. } | Self::Chat { to, .. } => Some(to),
            Self::Social { .. } => None,
        }
    }

    /// A fingerprint that is stored with the reservation. A repeat of the call must have the same one.
    #[must_use]
    pub fn hash(&self) -> [u8; 32] {
        let parts: [Option<&str>; 5] = match self {
            Self::Email { to, subject, text, html, .. } => {
                [Some("email"), Some(to), Some(subject), text.as_deref(), html.as_deref()]
            }
            Self::Voice { to, script } => [Some("voice"), Some(to), Some(script), None, None],
            Self::Social { text } => [Some("social"), Some(text), None, None, None],
            Self::Chat { to, thread, text } => [Some("chat"), Some(to), thread.as_deref(), Some(text), None],
        };
        // A mail without the link has the fingerprint that it had before there were links.
        let link = match self {
            Self::Email { unsubscribe_url: Some(url), .. } => Some(Some(url.as_str())),
            _ => None,
        };
        let mut hash = Sha256::new();
        for part in parts.into_iter().chain(link) {
            // The length first, so that no two messages run into each other.
            hash.update(part.map_or(u64::MAX, |part| part.len() as u64).to_be_bytes());
            hash.update(part.unwrap_or_default());
        }
        hash.finalize().into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_that_differ_anywhere_have_different_fingerprints() {
        let email = |to: &str, subject: &str, text: Option<&str>, html: Option<&str>| {
            Message::Email {
                to: to.to_owned(),
                subject: subject.to_owned(),
                text: text.map(str::to_owned),
                html: html.map(str::to_owned),
                unsubscribe_url: None,
            }
            .hash()
        };
        let linked = |url: &str| {
            let (to, subject, text) = ("a".to_owned(), "b".to_owned(), Some("c".to_owned()));
            Message::Email { to, subject, text, html: None, unsubscribe_url: Some(url.to_owned()) }.hash()
        };
        let all = [
            email("a", "b", Some("c"), None),
            email("a", "b", None, Some("c")),
            email("ab", "", Some("c"), None),
            email("a", "b", Some(""), None),
            email("a", "b", None, None),
            linked("https://example.com/1"),
            linked("https://example.com/2"),
            Message::Voice { to: "a".to_owned(), script: "b".to_owned() }.hash(),
            Message::Social { text: "a".to_owned() }.hash(),
            Message::Chat { to: "a".to_owned(), thread: None, text: "b".to_owned() }.hash(),
            Message::Chat { to: "a".to_owned(), thread: Some("b".to_owned()), text: String::new() }.hash(),
        ];
        let distinct: std::collections::HashSet<_> = all.iter().collect();
        assert_eq!(distinct.len(), all.len());
    }
}
