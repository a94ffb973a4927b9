//! Inbound webhooks, signed and verified by other libraries: Slack's Python library, the reference library of Standard Webhooks,
//! and Python's HMAC for Meta.

use hmac::{Hmac, KeyInit, Mac};
use jiff::Timestamp;
use postrider_model::ids::ProviderAccountId;
use postrider_providers::{
    Account, Adapters, CallbackRefused, InboundWebhook, Received,
    guard::{GuardedClient, Policy},
};
use secrecy::SecretString;
use serde::Serialize;
use serde_json::{Value, json};
use sha2::Sha256;

use crate::{PATIENT, signatures::ask_python};

/// Signs cases without a signature, and verifies the others.
const PEERS: &str = r#"
import datetime, hashlib, hmac, json, sys
from slack_sdk.signature import SignatureVerifier
from standardwebhooks.webhooks import Webhook, WebhookVerificationError

def slack(secret, headers, body):
    verifier = SignatureVerifier(secret)
    if "x-slack-signature" not in headers:
        return verifier.generate_signature(timestamp=headers["x-slack-request-timestamp"], body=body)
    try:
        return "valid" if verifier.is_valid_request(body, headers) else "invalid"
    except ValueError:
        return "invalid"

def webhook(secret, headers, body):
    library = Webhook(secret)
    if "webhook-signature" not in headers:
        time = datetime.datetime.fromtimestamp(int(headers["webhook-timestamp"]), datetime.timezone.utc)
        return library.sign(headers["webhook-id"], time, body)
    try:
        library.verify(body, headers)
        return "valid"
    except WebhookVerificationError:
        return "invalid"

def whatsapp(secret, headers, body):
    signature = "sha256=" + hmac.new(secret.encode(), body.encode(), hashlib.sha256).hexdigest()
    if "x-hub-signature-256" not in headers:
        return signature
    return "valid" if hmac.compare_digest(signature, headers["x-hub-signature-256"]) else "invalid"

for line in sys.stdin:
    case = json.loads(line)
    judge = {"slack": slack, "webhook": webhook, "whatsapp": whatsapp}[case["provider"]]
    print(judge(case["secret"], case["headers"], case["body"]))
"#;

const WHSEC: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
const OTHER_WHSEC: &str = "whsec_q6urq6urq6urq6urq6urq6urq6urq6urq6urq6urq6s=";

/// A webhook, with the secret for its signature.
#[derive(Serialize, Clone)]
struct Case {
    provider: &'static str,
    secret: String,
    headers: serde_json::Map<String, Value>,
    body: String,
}

impl Case {
    /// A webhook of the vendor at this time, without its signature.
    fn of(provider: &'static str, secret: &str, seconds: i64) -> Self {
        let text = "Straße & „Zitat“ 😀 \\ \" \u{2028}";
        let (headers, body) = match provider {
            "slack" => {
                let event =
                    json!({ "type": "message", "channel": "C1", "user": "U1", "ts": "1.2", "text": text });
                (
                    json!({ "x-slack-request-timestamp": seconds.to_string() }),
                    json!({ "type": "event_callback", "event": event }),
                )
            }
            "webhook" => {
                let data = json!({ "sender_id": "U1", "conversation_id": "C1", "text": text });
                let headers = json!({ "webhook-id": "msg_1", "webhook-timestamp": seconds.to_string() });
                (headers, json!({ "type": "message.received", "timestamp": Timestamp::now(), "data": data }))
            }
            _ => {
                let message =
                    json!({ "from": "U1", "id": "wamid.A", "type": "text", "text": { "body": text } });
                let value = json!({ "metadata": { "phone_number_id": "1" }, "messages": [message] });
                (json!({}), json!({ "entry": [{ "changes": [{ "field": "messages", "value": value }] }] }))
            }
        };
        let Value::Object(headers) = headers else { unreachable!() };
        Self { provider, secret: secret.to_owned(), headers, body: body.to_string() }
    }

    fn with(mut self, header: &str, value: &str) -> Self {
        self.headers.insert(header.to_owned(), value.into());
        self
    }

    fn saying(mut self, body: String) -> Self {
        self.body = body;
        self
    }

    /// Adds the signature of another implementation.
    fn signed_by_peer(self) -> Self {
        let signature = ask_python(PEERS, std::slice::from_ref(&self)).remove(0);
        let name = self.signature_header();
        self.with(name, &signature)
    }

    fn signature_header(&self) -> &'static str {
        match self.provider {
            "slack" => "x-slack-signature",
            "webhook" => "webhook-signature",
            _ => "x-hub-signature-256",
        }
    }

    /// The result of the adapter, for an account with the secret of the case.
    fn received(&self) -> Result<Received, CallbackRefused> {
        let secret = match self.provider {
            "slack" => json!({ "bot_token": "xoxb-1", "signing_secret": self.secret }).to_string(),
            "whatsapp" => {
                json!({ "access_token": "t", "app_secret": self.secret, "verify_token": "v" }).to_string()
            }
            _ => self.secret.clone(),
        };
        let settings = match self.provider {
            "slack" => json!({}),
            "whatsapp" => json!({ "phone_number_id": "1" }),
            _ => json!({ "url": "https://example.com/hook" }),
        };
        let client = GuardedClient::new(Policy { allow_private: false }, PATIENT).unwrap();
        let adapters = Adapters::standard(&client);
        let secret = SecretString::from(secret);
        let account = Account { id: ProviderAccountId::new(), settings: &settings, secret: &secret };
        let headers: Vec<(String, String)> = self
            .headers
            .iter()
            .map(|(name, value)| (name.clone(), value.as_str().unwrap().to_owned()))
            .collect();
        let webhook = InboundWebhook {
            is_get: false,
            query: "",
            headers: &headers,
            body: self.body.as_bytes(),
            now: Timestamp::now(),
        };
        adapters.get(self.provider).unwrap().receive(&account, &webhook)
    }
}

/// The current time, after the peers are installed.
fn now() -> i64 {
    ask_python(PEERS, &[] as &[Case]);
    Timestamp::now().as_second()
}

/// Asserts that the adapter and the peer agree on each case.
fn agree(cases: Vec<(Case, bool)>) {
    let (cases, expected): (Vec<Case>, Vec<bool>) = cases.into_iter().unzip();
    let theirs = ask_python(PEERS, &cases);
    for ((case, expected), theirs) in cases.iter().zip(expected).zip(theirs) {
        let ours = case.received();
        let case = serde_json::to_string(case).unwrap();
        assert_eq!(theirs == "valid", expected, "the peer says {theirs}: {case}");
        match ours {
            Ok(Received::Happened { messages, .. }) if expected => {
                assert_eq!(
                    (&*messages[0].sender_id, messages[0].text.contains("Straße")),
                    ("U1", true),
                    "{case}"
                );
            }
            Err(CallbackRefused::Forged(_)) if !expected => {}
            other => panic!("{other:?}: {case}"),
        }
    }
}

/// The same JSON in other bytes, another text, and an empty body.
fn other_bodies(body: &str) -> [String; 3] {
    let json: Value = serde_json::from_str(body).unwrap();
    [serde_json::to_string_pretty(&json).unwrap(), body.replace("Zitat", "Zitate"), String::new()]
}

#[test]
fn the_adapter_and_slacks_library_agree() {
    let (now, secret, other) = (now(), "8f742231b10e8888abcd99yyyzzz85a5", "another");
    let good = Case::of("slack", secret, now).signed_by_peer();
    let signed_at = |seconds: i64| Case::of("slack", secret, seconds).signed_by_peer();
    let (time, signature) = ("x-slack-request-timestamp", "x-slack-signature");
    let input = good.headers[signature].as_str().unwrap().to_owned();
    let mut cases = vec![
        (good.clone(), true),
        (ours(secret, now), true),
        (ours(other, now).saying(good.body.clone()), true),
        // Near the limit, with a margin for a busy machine.
        (signed_at(now - 200), true),
        (signed_at(now + 200), true),
        (signed_at(now - 302), false),
        (signed_at(now + 600), false),
        (good.clone().with(time, &(now - 1).to_string()), false),
        (good.clone().with(time, "soon"), false),
        (good.clone().with(signature, ""), false),
        (good.clone().with(signature, "v0="), false),
        (good.clone().with(signature, &input[3..]), false),
        (good.clone().with(signature, &input.replace("v0=", "v1=")), false),
        (good.clone().with(signature, &input[..input.len() - 2]), false),
        (good.clone().with(signature, "v0=not hex at all"), false),
        (Case { secret: other.to_owned(), ..good.clone() }, false),
    ];
    cases.extend(other_bodies(&good.body).map(|body| (good.clone().saying(body), false)));
    agree(cases);
}

/// A case that this test signs, for the library to verify.
fn ours(secret: &str, seconds: i64) -> Case {
    let case = Case::of("slack", secret, seconds);
    let mut signature = Hmac::<Sha256>::new_from_slice(secret.as_bytes()).unwrap();
    signature.update(format!("v0:{seconds}:{}", case.body).as_bytes());
    let signature = format!("v0={}", hex::encode(signature.finalize().into_bytes()));
    case.with("x-slack-signature", &signature)
}

#[test]
fn the_adapter_and_the_library_of_standard_webhooks_agree() {
    let now = now();
    let good = Case::of("webhook", WHSEC, now).signed_by_peer();
    let signed_at = |seconds: i64| Case::of("webhook", WHSEC, seconds).signed_by_peer();
    let header = "webhook-signature";
    let input = good.headers[header].as_str().unwrap().to_owned();
    let foreign =
        Case { secret: OTHER_WHSEC.to_owned(), ..Case::of("webhook", WHSEC, now) }.saying(good.body.clone());
    let foreign = foreign.signed_by_peer().headers[header].as_str().unwrap().to_owned();
    let mut cases = vec![
        (good.clone(), true),
        (good.clone().with(header, &format!("{foreign} {input}")), true),
        (good.clone().with(header, &format!("{input} {foreign}")), true),
        (good.clone().with(header, &format!("v1a,AAAA {input}")), true),
        (good.clone().with(header, &foreign), false),
        (good.clone().with(header, ""), false),
        (good.clone().with(header, "v1,"), false),
        (good.clone().with(header, &input.replace("v1,", "v2,")), false),
        (good.clone().with("webhook-id", "msg_2"), false),
        (good.clone().with("webhook-timestamp", &(now + 1).to_string()), false),
        (signed_at(now - 200), true),
        (signed_at(now + 200), true),
        (signed_at(now - 302), false),
        (signed_at(now + 600), false),
        (Case { secret: OTHER_WHSEC.to_owned(), ..good.clone() }, false),
    ];
    cases.extend(other_bodies(&good.body).map(|body| (good.clone().saying(body), false)));
    agree(cases);
}

#[test]
fn the_adapter_and_pythons_hmac_agree_about_meta() {
    let good = Case::of("whatsapp", "app-secret", 0).signed_by_peer();
    let header = "x-hub-signature-256";
    let input = good.headers[header].as_str().unwrap().to_owned();
    let mut cases = vec![
        (good.clone(), true),
        (good.clone().with(header, ""), false),
        (good.clone().with(header, "sha256="), false),
        (good.clone().with(header, &input.replace("sha256=", "sha1=")), false),
        (good.clone().with(header, &input[..input.len() - 2]), false),
        (Case { secret: "another".to_owned(), ..good.clone() }, false),
    ];
    cases.extend(other_bodies(&good.body).map(|body| (good.clone().saying(body), false)));
    agree(cases);
}
