//! Messages to channels and threads, and their look-up.

use serde_json::{Value, json};

use super::common_behavior::{SLACK, key, request, slack};
use super::*;

fn post(body: &Value) -> Vec<u8> {
    request("POST", "/slack/chat.postMessage", SLACK, &body.to_string())
}

async fn read(sim: &RunningSim, query: &str) -> Value {
    let headers = "authorization: Bearer xoxb-1\r\n";
    let (status, answer) =
        sim.answer(&request("GET", &format!("/slack/conversations.{query}"), headers, "")).await;
    assert_eq!(status, 200, "{answer}");
    answer
}

fn texts(page: &Value) -> Vec<&str> {
    page["messages"].as_array().unwrap().iter().map(|message| message["text"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn a_message_is_posted_each_time_and_found_by_its_metadata() {
    let sim = RunningSim::with(&[]).await;
    let (status, first) = sim.answer(&slack(&key(1), "Hi")).await;
    assert_eq!((status, &first["ok"], &first["channel"]), (200, &json!(true), &json!("C1")));
    let message = &first["message"];
    assert_eq!(
        [&message["ts"], &message["text"], &message["type"]],
        [&first["ts"], &json!("Hi"), &json!("message")]
    );
    assert!(message["bot_id"].as_str().unwrap().starts_with('B'));
    let (_, second) = sim.answer(&slack(&key(1), "Hi")).await;
    assert_ne!(first["ts"], second["ts"]);

    let page = read(&sim, "history?channel=C1&include_all_metadata=true").await;
    let found: Vec<_> = page["messages"].as_array().unwrap().iter().map(|message| &message["ts"]).collect();
    assert_eq!(found, [&second["ts"], &first["ts"]], "newest first");
    assert_eq!(page["messages"][0]["metadata"]["event_payload"]["key"], key(1));
    assert_eq!((&page["has_more"], &page["response_metadata"]["next_cursor"]), (&json!(false), &json!("")));
    assert_eq!(read(&sim, "history?channel=C1").await["messages"][0].get("metadata"), None);
    assert_eq!(read(&sim, "history?channel=C2").await["messages"], json!([]));

    let receipt = &sim.actions()[0];
    assert_eq!([&receipt["to"], &receipt["text"], &receipt["channel"]], ["C1", "Hi", "chat"]);
    assert_eq!(receipt["message_id"], format!("C1:{}", first["ts"].as_str().unwrap()));
    assert_eq!(receipt["key"], key(1));
    assert_eq!(sim.counts("").await["duplicate_keys"], 1);
    sim.stop().await;
}

#[tokio::test]
async fn a_post_is_found_although_the_answer_was_lost() {
    for fault in ["reset", "half", "fail_after", "stall"] {
        let sim = RunningSim::with(&["--stall-seconds", "0"]).await;
        sim.put_rules(&json!([{ "provider": "slack", "to": "C1", "key": key(1), "fault": fault }])).await;
        // Some of them are cut.
        let _ = sim.ask(&slack(&key(1), "Hi")).await;
        let page = read(&sim, "history?channel=C1&include_all_metadata=true").await;
        assert_eq!(page["messages"][0]["metadata"]["event_payload"]["key"], key(1), "{fault}");
        let name = format!("C1:{}", page["messages"][0]["ts"].as_str().unwrap());
        assert_eq!(sim.actions()[0]["message_id"], name, "{fault}");
        sim.stop().await;
    }
}

#[tokio::test]
async fn a_conversation_is_read_in_pages_within_two_times() {
    let sim = RunningSim::with(&[]).await;
    let mut ts = Vec::new();
    for n in 0..5 {
        ts.push(sim.answer(&slack(&key(n), &n.to_string())).await.1["ts"].as_str().unwrap().to_owned());
    }
    let mut seen = Vec::new();
    let mut cursor = String::new();
    loop {
        let page = read(&sim, &format!("history?channel=C1&limit=2&cursor={cursor}")).await;
        seen.push(texts(&page).join(""));
        cursor = page["response_metadata"]["next_cursor"].as_str().unwrap().replace('=', "%3D");
        if page["has_more"] == false {
            break;
        }
        // A new message does not move the pages.
        sim.answer(&slack(&key(9), "9")).await;
    }
    assert_eq!((seen, cursor.as_str()), (vec!["43".to_owned(), "21".to_owned(), "0".to_owned()], ""));

    let oldest = format!("history?channel=C1&oldest={}&latest={}", ts[1], ts[3]);
    assert_eq!(texts(&read(&sim, &oldest).await), ["2"], "the period excludes its start and end");
    assert_eq!(texts(&read(&sim, &format!("{oldest}&inclusive=true")).await), ["3", "2", "1"]);
    let backwards = format!("history?channel=C1&oldest={}&latest={}", ts[3], ts[1]);
    assert_eq!(texts(&read(&sim, &backwards).await), Vec::<&str>::new());
    sim.stop().await;
}

#[tokio::test]
async fn a_thread_begins_with_its_message_and_the_channel_does_not_show_it() {
    let sim = RunningSim::with(&[]).await;
    let parent = "1512085950.000216";
    for n in ["1", "2", "3"] {
        let metadata = json!({ "event_type": "postrider", "event_payload": { "key": n } });
        let body = json!({ "channel": "C1", "thread_ts": parent, "text": n, "metadata": metadata });
        let (_, answer) = sim.answer(&post(&body)).await;
        assert_eq!(answer["message"]["thread_ts"], parent);
    }
    assert_eq!(sim.actions()[0]["thread"], parent);
    assert_eq!(read(&sim, "history?channel=C1").await["messages"], json!([]));

    let page = read(&sim, &format!("replies?channel=C1&ts={parent}&limit=2&include_all_metadata=1")).await;
    assert_eq!(texts(&page), ["Hi", "1", "2"], "the first message is that of a person");
    assert_eq!(page["messages"][0]["ts"], parent);
    assert_eq!(page["messages"][1]["metadata"]["event_payload"]["key"], "1");
    let next = page["response_metadata"]["next_cursor"].as_str().unwrap();
    let form = url::form_urlencoded::Serializer::new(String::new())
        .extend_pairs([("channel", "C1"), ("ts", parent), ("limit", "2"), ("cursor", next)])
        .finish();
    let headers = "authorization: Bearer xoxb-1\r\ncontent-type: application/x-www-form-urlencoded\r\n";
    let (_, page) = sim.answer(&request("POST", "/slack/conversations.replies", headers, &form)).await;
    assert_eq!((texts(&page), &page["has_more"]), (vec!["3"], &json!(false)));

    let empty = read(&sim, "replies?channel=C1&ts=1512085951.000000").await;
    assert_eq!(texts(&empty), ["Hi"]);
    sim.stop().await;
}

#[tokio::test]
async fn slack_refuses_with_200_and_an_error_code() {
    let sim = RunningSim::with(&[]).await;
    let json_type = "content-type: application/json\r\n";
    let good = json!({ "channel": "C1", "text": "Hi" });
    let with = |field: &str, value: Value| {
        let mut body = good.clone();
        body[field] = value;
        body.to_string()
    };
    for (headers, body, word) in [
        (json_type.to_owned(), good.to_string(), "not_authed"),
        (format!("{json_type}authorization: Bearer xoxp-1\r\n"), good.to_string(), "invalid_auth"),
        (SLACK.to_owned(), "{".to_owned(), "invalid_json"),
        (SLACK.to_owned(), "[]".to_owned(), "json_not_object"),
        ("authorization: Bearer xoxb-1\r\n".to_owned(), good.to_string(), "invalid_post_type"),
        (SLACK.to_owned(), with("channel", json!("")), "channel_not_found"),
        (SLACK.to_owned(), with("text", json!("")), "no_text"),
        (SLACK.to_owned(), with("text", json!("x".repeat(40_001))), "msg_too_long"),
        (SLACK.to_owned(), with("thread_ts", json!("yesterday")), "invalid_thread_ts"),
        (SLACK.to_owned(), with("metadata", json!("nonsense")), "invalid_metadata_format"),
        (SLACK.to_owned(), with("metadata", json!({ "event_type": "a" })), "invalid_metadata_schema"),
    ] {
        let answer = sim.answer(&request("POST", "/slack/chat.postMessage", &headers, &body)).await;
        assert_eq!(answer, (200, json!({ "ok": false, "error": word })));
    }
    for (query, word) in [
        ("history", "channel_not_found"),
        ("history?channel=C1&cursor=here", "invalid_cursor"),
        ("history?channel=C1&limit=0", "invalid_limit"),
        ("history?channel=C1&oldest=now", "invalid_ts_oldest"),
        ("replies?channel=C1", "thread_not_found"),
    ] {
        assert_eq!(read(&sim, query).await, json!({ "ok": false, "error": word }), "{query}");
    }
    for (fault, status, word) in
        [("refuse", 200, "restricted_action"), ("busy", 429, "ratelimited"), ("fail", 500, "internal_error")]
    {
        sim.put_faults(&json!({ fault: 1 }).to_string()).await;
        assert_eq!(sim.answer(&slack(&key(1), "Hi")).await, (status, json!({ "ok": false, "error": word })));
    }
    assert!(sim.actions().is_empty());
    sim.stop().await;
}
