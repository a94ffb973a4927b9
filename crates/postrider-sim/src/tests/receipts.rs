//! Receipts, refused requests, and files that the sim does not change.

use serde_json::{Value, json};
use standardwebhooks::Webhook;
use tokio::io::AsyncWriteExt;

use super::*;

#[tokio::test]
async fn a_receipt_is_on_disk_before_the_answer() {
    let sim = RunningSim::with(&[]).await;
    let answer = sim.ask(&hook("evt_1")).await.unwrap();

    assert_eq!(status_of(&answer), 200);
    let receipt = &on_disk(&sim.receipts)[0];
    assert_eq!(receipt["seq"], 1);
    assert_eq!(receipt["path"], "/hooks/orders");
    assert_eq!(receipt["webhook_id"], "evt_1");
    assert_eq!(receipt["event_type"], "order.paid");
    assert_eq!(receipt["verified"], Value::Null);
    assert_eq!(receipt["acted"], true);
    assert_eq!(receipt["fault"], Value::Null);
    assert_eq!(receipt["answered"], 200);
    assert_eq!(receipt["body_sha256"].as_str().unwrap().len(), 64);
    assert_eq!(receipt["at"].as_str().unwrap().len(), "2026-02-06T14:05:00.123456Z".len());
    sim.stop().await;
}

#[tokio::test]
async fn the_receipt_of_every_concurrent_request_is_on_disk_before_its_answer() {
    let sim = RunningSim::with(&[]).await;
    let asked = (0..64).map(|n| {
        let (sim, id) = (&sim, format!("evt_{:02}", n % 60));
        async move {
            let answer = sim.ask(&hook(&id)).await.unwrap();
            (id, status_of(&answer), std::fs::read_to_string(&sim.receipts).unwrap())
        }
    });
    for (id, status, receipts_at_that_time) in futures::future::join_all(asked).await {
        assert_eq!(status, 200);
        assert!(
            receipts_at_that_time.contains(&format!("\"webhook_id\":\"{id}\"")),
            "{id} was answered too early"
        );
    }
    let counts = sim.counts("").await;
    assert_eq!([&counts["received"], &counts["accepted"], &counts["acknowledged"]], [64, 64, 64]);
    assert_eq!([&counts["distinct_ids"], &counts["duplicates"]], [60, 4]);
    let all = sim.get("/receipts/all").await;
    assert_eq!(all.matches("\"seq\":").count(), 64);
    sim.stop().await;
}

#[tokio::test]
async fn a_signature_must_be_valid_under_one_of_the_secrets() {
    let other = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD";
    let sim = RunningSim::with(&["--secret", other, "--secret", SECRET, "--fault", "fail_after=1"]).await;
    let now = jiff::Timestamp::now().as_second();
    let good = Webhook::new(SECRET).unwrap().sign("evt_1", now, body_of("evt_1").as_bytes()).unwrap();
    assert_eq!(status_of(&sim.ask(&signed_hook("evt_1", now, &good)).await.unwrap()), 500);
    assert_eq!(status_of(&sim.ask(&hook("evt_2")).await.unwrap()), 401);
    let receipts = on_disk(&sim.receipts);
    assert_eq!([&receipts[0]["verified"], &receipts[0]["acted"]], [true, true]);
    assert_eq!([&receipts[1]["verified"], &receipts[1]["acted"]], [false, false]);
    assert_eq!([&receipts[1]["answered"], &receipts[1]["fault"]], [&json!(401), &Value::Null]);
    assert_eq!(sim.counts("").await["bad_signatures"], 1);
    sim.stop().await;
}

#[tokio::test]
async fn an_invalid_webhook_is_refused_and_the_sim_continues() {
    let sim = RunningSim::with(&[]).await;
    let post = "POST /hooks/orders HTTP/1.1\r\nhost: sim\r\nconnection: close\r\n";
    let large = format!("{post}webhook-id: a\r\ncontent-length: 1048577\r\n\r\n{}", "x".repeat(1_048_577));
    let endless = format!("{post}x: {}\r\n\r\n", "x".repeat(20_000));
    let many = format!("{post}{}\r\n", "x: y\r\n".repeat(100));
    let no_id = format!("{post}content-length: 2\r\n\r\n{{}}");
    let bad_chunk = format!("{post}transfer-encoding: chunked\r\n\r\nZZ\r\n");
    for (status, request) in [
        (400, "nonsense\r\n\r\n"),
        (400, no_id.as_str()),
        (400, bad_chunk.as_str()),
        (404, "GET /nothing HTTP/1.1\r\nhost: sim\r\nconnection: close\r\n\r\n"),
        (404, "POST /hooks/ HTTP/1.1\r\nhost: sim\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"),
        (405, "GET /hooks/orders HTTP/1.1\r\nhost: sim\r\nconnection: close\r\n\r\n"),
        (413, large.as_str()),
        (431, endless.as_str()),
        (431, many.as_str()),
    ] {
        let answer = sim.ask(request.as_bytes()).await.unwrap();
        assert_eq!(status_of(&answer), status, "{}", &request[..request.len().min(80)]);
    }
    // Half a request, then a disconnect.
    sim.connect().await.write_all(&hook("evt_1")[..100]).await.unwrap();

    assert_eq!(status_of(&sim.get("/healthz").await), 200);
    let counts = sim.counts("").await;
    assert_eq!([&counts["received"], &counts["accepted"]], [2, 0]); // without an id, and too large
    sim.stop().await;
}

#[tokio::test]
async fn a_restarted_sim_continues_counting_and_truncates_an_incomplete_line() {
    let sim = RunningSim::with(&[]).await;
    sim.ask(&hook("evt_1")).await.unwrap();
    let dir = sim.stop().await;
    let path = dir.path().join("receipts.ndjson");
    let whole = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, format!("{whole}{{\"seq\":2,\"at\":\"20")).unwrap();

    let sim = RunningSim::in_dir(dir, &[]).await;
    sim.ask(&hook("evt_1")).await.unwrap();
    let receipts = on_disk(&sim.receipts);
    assert_eq!([&receipts[0]["seq"], &receipts[1]["seq"]], [1, 2]);
    assert_eq!(sim.counts("").await["duplicates"], 1);

    let second = SimArgs { receipts: Some(sim.receipts.clone()), ..args(&[]).unwrap() };
    let refused = Sim::start(second, CancellationToken::new()).await.err().unwrap();
    assert!(refused.to_string().contains("in use by another sim"));
    sim.stop().await;
}

#[tokio::test]
async fn a_file_without_receipts_is_not_changed() {
    let dir = tempfile::tempdir().unwrap();
    for notes in ["notes without an end", "notes\n", "{\"seq\":7}\n"] {
        let path = dir.path().join("notes.txt");
        std::fs::write(&path, notes).unwrap();
        let args = SimArgs { receipts: Some(path.clone()), ..args(&[]).unwrap() };
        assert!(Sim::start(args, CancellationToken::new()).await.is_err());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), notes);
    }
}

#[tokio::test]
async fn invalid_flags_are_refused_with_advice() {
    let refused = |flags: &[&str]| args(flags).unwrap_err().to_string();
    assert!(refused(&["--listen", "0.0.0.0:0"]).contains("loopback only"));
    assert!(refused(&["--listen", "localhost"]).contains("127.0.0.1:0"));
    assert!(refused(&["--fault", "fire=0.1"]).contains("known are latency"));
    assert!(refused(&["--fault", "fail"]).contains("NAME=PROBABILITY"));
    assert!(refused(&["--fault", "fail=often"]).contains("not a number"));
    assert!(refused(&["--fault", "fail=1.5"]).contains("between 0 and 1"));

    for (flags, why) in [
        (&["--fault", "fail=0.6", "--fault", "busy=0.6"][..], "add up to 1.2"),
        (&["--secret", "MfKQ9r8GKYqrTwjU"][..], "--secret number 1 is not `whsec_`"),
        (&["--secret", SECRET, "--secret", "whsec_!"][..], "--secret number 2 is not `whsec_`"),
        (&["--receipts", "/nowhere/at/all"][..], "could not open the receipts file"),
    ] {
        let error = Sim::start(args(flags).unwrap(), CancellationToken::new()).await.err().unwrap();
        assert!(format!("{error:#}").contains(why), "{error:#}");
        assert!(!format!("{error:#}").contains("MfKQ"));
    }
}
