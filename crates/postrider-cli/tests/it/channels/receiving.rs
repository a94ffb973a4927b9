//! A delivery: written down once, executed by one, denied to who may not, and answered from what is kept.

use uuid::Uuid;

use super::rows::{Bot, Rows, receive};
use crate::sql::{execute, number, refusal, texts};

#[tokio::test(flavor = "multi_thread")]
async fn a_new_message_is_written_down_and_executed_by_who_brought_it() -> anyhow::Result<()> {
    let rows = Rows::new().await?;
    let mut transaction = rows.acting_for(rows.own).await?;
    let received = receive(&mut *transaction, rows.own, "ann", "one").await?;
    // Until its time is over, by the clock of the transaction.
    let lease = "select (leased_until - now())::text from channels.channel_messages";
    assert_eq!(texts(&mut *transaction, lease).await?, ["00:01:00"]);
    transaction.commit().await?;

    assert_eq!((received.verdict.as_str(), received.execution), ("execute", 1));
    assert_eq!((received.user_id.as_deref(), received.role.as_deref()), (Some("Ann"), Some("operator")));
    let row = "concat_ws(' ', status, provider, provider_message_id, sender_id, recipient_id, thread, text, user_id, role,
                         deliveries, executions)";
    assert_eq!(
        rows.look(row, "channel_messages", received.message_id).await?,
        "accepted sim one ann room thread hi Ann operator 1 1"
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_duplicate_needs_nothing_while_the_first_is_executed_and_after_it_ended() -> anyhow::Result<()> {
    let rows = Rows::new().await?;
    let first = rows.receive(rows.own, "one").await?;
    let again = rows.receive(rows.own, "one").await?;
    assert_eq!((again.message_id, again.correlation_id), (first.message_id, first.correlation_id));
    assert_eq!((again.verdict.as_str(), again.execution), ("duplicate", 1));

    assert!(rows.finish(rows.own, first.message_id, 1).await?);
    assert_eq!(rows.receive(rows.own, "one").await?.verdict, "duplicate");
    let counts = "concat_ws(' ', status, deliveries, executions)";
    assert_eq!(rows.look(counts, "channel_messages", first.message_id).await?, "executed 3 1");
    assert_eq!(number(&rows.admin, "select count(*) from channels.channel_messages").await?, 1);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn after_its_time_a_duplicate_is_executed_again_and_the_first_execution_has_lost_it()
-> anyhow::Result<()> {
    let rows = Rows::new().await?;
    let first = rows.receive(rows.own, "one").await?;
    rows.end_lease(first.message_id).await?;
    let second = rows.receive(rows.own, "one").await?;
    assert_eq!((second.verdict.as_str(), second.execution), ("execute", 2));
    assert_eq!((second.message_id, second.correlation_id), (first.message_id, first.correlation_id));
    assert_eq!(rows.receive(rows.own, "one").await?.verdict, "duplicate");

    assert!(!rows.finish(rows.own, first.message_id, 1).await?);
    assert!(rows.finish(rows.own, first.message_id, 2).await?);
    assert_eq!(number(&rows.admin, "select count(*) from channels.channel_outbox").await?, 1);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_failed_without_a_reply_is_executed_again_at_its_next_delivery() -> anyhow::Result<()>
{
    let rows = Rows::new().await?;
    let first = rows.receive(rows.own, "one").await?;
    assert!(rows.fail(rows.own, first.message_id, 1, None).await?);
    let second = rows.receive(rows.own, "one").await?;
    assert_eq!((second.verdict.as_str(), second.execution), ("execute", 2));
    // It is being executed again: it has a time of its own, and others leave it alone.
    assert_eq!(rows.receive(rows.own, "one").await?.verdict, "duplicate");
    assert!(!rows.fail(rows.own, first.message_id, 1, None).await?, "the first execution is over");
    assert!(rows.finish(rows.own, first.message_id, 2).await?);
    assert_eq!(rows.look("status", "channel_messages", first.message_id).await?, "executed");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_whose_reply_was_kept_is_answered_from_it_and_never_executed_again() -> anyhow::Result<()> {
    let rows = Rows::new().await?;
    let first = rows.receive(rows.own, "one").await?;
    assert!(rows.fail(rows.own, first.message_id, 1, Some("kept words")).await?);
    let again = rows.receive(rows.own, "one").await?;
    assert_eq!((again.verdict.as_str(), again.execution), ("enqueued", 1));
    let message = "concat_ws(' ', status, executions, reply, last_error, leased_until)";
    assert_eq!(rows.look(message, "channel_messages", first.message_id).await?, "executed 1");
    let reply = "select concat_ws(' ', status, payload->>'text', recipient_id, max_attempts, correlation_id) \
                   from channels.channel_outbox";
    assert_eq!(
        texts(&rows.admin, reply).await?,
        [format!("pending kept words room 5 {}", first.correlation_id)]
    );
    assert_eq!(rows.receive(rows.own, "one").await?.verdict, "duplicate");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_name_at_another_account_or_tenant_is_another_message() -> anyhow::Result<()> {
    let rows = Rows::new().await?;
    let other = Bot::create(&rows.admin, "other").await?;
    let second = rows.another_account(rows.own, "second").await?;
    for (bot, verdict) in [(rows.own, "execute"), (other, "execute"), (second, "denied")] {
        assert_eq!(rows.receive(bot, "one").await?.verdict, verdict);
    }
    assert_eq!(number(&rows.admin, "select count(*) from channels.channel_messages").await?, 3);
    Ok(())
}

/// Sets the role that an executor takes, for one account or all of them.
async fn require(rows: &Rows, account: Option<Uuid>, role: &str) -> anyhow::Result<()> {
    let account = account.map_or("null".to_owned(), |id| format!("'{id}'"));
    let put = format!(
        "select channels.put_executor('{}', '{}', {account}, 'echo', null, 30, null, '{role}', '{{}}', 'me')::text",
        rows.own.tenant,
        Uuid::now_v7()
    );
    rows.ask::<String>(rows.own, put).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sender_without_link_or_role_is_denied_for_good() -> anyhow::Result<()> {
    let rows = Rows::new().await?;
    let stranger = rows.receive_from(rows.own, "bob", "from a stranger").await?;
    assert_eq!((stranger.verdict.as_str(), stranger.user_id), ("denied", None));
    let why = "concat_ws(': ', status, last_error, executions, leased_until)";
    assert_eq!(
        rows.look(why, "channel_messages", stranger.message_id).await?,
        "denied_unlinked: no user is linked to this sender: 0"
    );

    require(&rows, None, "admin").await?;
    let operator = rows.receive(rows.own, "from an operator").await?;
    assert_eq!((operator.verdict.as_str(), operator.user_id.as_deref()), ("denied", Some("Ann")));
    assert_eq!(
        rows.look(why, "channel_messages", operator.message_id).await?,
        "denied_rbac: Ann is operator, and it takes admin: 0"
    );
    // A later change of the link does not change a denied message.
    require(&rows, None, "viewer").await?;
    for (sender, name) in [("bob", "from a stranger"), ("ann", "from an operator")] {
        let link = format!(
            "select channels.link_sender('{}', '{}', '{}', '{sender}', 'somebody', 'admin', 'me')",
            rows.own.tenant,
            Uuid::now_v7(),
            rows.own.account
        );
        rows.ask::<Uuid>(rows.own, link).await?;
        assert_eq!(rows.receive_from(rows.own, sender, name).await?.verdict, "duplicate");
    }
    assert_eq!(number(&rows.admin, "select count(*) from channels.channel_outbox").await?, 0);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn every_role_may_what_takes_it_or_less() -> anyhow::Result<()> {
    let rows = Rows::new().await?;
    let roles = ["viewer", "operator", "admin"];
    for (has, role) in roles.iter().enumerate() {
        let link = format!(
            "select channels.link_sender('{}', '{}', '{}', 'ann', 'Ann', '{role}', 'me')",
            rows.own.tenant,
            Uuid::now_v7(),
            rows.own.account
        );
        rows.ask::<Uuid>(rows.own, link).await?;
        for (takes, required) in roles.iter().enumerate() {
            require(&rows, None, required).await?;
            let received = rows.receive(rows.own, &format!("{role} {required}")).await?;
            let expected = if has >= takes { "execute" } else { "denied" };
            assert_eq!(received.verdict, expected, "a {role}, where it takes {required}");
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_executor_of_the_account_comes_before_that_of_the_tenant() -> anyhow::Result<()> {
    let rows = Rows::new().await?;
    require(&rows, None, "viewer").await?;
    require(&rows, Some(rows.own.account), "admin").await?;
    assert_eq!(rows.receive(rows.own, "one").await?.verdict, "denied");
    require(&rows, None, "admin").await?;
    require(&rows, Some(rows.own.account), "viewer").await?;
    assert_eq!(rows.receive(rows.own, "two").await?.verdict, "execute");
    // One for each place, whoever set it last.
    let executors = "select coalesce(account_id::text, 'all') || ' ' || required_role from channels.channel_executors order by 1";
    let mut expected = [format!("{} viewer", rows.own.account), "all admin".to_owned()];
    expected.sort();
    assert_eq!(texts(&rows.admin, executors).await?, expected);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn without_an_executor_a_delivery_is_refused_and_leaves_no_trace() -> anyhow::Result<()> {
    let rows = Rows::new().await?;
    execute(&rows.admin, "delete from channels.channel_executors").await?;
    let refused = refusal(rows.receive(rows.own, "one").await)?;
    assert_eq!(
        (refused.code.as_str(), refused.message.as_str()),
        ("P0002", "nothing executes the messages of this account")
    );
    assert!(refused.hint.contains("PUT /api/v2/channels/executors"), "{refused:?}");
    assert_eq!(number(&rows.admin, "select count(*) from channels.channel_messages").await?, 0);
    require(&rows, None, "viewer").await?;
    assert_eq!(rows.receive(rows.own, "one").await?.verdict, "execute");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn names_that_are_blank_or_too_long_are_refused() -> anyhow::Result<()> {
    let rows = Rows::new().await?;
    for (sender, name) in [
        ("", "one"),
        (" ", "one"),
        ("ann", ""),
        ("ann", " "),
        (&*"a".repeat(256), "one"),
        ("ann", &*"n".repeat(513)),
    ] {
        assert_eq!(
            refusal(rows.receive_from(rows.own, sender, name).await)?.code,
            "23514",
            "{sender:?} {name:?}"
        );
    }
    assert_eq!(number(&rows.admin, "select count(*) from channels.channel_messages").await?, 0);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_messages_of_a_sender_are_counted_for_a_minute() -> anyhow::Result<()> {
    let rows = Rows::new().await?;
    let other = Bot::create(&rows.admin, "other").await?;
    for name in ["one", "two", "one"] {
        rows.receive(rows.own, name).await?;
    }
    rows.receive_from(rows.own, "bob", "of bob").await?;
    rows.receive(other, "of another tenant").await?;
    let old = format!(
        "insert into channels.channel_messages
                (tenant_id, account_id, provider, provider_message_id, sender_id, recipient_id, text, correlation_id, created_at)
         values ('{}', '{}', 'sim', 'old', 'ann', 'room', 'hi', gen_random_uuid(), now() - interval '61 seconds')",
        rows.own.tenant, rows.own.account
    );
    execute(&rows.admin, old).await?;
    let count =
        |tenant: Uuid| format!("select channels.recent_messages('{tenant}', '{}', 'ann')", rows.own.account);
    assert_eq!(rows.ask::<i32>(rows.own, count(rows.own.tenant)).await?, 2);
    assert_eq!(rows.ask::<i32>(other, count(other.tenant)).await?, 0);
    Ok(())
}
