//! The auditor finds each fact that is broken.

use std::collections::BTreeMap;

use postrider_testkit::crash::Findings as _;
use uuid::Uuid;

use super::audit::{Facts, Message, Receipt, Reply, Report, Said, audit};

/// A good day: one reply sent at once, one sent twice by two claims, one dead, and a message that nobody took.
fn good() -> Facts {
    let mut facts = Facts::default();
    for (n, (provider, status, claims, acts)) in
        (1..).zip([("slack", "sent", 1, 1), ("telegram", "sent", 2, 2), ("whatsapp", "dead", 1, 0)])
    {
        let (id, message, text) = (Uuid::from_u128(n), Uuid::from_u128(n + 100), format!("text {n}"));
        facts.said.push(Said { text: text.clone(), was_taken: true });
        facts.messages.push(Message { id: message, text: text.clone(), status: "executed".to_owned() });
        facts.claims.insert(id, claims);
        let name = |nth: usize| Some(format!("name {n}.{nth}"));
        facts.replies.push(Reply {
            id,
            message,
            provider: provider.to_owned(),
            text: text.clone(),
            status: status.to_owned(),
            claims,
            last_error: (status == "dead").then(|| "refused".to_owned()),
            provider_message_id: if status == "sent" { name(acts) } else { None },
        });
        let receipt = |nth: usize, acted: bool| Receipt {
            provider: provider.to_owned(),
            text: text.clone(),
            acted,
            message_id: if acted { name(nth) } else { None },
        };
        facts.receipts.extend((1..=acts).map(|nth| receipt(nth, true)));
        if acts == 0 {
            facts.receipts.push(receipt(0, false));
        }
    }
    facts.said.push(Said { text: "text 4".to_owned(), was_taken: false });
    facts
}

/// The auditor's report when a fact is broken.
fn broken(breaks: impl FnOnce(&mut Facts)) -> Report {
    let mut facts = good();
    breaks(&mut facts);
    audit(&facts)
}

fn one(text: &str) -> Vec<String> {
    vec![text.to_owned()]
}

#[test]
fn a_good_day_is_clean_and_what_came_twice_is_counted() {
    let report = audit(&good());
    let duplicates = BTreeMap::from([("telegram".to_owned(), 1)]);
    let expected = Report { duplicates, sent: 2, dead: 1, claimed_again: 1, ..Report::default() };
    assert_eq!(report, expected);
    assert!(report.is_clean());
}

#[test]
fn a_message_that_was_taken_must_be_there() {
    let report = broken(|facts| {
        facts.messages.remove(0);
        facts.replies.remove(0);
        facts.receipts.remove(0);
    });
    assert_eq!(report.lost, one("text 1"));
    assert!(!report.is_clean());
}

#[test]
fn a_message_that_was_taken_must_be_executed() {
    let report = broken(|facts| {
        facts.messages[0].status = "accepted".to_owned();
        facts.replies.remove(0);
        facts.receipts.remove(0);
    });
    assert_eq!(report.unexecuted, one("text 1 is accepted"));
    assert!(!report.is_clean());
}

#[test]
fn an_executed_message_must_have_a_reply() {
    let report = broken(|facts| {
        facts.replies.remove(0);
        facts.receipts.remove(0);
    });
    assert_eq!(report.without_reply, one("text 1"));
    assert!(!report.is_clean());
}

#[test]
fn a_reply_must_have_a_message_of_its_own() {
    let to_nobody = broken(|facts| drop(facts.messages.remove(0)));
    assert_eq!(to_nobody.without_message, one("text 1"));
    let second = broken(|facts| {
        let mut second = facts.replies[0].clone();
        second.id = Uuid::from_u128(9);
        facts.replies.push(second);
    });
    assert_eq!(second.without_message, one("text 1"));
    let unexecuted = broken(|facts| facts.messages[0].status = "dispatch_failed".to_owned());
    assert_eq!(unexecuted.without_message, one("text 1"));
    assert!(!to_nobody.is_clean() && !second.is_clean() && !unexecuted.is_clean());
}

#[test]
fn a_reply_must_have_ended() {
    for status in ["pending", "sending"] {
        let report = broken(|facts| facts.replies[0].status = status.to_owned());
        assert_eq!(report.stuck, [format!("text 1 is {status}")]);
        assert!(!report.is_clean());
    }
}

#[test]
fn a_sent_reply_must_have_arrived() {
    let gone = broken(|facts| drop(facts.receipts.remove(0)));
    assert_eq!(gone.never_arrived, one("text 1"));
    let undone = broken(|facts| facts.receipts[0].acted = false);
    assert_eq!(undone.never_arrived, one("text 1"));
    let misnamed = broken(|facts| facts.replies[0].provider_message_id = Some("another".to_owned()));
    assert_eq!(misnamed.misnamed, one("text 1"));
    assert!(!gone.is_clean() && !undone.is_clean() && !misnamed.is_clean());
}

#[test]
fn a_dead_reply_must_have_a_reason() {
    for reason in [None, Some(String::new())] {
        let report = broken(|facts| facts.replies[2].last_error = reason);
        assert_eq!(report.dead_without_reason, one("text 3"));
        assert!(!report.is_clean());
    }
}

#[test]
fn a_reply_that_arrived_twice_must_have_been_claimed_twice() {
    let report = broken(|facts| {
        facts.receipts.push(facts.receipts[0].clone());
    });
    assert_eq!(report.unclaimed, one("text 1: 2 requests, 1 claims"));
    assert_eq!(report.duplicates["slack"], 1);
    assert!(!report.is_clean());
    // Also where the second request did nothing.
    let report = broken(|facts| {
        facts.receipts.push(Receipt { acted: false, ..facts.receipts[0].clone() });
    });
    assert_eq!((report.unclaimed.len(), report.duplicates.contains_key("slack")), (1, false));
    // A row that invents a claim is found out.
    let report = broken(|facts| facts.replies[0].claims = 2);
    assert_eq!(report.miscounted, one("text 1: 2 of 1"));
    assert!(!report.is_clean());
}

#[test]
fn slack_is_asked_before_it_is_called_again() {
    let twice = |claims| {
        broken(|facts| {
            facts.receipts.push(facts.receipts[0].clone());
            facts.replies[0].claims = claims;
            facts.claims.insert(facts.replies[0].id, claims);
        })
    };
    assert_eq!(twice(2).unasked, one("text 1: 2 claims"));
    assert!(!twice(2).is_clean());
    // It gave no answer.
    assert!(twice(3).is_clean());
    assert_eq!(twice(3).duplicates["slack"], 1);
}

#[test]
fn every_sent_text_must_be_a_reply() {
    let report = broken(|facts| {
        let receipt = Receipt { text: "buy now".to_owned(), ..facts.receipts[0].clone() };
        facts.receipts.push(receipt);
    });
    assert_eq!(report.from_nowhere, one("slack: buy now"));
    assert!(!report.is_clean());
    // Also where it came to another vendor.
    let report = broken(|facts| {
        let receipt = Receipt { provider: "telegram".to_owned(), ..facts.receipts[0].clone() };
        facts.receipts.push(receipt);
    });
    assert_eq!(report.from_nowhere, one("telegram: text 1"));
}
