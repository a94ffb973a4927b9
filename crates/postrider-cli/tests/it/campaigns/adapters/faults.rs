//! Both adapters against the sim at its worst: one request on the wire each, and never a verdict that the sim's own
//! receipts contradict.

use postrider_model::Outcome;
use serde_json::json;

use super::*;

/// Short enough to wait for when nobody answers; long enough for a request to arrive before.
const HASTY: Limits = Limits { connect: Duration::from_secs(10), total: Duration::from_secs(3) };

#[rustfmt::skip]
const FAULTS: [(&str, &str, &str); 10] = [
    // fault         over HTTP     over SMTP
    ("none",         "delivered",  "delivered"),
    ("latency",      "delivered",  "delivered"),
    ("stall",        "unknown",    "unknown"),
    ("fail",         "unknown",    "not_sent"), // 451 after the dot: not taken
    ("fail_after",   "unknown",    "unknown"),
    ("refuse",       "rejected",   "rejected"),
    ("busy",         "not_sent",   "not_sent"),
    ("reset",        "unknown",    "unknown"),
    ("reset_before", "unknown",    "unknown"),
    ("half",         "unknown",    "unknown"),
];

#[tokio::test]
async fn each_fault_is_one_request_with_the_right_verdict() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let rules: Vec<_> = FAULTS.iter().skip(1).map(|(fault, ..)| rule_for(fault)).collect();
    let flags: Vec<_> = rules.iter().flat_map(|rule| ["--rule", rule]).collect();
    let sim = Sim::start(
        &[&flags[..], &["--token", "hunter2", "--smtp-user", "user", "--smtp-password", "pass"]].concat(),
    )?;
    let over_http = open("sim", HASTY, &json!({ "url": sim.http_url }), "hunter2")?;
    let over_smtp = open("smtp", HASTY, &smtp_settings(sim.smtp_port), "pass")?;

    let reservations = reservations(&stage, 2 * FAULTS.len()).await?;
    let calls = FAULTS.iter().flat_map(|(fault, http, smtp)| {
        [(*fault, "/messages", &over_http, *http), (*fault, "smtp", &over_smtp, *smtp)]
    });
    let calls = calls.zip(&reservations).map(|((fault, path, provider, expected), reservation)| async move {
        let outcome = provider.call(reservation, &email(&format!("{fault}@example.com"))).await;
        (fault, path, expected, reservation.key().to_string(), outcome)
    });
    let called = futures::future::join_all(calls).await;

    let receipts = sim.receipts()?;
    for (fault, path, expected, key, outcome) in called {
        let what = format!("{fault} over {path}: {outcome:?}");
        assert_eq!(outcome.kind(), expected, "{what}");
        let to = format!("{fault}@example.com");
        let mine: Vec<_> = receipts.iter().filter(|r| r["path"] == path && r["to"] == to).collect();
        assert_eq!(mine.len(), 1, "{what}");
        let acted = mine[0]["acted"].as_bool().unwrap();
        match &outcome {
            Outcome::Delivered { message_id } => {
                assert!(acted, "{what}");
                assert!(message_id.contains(mine[0]["message_id"].as_str().unwrap()), "{what}");
            }
            Outcome::Rejected { .. } | Outcome::NotSent { .. } | Outcome::AccountRefused { .. } => {
                assert!(!acted, "{what}");
            }
            Outcome::Unknown { .. } => {}
        }
        if path == "/messages" {
            assert_eq!(mine[0]["key"], key, "{what}");
        } else if fault != "refuse" && fault != "busy" {
            assert_eq!(mine[0]["message_id"], format!("<{key}@example.org>"), "{what}");
        }
        if let ("busy", "/messages", Outcome::NotSent { retry_after, .. }) = (fault, path, &outcome) {
            assert_eq!(*retry_after, Some(Duration::from_secs(1)));
        }
    }
    assert_eq!(receipts.len(), 2 * FAULTS.len());
    Ok(())
}

#[tokio::test]
async fn the_sim_takes_every_channel_and_knows_each_by_the_key_of_its_reservation() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let sim = Sim::start(&[])?;
    let provider = open("sim", PATIENT, &json!({ "url": sim.http_url }), "")?;
    let messages = [
        email("a@example.com"),
        Message::Voice { to: "+491701234567".to_owned(), script: "Hello.".to_owned() },
        Message::Social { text: "Hello.".to_owned() },
    ];
    let reservations = reservations(&stage, messages.len()).await?;
    for (reservation, message) in reservations.iter().zip(&messages) {
        let outcome = provider.call(reservation, message).await;
        let receipt = sim.receipts()?.pop().context("no receipt")?;
        let message_id = receipt["message_id"].as_str().context("no id")?.to_owned();
        assert_eq!(outcome, Outcome::Delivered { message_id });
        assert_eq!(receipt["key"], reservation.key().as_str());
        assert_eq!(receipt["channel"], message.channel().as_str());
        assert_eq!(receipt["to"].as_str(), message.recipient());
    }
    Ok(())
}

// No server listens, the account is wrong, or the server speaks another protocol.
#[tokio::test]
async fn a_call_that_never_reached_the_provider_is_not_sent() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let gone = tokio::net::TcpListener::bind("127.0.0.1:0").await?.local_addr()?.port();
    let sim = Sim::start(&["--token", "hunter2", "--smtp-user", "user", "--smtp-password", "pass"])?;
    let cases = [
        ("sim", json!({ "url": format!("http://127.0.0.1:{gone}") }), "", "not_sent"),
        ("smtp", smtp_settings(gone), "pass", "not_sent"),
        ("smtp", smtp_settings(sim.smtp_port), "wrong", "account_refused"),
        ("sim", json!({ "url": sim.http_url }), "wrong", "account_refused"),
    ];
    let reservations = reservations(&stage, cases.len()).await?;
    for ((vendor, settings, secret, expected), reservation) in cases.iter().zip(&reservations) {
        let provider = open(vendor, PATIENT, settings, secret)?;
        let outcome = provider.call(reservation, &email("a@example.com")).await;
        assert_eq!(outcome.kind(), *expected, "{vendor} {settings}: {outcome:?}");
        assert!(!format!("{outcome:?}").contains("hunter2"));
    }
    assert!(sim.receipts()?.iter().all(|receipt| receipt["acted"] == false));
    Ok(())
}

fn rule_for(fault: &str) -> String {
    json!({ "to": format!("{fault}@example.com"), "fault": fault }).to_string()
}

fn smtp_settings(port: u16) -> Value {
    json!({ "host": "127.0.0.1", "port": port, "security": "none", "user": "user", "from": "news@example.org" })
}
