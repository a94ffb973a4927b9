use postrider_model::ids::ProviderAccountId;
use serde_json::{Value, json};

use super::*;
use crate::{
    chat::inbound::tests::{Delivery, no_message, one_message, sign},
    guard::Ending,
    http::tests::{
        NOW, ScriptedServer, answer, assert_request, body, chat, client, email, key, refused, with_header,
    },
};

const SECRET: &str = r#"{"bot_token": "xoxb-hunter2", "signing_secret": "hunter2-signs"}"#;

fn open(settings: &Value) -> Slack {
    let account = Account { id: ProviderAccountId::new(), settings, secret: &SecretString::from(SECRET) };
    Slack::new(&client(true), &account).ok().unwrap()
}

// As Slack documents it: a JSON body with `channel`, `text`, `thread_ts` and `metadata`, which has `event_type` and `event_payload`.
#[test]
fn a_message_is_what_slack_documents() {
    let slack = open(&json!({}));
    let request = slack.request(&key(), &chat(Some("1482960137.003543"))).unwrap();
    assert_request(
        &request,
        "POST",
        "https://slack.com/api/chat.postMessage",
        &[("authorization", "Bearer xoxb-hunter2"), ("content-type", "application/json")],
    );
    assert!(request.headers()["authorization"].is_sensitive());
    let sent: Value = serde_json::from_str(body(&request)).unwrap();
    let metadata = json!({ "event_type": "postrider_reply", "event_payload": { "key": key() } });
    assert_eq!(
        sent,
        json!({ "channel": "4711", "text": "Hello.", "thread_ts": "1482960137.003543", "metadata": metadata })
    );
    let top: Value = serde_json::from_str(body(&slack.request(&key(), &chat(None)).unwrap())).unwrap();
    assert_eq!(top, json!({ "channel": "4711", "text": "Hello.", "metadata": metadata }));
    let refused = slack.request(&key(), &email()).err().unwrap();
    assert_eq!(refused, Outcome::Rejected { reason: "slack carries chat and no email messages".to_owned() });
}

#[test]
fn no_text_becomes_a_mention_or_a_link() {
    let slack = open(&json!({}));
    let say = |text: &str| {
        let message = Message::Chat { to: "C1".to_owned(), thread: None, text: text.to_owned() };
        slack.request(&key(), &message)
    };
    for (text, sent) in [
        (
            "<!channel> <@U123> <https://evil.example|your bank>",
            "&lt;!channel&gt; &lt;@U123&gt; &lt;https://evil.example|your bank&gt;",
        ),
        ("a &lt; b && c", "a &amp;lt; b &amp;&amp; c"),
        ("*bold* _it_ @here #general https://example.com", "*bold* _it_ @here #general https://example.com"),
    ] {
        let request = say(text).unwrap();
        assert_eq!(serde_json::from_str::<Value>(body(&request)).unwrap()["text"], sent);
    }
    assert!(say(&"é".repeat(40_000)).is_ok());
    for long in ["é".repeat(40_001), "<".repeat(10_001)] {
        let Err(Outcome::Rejected { reason }) = say(&long) else { panic!() };
        assert_eq!(reason, "the text is longer than the 40000 characters that Slack accepts");
    }
}

// Each word of the tables, and words that are in no table on purpose.
#[test]
fn each_error_of_slack_has_its_outcome() {
    #[rustfmt::skip]
    let table = [
        ("cannot_reply_to_message", "rejected"), ("channel_not_found", "rejected"), ("invalid_arg_name", "rejected"),
        ("invalid_arguments", "rejected"), ("invalid_charset", "rejected"), ("invalid_form_data", "rejected"),
        ("invalid_metadata_format", "rejected"), ("invalid_metadata_schema", "rejected"), ("invalid_post_type", "rejected"),
        ("invalid_thread_ts", "rejected"), ("is_archived", "rejected"), ("metadata_too_large", "rejected"),
        ("missing_post_type", "rejected"), ("msg_too_long", "rejected"), ("no_text", "rejected"), ("not_in_channel", "rejected"),
        ("restricted_action", "rejected"), ("restricted_action_non_threadable_channel", "rejected"),
        ("restricted_action_read_only_channel", "rejected"), ("restricted_action_thread_locked", "rejected"),
        ("restricted_action_thread_only_channel", "rejected"), ("as_user_not_supported", "rejected"),
        ("invalid_array_arg", "rejected"), ("invalid_blocks", "rejected"), ("invalid_blocks_format", "rejected"),
        ("too_many_attachments", "rejected"),

        ("access_denied", "account_refused"), ("accesslimited", "account_refused"), ("account_inactive", "account_refused"),
        ("deprecated_endpoint", "account_refused"), ("ekm_access_denied", "account_refused"), ("enterprise_is_restricted", "account_refused"),
        ("invalid_auth", "account_refused"), ("messages_tab_disabled", "account_refused"), ("metadata_must_be_sent_from_app", "account_refused"),
        ("method_deprecated", "account_refused"), ("missing_scope", "account_refused"), ("no_permission", "account_refused"),
        ("not_allowed_token_type", "account_refused"), ("not_authed", "account_refused"), ("org_login_required", "account_refused"),
        ("team_access_not_granted", "account_refused"), ("team_added_to_org", "account_refused"), ("team_not_found", "account_refused"),
        ("token_expired", "account_refused"), ("token_revoked", "account_refused"), ("two_factor_setup_required", "account_refused"),

        ("message_limit_exceeded", "not_sent"), ("rate_limited", "not_sent"), ("ratelimited", "not_sent"),

        ("internal_error", "unknown"), ("fatal_error", "unknown"), ("service_unavailable", "unknown"),
        ("request_timeout", "unknown"), ("a_word_of_tomorrow", "unknown"), ("", "unknown"), ("Channel_Not_Found", "unknown"),
    ];
    for (word, expected) in table {
        let said = json!({ "ok": false, "error": word }).to_string();
        assert_eq!(judge(&answer(200, &said), NOW).kind(), expected, "{word}");
    }
    let known = REFUSES_MESSAGE.len() + REFUSES_ACCOUNT.len() + RATE_LIMITED.len();
    assert_eq!(
        table.iter().filter(|(_, outcome)| *outcome != "unknown").count(),
        known,
        "a word has no row here"
    );
}

#[test]
fn other_answers_of_slack_have_their_outcome() {
    let good = r#"{"ok": true, "channel": "C1", "ts": "1503435956.000247", "message": {"text": "Hello."}}"#;
    assert_eq!(
        judge(&answer(200, good), NOW),
        Outcome::Delivered { message_id: "C1:1503435956.000247".to_owned() }
    );
    let half = Answer { ending: Ending::Broken, ..answer(200, good) };
    let page = with_header(answer(200, good), "content-type", "text/html");
    for odd in [half, page] {
        assert_eq!(judge(&odd, NOW).kind(), "unknown");
    }
    #[rustfmt::skip]
    let others = [
        (200, "", "unknown"), (200, "{}", "unknown"), (200, r#"{"ok": true}"#, "unknown"), (200, r#"{"ok": false}"#, "unknown"),
        (200, r#"{"ok": true, "channel": "C1"}"#, "unknown"), (200, r#"{"ok": true, "channel": "", "ts": "1.2"}"#, "unknown"),
        (200, r#"{"ok": "true", "channel": "C1", "ts": "1.2"}"#, "unknown"),
        (201, good, "unknown"), (500, r#"{"ok": false, "error": "channel_not_found"}"#, "unknown"), (503, good, "unknown"),
        (400, "", "rejected"), (401, "", "account_refused"), (403, "", "account_refused"), (408, "", "unknown"), (307, "", "rejected"),
    ];
    for (status, said, expected) in others {
        assert_eq!(judge(&answer(status, said), NOW).kind(), expected, "{status} {said}");
    }
    // Slack sends `Retry-After` with 429 and with 200.
    let busy = r#"{"ok": false, "error": "ratelimited"}"#;
    for status in [200, 429] {
        let outcome = judge(&with_header(answer(status, busy), "retry-after", "7"), NOW);
        let Outcome::NotSent { retry_after, reason } = outcome else { panic!("{status}") };
        assert_eq!(retry_after, Some(Duration::from_secs(7)));
        assert!(reason.contains("ratelimited"), "{reason}");
        // Without a time the adapter supplies one: patience is not failure.
        let Outcome::NotSent { retry_after, .. } = judge(&answer(status, busy), NOW) else {
            panic!("{status}")
        };
        assert_eq!(retry_after, Some(Duration::from_secs(30)));
    }
    let scope = r#"{"ok": false, "error": "missing_scope", "needed": "chat:write", "provided": "im:read"}"#;
    let Outcome::AccountRefused { reason, is_login: false } = judge(&answer(200, scope), NOW) else {
        panic!()
    };
    assert_eq!(reason, "the account is refused: Slack says `missing_scope` (it needs chat:write)");
}

fn posted(ts: &str, key: Option<&str>) -> Value {
    let metadata = key.map(|key| json!({ "event_type": "postrider_reply", "event_payload": { "key": key } }));
    let mut posted = json!({ "type": "message", "bot_id": "B1", "text": "Hi.", "ts": ts });
    if let Some(metadata) = metadata {
        posted["metadata"] = metadata;
    }
    posted
}

fn page(messages: &[Value], next: Option<&str>) -> (u16, Value) {
    let next = json!({ "next_cursor": next.unwrap_or_default() });
    (
        200,
        json!({ "ok": true, "messages": messages, "has_more": next["next_cursor"] != "", "response_metadata": next }),
    )
}

/// Looks up until there is a finding. The adapter makes one request in each look-up.
async fn search(thread: Option<&str>, answers: Vec<(u16, Value)>) -> (Result<Finding, Finding>, Vec<String>) {
    let server = ScriptedServer::start(answers);
    let slack = open(&json!({ "url": format!("{}/api/", server.url) }));
    let period = Period { from: NOW, until: NOW + SKEW };
    let place = Place { channel: "C1", thread };
    for look_up in 1.. {
        let found = slack.search(place, period, &key(), "Fish & <chips>").await;
        assert_eq!(server.lines().len(), look_up, "one request in each look-up");
        match found {
            Err(Finding::Later { retry_after: Duration::ZERO, .. }) => {}
            found => return (found, server.lines()),
        }
    }
    unreachable!()
}

#[tokio::test]
async fn a_message_is_found_by_its_key() {
    let (other, mine) = ("f".repeat(64), key().to_string());
    let first = "GET /api/conversations.history?channel=C1&oldest=1770000000.000000&latest=1770000300.000000&include_all_metadata=true&limit=15";
    let pages = vec![
        page(&[posted("9.1", None), posted("8.1", Some(&other))], Some("dXNlcg==")),
        page(&[posted("7.1", Some(&mine))], Some("more")),
    ];
    let (found, lines) = search(None, pages).await;
    let Ok(Finding::Done { message_id, evidence }) = found else { panic!("{found:?}") };
    assert_eq!(
        (&*message_id, lines),
        ("C1:7.1", vec![first.to_owned(), format!("{first}&cursor=dXNlcg%3D%3D")])
    );
    assert!(evidence.contains("this key in its metadata"));

    let (found, lines) = search(Some("5.1"), vec![page(&[posted("7.1", Some(&mine))], None)]).await;
    assert!(matches!(found, Ok(Finding::Done { .. })));
    let thread = "GET /api/conversations.replies?channel=C1&ts=5.1&oldest=1770000000.000000&latest=1770000300.000000&include_all_metadata=true&limit=15";
    assert_eq!(lines, [thread]);
}

#[tokio::test]
async fn a_list_that_was_read_to_its_end_proves_that_there_is_none() {
    let mut odd = posted("8.1", None);
    odd["metadata"] = json!({ "event_type": "postrider_reply", "event_payload": { "key": 7 } });
    let mut of_another_app = posted("7.1", Some(key().as_str()));
    of_another_app["metadata"]["event_type"] = json!("task_created");
    for last in [&[][..], &[posted("9.1", Some("other")), odd, of_another_app]] {
        let (found, _) = search(None, vec![page(last, None)]).await;
        assert!(matches!(found, Ok(Finding::Absent { .. })), "{found:?}");
    }
    // Slack shows no metadata of a message that may be the item's.
    let mut hidden = posted("9.1", None);
    hidden["text"] = json!("Fish &amp; &lt;chips&gt;");
    let (found, _) = search(None, vec![page(&[hidden.clone()], Some("next")), page(&[], None)]).await;
    let Err(Finding::Unclear { reason }) = found else { panic!("{found:?}") };
    assert!(reason.contains("metadata.message:read"), "{reason}");
    // A person may write the same text.
    hidden.as_object_mut().unwrap().remove("bot_id");
    let (found, _) = search(None, vec![page(&[hidden], None)]).await;
    assert!(matches!(found, Ok(Finding::Absent { .. })), "{found:?}");
}

#[tokio::test]
async fn a_list_that_is_not_whole_proves_nothing() {
    let mine = key().to_string();
    let endless: Vec<_> =
        (0..look_up::PAGES_MAX).map(|_| page(&[posted("9.1", None)], Some("next"))).collect();
    let (found, lines) = search(None, endless).await;
    assert!(matches!(&found, Err(Finding::Unclear { reason }) if reason.contains("too many")), "{found:?}");
    assert_eq!(lines.len(), look_up::PAGES_MAX);

    // After a page that is too long the adapter requests smaller pages.
    let mut long = posted("9.1", None);
    long["text"] = json!("x".repeat(70_000));
    let (found, lines) =
        search(None, vec![page(&[long], None), page(&[posted("9.1", Some(&mine))], None)]).await;
    assert!(matches!(found, Ok(Finding::Done { .. })), "{found:?}");
    assert!(lines[1].ends_with("limit=7"), "{lines:?}");

    let mut without_cursor = page(&[], None);
    without_cursor.1["has_more"] = json!(true);
    for answer in [
        without_cursor,
        (200, json!({ "ok": false, "error": "internal_error" })),
        (200, json!({ "ok": true, "messages": "none" })),
        (200, json!({})),
        (500, json!({ "ok": true, "messages": [posted("9.1", Some(&mine))] })),
    ] {
        let (found, _) = search(None, vec![answer.clone()]).await;
        assert!(matches!(found, Err(Finding::Unclear { .. })), "{answer:?}: {found:?}");
    }
    // A minute, when Slack names no time.
    for status in [200, 429] {
        let (found, _) = search(None, vec![(status, json!({ "ok": false, "error": "ratelimited" }))]).await;
        let Err(Finding::Later { retry_after, .. }) = found else { panic!("{status}: {found:?}") };
        assert_eq!(retry_after, Duration::from_secs(60));
    }
    for error in look_up::UNREADABLE {
        let (found, _) = search(None, vec![(200, json!({ "ok": false, "error": error }))]).await;
        assert!(matches!(found, Err(Finding::CannotTell { .. })), "{error}: {found:?}");
    }
}

#[tokio::test]
async fn a_look_up_that_had_to_wait_goes_on_where_it_stopped() {
    let mine = key().to_string();
    let server = ScriptedServer::start(vec![
        page(&[posted("9.1", None)], Some("next")),
        (429, json!({ "ok": false, "error": "ratelimited" })),
        page(&[posted("7.1", Some(&mine))], None),
    ]);
    let slack = open(&json!({ "url": format!("{}/api/", server.url) }));
    let (place, period) = (Place { channel: "C1", thread: None }, Period { from: NOW, until: NOW + SKEW });
    let mut found = Vec::new();
    for _ in 0..3 {
        found.push(slack.search(place, period, &key(), "Hi.").await);
    }
    assert!(matches!(
        &found[..],
        [Err(Finding::Later { .. }), Err(Finding::Later { .. }), Ok(Finding::Done { .. })]
    ));
    let with_cursor: Vec<bool> = server.lines().iter().map(|line| line.ends_with("cursor=next")).collect();
    assert_eq!(with_cursor, [false, true, true]);
}

/// A webhook that Slack signed at this time.
fn delivery(seconds: i64, secret: &str, body: &str) -> Delivery {
    let signature = format!("v0={}", sign(secret, format!("v0:{seconds}:{body}").as_bytes()));
    Delivery::new(body)
        .header("x-slack-request-timestamp", &seconds.to_string())
        .header("x-slack-signature", &signature)
}

fn received(delivery: &Delivery) -> Result<Received, CallbackRefused> {
    delivery.to(&SlackAdapter::new(&client(false)), &json!({}), SECRET)
}

fn signed(body: &str) -> Result<Received, CallbackRefused> {
    received(&delivery(NOW.as_second(), "hunter2-signs", body))
}

// The example in Slack's documentation.
#[test]
fn a_signature_is_the_one_that_slack_documents() {
    let body = "token=xyzz0WbapA4vBCDEFasx0q6G&team_id=T1DC2JH3J&team_domain=testteamnow&channel_id=G8PSS9T3V&channel_name=foobar&user_id=U2CERLKJA&user_name=roadrunner&command=%2Fwebhook-collect&text=&response_url=https%3A%2F%2Fhooks.slack.com%2Fcommands%2FT1DC2JH3J%2F397700885554%2F96rGlfmibIGlgcZRskXaIFfN&trigger_id=398738663015.47445629121.803a0bc887a14d10d2c447fce8b6703c";
    let signature = inbound::signature(&"8f742231b10e8888abcd99yyyzzz85a5".into()).unwrap();
    let expected = "a2114d57b48eac39b9ad189dd8316235a7b4a8d21a10bd27519666489c69b503";
    let parts = [b"v0:1531420618:", body.as_bytes()];
    assert_eq!(inbound::verify_hex(&signature, &parts, expected, "Slack"), Ok(()));
}

fn event(event: &Value) -> String {
    let authorizations = json!([{ "user_id": "U0BOT", "is_bot": true, "team_id": "T1" }]);
    json!({ "type": "event_callback", "team_id": "T1", "event_id": "Ev1", "event": event, "authorizations": authorizations })
        .to_string()
}

#[test]
fn a_message_of_a_person_is_received_once() {
    let message = json!({ "type": "message", "channel": "C1", "user": "U1", "text": "Hello &amp; you?", "ts": "9.1", "channel_type": "channel" });
    let mention = json!({ "type": "app_mention", "channel": "C1", "user": "U1", "text": "Hello &amp; you?", "ts": "9.1" });
    let one = one_message("C1:9.1", "U1", "C1", None, "Hello & you?");
    assert_eq!((signed(&event(&message)), signed(&event(&mention))), (one.clone(), one));

    let mut in_a_thread = message.clone();
    in_a_thread["thread_ts"] = json!("5.1");
    assert_eq!(signed(&event(&in_a_thread)), one_message("C1:9.1", "U1", "C1", Some("5.1"), "Hello & you?"));
    let now = NOW.as_second();
    for seconds in [now - 300, now + 300] {
        let delivery = delivery(seconds, "hunter2-signs", &event(&in_a_thread));
        assert!(received(&delivery).is_ok(), "{seconds}");
    }
    let question = r#"{"type": "url_verification", "token": "x", "challenge": "3eZbrw1aBm2rZgRNFdxV"}"#;
    assert_eq!(signed(question), Ok(Received::Challenge("3eZbrw1aBm2rZgRNFdxV".to_owned())));
}

#[test]
fn events_that_are_not_messages_of_people_are_ignored() {
    let message = json!({ "type": "message", "channel": "C1", "user": "U1", "text": "Hello?", "ts": "9.1" });
    let with = |name: &str, value: Value| {
        let mut message = message.clone();
        message[name] = value;
        event(&message)
    };
    for body in [
        with("bot_id", json!("B1")),
        with("bot_profile", json!({ "id": "B1" })),
        with("subtype", json!("message_changed")),
        with("subtype", json!("bot_message")),
        with("user", json!("U0BOT")),
        with("user", Value::Null),
        with("text", json!("")),
        with("text", Value::Null),
        with("type", json!("reaction_added")),
        // The fields of other events have other shapes.
        event(&json!({ "type": "channel_created", "channel": { "id": "C1" } })),
        event(&json!({ "type": "team_join", "user": { "id": "U1" } })),
        event(
            &json!({ "type": "message", "subtype": "message_changed", "message": { "text": "x" }, "channel": "C1", "ts": "1.1" }),
        ),
        r#"{"type": "app_rate_limited", "team_id": "T1"}"#.to_owned(),
    ] {
        assert_eq!(signed(&body), no_message(), "{body}");
    }
}

#[test]
fn a_forged_webhook_is_refused_with_the_reason() {
    let now = NOW.as_second();
    let message = json!({ "type": "message", "channel": "C1", "user": "U1", "text": "Hello?", "ts": "9.1" });
    let body = event(&message);
    let good = || delivery(now, "hunter2-signs", &body);
    let hex = sign("hunter2-signs", format!("v0:{now}:{body}").as_bytes());
    let spaced = serde_json::to_string_pretty(&serde_json::from_str::<Value>(&body).unwrap()).unwrap();
    let wrong = "is not Slack's for this account";
    for (forged, why) in [
        (delivery(now - 301, "hunter2-signs", &body), "more than five minutes too old"),
        (delivery(now + 301, "hunter2-signs", &body), "more than five minutes too early"),
        (delivery(now, "hunter2-of-another", &body), wrong),
        (delivery(now, "xoxb-hunter2", &body), wrong),
        // Replayed with another body, and with another time.
        (good().body(body.replace("Hello", "Pay me")), wrong),
        (good().set("x-slack-request-timestamp", &(now + 1).to_string()), wrong),
        (good().body(spaced), wrong),
        (good().body(""), wrong),
        (good().set("x-slack-request-timestamp", "now"), "not a time in seconds"),
        (good().set("x-slack-request-timestamp", &format!("+{now}")), "not a time in seconds"),
        (good().set("x-slack-signature", ""), "does not begin with `v0=`"),
        (good().set("x-slack-signature", &hex), "does not begin with `v0=`"),
        (good().set("x-slack-signature", &format!("v1={hex}")), "does not begin with `v0=`"),
        (good().set("x-slack-signature", "v0="), wrong),
        (good().set("x-slack-signature", &format!("v0={}", &hex[..62])), wrong),
        (good().set("x-slack-signature", &format!("v0={hex}00")), wrong),
        (good().set("x-slack-signature", "v0=zz"), "is not hex"),
        (
            good()
                .set("x-slack-signature", &format!("v0={}", hex.replace(|c: char| c.is_ascii_digit(), "+"))),
            "is not hex",
        ),
        (good().header("x-slack-signature", "v0=00"), "`x-slack-signature` is there twice"),
        (good().header("x-slack-request-timestamp", "1"), "`x-slack-request-timestamp` is there twice"),
        (good().without("x-slack-signature"), "`x-slack-signature` is missing"),
        (good().without("x-slack-request-timestamp"), "`x-slack-request-timestamp` is missing"),
    ] {
        forged.is_forged(&received(&forged), why, &["hunter2"]);
    }
    // A challenge must be signed, too.
    let question = r#"{"type": "url_verification", "challenge": "x"}"#;
    let unsigned = Delivery::new(question);
    unsigned.is_forged(&received(&unsigned), "is missing", &["hunter2"]);
    assert_eq!(received(&good().get("challenge=x")), Err(CallbackRefused::NotTaken));
}

#[test]
fn a_signed_webhook_that_makes_no_sense_is_malformed() {
    let message = |channel: &str, ts: &str, user: &str| {
        event(&json!({ "type": "message", "channel": channel, "user": user, "text": "x", "ts": ts }))
    };
    let long = "C".repeat(256);
    for body in [
        String::new(),
        "null".to_owned(),
        "{}".to_owned(),
        "[".repeat(100_000),
        r#"{"type": "url_verification"}"#.to_owned(),
        r#"{"type": "url_verification", "challenge": "a b"}"#.to_owned(),
        r#"{"type": "event_callback"}"#.to_owned(),
        r#"{"type": "event_callback", "event": []}"#.to_owned(),
        r#"{"type": "event_callback", "event": {"type": "message", "text": "\ud800", "channel": "C1", "user": "U1", "ts": "1"}}"#.to_owned(),
        r#"{"type": "event_callback", "event": {"type": "message", "user": "U1", "user": "U2", "text": "x", "channel": "C1", "ts": "1"}}"#.to_owned(),
        r#"{"type": "event_callback", "event": {"type": "message", "user": "U1", "text": "x"}}"#.to_owned(),
        message("", "9.1", "U1"),
        message(&long, "9.1", "U1"),
        message("C1", "9\u{0}1", "U1"),
        message("C1", "9.1", "U\u{0}1"),
    ] {
        let refused = signed(&body);
        let start: String = body.chars().take(80).collect();
        assert!(matches!(refused, Err(CallbackRefused::Malformed(_))), "{start}: {refused:?}");
    }
    // A deep value in a field that is not read, and a long text in one that is.
    let deep = format!(
        r#"{{"type": "event_callback", "event": {{"type": "message", "channel": "C1", "user": "U1", "ts": "9.1", "text": "x", "blocks": {}{}}}}}"#,
        "[".repeat(50_000),
        "]".repeat(50_000)
    );
    assert_eq!(signed(&deep), one_message("C1:9.1", "U1", "C1", None, "x"));
    let text = format!("a\u{0}{}", "é".repeat(80_000));
    let long = event(&json!({ "type": "message", "channel": "C1", "user": "U1", "ts": "9.1", "text": text }));
    let Ok(Received::Happened { messages, .. }) = signed(&long) else { panic!() };
    assert!(
        messages[0].text.len() <= 64 * 1024
            && messages[0].text.starts_with("aé")
            && messages[0].text.ends_with('…')
    );
}

#[test]
fn an_account_has_a_token_and_a_signing_secret() {
    let with = |bot_token: &str, signing_secret: &str| {
        json!({ "bot_token": bot_token, "signing_secret": signing_secret }).to_string()
    };
    let (no_token, no_signing, broken) =
        (with("", "hunter2"), with("hunter2", " "), with("hunter2\n", "hunter2"));
    refused(
        Slack::new,
        &[
            (false, json!({ "token": "x" }), SECRET, "unknown field `token`"),
            (false, json!({ "url": "http://slack.example" }), SECRET, "plain http"),
            (false, json!({ "url": "https://10.1.2.3" }), SECRET, "only public addresses are called"),
            (false, json!({}), "", "the secret is missing; that of `slack` is like {\"bot_token\""),
            (false, json!({}), "xoxb-hunter2", "the secret is not JSON"),
            (false, json!({}), r#"{"bot_token": "xoxb-hunter2"}"#, "the secret lacks a part"),
            (false, json!({}), &no_token, "`bot_token` of the secret is empty"),
            (false, json!({}), &no_signing, "`signing_secret` of the secret is empty"),
            (false, json!({}), &broken, "characters that a header cannot carry"),
        ],
    );
    let broken = Delivery::new("{}");
    let result = broken.to(&SlackAdapter::new(&client(false)), &json!({}), "hunter2");
    broken.is_forged(&result, "nothing can be verified: the secret is not JSON", &["hunter2"]);
}

#[test]
fn a_broadcast_of_a_thread_and_a_file_with_a_text_are_messages() {
    let mut message = json!({ "type": "message", "channel": "C1", "user": "U1", "ts": "9.1", "thread_ts": "5.1",
                              "text": "see <https://example.com|this> &amp; <@U2|ada>", "subtype": "thread_broadcast" });
    let text = "see this (https://example.com) & @ada";
    assert_eq!(signed(&event(&message)), one_message("C1:9.1", "U1", "C1", Some("5.1"), text));
    message["subtype"] = json!("file_share");
    message["files"] = json!([{ "id": "F1" }]);
    assert_eq!(signed(&event(&message)), one_message("C1:9.1", "U1", "C1", Some("5.1"), text));
    message["text"] = json!("");
    assert_eq!(signed(&event(&message)), no_message());
}

#[test]
fn a_slash_command_is_answered_and_other_forms_are_acknowledged() {
    let now = NOW.as_second();
    let form = |body: &str| {
        let form = "application/x-www-form-urlencoded";
        received(&delivery(now, "hunter2-signs", body).header("content-type", form))
    };
    let Ok(Received::Answer(answer)) = form("command=%2Fweather&text=Berlin&user_id=U1&channel_id=C1") else {
        panic!()
    };
    assert_eq!(answer["response_type"], "ephemeral", "only the person sees it");
    assert!(answer["text"].as_str().unwrap().contains("not commands"), "{answer}");
    for other in ["ssl_check=1&token=x", "payload=%7B%22type%22%3A%22block_actions%22%7D"] {
        assert_eq!(form(other), no_message(), "{other}");
    }
    assert!(matches!(form("text=x"), Err(CallbackRefused::Malformed(_))));
    let forged = delivery(now, "hunter2-of-another", "command=%2Fweather");
    let forged = received(&forged.header("content-type", "application/x-www-form-urlencoded"));
    assert!(matches!(forged, Err(CallbackRefused::Forged(_))));
}
