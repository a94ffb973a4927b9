//! How a message ends: with its reply or not at all, by the newest execution, and by somebody else when its process is gone.

use sqlx::AssertSqlSafe;
use uuid::Uuid;

use super::rows::{Bot, Received, Rows, finish};
use crate::sql::{execute, number, refusal, texts};

/// Takes up to so many messages whose execution was not ended in time.
async fn take_up(rows: &Rows, limit: i32) -> Result<Vec<Received>, sqlx::Error> {
    let sql = format!(
        "select message_id, verdict, execution, user_id, role, correlation_id
           from channels.tenants_with_expired_leases(false, 100) as chosen,
                channels.claim_unfinished_messages(chosen.tenant_id, {limit}, '1 minute')"
    );
    sqlx::query_as(AssertSqlSafe(sql)).fetch_all(&rows.worker).await
}

/// Enqueues up to so many kept replies.
async fn enqueue_kept(rows: &Rows, limit: usize) -> anyhow::Result<i64> {
    let ids: Vec<Uuid> = (0..limit).map(|_| Uuid::now_v7()).collect();
    let enqueue = "select coalesce(sum(channels.enqueue_kept_replies(tenant_id, $1, 5)), 0)
                     from channels.tenants_with_expired_leases(true, 100)";
    Ok(sqlx::query_scalar(enqueue).bind(ids).fetch_one(&rows.worker).await?)
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_newest_execution_ends_a_message_and_only_once() -> anyhow::Result<()> {
    let rows = Rows::new().await?;
    let other = Bot::create(&rows.admin, "other").await?;
    let first = rows.receive(rows.own, "one").await?.message_id;
    rows.end_lease(first).await?;
    assert_eq!(rows.receive(rows.own, "one").await?.execution, 2);
    let before = rows.look("to_jsonb(channel_messages)", "channel_messages", first).await?;
    for (bot, execution) in [(rows.own, 0), (rows.own, 1), (rows.own, 3), (other, 2)] {
        let tenant = bot.tenant;
        for call in [
            finish(bot, first, execution),
            format!("select channels.deny_message('{tenant}', '{first}', {execution}, 'why')"),
            format!("select channels.fail_message('{tenant}', '{first}', {execution}, null, 'why')"),
            format!("select channels.fail_message('{tenant}', '{first}', {execution}, '{{}}', 'why')"),
        ] {
            assert!(!rows.ask::<bool>(bot, &call).await?, "{call}");
        }
    }
    assert_eq!(rows.look("to_jsonb(channel_messages)", "channel_messages", first).await?, before);
    assert_eq!(number(&rows.admin, "select count(*) from channels.channel_outbox").await?, 0);

    assert!(rows.finish(rows.own, first, 2).await?);
    let tenant = rows.own.tenant;
    for call in [
        finish(rows.own, first, 2),
        format!("select channels.deny_message('{tenant}', '{first}', 2, 'why')"),
        format!("select channels.fail_message('{tenant}', '{first}', 2, '{{}}', 'why')"),
    ] {
        assert!(!rows.ask::<bool>(rows.own, &call).await?, "{call}");
    }
    assert_eq!(number(&rows.admin, "select count(*) from channels.channel_outbox").await?, 1);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_finished_message_is_executed_and_its_reply_goes_back_where_it_came_from() -> anyhow::Result<()> {
    let rows = Rows::new().await?;
    let received = rows.receive(rows.own, "one").await?;
    assert!(rows.finish(rows.own, received.message_id, 1).await?);
    let message = "concat_ws(' ', status, leased_until, reply, last_error)";
    assert_eq!(rows.look(message, "channel_messages", received.message_id).await?, "executed");
    let reply = "select concat_ws(' ', tenant_id, channel_message_id, account_id, provider, recipient_id, payload->>'text',
                                  status, attempt_count, max_attempts, claims, next_attempt_at <= now(), correlation_id)
                   from channels.channel_outbox";
    let Bot { tenant, account, .. } = rows.own;
    let Received { message_id, correlation_id, .. } = received;
    assert_eq!(
        texts(&rows.admin, reply).await?,
        [format!("{tenant} {message_id} {account} sim room you said hi pending 0 5 0 t {correlation_id}")]
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_has_one_reply_for_any_number_of_writers() -> anyhow::Result<()> {
    let rows = Rows::new().await?;
    let reply = rows.reply(rows.own).await?;
    let again = format!(
        "insert into channels.channel_outbox
                (tenant_id, channel_message_id, account_id, provider, recipient_id, payload, correlation_id)
         select tenant_id, channel_message_id, account_id, provider, recipient_id, payload, correlation_id
           from channels.channel_outbox where id = '{reply}'"
    );
    let refused = refusal(execute(&rows.admin, again).await)?;
    assert_eq!(refused.code, "23505");
    assert!(refused.message.contains("channel_outbox_one_reply_per_message"), "{refused:?}");
    Ok(())
}

/// Made to happen for real: the functions' owner may not insert any more.
#[tokio::test(flavor = "multi_thread")]
async fn when_the_reply_cannot_be_enqueued_the_message_is_not_executed_either_and_the_reply_is_kept()
-> anyhow::Result<()> {
    let rows = Rows::new().await?;
    let received = rows.receive(rows.own, "one").await?;
    let before = rows.look("to_jsonb(channel_messages)", "channel_messages", received.message_id).await?;
    execute(&rows.admin, "revoke insert on channels.channel_outbox from postrider_owner").await?;
    assert_eq!(refusal(rows.finish(rows.own, received.message_id, 1).await)?.code, "42501");
    assert_eq!(
        rows.look("to_jsonb(channel_messages)", "channel_messages", received.message_id).await?,
        before
    );

    assert!(rows.fail(rows.own, received.message_id, 1, Some("kept words")).await?);
    let kept = "concat_ws(' ', status, reply->>'text', last_error, leased_until between now() and now() + interval '1 minute')";
    assert_eq!(
        rows.look(kept, "channel_messages", received.message_id).await?,
        "dispatch_failed kept words why t"
    );
    // As long as it lasts, a delivery is refused, and what is kept stays kept.
    assert_eq!(refusal(rows.receive(rows.own, "one").await)?.code, "42501");
    assert_eq!(
        rows.look(kept, "channel_messages", received.message_id).await?,
        "dispatch_failed kept words why t"
    );
    execute(&rows.admin, "grant insert on channels.channel_outbox to postrider_owner").await?;
    assert_eq!(rows.receive(rows.own, "one").await?.verdict, "enqueued");
    let replies = "select payload->>'text' from channels.channel_outbox";
    assert_eq!(texts(&rows.admin, replies).await?, ["kept words"]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_the_sentinel_denies_has_no_reply() -> anyhow::Result<()> {
    let rows = Rows::new().await?;
    let denied = rows.receive(rows.own, "one").await?.message_id;
    assert!(
        rows.ask::<bool>(
            rows.own,
            format!("select channels.deny_message('{}', '{denied}', 1, 'too rude')", rows.own.tenant)
        )
        .await?
    );
    let row = "concat_ws(' ', status, last_error, leased_until)";
    assert_eq!(rows.look(row, "channel_messages", denied).await?, "denied_sentinel too rude");
    assert!(!rows.finish(rows.own, denied, 1).await?);
    assert_eq!(number(&rows.admin, "select count(*) from channels.channel_outbox").await?, 0);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_process_message_is_claimed_after_its_lease_and_not_before() -> anyhow::Result<()> {
    let rows = Rows::new().await?;
    let mut messages = Vec::new();
    for name in ["one", "two", "three", "four"] {
        messages.push(rows.receive(rows.own, name).await?);
    }
    // One keeps a reply, which is not executed again; one failed without, and has a minute.
    assert!(rows.fail(rows.own, messages[2].message_id, 1, Some("kept")).await?);
    assert!(rows.fail(rows.own, messages[3].message_id, 1, None).await?);
    assert_eq!(take_up(&rows, 10).await?, []);

    for (at, age) in [(0, 10), (1, 20), (2, 30), (3, 5)] {
        let end = format!(
            "update channels.channel_messages set leased_until = now() - interval '{age} seconds' where id = '{}'",
            messages[at].message_id
        );
        execute(&rows.admin, end).await?;
    }
    // The one whose time was over first comes first, and as many as are asked for.
    for at in [1, 0, 3] {
        let expected = Received { execution: 2, ..messages[at].clone() };
        assert_eq!(take_up(&rows, 1).await?, [expected]);
    }
    assert_eq!(take_up(&rows, 10).await?, []);
    assert!(!rows.finish(rows.own, messages[0].message_id, 1).await?, "it was taken away");
    assert!(rows.finish(rows.own, messages[0].message_id, 2).await?);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_fails_is_executed_again_after_ever_longer_pauses_and_then_left_alone()
-> anyhow::Result<()> {
    let rows = Rows::new().await?;
    let message = rows.receive(rows.own, "one").await?.message_id;
    for (execution, pause) in
        [(1, "00:01:00"), (2, "00:02:00"), (3, "00:04:00"), (4, "00:08:00"), (5, "none")]
    {
        let mut transaction = rows.acting_for(rows.own).await?;
        let fail = format!(
            "select channels.fail_message('{}', '{message}', {execution}, null, 'why')",
            rows.own.tenant
        );
        execute(&mut *transaction, fail).await?;
        let standing = "select concat_ws(' ', status, is_executing, coalesce((leased_until - now())::text, 'none')) \
                          from channels.channel_messages";
        assert_eq!(
            texts(&mut *transaction, standing).await?,
            [format!("dispatch_failed f {pause}")],
            "{execution}"
        );
        transaction.commit().await?;
        assert_eq!(take_up(&rows, 10).await?, []);
        if pause != "none" {
            rows.end_lease(message).await?;
            let taken = take_up(&rows, 10).await?;
            assert_eq!((taken[0].message_id, taken[0].execution), (message, execution + 1));
        }
    }
    // Its provider may still bring it again.
    assert_eq!(rows.receive(rows.own, "one").await?.execution, 6);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_of_an_unfinished_message_returns_all_of_it() -> anyhow::Result<()> {
    let rows = Rows::new().await?;
    let message = rows.receive(rows.own, "one").await?;
    rows.end_lease(message.message_id).await?;
    let Bot { tenant, account, .. } = rows.own;
    let all = format!(
        "select concat_ws(' ', message_id, account_id, provider, sender_id, recipient_id, thread, text, verdict,
                                execution, user_id, role, correlation_id)
           from channels.claim_unfinished_messages('{tenant}', 10, '1 minute')"
    );
    assert_eq!(
        texts(&rows.worker, all).await?,
        [format!(
            "{} {account} sim ann room thread hi execute 2 Ann operator {}",
            message.message_id, message.correlation_id
        )]
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sender_that_lost_its_role_is_denied_and_a_message_without_executor_waits() -> anyhow::Result<()> {
    let rows = Rows::new().await?;
    let other = Bot::create(&rows.admin, "other").await?;
    let (ours, theirs) = (rows.receive(rows.own, "one").await?, rows.receive(other, "one").await?);
    execute(
        &rows.admin,
        format!(
            "delete from channels.channel_executors where tenant_id = '{}';
             delete from channels.channel_links where tenant_id = '{}'",
            rows.own.tenant, other.tenant
        ),
    )
    .await?;
    for message in [&ours, &theirs] {
        rows.end_lease(message.message_id).await?;
    }
    let taken = take_up(&rows, 10).await?;
    assert_eq!(taken.len(), 1, "{taken:?}");
    assert_eq!((taken[0].message_id, taken[0].verdict.as_str()), (theirs.message_id, "denied"));
    assert_eq!(rows.look("status", "channel_messages", theirs.message_id).await?, "denied_unlinked");
    let waits = "concat_ws(' ', status, executions, leased_until > now())";
    assert_eq!(rows.look(waits, "channel_messages", ours.message_id).await?, "accepted 1 t");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn kept_replies_are_enqueued_when_it_is_time_as_many_as_there_are_ids() -> anyhow::Result<()> {
    let rows = Rows::new().await?;
    let mut messages = Vec::new();
    for name in ["one", "two", "three"] {
        let received = rows.receive(rows.own, name).await?;
        assert!(rows.fail(rows.own, received.message_id, 1, Some(name)).await?);
        messages.push(received.message_id);
    }
    assert_eq!(enqueue_kept(&rows, 10).await?, 0, "their minute is not over");
    rows.end_lease(messages[0]).await?;
    rows.end_lease(messages[1]).await?;
    assert_eq!(enqueue_kept(&rows, 1).await?, 1);
    // One that somebody else is looking at is left to them.
    rows.end_lease(messages[2]).await?;
    let mut transaction = rows.admin.begin().await?;
    let look = format!("select from channels.channel_messages where id = '{}' for update", messages[2]);
    execute(&mut *transaction, look).await?;
    assert_eq!(enqueue_kept(&rows, 10).await?, 1);
    transaction.rollback().await?;
    assert_eq!(enqueue_kept(&rows, 10).await?, 1);
    let replies = "select payload->>'text' from channels.channel_outbox order by 1";
    assert_eq!(texts(&rows.admin, replies).await?, ["one", "three", "two"]);
    let statuses = "select distinct status from channels.channel_messages";
    assert_eq!(texts(&rows.admin, statuses).await?, ["executed"]);
    assert_eq!(rows.receive(rows.own, "one").await?.verdict, "duplicate");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kept_reply_that_the_outbox_refuses_is_not_in_the_way_of_the_others() -> anyhow::Result<()> {
    let rows = Rows::new().await?;
    let mut messages = Vec::new();
    for name in ["bad", "good"] {
        let received = rows.receive(rows.own, name).await?;
        assert!(rows.fail(rows.own, received.message_id, 1, Some(name)).await?);
        messages.push(received.message_id);
    }
    execute(
        &rows.admin,
        "alter table channels.channel_outbox add constraint not_bad check (payload->>'text' <> 'bad');
         update channels.channel_messages set leased_until = now() - case reply->>'text' when 'bad' then interval '2 hours' else '1 hour' end",
    )
    .await?;
    assert_eq!(enqueue_kept(&rows, 10).await?, 1);
    assert_eq!(rows.look("status", "channel_messages", messages[1]).await?, "executed");
    let bad = "concat_ws(' ', status, reply->>'text', leased_until > now())";
    assert_eq!(rows.look(bad, "channel_messages", messages[0]).await?, "dispatch_failed bad t");
    let why = rows.look("last_error", "channel_messages", messages[0]).await?;
    assert!(why.starts_with("its reply cannot be enqueued: ") && why.contains("not_bad"), "{why}");
    // Once the cause is gone, it goes too.
    execute(&rows.admin, "alter table channels.channel_outbox drop constraint not_bad").await?;
    rows.end_lease(messages[0]).await?;
    assert_eq!(enqueue_kept(&rows, 10).await?, 1);
    assert_eq!(
        rows.look("concat_ws(' ', status, last_error)", "channel_messages", messages[0]).await?,
        "executed"
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_message_is_executed_again_on_request() -> anyhow::Result<()> {
    let rows = Rows::new().await?;
    let other = Bot::create(&rows.admin, "other").await?;
    let received = rows.receive(rows.own, "one").await?;
    let retry_of = |bot: Bot| {
        format!("select channels.retry_message('{}', '{}', 'me')", bot.tenant, received.message_id)
    };
    let retry = retry_of(rows.own);
    assert!(!rows.ask::<bool>(rows.own, &*retry).await?, "it is being executed");
    assert!(rows.fail(rows.own, received.message_id, 1, None).await?);
    assert!(!rows.ask::<bool>(other, retry_of(other)).await?, "the message belongs to another tenant");
    let refused = refusal(rows.ask::<bool>(other, &*retry).await)?;
    assert_eq!(refused.code, "42501", "the tenant of the transaction is another one");
    assert_eq!(take_up(&rows, 10).await?.len(), 0, "its time has not come");
    assert!(rows.ask::<bool>(rows.own, &*retry).await?);
    assert_eq!(rows.log_of(format!("message:{}", received.message_id)).await?, ["message.retried by me"]);
    let taken = take_up(&rows, 10).await?;
    assert_eq!((taken.len(), taken[0].message_id, taken[0].execution), (1, received.message_id, 2));
    assert!(!rows.ask::<bool>(rows.own, &*retry).await?, "it is being executed again");
    assert!(rows.finish(rows.own, received.message_id, 2).await?);
    assert!(!rows.ask::<bool>(rows.own, &*retry).await?, "it was executed");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_whose_account_is_gone_is_over() -> anyhow::Result<()> {
    let rows = Rows::new().await?;
    let received = rows.receive(rows.own, "one").await?;
    execute(&rows.admin, format!("delete from tenancy.provider_accounts where id = '{}'", rows.own.account))
        .await?;
    rows.end_lease(received.message_id).await?;
    assert_eq!(take_up(&rows, 10).await?.len(), 0);
    let ended = "concat_ws(': ', status, last_error, leased_until)";
    let ended = rows.look(ended, "channel_messages", received.message_id).await?;
    assert_eq!(ended, "dispatch_failed: its account was removed");
    Ok(())
}
