//! Every way a server can fail us: each is one connection, at most one text, a bounded wait, and the right verdict.

use tokio::{net::TcpListener, task::JoinSet};

use super::{
    server::{At, Heard, Scripted, Then},
    *,
};

/// One call, and all that the server heard of it. Only where the server says nothing does the time run out.
async fn send(at: At, then: Then) -> (Outcome, Heard) {
    let server = Scripted::start(at, then).await;
    let client = if matches!(then, Then::Stall) { &OPEN_AND_HASTY } else { &OPEN };
    let mut account = account(client, server.port);
    account.login = login(Some("user".to_owned()), &SecretString::from("password")).unwrap();
    let began = Instant::now();
    let outcome = account.send(&key(), &email("a@example.com")).await;
    assert!(began.elapsed() < PATIENT.total, "{at:?} {then:?} took {:?}", began.elapsed());
    (outcome, server.heard().await)
}

#[tokio::test]
async fn a_mail_goes_out_once_and_the_server_hears_goodbye() {
    let (outcome, heard) = send(At::Nowhere, Then::Reset).await;
    let message_id = format!("<{}@example.org> 250 taken", key());
    assert_eq!(outcome, Outcome::Delivered { message_id });
    let expected = [
        "EHLO example.org",
        "AUTH PLAIN AHVzZXIAcGFzc3dvcmQ=",
        "MAIL FROM:<news@example.org>",
        "RCPT TO:<a@example.com>",
        "DATA",
        "QUIT",
    ];
    assert_eq!((heard.commands, heard.connections), (expected.map(str::to_owned).into(), 1));
    assert_eq!(heard.texts.len(), 1);
    assert!(heard.texts[0].ends_with("\r\n\r\n.\r\nHello.\r\n"), "{}", heard.texts[0]);
}

#[tokio::test]
async fn each_fault_has_its_verdict_at_each_point() {
    let before = [At::Greeting, At::Ehlo, At::Auth, At::Mail, At::Rcpt, At::Data];
    let broken = [
        Then::Close(""),
        Then::Close("250 o"),
        Then::Close("250-ok\r\n"),
        Then::Reset,
        Then::Stall,
        Then::Reply("HTTP/1.1 200 OK\r\n"),
        Then::Reply("250-ok\r\n251 ok\r\n"),
        Then::Forever("250 "),
        Then::Forever("250-ok\r\n"),
    ];
    let mut cases: Vec<(At, Then, &str)> = Vec::new();
    for then in broken {
        cases.extend(before.map(|at| (at, then, "not_sent")));
        cases.push((At::Dot, then, "unknown"));
        // The verdict was there before.
        cases.push((At::Quit, then, "delivered"));
    }
    for at in before {
        let about_the_mail = matches!(at, At::Mail | At::Rcpt | At::Data);
        cases.push((at, Then::Reply("451 4.3.0 later\r\n"), "not_sent"));
        cases.push((at, Then::Close("421 4.3.2 later\r\n"), "not_sent"));
        cases.push((
            at,
            Then::Reply("554 5.0.0 no\r\n"),
            if about_the_mail { "rejected" } else { "not_sent" },
        ));
    }
    cases.extend([
        (At::Auth, Then::Reply("535 5.7.8 wrong password\r\n"), "not_sent"),
        (At::Mail, Then::Reply("530 5.7.0 sign in\r\n"), "not_sent"),
        (At::Rcpt, Then::Reply("550 5.1.1 unknown\r\n"), "rejected"),
        (At::Rcpt, Then::Reply("251 forwarded\r\n"), "delivered"),
        (At::Data, Then::Reply("250 ok\r\n"), "not_sent"),
        (At::Dot, Then::Reply("250\r\n"), "delivered"),
        (At::Dot, Then::Reply("250 2.6.0 accept\u{e9}\r\n"), "delivered"),
        (At::Dot, Then::Close("250 ok\r\n"), "delivered"),
        (At::Dot, Then::Reply("354 go on\r\n"), "unknown"),
        (At::Dot, Then::Reply("451 4.3.0 later\r\n"), "not_sent"),
        (At::Dot, Then::Close("421 4.3.2 later\r\n"), "not_sent"),
        (At::Dot, Then::Reply("552 5.3.4 too big\r\n"), "rejected"),
        (At::Quit, Then::Reply("451 4.3.0 later\r\n"), "delivered"),
        (At::Quit, Then::Reply("554 5.0.0 no\r\n"), "delivered"),
    ]);
    LazyLock::force(&OPEN);
    LazyLock::force(&OPEN_AND_HASTY);
    let mut sends = JoinSet::new();
    for (at, then, expected) in cases {
        sends.spawn(async move { (at, then, expected, send(at, then).await) });
    }
    while let Some(sent) = sends.join_next().await {
        let (at, then, expected, (outcome, heard)) = sent.unwrap();
        let what = format!("{at:?} {then:?}: {outcome:?}");
        assert_eq!(outcome.kind(), expected, "{what}");
        assert_eq!(heard.connections, 1, "{what}");
        let arrived = matches!(at, At::Dot | At::Quit) || expected == "delivered";
        assert_eq!(heard.texts.len(), usize::from(arrived), "{what}");
        let asked = heard.commands.iter().filter(|line| *line == "DATA").count();
        assert_eq!(asked, usize::from(arrived || at == At::Data), "{what}");
    }
}

// The text is on its way when the server goes. Only a write that failed proves that the dot never left.
#[tokio::test]
async fn a_server_that_goes_in_the_middle_of_the_text_never_had_a_mail() {
    for then in [Then::Reset, Then::Close("")] {
        let server = Scripted::start(At::Text, then).await;
        let Message::Email { to, subject, .. } = email("a@example.com") else { unreachable!() };
        // More than the buffers between us hold.
        let text = Some("0123456789\n".repeat(1_200_000));
        let outcome =
            account(&OPEN, server.port).send(&key(), &Message::Email { to, subject, text, html: None }).await;
        assert_eq!(outcome.kind(), "not_sent", "{then:?}: {outcome:?}");
        assert_eq!(server.heard().await.connections, 1);
    }
}

#[tokio::test]
async fn a_refused_connection_is_not_sent() {
    // Nobody listens there any more.
    let gone = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let outcome = account(&OPEN, gone.port()).send(&key(), &email("a@example.com")).await;
    let Outcome::NotSent { reason, .. } = outcome else { panic!("{outcome:?}") };
    assert!(reason.starts_with("could not reach 127.0.0.1: Connection refused"), "{reason}");
}

#[tokio::test]
async fn what_the_server_cannot_take_is_rejected_before_it_is_sent() {
    let features = ["250 8BITMIME\r\n", "250-SMTPUTF8\r\n250 SIZE 100\r\n"];
    for (features, to, why) in
        [(features[0], "jörg@example.com", "no SMTPUTF8"), (features[1], "a@example.com", "takes 100")]
    {
        let server = Scripted::with_features(At::Nowhere, Then::Stall, features).await;
        let outcome = account(&OPEN, server.port).send(&key(), &email(to)).await;
        let Outcome::Rejected { reason } = outcome else { panic!("{outcome:?}") };
        assert!(reason.contains(why), "{reason}");
        assert_eq!(server.heard().await.commands, ["EHLO example.org", "QUIT"]);
    }
    // What cannot be a mail is not even a connection.
    let gone = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let outcome = account(&OPEN, gone.port()).send(&key(), &email("a@example.com\r\nDATA")).await;
    assert_eq!(outcome.kind(), "rejected");
}

#[tokio::test]
async fn letters_of_every_script_are_announced() {
    let features = "250-8BITMIME\r\n250 SMTPUTF8\r\n";
    let server = Scripted::with_features(At::Nowhere, Then::Stall, features).await;
    let outcome = account(&OPEN, server.port).send(&key(), &email("jörg@bücher.example")).await;
    assert_eq!(outcome.kind(), "delivered");
    let heard = server.heard().await.commands;
    assert_eq!(heard[1], "MAIL FROM:<news@example.org> SMTPUTF8 BODY=8BITMIME");
    assert_eq!(heard[2], "RCPT TO:<jörg@xn--bcher-kva.example>");
}

#[tokio::test]
async fn login_is_used_where_plain_is_not_offered() {
    let server =
        Scripted::with_features(At::Auth, Then::Reply("334 dXNlcg==\r\n"), "250 AUTH LOGIN\r\n").await;
    let mut account = account(&OPEN, server.port);
    account.login = login(Some("user".to_owned()), &SecretString::from("password")).unwrap();
    // This server knows AUTH and not what follows, so it ends there.
    let outcome = account.send(&key(), &email("a@example.com")).await;
    assert_eq!(outcome.kind(), "not_sent");
    assert_eq!(server.heard().await.commands[1..3], ["AUTH LOGIN", "dXNlcg=="]);

    let server = Scripted::with_features(At::Nowhere, Then::Stall, "250 AUTH CRAM-MD5\r\n").await;
    let mut account = super::account(&OPEN, server.port);
    account.login = login(Some("user".to_owned()), &SecretString::from("password")).unwrap();
    let Outcome::NotSent { reason, .. } = account.send(&key(), &email("a@example.com")).await else {
        panic!()
    };
    assert!(reason.contains("no way to sign in"), "{reason}");
    assert_eq!(server.heard().await.commands, ["EHLO example.org", "QUIT"]);
}
