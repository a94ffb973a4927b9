//! Retention: messages that are over go with their replies, and nothing that is on its way.

use super::rows::{Bot, Rows, SENT, settle};
use crate::sql::{execute, number, refusal, texts};

/// Removes what is over and older than this, up to so many of each tenant.
async fn prune(rows: &Rows, older_than: &str, limit: i64) -> Result<i64, sqlx::Error> {
    let sql = format!(
        "select coalesce(sum(channels.prune_messages(tenant_id, '{older_than}', {limit})), 0)::bigint
           from channels.tenants_with_old_messages('{older_than}')"
    );
    number(&rows.worker, sql).await
}

/// How many messages and replies there are.
async fn census(rows: &Rows) -> anyhow::Result<(i64, i64)> {
    Ok((
        number(&rows.admin, "select count(*) from channels.channel_messages").await?,
        number(&rows.admin, "select count(*) from channels.channel_outbox").await?,
    ))
}

#[tokio::test(flavor = "multi_thread")]
async fn old_finished_rows_are_pruned_and_unfinished_ones_stay_at_any_age() -> anyhow::Result<()> {
    let rows = Rows::new().await?;
    // All of these messages are two hours old.
    for (columns, values) in [
        ("status, updated_at, sent_at", "'sent', now() - interval '1 hour', now() - interval '1 hour'"),
        ("status, updated_at", "'dead', now() - interval '1 hour'"),
        ("status, updated_at", "'pending', now() - interval '1 hour'"),
        ("status, updated_at, locked_at, locked_by", "'sending', now() - interval '1 hour', now(), 'w'"),
    ] {
        rows.fill(rows.own, 3, columns, values).await?;
    }
    let message = |name: &str, columns: &str, values: &str| {
        format!(
            "insert into channels.channel_messages (tenant_id, account_id, provider, provider_message_id, sender_id, recipient_id,
                                                    text, correlation_id, created_at, {columns})
             values ('{}', '{}', 'sim', '{name}', 'ann', 'room', 'hi', gen_random_uuid(), now() - interval '2 hours', {values})",
            rows.own.tenant, rows.own.account
        )
    };
    for (name, columns, values) in [
        ("1 denied_unlinked", "status", "'denied_unlinked'"),
        ("2 denied_rbac", "status", "'denied_rbac'"),
        ("3 denied_sentinel", "status", "'denied_sentinel'"),
        ("4 failed", "status", "'dispatch_failed'"),
        ("stays: accepted", "status", "'accepted'"),
        ("stays: being executed", "status, leased_until", "'accepted', now() - interval '1 hour'"),
        ("stays: executed again", "status, leased_until", "'dispatch_failed', now() - interval '1 hour'"),
        ("stays: kept", "status, reply, leased_until", "'dispatch_failed', '{}', now() - interval '1 hour'"),
    ] {
        execute(&rows.admin, message(name, columns, values)).await?;
    }
    assert_eq!(census(&rows).await?, (20, 12));

    assert_eq!(prune(&rows, "3 hours", 1000).await?, 0, "none is so old");
    assert_eq!(prune(&rows, "90 minutes", 1000).await?, 4, "a message stays as long as its reply is new");
    assert_eq!(prune(&rows, "30 minutes", 1000).await?, 6);
    assert_eq!(prune(&rows, "0", 1000).await?, 0);
    assert_eq!(census(&rows).await?, (10, 6));
    let left = "select distinct status from channels.channel_outbox order by 1";
    assert_eq!(texts(&rows.admin, left).await?, ["pending", "sending"]);
    let left =
        "select provider_message_id from channels.channel_messages where status <> 'executed' order by 1";
    assert_eq!(
        texts(&rows.admin, left).await?,
        ["stays: accepted", "stays: being executed", "stays: executed again", "stays: kept"]
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prune_removes_the_oldest_rows_up_to_its_limit_and_skips_locked_ones() -> anyhow::Result<()> {
    let rows = Rows::new().await?;
    rows.fill(rows.own, 5, "status, updated_at", "'dead', now() - interval '1 hour'").await?;
    let mut transaction = rows.admin.begin().await?;
    let hold = "select from channels.channel_messages where id = (select min(id::text)::uuid from channels.channel_messages) for update";
    execute(&mut *transaction, hold).await?;
    assert_eq!(prune(&rows, "30 minutes", 2).await?, 2);
    assert_eq!(prune(&rows, "30 minutes", 100).await?, 2);
    transaction.rollback().await?;
    assert_eq!(prune(&rows, "30 minutes", 100).await?, 1);
    assert_eq!(census(&rows).await?, (0, 0));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_reply_that_is_queued_again_is_not_pruned() -> anyhow::Result<()> {
    let rows = Rows::new().await?;
    rows.fill(rows.own, 1, "status, updated_at", "'dead', now() - interval '1 hour'").await?;
    let tenant = rows.own.tenant;
    let all = format!(
        "select count(*) from channels.requeue_replies('{tenant}', null, null, null, null, null, null, 100, 'me')"
    );
    // It is not committed yet when the prune looks: whoever comes second waits, and finds it on its way.
    let mut person = rows.acting_for(rows.own).await?;
    assert_eq!(number(&mut *person, all).await?, 1);
    let pruning = {
        let worker = rows.worker.clone();
        let sql = format!("select channels.prune_messages('{tenant}', '30 minutes', 100)");
        tokio::spawn(async move { number(&worker, sql).await })
    };
    let waits = "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'";
    crate::world::eventually("the prune waits", async || Ok(number(&rows.admin, waits).await? == 1)).await?;
    person.commit().await?;
    assert_eq!(refusal(pruning.await?)?.code, "23514");
    assert_eq!(prune(&rows, "30 minutes", 100).await?, 0);
    assert_eq!(census(&rows).await?, (1, 1));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prune_without_an_age_or_a_limit_is_refused() -> anyhow::Result<()> {
    let rows = Rows::new().await?;
    let held = rows.held(rows.own, "w").await?;
    settle(&rows.worker, "w", &[(&held, SENT)]).await?;
    for arguments in ["null, 10", "'-1 day', 10", "'1 day', 0", "'1 day', null"] {
        let sql = format!("select channels.prune_messages('{}', {arguments})", rows.own.tenant);
        assert_eq!(refusal(execute(&rows.worker, &sql).await)?.code, "22023", "{sql}");
    }
    assert_eq!(census(&rows).await?, (1, 1));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prune_of_one_tenant_leaves_the_messages_of_the_others() -> anyhow::Result<()> {
    let rows = Rows::new().await?;
    let (other, recent) =
        (Bot::create(&rows.admin, "other").await?, Bot::create(&rows.admin, "recent").await?);
    for bot in [rows.own, other] {
        rows.fill(bot, 2, "status, updated_at", "'dead', now() - interval '1 hour'").await?;
    }
    rows.receive(recent, "new").await?;
    let chosen = "select tenant_id::text from channels.tenants_with_old_messages('30 minutes') order by 1";
    let mut expected = [rows.own.tenant.to_string(), other.tenant.to_string()];
    expected.sort_unstable();
    assert_eq!(texts(&rows.worker, chosen).await?, expected);
    let one = format!("select channels.prune_messages('{}', '30 minutes', 100)", rows.own.tenant);
    assert_eq!(number(&rows.worker, one).await?, 2);
    assert_eq!(texts(&rows.worker, chosen).await?, [other.tenant.to_string()]);
    assert_eq!(census(&rows).await?, (3, 2));
    Ok(())
}
