//! A reply that cannot be put into the outbox is kept, and enqueued without executing again.

use sqlx::AssertSqlSafe;

use super::{
    agent::says,
    stage::{Bot, Stage},
    vendors::Vendor,
};
use crate::{
    sql::{execute, number},
    world::eventually,
};

/// The rows of a message whose reply is kept.
async fn kept(stage: &Stage) -> anyhow::Result<Vec<String>> {
    stage
        .texts("select concat_ws(' ', status, reply ->> 'text', last_error) from channels.channel_messages")
        .await
}

/// The vendor delivers again, now that it works.
async fn redeliver(stage: &Stage, bot: &Bot) -> anyhow::Result<()> {
    assert_eq!(stage.say(bot, 1, "hello")?, "enqueued");
    assert_eq!(stage.say(bot, 1, "hello")?, "duplicate");
    assert_eq!(stage.agent.asked("/agent").len(), 1, "it is not executed again");
    assert_eq!(kept(stage).await?, ["executed"]);
    let replies = "select status || ' ' || (payload ->> 'text') from channels.channel_outbox";
    assert_eq!(stage.texts(replies).await?, ["pending the answer"]);
    stage.check().await
}

#[tokio::test(flavor = "multi_thread")]
async fn without_the_right_to_insert_the_reply_is_kept_and_the_redelivery_enqueues_it() -> anyhow::Result<()>
{
    let stage = Stage::new().await?;
    let bot = stage.bot(Vendor::Slack).await?;
    stage.agent.at("/agent", says("the answer"));
    execute(&stage.admin, "revoke insert on channels.channel_outbox from postrider_owner").await?;
    let webhook = bot.vendor.message(1, "hello");
    stage.deliver(&bot, &webhook)?.problem(500)?;
    let rows = kept(&stage).await?;
    assert!(
        rows.len() == 1 && rows[0].starts_with("dispatch_failed the answer enqueueing the reply failed"),
        "{rows:?}"
    );
    assert!(rows[0].contains("permission denied for table channel_outbox"), "{rows:?}");
    let line = stage.server.process.wait_for_line("could not be put into the outbox")?;
    let line: serde_json::Value = serde_json::from_str(&line)?;
    assert_eq!(line["level"], "ERROR");
    let ids =
        stage.texts("select id || ' ' || correlation_id from channels.channel_messages").await?.remove(0);
    let said = [&line["channel_message_id"], &line["correlation_id"]]
        .map(|it| it.as_str().unwrap_or_default())
        .join(" ");
    assert_eq!(said, ids);
    // As long as it does not work, it stays so.
    stage.deliver(&bot, &webhook)?.problem(500)?;
    assert_eq!((kept(&stage).await?, stage.agent.asked("/agent").len()), (rows, 1));

    execute(&stage.admin, "grant insert on channels.channel_outbox to postrider_owner").await?;
    redeliver(&stage, &bot).await?;
    assert!(!stage.server.process.lines().join("\n").contains("the answer"));
    Ok(())
}

/// Delivers while somebody holds the outbox, and cancels the statement that waits for it if it should not wait to its end.
async fn deliver_while_locked(stage: &Stage, bot: &Bot, cancel: bool) -> anyhow::Result<()> {
    let mut lock = stage.admin.begin().await?;
    execute(&mut *lock, "lock table channels.channel_outbox in access exclusive mode").await?;
    let webhook = bot.vendor.message(1, "hello");
    let delivery = stage.delivering(bot, &webhook);
    let waiting = "from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock' and query like '%finish_message%'";
    eventually("the reply waits for the outbox", async || {
        Ok(number(&stage.admin, format!("select count(*) {waiting}")).await? == 1)
    })
    .await?;
    if cancel {
        let sql = format!("select pg_cancel_backend(pid) {waiting}");
        let cancelled: Vec<bool> = sqlx::query_scalar(AssertSqlSafe(sql)).fetch_all(&stage.admin).await?;
        assert_eq!(cancelled, [true]);
    }
    delivery.answer()?.problem(500)?;
    lock.rollback().await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn when_its_statement_is_cancelled_the_reply_is_kept_and_the_redelivery_enqueues_it()
-> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let bot = stage.bot(Vendor::Telegram).await?;
    stage.agent.at("/agent", says("the answer"));
    deliver_while_locked(&stage, &bot, true).await?;
    let rows = kept(&stage).await?;
    assert!(rows.len() == 1 && rows[0].starts_with("dispatch_failed the answer"), "{rows:?}");
    assert!(rows[0].contains("canceling statement due to user request"), "{rows:?}");
    redeliver(&stage, &bot).await
}

#[tokio::test(flavor = "multi_thread")]
async fn when_the_outbox_is_locked_for_too_long_the_reply_is_kept_and_the_redelivery_enqueues_it()
-> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let bot = stage.bot(Vendor::Webhook).await?;
    stage.agent.at("/agent", says("the answer"));
    deliver_while_locked(&stage, &bot, false).await?;
    let rows = kept(&stage).await?;
    assert!(rows.len() == 1 && rows[0].starts_with("dispatch_failed the answer"), "{rows:?}");
    assert!(rows[0].contains("lock timeout"), "{rows:?}");
    redeliver(&stage, &bot).await
}

#[tokio::test(flavor = "multi_thread")]
async fn of_those_that_were_executed_none_is_without_its_reply_whenever_the_outbox_goes_away()
-> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let bot = stage.bot(Vendor::Whatsapp).await?;
    let (mut executed, mut failed) = (0, 0);
    for n in 0..12 {
        let right = if n % 3 == 0 {
            "revoke insert on channels.channel_outbox from"
        } else {
            "grant insert on channels.channel_outbox to"
        };
        execute(&stage.admin, format!("{right} postrider_owner")).await?;
        match stage.deliver(&bot, &bot.vendor.message(n, "hello"))?.status {
            200 => executed += 1,
            500 => failed += 1,
            other => anyhow::bail!("{other}"),
        }
        stage.check().await?;
    }
    assert_eq!((executed, failed), (8, 4));
    execute(&stage.admin, "grant insert on channels.channel_outbox to postrider_owner").await?;
    for n in 0..12 {
        let became = stage.say(&bot, n, "hello")?;
        assert_eq!(became, if n % 3 == 0 { "enqueued" } else { "duplicate" });
    }
    assert_eq!(stage.agent.asked("/agent").len(), 12);
    assert_eq!(stage.statuses().await?, vec!["executed"; 12]);
    stage.check().await
}
