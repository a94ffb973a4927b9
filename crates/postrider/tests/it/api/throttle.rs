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
