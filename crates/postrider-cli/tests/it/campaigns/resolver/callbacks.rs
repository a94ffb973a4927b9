//! Callbacks are believed because they are signed, and for nothing else.

use uuid::Uuid;

use super::Scene;
use crate::{
    http::send,
    sql::{number, tenant},
};

#[tokio::test(flavor = "multi_thread")]
async fn a_forged_callback_is_refused_with_the_reason_and_changes_nothing() -> anyhow::Result<()> {
    // It does not act, so nobody calls back but us.
    let scene = Scene::new(&["--rule", r#"{"fault": "reset_before"}"#]).await?;
    let run = scene.deploy("twilio", "voice").await?;
    scene.doubt(&[run]).await?;
    let key = scene
        .stage
        .ask(&format!("select idempotency_key from execution.channel_outbox where run_id = '{run}' limit 1"))
        .await?;
    let (twilio, sim) = (scene.accounts["twilio"], scene.accounts["sim"]);
    let body = "CallSid=CA0123456789abcdef0123456789abcdef&CallStatus=completed";
    let form = ("content-type", "application/x-www-form-urlencoded");
    let forged = ("x-twilio-signature", "RSOYDt4T1cUTdK1PDd93/VVr8B8=");
    let of = |tenant: Uuid, provider: &str, account: &str, key: &str| {
        format!("/api/v2/tenants/{tenant}/providers/{provider}/{account}/callback/{key}")
    };
    let path = |provider: &str, account: &str, key: &str| of(scene.stage.tenant, provider, account, key);
    let (other, _) = tenant(&scene.stage.admin, "other").await?;
    let good = path("twilio", &twilio.to_string(), &key);
    for (path, headers, status, says) in [
        (good.clone(), vec![form], "403", "`X-Twilio-Signature` is missing"),
        (good.clone(), vec![form, forged], "403", "signature"),
        (good.clone(), vec![form, ("x-twilio-signature", "")], "403", "signature"),
        (path("sim", &twilio.to_string(), &key), vec![form, forged], "404", "no such callback address"),
        (path("sim", &sim.to_string(), &key), vec![form, forged], "404", "no such callback address"),
        (
            path("twilio", "019a0000-0000-7000-8000-000000000000", &key),
            vec![form, forged],
            "404",
            "no such callback address",
        ),
        (path("twilio", "not-an-id", &key), vec![form, forged], "404", "no such callback address"),
        (
            of(other, "twilio", &twilio.to_string(), &key),
            vec![form, forged],
            "404",
            "no such callback address",
        ),
        (
            of(Uuid::nil(), "twilio", &twilio.to_string(), &key),
            vec![form, forged],
            "404",
            "no such callback address",
        ),
    ] {
        let answer = send(&scene.api.http_url, "POST", &path, &headers, body)?;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{path}: {answer}");
        assert!(answer.contains(says), "{path}: {answer}");
    }
    let large = "a".repeat(100_000);
    let answer = send(&scene.api.http_url, "POST", &good, &[form, forged], &large)?;
    assert!(answer.starts_with("HTTP/1.1 4"), "{answer}");
    assert_eq!(number(&scene.stage.admin, "select count(*) from execution.provider_callbacks").await?, 0);
    assert_eq!(scene.stage.items(run).await?.get("in doubt"), Some(&super::LEADS));
    Ok(())
}
