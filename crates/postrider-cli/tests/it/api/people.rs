//! One person by the API: what they were sent, the end of a suppression, erasure.

use anyhow::Context;
use serde_json::{Value, json};

use super::{
    Stage,
    material::{UNKNOWN, account, asset, column, id, import, one_phase, take_all, walk},
};
use crate::campaigns::execution::calls::{complete, finalize};

const ANN: &str = "Ann@Example.org";

/// Ann and Bob on list `people`; the id of Ann.
fn people(stage: &Stage) -> anyhow::Result<String> {
    let csv = format!(
        "external_id,email,phone,first_name,number\na-1,{ANN},+4930901820,Ann,1\nb-1,bob@example.org,,Bob,2\n"
    );
    import(stage, &stage.acme, "people", &csv)?.expect(200)?;
    let found = stage.get(&stage.acme.viewer, "/leads?external_id=a-1")?.expect(200)?;
    id(&found["items"][0])
}

/// A campaign to everybody, of which the item of Ann ends like this.
async fn campaign(stage: &Stage, name: &str, lead: &str, end: &str) -> anyhow::Result<()> {
    let asset = asset(stage, &stage.acme, name)?;
    let made =
        stage.post(&stage.acme.operator, "/campaigns", &one_phase(name, &asset, "people"))?.expect(201)?;
    let path = format!("/campaigns/{}/phases/mail/start", id(&made)?);
    stage.post(&stage.acme.operator, &path, &json!({}))?.expect(200)?;
    let (worker, taken) = take_all(stage).await?;
    for (job, items) in taken {
        let ends: Vec<_> = items
            .iter()
            .zip(&job.item_ids)
            .map(|(item, recipient)| (*item, if recipient.to_string() == lead { end } else { "sent" }))
            .collect();
        finalize(&worker, stage.acme.id.0, "w", &ends).await?;
        complete(&worker, "w", &job).await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn everything_a_person_was_sent_or_not_is_listed_newest_first() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    account(&stage, &stage.acme).await?;
    let lead = people(&stage)?;
    let path = format!("/leads/{lead}/items");
    assert_eq!(
        stage.get(&stage.acme.viewer, &path)?.expect(200)?,
        json!({ "items": [], "next_cursor": null })
    );
    for (name, end) in [("one", "sent"), ("two", "failed"), ("three", "in_doubt"), ("four", "sent")] {
        campaign(&stage, name, &lead, end).await?;
    }
    let all = walk(&stage, &stage.acme.viewer, &path, 2, |_| Ok(()))?;
    assert_eq!(column(&all, "campaign"), ["four", "three", "two", "one"]);
    assert_eq!(column(&all, "status"), ["sent", "queued", "failed", "sent"]);
    assert!(all.iter().all(|item| item["recipient_id"] == json!(lead) && item["phase"] == "mail"), "{all:?}");
    assert_eq!((&all[2]["error"], &all[0]["error"]), (&json!("why"), &Value::Null));
    assert!(
        all[1]["doubted_since"].is_string()
            && all[0]["idempotency_key"].as_str().is_some_and(|key| key.len() == 64)
    );

    // By any address, whatever its case.
    for recipient in ["ann@example.org", "ANN@EXAMPLE.ORG", "%2B4930901820", "+4930901820", "a-1"] {
        let found = stage.get(&stage.acme.viewer, &format!("/leads?recipient={recipient}"))?.expect(200)?;
        assert_eq!(column(found["items"].as_array().unwrap(), "id"), [lead.as_str()], "{recipient}");
    }
    let both = stage.get(&stage.acme.viewer, "/leads?recipient=a-1&list=people")?.expect(200)?;
    assert_eq!(both["items"].as_array().map(Vec::len), Some(1));
    let none = stage.get(&stage.acme.viewer, "/leads?recipient=ann")?.expect(200)?;
    assert_eq!(none["items"], json!([]));

    let beta = stage.tenant("beta").await?;
    stage.get(&beta.admin, &path)?.problem(404)?;
    stage.get(&stage.acme.viewer, &format!("/leads/{UNKNOWN}/items"))?.problem(404)?;
    stage.get(&stage.acme.viewer, &format!("{path}?limit=0"))?.problem(400)?;
    stage.get(&stage.acme.viewer, &format!("{path}?cursor=x"))?.problem(400)?;
    stage.call("GET", &path).send()?.problem(401)?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_suppression_ends_with_a_note_and_names_the_leads_that_still_keep_messages() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let lead = people(&stage)?;
    import(&stage, &stage.acme, "people", "external_id,email\na-2,ann@example.org\n")?.expect(200)?;
    let (suppress, unsuppress) = (format!("/leads/{lead}/suppress"), format!("/leads/{lead}/unsuppress"));
    let operator = &stage.acme.operator;
    stage.post(operator, &suppress, &json!({ "reason": "unsubscribed" }))?.expect(200)?;
    let other = stage.get(operator, "/leads?external_id=a-2")?.expect(200)?;
    let other = id(&other["items"][0])?;
    stage
        .post(operator, &format!("/leads/{other}/suppress"), &json!({ "reason": "unsubscribed" }))?
        .expect(200)?;

    for (body, status) in [
        (json!({}), 400),
        (json!({ "note": " " }), 422),
        (json!({ "note": "x".repeat(2001) }), 422),
        (json!({ "note": "n", "more": 1 }), 400),
    ] {
        stage.post(operator, &unsuppress, &body)?.problem(status)?;
    }
    stage.post(&stage.acme.viewer, &unsuppress, &json!({ "note": "n" }))?.problem(403)?;
    let beta = stage.tenant("beta").await?;
    stage.post(&beta.admin, &unsuppress, &json!({ "note": "n" }))?.problem(404)?;
    for _ in 0..2 {
        let done = stage.post(operator, &unsuppress, &json!({ "note": "signed up again" }))?.expect(200)?;
        assert_eq!((&done["suppressed_at"], &done["also_suppressed"]), (&Value::Null, &json!([other])));
    }
    let log = stage.get(&stage.acme.admin, "/audit?source=administration")?.expect(200)?;
    let ended: Vec<&Value> = log["items"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|line| line["action"] == "lead.unsuppressed")
        .collect();
    assert_eq!(ended.len(), 1, "{log}");
    assert_eq!(
        (&ended[0]["note"], &ended[0]["subject"]),
        (&json!("signed up again"), &json!(format!("lead:{lead}")))
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_person_is_erased_by_an_admin_once_their_items_have_ended() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    account(&stage, &stage.acme).await?;
    let lead = people(&stage)?;
    campaign(&stage, "one", &lead, "in_doubt").await?;
    let (erase, shown) = (format!("/leads/{lead}/erase"), format!("/leads/{lead}"));
    let admin = &stage.acme.admin;
    for key in [&stage.acme.viewer, &stage.acme.operator] {
        stage.call("POST", &erase).key(key).send()?.problem(403)?;
    }
    let beta = stage.tenant("beta").await?;
    for (key, path) in [(&beta.admin, erase.clone()), (admin, format!("/leads/{UNKNOWN}/erase"))] {
        stage.call("POST", &path).key(key).send()?.problem(404)?;
    }
    assert_eq!(stage.count("select count(*) from execution.leads where suppressed_at is not null").await?, 0);

    let open = stage.call("POST", &erase).key(admin).send()?.problem(409)?;
    assert!(
        open["detail"]
            .as_str()
            .is_some_and(|detail| detail.contains("1 of its items are in flight or in doubt")),
        "{open}"
    );
    assert_eq!(stage.get(admin, &shown)?.expect(200)?["suppression_reason"], "erased");
    stage.post(admin, &format!("/leads/{lead}/unsuppress"), &json!({ "note": "n" }))?.problem(422)?;
    let doubt = stage.get(admin, "/in-doubt")?.expect(200)?;
    let item = doubt["items"][0]["outbox_id"].as_str().context("no item in doubt")?;
    let resolve = format!("/in-doubt/{item}/resolve");
    stage.post(admin, &resolve, &json!({ "as": "sent", "note": "their log has it" }))?.expect(200)?;
    let first = stage.call("POST", &erase).key(admin).send()?.expect(200)?;
    assert_eq!(
        (&first["lead_id"], &first["items"], &first["messages"]),
        (&json!(lead), &json!(1), &json!(0))
    );
    assert_eq!(stage.call("POST", &erase).key(admin).send()?.expect(200)?, first);

    let left = stage.get(admin, &shown)?.expect(200)?;
    assert_eq!(left["erased_at"], first["erased_at"]);
    for member in ["email", "phone", "external_id", "timezone"] {
        assert_eq!(left[member], Value::Null, "{member}");
    }
    assert_eq!(left["attributes"], json!({}));
    let items = stage.get(admin, &format!("{shown}/items"))?.expect(200)?;
    assert_eq!(
        (&items["items"][0]["recipient"], &items["items"][0]["status"]),
        (&Value::Null, &json!("sent"))
    );
    let listed = |query: &str| -> anyhow::Result<usize> {
        let page = stage.get(admin, &format!("/leads{query}"))?.expect(200)?;
        Ok(page["items"].as_array().map_or(0, Vec::len))
    };
    assert_eq!(
        [listed("")?, listed("?with_erased=true")?, listed("?list=people&with_erased=true")?],
        [1, 2, 1]
    );

    // Back again, as another lead: nobody had unsubscribed.
    import(&stage, &stage.acme, "people", &format!("email\n{ANN}\n"))?.expect(200)?;
    let back = stage.get(admin, "/leads?recipient=ann@example.org")?.expect(200)?;
    assert_ne!(back["items"][0]["id"], json!(lead));
    assert_eq!(back["items"][0]["suppressed_at"], Value::Null);
    // Unsubscribed, erased and back again: still unsubscribed.
    let again = id(&back["items"][0])?;
    stage
        .post(admin, &format!("/leads/{again}/suppress"), &json!({ "reason": "unsubscribed" }))?
        .expect(200)?;
    stage.call("POST", &format!("/leads/{again}/erase")).key(admin).send()?.expect(200)?;
    import(&stage, &stage.acme, "people", &format!("email\n{ANN}\n"))?.expect(200)?;
    let back = stage.get(admin, "/leads?recipient=ann@example.org")?.expect(200)?;
    assert_ne!(back["items"][0]["id"], json!(again));
    assert_eq!(back["items"][0]["suppression_reason"], "suppressed before erasure");
    Ok(())
}
