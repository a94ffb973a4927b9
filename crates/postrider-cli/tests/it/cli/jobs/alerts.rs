//! Alert rules, and decisions of operators about alerts.

use insta::assert_snapshot;
use serde_json::{Value, json};
use uuid::Uuid;

use super::{
    super::{
        assert_misused, assert_refused,
        channels::by_ada,
        stage::{Stage, redacted},
        succeeded,
    },
    id, in_order,
};

#[tokio::test]
async fn the_chain_that_watches_is_set_up_once_however_often_it_is_asked_for() -> anyhow::Result<()> {
    let stage = Stage::new(0).await?;
    stage.add_account("ops", "webhook").await?;
    stage.add_account("calls", "twilio").await?;
    let monitor = |more: &[&str]| stage.jobs(&[&["monitor"][..], more].concat());
    let first = succeeded(monitor(&["--notify", "ops"])?)?;
    assert_snapshot!(redacted(&format!("{}{}", first.stdout, first.stderr)), @r"
    FUNCTION CRON SCHEDULE
    detect-alerts */5 * * * * schedule_[id] new
    generate-decision-cards */5 * * * * schedule_[id] new
    process-alert-notifications */5 * * * * schedule_[id] new
    notified: ops
    each function waits for the one before it; a process with the role scheduler runs them
    ");
    let before = stage.jobs_json(&["schedule", "list"])?;
    assert_snapshot!(stage.told(&["monitor", "--notify", "ops", "mailer:ops@example.com"])?, @r"
    FUNCTION CRON SCHEDULE
    detect-alerts */5 * * * * schedule_[id] set again
    generate-decision-cards */5 * * * * schedule_[id] set again
    process-alert-notifications */5 * * * * schedule_[id] set again
    notified: ops, mailer:ops@example.com
    each function waits for the one before it; a process with the role scheduler runs them
    ");
    let after = stage.jobs_json(&["schedule", "list"])?;
    let ids =
        |list: &Value| list.as_array().map(|all| all.iter().map(|one| id(&one["id"])).collect::<Vec<_>>());
    assert_eq!((ids(&before), ids(&after).map(|ids| ids.len())), (ids(&after), Some(3)));
    assert_eq!(
        after[2]["input"],
        json!({ "notify": [{ "account": "ops" }, { "account": "mailer", "to": "ops@example.com" }] })
    );
    assert_eq!(after[2]["depends_on"], json!(["generate-decision-cards"]));

    for (args, says) in [
        (&["--notify", "nobody:x"][..], "--notify: there is no account `nobody`; `postrider accounts list`"),
        (
            &["--notify", "mailer"],
            "--notify: no recipient is given for `mailer`; use ACCOUNT:RECIPIENT, as in --notify mailer:ops@",
        ),
        (&["--notify", "mailer:"], "no recipient after the colon in `mailer:`; use ACCOUNT:RECIPIENT"),
        (&["--notify", "ops", "calls:+491"], "the account `calls` cannot be notified"),
    ] {
        assert_refused(&monitor(args)?, says);
    }
    assert_misused(&monitor(&[])?, "--notify <ACCOUNT[:TO]>...");
    assert_misused(&monitor(&["--tell-nobody", "--notify", "ops"])?, "cannot be used with");
    assert_eq!(stage.jobs_json(&["schedule", "list"])?, after);
    Ok(())
}

#[tokio::test]
async fn alerts_and_cards_are_listed_and_decided() -> anyhow::Result<()> {
    let stage = Stage::new(0).await?;
    assert_eq!(stage.told(&["alerts"])?, "there are no active alerts");
    assert_eq!(stage.told(&["cards"])?, "no card waits for a decision");
    stage
        .as_acme(
            "select jobs.raise_alert(tenancy.current_tenant_id(), 'failed-jobs', null, '6 jobs failed', 'critical');
             select * from jobs.generate_decision_cards(tenancy.current_tenant_id());
             select jobs.raise_alert(tenancy.current_tenant_id(), 'stock', 'SKU001', 'SKU001 runs out');
             select * from jobs.generate_decision_cards(tenancy.current_tenant_id());
             select jobs.resolve_alert(tenancy.current_tenant_id(), 'stock', 'SKU001');
             select * from jobs.generate_decision_cards(tenancy.current_tenant_id())",
        )
        .await?;
    assert_snapshot!(in_order(&stage.told(&["alerts", "--all"])?), @r"
    ALERT RULE SEVERITY STATUS SINCE OVER WHAT TOLD
    alert_[id] failed-jobs critical active [date] [time] - 6 jobs failed no recipient
    alert_[id] stock warning resolved [date] [time] [date] [time] SKU001 runs out no recipient
    ");
    assert_eq!(stage.jobs_json(&["alerts"])?.as_array().map(Vec::len), Some(1));
    assert_snapshot!(in_order(&stage.told(&["cards", "--all"])?), @r"
    CARD STATUS DAY CONDITION RECOMMENDATION DECIDED
    card_[id] OPEN [date] 6 jobs failed Look at the dead letters, mend what they name, and retry or resolve each of them. -
    card_[id] RESOLVED [date] SKU001 runs out Look at the evidence, and resolve or dismiss this card. by postrider: the alert resolved itself
    ");
    let open = stage.jobs_json(&["cards"])?;
    assert_eq!(open.as_array().map(Vec::len), Some(1));
    let card = id(&open[0]["id"]);
    assert_snapshot!(stage.told(&["decide", &card, "in-progress"])?, @"card_[id] is IN_PROGRESS");
    assert_eq!(stage.jobs_json(&["cards"])?[0]["status"], "IN_PROGRESS");
    succeeded(stage.jobs(&["decide", &format!("card_{card}"), "RESOLVED", "--note", "mended"])?)?;
    assert_refused(
        &stage.jobs(&["decide", &card, "dismissed"])?,
        "is RESOLVED, and its status cannot change any more; a new alert",
    );
    assert_refused(&stage.jobs(&["decide", &Uuid::now_v7().to_string(), "OPEN"])?, "has no card");
    assert_misused(
        &stage.jobs(&["decide", &card, "done"])?,
        "choose OPEN, IN_PROGRESS, RESOLVED or DISMISSED",
    );
    assert_eq!(stage.audited(&format!("card:{card}")).await?, by_ada(&["card.in_progress", "card.resolved"]));
    Ok(())
}
