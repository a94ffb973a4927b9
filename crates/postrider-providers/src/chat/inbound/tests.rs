//! Tests of the shared code, and helpers for the tests of the vendors.

use postrider_model::ids::ProviderAccountId;
use serde_json::Value;

use super::*;
use crate::{
    http::tests::NOW,
    provider::{Account, Adapter, InboundWebhook},
};

/// A request to a webhook.
#[derive(Clone)]
pub struct Delivery {
    is_get: bool,
    query: String,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
}

impl Delivery {
    pub fn new(body: impl AsRef<[u8]>) -> Self {
        Self { is_get: false, query: String::new(), headers: Vec::new(), body: body.as_ref().to_vec() }
    }

    pub fn get(mut self, query: &str) -> Self {
        (self.is_get, self.query) = (true, query.to_owned());
        self
    }

    /// Adds a header.
    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    pub fn without(mut self, name: &str) -> Self {
        self.headers.retain(|(known, _)| known != name);
        self
    }

    /// Replaces a header.
    pub fn set(self, name: &str, value: &str) -> Self {
        self.without(name).header(name, value)
    }

    pub fn body(mut self, body: impl AsRef<[u8]>) -> Self {
        self.body = body.as_ref().to_vec();
        self
    }

    /// Delivers the webhook to an adapter at [`NOW`].
    pub fn to(
        &self,
        adapter: &dyn Adapter,
        settings: &Value,
        secret: &str,
    ) -> Result<Received, CallbackRefused> {
        let secret = SecretString::from(secret);
        let account = Account { id: ProviderAccountId::new(), settings, secret: &secret };
        let Self { is_get, query, headers, body } = self;
        adapter.receive(&account, &InboundWebhook { is_get: *is_get, query, headers, body, now: NOW })
    }

    /// Asserts that the webhook was refused as a forgery for this reason, without a secret in the reason.
    pub fn is_forged(&self, received: &Result<Received, CallbackRefused>, why: &str, secrets: &[&str]) {
        let Err(CallbackRefused::Forged(reason)) = received else { panic!("{why}: {received:?}") };
        assert!(reason.contains(why), "{why}: {reason}");
        assert!(!secrets.iter().any(|secret| reason.contains(secret)), "{reason}");
    }
}

/// The result of a webhook with one message.
pub fn one_message(
    id: &str,
    sender: &str,
    recipient: &str,
    thread: Option<&str>,
    text: &str,
) -> Result<Received, CallbackRefused> {
    Ok(received(Some(InboundMessage {
        provider_message_id: id.to_owned(),
        sender_id: sender.to_owned(),
        recipient_id: recipient.to_owned(),
        thread: thread.map(str::to_owned),
        text: text.to_owned(),
    })))
}

/// The result of a webhook without a message.
pub fn no_message() -> Result<Received, CallbackRefused> {
    Ok(received(None))
}

/// HMAC-SHA256 in hex.
pub fn sign(secret: &str, text: &[u8]) -> String {
    let mut signature = signature(&secret.into()).unwrap();
    signature.update(text);
    hex::encode(signature.finalize().into_bytes())
}

/// Times that are refused, and times that are accepted.
#[test]
fn a_time_is_near_now() {
    let now = NOW.as_second();
    for (input, is_near) in [
        (now.to_string(), true),
        ((now - 300).to_string(), true),
        ((now + 300).to_string(), true),
        ((now - 301).to_string(), false),
        ((now + 301).to_string(), false),
        ("0".to_owned(), false),
        (i64::MAX.to_string(), false),
        (format!("{}0", i64::MAX), false),
        (format!("-{now}"), false),
        (format!("+{now}"), false),
        (format!(" {now}"), false),
        (format!("{now}.0"), false),
        (String::new(), false),
    ] {
        let checked = check_time("x-time", &input, NOW);
        assert_eq!(checked.is_ok(), is_near, "{input}: {checked:?}");
    }
}

// The example in RFC 4231, the second one.
#[test]
fn a_signature_is_an_hmac_in_hex() {
    let right = "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843";
    let verify = |secret: &str, input: &str| {
        let signature = signature(&secret.into()).unwrap();
        verify_hex(&signature, &[b"what do ya want ", b"for nothing?"], input, "Fax")
    };
    assert_eq!(verify("Jefe", right), Ok(()));
    for (secret, input) in [
        ("Jefe", ""),
        ("Jefe", &right[..62]),
        ("Jefe", &right[..63]),
        ("Jefe", &*format!("{right}00")),
        ("Jefe", &*right.replace("5b", "+b")),
        ("Jefe", &*right.replace("5b", "5c")),
        ("Jefe", "ünïcödé"),
        ("Jefe2", right),
        ("", right),
    ] {
        let refused = verify(secret, input);
        assert!(matches!(refused, Err(CallbackRefused::Forged(_))), "{secret} {input}: {refused:?}");
    }
}

#[test]
fn secrets_are_the_same_or_not() {
    let secret = SecretString::from("hunter2");
    assert!(is_same("hunter2", &secret));
    for other in ["", "hunter", "hunter22", "Hunter2", "hunter2 "] {
        assert!(!is_same(other, &secret), "{other}");
    }
}

#[test]
fn texts_fit_into_the_database() {
    assert_eq!(clean_text("a\0b\n\u{202e}ç").as_deref(), Some("ab\n\u{202e}ç"));
    for nothing in ["", " \n\t", "\0", "\u{a0}"] {
        assert_eq!(clean_text(nothing), None, "{nothing:?}");
    }
    let longest = "é".repeat(TEXT_BYTES_MAX / 2);
    assert_eq!(clean_text(&longest), Some(longest.clone()));
    for (letter, pad) in [("é", ""), ("é", "a"), ("a", ""), ("😀", "ab"), ("😀", "")] {
        let cut = clean_text(&format!("{pad}{}", letter.repeat(TEXT_BYTES_MAX + 1))).unwrap();
        assert!(cut.len() <= TEXT_BYTES_MAX && cut.len() > TEXT_BYTES_MAX - 7, "{letter}: {}", cut.len());
        assert!(cut.ends_with(&format!("{letter}…")));
    }
}

#[test]
fn names_fit_into_the_database() {
    assert_eq!(name("id", "C1:1.2", 255).unwrap(), "C1:1.2");
    assert_eq!(name("id", &"é".repeat(127), 255).unwrap().len(), 254);
    for wrong in ["", " ", "a\0", "a\nb", &"é".repeat(128)] {
        assert!(matches!(name("id", wrong, 255), Err(CallbackRefused::Malformed(_))), "{wrong:?}");
    }
}

#[test]
fn a_challenge_is_short_and_plain() {
    assert_eq!(challenge("3eZbrw1a"), Ok(Received::Challenge("3eZbrw1a".to_owned())));
    for wrong in ["", "a b", "a\r\nset-cookie:x", "é", &"x".repeat(1025)] {
        assert!(matches!(challenge(wrong), Err(CallbackRefused::Malformed(_))), "{wrong:?}");
    }
}
