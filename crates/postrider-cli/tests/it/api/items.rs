//! One item with everything about it, the failures of a run, its items as a file, and the filters of the lists of runs and items.

use anyhow::Context;
use jiff::{SignedDuration, Timestamp};
use postrider_store::postgres::pool;
use serde_json::{Value, json};
use uuid::Uuid;

use super::{
    Stage,
    material::{UNKNOWN, account, assert_same_404, column, doubt, run, take_all, walk},
};
use crate::{
    campaigns::execution::calls::{complete, finalize},
    sql::execute,
};

#[tokio::test(flavor = "multi_thread")]
async fn an_item_is_shown_with_everything_that_is_known_about_it() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    account(&stage, &stage.acme).await?;
    let (run, item) = doubt(&stage, &stage.acme, "spring").await?;
    let path = format!("/items/{item}");
    let shown = stage.get(&stage.acme.viewer, &path)?.expect(200)?;
    for (pointer, expected) in [
        ("/item/id", json!(item)),
        ("/item/status", json!("queued")),
        ("/item/channel", json!("email")),
        ("/item/account/name", json!("mail")),
        ("/item/moved_to_account", Value::Null),
        ("/item/error", json!("why")),
        ("/run/id", json!(run)),
        ("/run/campaign", json!("spring")),
        ("/list", json!("spring")),
        ("/job/position", json!(1)),
        ("/job/status", json!("locked")),
        ("/job/locked_by", json!("w")),
        ("/lead/email", json!("spring-000000@example.org")),
        ("/doubt/looks", json!(0)),
        ("/doubt/is_for_person", json!(false)),
        ("/doubt/is_quiet", json!(false)),
        ("/doubt/settled_by", json!("look_up")),
        ("/callbacks", json!([])),
    ] {
        assert_eq!(shown.pointer(pointer), Some(&expected), "{pointer}: {shown}");
    }
    let listed = stage.get(&stage.acme.viewer, &format!("/runs/{run}/items"))?.expect(200)?;
    for (member, value) in listed["items"][0].as_object().context("an item")? {
        assert_eq!(&shown["item"][member], value, "{member} is as in the list");
    }
    let actions = column(shown["audit"].as_array().context("a log")?, "action");
    assert!(
        actions.contains(&"item.in_doubt".to_owned()) && actions.contains(&"job.locked".to_owned()),
        "{actions:?}"
    );

    // A callback that proves nothing yet, then a person's finding.
    let callback = format!(
        "insert into execution.provider_callbacks (tenant_id, account_id, idempotency_key, message_id, status, proves_action)
         select tenant_id, (select id from tenancy.provider_accounts where name = 'mail'), idempotency_key, 'm-7', 'queued', false
           from execution.channel_outbox where id = '{item}'"
    );
    execute(&stage.admin, callback).await?;
    let settled = json!({ "as": "sent", "provider_message_id": "m-7", "note": "their log has it" });
    stage.post(&stage.acme.operator, &format!("/in-doubt/{item}/resolve"), &settled)?.expect(200)?;
    let shown = stage.get(&stage.acme.viewer, &path)?.expect(200)?;
    assert_eq!((&shown["doubt"], &shown["item"]["status"]), (&Value::Null, &json!("sent")));
    let callback = &shown["callbacks"][0];
    assert_eq!((&callback["message_id"], &callback["proves_action"]), (&json!("m-7"), &json!(false)));
    let last = shown["audit"].as_array().and_then(|lines| lines.last()).context("a line")?;
    assert_eq!(
        (&last["action"], &last["note"]),
        (&json!("item.resolved_as_sent"), &json!("their log has it"))
    );

    let beta = stage.tenant("beta").await?;
    let calls = [("GET", "/items/{id}", Value::Null)];
    assert_same_404(&stage, &beta.admin, &calls, &item.to_string())?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_item_says_whether_its_message_is_still_the_one_that_was_reserved() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    account(&stage, &stage.acme).await?;
    let (_, item) = doubt(&stage, &stage.acme, "spring").await?;
    let matches = || {
        anyhow::Ok(
            stage.get(&stage.acme.viewer, &format!("/items/{item}"))?.expect(200)?["item"]["message_matches"]
                .clone(),
        )
    };
    let set = async |hash: &str| {
        let sql = format!(
            "set session_replication_role = replica;
             update execution.channel_outbox set message_hash = {hash} where id = '{item}';
             reset session_replication_role"
        );
        execute(&stage.admin, sql).await
    };
    set("null").await?;
    assert_eq!(matches()?, Value::Null);
    let message = postrider_model::Message::Email {
        to: "spring-000000@example.org".to_owned(),
        subject: "Hello".to_owned(),
        text: Some("Number 0.".to_owned()),
        html: None,
    };
    let hash: String = message.hash().iter().map(|byte| format!("{byte:02x}")).collect();
    set(&format!("'\\x{hash}'")).await?;
    // This item has no payload, as after an adoption: its message is rendered for the lead as it is now.
    assert_eq!(matches()?, json!(true));
    execute(&stage.admin, "update execution.leads set attributes = '{\"number\": \"1\"}'").await?;
    assert_eq!(matches()?, json!(false));
    Ok(())
}

/// A run of 40 items in jobs of ten: ten failed, of which seven in the same way.
async fn failed(stage: &Stage) -> anyhow::Result<(String, Vec<Vec<Uuid>>)> {
    account(stage, &stage.acme).await?;
    let (_, run) = run(stage, &stage.acme, "spring", 40, 10).await?;
    let (worker, taken) = take_all(stage).await?;
    let all = |status: &'static str, at: usize| {
        taken[at].1.iter().map(move |item| (*item, status)).collect::<Vec<_>>()
    };
    finalize(&worker, stage.acme.id.0, "w", &all("sent", 0)).await?;
    finalize(&worker, stage.acme.id.0, "w", &all("failed", 1)).await?;
    let other = taken[1].1[..3].iter().map(ToString::to_string).collect::<Vec<_>>().join("','");
    let sql = format!(
        "set session_replication_role = replica;
         update execution.channel_outbox set error = 'Mailbox =full' where id in ('{other}');
         update execution.channel_outbox as item set recipient = lead.email
           from execution.leads as lead where lead.id = item.recipient_id;
         reset session_replication_role"
    );
    execute(&stage.admin, sql).await?;
    complete(&worker, "w", &taken[0].0).await?;
    complete(&worker, "w", &taken[1].0).await?;
    Ok((run, taken.into_iter().map(|(_, items)| items).collect()))
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_items_are_grouped_by_their_error() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let (run, items) = failed(&stage).await?;
    let path = format!("/runs/{run}/failures");
    let grouped = stage.get(&stage.acme.viewer, &path)?.expect(200)?;
    let mut first: Vec<Uuid> = items[1][3..].to_vec();
    first.sort();
    let mut second: Vec<Uuid> = items[1][..3].to_vec();
    second.sort();
    assert_eq!(
        grouped,
        json!([
            { "error": "why", "count": 7, "item_ids": first[..3] },
            { "error": "Mailbox =full", "count": 3, "item_ids": second },
        ])
    );
    let beta = stage.tenant("beta").await?;
    assert_same_404(&stage, &beta.admin, &[("GET", "/runs/{id}/failures", Value::Null)], &run)?;

    // As long as something holds the table, grouping takes too long.
    let mut busy = pool::begin(&stage.admin).await?;
    sqlx::raw_sql("lock table execution.channel_outbox in access exclusive mode").execute(&mut *busy).await?;
    let refused = stage.get(&stage.acme.viewer, &path)?;
    assert_eq!(refused.field(422)?, "id");
    assert!(refused.text().contains("too many failed items"), "{}", refused.text());
    pool::rollback(busy).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn items_are_found_by_recipient_send_job_and_error() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let (run, items) = failed(&stage).await?;
    let path = format!("/runs/{run}/items");
    let job =
        stage.get(&stage.acme.viewer, &format!("/items/{}", items[1][0]))?.expect(200)?["job"]["id"].clone();
    let job = job.as_str().context("an id")?;
    for (query, expected) in [
        ("recipient=spring-000007@example.org".to_owned(), 1),
        ("recipient=SPRING-000007@example.org".to_owned(), 0),
        (format!("job_id={job}"), 10),
        (format!("job_id={UNKNOWN}"), 0),
        ("error_contains=WHY".to_owned(), 7),
        ("error_contains=mailbox%20%3D".to_owned(), 3),
        ("error_contains=nothing".to_owned(), 0),
        (format!("error_contains=why&status=failed&job_id={job}"), 7),
        ("error_contains=why&status=sent".to_owned(), 0),
    ] {
        let found = walk(&stage, &stage.acme.viewer, &format!("{path}?{query}"), 3, |_| Ok(()))?;
        assert_eq!(found.len(), expected, "{query}");
    }
    for (query, field) in
        [("recipient=", "recipient"), ("job_id=7", "job_id"), ("error_contains=", "error_contains")]
    {
        assert_eq!(stage.get(&stage.acme.viewer, &format!("{path}?{query}"))?.field(400)?, field, "{query}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn runs_are_found_by_channel_vendor_cause_and_time() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    account(&stage, &stage.acme).await?;
    let (_, first) = run(&stage, &stage.acme, "first", 1, 500).await?;
    let hour = SignedDuration::from_hours(1);
    let (earlier, later) = (Timestamp::now() - hour, Timestamp::now() + hour);
    for (query, is_found) in [
        ("channel=email".to_owned(), true),
        ("channel=voice".to_owned(), false),
        ("provider=sim".to_owned(), true),
        ("provider=smtp".to_owned(), false),
        ("cause=start".to_owned(), true),
        ("cause=rerun".to_owned(), false),
        (format!("created_after={earlier}&created_before={later}"), true),
        (format!("created_after={later}"), false),
        (format!("created_before={earlier}"), false),
    ] {
        let found = stage.get(&stage.acme.viewer, &format!("/runs?{query}"))?.expect(200)?;
        let ids = column(found["items"].as_array().context("a page")?, "id");
        assert_eq!(ids, if is_found { vec![first.clone()] } else { vec![] }, "{query}");
    }
    for (query, field) in [
        ("channel=fax", "channel"),
        ("provider=", "provider"),
        ("cause=luck", "cause"),
        ("created_after=yesterday", "created_after"),
        ("created_before=1969-12-31T23:59:59Z", "created_before"),
    ] {
        assert_eq!(stage.get(&stage.acme.viewer, &format!("/runs?{query}"))?.field(400)?, field, "{query}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_items_of_a_run_are_exported_and_no_cell_is_a_formula() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let (run, items) = failed(&stage).await?;
    let attack = format!(
        "set session_replication_role = replica;
         update execution.channel_outbox set error = '=HYPERLINK(\"http://evil\",\"x\")', recipient = '+4930901820' where id = '{}';
         reset session_replication_role",
        items[1][9]
    );
    execute(&stage.admin, attack).await?;
    let path = format!("/runs/{run}/items/export");
    let csv = stage.get(&stage.acme.operator, &path)?;
    assert_eq!(csv.status, 200);
    assert_eq!(csv.header("content-type"), Some("text/csv; charset=utf-8"));
    let name = format!("attachment; filename=\"run-{run}.csv\"");
    assert_eq!(csv.header("content-disposition"), Some(name.as_str()));
    let text = unchunked(&csv.text());
    let lines: Vec<&str> = text.split("\r\n").collect();
    assert!(lines[0].starts_with("id,job_id,recipient_id,recipient,"), "{}", lines[0]);
    assert_eq!(lines.len(), 42, "a header, 40 items and the end");
    let in_order: Vec<String> = lines[1..41].iter().map(|line| line[..36].to_owned()).collect();
    let listed = walk(&stage, &stage.acme.viewer, &format!("/runs/{run}/items"), 200, |_| Ok(()))?;
    assert_eq!(in_order, column(&listed, "id"));
    assert!(text.contains("\"'=HYPERLINK(\"\"http://evil\"\",\"\"x\"\")\""), "{text}");
    assert!(text.contains(",'+4930901820,"), "{text}");

    let json = stage.get(&stage.acme.operator, &format!("{path}?format=ndjson&status=failed"))?;
    assert_eq!(json.header("content-type"), Some("application/x-ndjson"));
    let text = unchunked(&json.text());
    let rows: Result<Vec<Value>, _> = text.lines().map(serde_json::from_str).collect();
    let rows = rows?;
    assert_eq!(rows.len(), 10);
    assert!(rows.iter().all(|row| row["status"] == "failed" && row["in_doubt"] == false), "{rows:?}");
    assert!(rows.iter().any(|row| row["recipient"] == "+4930901820"), "a program gets texts as they are");

    for (query, field) in [("format=xlsx", "format"), ("status=lost", "status"), ("limit=1", "limit")] {
        assert_eq!(
            stage.get(&stage.acme.operator, &format!("{path}?{query}"))?.field(400)?,
            field,
            "{query}"
        );
    }
    stage.get(&stage.acme.viewer, &path)?.problem(403)?;
    let beta = stage.tenant("beta").await?;
    assert_same_404(&stage, &beta.admin, &[("GET", "/runs/{id}/items/export", Value::Null)], &run)?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_export_goes_on_over_many_pages() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    account(&stage, &stage.acme).await?;
    let (_, run) = run(&stage, &stage.acme, "spring", 2500, 400).await?;
    let (_, taken) = take_all(&stage).await?;
    let items: Vec<String> = taken.iter().flat_map(|(_, items)| items).map(ToString::to_string).collect();
    let reply = stage.get(&stage.acme.operator, &format!("/runs/{run}/items/export?format=ndjson"))?;
    let text = unchunked(&reply.text());
    let rows: Result<Vec<Value>, _> = text.lines().map(serde_json::from_str).collect();
    assert_eq!(column(&rows?, "id"), items);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_says_when_it_was_made() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    account(&stage, &stage.acme).await?;
    let (run, _) = doubt(&stage, &stage.acme, "spring").await?;
    let certificate = stage.get(&stage.acme.viewer, &format!("/runs/{run}/launch"))?.expect(200)?;
    let at: Timestamp = certificate["verified_at"].as_str().context("no time")?.parse()?;
    assert!(Timestamp::now().duration_since(at).abs() < SignedDuration::from_mins(5), "{at}");
    Ok(())
}

/// The text of a response that came in chunks.
fn unchunked(body: &str) -> String {
    let (mut rest, mut text) = (body, String::new());
    while let Some((size, after)) = rest.split_once("\r\n") {
        let Ok(size) = usize::from_str_radix(size, 16) else { return body.to_owned() };
        if size == 0 {
            return text;
        }
        text.push_str(&after[..size]);
        rest = &after[size + 2..];
    }
    body.to_owned()
}
