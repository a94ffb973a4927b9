//! Faults of a server: in each case there is one connection, at most one text, a bounded wait, and the right outcome.

use tokio::{net::TcpListener, task::JoinSet};

use super::{
    server::{Fault, ScriptedServer, Step, Transcript},
    *,
};

/// One call, and all that the server received. The time runs out only if the server stalls.
async fn send(at: Step, fault: Fault) -> (Outcome, Transcript) {
    let server = ScriptedServer::start(at, fault).await;
    let client = if matches!(fault, Fault::Stall) { &OPEN_AND_HASTY } else { &OPEN };
    let mut account = account(client, server.port);
    account.login = login(Some("user".to_owned()), &SecretString::from("password")).unwrap();
    let began = Instant::now();
    let outcome = account.send(&key(), &email("a@example.com")).await;
    assert!(began.elapsed() < PATIENT.total, "{at:?} {fault:?} took {:?}", began.elapsed());
    (outcome, server.transcript().await)
}

#[tokio::test]
async fn a_mail_is_sent_once_and_the_session_ends_with_quit() {
    let (outcome, transcript) = send(Step::Nowhere, Fault::Reset).await;
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
    assert_eq!((transcript.commands, transcript.connections), (expected.map(str::to_owned).into(), 1));
    assert_eq!(transcript.texts.len(), 1);
    assert!(transcript.texts[0].ends_with("\r\n\r\n.\r\nHello.\r\n"), "{}", transcript.texts[0]);
}

#[tokio::test]
async fn each_fault_has_its_outcome_at_each_point() {
    let before = [Step::Greeting, Step::Ehlo, Step::Auth, Step::Mail, Step::Rcpt, Step::Data];
    let broken = [
        Fault::Close(""),
        Fault::Close("250 o"),
        Fault::Close("250-ok\r\n"),
        Fault::Reset,
        Fault::Stall,
        Fault::Reply("HTTP/1.1 200 OK\r\n"),
        Fault::Reply("250-ok\r\n251 ok\r\n"),
        Fault::Forever("250 "),
        Fault::Forever("250-ok\r\n"),
    ];
    let mut cases: Vec<(Step, Fault, &str)> = Vec::new();
    for fault in broken {
        cases.extend(before.map(|at| (at, fault, "not_sent")));
        cases.push((Step::Dot, fault, "unknown"));
        // The outcome was decided before.
        cases.push((Step::Quit, fault, "delivered"));
    }
    for at in before {
        let about_the_mail = matches!(at, Step::Mail | Step::Rcpt | Step::Data);
        cases.push((at, Fault::Reply("451 4.3.0 later\r\n"), "not_sent"));
        cases.push((at, Fault::Close("421 4.3.2 later\r\n"), "not_sent"));
        cases.push((
            at,
            Fault::Reply("554 5.0.0 no\r\n"),
            if about_the_mail { "rejected" } else { "account_refused" },
        ));
    }
    cases.extend([
        (Step::Auth, Fault::Reply("535 5.7.8 wrong password\r\n"), "account_refused"),
        (Step::Auth, Fault::Reply("454 4.7.0 no user database\r\n"), "not_sent"),
        (Step::Mail, Fault::Reply("530 5.7.0 sign in\r\n"), "account_refused"),
        (Step::Rcpt, Fault::Reply("550 5.1.1 unknown\r\n"), "rejected"),
        (Step::Rcpt, Fault::Reply("251 forwarded\r\n"), "delivered"),
        (Step::Data, Fault::Reply("250 ok\r\n"), "not_sent"),
        (Step::Dot, Fault::Reply("250\r\n"), "delivered"),
        (Step::Dot, Fault::Reply("250 2.6.0 accept\u{e9}\r\n"), "delivered"),
        (Step::Dot, Fault::Close("250 ok\r\n"), "delivered"),
        (Step::Dot, Fault::Reply("354 go on\r\n"), "unknown"),
        (Step::Dot, Fault::Reply("451 4.3.0 later\r\n"), "not_sent"),
        (Step::Dot, Fault::Close("421 4.3.2 later\r\n"), "not_sent"),
        (Step::Dot, Fault::Reply("552 5.3.4 too big\r\n"), "rejected"),
        (Step::Quit, Fault::Reply("451 4.3.0 later\r\n"), "delivered"),
        (Step::Quit, Fault::Reply("554 5.0.0 no\r\n"), "delivered"),
    ]);
    LazyLock::force(&OPEN);
    LazyLock::force(&OPEN_AND_HASTY);
    let mut sends = JoinSet::new();
    for (at, fault, expected) in cases {
        sends.spawn(async move { (at, fault, expected, send(at, fault).await) });
    }
    while let Some(sent) = sends.join_next().await {
        let (at, fault, expected, (outcome, transcript)) = sent.unwrap();
        let what = format!("{at:?} {fault:?}: {outcome:?}");
        assert_eq!(outcome.kind(), expected, "{what}");
        assert_eq!(transcript.connections, 1, "{what}");
        let arrived = matches!(at, Step::Dot | Step::Quit) || expected == "delivered";
        assert_eq!(transcript.texts.len(), usize::from(arrived), "{what}");
        let asked = transcript.commands.iter().filter(|line| *line == "DATA").count();
        assert_eq!(asked, usize::from(arrived || at == Step::Data), "{what}");
    }
}

// The server closes the connection during the text. Only a failed write proves that the dot was not sent.
#[tokio::test]
async fn a_connection_that_breaks_during_the_text_is_not_sent() {
    for fault in [Fault::Reset, Fault::Close("")] {
        let server = ScriptedServer::start(Step::Text, fault).await;
        let Message::Email { to, subject, .. } = email("a@example.com") else { unreachable!() };
        // More than the buffers of the connection hold.
        let text = Some("0123456789\n".repeat(1_200_000));
        let outcome =
            account(&OPEN, server.port).send(&key(), &Message::Email { to, subject, text, html: None }).await;
        assert_eq!(outcome.kind(), "not_sent", "{fault:?}: {outcome:?}");
        assert_eq!(server.transcript().await.connections, 1);
    }
}

#[tokio::test]
async fn a_refused_connection_is_not_sent() {
    // The listener was closed.
    let gone = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let outcome = account(&OPEN, gone.port()).send(&key(), &email("a@example.com")).await;
    let Outcome::NotSent { reason, .. } = outcome else { panic!("{outcome:?}") };
    assert!(reason.starts_with("could not reach 127.0.0.1: Connection refused"), "{reason}");
}

#[tokio::test]
async fn a_mail_that_the_server_cannot_accept_is_rejected_before_it_is_sent() {
    let features = ["250 8BITMIME\r\n", "250-SMTPUTF8\r\n250 SIZE 100\r\n"];
    for (features, to, why) in
        [(features[0], "jörg@example.com", "no SMTPUTF8"), (features[1], "a@example.com", "takes 100")]
    {
        let server = ScriptedServer::with_features(Step::Nowhere, Fault::Stall, features).await;
        let outcome = account(&OPEN, server.port).send(&key(), &email(to)).await;
        let Outcome::Rejected { reason } = outcome else { panic!("{outcome:?}") };
        assert!(reason.contains(why), "{reason}");
        assert_eq!(server.transcript().await.commands, ["EHLO example.org", "QUIT"]);
    }
    // A message that cannot be a mail opens no connection.
    let gone = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let outcome = account(&OPEN, gone.port()).send(&key(), &email("a@example.com\r\nDATA")).await;
    assert_eq!(outcome.kind(), "rejected");
}

#[tokio::test]
async fn a_mail_with_non_ascii_addresses_uses_smtputf8() {
    let features = "250-8BITMIME\r\n250 SMTPUTF8\r\n";
    let server = ScriptedServer::with_features(Step::Nowhere, Fault::Stall, features).await;
    let outcome = account(&OPEN, server.port).send(&key(), &email("jörg@bücher.example")).await;
    assert_eq!(outcome.kind(), "delivered");
    let transcript = server.transcript().await.commands;
    assert_eq!(transcript[1], "MAIL FROM:<news@example.org> SMTPUTF8 BODY=8BITMIME");
    assert_eq!(transcript[2], "RCPT TO:<jörg@xn--bcher-kva.example>");
}

#[tokio::test]
async fn login_is_used_where_plain_is_not_offered() {
    let server =
        ScriptedServer::with_features(Step::Auth, Fault::Reply("334 dXNlcg==\r\n"), "250 AUTH LOGIN\r\n")
            .await;
    let mut account = account(&OPEN, server.port);
    account.login = login(Some("user".to_owned()), &SecretString::from("password")).unwrap();
    // This server does not support the rest of AUTH LOGIN, so the session ends there.
    let outcome = account.send(&key(), &email("a@example.com")).await;
    assert!(matches!(outcome, Outcome::AccountRefused { is_login: true, .. }), "{outcome:?}");
    assert_eq!(server.transcript().await.commands[1..3], ["AUTH LOGIN", "dXNlcg=="]);

    let server = ScriptedServer::with_features(Step::Nowhere, Fault::Stall, "250 AUTH CRAM-MD5\r\n").await;
    let mut account = super::account(&OPEN, server.port);
    account.login = login(Some("user".to_owned()), &SecretString::from("password")).unwrap();
    let outcome = account.send(&key(), &email("a@example.com")).await;
    let Outcome::AccountRefused { reason, is_login: false } = outcome else { panic!("{outcome:?}") };
    assert!(reason.contains("offers neither AUTH PLAIN nor AUTH LOGIN"), "{reason}");
    assert_eq!(server.transcript().await.commands, ["EHLO example.org", "QUIT"]);
}

// A server may lock an account after a few wrong passwords.
#[tokio::test]
async fn a_wrong_password_is_tried_once_by_all_calls_of_a_moment() {
    let mut server =
        ScriptedServer::start_for_many(Step::Auth, Fault::Reply("535 5.7.8 wrong password\r\n")).await;
    let mut account = account(&OPEN, server.port);
    account.login = login(Some("user".to_owned()), &SecretString::from("wrong")).unwrap();
    let account = Arc::new(account);
    let mut calls = JoinSet::new();
    for _ in 0..20 {
        let account = Arc::clone(&account);
        calls.spawn(async move { account.send(&key(), &email("a@example.com")).await });
    }
    for outcome in calls.join_all().await {
        assert!(matches!(outcome, Outcome::AccountRefused { is_login: true, .. }), "{outcome:?}");
    }
    let mut logins = 0;
    for _ in 0..20 {
        let commands = server.next_session().await;
        logins += commands.iter().filter(|line| line.starts_with("AUTH")).count();
    }
    assert_eq!(logins, 1);
}
