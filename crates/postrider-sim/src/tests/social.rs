//! Statuses and their timeline.

use serde_json::{Value, json};

use super::common_behavior::{key, mastodon, request};
use super::*;

const BEARER: &str = "authorization: Bearer token\r\n";

async fn timeline(sim: &RunningSim, query: &str) -> Vec<Value> {
    let who = request("GET", "/mastodon/api/v1/accounts/verify_credentials", BEARER, "");
    let (_, account) = sim.answer(&who).await;
    let path = format!("/mastodon/api/v1/accounts/{}/statuses?{query}", account["id"].as_str().unwrap());
    let (status, answer) = sim.answer(&request("GET", &path, BEARER, "")).await;
    assert_eq!(status, 200, "{answer}");
    answer.as_array().unwrap().clone()
}

#[tokio::test]
async fn a_repeat_with_another_text_gets_the_first_status() {
    let sim = RunningSim::with(&[]).await;
    let (status, first) = sim.answer(&mastodon(&key(1), "Hi <all>\n\nBye")).await;
    assert_eq!((status, &first["content"]), (200, &json!("<p>Hi &lt;all&gt;</p><p>Bye</p>")));
    assert_eq!(sim.answer(&mastodon(&key(1), "Something else")).await.1, first);
    assert_eq!(sim.actions().len(), 1);
    assert_eq!(sim.actions()[0]["message_id"], first["id"]);
    sim.stop().await;
}

#[tokio::test]
async fn a_timeline_has_the_newest_first_and_can_be_paged() {
    let sim = RunningSim::with(&[]).await;
    let mut ids = Vec::new();
    for n in 0..5 {
        ids.push(sim.answer(&mastodon(&key(n), "Hi")).await.1["id"].clone());
    }
    // A form of another account.
    let form = "content-type: application/x-www-form-urlencoded\r\nauthorization: Bearer other\r\n";
    let other = request("POST", "/mastodon/api/v1/statuses", form, "status=Hi+there&visibility=unlisted");
    assert_eq!(sim.answer(&other).await.1["visibility"], "unlisted");

    ids.reverse();
    let seen = |statuses: Vec<Value>| statuses.iter().map(|status| status["id"].clone()).collect::<Vec<_>>();
    assert_eq!(seen(timeline(&sim, "").await), ids);
    assert_eq!(seen(timeline(&sim, "limit=2").await), ids[..2]);
    let before = format!("limit=2&max_id={}", ids[1].as_str().unwrap());
    assert_eq!(seen(timeline(&sim, &before).await), ids[2..4]);
    let after = format!("since_id={}", ids[3].as_str().unwrap());
    assert_eq!(seen(timeline(&sim, &after).await), ids[..3]);
    sim.stop().await;
}
