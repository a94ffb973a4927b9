//! Tests of the shared tables, and helpers for the tests of the vendors.

use std::time::Duration;

use postrider_model::{Channel, DoubtClass, Manifest, Rate, ids::ProviderAccountId};
use postrider_testkit::server::{self, Reaction, Received};
use reqwest::header::{HeaderMap, HeaderName, RETRY_AFTER};
use secrecy::SecretString;
use serde::Deserialize;
use serde_json::Value;

use super::*;
use crate::{
    guard::{Limits, Policy},
    provider::Adapters,
};

pub const NOW: Timestamp = Timestamp::constant(1_770_000_000, 0);

pub fn client(allow_private: bool) -> GuardedClient {
    GuardedClient::new(Policy { allow_private }, Limits::default()).unwrap()
}

pub fn key() -> IdempotencyKey {
    IdempotencyKey::from_row("0123456789abcdef".repeat(4))
}

/// An item with an old id, and the time in it.
pub fn item() -> (OutboxId, Timestamp) {
    let id = "01890a5d-ac96-774b-bcce-b302099a8057".parse().unwrap();
    (id, Timestamp::from_millisecond(0x0189_0a5d_ac96).unwrap())
}

pub fn answer(status: u16, body: &str) -> Answer {
    let status = StatusCode::from_u16(status).unwrap();
    Answer { status, headers: HeaderMap::new(), body: body.to_owned().into(), ending: Ending::Whole }
}

pub fn with_header(mut answer: Answer, name: &'static str, value: &str) -> Answer {
    answer.headers.insert(HeaderName::from_static(name), value.parse().unwrap());
    answer
}

pub fn email() -> Message {
    let (text, html) = (Some("Hello.".to_owned()), Some("<p>Hello.</p>".to_owned()));
    Message::Email { to: "ada@example.com".to_owned(), subject: "News".to_owned(), text, html }
}

pub fn voice() -> Message {
    Message::Voice { to: "+4930123456".to_owned(), script: "Hello.".to_owned() }
}

pub fn social() -> Message {
    Message::Social { text: "Hello.".to_owned() }
}

pub fn chat(thread: Option<&str>) -> Message {
    Message::Chat { to: "4711".to_owned(), thread: thread.map(str::to_owned), text: "Hello.".to_owned() }
}

/// Asserts that each account is refused with its reason, and without the secret.
pub fn refused<T>(
    open: impl Fn(&GuardedClient, &Account<'_>) -> Result<T, InvalidAccount>,
    cases: &[(bool, Value, &str, &str)],
) {
    for (is_development, settings, secret, why) in cases {
        let account =
            Account { id: ProviderAccountId::new(), settings, secret: &SecretString::from(*secret) };
        let error = open(&client(*is_development), &account).err().unwrap().to_string();
        assert!(error.contains(why), "{settings}: {error}");
        assert!(secret.is_empty() || !error.contains(secret.trim()), "{error}");
        // Parts of a secret must not appear either; the tests use this text in them.
        assert!(!error.contains("hunter2"), "{error}");
    }
}

/// Asserts the method, the URL and all headers of a request.
pub fn assert_request(request: &Request, method: &str, url: &str, headers: &[(&str, &str)]) {
    assert_eq!((request.method().as_str(), request.url().as_str()), (method, url));
    let mut found: Vec<_> =
        request.headers().iter().map(|(name, value)| (name.as_str(), value.to_str().unwrap())).collect();
    found.sort_unstable();
    assert_eq!(found, headers);
}

pub fn body(request: &Request) -> &str {
    std::str::from_utf8(request.body().unwrap().as_bytes().unwrap()).unwrap()
}

/// A server that sends one answer per request, in order.
pub struct ScriptedServer {
    pub url: String,
    server: server::ScriptedServer,
}

impl ScriptedServer {
    pub fn start(answers: Vec<(u16, Value)>) -> Self {
        let server = server::ScriptedServer::start(move |request: &Received| {
            let (status, body) = &answers[request.number];
            Reaction::json(&status.to_string(), &body.to_string())
        })
        .unwrap();
        Self { url: server.url(), server }
    }

    /// First lines of the requests so far.
    pub fn lines(&self) -> Vec<String> {
        let line =
            |request: Received| request.head.lines().next().unwrap().trim_end_matches(" HTTP/1.1").to_owned();
        self.server.requests().into_iter().map(line).collect()
    }
}

fn judged(answer: &Answer) -> Outcome {
    judge(answer, NOW, |answer| named(answer, "id"))
}

#[test]
fn each_answer_has_its_outcome() {
    let good = r#"{"id": "m-1", "accepted": true}"#;
    #[rustfmt::skip]
    let whole = [
        (200, good, "delivered"), (201, good, "delivered"), (202, good, "delivered"),
        (200, "", "unknown"), (200, "thanks", "unknown"), (204, "", "unknown"),
        (200, r#"{"accepted": true}"#, "unknown"), (200, r#"{"id": " "}"#, "unknown"), (200, r#"{"id": 7}"#, "unknown"),
        (301, "", "unknown"), (303, good, "unknown"), (307, good, "rejected"), (308, "", "rejected"),
        (400, "no", "rejected"), (404, "", "rejected"), (410, "", "rejected"), (422, "", "rejected"),
        (401, "no", "account_refused"), (403, "no", "account_refused"), (429, "", "not_sent"),
        (408, "", "unknown"), (409, "", "unknown"),
        (500, "", "unknown"), (502, good, "unknown"), (503, "later", "unknown"), (504, "", "unknown"), (599, "", "unknown"),
        (999, "", "unknown"),
    ];
    for (status, body, expected) in whole {
        assert_eq!(judged(&answer(status, body)).kind(), expected, "{status} {body}");
    }
    for ending in [Ending::Broken, Ending::TooLong] {
        assert_eq!(judged(&Answer { ending, ..answer(200, good) }).kind(), "unknown", "{ending:?}");
        assert_eq!(judged(&Answer { ending, ..answer(400, "no") }).kind(), "rejected", "{ending:?}");
    }
    for (kind, expected) in [
        ("application/json", "delivered"),
        ("application/json; charset=utf-8", "delivered"),
        ("application/vnd.api+json", "delivered"),
        ("text/html; charset=utf-8", "unknown"),
        ("text/html; as=json", "unknown"),
        ("", "unknown"),
    ] {
        let answer = with_header(answer(200, good), "content-type", kind);
        assert_eq!(judged(&answer).kind(), expected, "{kind}");
    }
    assert_eq!(judged(&answer(200, good)), Outcome::Delivered { message_id: "m-1".to_owned() });
}

#[test]
fn a_repeat_settles_an_item_only_with_proof() {
    let (good, refusal) = (r#"{"id": "m-1"}"#, r#"{"message": "no such address"}"#);
    #[rustfmt::skip]
    let table = [
        (200, good, "done"), (200, "", "unclear"), (204, "", "unclear"),
        (400, refusal, "absent"), (422, refusal, "absent"),
        (400, "<html>Bad Request</html>", "unclear"), (422, "", "unclear"), (400, r#""no""#, "unclear"),
        (401, refusal, "unclear"), (403, refusal, "unclear"), (404, refusal, "unclear"), (408, refusal, "unclear"),
        (409, refusal, "unclear"), (410, refusal, "unclear"), (413, refusal, "unclear"), (429, refusal, "unclear"),
        (307, refusal, "unclear"), (500, refusal, "unclear"), (503, "", "unclear"),
    ];
    let kind = |finding: Finding| match finding {
        Finding::Done { .. } => "done",
        Finding::Absent { .. } => "absent",
        Finding::Unclear { .. } | Finding::Later { .. } | Finding::CannotTell { .. } => "unclear",
    };
    for (status, body, expected) in table {
        let found = finding(Ok(answer(status, body)), |answer, _| judged(answer));
        assert_eq!(kind(found), expected, "{status} {body}");
        for ending in [Ending::Broken, Ending::TooLong] {
            let half = Answer { ending, ..answer(status, body) };
            let found = finding(Ok(half), |answer, _| judged(answer));
            assert_eq!(kind(found), "unclear", "{status} {body} {ending:?}");
        }
    }
    for outcome in [not_sent("no".to_owned()), Outcome::Unknown { reason: "no answer".to_owned() }] {
        assert_eq!(kind(finding(Err(outcome), |answer, _| judged(answer))), "unclear");
    }
}

#[test]
fn rate_limits_return_the_time_to_wait() {
    let cases = [
        ("7", Some(7)),
        (" 0 ", Some(0)),
        ("Mon, 02 Feb 2026 02:41:40 GMT", Some(100)),
        ("Mon, 02 Feb 2026 02:00:00 GMT", Some(0)),
        // The adapter supplies the time.
        ("-1", Some(30)),
        ("soon", Some(30)),
        ("", Some(30)),
    ];
    for (header, seconds) in cases {
        let mut busy = answer(429, "");
        busy.headers.insert(RETRY_AFTER, header.parse().unwrap());
        let Outcome::NotSent { retry_after, .. } = judged(&busy) else { panic!("{header}") };
        assert_eq!(retry_after, seconds.map(Duration::from_secs), "{header}");
    }
}

#[test]
fn the_id_of_an_item_has_the_time_of_its_reservation() {
    let (id, at) = item();
    assert_eq!(planned_at(id), at);
    let before = Timestamp::now().as_millisecond();
    assert!(planned_at(OutboxId::new()).as_millisecond() >= before);
    assert_eq!(planned_at(OutboxId(uuid::Uuid::nil())), Timestamp::UNIX_EPOCH);
}

#[test]
fn a_path_is_appended_with_and_without_a_trailing_slash() {
    let development = client(true);
    for (input, expected) in [
        ("http://127.0.0.1:9", "http://127.0.0.1:9/a/b%2Fc"),
        ("http://127.0.0.1:9/", "http://127.0.0.1:9/a/b%2Fc"),
        ("https://api.example/v1/?c#d", "https://api.example/v1/a/b%2Fc"),
    ] {
        let base = base(&development, input.parse().unwrap()).unwrap();
        assert_eq!(below(&base, &["a", "b/c"]).as_str(), expected);
    }
}

// The manifests must equal the limits and classes that the vendors document.
#[test]
fn the_manifests_equal_the_documentation_of_the_vendors() {
    let all = &[Channel::Email, Channel::Voice, Channel::Social];
    let all_and_chat = &[Channel::Email, Channel::Voice, Channel::Social, Channel::Chat];
    let chat = &[Channel::Chat];
    let seconds = |seconds| Duration::from_secs(seconds);
    let rate = |calls, per| Some(Rate { calls, per: seconds(per) });
    let known_for = |hours: u64| Some(seconds(hours * 3600));
    #[rustfmt::skip]
    let documented = [
        Manifest { doubt: DoubtClass::Natural, rate: rate(2500, 3600), quota: rate(17_500, 86_400), ..Manifest::new("bluesky", &[Channel::Social]) },
        Manifest { doubt: DoubtClass::Key, key_lifetime: known_for(1), rate: rate(300, 300), quota: rate(300, 10_800), ..Manifest::new("mastodon", &[Channel::Social]) },
        Manifest { doubt: DoubtClass::Key, key_lifetime: known_for(24), rate: rate(2, 1), ..Manifest::new("resend", &[Channel::Email]) },
        Manifest { doubt: DoubtClass::Lookup, ..Manifest::new("sim", all) },
        Manifest { doubt: DoubtClass::Lookup, look_ups: rate(1, 60), ..Manifest::new("slack", chat) },
        Manifest { doubt: DoubtClass::Person, ..Manifest::new("smtp", &[Channel::Email]) },
        Manifest { doubt: DoubtClass::Person, rate: rate(30, 1), ..Manifest::new("telegram", chat) },
        Manifest { doubt: DoubtClass::Echo, rate: rate(1, 1), ..Manifest::new("twilio", &[Channel::Voice]) },
        Manifest { doubt: DoubtClass::Key, key_lifetime: known_for(72), ..Manifest::new("webhook", all_and_chat) },
        Manifest { doubt: DoubtClass::Echo, rate: rate(80, 1), ..Manifest::new("whatsapp", chat) },
    ];
    let adapters = Adapters::standard(&client(true));
    assert_eq!(adapters.manifests().copied().collect::<Vec<_>>(), documented);
}

#[test]
fn a_message_of_another_channel_is_rejected_before_any_call() {
    let chat = (chat(None), "chat");
    for (message, word) in [(email(), "email"), (voice(), "voice"), (social(), "social"), chat] {
        let Outcome::Rejected { reason } = wrong_channel("fax", "faxes", &message) else { panic!() };
        assert_eq!(reason, format!("fax carries faxes and no {word} messages"));
    }
}

// No error about a secret contains any part of it: not a value, not a name, not the text around it.
#[test]
fn a_secret_with_parts_is_never_part_of_an_error() {
    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Parts {
        token: SecretString,
    }
    let read = |secret: &str| {
        let secret = SecretString::from(secret);
        let account = Account { id: ProviderAccountId::new(), settings: &Value::Null, secret: &secret };
        secrets::<Parts>(&account, "fax", r#"{"token": "…"}"#)
    };
    assert_eq!(read(r#"{"token": "hunter2"}"#).unwrap().token.expose_secret(), "hunter2");
    for (secret, why) in [
        ("", "is missing"),
        (" \n", "is missing"),
        ("hunter2", "is not JSON"),
        (r#"{"token": "hunter2""#, "is not JSON"),
        (r#"{"token": "hunter2"} hunter2"#, "is not JSON"),
        (r#""hunter2""#, "lacks a part"),
        (r#"{"hunter2": "hunter2"}"#, "lacks a part"),
        (r#"{"token": "a", "hunter2": 1}"#, "lacks a part"),
        (r#"{"token": ["hunter2"]}"#, "lacks a part"),
        (r#"{"token": "hunter2", "token": "hunter2"}"#, "lacks a part"),
        ("{}", "lacks a part"),
    ] {
        let error = read(secret).unwrap_err().to_string();
        assert!(error.contains(why) && error.ends_with(r#"that of `fax` is like {"token": "…"}"#), "{error}");
        assert!(!error.contains("hunter2"), "{error}");
    }
    assert_eq!(part(&"x".into(), "token"), Ok("x"));
    assert_eq!(part(&" ".into(), "token").unwrap_err().to_string(), "`token` of the secret is empty");
}

#[test]
fn a_secret_that_an_answer_repeats_is_left_out() {
    let body = |answer: &Answer| String::from_utf8(answer.body.to_vec()).unwrap();
    let echo = without(answer(404, "Cannot POST /bot12:hunter2/send: hunter2"), "hunter2");
    assert_eq!(body(&echo), "Cannot POST /bot12:…/send: …");
    assert_eq!(body(&without(answer(200, "fine"), "hunter2")), "fine");
    assert_eq!(body(&without(answer(200, "fine"), "")), "fine");
}
