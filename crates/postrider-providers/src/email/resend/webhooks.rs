//! The webhooks of Resend, verified and read.

use std::collections::BTreeMap;

use hmac::Hmac;
use jiff::Timestamp;
use postrider_model::campaigns::delivery::{Delivery, DeliveryStatus, Suppression};
use serde::Deserialize;
use serde_json::value::RawValue;
use sha2::Sha256;

use super::KEY_TAG;
use crate::{
    chat::inbound,
    provider::{Callback, CallbackRefused, Echo},
    signing, text,
};

const ID: &str = "svix-id";
const TIME: &str = "svix-timestamp";
const SIGNATURE: &str = "svix-signature";

/// Longest id of a mail or key that is read.
const NAME_BYTES_MAX: usize = 256;

/// The bounces that say nothing about the address, although they are permanent.
const NOT_ABOUT_THE_ADDRESS: [&str; 4] =
    ["MailboxFull", "MessageTooLarge", "ContentRejected", "AttachmentRejected"];

/// Which reports suppress a lead.
#[derive(Debug, Clone, Copy)]
pub(super) struct Suppresses {
    pub bounced: bool,
    pub complained: bool,
}

/// Verifies the signature over id, time and body.
pub(super) fn verify(
    verifier: Option<&Hmac<Sha256>>,
    callback: &Callback<'_>,
) -> Result<(), CallbackRefused> {
    let verifier = verifier.ok_or_else(|| {
        inbound::forged("the secret of this account has no `webhook_secret`; set it to the signing secret of the webhook at Resend")
    })?;
    let (id, time) = (callback.header(ID)?, callback.header(TIME)?);
    let signatures = callback.header(SIGNATURE)?;
    if !signing::is_signed(verifier, id, time, callback.body, signatures) {
        return Err(inbound::forged(
            "the signature is not Resend's for this account; check `webhook_secret` in the account's secret",
        ));
    }
    inbound::check_time(TIME, time, callback.now)
}

#[derive(Deserialize)]
struct Event<'a> {
    r#type: String,
    created_at: Option<String>,
    #[serde(borrow)]
    data: &'a RawValue,
}

#[derive(Deserialize)]
struct Mail {
    email_id: String,
    tags: Option<Tags>,
    bounce: Option<Bounce>,
    failed: Option<Failed>,
    suppressed: Option<Suppressed>,
}

/// Resend has written tags in both forms.
#[derive(Deserialize)]
#[serde(untagged)]
enum Tags {
    Named(BTreeMap<String, String>),
    Listed(Vec<Tag>),
}

#[derive(Deserialize)]
struct Tag {
    name: String,
    value: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Bounce {
    r#type: Option<String>,
    sub_type: Option<String>,
    message: Option<String>,
    #[serde(default)]
    diagnostic_code: Vec<String>,
}

#[derive(Deserialize)]
struct Failed {
    reason: Option<String>,
}

#[derive(Deserialize)]
struct Suppressed {
    reason: Option<String>,
    message: Option<String>,
}

/// Reads a verified webhook. `None`: it is no report about a mail of ours.
pub(super) fn read(body: &[u8], suppresses: Suppresses) -> Result<Option<Echo>, CallbackRefused> {
    let event: Event<'_> = inbound::read(body, "Resend")?;
    let status = match event.r#type.as_str() {
        "email.sent" => DeliveryStatus::Accepted,
        "email.delivered" => DeliveryStatus::Delivered,
        "email.delivery_delayed" => DeliveryStatus::Delayed,
        "email.bounced" => DeliveryStatus::Bounced,
        "email.complained" => DeliveryStatus::Complained,
        "email.failed" | "email.suppressed" => DeliveryStatus::Failed,
        _ => return Ok(None),
    };
    let mail: Mail = inbound::read(event.data.get().as_bytes(), "Resend")?;
    let Some(key) = mail.tags.as_ref().and_then(Tags::key) else { return Ok(None) };
    let key = inbound::name(KEY_TAG, key, NAME_BYTES_MAX)?;
    let message_id = inbound::name("email_id", &mail.email_id, NAME_BYTES_MAX)?;
    let (detail, reason) = mail.reason(status);
    let suppresses = reason.filter(|reason| match reason {
        Suppression::HardBounce => suppresses.bounced,
        Suppression::Complaint => suppresses.complained,
    });
    let at = event.created_at.and_then(|at| at.parse::<Timestamp>().ok());
    let delivery =
        Some(Delivery { status, detail: detail.filter(|detail| !detail.is_empty()), at, suppresses });
    Ok(Some(Echo { key, message_id, status: event.r#type, proves_action: true, delivery }))
}

impl Tags {
    fn key(&self) -> Option<&str> {
        match self {
            Self::Named(tags) => tags.get(KEY_TAG).map(String::as_str),
            Self::Listed(tags) => tags.iter().find(|tag| tag.name == KEY_TAG).map(|tag| tag.value.as_str()),
        }
    }
}

impl Mail {
    /// The reason of the status in Resend's words, and why it would suppress the lead.
    fn reason(&self, status: DeliveryStatus) -> (Option<String>, Option<Suppression>) {
        match (status, &self.bounce, &self.failed, &self.suppressed) {
            (DeliveryStatus::Complained, ..) => (None, Some(Suppression::Complaint)),
            (DeliveryStatus::Bounced, Some(bounce), ..) => {
                (Some(bounce.describe()), bounce.is_hard().then_some(Suppression::HardBounce))
            }
            (DeliveryStatus::Failed, _, _, Some(suppressed)) => {
                let reason = suppressed.reason.as_deref();
                let suppression = match reason {
                    Some("previous_bounce") => Some(Suppression::HardBounce),
                    Some("previous_complaint") => Some(Suppression::Complaint),
                    _ => None,
                };
                let words = reason.or(suppressed.message.as_deref());
                (words.map(|words| text::excerpt(&format!("suppressed: {words}"))), suppression)
            }
            (DeliveryStatus::Failed, _, Some(failed), _) => {
                (failed.reason.as_deref().map(text::excerpt), None)
            }
            _ => (None, None),
        }
    }
}

impl Bounce {
    fn is_hard(&self) -> bool {
        let is_permanent = self.r#type.as_deref() == Some("Permanent");
        is_permanent && !self.sub_type.as_deref().is_some_and(|kind| NOT_ABOUT_THE_ADDRESS.contains(&kind))
    }

    fn describe(&self) -> String {
        let kinds = [self.r#type.as_deref(), self.sub_type.as_deref()];
        let words = self.diagnostic_code.first().or(self.message.as_ref()).map(String::as_str);
        let parts: Vec<&str> = kinds.into_iter().chain([words]).flatten().collect();
        text::excerpt(&parts.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use base64::{Engine, engine::general_purpose::STANDARD};
    use serde_json::{Value, json};

    use super::*;
    use crate::http::tests::{NOW, key};

    const BOTH: Suppresses = Suppresses { bounced: true, complained: true };

    fn event(kind: &str, more: &Value) -> Value {
        let mut data = json!({
            "email_id": "56761188-7520-42d8-8898-ff6fc54ce618",
            "created_at": "2026-02-01T02:40:00.000Z",
            "from": "News <news@example.com>",
            "to": ["ann@example.org"],
            "subject": "News",
            "tags": { "postrider_key": key().as_str() },
        });
        for (name, value) in more.as_object().into_iter().flatten() {
            data[name] = value.clone();
        }
        json!({ "type": kind, "created_at": "2026-02-02T02:40:00.000Z", "data": data })
    }

    fn read_event(kind: &str, more: &Value, suppresses: Suppresses) -> Option<Echo> {
        read(event(kind, more).to_string().as_bytes(), suppresses).unwrap()
    }

    fn bounce(kind: &str, sub_type: &str) -> Value {
        let diagnostic = json!(["smtp; 550 5.1.1 user unknown"]);
        json!({ "bounce": { "type": kind, "subType": sub_type, "message": "m", "diagnosticCode": diagnostic } })
    }

    // The events in Resend's description of its API.
    #[test]
    fn every_event_about_a_mail_becomes_a_delivery_status() {
        use DeliveryStatus::{Accepted, Bounced, Complained, Delayed, Delivered, Failed};
        use Suppression::{Complaint, HardBounce};
        let failed = json!({ "failed": { "reason": "reached_daily_quota" } });
        let listed = |reason: &str| json!({ "suppressed": { "reason": reason, "type": "Suppressed", "message": "m" } });
        for (kind, more, status, suppression, detail) in [
            ("email.sent", json!({}), Accepted, None, None),
            ("email.delivered", json!({}), Delivered, None, None),
            ("email.delivery_delayed", json!({}), Delayed, None, None),
            ("email.complained", json!({}), Complained, Some(Complaint), None),
            ("email.failed", failed, Failed, None, Some("reached_daily_quota")),
            (
                "email.suppressed",
                listed("previous_bounce"),
                Failed,
                Some(HardBounce),
                Some("suppressed: previous_bounce"),
            ),
            (
                "email.suppressed",
                listed("previous_complaint"),
                Failed,
                Some(Complaint),
                Some("suppressed: previous_complaint"),
            ),
            (
                "email.bounced",
                bounce("Permanent", "General"),
                Bounced,
                Some(HardBounce),
                Some("Permanent, General, smtp; 550 5.1.1 user unknown"),
            ),
            (
                "email.bounced",
                bounce("Permanent", "ContentRejected"),
                Bounced,
                None,
                Some("Permanent, ContentRejected, smtp; 550 5.1.1 user unknown"),
            ),
            (
                "email.bounced",
                bounce("Transient", "MailboxFull"),
                Bounced,
                None,
                Some("Transient, MailboxFull, smtp; 550 5.1.1 user unknown"),
            ),
            ("email.bounced", json!({}), Bounced, None, None),
        ] {
            let echo = read_event(kind, &more, BOTH).unwrap();
            assert_eq!((echo.key.as_str(), echo.status.as_str()), (key().as_str(), kind));
            assert!(echo.proves_action && echo.message_id.starts_with("56761188"));
            let delivery = echo.delivery.unwrap();
            assert_eq!((delivery.status, delivery.suppresses), (status, suppression), "{kind} {more}");
            assert_eq!((delivery.detail.as_deref(), delivery.at), (detail, Some(NOW)), "{kind}");
        }
    }

    #[test]
    fn an_account_decides_what_suppresses_a_lead() {
        let suppresses = |kind: &str, more: &Value, suppresses: Suppresses| {
            read_event(kind, more, suppresses).unwrap().delivery.unwrap().suppresses
        };
        let hard = bounce("Permanent", "NoEmail");
        for (bounced, complained) in [(true, false), (false, true), (false, false)] {
            let setting = Suppresses { bounced, complained };
            assert_eq!(suppresses("email.bounced", &hard, setting).is_some(), bounced);
            assert_eq!(suppresses("email.complained", &json!({}), setting).is_some(), complained);
        }
    }

    #[test]
    fn other_events_and_mails_are_ignored_and_broken_ones_are_malformed() {
        for kind in ["email.opened", "email.clicked", "email.scheduled", "email.received", "contact.created"]
        {
            assert_eq!(read_event(kind, &json!({}), BOTH), None, "{kind}");
        }
        for tags in [json!({}), json!(null), json!({ "category": "news" }), json!([])] {
            assert_eq!(read_event("email.bounced", &json!({ "tags": tags }), BOTH), None);
        }
        let listed = json!({ "tags": [{ "name": "postrider_key", "value": "k" }] });
        assert_eq!(read_event("email.sent", &listed, BOTH).unwrap().key, "k");
        for more in [
            json!({ "email_id": "" }),
            json!({ "email_id": 7 }),
            json!({ "tags": { "postrider_key": "" } }),
            json!({ "tags": { "postrider_key": "x".repeat(257) } }),
            json!({ "tags": { "postrider_key": "a\u{0}b" } }),
        ] {
            let body = event("email.sent", &more).to_string();
            let refused = read(body.as_bytes(), BOTH);
            assert!(matches!(refused, Err(CallbackRefused::Malformed(_))), "{more}: {refused:?}");
        }
        for body in ["", "null", "[]", "{\"type\": \"email.sent\"}", "{\"type\": 1, \"data\": {}}"] {
            assert!(matches!(read(body.as_bytes(), BOTH), Err(CallbackRefused::Malformed(_))), "{body}");
        }
    }

    #[test]
    fn a_signature_is_that_of_standard_webhooks_under_other_header_names() {
        let secret = format!("whsec_{}", STANDARD.encode([7; 24])).into();
        let verifier = signing::verifier(&secret).unwrap();
        let signer = signing::signer(&secret).unwrap();
        let body = br#"{"type": "email.opened", "data": {}}"#;
        let sign = |at: i64| signer.sign("msg_1", at, body).unwrap();
        let now = NOW.as_second();
        let header = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let headers = |at: i64, signature: &str| {
            vec![header(ID, "msg_1"), header(TIME, &at.to_string()), header(SIGNATURE, signature)]
        };
        let check = |headers: &[(String, String)], body: &[u8], verifier: Option<&Hmac<Sha256>>| {
            let callback = Callback { path_and_query: "/", key: None, headers, body, now: NOW };
            verify(verifier, &callback)
        };
        for at in [now - 300, now, now + 300] {
            assert_eq!(check(&headers(at, &sign(at)), body, Some(&verifier)), Ok(()));
        }
        let two = format!("v1,{} {}", STANDARD.encode([1; 32]), sign(now));
        assert_eq!(check(&headers(now, &two), body, Some(&verifier)), Ok(()));
        let mut twice = headers(now, &sign(now));
        twice.push(header(ID, "msg_1"));
        let mut unnamed = headers(now, &sign(now));
        unnamed[0].0 = "webhook-id".to_owned();
        for (headers, body, verifier, why) in [
            (headers(now, &sign(now)), &body[..], None, "has no `webhook_secret`"),
            (headers(now - 301, &sign(now - 301)), body, Some(&verifier), "five minutes too old"),
            (headers(now + 301, &sign(now + 301)), body, Some(&verifier), "five minutes too early"),
            (headers(now + 1, &sign(now)), body, Some(&verifier), "not Resend's"),
            (headers(now, &sign(now)), b"{}", Some(&verifier), "not Resend's"),
            (headers(now, ""), body, Some(&verifier), "not Resend's"),
            (headers(now, "v1,AAAA"), body, Some(&verifier), "not Resend's"),
            (twice, body, Some(&verifier), "is there twice"),
            (unnamed, body, Some(&verifier), "`svix-id` is missing"),
        ] {
            let Err(CallbackRefused::Forged(reason)) = check(&headers, body, verifier) else {
                panic!("{why}")
            };
            assert!(reason.contains(why) && !reason.contains("whsec_BwcH"), "{reason}");
        }
    }
}
