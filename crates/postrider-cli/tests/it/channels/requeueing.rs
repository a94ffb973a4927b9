//! A person queues dead replies again.

use uuid::Uuid;

use super::rows::{Bot, Capacity, DEAD, NOTHING, RETRY, Rows, SENT, Verdict, claim, settle};
use crate::sql::{execute, number, refusal, texts};

/// Filters, and which of the dead replies they leave.
type Case<'a> = (&'a [(&'a str, &'a str)], &'a [usize]);

/// Queues what matches again, and says what that was. A filter is an SQL value; what is left out is null.
async fn requeue(rows: &Rows, bot: Bot, filters: &[(&str, &str)]) -> anyhow::Result<Vec<Uuid>> {
    let names = [
        "p_id",
        "p_account_id",
        "p_provider",
        "p_error_contains",
        "p_dead_before",
        "p_dead_since",
        "p_limit",
    ];
    assert!(filters.iter().all(|(name, _)| names.contains(name)), "{filters:?}");
    let arguments = names.map(|name| {
        let given = filters.iter().find(|(given, _)| *given == name).map(|(_, value)| *value);
        format!("{name} => {}", given.unwrap_or(if name == "p_limit" { "100" } else { "null" }))
    });
    let sql = format!(
        "select coalesce(array_agg(id order by id), '{{}}')
           from channels.requeue_replies(p_tenant_id => '{}', {}, p_actor => 'me') as requeued (id)",
        bot.tenant,
        arguments.join(", ")
    );
    Ok(rows.ask(bot, sql).await?)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_reply_is_pending_again_with_all_its_attempts_and_audited() -> anyhow::Result<()> {
    let rows = Rows::new().await?;
    let reply = rows.dead(rows.own).await?;
    execute(&rows.admin, "update channels.channel_outbox set in_doubt_since = now() - interval '1 hour'")
        .await?;
    assert_eq!(requeue(&rows, rows.own, &[("p_id", &format!("'{reply}'"))]).await?, [reply]);
    let row = "concat_ws(' ', status, attempt_count, next_attempt_at <= now(), last_error, in_doubt_since is not null, claims)";
    assert_eq!(
        rows.look(row, "channel_outbox", reply).await?,
        "pending 0 t refused t 1",
        "what was in doubt stays so"
    );
    assert_eq!(
        rows.log_of(format!("reply:{reply}")).await?,
        ["reply.dead by w refused", "reply.requeued by me"]
    );
    for attempt in 1..=5 {
        let held = claim(&rows.worker, "w", &Capacity::of(1)).await?.remove(0);
        let expected = if attempt < 5 { "pending" } else { "dead" };
        assert_eq!(settle(&rows.worker, "w", &[(&held, RETRY)]).await?, [expected]);
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn only_dead_replies_are_queued_again_and_only_those_of_the_own_tenant() -> anyhow::Result<()> {
    let rows = Rows::new().await?;
    let other = Bot::create(&rows.admin, "other").await?;
    let theirs = rows.dead(other).await?;
    let sent = rows.held(rows.own, "w").await?;
    settle(&rows.worker, "w", &[(&sent, SENT)]).await?;
    let sending = rows.held(rows.own, "w").await?;
    let pending = rows.reply(rows.own).await?;
    for id in [theirs, sent.id, sending.id, pending, Uuid::now_v7()] {
        let before = rows.reply_row(id).await?;
        assert_eq!(requeue(&rows, rows.own, &[("p_id", &format!("'{id}'"))]).await?, NOTHING);
        assert_eq!(rows.reply_row(id).await?, before);
    }
    assert_eq!(requeue(&rows, rows.own, &[]).await?, NOTHING);
    assert_eq!(
        requeue(&rows, rows.own, &[("p_account_id", &format!("'{}'", other.account))]).await?,
        NOTHING
    );
    let requeued = "select count(*) from tenancy.audit_log where action = 'reply.requeued'";
    assert_eq!(number(&rows.admin, requeued).await?, 0);
    // Without a tenant, nobody's.
    let all = format!(
        "select * from channels.requeue_replies('{}', null, null, null, null, null, null, 100, 'me')",
        other.tenant
    );
    assert_eq!(refusal(execute(&rows.app, &all).await)?.code, "42501");
    // In the context of another tenant, neither.
    let mut transaction = rows.acting_for(rows.own).await?;
    assert_eq!(refusal(execute(&mut *transaction, &all).await)?.code, "42501");
    transaction.rollback().await?;
    assert_eq!(requeue(&rows, other, &[]).await?, [theirs]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn each_filter_leaves_the_others_dead_and_all_of_them_must_match() -> anyhow::Result<()> {
    let rows = Rows::new().await?;
    let second = rows.another_account(rows.own, "second").await?;
    rows.fill(
        rows.own,
        2,
        "status, last_error, updated_at",
        "'dead', 'Rate LIMITED', now() - at * interval '1 hour'",
    )
    .await?;
    rows.fill(second, 1, "status, last_error, updated_at", "'dead', 'refused', now() - interval '3 hours'")
        .await?;
    let all = "select id::text from channels.channel_outbox order by updated_at desc";
    let all: Vec<Uuid> =
        texts(&rows.admin, all).await?.iter().map(|id| id.parse()).collect::<Result<_, _>>()?;
    let (own, other) = (format!("'{}'", rows.own.account), format!("'{}'", second.account));
    let ago = |hours: &str| format!("now() - interval '{hours} hours 30 minutes'");
    let (one, two) = (ago("1"), ago("2"));
    let cases: &[Case<'_>] = &[
        (&[], &[0, 1, 2]),
        (&[("p_account_id", &own)], &[0, 1]),
        (&[("p_account_id", &other)], &[2]),
        (&[("p_provider", "'sim'")], &[0, 1, 2]),
        (&[("p_provider", "'slack'")], &[]),
        (&[("p_error_contains", "'rate limited'")], &[0, 1]),
        (&[("p_error_contains", "'%'")], &[]),
        (&[("p_dead_before", &one)], &[1, 2]),
        (&[("p_dead_since", &one)], &[0]),
        (&[("p_dead_before", &one), ("p_dead_since", &two)], &[1]),
        (&[("p_dead_before", &one), ("p_error_contains", "'refused'")], &[2]),
        (&[("p_account_id", &own), ("p_error_contains", "'refused'")], &[]),
        (&[("p_limit", "2")], &[1, 2]),
        (&[("p_limit", "0")], &[]),
    ];
    for (filters, expected) in cases {
        let mut expected: Vec<Uuid> = expected.iter().map(|at| all[*at]).collect();
        expected.sort_unstable();
        let before = "create table public.before as select id, updated_at from channels.channel_outbox";
        execute(&rows.admin, before).await?;
        assert_eq!(requeue(&rows, rows.own, filters).await?, expected, "{filters:?}");
        // All are dead again, since when they were.
        execute(
            &rows.admin,
            "update channels.channel_outbox set status = 'sending', locked_at = now(), locked_by = 'w' where status = 'pending';
             update channels.channel_outbox as reply
                set status = 'dead', locked_at = null, locked_by = null, updated_at = before.updated_at
               from public.before as before where before.id = reply.id and reply.status = 'sending';
             drop table public.before",
        )
        .await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn two_people_queue_a_reply_again_once() -> anyhow::Result<()> {
    let rows = Rows::new().await?;
    for _ in 0..5 {
        rows.dead(rows.own).await?;
    }
    let mut both = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let (app, own) = (rows.app.clone(), rows.own);
        both.spawn(async move {
            let mut transaction = super::rows::acting_for(&app, own).await?;
            let all = format!(
                "select id::text from channels.requeue_replies('{}', null, null, null, null, null, null, 100, 'me') as requeued (id)",
                own.tenant
            );
            let ids = texts(&mut *transaction, all).await?;
            transaction.commit().await?;
            anyhow::Ok(ids.len())
        });
    }
    let mut queued = 0;
    while let Some(count) = both.join_next().await {
        queued += count??;
    }
    assert_eq!(queued, 5);
    let noted = "select count(*) from tenancy.audit_log where action = 'reply.requeued'";
    assert_eq!(number(&rows.admin, noted).await?, 5);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_late_result_of_before_does_not_end_what_was_queued_again() -> anyhow::Result<()> {
    let rows = Rows::new().await?;
    let held = rows.held(rows.own, "w").await?;
    settle(&rows.worker, "w", &[(&held, DEAD)]).await?;
    assert_eq!(requeue(&rows, rows.own, &[]).await?, [held.id]);
    let again = claim(&rows.worker, "w", &Capacity::of(1)).await?.remove(0);
    let before = rows.reply_row(held.id).await?;
    assert_eq!(
        settle(&rows.worker, "w", &[(&held, Verdict { message_id: Some("late"), ..SENT })]).await?,
        [""; 0]
    );
    assert_eq!(rows.reply_row(held.id).await?, before);
    assert_eq!(settle(&rows.worker, "w", &[(&again, SENT)]).await?, ["sent"]);
    Ok(())
}
