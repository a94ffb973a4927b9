use postrider_model::ids::ProviderAccountId;
use serde_json::{Value, json};

use super::*;
use crate::{
    chat::inbound::tests::{Delivery, no_message, one_message, sign},
    guard::Ending,
    http::tests::{NOW, answer, assert_request, body, chat, client, email, item, refused, with_header},
};

const SECRET: &str =
    r#"{"access_token": "EAAhunter2", "app_secret": "hunter2-app", "verify_token": "hunter2-verify"}"#;

fn settings() -> Value {
    json!({ "phone_number_id": "105512345" })
}

fn open() -> Whatsapp {
    let account =
        Account { id: ProviderAccountId::new(), settings: &settings(), secret: &SecretString::from(SECRET) };
    Whatsapp::new(&client(true), &account).ok().unwrap()
}

// By Meta's description: `messaging_product`, `recipient_type`, `to`, `type`, `text` with `body`, `context` with
// `message_id`, and up to 512 characters that the callbacks return.
#[test]
fn a_message_is_what_meta_describes() {
    let (whatsapp, (id, _)) = (open(), item());
    let request = whatsapp.request(id, &chat(Some("wamid.1"))).unwrap();
    assert_request(
        &request,
        "POST",
        "https://graph.facebook.com/v23.0/105512345/messages",
        &[("authorization", "Bearer EAAhunter2"), ("content-type", "application/json")],
    );
    assert!(request.headers()["authorization"].is_sensitive());
    let mut expected = json!({
        "messaging_product": "whatsapp", "recipient_type": "individual", "to": "4711", "type": "text",
        "text": { "body": "Hello.", "preview_url": false }, "context": { "message_id": "wamid.1" },
        "biz_opaque_callback_data": "01890a5d-ac96-774b-bcce-b302099a8057",
    });
    assert_eq!(serde_json::from_str::<Value>(body(&request)).unwrap(), expected);
    expected.as_object_mut().unwrap().remove("context");
    let request = whatsapp.request(id, &chat(None)).unwrap();
    assert_eq!(serde_json::from_str::<Value>(body(&request)).unwrap(), expected);

    let say = |length| {
        let message = Message::Chat { to: "4711".to_owned(), thread: None, text: "é".repeat(length) };
        whatsapp.request(id, &message)
    };
    assert!(say(4096).is_ok());
    for (refused, why) in [
        (say(4097), "the text is longer than the 4096 characters that WhatsApp accepts"),
        (whatsapp.request(id, &email()), "whatsapp carries chat and no email messages"),
    ] {
        assert_eq!(refused.err(), Some(Outcome::Rejected { reason: why.to_owned() }));
    }
}

fn no(status: u16, code: i64) -> Answer {
    let error = json!({ "message": "(#1) No", "type": "OAuthException", "code": code, "fbtrace_id": "A" });
    answer(status, &json!({ "error": error }).to_string())
}

// Each code of the tables, with the status that Meta documents for it, and with others.
#[test]
fn each_code_of_whatsapp_has_its_outcome() {
    #[rustfmt::skip]
    let table = [
        (100, 400, "rejected"), (130472, 400, "rejected"), (130497, 403, "rejected"), (131008, 400, "rejected"),
        (131009, 400, "rejected"), (131021, 400, "rejected"), (131026, 400, "rejected"), (131030, 400, "rejected"),
        (131047, 400, "rejected"), (131049, 400, "rejected"), (131051, 400, "rejected"),

        (0, 401, "account_refused"), (3, 500, "account_refused"), (10, 403, "account_refused"), (33, 400, "account_refused"), (102, 401, "account_refused"),
        (104, 401, "account_refused"), (190, 401, "account_refused"), (200, 403, "account_refused"), (368, 403, "account_refused"), (131005, 403, "account_refused"),
        (131031, 403, "account_refused"), (131037, 400, "account_refused"), (131042, 400, "account_refused"), (131045, 500, "account_refused"),
        (131057, 500, "account_refused"), (133010, 400, "account_refused"),

        (4, 400, "not_sent"), (17, 400, "not_sent"), (613, 400, "not_sent"), (80007, 400, "not_sent"), (130429, 400, "not_sent"),
        (131048, 400, "not_sent"), (131056, 400, "not_sent"),

        (1, 400, "unknown"), (2, 503, "unknown"), (131000, 500, "unknown"), (131016, 500, "unknown"), (133004, 503, "unknown"),
        (135000, 400, "unknown"),
    ];
    for (code, status, expected) in table {
        for status in [status, 400, 500] {
            let outcome = judge(&no(status, code), NOW);
            assert_eq!(outcome.kind(), expected, "{code} {status}");
            assert!(http::reason(outcome).contains(&format!("WhatsApp says {code}: (#1) No")), "{code}");
        }
        // A truncated answer is unknown.
        let half = judge(&Answer { ending: Ending::Broken, ..no(500, code) }, NOW);
        assert_eq!(half.kind(), "unknown", "{code}");
    }
    let known = REFUSES_MESSAGE.len() + REFUSES_ACCOUNT.len() + RATE_LIMITED.len() + INTERNAL_ERRORS.len();
    assert_eq!(table.len(), known, "a code has no row here");
}

#[test]
fn other_answers_of_whatsapp_have_their_outcome() {
    let good = r#"{"messaging_product": "whatsapp", "contacts": [{"input": "4711", "wa_id": "4711"}], "messages": [{"id": "wamid.X", "message_status": "accepted"}]}"#;
    assert_eq!(judge(&answer(200, good), NOW), Outcome::Delivered { message_id: "wamid.X".to_owned() });
    let subcode =
        json!({ "error": { "message": "Unsupported post request", "code": 100, "error_subcode": 33 } });
    #[rustfmt::skip]
    let others = [
        (answer(200, "{}"), "unknown"), (answer(200, r#"{"messages": []}"#), "unknown"), (answer(200, r#"{"messages": [{"id": " "}]}"#), "unknown"),
        (no(200, 131026), "unknown"), (no(302, 131026), "unknown"), (Answer { ending: Ending::TooLong, ..answer(200, good) }, "unknown"),
        (with_header(answer(200, good), "content-type", "text/html"), "unknown"),
        (answer(400, &subcode.to_string()), "account_refused"),
        // Unknown codes, and no code.
        (no(400, 999_999), "rejected"), (no(403, 999_999), "account_refused"), (no(429, 999_999), "not_sent"), (no(500, 999_999), "unknown"),
        (answer(400, "<html>"), "rejected"), (answer(401, ""), "account_refused"), (answer(503, "<html>"), "unknown"), (answer(307, ""), "rejected"),
    ];
    for (said, expected) in others {
        assert_eq!(judge(&said, NOW).kind(), expected, "{} {:?}", said.status, said.body);
    }
    let busy = with_header(no(400, 130_429), "retry-after", "7");
    let Outcome::NotSent { retry_after, .. } = judge(&busy, NOW) else { panic!() };
    assert_eq!(retry_after, Some(Duration::from_secs(7)));
    let Outcome::NotSent { retry_after, .. } = judge(&no(400, 130_429), NOW) else { panic!() };
    assert_eq!(retry_after, Some(Duration::from_secs(30)), "the adapter supplies the wait");
    let told = json!({ "error": { "message": "Re-engagement message", "code": 131_047, "error_data": { "details": "More than 24 hours have passed." } } });
    let Outcome::Rejected { reason } = judge(&answer(400, &told.to_string()), NOW) else { panic!() };
    assert_eq!(reason, "WhatsApp says 131047: Re-engagement message (More than 24 hours have passed.)");
}

// Graph repeats a malformed token in its answer.
#[test]
fn no_outcome_repeats_the_token() {
    let told = json!({ "error": { "message": "Malformed access token EAAhunter2", "code": 190 } });
    let without = http::without(answer(401, &told.to_string()), open().access_token.expose_secret());
    let Outcome::AccountRefused { reason, .. } = judge(&without, NOW) else { panic!() };
    assert_eq!(reason, "the account is refused: WhatsApp says 190: Malformed access token …");
}

fn delivery(body: &str) -> Delivery {
    let signature = format!("sha256={}", sign("hunter2-app", body.as_bytes()));
    Delivery::new(body).header("x-hub-signature-256", &signature)
}

fn received(delivery: &Delivery) -> Result<Received, CallbackRefused> {
    delivery.to(&WhatsappAdapter::new(&client(false)), &settings(), SECRET)
}

fn signed(body: &str) -> Result<Received, CallbackRefused> {
    received(&delivery(body))
}

fn value(parts: &Value) -> Value {
    let metadata = json!({ "display_phone_number": "15550001111", "phone_number_id": "105512345" });
    let mut value = json!({ "messaging_product": "whatsapp", "metadata": metadata });
    value.as_object_mut().unwrap().extend(parts.as_object().unwrap().clone());
    value
}

fn change(field: &str, value: &Value) -> String {
    let entry = json!({ "id": "1", "changes": [{ "field": field, "value": value }] });
    json!({ "object": "whatsapp_business_account", "entry": [entry] }).to_string()
}

fn said(message: &Value) -> String {
    let contacts = json!([{ "profile": { "name": "Ada" }, "wa_id": "4917612345678" }]);
    change("messages", &value(&json!({ "contacts": contacts, "messages": [message] })))
}

fn message() -> Value {
    json!({ "from": "4917612345678", "id": "wamid.A", "timestamp": "1770000000", "type": "text", "text": { "body": "Hello?" } })
}

fn with(name: &str, value: Value) -> Value {
    let mut message = message();
    message[name] = value;
    message
}

#[test]
fn a_message_of_a_person_is_received() {
    let one = one_message("wamid.A", "4917612345678", "4917612345678", None, "Hello?");
    assert_eq!(signed(&said(&message())), one);
    let quoted = said(&with("context", json!({ "from": "15550001111", "id": "wamid.0" })));
    assert_eq!(
        signed(&quoted),
        one_message("wamid.A", "4917612345678", "4917612345678", Some("wamid.A"), "Hello?")
    );
    assert_eq!(signed(&said(&with("context", json!({ "forwarded": true })))), one);

    let both = change("messages", &value(&json!({ "messages": [message(), with("id", json!("wamid.B"))] })));
    let Ok(Received::Happened { messages, .. }) = signed(&both) else { panic!() };
    let ids: Vec<_> = messages.iter().map(|message| &*message.provider_message_id).collect();
    assert_eq!(ids, ["wamid.A", "wamid.B"]);
}

#[test]
fn webhooks_without_a_message_of_a_person_are_ignored() {
    let mut of_another_number = value(&json!({ "messages": [message()] }));
    of_another_number["metadata"]["phone_number_id"] = json!("105599999");
    for body in [
        said(&with("type", json!("image"))),
        said(
            &json!({ "type": "reaction", "from": "4917612345678", "id": "wamid.A", "reaction": { "emoji": "x" } }),
        ),
        said(&json!({ "type": "system", "system": { "body": "changed their number" } })),
        said(&with("text", json!({ "body": " " }))),
        said(&with("group_id", json!("G1"))),
        said(&with("from", Value::Null)),
        change("messages", &of_another_number),
        change("account_update", &json!([1, 2])),
        change("messages", &value(&json!({ "errors": [{ "code": 1 }] }))),
        r#"{"object": "page", "entry": [{"id": "1", "messaging": []}]}"#.to_owned(),
        "{}".to_owned(),
    ] {
        assert_eq!(signed(&body), no_message(), "{body}");
    }
}

#[test]
fn a_status_is_the_delivery_report_of_a_reply() {
    let (id, _) = item();
    let echo = id.0.to_string();
    let status = |status: &str, echo: Option<&str>| {
        let mut told = json!({ "id": "wamid.R", "status": status, "timestamp": "1770000000", "recipient_id": "4917612345678" });
        if let Some(echo) = echo {
            told["biz_opaque_callback_data"] = json!(echo);
        }
        told
    };
    let report = |told: Value| {
        let told = signed(&change("messages", &value(&json!({ "statuses": [told] }))));
        let Ok(Received::Happened { messages, reports }) = told else { panic!("{told:?}") };
        assert_eq!((messages.len(), reports.len()), (0, 1));
        reports.into_iter().next().unwrap()
    };
    for (word, proves_action) in [
        ("sent", true),
        ("delivered", true),
        ("read", true),
        ("played", true),
        ("failed", false),
        ("deleted", false),
    ] {
        let expected = DeliveryReport {
            reply_id: Some(id),
            provider_message_id: "wamid.R".to_owned(),
            status: word.to_owned(),
            proves_action,
            at: Some(NOW),
            error: None,
        };
        assert_eq!(report(status(word, Some(&echo))), expected);
    }
    // Statuses of another program that sends from this number.
    for other in [None, Some(""), Some("order-7"), Some("\u{0}")] {
        assert_eq!(report(status("sent", other)).reply_id, None, "{other:?}");
    }
    let mut failed = status("failed", Some(&echo));
    failed["errors"] = json!([{ "code": 131_026, "title": "Message undeliverable", "error_data": { "details": "Not on WhatsApp\u{0}." } }]);
    assert_eq!(
        report(failed.clone()).error.as_deref(),
        Some("131026: Message undeliverable (Not on WhatsApp.)")
    );
    failed["timestamp"] = json!("soon");
    assert_eq!(report(failed).at, None);
}

#[test]
fn a_challenge_of_meta_is_answered_if_its_token_is_right() {
    let ask = |query: &str| received(&Delivery::new("").get(query));
    let good = "hub.mode=subscribe&hub.verify_token=hunter2-verify&hub.challenge=1158201444";
    assert_eq!(ask(good), Ok(Received::Challenge("1158201444".to_owned())));
    for (query, why) in [
        ("", "`hub.mode` is missing"),
        ("hub.mode=subscribe&hub.challenge=1", "`hub.verify_token` is missing"),
        ("hub.mode=subscribe&hub.verify_token=&hub.challenge=1", "is not this account's"),
        ("hub.mode=subscribe&hub.verify_token=hunter2-app&hub.challenge=1", "is not this account's"),
        ("hub.mode=subscribe&hub.verify_token=hunter2-verif&hub.challenge=1", "is not this account's"),
        ("hub.mode=unsubscribe&hub.verify_token=hunter2-verify&hub.challenge=1", "is not this account's"),
        (&good.replace("&hub.challenge=1158201444", ""), "`hub.challenge` is missing, or is there twice"),
        (&format!("{good}&hub.challenge=2"), "`hub.challenge` is missing, or is there twice"),
        (&format!("{good}&hub.verify_token=x"), "`hub.verify_token` is missing, or is there twice"),
    ] {
        let delivery = Delivery::new("").get(query);
        delivery.is_forged(&received(&delivery), why, &["hunter2"]);
    }
    let split = ask(&good.replace("1158201444", "a%0d%0ab"));
    assert!(matches!(split, Err(CallbackRefused::Malformed(_))), "{split:?}");
    // A signature alone is not enough for a GET.
    let get = delivery("").get("");
    get.is_forged(&received(&get), "`hub.mode` is missing", &["hunter2"]);
}

#[test]
fn a_forged_webhook_is_refused_with_the_reason() {
    let name = "x-hub-signature-256";
    let body = said(&message());
    let hex = sign("hunter2-app", body.as_bytes());
    let good = || delivery(&body);
    let spaced = serde_json::to_string_pretty(&serde_json::from_str::<Value>(&body).unwrap()).unwrap();
    let wrong = "is not Meta's for this account";
    for (forged, why) in [
        (good().set(name, &format!("sha256={}", sign("hunter2-of-another", body.as_bytes()))), wrong),
        (good().set(name, &format!("sha256={}", sign("EAAhunter2", body.as_bytes()))), wrong),
        (good().body(body.replace("Hello", "Pay me")), wrong),
        (good().body(spaced), wrong),
        (good().body(""), wrong),
        (good().set(name, ""), "does not begin with `sha256=`"),
        (good().set(name, &hex), "does not begin with `sha256=`"),
        (good().set(name, &format!("sha1={hex}")), "does not begin with `sha256=`"),
        (good().set(name, "sha256="), wrong),
        (good().set(name, &format!("sha256={}", &hex[..62])), wrong),
        (good().set(name, "sha256=zz"), "is not hex"),
        (good().header(name, "sha256=00"), "is there twice"),
        (good().without(name), "is missing"),
        (good().without(name).header("x-hub-signature", &format!("sha1={hex}")), "is missing"),
    ] {
        forged.is_forged(&received(&forged), why, &["hunter2"]);
    }
}

#[test]
fn a_signed_webhook_that_makes_no_sense_is_malformed() {
    for body in [
        String::new(),
        "null".to_owned(),
        "[".repeat(100_000),
        r#"{"entry": {}}"#.to_owned(),
        r#"{"entry": [{"changes": [{"field": "messages"}]}]}"#.to_owned(),
        r#"{"entry": [], "entry": []}"#.to_owned(),
        change("messages", &json!({ "messages": [message()] })),
        change("messages", &value(&json!({ "messages": {} }))),
        change("messages", &value(&json!({ "statuses": [{ "id": "wamid.R" }] }))),
        change("messages", &value(&json!({ "statuses": [{ "id": "", "status": "sent" }] }))),
        change("messages", &value(&json!({ "statuses": [{ "id": "wamid.R", "status": "se\u{0}nt" }] }))),
        said(&json!({ "from": "4917612345678" })),
        said(&with("text", json!("Hello?"))),
        said(&with("id", json!("wamid\u{0}"))),
        said(&with("id", json!("w".repeat(513)))),
        said(&with("from", json!("4".repeat(256)))),
        said(&message()).replace("Hello?", r"\ud800"),
    ] {
        let refused = signed(&body);
        let start: String = body.chars().take(80).collect();
        assert!(matches!(refused, Err(CallbackRefused::Malformed(_))), "{start}: {refused:?}");
    }
    let Ok(Received::Happened { messages, .. }) =
        signed(&said(&with("text", json!({ "body": "é".repeat(80_000) }))))
    else {
        panic!()
    };
    assert!(messages[0].text.len() <= 64 * 1024 && messages[0].text.ends_with("é…"));
}

#[test]
fn an_account_has_a_number_and_three_secrets() {
    let with = |access: &str, app: &str, verify: &str| {
        json!({ "access_token": access, "app_secret": app, "verify_token": verify }).to_string()
    };
    refused(
        Whatsapp::new,
        &[
            (
                false,
                json!({}),
                SECRET,
                "missing field `phone_number_id`; the settings of `whatsapp` are like {",
            ),
            (false, json!({ "phone_number_id": "1/../2" }), SECRET, "`phone_number_id` is not a number"),
            (false, json!({ "phone_number_id": "" }), SECRET, "`phone_number_id` is not a number"),
            (false, json!({ "phone_number_id": "1", "number": 2 }), SECRET, "unknown field `number`"),
            (
                false,
                json!({ "phone_number_id": "1", "url": "https://localhost" }),
                SECRET,
                "only public addresses are called",
            ),
            (false, settings(), "", "the secret is missing; that of `whatsapp` is like {\"access_token\""),
            (false, settings(), "EAAhunter2", "the secret is not JSON"),
            (
                false,
                settings(),
                r#"{"access_token": "hunter2", "app_secret": "hunter2"}"#,
                "the secret lacks a part",
            ),
            (false, settings(), &with("", "hunter2", "hunter2"), "`access_token` of the secret is empty"),
            (false, settings(), &with("hunter2", "", "hunter2"), "`app_secret` of the secret is empty"),
            (false, settings(), &with("hunter2", "hunter2", ""), "`verify_token` of the secret is empty"),
        ],
    );
}

#[test]
fn a_pressed_button_and_a_chosen_row_are_messages_with_their_title() {
    let context = json!({ "from": "15550001111", "id": "wamid.0" });
    let base =
        json!({ "from": "4917612345678", "id": "wamid.A", "timestamp": "1770000000", "context": context });
    let message = |parts: Value| {
        let mut message = base.clone();
        message.as_object_mut().unwrap().extend(parts.as_object().unwrap().clone());
        signed(&said(&message))
    };
    let yes = one_message("wamid.A", "4917612345678", "4917612345678", Some("wamid.A"), "Yes");
    for parts in [
        json!({ "type": "button", "button": { "payload": "yes-1", "text": "Yes" } }),
        json!({ "type": "interactive", "interactive": { "type": "button_reply", "button_reply": { "id": "1", "title": "Yes" } } }),
        json!({ "type": "interactive",
                "interactive": { "type": "list_reply", "list_reply": { "id": "1", "title": "Yes", "description": "Please" } } }),
    ] {
        assert_eq!(message(parts.clone()), yes, "{parts}");
    }
    let flow = json!({ "type": "interactive", "interactive": { "type": "nfm_reply", "nfm_reply": { "response_json": "{}" } } });
    assert_eq!(message(flow), no_message());
}
