//! Delivery reports that providers send about replies.

use uuid::Uuid;

use super::rows::{Bot, Capacity, Rows, SENT, UNKNOWN, claim, settle};
use crate::sql::refusal;

/// A report in the tenant's context; true when the account has such a reply.
async fn report(
    rows: &Rows,
    bot: Bot,
    reply: Uuid,
    status: &str,
    proves: bool,
    at: &str,
) -> Result<bool, sqlx::Error> {
    let error = if status == "failed" { "'131047: too late'" } else { "null" };
    let sql = format!(
        "select channels.record_delivery('{}', '{}', '{reply}', 'theirs of {status}', '{status}', {proves}, {at}, {error})",
        bot.tenant, bot.account
    );
    rows.ask(bot, sql).await
}

const TOLD: &str = "concat_ws(', ', status, provider_message_id, delivery_status, delivery_status_at at time zone 'utc', delivery_error)";

#[tokio::test(flavor = "multi_thread")]
async fn a_proof_ends_the_doubt_for_the_next_claim_and_is_kept() -> anyhow::Result<()> {
    let rows = Rows::new().await?;
    let held = rows.held(rows.own, "w").await?;
    settle(&rows.worker, "w", &[(&held, UNKNOWN)]).await?;
    assert!(report(&rows, rows.own, held.id, "queued", false, "'2030-01-01Z'").await?);
    let again = claim(&rows.worker, "w", &Capacity::of(1)).await?.remove(0);
    assert_eq!(
        (again.is_in_doubt, again.provider_message_id.as_deref()),
        (true, None),
        "that proves nothing"
    );
    settle(&rows.worker, "w", &[(&again, UNKNOWN)]).await?;

    assert!(report(&rows, rows.own, held.id, "sent", true, "'2030-01-02Z'").await?);
    // Later words do not take the proof away, whatever they call it.
    assert!(report(&rows, rows.own, held.id, "read", true, "'2030-01-03Z'").await?);
    assert!(report(&rows, rows.own, held.id, "failed", false, "'2030-01-04Z'").await?);
    assert_eq!(
        rows.look(TOLD, "channel_outbox", held.id).await?,
        "pending, theirs of sent, failed, 2030-01-04 00:00:00, 131047: too late"
    );
    let proven = claim(&rows.worker, "w", &Capacity::of(1)).await?.remove(0);
    assert_eq!(proven.provider_message_id.as_deref(), Some("theirs of sent"));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn reports_that_overtake_each_other_leave_the_newest_word() -> anyhow::Result<()> {
    let rows = Rows::new().await?;
    let held = rows.held(rows.own, "w").await?;
    settle(&rows.worker, "w", &[(&held, SENT)]).await?;
    for (status, at, newest) in [
        ("delivered", "'2030-01-02Z'", "sent, theirs, delivered, 2030-01-02 00:00:00"),
        ("failed", "'2030-01-01Z'", "sent, theirs, delivered, 2030-01-02 00:00:00"),
        ("read", "'2030-01-03Z'", "sent, theirs, read, 2030-01-03 00:00:00"),
        ("sent", "'2030-01-01Z'", "sent, theirs, read, 2030-01-03 00:00:00"),
        ("failed", "'2030-01-04Z'", "sent, theirs, failed, 2030-01-04 00:00:00, 131047: too late"),
        ("read", "'2030-01-05Z'", "sent, theirs, read, 2030-01-05 00:00:00"),
    ] {
        assert!(report(&rows, rows.own, held.id, status, true, at).await?);
        assert_eq!(rows.look(TOLD, "channel_outbox", held.id).await?, newest, "{status} {at}");
    }
    // Without a time it is told now, which is before what was told of the future.
    assert!(report(&rows, rows.own, held.id, "sent", true, "null").await?);
    assert_eq!(rows.look("delivery_status", "channel_outbox", held.id).await?, "read");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_report_by_another_account_or_tenant_touches_nothing() -> anyhow::Result<()> {
    let rows = Rows::new().await?;
    let other = Bot::create(&rows.admin, "other").await?;
    let second = rows.another_account(rows.own, "second").await?;
    let reply = rows.reply(rows.own).await?;
    let before = rows.reply_row(reply).await?;
    let mixed = Bot { account: rows.own.account, ..other };
    for (bot, reply) in [(other, reply), (second, reply), (mixed, reply), (rows.own, Uuid::now_v7())] {
        assert!(!report(&rows, bot, reply, "delivered", true, "now()").await?, "{bot:?}");
    }
    let without = format!(
        "select channels.record_delivery('{}', '{}', '{reply}', 'theirs', 'delivered', true, null, null)",
        rows.own.tenant, rows.own.account
    );
    assert_eq!(refusal(crate::sql::execute(&rows.app, without).await)?.code, "42501");
    assert_eq!(rows.reply_row(reply).await?, before);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_report_changes_no_state_and_does_not_count() -> anyhow::Result<()> {
    let rows = Rows::new().await?;
    let held = rows.held(rows.own, "w").await?;
    let row = "concat_ws(' ', status, attempt_count, claims, locked_by, next_attempt_at)";
    let before = rows.look(row, "channel_outbox", held.id).await?;
    assert!(report(&rows, rows.own, held.id, "delivered", true, "now()").await?);
    assert_eq!(rows.look(row, "channel_outbox", held.id).await?, before);
    // The result of the attempt names what it was answered, under its claim as before.
    assert_eq!(settle(&rows.worker, "w", &[(&held, SENT)]).await?, ["sent"]);
    assert_eq!(rows.look("provider_message_id", "channel_outbox", held.id).await?, "theirs");
    Ok(())
}
