//! Filters of the items in doubt, and many of them settled at a time.

use serde_json::{Value, json};
use uuid::Uuid;

use super::{
    Reply, Stage,
    attacks::census,
    material::{UNKNOWN, account, column, doubt, run, take_all, walk},
};
use crate::{campaigns::execution::calls::finalize, sql::execute};

/// A run with so many items in doubt.
async fn doubts(stage: &Stage, name: &str, count: usize) -> anyhow::Result<(String, String, Vec<Uuid>)> {
    let (campaign, run) = run(stage, &stage.acme, name, count, 2).await?;
    let (worker, taken) = take_all(stage).await?;
    let items: Vec<Uuid> = taken.into_iter().flat_map(|(_, items)| items).collect();
    let doubted: Vec<_> = items.iter().map(|item| (*item, "in_doubt")).collect();
    finalize(&worker, stage.acme.id.0, "w", &doubted).await?;
    Ok((campaign, run, items))
}

fn resolve(stage: &Stage, resolved_as: &str, items: &[Value]) -> anyhow::Result<Reply> {
    let body = json!({ "as": resolved_as, "note": "their log", "items": items });
    stage.post(&stage.acme.operator, "/in-doubt/resolve", &body)
}

#[tokio::test(flavor = "multi_thread")]
async fn items_in_doubt_are_filtered() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    account(&stage, &stage.acme).await?;
    let (spring, spring_run, spring_items) = doubts(&stage, "spring", 3).await?;
    let (_, summer_run, summer_items) = doubts(&stage, "summer", 2).await?;
    let old = format!(
        "update execution.channel_outbox set in_doubt_since = now() - interval '1 day' where id = '{}'",
        spring_items[1]
    );
    execute(&stage.admin, old).await?;
    execute(
        &stage.admin,
        format!("update execution.doubts set is_for_person = true where outbox_id = '{}'", summer_items[0]),
    )
    .await?;
    let person = summer_items[0].to_string();
    let all: Vec<String> = spring_items.iter().chain(&summer_items).map(ToString::to_string).collect();
    let not_person: Vec<String> = all.iter().filter(|id| **id != person).cloned().collect();
    let of_spring: Vec<String> = spring_items.iter().map(ToString::to_string).collect();
    let of_summer: Vec<String> = summer_items.iter().map(ToString::to_string).collect();
    let quiet = vec![spring_items[1].to_string()];
    let not_quiet: Vec<String> = all.iter().filter(|id| !quiet.contains(id)).cloned().collect();
    for (query, mut expected) in [
        (String::new(), all.clone()),
        (format!("run_id={spring_run}"), of_spring.clone()),
        (format!("run_id={summer_run}"), of_summer),
        (format!("run_id={UNKNOWN}"), vec![]),
        (format!("campaign_id={spring}"), of_spring),
        (format!("campaign_id={spring}&run_id={summer_run}"), vec![]),
        ("provider=sim".to_owned(), all.clone()),
        ("provider=smtp".to_owned(), vec![]),
        ("is_quiet=true".to_owned(), quiet),
        ("is_quiet=false".to_owned(), not_quiet),
        ("settled_by=person".to_owned(), vec![person.clone()]),
        // The simulated provider can be asked.
        ("settled_by=look_up".to_owned(), not_person),
        ("settled_by=repeat,callback".to_owned(), vec![]),
        ("settled_by=look_up,person".to_owned(), all),
    ] {
        let listed = walk(&stage, &stage.acme.viewer, &format!("/in-doubt?{query}"), 2, |_| Ok(()))?;
        let mut ids = column(&listed, "outbox_id");
        ids.sort();
        expected.sort();
        assert_eq!(ids, expected, "{query}");
        if let Some(ways) = query.strip_prefix("settled_by=") {
            for shown in column(&listed, "settled_by") {
                assert!(ways.split(',').any(|way| way == shown), "{query} shows {shown}");
            }
        }
    }
    for (query, field) in [
        ("run_id=7", "run_id"),
        ("campaign_id=x", "campaign_id"),
        ("provider=", "provider"),
        ("settled_by=magic", "settled_by"),
        ("is_quiet=perhaps", "is_quiet"),
    ] {
        assert_eq!(stage.get(&stage.acme.viewer, &format!("/in-doubt?{query}"))?.field(400)?, field);
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn of_many_items_a_refused_one_leaves_the_others_settled() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    account(&stage, &stage.acme).await?;
    let beta = stage.tenant("beta").await?;
    account(&stage, &beta).await?;
    let (_, theirs) = doubt(&stage, &beta, "theirs").await?;
    let (_, _, items) = doubts(&stage, "spring", 5).await?;
    let given = [
        json!({ "outbox_id": items[0], "provider_message_id": "m-0" }),
        json!({ "outbox_id": UNKNOWN }),
        json!({ "outbox_id": items[1] }),
        json!({ "outbox_id": theirs }),
        json!({ "outbox_id": items[0] }),
        json!({ "outbox_id": items[2], "provider_message_id": "m-2" }),
    ];
    let answer = resolve(&stage, "sent", &given)?.expect(200)?;
    let expected: Vec<Value> = [0, 1, 2].map(|n| json!({ "outbox_id": items[n], "status": "sent" })).into();
    assert_eq!(answer["resolved"], json!(expected));
    let refused = answer["refused"].as_array().cloned().unwrap_or_default();
    assert_eq!(column(&refused, "outbox_id"), [UNKNOWN.to_owned(), theirs.to_string(), items[0].to_string()]);
    let reasons = column(&refused, "reason");
    assert_eq!(reasons[0].replace(UNKNOWN, "…"), reasons[1].replace(&theirs.to_string(), "…"));
    assert!(reasons[2].contains("is sent already"), "{reasons:?}");
    assert_eq!(
        stage
            .count(
                "select count(*) from execution.channel_outbox where provider_message_id in ('m-0', 'm-2')"
            )
            .await?,
        2
    );
    let logged = "select count(*) from execution.campaign_audit_log
                   where action = 'item.resolved_as_sent' and actor like 'key:%' and note = 'their log'";
    assert_eq!(stage.count(logged).await?, 3);
    assert_eq!(stage.get(&beta.viewer, "/in-doubt")?.expect(200)?["items"].as_array().map(Vec::len), Some(1));

    // As failed it is too early for one of the last two.
    let old = format!(
        "update execution.channel_outbox set in_doubt_since = now() - interval '1 day' where id = '{}'",
        items[4]
    );
    execute(&stage.admin, old).await?;
    let given = [json!({ "outbox_id": items[3] }), json!({ "outbox_id": items[4] })];
    let answer = resolve(&stage, "failed", &given)?.expect(200)?;
    assert_eq!(answer["resolved"], json!([{ "outbox_id": items[4], "status": "failed" }]));
    assert!(answer["refused"][0]["reason"].to_string().contains("may still arrive until"), "{answer}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repeated_request_settles_nothing_twice() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    account(&stage, &stage.acme).await?;
    let (_, _, items) = doubts(&stage, "spring", 2).await?;
    let given: Vec<Value> = items.iter().map(|item| json!({ "outbox_id": item })).collect();
    let body = json!({ "as": "sent", "note": "their log", "items": given });
    let send = || {
        stage
            .call("POST", "/in-doubt/resolve")
            .key(&stage.acme.operator)
            .idempotency_key("k")
            .json(&body)
            .send()
    };
    let first = send()?.expect(200)?;
    assert_eq!(first["resolved"].as_array().map(Vec::len), Some(2));
    let again = send()?;
    assert_eq!(again.header("idempotent-replayed"), Some("true"));
    assert_eq!(again.expect(200)?, first);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_items_are_settled_at_a_time_and_no_more() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    account(&stage, &stage.acme).await?;
    run(&stage, &stage.acme, "spring", 1000, 100).await?;
    let (worker, taken) = take_all(&stage).await?;
    let items: Vec<Uuid> = taken.into_iter().flat_map(|(_, items)| items).collect();
    let doubted: Vec<_> = items.iter().map(|item| (*item, "in_doubt")).collect();
    finalize(&worker, stage.acme.id.0, "w", &doubted).await?;
    let mut given: Vec<Value> = items.iter().map(|item| json!({ "outbox_id": item })).collect();
    given.push(json!({ "outbox_id": UNKNOWN }));
    assert_eq!(resolve(&stage, "sent", &given)?.field(422)?, "items");
    given.pop();
    let answer = resolve(&stage, "sent", &given)?.expect(200)?;
    assert_eq!(answer["resolved"].as_array().map(Vec::len), Some(1000));
    assert_eq!(answer["refused"], json!([]));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_finding_that_makes_no_sense_settles_nothing() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    account(&stage, &stage.acme).await?;
    let (_, item) = doubt(&stage, &stage.acme, "spring").await?;
    let before = census(&stage.admin).await?;
    let of = |item: Value| json!({ "as": "sent", "note": "a", "items": [item] });
    for (body, status, field) in [
        (json!({ "as": "sent", "note": "a" }), 400, ""),
        (json!({ "as": "sent", "note": "a", "items": [] }), 422, "items"),
        (json!({ "as": "lost", "note": "a", "items": [{ "outbox_id": item }] }), 400, "as"),
        (json!({ "as": "sent", "note": " ", "items": [{ "outbox_id": item }] }), 422, "note"),
        (of(json!({ "outbox_id": "7" })), 400, "items[0].outbox_id"),
        (of(json!({ "outbox_id": item, "status": "sent" })), 400, "items[0].status"),
        (of(json!({ "outbox_id": item, "provider_message_id": "" })), 422, "items[0].provider_message_id"),
        (
            json!({ "as": "failed", "note": "a", "items": [{ "outbox_id": item, "provider_message_id": "m" }] }),
            422,
            "items[0].provider_message_id",
        ),
    ] {
        let reply = stage.post(&stage.acme.operator, "/in-doubt/resolve", &body)?;
        assert_eq!(reply.field(status)?, field, "{body}");
    }
    let good = of(json!({ "outbox_id": item }));
    stage.post(&stage.acme.viewer, "/in-doubt/resolve", &good)?.problem(403)?;
    assert_eq!(census(&stage.admin).await?, before);
    Ok(())
}
