use postrider_model::{
    ids::{AssetId, RunId},
    key::KeyPart,
};
use uuid::Uuid;

use super::*;

fn key() -> IdempotencyKey {
    IdempotencyKey::new(RunId(Uuid::nil()), Uuid::nil(), KeyPart::Asset(AssetId(Uuid::nil())), None)
}

fn sender(from: &str) -> Sender {
    Sender { from: mailbox(from).unwrap(), reply_to: None }
}

fn email(to: &str, subject: &str, text: Option<&str>, html: Option<&str>) -> Message {
    let owned = |text: Option<&str>| text.map(str::to_owned);
    Message::Email {
        to: to.to_owned(),
        subject: subject.to_owned(),
        text: owned(text),
        html: owned(html),
        unsubscribe_url: None,
    }
}

fn composed(subject: &str, text: &str) -> Result<String, String> {
    let mail =
        compose(&sender("news@example.org"), &key(), &email("a@example.com", subject, Some(text), None))?;
    // The text that a server has after the final dot.
    Ok(String::from_utf8(mail.bytes).unwrap() + "\r\n")
}

#[test]
fn the_message_id_is_made_of_the_key_and_the_senders_domain() {
    let sender = sender("Bücher <news@bücher.example>");
    let mail = compose(&sender, &key(), &email("a@example.com", "s", Some("t"), None)).unwrap();
    assert_eq!(mail.id, format!("<{}@xn--bcher-kva.example>", key()));
    assert_eq!(mail.from, "news@xn--bcher-kva.example");
    let text = String::from_utf8(mail.bytes).unwrap();
    assert!(text.contains(&format!("Message-ID: {}\r\n", mail.id)), "{text}");
}

#[test]
fn texts_that_could_become_a_header_or_a_command_are_refused() {
    for subject in ["a\r\nBcc: b@example.com", "a\nb", "a\rb", "a\0b", "a\u{85}b", "\n"] {
        assert!(composed(subject, "text").is_err(), "{subject:?}");
    }
    for to in [
        "a@example.com\r\nRCPT TO:<b@example.com>",
        "a@example.com\nDATA",
        "a@example.com\0",
        "a@example.com> SIZE=1",
        "<a@example.com>",
        "\"a b\"@example.com",
        "\"a\r\n\"@example.com",
        "a@example.com, b@example.com",
        "a@b@example.com",
        "a",
        "@example.com",
        "a@",
        "",
        "a @example.com",
        "a@exa mple.com",
        "a@example.com\u{2028}",
    ] {
        let refused = compose(&sender("news@example.org"), &key(), &email(to, "s", Some("t"), None));
        assert!(refused.unwrap_err().starts_with("the lead's address "), "{to:?}");
    }
    for from in [
        "a@example.com\r\nBcc: b@example.com",
        "News\r\n <a@example.com>",
        "News",
        "a@b, c@d",
        "A <a@b>, C <c@d>",
        "A <a@b> C",
        "",
    ] {
        assert!(mailbox(from).is_err(), "{from:?}");
    }
    assert!(composed("s", "a\0b").unwrap_err().contains("NUL"));
    let nothing = compose(&sender("news@example.org"), &key(), &email("a@example.com", "s", None, None));
    assert!(nothing.unwrap_err().contains("neither text nor HTML"));
    let call = Message::Voice { to: "+1".to_owned(), script: "s".to_owned() };
    let refused = compose(&sender("news@example.org"), &key(), &call).unwrap_err();
    assert_eq!(refused, "smtp carries e-mail and no voice messages");
}

// Every mail has these headers, in lines that every server accepts.
#[test]
fn a_mail_is_ascii_in_short_lines_and_has_no_other_headers() {
    let long_word = "x".repeat(1000);
    let long_script = "漢字".repeat(500);
    let wide = "👩‍👩‍👧‍👦".repeat(200);
    for subject in
        ["", " ", "Hello", "=?utf-8?q?no?=", ": ;", &long_word, &long_script, &wide, "אבג مرحبا", "e\u{301}"]
    {
        for text in ["", "\r", "\n", ".", "\r\n.\r\n", "a\r.\rb\n.\nc", &long_word, &long_script, &wide] {
            let mail = composed(subject, text).unwrap();
            assert!(mail.is_ascii(), "{subject} {text}");
            assert!(mail.split("\r\n").all(|line| line.len() <= 998), "{subject} {text}");
            let bare = mail.replace("\r\n", "");
            assert!(!bare.contains(['\r', '\n']), "{subject:?} {text:?}");
            let head = mail.split("\r\n\r\n").next().unwrap();
            let fields = head.split("\r\n").filter(|line| !line.starts_with([' ', '\t']));
            let mut names: Vec<_> = fields.map(|line| line.split(':').next().unwrap()).collect();
            names.sort_unstable();
            let expected = [
                "Content-Transfer-Encoding",
                "Content-Type",
                "Date",
                "From",
                "MIME-Version",
                "Message-ID",
                "Subject",
                "To",
            ];
            assert_eq!(names, expected, "{subject:?} {text:?}");
        }
    }
}

#[test]
fn addresses_of_every_script_are_taken_and_domains_are_written_in_ascii() {
    for (input, written) in [
        ("a@example.com", "a@example.com"),
        ("A.B+c@Example.COM", "A.B+c@Example.COM"),
        ("a@bücher.example", "a@xn--bcher-kva.example"),
        ("jörg@bücher.example", "jörg@xn--bcher-kva.example"),
        ("квіточка@пошта.укр", "квіточка@xn--80a1acn3a.xn--j1amh"),
        ("用户@例子.测试", "用户@xn--fsqu00a.xn--0zwm56d"),
    ] {
        assert_eq!(address(input).map(|address| address.to_string()).as_deref(), Ok(written), "{input}");
    }
    let mail =
        |from: &str, to: &str| compose(&sender(from), &key(), &email(to, "ü", Some("ü"), None)).unwrap();
    assert!(!mail("ü <a@bücher.example>", "a@bücher.example").needs_utf8());
    assert!(mail("jörg@example.org", "a@example.com").needs_utf8());
    assert!(mail("a@example.org", "jörg@example.com").needs_utf8());
}

#[test]
fn a_sender_has_a_name_or_not() {
    for (input, name, email) in [
        ("a@example.org", None, "a@example.org"),
        ("<a@example.org>", None, "a@example.org"),
        ("News <a@example.org> ", Some("News"), "a@example.org"),
        ("Bücher & Söhne, GmbH <a@bücher.example>", Some("Bücher & Söhne, GmbH"), "a@xn--bcher-kva.example"),
        (r#""B\"u\\, <x>" <a@example.org>"#, Some(r#"B"u\, <x>"#), "a@example.org"),
    ] {
        let parsed = mailbox(input).unwrap();
        assert_eq!((parsed.name.as_deref(), parsed.email.as_ref()), (name, email), "{input}");
    }
}

#[test]
fn a_mail_offers_to_unsubscribe_with_one_click() {
    let linked = |url: &str| {
        let message = Message::Email {
            to: "ann@example.com".to_owned(),
            subject: "Hello".to_owned(),
            text: Some("Hello.".to_owned()),
            html: None,
            unsubscribe_url: Some(url.to_owned()),
        };
        let sender = Sender { from: mailbox("news@example.com").unwrap(), reply_to: None };
        compose(&sender, &IdempotencyKey::from_row("0123456789abcdef".repeat(4)), &message)
    };
    let url = format!("https://example.com/api/v2/tenants/t/unsubscribe/{}", "a".repeat(64));
    let mail = String::from_utf8(linked(&url).unwrap().bytes).unwrap();
    let head = mail.split("\r\n\r\n").next().unwrap();
    assert!(head.contains(&format!("\r\nList-Unsubscribe: <{url}>\r\n")), "{head}");
    assert!(head.contains("\r\nList-Unsubscribe-Post: List-Unsubscribe=One-Click\r\n"), "{head}");
    for bad in
        ["https://example.com/>\r\nBcc: b@example.com", "https://example.com/ a", "https://example.com/,<b>"]
    {
        assert!(linked(bad).is_err(), "{bad}");
    }
}
