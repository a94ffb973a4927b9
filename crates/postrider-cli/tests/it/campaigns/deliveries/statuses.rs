//! The results of calls and mails, as they are shown.

use serde_json::{Value, json};

use super::{Scene, mail, phone};
use crate::{api::material::UNKNOWN, sql::texts};

/// The statuses of a run's summary, such as `busy 1`.
fn summary(run: &Value) -> Vec<String> {
    let statuses = run["deliveries"]["statuses"].as_array().into_iter().flatten();
    statuses
        .map(|count| format!("{} {}", count["status"].as_str().unwrap_or_default(), count["items"]))
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_summary_tells_calls_answered_from_calls_placed() -> anyhow::Result<()> {
    let mut scene = Scene::new().await?;
    scene.twilio().await?;
    scene.people(7)?;
    // Repeated, and the last report first: the status is the same.
    let results = ["busy", "no_answer", "failed", "canceled", "machine"];
    let results = results.iter().enumerate().map(
        |(n, result)| json!({ "to": phone(n), "result": result, "times": 1 + n % 2, "reversed": n % 2 == 0 }),
    );
    scene.put("/callbacks/results", &results.collect())?;
    let run = scene.start("calls", "voice", "twilio")?;
    scene.work()?;
    scene.reported(run, 7).await?;

    let viewer = &scene.api.acme.viewer;
    for (n, status) in
        ["busy", "no_answer", "failed", "canceled", "answered_by_machine", "completed"].iter().enumerate()
    {
        let delivery = scene.delivery(run, &phone(n))?;
        assert_eq!(delivery["status"], *status, "{delivery}");
        assert!(delivery["at"].is_string(), "{delivery}");
    }
    assert_eq!(scene.delivery(run, &phone(4))?["detail"], "machine_start");
    let shown = scene.api.get(viewer, &format!("/runs/{run}"))?.expect(200)?;
    assert_eq!(
        summary(&shown),
        ["canceled 1", "failed 1", "no_answer 1", "busy 1", "completed 2", "answered_by_machine 1"]
    );
    assert_eq!(shown["deliveries"]["calls"], json!({ "placed": 7, "answered": 3, "answered_by_machine": 1 }));
    // Every call was placed, and so every item stays `called`.
    assert_eq!(shown["progress"]["succeeded"], 7);

    // One item, the trace, the person, the export; by API and by command.
    let items =
        scene.api.get(viewer, &format!("/runs/{run}/items?recipient=%2B491700000000"))?.expect(200)?;
    let item = items["items"][0]["id"].as_str().unwrap().to_owned();
    let one = scene.api.get(viewer, &format!("/items/{item}"))?.expect(200)?;
    assert_eq!(
        (&one["item"]["status"], &one["item"]["delivery"]["status"]),
        (&json!("called"), &json!("busy"))
    );
    assert!(
        one["callbacks"].as_array().unwrap().iter().any(|callback| callback["status"] == "busy"),
        "{one}"
    );
    let trace = scene.api.get(viewer, &format!("/runs/{run}/trace"))?.expect(200)?;
    let traced = trace["jobs"][0]["items"].as_array().unwrap();
    assert_eq!(traced.iter().filter(|item| item["delivery"]["status"] == "completed").count(), 2);
    let person = scene.api.get(viewer, "/leads?recipient=%2B491700000000")?.expect(200)?;
    let path = format!("/leads/{}/items", person["items"][0]["id"].as_str().unwrap());
    let history = scene.api.get(viewer, &path)?.expect(200)?;
    assert_eq!(history["items"][0]["delivery"]["status"], "busy");
    let export = format!("/runs/{run}/items/export?format=ndjson");
    let export = scene.api.get(&scene.api.acme.operator, &export)?.text();
    assert_eq!(export.matches(r#""delivery_status":"completed""#).count(), 2, "{export}");

    let run_id = run.to_string();
    let world = &scene.api.world;
    let of = |args: &[&str]| -> anyhow::Result<String> {
        let done = world.postrider(&[args, &["--tenant", "acme"]].concat())?;
        anyhow::ensure!(done.code == 0, "{}", done.stderr);
        Ok(format!("{}{}", done.stdout, done.stderr))
    };
    assert!(of(&["trace", &item])?.contains("  busy 2"), "{}", of(&["trace", &item])?);
    assert!(of(&["trace", &phone(4)])?.contains("answered by machine 2"), "{}", of(&["trace", &phone(4)])?);
    let status = of(&["campaign", "status", "calls"])?;
    let counts = "only: 1 canceled, 1 failed, 1 no answer, 1 busy, 2 completed, 1 answered by machine; 3 of 7 calls answered, 1 by a machine";
    assert!(status.contains(counts), "{status}");
    let json: Value = serde_json::from_str(
        &world.postrider(&["campaign", "status", "calls", "--json", "--tenant", "acme"])?.stdout,
    )?;
    assert_eq!(json["deliveries"][0]["calls"]["answered"], 3);
    let csv = of(&["campaign", "export", &run_id])?;
    assert!(csv.lines().next().unwrap().ends_with(",delivery_status,delivery_detail,delivery_at"), "{csv}");
    assert_eq!(csv.matches(",no_answer,").count(), 1, "{csv}");

    // No other tenant sees them.
    let beta = scene.api.tenant("beta").await?;
    for path in [format!("/runs/{run}"), format!("/items/{item}"), format!("/runs/{UNKNOWN}")] {
        scene.api.get(&beta.admin, &path)?.problem(404)?;
    }
    let metrics = crate::http::get(&scene.api.server.http_url, "/metrics")?.body;
    assert!(
        metrics.contains(r#"postrider_deliveries_total{provider="twilio",status="busy"} 1"#),
        "{metrics}"
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hard_bounce_or_a_complaint_suppresses_the_lead_where_the_account_says_so() -> anyhow::Result<()> {
    for (suppress_bounced, suppress_complained) in [(true, true), (false, true), (true, false)] {
        let mut scene = Scene::new().await?;
        let more =
            json!({ "suppress_bounced": suppress_bounced, "suppress_complained": suppress_complained });
        scene.resend(&more).await?;
        scene.people(6)?;
        let results = ["bounced", "soft_bounced", "complained", "failed"];
        let results = results
            .iter()
            .enumerate()
            .map(|(n, result)| json!({ "to": mail(n), "result": result, "times": 2, "reversed": true }));
        scene.put("/callbacks/results", &results.collect())?;
        let run = scene.start("news", "email", "resend")?;
        scene.work()?;
        scene.reported(run, 6).await?;

        let shown = scene.api.get(&scene.api.acme.viewer, &format!("/runs/{run}"))?.expect(200)?;
        assert_eq!(summary(&shown), ["failed 1", "delivered 2", "bounced 2", "complained 1"]);
        assert_eq!(shown["deliveries"]["calls"], Value::Null);
        let bounced = scene.delivery(run, &mail(0))?;
        assert_eq!(bounced["detail"], "Permanent, NoEmail, smtp; 550 5.1.1 user unknown");
        let suppressed = "select split_part(email, '@', 1) || ' ' || suppression_reason from execution.leads where suppressed_at is not null order by 1";
        let expected: Vec<&str> =
            [("person0 hard bounce", suppress_bounced), ("person2 complaint", suppress_complained)]
                .iter()
                .filter(|(_, is_set)| *is_set)
                .map(|(lead, _)| *lead)
                .collect();
        assert_eq!(texts(&scene.api.admin, suppressed).await?, expected);
        // The next campaign leaves them out, with the reason.
        let next = scene.start("more news", "email", "resend")?;
        scene.reported(next, 6 - i64::try_from(expected.len())?).await?;
        let path = format!("/runs/{next}/items?status=skipped");
        let skipped = scene.api.get(&scene.api.acme.viewer, &path)?.expect(200)?;
        assert_eq!(skipped["items"].as_array().map(Vec::len), Some(expected.len()));
        if suppress_bounced {
            assert_eq!(
                skipped["items"][0]["error"].as_str().map(|why| why.starts_with("suppressed: ")),
                Some(true)
            );
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_webhook_settles_an_item_in_doubt_and_an_answer_that_was_lost_costs_nothing() -> anyhow::Result<()>
{
    let mut scene = Scene::new().await?;
    scene.resend(&json!({})).await?;
    scene.people(3)?;
    // It acts, and hangs up.
    scene.sim.set_rules(&json!([{ "fault": "reset" }]))?;
    let run = scene.start("news", "email", "resend")?;
    scene.work()?;
    scene.reported(run, 3).await?;
    let shown = scene.api.get(&scene.api.acme.viewer, &format!("/runs/{run}"))?.expect(200)?;
    assert_eq!((&shown["status"], summary(&shown)), (&json!("completed"), vec!["delivered 3".to_owned()]));
    let settled = "select distinct actor || ' ' || action from execution.campaign_audit_log where action like 'item.resolved%'";
    for line in texts(&scene.api.admin, settled).await? {
        // A webhook that came before its call was given up is there for the resolver.
        let by = line.strip_suffix(" item.resolved_as_sent");
        assert!(by.is_some_and(|by| by == "callback-resend" || by.starts_with("resolver")), "{line}");
    }
    let acted = scene.sim.receipts()?.iter().filter(|receipt| receipt["acted"] == true).count();
    assert_eq!(acted, 3);
    Ok(())
}
