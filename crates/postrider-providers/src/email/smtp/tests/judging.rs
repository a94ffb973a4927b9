//! The table of the module, cell by cell.

use std::io;

use super::*;

fn reply(code: u16) -> Result<Reply, ConnectionError> {
    Ok(Reply { code, lines: vec!["2.0.0 so be it".to_owned()] })
}

fn cut() -> Result<Reply, ConnectionError> {
    Err(ConnectionError::Broken(io::ErrorKind::UnexpectedEof.into()))
}

fn not_written() -> Result<Reply, ConnectionError> {
    Err(ConnectionError::NotWritten(io::ErrorKind::BrokenPipe.into()))
}

fn invalid_reply() -> Result<Reply, ConnectionError> {
    Err(ConnectionError::InvalidReply("HTTP/1.1 200 OK".to_owned()))
}

fn kind(judged: Result<Reply, Outcome>) -> &'static str {
    judged.map_or_else(|outcome| outcome.kind(), |_| "go on")
}

#[test]
fn each_reply_has_its_outcome_in_each_column() {
    let host = Host::Domain("smtp.example".to_owned());
    #[rustfmt::skip]
    let cases = [
        // received         session     envelope    answer
        (reply(220),     "go on",    "go on",    "delivered"),
        (reply(250),     "go on",    "go on",    "delivered"),
        (reply(251),     "go on",    "go on",    "delivered"),
        (reply(334),     "not_sent", "not_sent", "unknown"),
        (reply(354),     "not_sent", "not_sent", "unknown"),
        (reply(421),     "not_sent", "not_sent", "not_sent"),
        (reply(450),     "not_sent", "not_sent", "not_sent"),
        (reply(452),     "not_sent", "not_sent", "not_sent"),
        (reply(500),     "account_refused", "rejected", "rejected"),
        (reply(530),     "account_refused", "account_refused", "rejected"),
        (reply(535),     "account_refused", "rejected", "rejected"),
        (reply(550),     "account_refused", "rejected", "rejected"),
        (reply(554),     "account_refused", "rejected", "rejected"),
        (not_written(),       "not_sent", "not_sent", "not_sent"),
        (cut(),          "not_sent", "not_sent", "unknown"),
        (invalid_reply(),      "not_sent", "not_sent", "unknown"),
    ];
    for (received, session, envelope, answer) in cases {
        let what = format!("{received:?}");
        assert_eq!(judge_answer(&host, "<k@example.org>", &received).kind(), answer, "{what}");
        let again = || match &received {
            Ok(reply) => Ok(reply.clone()),
            Err(ConnectionError::InvalidReply(said)) => Err(ConnectionError::InvalidReply(said.clone())),
            Err(ConnectionError::Broken(error)) => Err(ConnectionError::Broken(error.kind().into())),
            Err(ConnectionError::NotWritten(error)) => Err(ConnectionError::NotWritten(error.kind().into())),
        };
        assert_eq!(kind(judge_session(&host, again(), 2)), session, "{what}");
        assert_eq!(kind(judge_envelope(&host, again(), 2)), envelope, "{what}");
    }
    // The reply to DATA must ask for the text; a plain success does not.
    assert_eq!(kind(judge_envelope(&host, reply(354), 3)), "go on");
    assert_eq!(kind(judge_envelope(&host, reply(250), 3)), "not_sent");
}

#[test]
fn the_message_id_of_a_delivered_mail_is_its_id_and_the_reply() {
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
