//! How fast one key may ask.

use std::net::{IpAddr, Ipv4Addr};

use super::{Call, Reply, Stage};

/// Where requests of the tests come from if they do not say otherwise.
const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

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
    stage.get(&unknown(0), "/whoami")?.problem(401)?;
    let metrics = Call::new(&stage.server.http_url, "GET", "/metrics").send()?;
    assert!(metrics.text().contains("postrider_requests_throttled_total 1"), "{}", metrics.text());
    Ok(())
}

/// So few invalid keys a second that any machine sends more.
const FEW: &str = "[api]\nrate_per_second = 0\ninvalid_keys_per_second = 1\ninvalid_keys_burst = 5\n";

/// Sends keys of the right form that are not known until the server refuses to look them up. `call` gets the number of the
/// guess. Also says how many were looked up.
async fn guess_until_refused(
    from: IpAddr,
    mut call: impl FnMut(u32) -> Call,
) -> anyhow::Result<(u32, Reply)> {
    for n in 0..1000 {
        let reply = call(n).key(&unknown(n)).send_from(from).await?;
        if reply.status == 429 {
            return Ok((n, reply));
        }
        reply.problem(401)?;
    }
    anyhow::bail!("a thousand unknown keys were looked up")
}

fn unknown(n: u32) -> String {
    format!("pr_{}_{n:A>43}", uuid::Uuid::nil().simple())
}

#[tokio::test]
async fn a_peer_that_guesses_keys_is_refused_and_known_keys_of_it_go_on() -> anyhow::Result<()> {
    let stage = Stage::with(FEW).await?;
    let known = &stage.acme.viewer;
    stage.get(known, "/whoami")?.expect(200)?;
    let (looked_up, refused) = guess_until_refused(HERE, |_| stage.call("GET", "/whoami")).await?;
    assert!(looked_up >= 5, "{looked_up}");
    let problem = refused.problem(429)?;
    assert!(problem["detail"].to_string().contains("not valid"), "{problem}");
    let wait: u64 = refused.header("retry-after").unwrap_or_default().parse()?;
    assert_eq!(wait, 1, "{problem}");
    stage.get(known, "/whoami")?.expect(200)?;
    Ok(())
}

#[tokio::test]
async fn a_valid_key_gets_in_however_many_unknown_keys_other_peers_send() -> anyhow::Result<()> {
    let stage = Stage::with(FEW).await?;
    for guesser in 2..6 {
        let guesser = IpAddr::from([127, 0, 0, guesser]);
        guess_until_refused(guesser, |_| stage.call("GET", "/whoami")).await?;
        // None of these keys was seen before.
        let tenant = stage.tenant(&format!("tenant-{guesser}")).await?;
        for key in [&tenant.viewer, &tenant.operator, &tenant.admin] {
            stage.get(key, "/whoami")?.expect(200)?;
        }
    }
    Ok(())
}

#[tokio::test]
async fn clients_behind_a_trusted_proxy_are_told_apart_and_others_cannot_pretend_to_be_behind_one()
-> anyhow::Result<()> {
    let stage = Stage::with(&format!("{FEW}trusted_proxies = ['127.0.0.1', '10.0.0.0/8']\n")).await?;
    // Each guess claims to come from another client, and then names the one that the proxy saw.
    let guess = |n: u32, seen: &str| {
        let forwarded = format!("198.51.100.{}, {seen}, 10.0.0.1", n % 256);
        stage.call("GET", "/whoami").header("x-forwarded-for", &forwarded)
    };
    guess_until_refused(HERE, |n| guess(n, "203.0.113.5")).await?;
    guess(1, "203.0.113.6").key(&unknown(1)).send()?.problem(401)?;
    // A peer that is no trusted proxy is the client, whatever it forwards.
    let elsewhere = IpAddr::from([127, 0, 0, 9]);
    let pretend = |n: u32| guess(n, &format!("203.0.114.{}", n % 256));
    guess_until_refused(elsewhere, pretend).await?;
    Ok(())
}
