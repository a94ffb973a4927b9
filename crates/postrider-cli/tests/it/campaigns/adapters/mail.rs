//! Mails in every script, as somebody else's server and parser read them.

use postrider_model::Outcome;
use serde_json::json;

use super::{
    server::{MailServer, python},
    *,
};
use crate::world::run;

/// Words that must arrive as they are, as a text and as a subject.
fn words() -> Vec<String> {
    let long = |word: &str, chars: usize| word.chars().cycle().take(chars).collect::<String>();
    let mut words: Vec<String> = [
        "Hello",
        "Grüße aus Köln: Öl, Äpfel, Spaß",
        "Zażółć gęślą jaźń",
        "Съешь же ещё этих мягких французских булок",
        "مرحبا بالعالم",
        "שלום עולם",
        "你好，世界",
        "こんにちは世界",
        "안녕하세요 세계",
        "สวัสดีชาวโลก",
        "नमस्ते दुनिया",
        "👋🏽 👩‍👩‍👧‍👦 🏳️‍🌈 🇪🇺",
        "e\u{301} o\u{308}\u{304} Z\u{351}\u{36b}a\u{363}lgo",
        "\u{202e}right to left\u{202c}",
        "=?utf-8?q?not_an_encoded_word?=",
        "a =?utf-8?B?YQ==?= =?utf-8?B?Yg==?= b",
        " spaces  around and   between ",
        "\"quotes\" <angles> (brackets), commas; a:colon\\",
        "100 % = 50 % + 50 %",
        "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 ﬁ ﷽",
        "",
    ]
    .map(str::to_owned)
    .into();
    words.extend([
        long("x", 1000),
        long("many words ", 1000),
        long("длинный ", 1000),
        long("漢字", 1000),
        long("🎉", 1000),
    ]);
    words
}

/// Texts that must arrive as they are and can be no subject.
fn texts() -> Vec<String> {
    let mut texts = [
        ".",
        "..\n.\n.hidden\n...\n",
        "\n\n.\n\n",
        "a line\r\n.\r\nafter a dot\r\nQUIT\r\n",
        "bare\rreturns\r.\rand\nline feeds\n.\n",
        "trailing spaces   \n\ttabs\t\n \n",
        "From the beginning\nFrom: nobody\nBcc: nobody@example.com\n\nSubject: none",
        "form\u{c}feed, \u{1b}[31mescape, \u{7f}",
        "\u{feff}mark, \u{2028} and \u{2029}",
        "=\n=3D\n=20",
    ]
    .map(str::to_owned)
    .to_vec();
    texts.extend([
        "x".repeat(100_000),
        "дл".repeat(50_000),
        "漢字かな交じり文".repeat(10_000),
        format!("{}\n.{}\n", "a".repeat(997), "b".repeat(998)),
        "line\n".repeat(20_000),
    ]);
    texts
}

#[tokio::test]
async fn every_mail_arrives_as_it_was_rendered() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let server = MailServer::start("open")?;
    let settings = json!({
        "host": "127.0.0.1", "port": server.port, "security": "none",
        "from": "Bücher & Söhne, GmbH <news@bücher.example>", "reply_to": "\"日本語 (help)\" <help@example.org>",
    });
    let provider = open("smtp", PATIENT, &settings, "")?;
    let subjects = words();
    let all: Vec<String> = subjects.iter().cloned().chain(texts()).collect();
    let html = |text: &str| format!("<p>{text}</p>");
    let mails: Vec<(String, Option<String>, Option<String>)> = all
        .iter()
        .enumerate()
        .flat_map(|(at, text)| {
            let subject = &subjects[at % subjects.len()];
            [
                (subject.clone(), Some(text.clone()), None),
                (subject.clone(), None, Some(html(text))),
                (subject.clone(), Some(text.clone()), Some(html(text))),
            ]
        })
        .collect();
    let began = jiff::Timestamp::now().as_second();
    let reservations = reservations(&stage, mails.len()).await?;
    for (reservation, (subject, text, html)) in reservations.iter().zip(&mails) {
        let (to, key) = ("a@example.com".to_owned(), reservation.key().as_str());
        let message = Message::Email {
            to,
            subject: subject.clone(),
            text: text.clone(),
            html: html.clone(),
            unsubscribe_url: None,
        };
        let outcome = provider.call(reservation, &message).await;

        let what = format!("{subject:.60} {text:.60?} {html:.60?}");
        let id = format!("<{key}@xn--bcher-kva.example>");
        let message_id = format!("{id} 250 2.0.0 taken as 4711");
        assert_eq!(outcome, Outcome::Delivered { message_id }, "{what}");
        let received = server.received(key)?;
        assert_eq!(received["message_id"], id, "{what}");
        assert_eq!(received["subject"], **subject, "{what}");
        assert_eq!(received["defects"], json!([]), "{what}");
        assert_eq!(arrived(&received["text"], text.as_deref()), text.as_deref().map(normal), "{what}");
        assert_eq!(arrived(&received["html"], html.as_deref()), html.as_deref().map(normal), "{what}");
        let parts = match (text, html) {
            (Some(_), Some(_)) => json!(["multipart/alternative", "text/plain", "text/html"]),
            (Some(_), None) => json!(["text/plain"]),
            _ => json!(["text/html"]),
        };
        assert_eq!(received["parts"], parts, "{what}");
        assert_eq!(
            received["from"],
            json!([["Bücher & Söhne, GmbH", "news@xn--bcher-kva.example"]]),
            "{what}"
        );
        assert_eq!(received["reply_to"], json!([["日本語 (help)", "help@example.org"]]), "{what}");
        assert_eq!(received["to"], json!([["", "a@example.com"]]), "{what}");
        assert_eq!(received["mail_from"], "news@xn--bcher-kva.example", "{what}");
        assert_eq!(received["rcpt_tos"], json!(["a@example.com"]), "{what}");
        assert!(received["longest"].as_u64().unwrap() <= 998, "{what}");
        assert!((received["date"].as_f64().unwrap() - began as f64).abs() < 600.0, "{what}");
        let mut headers =
            vec!["Date", "From", "MIME-Version", "Message-ID", "Reply-To", "Subject", "To", "Content-Type"];
        headers.extend((text.is_none() || html.is_none()).then_some("Content-Transfer-Encoding"));
        headers.sort_unstable();
        assert_eq!(received["headers"], json!(headers), "{what}");
    }
    assert_eq!(server.count(), mails.len());
    Ok(())
}

/// A text as it is on every machine: its lines end in line feeds.
fn normal(text: &str) -> String {
    text.replace("\r\n", "\n").replace('\r', "\n")
}

/// The text that arrived. The last line of a mail always has an end.
fn arrived(received: &Value, sent: Option<&str>) -> Option<String> {
    let text = normal(received.as_str()?);
    let ended = sent.is_some_and(|sent| normal(sent).ends_with('\n'));
    Some(if ended { text } else { text.strip_suffix('\n').map(str::to_owned).unwrap_or(text) })
}

#[tokio::test]
async fn addresses_of_every_script_are_reached() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let server = MailServer::start("open")?;
    let settings =
        json!({ "host": "127.0.0.1", "port": server.port, "security": "none", "from": "news@example.org" });
    let provider = open("smtp", PATIENT, &settings, "")?;
    let addresses = [
        ("first.last+tag@example.com", "first.last+tag@example.com", false),
        ("a@bücher.example", "a@xn--bcher-kva.example", false),
        ("jörg@bücher.example", "jörg@xn--bcher-kva.example", true),
        ("用户@例子.测试", "用户@xn--fsqu00a.xn--0zwm56d", true),
    ];
    let reservations = reservations(&stage, addresses.len()).await?;
    for ((given, reached, utf8), reservation) in addresses.iter().zip(&reservations) {
        let outcome = provider.call(reservation, &email(given)).await;
        assert_eq!(outcome.kind(), "delivered", "{given}: {outcome:?}");
        let received = server.received(reservation.key().as_str())?;
        assert_eq!(received["rcpt_tos"], json!([reached]));
        assert_eq!(received["options"].as_array().unwrap().contains(&json!("SMTPUTF8")), *utf8, "{given}");
    }
    Ok(())
}

#[tokio::test]
async fn a_user_signs_in_in_both_ways() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    for way in ["plain", "login"] {
        let server = MailServer::start(way)?;
        let settings = json!({
            "host": "127.0.0.1", "port": server.port, "security": "none", "user": "Jörg", "from": "news@example.org",
        });
        let reservations = reservations(&stage, 2).await?;
        let refused =
            open("smtp", PATIENT, &settings, "wrong")?.call(&reservations[0], &email("a@example.com")).await;
        let Outcome::NotSent { reason, .. } = &refused else { anyhow::bail!("{way}: {refused:?}") };
        assert!(reason.starts_with("127.0.0.1: 535"), "{way}: {reason}");

        let outcome = open("smtp", PATIENT, &settings, "pass wörd")?
            .call(&reservations[1], &email("a@example.com"))
            .await;
        assert_eq!(outcome.kind(), "delivered", "{way}: {outcome:?}");
        assert_eq!(server.received(reservations[1].key().as_str())?["who"], true);
        assert_eq!(server.count(), 1);
    }
    Ok(())
}

// The other way around: the mail client of Python's standard library against our sim.
#[tokio::test]
async fn the_sim_understands_an_independent_client() -> anyhow::Result<()> {
    let client = r#"
import email.message, smtplib, sys
for way in ["CRAM-MD5 LOGIN", "PLAIN"]:
    mail = email.message.EmailMessage()
    mail["From"], mail["To"], mail["Subject"] = "news@example.org", "jörg@example.com", "Grüße"
    mail["Message-ID"] = "<1@example.org>"
    mail.set_content("Hello.\n.\n..\nGrüße.\n")
    with smtplib.SMTP("127.0.0.1", int(sys.argv[1])) as server:
        server.ehlo()
        server.esmtp_features["auth"] = way
        server.login("user", "pass")
        assert server.send_message(mail) == {}
"#;
    let sim = Sim::start(&["--smtp-user", "user", "--smtp-password", "pass"])?;
    let mut command = std::process::Command::new(python()?);
    let ended = run(command.args(["-c", client, &sim.smtp_port.to_string()]))?;
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    let receipts = sim.receipts()?;
    assert_eq!(receipts.len(), 2);
    for receipt in receipts {
        assert_eq!([&receipt["to"], &receipt["message_id"]], ["jörg@example.com", "<1@example.org>"]);
        assert_eq!([&receipt["acted"], &receipt["answered"]], [&json!(true), &json!(250)]);
    }
    Ok(())
}
