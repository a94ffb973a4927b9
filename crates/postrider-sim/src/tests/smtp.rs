//! The face of a mail server, with a client that writes line by line.

use std::io::ErrorKind;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};

use super::*;

const TEXT: &str = "Message-ID:\r\n <k1@example.org>\r\nSubject: Hello\r\n\r\nHello.\r\n..\r\n..hidden\r\n";

struct Client(BufReader<TcpStream>);

impl Client {
    /// Connects and sends EHLO.
    async fn new(sim: &RunningSim) -> Self {
        let mut client = Self(BufReader::new(TcpStream::connect(sim.smtp_address).await.unwrap()));
        assert!(client.reply().await.unwrap().starts_with("220 "));
        assert!(client.send("EHLO client.example").await.unwrap().starts_with("250 "));
        client
    }

    async fn send(&mut self, line: &str) -> std::io::Result<String> {
        self.0.write_all(format!("{line}\r\n").as_bytes()).await?;
        self.reply().await
    }

    /// The last line of the next reply, possibly incomplete.
    async fn reply(&mut self) -> std::io::Result<String> {
        let mut line = String::new();
        loop {
            line.clear();
            self.0.read_line(&mut line).await?;
            if line.as_bytes().get(3) != Some(&b'-') {
                return Ok(line);
            }
        }
    }

    async fn code_of(&mut self, line: &str) -> u16 {
        self.send(line).await.unwrap()[..3].parse().unwrap()
    }

    /// Sends a mail. Returns the reply to its final dot, or to the first refused command.
    async fn send_mail(&mut self, to: &str) -> std::io::Result<String> {
        for line in ["MAIL FROM:<news@example.org> BODY=8BITMIME", &format!("RCPT TO:<{to}>"), "DATA"] {
            let reply = self.send(line).await?;
            if !reply.starts_with("250 ") && !reply.starts_with("354 ") {
                return Ok(reply);
            }
        }
        self.send(&format!("{TEXT}.")).await
    }
}

#[tokio::test]
async fn a_mail_is_on_disk_before_it_is_acknowledged() {
    let sim = RunningSim::with(&[]).await;
    let mut client = Client::new(&sim).await;
    assert!(client.send_mail("a@example.com").await.unwrap().starts_with("250 "));

    let receipt = on_disk(&sim.receipts).remove(0);
    let received = TEXT.replace("\r\n..", "\r\n.");
    assert_eq!(receipt["path"], "smtp");
    assert_eq!(receipt["channel"], "email");
    assert_eq!(receipt["from"], "news@example.org");
    assert_eq!(receipt["to"], "a@example.com");
    assert_eq!(receipt["message_id"], "<k1@example.org>");
    assert_eq!(receipt["bytes"], received.len());
    assert_eq!(receipt["body_sha256"], hex::encode(<sha2::Sha256 as sha2::Digest>::digest(&received)));
    assert_eq!(only_receipt(&sim), (Value::Null, json!(true), json!(250)));

    // A second mail in the same session.
    assert!(client.send_mail("a@example.com").await.unwrap().starts_with("250 "));
    let counts = sim.counts("").await;
    assert_eq!([&counts["acknowledged"], &counts["distinct_keys"], &counts["duplicate_keys"]], [2, 1, 1]);
    assert_eq!(client.code_of("QUIT").await, 221);
    assert_eq!(client.reply().await.unwrap(), "");
    sim.stop().await;
}

#[tokio::test]
async fn unknown_commands_and_wrong_orders_are_refused_and_the_session_continues() {
    let sim = RunningSim::with(&[]).await;
    let mut stream = Client(BufReader::new(TcpStream::connect(sim.smtp_address).await.unwrap()));
    stream.reply().await.unwrap();
    for (line, code) in [
        ("MAIL FROM:<a@example.com>", 503),
        ("EHLO", 501),
        ("ehlo client.example", 250),
        ("RCPT TO:<a@example.com>", 503),
        ("DATA", 503),
        ("MAIL FROM:a@example.com", 501),
        ("MAIL FROM:<jörg@example.org>", 553),
        ("mail from:<a@example.com> size=100", 250),
        ("RCPT TO:<>", 501),
        ("RCPT TO:<jörg@example.org>", 553),
        ("DATA", 503),
        ("MAIL FROM:<jörg@example.org> SMTPUTF8", 250),
        ("RCPT TO:<jörg@example.org>", 250),
        ("RSET", 250),
        ("DATA", 503),
        ("FLY", 500),
        ("NOOP", 250),
        (&"x".repeat(5000), 500),
        ("HELO client.example", 250),
    ] {
        assert_eq!(stream.code_of(line).await, code, "{}", &line[..line.len().min(50)]);
    }
    assert_eq!(sim.counts("").await["received"], 0);
    sim.stop().await;
}

#[tokio::test]
async fn a_user_must_sign_in_when_there_is_one() {
    let sim = RunningSim::with(&["--smtp-user", "user", "--smtp-password", "pass"]).await;
    let mut client = Client::new(&sim).await;
    for (line, code) in [
        ("MAIL FROM:<a@example.com>", 530),
        ("AUTH CRAM-MD5", 504),
        ("AUTH PLAIN !", 501),
        ("AUTH PLAIN AHVzZXIAd3Jvbmc=", 535), // user, wrong
        ("AUTH LOGIN", 334),
        ("dXNlcg==", 334),
        ("cGFzcw==", 235), // user, pass
        ("MAIL FROM:<a@example.com>", 250),
    ] {
        assert_eq!(client.code_of(line).await, code, "{line}");
    }
    let mut client = Client::new(&sim).await;
    assert_eq!(client.code_of("AUTH PLAIN").await, 334);
    assert_eq!(client.code_of("AHVzZXIAcGFzcw==").await, 235);
    // Some clients send their name with the command.
    let mut client = Client::new(&sim).await;
    assert_eq!(client.code_of("AUTH LOGIN dXNlcg==").await, 334);
    assert_eq!(client.code_of("cGFzcw==").await, 235);
    sim.stop().await;

    let sim = RunningSim::with(&[]).await;
    assert_eq!(Client::new(&sim).await.code_of("AUTH PLAIN AHVzZXIAd3Jvbmc=").await, 235);
    sim.stop().await;
}

#[tokio::test]
async fn mails_that_are_too_large_are_read_to_their_dot_and_refused() {
    let sim = RunningSim::with(&[]).await;
    let mut client = Client::new(&sim).await;
    for text in [format!("{}\r\n.", "x".repeat(999)), format!("{}.", "0123456789\r\n".repeat(100_000))] {
        for line in ["MAIL FROM:<a@example.com>", "RCPT TO:<b@example.com>", "DATA"] {
            assert!(client.code_of(line).await < 400);
        }
        assert_eq!(client.code_of(&text).await, 554);
    }
    assert!(client.send_mail("a@example.com").await.unwrap().starts_with("250 "));
    let counts = sim.counts("").await;
    assert_eq!([&counts["received"], &counts["accepted"]], [3, 1]);
    sim.stop().await;
}

#[tokio::test]
async fn an_incomplete_mail_is_not_received() {
    let sim = RunningSim::with(&[]).await;
    let mut client = Client::new(&sim).await;
    for line in ["MAIL FROM:<a@example.com>", "RCPT TO:<b@example.com>", "DATA"] {
        client.code_of(line).await;
    }
    // A dot between bare line feeds does not end a mail.
    client.0.write_all(b"Subject: Hello\r\n\r\nHello.\n.\nHello.\r\n.\n").await.unwrap();
    client.0.shutdown().await.unwrap();
    assert_eq!(client.reply().await.unwrap(), "");
    assert_eq!(sim.counts("").await["received"], 0);
    sim.stop().await;
}

#[tokio::test]
async fn each_fault_behaves_as_documented() {
    for (fault, acted, answered) in [
        ("latency", true, Some(250)),
        ("fail", false, Some(451)),
        ("fail_after", true, None),
        ("refuse", false, Some(550)),
        ("busy", false, Some(451)),
        ("reset", true, None),
        ("reset_before", false, None),
        ("half", true, None),
        ("key_late", true, None),
        ("lookup_early", true, None),
    ] {
        let sim = RunningSim::with(&["--fault", &format!("{fault}=1"), "--latency-ms", "20"]).await;
        let reply = Client::new(&sim).await.send_mail("a@example.com").await;
        match (answered, fault) {
            (Some(code), _) => assert!(reply.unwrap().starts_with(&format!("{code} ")), "{fault}"),
            (None, "half") => assert_eq!(reply.unwrap(), "250 2.0.0 accep"),
            (None, "fail_after") => assert_eq!(reply.unwrap(), ""),
            (None, _) => assert_eq!(reply.unwrap_err().kind(), ErrorKind::ConnectionReset, "{fault}"),
        }
        assert_eq!(only_receipt(&sim), (json!(fault), json!(acted), json!(answered)));
        sim.stop().await;
    }
}

#[tokio::test]
async fn a_delayed_mail_is_accepted_later() {
    let sim = RunningSim::with(&["--fault", "act_late=1", "--act-late-ms", "20"]).await;
    let reply = Client::new(&sim).await.send_mail("a@example.com").await;
    assert_eq!(reply.unwrap_err().kind(), ErrorKind::ConnectionReset);
    sim.counts("?accepted=1").await;
    let receipts = on_disk(&sim.receipts);
    assert_eq!([&receipts[0]["fault"], &receipts[0]["acted"]], [&json!("act_late"), &json!(false)]);
    assert_eq!([&receipts[1]["fault"], &receipts[1]["acted"]], [&Value::Null, &json!(true)]);
    assert_eq!(receipts[1]["delayed_ms"], 20);
    assert_eq!(receipts[0]["message_id"], receipts[1]["message_id"]);
    sim.stop().await;
}

#[tokio::test]
async fn stall_accepts_a_mail_without_a_reply() {
    let sim = RunningSim::with(&["--fault", "stall=1"]).await;
    let mut client = Client::new(&sim).await;
    let text = format!("{TEXT}.\r\n");
    for line in ["MAIL FROM:<a@example.com>", "RCPT TO:<b@example.com>", "DATA"] {
        client.code_of(line).await;
    }
    client.0.write_all(text.as_bytes()).await.unwrap();
    assert_eq!(sim.counts("?accepted=1").await["by_fault"], json!({ "stall": 1 }));
    let silence = client.0.get_ref().try_read(&mut [0; 1]).unwrap_err();
    assert_eq!(silence.kind(), ErrorKind::WouldBlock);
    // The stall ends when its client disconnects.
    client.0.shutdown().await.unwrap();
    assert_eq!(client.reply().await.unwrap(), "");
    sim.stop().await;
}

#[tokio::test]
async fn rules_match_by_recipient_and_by_message_id() {
    let rules = [
        r#"{"to": "a@example.com", "fault": "refuse", "times": 1}"#,
        r#"{"key": "<k1@example.org>", "fault": "busy", "times": 1}"#,
    ];
    let sim = RunningSim::with(&["--rule", rules[0], "--rule", rules[1]]).await;
    let mut client = Client::new(&sim).await;
    for (to, code) in [("b@example.com", "451"), ("a@example.com", "550"), ("a@example.com", "250")] {
        let reply = client.send_mail(to).await.unwrap();
        assert!(reply.starts_with(code), "{to}: {reply}");
        client.code_of("RSET").await;
    }
    let sizes: Vec<_> = on_disk(&sim.receipts).iter().map(|receipt| receipt.get("bytes").is_some()).collect();
    assert_eq!(sizes, [true, false, true]); // the refused recipient had no mail yet
    sim.stop().await;
}
