//! Runs the suite with every adapter and with adapters that have flaws on purpose, and tests the guard with every adapter.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on has failed"
)]

mod accounts;
mod custom;
mod flawed;
mod hostile;
mod listener;
mod sources;
mod standard;

use std::sync::Arc;

use postrider_model::Message;
use postrider_providers::conformance::{self, Report, Reservations, Subject};
use tokio::task::JoinSet;

/// Runs the subjects concurrently, since each waits for a call that times out.
async fn run_all(subjects: Vec<Subject>) -> Vec<Report> {
    let reservations = Arc::new(Reservations::start().await.unwrap());
    let mut running = JoinSet::new();
    for (n, subject) in subjects.into_iter().enumerate() {
        let reservations = Arc::clone(&reservations);
        running.spawn(async move { (n, conformance::run(&subject, &reservations).await.unwrap()) });
    }
    let mut reports = running.join_all().await;
    reports.sort_by_key(|(n, _)| *n);
    reports.into_iter().map(|(_, report)| report).collect()
}

fn email() -> Message {
    let text = Some("Hello.\n".to_owned());
    Message::Email {
        to: "lead@example.com".to_owned(),
        subject: "Hello".to_owned(),
        text,
        html: None,
        unsubscribe_url: None,
    }
}

fn voice() -> Message {
    Message::Voice { to: "+4917612345678".to_owned(), script: "Hello & goodbye.".to_owned() }
}

fn social() -> Message {
    Message::Social { text: "Hello everybody.".to_owned() }
}

fn chat() -> Message {
    Message::Chat { to: "C024BE91L".to_owned(), thread: None, text: "Hello.".to_owned() }
}
