//! How fast one key may ask.

use super::Stage;

#[tokio::test]
async fn a_key_that_is_too_fast_is_told_to_wait_and_others_are_not() -> anyhow::Result<()> {
    let stage = Stage::with("[api]\nrate_per_second = 1\nburst = 5\n").await?;
    let other = stage.tenant("other").await?;
    let mut refused = None;
    for _ in 0..100 {
        let reply = stage.get(&stage.acme.viewer, "/whoami")?;
        if reply.status == 429 {
            refused = Some(reply);
            break;
        }
        reply.expect(200)?;
    }
    let refused = refused.expect("a hundred requests are more than five");
    let problem = refused.problem(429)?;
    let wait: u64 = refused.header("retry-after").unwrap_or_default().parse()?;
    assert!((1..=5).contains(&wait), "{problem}");
    stage.get(&stage.acme.operator, "/whoami")?.expect(200)?;
    stage.get(&other.viewer, "/whoami")?.expect(200)?;
    // Strangers have no bucket to fill.
    stage.get("pr_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA", "/whoami")?.problem(401)?;
    let metrics = super::Call::new(&stage.server.http_url, "GET", "/metrics").send()?;
    assert!(metrics.text().contains("postrider_requests_throttled_total 1"), "{}", metrics.text());
    Ok(())
}

#[tokio::test]
async fn guesses_at_keys_are_refused_unasked_and_known_keys_go_on() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let known = &stage.acme.viewer;
    stage.get(known, "/whoami")?.expect(200)?;
    let guess = |n: u32| stage.get(&format!("pr_{n:A>43}"), "/whoami");
    let mut refused = None;
    for n in 0..5_000 {
        let reply = guess(n)?;
        if reply.status == 429 {
            refused = Some(reply);
            break;
        }
        reply.problem(401)?;
    }
    let refused = refused.expect("five thousand guesses are too many");
    assert!(refused.problem(429)?["detail"].to_string().contains("not valid"), "{}", refused.text());
    assert_eq!(refused.header("retry-after"), Some("1"));
    stage.get(known, "/whoami")?.expect(200)?;
    Ok(())
}
