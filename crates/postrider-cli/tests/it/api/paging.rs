//! Lists in pages.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::{Stage, Tenant};

async fn fill(stage: &Stage, tenant: &Tenant, events: i32) -> anyhow::Result<()> {
    let mut transaction = postrider_store::postgres::pool::begin_as(&stage.admin, tenant.id).await?;
    sqlx::query("select m10_recovery.publish_outbox('order', n::text, 'order.placed', '{}') from generate_series(1, $1) as n")
        .bind(events)
        .execute(&mut *transaction)
        .await?;
    postrider_store::postgres::pool::commit(transaction).await?;
    Ok(())
}

/// Every item of a list, page by page.
fn all(stage: &Stage, key: &str, path: &str, limit: usize) -> anyhow::Result<Vec<Value>> {
    let (mut items, mut cursor) = (Vec::new(), None::<String>);
    loop {
        let separator = if path.contains('?') { '&' } else { '?' };
        let after = cursor.map(|cursor| format!("&cursor={cursor}")).unwrap_or_default();
        let page = stage.get(key, &format!("{path}{separator}limit={limit}{after}"))?.expect(200)?;
        let found = page["items"].as_array().cloned().unwrap_or_default();
        anyhow::ensure!(found.len() <= limit, "a page of {}", found.len());
        anyhow::ensure!(
            page["next_cursor"].is_null() || found.len() == limit,
            "a page that is not full has no next"
        );
        items.extend(found);
        match page["next_cursor"].as_str() {
            Some(next) => cursor = Some(next.to_owned()),
            None => return Ok(items),
        }
    }
}

#[tokio::test]
async fn pages_show_everything_once_and_in_order() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    fill(&stage, &stage.acme, 23).await?;
    for limit in [1, 5, 22, 23, 24, 200] {
        let items = all(&stage, &stage.acme.viewer, "/events", limit)?;
        let ids: Vec<i64> = items.iter().filter_map(|item| item["id"].as_i64()).collect();
        assert!(
            ids.len() == 23 && ids.is_sorted() && ids.iter().collect::<BTreeSet<_>>().len() == 23,
            "{limit}: {ids:?}"
        );
    }
    let page = stage.get(&stage.acme.viewer, "/events")?.expect(200)?;
    assert_eq!(page["items"].as_array().map(Vec::len), Some(23));
    assert_eq!(page["next_cursor"], json!(null));

    for (at, name) in ["a", "b", "B", "\u{e4}", "b b", "z"].into_iter().enumerate() {
        let account = json!({ "name": name, "provider": "sim", "settings": { "url": "https://sim.example" }, "secret": "s" });
        stage.post(&stage.acme.admin, "/provider-accounts", &account)?.expect(201)?;
        stage
            .post(&stage.acme.admin, "/keys", &json!({ "name": at.to_string(), "role": "viewer" }))?
            .expect(201)?;
    }
    for (path, count) in [("/provider-accounts", 6), ("/keys", 9), ("/audit", 16)] {
        let whole = stage.get(&stage.acme.admin, path)?.expect(200)?["items"].clone();
        for limit in [1, 2, count, 200] {
            let items = all(&stage, &stage.acme.admin, path, limit)?;
            assert_eq!(
                json!(items.iter().map(|item| &item["id"]).collect::<Vec<_>>()),
                json!(whole.as_array().into_iter().flatten().map(|item| &item["id"]).collect::<Vec<_>>()),
                "{path} by {limit}"
            );
            assert_eq!(items.len(), count, "{path} by {limit}");
        }
    }
    Ok(())
}

#[tokio::test]
async fn a_cursor_of_another_tenant_shows_ones_own_rows_and_one_of_another_list_is_refused()
-> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let other = stage.tenant("other").await?;
    fill(&stage, &stage.acme, 3).await?;
    fill(&stage, &other, 3).await?;
    let page = stage.get(&stage.acme.viewer, "/events?limit=1")?.expect(200)?;
    let cursor = page["next_cursor"].as_str().unwrap_or_default().to_owned();
    let theirs = stage.get(&other.viewer, &format!("/events?cursor={cursor}"))?.expect(200)?;
    let tenants: BTreeSet<_> =
        theirs["items"].as_array().into_iter().flatten().map(|item| item["tenant_id"].to_string()).collect();
    assert_eq!(tenants, BTreeSet::from([json!(other.id.0.to_string()).to_string()]));
    let refused = stage.get(&stage.acme.admin, &format!("/keys?cursor={cursor}"))?;
    assert_eq!(refused.field(400)?, "cursor");
    Ok(())
}

#[tokio::test]
async fn events_are_listed_by_their_states() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    fill(&stage, &stage.acme, 4).await?;
    sqlx::raw_sql(
        "update m10_recovery.outbox set processed_at = now() where aggregate_id = '1';
         update m10_recovery.outbox set retry_count = 11 where aggregate_id = '2';
         update m10_recovery.outbox set claimed_at = now(), claimed_by = 'r' where aggregate_id = '3';",
    )
    .execute(&stage.admin)
    .await?;
    for (state, expected) in [
        ("processed", vec!["1"]),
        ("stuck", vec!["2"]),
        ("claimed", vec!["3"]),
        ("pending", vec!["2", "4"]),
        ("stuck,processed", vec!["1", "2"]),
        ("pending,stuck,processed", vec!["1", "2", "4"]),
    ] {
        let page = stage.get(&stage.acme.viewer, &format!("/events?state={state}"))?.expect(200)?;
        let found: Vec<&str> = page["items"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|item| item["aggregate_id"].as_str())
            .collect();
        assert_eq!(found, expected, "{state}");
    }
    Ok(())
}
