//! Dead letters, alerts and decision cards.

use serde_json::{Value, json};

use super::{begin, end_all, noop};
use crate::{
    api::{
        Stage,
        material::{assert_same_404, column, id, walk},
    },
    sql::execute,
};

#[tokio::test]
async fn a_letter_is_resolved_by_a_person_or_by_the_run_that_completes() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let (viewer, operator) = (&stage.acme.viewer, &stage.acme.operator);
    noop(&stage, "a", &json!({}))?;
    noop(&stage, "b", &json!({}))?;
    let mut runs = Vec::new();
    for name in ["a", "b"] {
        runs.push(begin(&stage, name)?);
        end_all(&stage, &Err((format!("{name} broke"), false))).await?;
    }
    let list = |query: &str| walk(&stage, viewer, &format!("/sync-errors{query}"), 1, |_| Ok(()));
    let open = list("?resolved=false")?;
    assert_eq!(column(&open, "error_message"), ["b broke", "a broke"]);
    assert_eq!(column(&open, "source_entity_id"), [runs[1].clone(), runs[0].clone()]);
    let (of_b, of_a) = (id(&open[0])?, id(&open[1])?);
    let letter = stage.get(viewer, &format!("/sync-errors/{of_a}"))?.expect(200)?;
    assert_eq!(letter, open[1]);
    for (member, expected) in [
        ("error_type", json!("job_failure")),
        ("error_code", json!("EXECUTION_ERROR")),
        ("source_entity_type", json!("job_run")),
        ("is_resolved", json!(false)),
    ] {
        assert_eq!(letter[member], expected, "{member}");
    }
    assert_eq!(letter["error_details"]["function_name"], "a");

    let resolve =
        |letter: &str, body: Value| stage.post(operator, &format!("/sync-errors/{letter}/resolve"), &body);
    for (body, status, field) in [
        (json!({ "note": " " }), 422, "note"),
        (json!({ "note": "x".repeat(2001) }), 422, "note"),
        (json!({ "note": null }), 400, "note"),
        (json!({}), 400, ""),
        (json!({ "note": "x", "is_resolved": true }), 400, "is_resolved"),
    ] {
        assert_eq!(resolve(&of_a, body.clone())?.field(status)?, field, "{body}");
    }
    let resolved = resolve(&of_a, json!({ "note": "mended by hand" }))?.expect(200)?;
    assert_eq!(
        (&resolved["is_resolved"], &resolved["resolution_note"]),
        (&json!(true), &json!("mended by hand"))
    );
    assert_eq!(resolve(&of_a, json!({ "note": "another" }))?.expect(200)?, resolved, "the first note stays");

    // From the letter of the other run it is tried again, and completes.
    let retry =
        |letter: &str| stage.call("POST", &format!("/sync-errors/{letter}/retry")).key(operator).send();
    let run = retry(&of_b)?.expect(200)?;
    assert_eq!((&run["id"], &run["status"]), (&json!(runs[1]), &json!("running")));
    assert_eq!(retry(&of_b)?.problem(409)?["current_state"], "running");
    assert_eq!(list("?resolved=false")?.len(), 1, "not before it is completed");
    end_all(&stage, &Ok(json!(null))).await?;
    assert_eq!((list("?resolved=false")?.len(), list("?resolved=true")?.len(), list("")?.len()), (0, 2, 2));
    assert_eq!(retry(&of_b)?.problem(409)?["current_state"], "completed");
    // Another run has taken the key of the first one since.
    let other = begin(&stage, "a")?;
    assert_eq!(retry(&of_a)?.problem(409)?["existing_job_id"], json!(other));

    let theirs = stage.tenant("other").await?;
    let calls = [
        ("GET", "/sync-errors/{id}", Value::Null),
        ("POST", "/sync-errors/{id}/retry", Value::Null),
        ("POST", "/sync-errors/{id}/resolve", json!({ "note": "mine" })),
    ];
    assert_same_404(&stage, &theirs.admin, &calls, &of_a)
}

#[tokio::test]
async fn alerts_are_listed_and_their_cards_decided() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let (viewer, operator) = (&stage.acme.viewer, &stage.acme.operator);
    let tenant = stage.acme.id.0;
    execute(
        &stage.admin,
        format!(
            "select set_config('app.current_tenant_id', '{tenant}', false);
             select jobs.raise_alert(tenancy.current_tenant_id(), 'stock', 'sku-' || n, 'low: ' || n, 'critical', '{{\"left\": 1}}') from generate_series(1, 3) as n;
             select jobs.generate_decision_cards(tenancy.current_tenant_id());
             select jobs.resolve_alert(tenancy.current_tenant_id(), 'stock', 'sku-1');"
        ),
    )
    .await?;
    let alerts = |query: &str| {
        let listed = walk(&stage, viewer, &format!("/alerts{query}"), 2, |_| Ok(()))?;
        let mut titles = column(&listed, "title");
        titles.sort();
        anyhow::Ok(titles)
    };
    assert_eq!(alerts("?open=true")?, ["low: 2", "low: 3"]);
    assert_eq!(alerts("?open=false")?, ["low: 1"]);
    let shown = stage.get(viewer, "/alerts?open=false")?.expect(200)?["items"][0].clone();
    assert_eq!(
        (&shown["severity"], &shown["status"], &shown["evidence"]["left"]),
        (&json!("critical"), &json!("resolved"), &json!(1))
    );
    assert_eq!((&shown["external_object_id"], &shown["notifications"]), (&json!("sku-1"), &json!([])));
    assert_eq!(stage.get(viewer, "/alerts?open=maybe")?.field(400)?, "open");

    let cards = |query: &str| walk(&stage, viewer, &format!("/decision-cards{query}"), 1, |_| Ok(()));
    let all = cards("")?;
    assert_eq!((all.len(), cards("?status=OPEN")?.len(), cards("?status=DISMISSED")?.len()), (3, 3, 0));
    assert_eq!(stage.get(viewer, "/decision-cards?status=open")?.field(400)?, "status");
    let card = id(&all[0])?;
    assert_eq!(stage.get(viewer, &format!("/decision-cards/{card}"))?.expect(200)?, all[0]);
    let decide = |body: Value| stage.post(operator, &format!("/decision-cards/{card}/decide"), &body);
    for (body, status, field) in [
        (json!({ "status": "DONE" }), 400, "status"),
        (json!({ "note": "x" }), 400, ""),
        (json!({ "status": "RESOLVED", "note": "x".repeat(2001) }), 422, "note"),
        (json!({ "status": "RESOLVED", "by": "me" }), 400, "by"),
    ] {
        assert_eq!(decide(body.clone())?.field(status)?, field, "{body}");
    }
    for status in ["IN_PROGRESS", "OPEN", "DISMISSED", "DISMISSED"] {
        let decided = decide(json!({ "status": status, "note": "seen" }))?.expect(200)?;
        assert_eq!((&decided["status"], &decided["note"]), (&json!(status), &json!("seen")));
    }
    let problem = decide(json!({ "status": "RESOLVED" }))?.problem(409)?;
    assert_eq!(problem["current_state"], "DISMISSED");
    assert_eq!(problem["detail"], "the card is DISMISSED already, and stays so");
    stage
        .post(viewer, &format!("/decision-cards/{card}/decide"), &json!({ "status": "OPEN" }))?
        .problem(403)?;
    let theirs = stage.tenant("other").await?;
    let calls = [
        ("GET", "/decision-cards/{id}", Value::Null),
        ("POST", "/decision-cards/{id}/decide", json!({ "status": "RESOLVED" })),
    ];
    assert_same_404(&stage, &theirs.admin, &calls, &card)
}
