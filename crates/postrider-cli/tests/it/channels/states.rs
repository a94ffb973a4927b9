//! The states of messages and replies: every pair is tried in raw SQL by the superuser, and the database allows exactly what the
//! model allows.

use postrider_model::channels::{MESSAGE_MACHINE, MessageStatus, REPLY_MACHINE, ReplyStatus};
use uuid::Uuid;

use super::rows::{Bot, Rows};
use crate::{
    postgres::transitions::{Machine, StateSql, disagreements},
    sql::{execute, refusal, texts},
};

/// Columns and values of a message of this account.
fn message(bot: Bot, id: Uuid, status: MessageStatus) -> String {
    let Bot { tenant, account, .. } = bot;
    format!(
        "(id, tenant_id, account_id, provider, provider_message_id, sender_id, recipient_id, text, correlation_id, status)
         values ('{id}', '{tenant}', '{account}', 'sim', '{id}', 'ann', 'room', 'hi', '{id}', '{status}')"
    )
}

/// Columns and values of a reply to it.
fn reply(bot: Bot, message: Uuid, more: &str, values: &str) -> String {
    let Bot { tenant, account, .. } = bot;
    format!(
        "(tenant_id, channel_message_id, account_id, provider, recipient_id, payload, correlation_id{more})
         values ('{tenant}', '{message}', '{account}', 'sim', 'room', '{{}}', '{message}'{values})"
    )
}

/// Messages that have a reply, so that nothing but their state keeps them from being executed.
fn messages(bot: Bot) -> Machine<MessageStatus> {
    let id = Uuid::now_v7();
    let answer = format!("insert into channels.channel_outbox {};", reply(bot, id, "", ""));
    let state = |state: MessageStatus, set| {
        // None is executed before it has a reply, and a reply needs its message.
        let is_executed = state == MessageStatus::Executed;
        let begun = if is_executed { MessageStatus::Accepted } else { state };
        let end = format!("update channels.channel_messages set status = 'executed' where id = '{id}'");
        StateSql {
            state,
            name: state.as_str(),
            insert: message(bot, id, begun),
            then: if is_executed { answer.clone() + &end } else { answer.clone() },
            set,
        }
    };
    Machine {
        table: "channels.channel_messages",
        state: "status",
        states: vec![
            state(MessageStatus::Accepted, "status = 'accepted'"),
            state(MessageStatus::Executed, "status = 'executed'"),
            state(MessageStatus::DeniedUnlinked, "status = 'denied_unlinked'"),
            state(MessageStatus::DeniedRbac, "status = 'denied_rbac'"),
            state(MessageStatus::DeniedSentinel, "status = 'denied_sentinel'"),
            state(MessageStatus::DispatchFailed, "status = 'dispatch_failed'"),
        ],
    }
}

/// Replies to this message.
fn replies(bot: Bot, message: Uuid) -> Machine<ReplyStatus> {
    let state = |state: ReplyStatus, more: &str, set| StateSql {
        state,
        name: state.as_str(),
        insert: reply(
            bot,
            message,
            ", status, locked_at, locked_by, sent_at",
            &format!(", '{state}', {more}"),
        ),
        then: String::new(),
        set,
    };
    Machine {
        table: "channels.channel_outbox",
        state: "status",
        states: vec![
            state(
                ReplyStatus::Pending,
                "null, null, null",
                "status = 'pending', locked_at = null, locked_by = null, sent_at = null",
            ),
            state(
                ReplyStatus::Sending,
                "now(), 'w', null",
                "status = 'sending', locked_at = now(), locked_by = 'v', sent_at = null",
            ),
            state(
                ReplyStatus::Sent,
                "null, null, now()",
                "status = 'sent', locked_at = null, locked_by = null, sent_at = now()",
            ),
            state(
                ReplyStatus::Dead,
                "null, null, null",
                "status = 'dead', locked_at = null, locked_by = null, sent_at = null",
            ),
        ],
    }
}

/// Everything in which the database and the model differ. A row that stays in its state changes nothing.
async fn all_disagreements(rows: &Rows, answered: Uuid) -> anyhow::Result<Vec<String>> {
    let may = |from, to| from == to || MESSAGE_MACHINE.contains(&(from, to));
    let mut wrong = disagreements(&rows.admin, &messages(rows.own), may).await?;
    let may = |from, to| from == to || REPLY_MACHINE.contains(&(from, to));
    wrong.extend(disagreements(&rows.admin, &replies(rows.own, answered), may).await?);
    Ok(wrong)
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_and_replies_change_their_state_exactly_as_the_model_says() -> anyhow::Result<()> {
    let rows = Rows::new().await?;
    let answered = rows.receive(rows.own, "one").await?.message_id;
    let covered: Vec<MessageStatus> = messages(rows.own).states.iter().map(|state| state.state).collect();
    assert_eq!(covered, MessageStatus::ALL);
    let covered: Vec<ReplyStatus> =
        replies(rows.own, answered).states.iter().map(|state| state.state).collect();
    assert_eq!(covered, ReplyStatus::ALL);

    assert_eq!(all_disagreements(&rows, answered).await?, [""; 0]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn every_guard_of_a_state_is_missed_when_it_is_gone() -> anyhow::Result<()> {
    let rows = Rows::new().await?;
    let answered = rows.receive(rows.own, "one").await?.message_id;
    for (table, trigger) in [
        ("channel_messages", "channel_messages_change_as_they_may"),
        ("channel_outbox", "channel_outbox_changes_as_it_may"),
    ] {
        let definition = format!("select pg_get_triggerdef(oid) from pg_trigger where tgname = '{trigger}'");
        let definition = texts(&rows.admin, definition).await?.join("");
        execute(&rows.admin, format!("drop trigger {trigger} on channels.{table}")).await?;
        assert_ne!(all_disagreements(&rows, answered).await?, [""; 0], "{trigger}");
        execute(&rows.admin, definition).await?;
    }
    assert_eq!(all_disagreements(&rows, answered).await?, [""; 0]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_state_that_the_model_does_not_know_is_refused() -> anyhow::Result<()> {
    let rows = Rows::new().await?;
    rows.reply(rows.own).await?;
    for table in ["channel_messages", "channel_outbox"] {
        for word in ["queued", "", "SENT", "accepted "] {
            // Without the guards of the change, the constraint alone must refuse.
            let mut transaction = rows.admin.begin().await?;
            execute(&mut *transaction, format!("alter table channels.{table} disable trigger user")).await?;
            let update = format!("update channels.{table} set status = '{word}'");
            let refused = refusal(execute(&mut *transaction, &update).await)?;
            assert_eq!(refused.code, "23514", "{update}");
            assert!(refused.message.contains(&format!("{table}_status_check")), "{refused:?}");
            transaction.rollback().await?;
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn no_message_is_executed_without_a_reply_of_its_own() -> anyhow::Result<()> {
    let rows = Rows::new().await?;
    let other = Bot::create(&rows.admin, "other").await?;
    // Replies to other messages, of this tenant and of another one.
    rows.reply(rows.own).await?;
    rows.reply(other).await?;
    let open = rows.receive(rows.own, "open").await?.message_id;
    let new = message(rows.own, Uuid::now_v7(), MessageStatus::Executed);
    for attempt in [
        format!(
            "update channels.channel_messages set status = 'executed', leased_until = null where id = '{open}'"
        ),
        format!("insert into channels.channel_messages {new}"),
    ] {
        let refused = refusal(execute(&rows.admin, &attempt).await)?;
        assert_eq!(refused.code, "23514", "{attempt}");
        assert!(refused.message.contains("once its reply is in the outbox"), "{refused:?}");
    }
    assert_eq!(rows.look("status", "channel_messages", open).await?, "accepted");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn locks_leases_and_kept_replies_are_where_they_belong() -> anyhow::Result<()> {
    let rows = Rows::new().await?;
    let reply = rows.reply(rows.own).await?;
    let executed = rows.look("channel_message_id", "channel_outbox", reply).await?;
    for (table, change, constraint) in [
        ("channel_outbox", "locked_at = now(), locked_by = 'w'", "channel_outbox_only_sending_is_locked"),
        ("channel_outbox", "status = 'sending'", "channel_outbox_only_sending_is_locked"),
        ("channel_outbox", "status = 'sending', locked_at = now()", "channel_outbox_only_sending_is_locked"),
        ("channel_outbox", "sent_at = now()", "channel_outbox_only_sent_has_its_time"),
        ("channel_outbox", "attempt_count = -1", "channel_outbox_attempts_are_counted"),
        ("channel_outbox", "max_attempts = 0", "channel_outbox_attempts_are_counted"),
        ("channel_messages", "leased_until = now()", "channel_messages_only_open_ones_are_leased"),
        ("channel_messages", "reply = '{}'", "channel_messages_only_failures_keep_a_reply"),
    ] {
        let update = format!(
            "update channels.{table} set {change} where '{executed}' in (id{})",
            if table == "channel_outbox" { ", channel_message_id" } else { "" }
        );
        let refused = refusal(execute(&rows.admin, &update).await)?;
        assert_eq!(refused.code, "23514", "{update}");
        assert!(refused.message.contains(constraint), "{update}: {refused:?}");
    }
    Ok(())
}
