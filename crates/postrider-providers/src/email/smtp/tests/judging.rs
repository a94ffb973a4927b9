//! The table of the module, cell by cell.

use std::io;

use super::*;

fn reply(code: u16) -> Result<Reply, Lost> {
    Ok(Reply { code, lines: vec!["2.0.0 so be it".to_owned()] })
}

fn cut() -> Result<Reply, Lost> {
    Err(Lost::Broken(io::ErrorKind::UnexpectedEof.into()))
}

fn unsaid() -> Result<Reply, Lost> {
    Err(Lost::Unsaid(io::ErrorKind::BrokenPipe.into()))
}

fn garbage() -> Result<Reply, Lost> {
    Err(Lost::Garbage("HTTP/1.1 200 OK".to_owned()))
}

fn kind(judged: Result<Reply, Outcome>) -> &'static str {
    judged.map_or_else(|outcome| outcome.kind(), |_| "go on")
}

#[test]
fn each_reply_has_its_verdict_in_each_column() {
    let host = Host::Domain("smtp.example".to_owned());
    #[rustfmt::skip]
    let cases = [
        // heard         session     envelope    answer
        (reply(220),     "go on",    "go on",    "delivered"),
        (reply(250),     "go on",    "go on",    "delivered"),
        (reply(251),     "go on",    "go on",    "delivered"),
        (reply(334),     "not_sent", "not_sent", "unknown"),
        (reply(354),     "not_sent", "not_sent", "unknown"),
        (reply(421),     "not_sent", "not_sent", "not_sent"),
        (reply(450),     "not_sent", "not_sent", "not_sent"),
        (reply(452),     "not_sent", "not_sent", "not_sent"),
        (reply(500),     "not_sent", "rejected", "rejected"),
        (reply(530),     "not_sent", "not_sent", "rejected"),
        (reply(535),     "not_sent", "rejected", "rejected"),
        (reply(550),     "not_sent", "rejected", "rejected"),
        (reply(554),     "not_sent", "rejected", "rejected"),
        (unsaid(),       "not_sent", "not_sent", "not_sent"),
        (cut(),          "not_sent", "not_sent", "unknown"),
        (garbage(),      "not_sent", "not_sent", "unknown"),
    ];
    for (heard, session, envelope, answer) in cases {
        let what = format!("{heard:?}");
        assert_eq!(judge_answer(&host, "<k@example.org>", &heard).kind(), answer, "{what}");
        let again = || match &heard {
            Ok(reply) => Ok(reply.clone()),
            Err(Lost::Garbage(said)) => Err(Lost::Garbage(said.clone())),
            Err(Lost::Broken(error)) => Err(Lost::Broken(error.kind().into())),
            Err(Lost::Unsaid(error)) => Err(Lost::Unsaid(error.kind().into())),
        };
        assert_eq!(kind(judge_session(&host, again(), 2)), session, "{what}");
        assert_eq!(kind(judge_envelope(&host, again(), 2)), envelope, "{what}");
    }
    // The reply to DATA asks for the text; one that only agrees takes none.
    assert_eq!(kind(judge_envelope(&host, reply(354), 3)), "go on");
    assert_eq!(kind(judge_envelope(&host, reply(250), 3)), "not_sent");
}

#[test]
fn a_delivered_mail_is_known_by_our_id_and_the_servers_words() {
    let host = Host::Domain("smtp.example".to_owned());
    let queued = Ok(Reply { code: 250, lines: vec!["2.0.0 Ok: queued\u{7} as 4711".to_owned()] });
    let message_id = "<k@example.org> 250 2.0.0 Ok: queued as 4711".to_owned();
    assert_eq!(judge_answer(&host, "<k@example.org>", &queued), Outcome::Delivered { message_id });
}

#[test]
fn features_are_read_from_the_lines_after_the_first_in_any_case() {
    let lines = ["AUTH.example SMTPUTF8", "size 1000", "Auth login PLAIN", "AUTH=OLD", "8bitmime"];
    let features = Features::of(&Reply { code: 250, lines: lines.map(str::to_owned).into() });
    assert!(features.has("8BITMIME") && !features.has("SMTPUTF8") && !features.has("STARTTLS"));
    assert!(
        features.offers("AUTH", "PLAIN")
            && features.offers("AUTH", "LOGIN")
            && !features.offers("AUTH", "OLD")
    );
    assert_eq!(features.size_max(), Some(1000));
    for none in ["SIZE", "SIZE 0", "SIZE x"] {
        let lines = vec!["smtp.example".to_owned(), none.to_owned()];
        assert_eq!(Features::of(&Reply { code: 250, lines }).size_max(), None, "{none}");
    }
}
