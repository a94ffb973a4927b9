//! The deliveries of each vendor, signed as its own documentation says, and not by our code.

use base64::{Engine, engine::general_purpose::STANDARD};
use hmac::{Hmac, KeyInit, Mac};
use jiff::Timestamp;
use serde_json::{Value, json};
use sha2::Sha256;
use standardwebhooks::Webhook;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Vendor {
    Slack,
    Telegram,
    Whatsapp,
    Webhook,
}

use Vendor::{Slack, Telegram, Whatsapp};

impl Vendor {
    pub const ALL: [Self; 4] = [Slack, Telegram, Whatsapp, Self::Webhook];

    pub const fn name(self) -> &'static str {
        match self {
            Slack => "slack",
            Telegram => "telegram",
            Whatsapp => "whatsapp",
            Self::Webhook => "webhook",
        }
    }

    /// Settings and secret of an account. `mark` makes it another account's.
    pub fn account(self, mark: &str) -> (Value, String) {
        match self {
            Slack => (json!({}), json!({ "bot_token": "xoxb-1", "signing_secret": format!("slack-{mark}") }).to_string()),
            Telegram => {
                (json!({}), json!({ "bot_token": "123:abc", "webhook_secret": format!("telegram-{mark}") }).to_string())
            }
            Whatsapp => (
                json!({ "phone_number_id": "1055" }),
                json!({ "access_token": "EAA", "app_secret": format!("app-{mark}"), "verify_token": format!("verify-{mark}") })
                    .to_string(),
            ),
            Self::Webhook => (json!({ "url": "https://example.com/messages" }), whsec(mark)),
        }
    }

    /// The sender's id.
    pub const fn sender(self) -> &'static str {
        match self {
            Slack => "U2147483697",
            Telegram => "1111",
            Whatsapp => "16315551181",
            Self::Webhook => "ada",
        }
    }

    /// Where a reply goes, and in which part of it.
    pub const fn place(self) -> (&'static str, Option<&'static str>) {
        match self {
            Slack => ("C0LAN2Q65", Some("1515449522.000016")),
            Telegram => ("2222", None),
            Whatsapp => (Whatsapp.sender(), None),
            Self::Webhook => ("room-7", Some("t-1")),
        }
    }

    /// A delivery of one message, number `n`.
    pub fn message(self, n: u32, text: &str) -> Webhooked {
        self.messages(&[(n, self.sender(), text)])
    }

    /// A delivery of messages: number, sender and text of each. Only WhatsApp delivers several.
    pub fn messages(self, said: &[(u32, &str, &str)]) -> Webhooked {
        let (n, sender, text) = said[0];
        let (to, thread) = self.place();
        let body = match self {
            Slack => json!({
                "token": "deprecated", "team_id": "T061EG9R6", "type": "event_callback", "event_id": format!("Ev{n}"),
                "event": { "type": "message", "channel": to, "user": sender, "text": text,
                           "ts": format!("{}.000100", 1_700_000_000 + n), "thread_ts": thread },
            }),
            Telegram => json!({
                "update_id": 10_000 + n,
                "message": { "message_id": n, "date": 1_441_645_532, "text": text,
                             "chat": { "id": 2222, "type": "private" }, "from": { "id": sender.parse::<i64>().unwrap(), "is_bot": false } },
            }),
            Whatsapp => {
                let messages: Vec<Value> = said
                    .iter()
                    .map(|(n, sender, text)| {
                        json!({ "from": sender, "id": format!("wamid.{n}"), "timestamp": "1504902988", "type": "text", "text": { "body": text } })
                    })
                    .collect();
                whatsapp(&json!({ "messages": messages }))
            }
            Self::Webhook => json!({
                "type": "message.received",
                "data": { "sender_id": sender, "conversation_id": to, "thread": thread, "text": text },
            }),
        };
        Webhooked { vendor: self, id: format!("msg-{n}"), body: body.to_string().into_bytes() }
    }
}

/// WhatsApp's envelope.
pub fn whatsapp(happened: &Value) -> Value {
    let mut value = json!({ "messaging_product": "whatsapp", "metadata": { "display_phone_number": "16505551111", "phone_number_id": "1055" } });
    value.as_object_mut().unwrap().extend(happened.as_object().unwrap().clone());
    json!({ "object": "whatsapp_business_account", "entry": [{ "id": "0", "changes": [{ "field": "messages", "value": value }] }] })
}

/// A body that is about to be signed.
#[derive(Debug, Clone)]
pub struct Webhooked {
    pub vendor: Vendor,
    /// The id of the delivery in Standard Webhooks.
    pub id: String,
    pub body: Vec<u8>,
}

/// Headers of a request.
pub type Headers = Vec<(&'static str, String)>;

impl Webhooked {
    /// The headers that prove it, with the secret of the account of this mark, so many seconds from now.
    pub fn signed_at(&self, mark: &str, offset_seconds: i64) -> Headers {
        let time = Timestamp::now().as_second() + offset_seconds;
        match self.vendor {
            Slack => {
                let base = [format!("v0:{time}:").as_bytes(), &self.body].concat();
                let signature = format!("v0={}", hmac(&format!("slack-{mark}"), &base));
                vec![("x-slack-request-timestamp", time.to_string()), ("x-slack-signature", signature)]
            }
            Telegram => vec![("x-telegram-bot-api-secret-token", format!("telegram-{mark}"))],
            Whatsapp => {
                vec![("x-hub-signature-256", format!("sha256={}", hmac(&format!("app-{mark}"), &self.body)))]
            }
            Vendor::Webhook => {
                let signer = Webhook::new(&whsec(mark)).unwrap();
                let signature = signer.sign(&self.id, time, &self.body).unwrap();
                vec![
                    ("webhook-id", self.id.clone()),
                    ("webhook-timestamp", time.to_string()),
                    ("webhook-signature", signature),
                ]
            }
        }
    }

    /// The same, now.
    pub fn signed(&self, mark: &str) -> Headers {
        self.signed_at(mark, 0)
    }
}

/// A secret of Standard Webhooks.
pub fn whsec(mark: &str) -> String {
    format!("whsec_{}", STANDARD.encode(format!("{mark:-<32}")))
}

fn hmac(secret: &str, bytes: &[u8]) -> String {
    let mut mac = Hmac::<Sha256>::new_from_slice(secret.as_bytes()).unwrap();
    mac.update(bytes);
    hex::encode(mac.finalize().into_bytes())
}
