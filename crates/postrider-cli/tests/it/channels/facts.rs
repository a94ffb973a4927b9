//! Stored messages and replies never change, and unfinished ones cannot be removed, not even by the superuser.

use super::rows::Rows;
use crate::sql::{execute, number, refusal, texts};

/// The columns that may change; all others are facts.
const CHANGING: &[(&str, &[&str])] = &[
    (
        "channel_messages",
        &[
            "status",
            "user_id",
            "role",
            "reply",
            "last_error",
            "deliveries",
            "executions",
            "is_executing",
            "leased_until",
            "updated_at",
        ],
    ),
    (
        "channel_outbox",
        &[
            "status",
            "attempt_count",
            "max_attempts",
            "next_attempt_at",
            "last_error",
            "locked_at",
            "locked_by",
            "claims",
            "in_doubt_since",
            "requeued_at",
            "provider_message_id",
            "delivery_status",
            "delivery_status_at",
            "delivery_error",
            "sent_at",
            "updated_at",
        ],
    ),
];

#[tokio::test(flavor = "multi_thread")]
async fn a_message_and_its_reply_never_change() -> anyhow::Result<()> {
    let rows = Rows::new().await?;
    rows.reply(rows.own).await?;
    for (table, changing) in CHANGING {
        let columns = format!(
            "select attname::text from pg_attribute \
              where attrelid = 'channels.{table}'::regclass and attnum > 0 and not attisdropped"
        );
        let columns = texts(&rows.admin, columns).await?;
        assert!(changing.iter().all(|column| columns.iter().any(|known| known == column)), "{columns:?}");
        for column in columns {
            let update = format!("update channels.{table} set {column} = {column}");
            if changing.contains(&column.as_str()) {
                execute(&rows.admin, update).await?;
                continue;
            }
            let refused = refusal(execute(&rows.admin, &update).await)
                .map_err(|error| error.context(update.clone()))?;
            assert_eq!(refused.code, "23514", "{update}: {refused:?}");
            assert!(refused.message.starts_with(&format!("channels.{table}: ")), "{update}: {refused:?}");
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_can_be_emptied() -> anyhow::Result<()> {
    let rows = Rows::new().await?;
    rows.reply(rows.own).await?;
    for (attempt, table) in [
        ("truncate channels.channel_outbox", "channel_outbox"),
        ("truncate channels.channel_messages cascade", "channel_messages"),
        ("truncate channels.channel_messages, channels.channel_outbox", "channel_messages"),
        ("truncate tenancy.tenants cascade", ""),
    ] {
        let refused = refusal(execute(&rows.admin, attempt).await)?;
        assert_eq!(refused.code, "23514", "{attempt}: {refused:?}");
        assert!(refused.message.contains(table), "{attempt}: {refused:?}");
    }
    assert_eq!(number(&rows.admin, "select count(*) from channels.channel_outbox").await?, 1);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unfinished_reply_and_its_message_cannot_be_removed() -> anyhow::Result<()> {
    let rows = Rows::new().await?;
    let (pending, sending) = (rows.reply(rows.own).await?, rows.reply(rows.own).await?);
    let hold = format!(
        "update channels.channel_outbox set status = 'sending', locked_at = now(), locked_by = 'w' where id = '{sending}'"
    );
    execute(&rows.admin, hold).await?;
    let open = rows.receive(rows.own, "open").await?.message_id;
    let kept = rows.receive(rows.own, "kept").await?;
    assert!(rows.fail(rows.own, kept.message_id, kept.execution, Some("kept")).await?);
    let answered =
        |reply| format!("(select channel_message_id from channels.channel_outbox where id = '{reply}')");
    for attempt in [
        format!("delete from channels.channel_outbox where id = '{pending}'"),
        format!("delete from channels.channel_outbox where id = '{sending}'"),
        format!("delete from channels.channel_messages where id = {}", answered(pending)),
        format!("delete from channels.channel_messages where id = {}", answered(sending)),
        format!("delete from channels.channel_messages where id = '{open}'"),
        format!("delete from channels.channel_messages where id = '{}'", kept.message_id),
    ] {
        let refused =
            refusal(execute(&rows.admin, &attempt).await).map_err(|error| error.context(attempt.clone()))?;
        assert_eq!(refused.code, "23514", "{attempt}: {refused:?}");
        assert!(refused.message.contains("cannot be removed"), "{attempt}: {refused:?}");
    }
    let (messages, replies) = (4, 2);
    assert_eq!(number(&rows.admin, "select count(*) from channels.channel_messages").await?, messages);
    assert_eq!(number(&rows.admin, "select count(*) from channels.channel_outbox").await?, replies);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_account_takes_its_links_and_executors_with_it_and_leaves_what_was_said() -> anyhow::Result<()> {
    let rows = Rows::new().await?;
    let reply = rows.reply(rows.own).await?;
    let own = format!(
        "insert into channels.channel_executors (id, tenant_id, account_id, kind, timeout_seconds, required_role)
         values (gen_random_uuid(), '{}', '{}', 'echo', 30, 'viewer')",
        rows.own.tenant, rows.own.account
    );
    execute(&rows.admin, own).await?;
    let removed = format!(
        "select tenancy.remove_provider_account('{}', '{}', 'me')",
        rows.own.tenant, rows.own.account
    );
    assert!(rows.ask::<bool>(rows.own, removed).await?);
    assert_eq!(number(&rows.admin, "select count(*) from channels.channel_links").await?, 0);
    let left = "select coalesce(account_id::text, 'all') from channels.channel_executors";
    assert_eq!(texts(&rows.admin, left).await?, ["all"]);
    assert_eq!(rows.look("status", "channel_outbox", reply).await?, "pending");
    Ok(())
}
