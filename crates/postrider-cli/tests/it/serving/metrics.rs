//! The metrics that the server exposes to Prometheus.

use std::collections::HashMap;

use postrider_engine::common::metrics::{Kind, METRICS, Metric};

use super::{SECRET, publish};
use crate::{
    campaigns::stage::Stage,
    http::get,
    world::{Server, Sim, World, eventually},
};

/// The name under which a sample is described: the samples of a histogram have names of their own.
fn family(sample: &str) -> &str {
    let name = sample.split(['{', ' ']).next().unwrap_or_default();
    let is_histogram = |metric: &&Metric| matches!(metric.kind, Kind::Histogram(_));
    let base = ["_bucket", "_sum", "_count"].iter().find_map(|suffix| name.strip_suffix(suffix));
    let of = METRICS.iter().filter(is_histogram).find(|metric| Some(metric.name) == base);
    of.map_or(name, |metric| metric.name)
}

#[tokio::test(flavor = "multi_thread")]
async fn every_exported_metric_has_help_and_type_and_latencies_have_buckets() -> anyhow::Result<()> {
    let (world, sim) = (World::new().await?, Sim::start(&["--secret", SECRET])?);
    let stage = Stage::with_sim(&world, &sim, 10).await?;
    let roles = "api,campaigns,resolver,dispatcher,relay,scheduler";
    let server = Server::start(&world, roles, &sim.sink("crm", SECRET))?;
    publish(&world)?;
    let run = stage.deploy_one("measured", "email").await?;
    assert_eq!(stage.ended(run).await?, "completed");
    let samples = [
        r#"postrider_item_claim_to_call_seconds_count{provider="sim"} 10"#,
        r#"postrider_item_claim_to_call_seconds_bucket{provider="sim",le="+Inf"} 10"#,
        r#"postrider_call_seconds_count{provider="sim"} 10"#,
        r#"postrider_call_seconds_bucket{provider="sim",le="120"} 10"#,
        "postrider_send_jobs_waiting 0",
        "postrider_job_runs_waiting 0",
    ];
    let deliveries = r#"postrider_event_commit_to_delivery_seconds_bucket{sink="crm",le="+Inf"} "#;
    eventually("everything was measured", async || {
        let exported = get(&server.http_url, "/metrics")?.body;
        let has = |start: &str| exported.lines().any(|line| line.starts_with(start));
        Ok(samples.iter().all(|sample| exported.lines().any(|line| line == *sample)) && has(deliveries))
    })
    .await?;

    let exported = get(&server.http_url, "/metrics")?.body;
    let described = |word: &str| -> HashMap<&str, &str> {
        let lines = exported.lines().filter_map(|line| line.strip_prefix("# ")?.strip_prefix(word));
        lines.filter_map(|line| line.trim_start().split_once(' ')).collect()
    };
    let (help, types) = (described("HELP"), described("TYPE"));
    for sample in exported.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let name = family(sample);
        let metric = METRICS.iter().find(|metric| metric.name == name);
        let metric = metric.unwrap_or_else(|| panic!("METRICS does not have `{name}`: {sample}"));
        let kind = match metric.kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram(_) => "histogram",
        };
        assert_eq!((help.get(name), types.get(name)), (Some(&metric.help), Some(&kind)), "{sample}");
        let labels =
            sample.split_once('{').map_or("", |(_, rest)| rest.split('}').next().unwrap_or_default());
        let labels: Vec<&str> = labels
            .split(',')
            .filter_map(|label| Some(label.split_once('=')?.0))
            .filter(|l| *l != "le")
            .collect();
        assert_eq!(labels, metric.labels, "{sample}");
    }
    Ok(())
}

#[tokio::test]
async fn metrics_are_served_at_their_own_address_alone_where_one_is_set() -> anyhow::Result<()> {
    let world = World::new().await?;
    let mut server = Server::start(&world, "api", "[metrics]\nlisten = '127.0.0.1:0'\n")?;
    let line = server.process.wait_for_line("metrics are served at ")?;
    let message = serde_json::from_str::<serde_json::Value>(&line)?["message"].to_string();
    let url =
        message.trim_matches('"').trim_start_matches("metrics are served at ").trim_end_matches("/metrics");
    for (url, path, status) in [
        (&*server.http_url, "/metrics", 404),
        (&*server.http_url, "/healthz", 200),
        (&*server.http_url, "/readyz", 200),
        (&*server.http_url, "/api/v2/whoami", 401),
        (url, "/metrics", 200),
        (url, "/healthz", 200),
        (url, "/readyz", 200),
        (url, "/api/v2/whoami", 404),
    ] {
        assert_eq!(get(url, path)?.status, status, "{url}{path}");
    }
    assert!(get(url, "/metrics")?.body.contains("# HELP postrider_stream_readers "));
    server.process.signal("TERM")?;
    assert_eq!(server.process.wait()?.code(), Some(0));
    Ok(())
}
