//! A provider with late effects: it stores the key late, denies a call that it carried out, or acts after the connection ended. The
//! resolver runs from the beginning, with short quiet times.

use super::{LEADS, PROVIDERS, Scene, success};

/// Several times as long as the faults last, so that load on the machine does not make an effect later than this. The attempts of a job
/// last longer.
const QUIET_SECONDS: u32 = 10;

/// Every item meets the fault once, lasting for a while after its call, well inside the quiet time. In the end each was done,
/// and once.
async fn done_once(fault: &str, providers: &[&str]) -> anyhow::Result<()> {
    let times = LEADS * providers.len();
    let rule = format!(r#"{{"fault": "{fault}", "delay_ms": 1500, "times": {times}}}"#);
    let scene = Scene::new(&["--rule", &rule]).await?;
    let mut runs = Vec::new();
    for (provider, channel) in PROVIDERS.into_iter().filter(|(provider, _)| providers.contains(provider)) {
        runs.push((provider, channel, scene.deploy_with(provider, channel, QUIET_SECONDS).await?));
    }
    let _resolver = scene.serve("campaigns,resolver")?;
    for (provider, channel, run) in runs {
        assert_eq!(scene.stage.ended(run).await?, "completed", "{provider}");
        assert_eq!(scene.stage.items(run).await?, [(success(channel), LEADS)].into(), "{provider}");
        assert_eq!(scene.acted_in(run).await?, [1; LEADS], "{provider}");
    }
    let struck = scene.sim.receipts()?.into_iter().filter(|receipt| receipt["fault"] == fault).count();
    assert!(struck >= times, "the fault struck {struck} times, and not {times}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_effect_after_the_connection_died_is_found_and_not_repeated() -> anyhow::Result<()> {
    // Those that are asked or called back. A repeat that comes first is another matter: it is the one that is done.
    done_once("act_late", &["resend", "mastodon", "sim", "twilio"]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_put_that_arrives_late_changes_nothing() -> anyhow::Result<()> {
    done_once("act_late", &["bluesky", "webhook"]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_is_stored_late_is_waited_for() -> anyhow::Result<()> {
    done_once("key_late", &["resend", "mastodon"]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repeat_whose_key_is_stored_late_is_waited_for_too() -> anyhow::Result<()> {
    // The first request never arrives, the repeat is done and its key stored late.
    let scene = Scene::new(&[
        "--rule",
        &format!(r#"{{"fault": "reset_before", "times": {LEADS}}}"#),
        "--rule",
        &format!(r#"{{"fault": "key_late", "delay_ms": 2500, "times": {LEADS}}}"#),
    ])
    .await?;
    // Two of these quiet times pass, before the last attempt of the send job after fifteen seconds.
    let run = scene.deploy_with("resend", "email", 5).await?;
    let _resolver = scene.serve("campaigns,resolver")?;
    assert_eq!(scene.stage.ended(run).await?, "completed");
    assert_eq!(scene.stage.items(run).await?, [("sent".to_owned(), LEADS)].into());
    assert_eq!(scene.acted_in(run).await?, [1; LEADS]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_look_up_that_comes_too_early_is_not_believed() -> anyhow::Result<()> {
    done_once("lookup_early", &["sim"]).await
}
