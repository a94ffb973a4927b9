//! How replies stand, for the metrics.

use super::rows::{Bot, Rows};
use crate::sql::{execute, refusal, texts};

#[tokio::test(flavor = "multi_thread")]
async fn replies_of_all_tenants_are_counted_by_how_they_stand() -> anyhow::Result<()> {
    let rows = Rows::new().await?;
    let measure = "select format('pending %s due %s older %s %s %s oldest %s tried %s doubted %s sending %s dead %s open %s', pending, due,
                                 over_a_minute, over_ten_minutes, over_an_hour, round(oldest_seconds::numeric, -2), tried_before,
                                 in_doubt, sending, dead, unfinished_messages)
                     from channels.measure_replies()";
    assert_eq!(
        texts(&rows.worker, measure).await?,
        ["pending 0 due 0 older 0 0 0 oldest 0 tried 0 doubted 0 sending 0 dead 0 open 0"]
    );
    let other = Bot::create(&rows.admin, "other").await?;
    for (bot, count, columns, values) in [
        (rows.own, 1, "next_attempt_at, created_at", "now(), now() - interval '2 minutes'"),
        (
            other,
            2,
            "next_attempt_at, created_at, attempt_count",
            "'infinity', now() - interval '20 minutes', 1",
        ),
        (other, 3, "status, locked_at, locked_by, in_doubt_since", "'sending', now(), 'w', now()"),
        (rows.own, 4, "status, created_at", "'dead', now() - interval '1 day'"),
        (rows.own, 5, "status, sent_at, created_at", "'sent', now(), now() - interval '1 day'"),
        (other, 1, "created_at", "now() - interval '2 hours'"),
    ] {
        rows.fill(bot, count, columns, values).await?;
    }
    rows.receive(rows.own, "open").await?;
    let kept = rows.receive(other, "kept").await?;
    assert!(rows.fail(other, kept.message_id, 1, Some("kept")).await?);
    let failed = rows.receive(other, "failed").await?;
    assert!(rows.fail(other, failed.message_id, 1, None).await?);
    assert_eq!(
        texts(&rows.worker, measure).await?,
        ["pending 4 due 2 older 4 3 1 oldest 7200 tried 2 doubted 3 sending 3 dead 4 open 3"]
    );
    assert_eq!(refusal(execute(&rows.app, measure).await)?.code, "42501");
    Ok(())
}
