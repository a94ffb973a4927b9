//! The faults as a client sees them.

use std::io::ErrorKind;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;

use super::*;

#[tokio::test]
async fn latency_delays_a_good_answer() {
    let sim = RunningSim::with(&["--fault", "latency=1", "--latency-ms", "30"]).await;
    let asked_at = Instant::now();
    assert_eq!(status_of(&sim.ask(&hook("evt_1")).await.unwrap()), 200);
    assert!(asked_at.elapsed() >= Duration::from_millis(30));
    assert_eq!(only_receipt(&sim), (json!("latency"), json!(true), json!(200)));
    sim.stop().await;
}

#[tokio::test]
async fn stall_acts_and_never_answers() {
    let sim = RunningSim::with(&["--fault", "stall=1"]).await;
    let mut stream = sim.connect().await;
    stream.write_all(&hook("evt_1")).await.unwrap();
    assert_eq!(sim.counts("?accepted=1").await["by_fault"], json!({ "stall": 1 }));
    assert_eq!(stream.try_read(&mut [0; 1]).unwrap_err().kind(), ErrorKind::WouldBlock);
    assert_eq!(only_receipt(&sim), (json!("stall"), json!(true), Value::Null));

    sim.stop().await;
    assert_eq!(read_all(&mut stream).await.unwrap(), "");
}

#[tokio::test]
async fn a_stall_ends_when_its_client_disconnects() {
    let sim = RunningSim::with(&["--fault", "stall=1"]).await;
    let mut stream = sim.connect().await;
    stream.write_all(&hook("evt_1")).await.unwrap();
    sim.counts("?accepted=1").await;
    // Half-closed, so that this end still receives the close of the sim.
    stream.shutdown().await.unwrap();
    assert_eq!(read_all(&mut stream).await.unwrap(), "");
    sim.stop().await;
}

#[tokio::test]
async fn fail_did_not_act_and_fail_after_did() {
    for (fault, acted) in [("fail", false), ("fail_after", true)] {
        let sim = RunningSim::with(&["--fault", &format!("{fault}=1")]).await;
        assert_eq!(status_of(&sim.ask(&hook("evt_1")).await.unwrap()), 500);
        assert_eq!(only_receipt(&sim), (json!(fault), json!(acted), json!(500)));
        assert_eq!(sim.counts("").await["accepted"], u64::from(acted));
        sim.stop().await;
    }
}

#[tokio::test]
async fn refuse_and_busy_answer_without_acting() {
    let sim = RunningSim::with(&["--fault", "refuse=1"]).await;
    assert_eq!(status_of(&sim.ask(&hook("evt_1")).await.unwrap()), 400);
    assert_eq!(only_receipt(&sim), (json!("refuse"), json!(false), json!(400)));
    sim.stop().await;

    let sim = RunningSim::with(&["--fault", "busy=1", "--retry-after-seconds", "7"]).await;
    let answer = sim.ask(&hook("evt_1")).await.unwrap();
    assert_eq!(status_of(&answer), 429);
    assert!(answer.contains("retry-after: 7\r\n"));
    assert_eq!(only_receipt(&sim), (json!("busy"), json!(false), json!(429)));
    sim.stop().await;
}

#[tokio::test]
async fn a_reset_is_a_reset_before_and_after_acting() {
    for (fault, acted) in [("reset", true), ("reset_before", false)] {
        let sim = RunningSim::with(&["--fault", &format!("{fault}=1")]).await;
        let broken = sim.ask(&hook("evt_1")).await.unwrap_err();
        assert_eq!(broken.kind(), ErrorKind::ConnectionReset);
        assert_eq!(only_receipt(&sim), (json!(fault), json!(acted), Value::Null));
        sim.stop().await;
    }
}

#[tokio::test]
async fn half_breaks_off_in_the_middle_of_the_body() {
    let sim = RunningSim::with(&["--fault", "half=1"]).await;
    let answer = sim.ask(&hook("evt_1")).await.unwrap();
    assert_eq!(status_of(&answer), 200);
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let promised: usize = head.rsplit_once("content-length: ").unwrap().1.parse().unwrap();
    assert_eq!(body.len(), promised / 2);
    assert_eq!(only_receipt(&sim), (json!("half"), json!(true), Value::Null));
    sim.stop().await;
}

#[tokio::test]
async fn the_same_seed_selects_the_same_requests() {
    let faults =
        ["--fault", "fail=0.2", "--fault", "refuse=0.2", "--fault", "busy=0.2", "--fault", "reset=0.2"];
    let mut seen = Vec::new();
    for seed in ["42", "42", "43"] {
        let sim = RunningSim::with(&[&faults[..], &["--seed", seed]].concat()).await;
        for n in 0..24 {
            // Some of them are reset.
            let _ = sim.ask(&hook(&format!("evt_{n}"))).await;
        }
        seen.push(on_disk(&sim.receipts).iter().map(|receipt| receipt["fault"].clone()).collect::<Vec<_>>());
        sim.stop().await;
    }
    assert_eq!(seen[0], seen[1]);
    assert_ne!(seen[0], seen[2]);
}

#[tokio::test]
async fn faults_change_at_run_time_and_invalid_rates_are_refused() {
    let sim = RunningSim::with(&[]).await;
    assert_eq!(json_of(&sim.put_faults(r#"{"fail": 1}"#).await), json!({ "fail": 1.0 }));
    assert_eq!(status_of(&sim.ask(&hook("evt_1")).await.unwrap()), 500);

    for bad in
        [r#"{"fire": 0.1}"#, r#"{"fail": 2}"#, r#"{"fail": 0.6, "busy": 0.6}"#, r#"{"fail": "1"}"#, "[]", "{"]
    {
        assert_eq!(status_of(&sim.put_faults(bad).await), 400, "{bad}");
    }
    let refused = json_of(&sim.put_faults(r#"{"fire": 0.1}"#).await);
    assert_eq!(refused["known"].as_array().unwrap().len(), 12);
    assert_eq!(json_of(&sim.get("/faults").await), json!({ "fail": 1.0 }));

    assert_eq!(status_of(&sim.put_faults("{}").await), 200);
    assert_eq!(status_of(&sim.ask(&hook("evt_2")).await.unwrap()), 200);
    sim.stop().await;
}
