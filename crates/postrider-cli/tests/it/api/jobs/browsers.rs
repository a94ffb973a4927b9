//! Invocations from pages in browsers.

use serde_json::json;

use super::{invocation, noop};
use crate::api::{Reply, Stage};

/// Every value of a header.
fn all<'a>(reply: &'a Reply, name: &str) -> Vec<&'a str> {
    reply.headers.iter().filter(|(known, _)| known == name).map(|(_, value)| value.as_str()).collect()
}

#[tokio::test]
async fn every_page_may_invoke_functions_and_do_nothing_else() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    noop(&stage, "sync", &json!({}))?;
    let preflight = stage
        .call("OPTIONS", "/functions/sync/invoke")
        .header("origin", "https://page.example")
        .header("access-control-request-method", "POST")
        .send()?;
    assert_eq!((preflight.status, preflight.body.len()), (200, 0));
    assert_eq!(all(&preflight, "access-control-allow-origin"), ["*"]);
    let headers = "authorization, x-client-info, apikey, content-type, idempotency-key";
    assert_eq!(all(&preflight, "access-control-allow-headers"), [headers]);
    let call = || {
        invocation(&stage, &stage.acme, "sync/invoke?wait=0", &json!({}))
            .header("origin", "https://page.example")
    };
    for status in [202, 409] {
        let reply = call().send()?;
        reply.expect(status)?;
        assert_eq!(all(&reply, "access-control-allow-origin"), ["*"], "{status}");
        assert_eq!(all(&reply, "access-control-allow-credentials"), [""; 0]);
    }
    let stranger = stage.call("POST", "/functions/sync/invoke").send()?;
    stranger.problem(401)?;
    assert_eq!(all(&stranger, "access-control-allow-origin"), ["*"], "problems can be read, too");
    for (method, path) in
        [("GET", "/functions/sync"), ("OPTIONS", "/functions/sync"), ("OPTIONS", "/job-runs")]
    {
        let reply = stage
            .call(method, path)
            .key(&stage.acme.viewer)
            .header("origin", "https://page.example")
            .send()?;
        assert_eq!(all(&reply, "access-control-allow-origin"), [""; 0], "{method} {path}");
    }
    Ok(())
}

#[tokio::test]
async fn where_origins_are_configured_they_hold_for_invocations_too() -> anyhow::Result<()> {
    let stage = Stage::with("[api]\ncors_origins = ['https://desk.example']\n").await?;
    noop(&stage, "sync", &json!({}))?;
    for (origin, granted) in
        [("https://desk.example", &["https://desk.example"][..]), ("https://page.example", &[])]
    {
        for method in ["OPTIONS", "POST"] {
            let call = stage.call(method, "/functions/sync/invoke?wait=0").key(&stage.acme.operator);
            let reply =
                call.header("origin", origin).header("access-control-request-method", "POST").send()?;
            assert_eq!(all(&reply, "access-control-allow-origin"), granted, "{method} {origin}");
        }
    }
    Ok(())
}
