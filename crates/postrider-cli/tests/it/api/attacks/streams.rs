//! The live stream of one tenant's campaign, for another one.

use anyhow::Context;

use super::{Call, Duel};
use crate::{api::material::UNKNOWN, campaigns::stream::client::Reading};

#[tokio::test(flavor = "multi_thread")]
async fn no_position_opens_another_tenant_s_stream() -> anyhow::Result<()> {
    let duel = Duel::new().await?;
    let (attacker, victim) = (&duel.attacker, &duel.victim);
    let path = format!("/campaigns/{}/phases/{}/start", victim.campaign, victim.phase);
    duel.stage.post(&victim.tenant.operator, &path, &serde_json::json!({}))?.expect(200)?;
    for (header, query) in [
        (None, ""),
        (Some("0"), ""),
        (Some("1"), ""),
        (Some("999999"), ""),
        (None, "?after=0"),
        (Some("0"), "?after=1"),
    ] {
        let ask = |campaign: &str| {
            let path = format!("/api/v2/campaigns/{campaign}/events{query}");
            let mut call = Call::new(&duel.stage.server.http_url, "GET", &path).key(&attacker.tenant.admin);
            if let Some(header) = header {
                call = call.header("last-event-id", header);
            }
            call.header("x-request-id", "same").send()
        };
        let theirs = ask(&victim.campaign)?;
        assert_eq!(theirs.status, 404, "{header:?} {query}: {}", theirs.text());
        assert_eq!(theirs.text(), ask(UNKNOWN)?.text(), "{header:?} {query}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_tells_of_its_own_campaign_alone() -> anyhow::Result<()> {
    let duel = Duel::new().await?;
    let (attacker, victim) = (&duel.attacker, &duel.victim);
    let url = &duel.stage.server.http_url;
    let events = |campaign: &str| format!("/api/v2/campaigns/{campaign}/events?after=0");
    let mut own = Reading::open(url, &events(&attacker.campaign), &attacker.tenant.viewer, &[]).await?;
    let mut theirs = Reading::open(url, &events(&victim.campaign), &victim.tenant.viewer, &[]).await?;
    // Theirs are first, and have come before ours happen.
    for (things, reading, controls) in
        [(victim, &mut theirs, &["start", "pause", "resume"][..]), (attacker, &mut own, &["start", "pause"])]
    {
        for control in controls {
            let path = format!("/campaigns/{}/phases/{}/{control}", things.campaign, things.phase);
            duel.stage.post(&things.tenant.operator, &path, &serde_json::json!({}))?.expect(200)?;
        }
        for expected in 1..=controls.len() {
            let event = reading.event().await?.json()?;
            assert_eq!(event["campaignId"], things.campaign, "{event}");
            let sequence = event["sequence"].as_u64().context("no sequence")?;
            assert_eq!(sequence, u64::try_from(expected)?, "{event}");
        }
    }
    Ok(())
}
