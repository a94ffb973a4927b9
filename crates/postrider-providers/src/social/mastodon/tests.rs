use postrider_model::ids::ProviderAccountId;
use secrecy::SecretString;
use serde_json::{Value, json};

use super::*;
use crate::http::tests::{
    NOW, ScriptedServer, answer, assert_request, body, client, email, key, refused, social, with_header,
};

fn open(settings: &Value) -> Mastodon {
    let secret = SecretString::from("hunter2");
    Mastodon::new(&client(true), &Account { id: ProviderAccountId::new(), settings, secret: &secret })
        .ok()
        .unwrap()
}

// As Mastodon documents it: `status` and `visibility`, and the header `Idempotency-Key`.
#[test]
fn a_post_is_what_mastodon_documents() {
    let mastodon = open(&json!({ "url": "https://social.example/", "visibility": "unlisted" }));
    let request = mastodon.request(&key(), &social()).unwrap();
    assert_request(
        &request,
        "POST",
        "https://social.example/api/v1/statuses",
        &[
            ("authorization", "Bearer hunter2"),
            ("content-type", "application/json"),
            ("idempotency-key", key().as_str()),
        ],
    );
    assert_eq!(body(&request), r#"{"status":"Hello.","visibility":"unlisted"}"#);
    assert_eq!(
        body(&mastodon.request(&key(), &social()).unwrap()),
        body(&request),
        "a repeat has the same bytes"
    );
    let open_to_all = open(&json!({ "url": "https://social.example" }));
    assert!(body(&open_to_all.request(&key(), &social()).unwrap()).contains(r#""visibility":"public""#));
    assert_eq!(mastodon.request(&key(), &email()).err().unwrap().kind(), "rejected");
}

#[test]
fn rate_limits_return_the_time_until_the_reset() {
    let busy = |answer: Answer| match judge(&answer, NOW) {
        Outcome::NotSent { retry_after, .. } => retry_after,
        other => panic!("{other:?}"),
    };
    let reset = with_header(answer(429, "{}"), "x-ratelimit-reset", "2026-02-02T02:41:40.123456Z");
    assert_eq!(busy(reset).map(|after| after.as_secs()), Some(100));
    let both = with_header(answer(429, "{}"), "x-ratelimit-reset", "2026-02-02T02:41:40Z");
    assert_eq!(busy(with_header(both, "retry-after", "7")), Some(Duration::from_secs(7)));
    assert_eq!(busy(answer(429, "{}")), Some(Duration::from_secs(30)), "the adapter supplies the wait");
    let hours = with_header(answer(429, "{}"), "x-ratelimit-reset", "2026-02-02T05:40:00Z");
    assert_eq!(busy(hours), Some(Duration::from_secs(3 * 60 * 60)));
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(NOW.as_second() + second).unwrap()
}

/// Reserved at 0, with a quiet time until 600.
fn made() -> Period {
    Period { from: NOW, until: at(600) }
}

fn post(second: i64, content: &str) -> Post {
    Post { id: format!("at-{second}"), created_at: at(second), content: content.to_owned() }
}

#[test]
fn a_post_is_recognised_by_its_text_and_its_time() {
    let (same, other) = ("<p>Hello.</p>", "<p>Goodbye.</p>");
    let conclude = |posts: &[(i64, &str)], is_complete| {
        let posts: Vec<Post> = posts.iter().map(|(second, content)| post(*second, content)).collect();
        match conclude(&posts, is_complete, made(), "Hello.") {
            Finding::Done { message_id, .. } => message_id,
            Finding::Absent { .. } => "absent".to_owned(),
            Finding::Unclear { .. } | Finding::Later { .. } | Finding::CannotTell { .. } => {
                "unclear".to_owned()
            }
        }
    };
    for (posts, is_complete, expected) in [
        (&[(5, same)][..], false, "at-5"),
        (&[(9, other), (0, same), (-400, other)], true, "at-0"),
        (&[(600, same)], true, "at-600"),
        // Before the reservation by more than the skew: an older post with the same text.
        (&[(5, same), (-100, same)], true, "at-5"),
        (&[(-100, same)], true, "absent"),
        (&[], true, "absent"),
        (&[(5, other)], true, "absent"),
        // Not read to the end.
        (&[(5, other)], false, "unclear"),
        // It may be the item's post or another.
        (&[(-30, same)], true, "unclear"),
        (&[(601, same)], true, "unclear"),
        (&[(7, same), (5, same)], true, "unclear"),
    ] {
        assert_eq!(conclude(posts, is_complete), expected, "{posts:?} {is_complete}");
    }
}

#[test]
fn a_text_that_a_server_changes_proves_no_absence() {
    let text = "Thanks @ada@remote.example!";
    let shown = r#"<p>Thanks <span class="h-card"><a href="https://remote.example/@ada">@<span>ada</span></a></span>!</p>"#;
    let found = conclude(&[post(5, shown)], true, made(), text);
    assert!(matches!(found, Finding::Unclear { .. }), "{found:?}");
}

#[test]
fn html_is_compared_as_plain_text() {
    let written = "Fish & chips <now>:\n\nhttps://www.example.com/a/very/long/path?x=1&y=\"2\" it's #lunch";
    let shown = concat!(
        "<p>Fish &amp; chips &lt;now&gt;:</p><p><a href=\"https://www.example.com/a/very/long/path?x=1&amp;y=%222%22\">",
        "<span class=\"invisible\">https://www.</span><span class=\"ellipsis\">example.com/a/very/long/pa</span>",
        "<span class=\"invisible\">th?x=1&amp;y=&quot;2&quot;</span></a> it&#39;s<br /><a href=\"…\">#<span>lunch</span></a></p>"
    );
    assert_eq!(letters(&plain(shown)), letters(written));
    assert_eq!(plain("&amp;lt;"), "&lt;");
    assert_eq!(plain("a<b"), "a");
}

#[tokio::test]
async fn posts_are_read_back_to_before_the_reservation() {
    let me = || (200, json!({ "id": "7", "acct": "news" }));
    let page = |posts: &[(&str, i64, &str)]| {
        let posts: Vec<Value> = posts
            .iter()
            .map(|(id, second, content)| json!({ "id": id, "created_at": at(*second), "content": content, "account": {} }))
            .collect();
        (200, json!(posts))
    };
    let list = "GET /api/v1/accounts/7/statuses?exclude_reblogs=true&limit=10";
    let ask = async |answers| {
        let server = ScriptedServer::start(answers);
        let mastodon = open(&json!({ "url": server.url }));
        let found = mastodon.search(made(), "Hello.").await;
        (found, server.lines())
    };

    let pages = vec![
        me(),
        page(&[("9", 50, "<p>Else</p>"), ("8", 40, "x")]),
        page(&[("5", 3, "<p>Hello.</p>"), ("4", -900, "")]),
    ];
    let (found, lines) = ask(pages).await;
    let Ok(Finding::Done { message_id, .. }) = found else { panic!("{found:?}") };
    assert_eq!(message_id, "5");
    assert_eq!(lines, ["GET /api/v1/accounts/verify_credentials", list, &format!("{list}&max_id=8")]);

    let (found, lines) = ask(vec![me(), page(&[("9", 50, "x")]), page(&[])]).await;
    assert!(matches!(found, Ok(Finding::Absent { .. })), "{found:?}");
    assert_eq!(lines.len(), 3);

    let endless = std::iter::once(me()).chain((0..20).map(|n| page(&[("1", 100 - n, "x")]))).collect();
    let (found, lines) = ask(endless).await;
    assert!(matches!(found, Ok(Finding::Unclear { .. })), "{found:?}");
    assert_eq!(lines.len(), 21, "a list without end is left");

    // After a page that is too long the adapter requests smaller pages.
    let long = "x".repeat(70_000);
    let (found, lines) = ask(vec![me(), page(&[("9", 50, &long)]), page(&[("9", -100, "x")])]).await;
    assert!(matches!(found, Ok(Finding::Absent { .. })), "{found:?}");
    assert!(lines[2].ends_with("limit=5"), "{lines:?}");

    for answers in [
        vec![(401, json!({ "error": "The access token is invalid" }))],
        vec![(200, json!({}))],
        vec![me(), (500, json!([]))],
        vec![me(), (200, json!({ "error": "later" }))],
    ] {
        let (found, _) = ask(answers).await;
        assert!(matches!(found, Err(Finding::Unclear { .. })), "{found:?}");
    }
}

#[test]
fn an_account_has_a_server_and_a_token() {
    refused(
        Mastodon::new,
        &[
            (false, json!({}), "hunter2", "missing field `url`; the settings of `mastodon` are like {"),
            (
                false,
                json!({ "url": "https://s.example", "visibilty": "x" }),
                "hunter2",
                "unknown field `visibilty`",
            ),
            (
                false,
                json!({ "url": "https://s.example", "visibility": "direct" }),
                "hunter2",
                "unknown variant `direct`",
            ),
            (
                false,
                json!({ "url": "https://s.example" }),
                "",
                "the secret is missing: it is an access token",
            ),
            (false, json!({ "url": "http://s.example" }), "hunter2", "plain http"),
            (
                false,
                json!({ "url": "https://169.254.169.254" }),
                "hunter2",
                "only public addresses are called",
            ),
        ],
    );
}

#[test]
fn a_server_without_the_address_refuses_the_account() {
    assert_eq!(judge(&answer(404, r#"{"error": "Not Found"}"#), NOW).kind(), "account_refused");
    assert_eq!(judge(&answer(401, "{}"), NOW).kind(), "account_refused");
}

#[test]
fn versions_that_answer_a_known_key_with_500_are_recognised() {
    for (version, fails) in [
        ("4.5.9", false),
        ("4.6.0", true),
        ("4.6.3+glitch", true),
        ("4.7.0", true),
        ("4.7.0-rc.1", true),
        ("4.7.1", false),
        ("4.8.0", false),
        ("5.0.0", false),
        ("3.6.0", false),
        ("Pleroma 2.7.0 (compatible; 4.6)", false),
        ("", false),
    ] {
        assert_eq!(fails_on_known_keys(version), fails, "{version}");
    }
}

// As Mastodon 4.6.0 to 4.7.0 behaves: the post is there, and the repeat of its key ends in 500.
#[tokio::test]
async fn a_repeat_that_ends_in_500_is_settled_by_the_only_post_with_the_text() {
    let posts = |seconds: &[i64]| {
        let post = |second: &i64| json!({ "id": format!("at-{second}"), "created_at": at(*second), "content": "<p>Hello.</p>" });
        (
            200,
            json!(
                seconds
                    .iter()
                    .map(post)
                    .chain([json!({ "id": "0", "created_at": at(-900), "content": "x" })])
                    .collect::<Vec<_>>()
            ),
        )
    };
    let repeat = async |version: &str, seconds: &[i64]| {
        let server = ScriptedServer::start(vec![
            (500, json!({ "error": "500" })),
            (200, json!({ "version": version })),
            (200, json!({ "id": "7" })),
            posts(seconds),
        ]);
        let mastodon = open(&json!({ "url": server.url }));
        let found = mastodon.repeat_once(&key(), &social(), made()).await;
        (found, server.lines())
    };
    let (found, lines) = repeat("4.6.2", &[5]).await;
    assert!(matches!(&found, Finding::Done { message_id, .. } if message_id == "at-5"), "{found:?}");
    assert_eq!(lines[..2], ["POST /api/v1/statuses", "GET /api/v1/instance"]);
    for (version, seconds) in [("4.5.0", &[5][..]), ("4.6.2", &[]), ("4.6.2", &[5, 7])] {
        let (found, _) = repeat(version, seconds).await;
        assert!(matches!(found, Finding::Unclear { .. }), "{version} {seconds:?}: {found:?}");
    }
}
