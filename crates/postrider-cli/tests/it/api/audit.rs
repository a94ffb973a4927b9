//! Filters of the audit logs.

use jiff::{SignedDuration, Timestamp};
use serde_json::json;

use super::{
    Stage,
    material::{account, column, doubt, walk},
};

#[tokio::test(flavor = "multi_thread")]
async fn the_lines_of_both_logs_are_filtered() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    account(&stage, &stage.acme).await?;
    let (run, item) = doubt(&stage, &stage.acme, "spring").await?;
    let settled = json!({ "as": "sent", "note": "their log has it" });
    stage.post(&stage.acme.operator, &format!("/in-doubt/{item}/resolve"), &settled)?.expect(200)?;
    let made =
        stage.post(&stage.acme.admin, "/keys", &json!({ "name": "desk", "role": "viewer" }))?.expect(201)?;
    let key = made["id"].as_str().unwrap_or_default().to_owned();
    let actor = stage.get(&stage.acme.operator, "/whoami")?.expect(200)?["key_id"].clone();
    let actor = format!("key:{}", actor.as_str().unwrap_or_default());
    let list = |query: &str| walk(&stage, &stage.acme.admin, &format!("/audit?{query}"), 1, |_| Ok(()));
    let hour = SignedDuration::from_hours(1);
    let (earlier, later) = (Timestamp::now() - hour, Timestamp::now() + hour);

    let lines = list(&format!("subject=key:{key}"))?;
    assert_eq!(column(&lines, "action"), ["key.created"]);
    assert!(list("action=key.created")?.len() >= 4, "three keys of the tenant and this one");
    assert_eq!(list("action=key.exploded")?.len(), 0);
    let all = list("source=campaigns")?;
    let about_item = list(&format!("source=campaigns&subject=item:{item}"))?;
    assert_eq!(column(&about_item, "action"), ["item.resolved_as_sent", "item.in_doubt"]);
    let resolved = list(&format!("source=campaigns&actor={actor}&action=item.resolved_as_sent"))?;
    assert_eq!(column(&resolved, "subject"), [format!("item:{item}")]);
    let about_run = list(&format!("source=campaigns&subject=run:{run}"))?;
    assert!(!about_run.is_empty() && about_run.iter().all(|line| line["subject"] == format!("run:{run}")));
    assert_eq!(list("source=campaigns&actor=nobody")?.len(), 0);
    assert_eq!(list(&format!("source=campaigns&after={earlier}&before={later}"))?, all);
    for nothing in [format!("before={earlier}"), format!("after={later}")] {
        assert_eq!(list(&format!("source=campaigns&{nothing}"))?.len(), 0, "{nothing}");
        assert_eq!(list(&nothing)?.len(), 0, "{nothing}");
    }
    for (query, field) in [
        ("actor=", "actor"),
        ("action=", "action"),
        ("subject=", "subject"),
        ("after=yesterday", "after"),
        ("before=-004713-01-01T00:00:00Z", "before"),
    ] {
        assert_eq!(stage.get(&stage.acme.admin, &format!("/audit?{query}"))?.field(400)?, field, "{query}");
    }
    stage.get(&stage.acme.operator, "/audit?actor=a")?.problem(403)?;
    Ok(())
}
