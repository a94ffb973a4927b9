//! Claiming and reclaiming replies.

use uuid::Uuid;

use super::rows::{Bot, Capacity, NOTHING, RETRY, Rows, SENT, claim, claim_on, reclaim, settle};
use crate::sql::{execute, refusal, texts};

/// The ids of a claim of up to so many.
async fn taken(rows: &Rows, limit: i32) -> Result<Vec<Uuid>, sqlx::Error> {
    Ok(claim(&rows.worker, "w", &Capacity::of(limit)).await?.iter().map(|reply| reply.id).collect())
}

/// Moves the time of a reply.
async fn due(rows: &Rows, reply: Uuid, at: &str) -> Result<(), sqlx::Error> {
    let sql = format!("update channels.channel_outbox set next_attempt_at = {at} where id = '{reply}'");
    execute(&rows.admin, sql).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_takes_what_is_due_and_marks_it() -> anyhow::Result<()> {
    let rows = Rows::new().await?;
    let reply = rows.reply(rows.own).await?;
    let claimed = claim(&rows.worker, "w", &Capacity::of(10)).await?;
    assert_eq!(claimed.len(), 1);
    assert_eq!((claimed[0].id, claimed[0].claims, claimed[0].attempt_count), (reply, 1, 0));
    assert!(!claimed[0].is_in_doubt);
    let row = "concat_ws(' ', status, locked_by, claims, attempt_count, locked_at <= now())";
    assert_eq!(rows.look(row, "channel_outbox", reply).await?, "sending w 1 0 t");
    assert_eq!(taken(&rows, 10).await?, NOTHING);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_returns_the_message_and_its_account() -> anyhow::Result<()> {
    let rows = Rows::new().await?;
    rows.reply(rows.own).await?;
    let Bot { tenant, account, .. } = rows.own;
    let claim = format!("channels.claim_replies('{tenant}', 'w', 1, array['{account}']::uuid[], array[1])");
    let all = format!(
        "select concat_ws(' ', claimed.account_id, claimed.provider, claimed.recipient_id, payload->>'text', max_attempts,
                          message.correlation_id = claimed.correlation_id, account_version = account.updated_at)
           from {claim} as claimed
           left join channels.channel_messages as message on message.id = claimed.channel_message_id
           left join tenancy.provider_accounts as account on account.id = claimed.account_id"
    );
    let mut transaction = super::rows::acting_for(&rows.worker, rows.own).await?;
    assert_eq!(texts(&mut *transaction, all).await?, [format!("{account} sim room you said hi 5 t t")]);
    transaction.rollback().await?;

    // A removed account has no version; the reply is claimed all the same, to be ended.
    let removed = format!(
        "select tenancy.remove_provider_account('{}', '{}', 'me')",
        rows.own.tenant, rows.own.account
    );
    assert!(rows.ask::<bool>(rows.own, removed).await?);
    let version = format!("select coalesce(account_version::text, 'none') from {claim}");
    assert_eq!(texts(&rows.worker, version).await?, ["none"]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn only_what_is_pending_and_due_is_claimed_and_the_longest_due_first() -> anyhow::Result<()> {
    let rows = Rows::new().await?;
    let sent = rows.held(rows.own, "v").await?;
    assert_eq!(settle(&rows.worker, "v", &[(&sent, SENT)]).await?, ["sent"]);
    rows.dead(rows.own).await?;
    rows.held(rows.own, "v").await?;
    let mut replies = Vec::new();
    for age in ["1 minute", "3 minutes", "2 minutes", "0"] {
        let reply = rows.reply(rows.own).await?;
        due(&rows, reply, &format!("now() - interval '{age}'")).await?;
        replies.push(reply);
    }
    let later = rows.reply(rows.own).await?;
    due(&rows, later, "now() + interval '1 minute'").await?;
    for at in [1, 2, 0, 3] {
        assert_eq!(taken(&rows, 1).await?, [replies[at]]);
    }
    assert_eq!(taken(&rows, 10).await?, NOTHING);
    due(&rows, later, "now()").await?;
    assert_eq!(taken(&rows, 10).await?, [later]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn replies_due_together_are_claimed_by_id_up_to_the_limit() -> anyhow::Result<()> {
    let rows = Rows::new().await?;
    rows.fill(rows.own, 10, "next_attempt_at", "now() - interval '1 hour'").await?;
    let ids = "select id::text from channels.channel_outbox order by id";
    let ids: Vec<Uuid> =
        texts(&rows.admin, ids).await?.iter().map(|id| id.parse()).collect::<Result<_, _>>()?;
    for (limit, range) in [(3, 0..3), (1, 3..4), (0, 4..4), (5, 4..9), (100, 9..10)] {
        let mut taken = taken(&rows, limit).await?;
        taken.sort_unstable();
        assert_eq!(taken, ids[range], "{limit}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_locked_by_another_session_is_skipped() -> anyhow::Result<()> {
    let rows = Rows::new().await?;
    let (first, second) = (rows.reply(rows.own).await?, rows.reply(rows.own).await?);
    let mut other = rows.worker.begin().await?;
    let theirs = claim_on(&mut other, "v", &Capacity::of(1)).await?;
    assert_eq!(theirs[0].id, first);
    // Their claim is not committed, and ours comes at once.
    assert_eq!(taken(&rows, 10).await?, [second]);
    other.rollback().await?;
    assert_eq!(taken(&rows, 10).await?, [first]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dispatcher_must_name_itself() -> anyhow::Result<()> {
    let rows = Rows::new().await?;
    rows.reply(rows.own).await?;
    for name in ["", " "] {
        assert_eq!(refusal(claim(&rows.worker, name, &Capacity::of(1)).await)?.code, "22023");
    }
    let Bot { tenant, account, .. } = rows.own;
    for (of, worker, code) in [(format!("'{tenant}'"), "null", "22023"), ("null".to_owned(), "'w'", "22004")]
    {
        let sql =
            format!("select channels.claim_replies({of}, {worker}, 1, array['{account}']::uuid[], array[1])");
        assert_eq!(refusal(execute(&rows.worker, &sql).await)?.code, code, "{sql}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reply_with_a_stale_lock_is_pending_again_in_doubt_and_counts_no_attempt() -> anyhow::Result<()> {
    let rows = Rows::new().await?;
    let (stale, fresh) = (rows.held(rows.own, "gone").await?, rows.held(rows.own, "there").await?);
    rows.age_lock(stale.id, "61 seconds").await?;
    rows.age_lock(fresh.id, "59 seconds").await?;
    assert_eq!(reclaim(&rows.worker, "1 minute").await?, [stale.id]);
    let row = "concat_ws(' ', status, attempt_count, in_doubt_since is not null, locked_by, locked_at, claims, next_attempt_at <= now(), last_error)";
    assert_eq!(
        rows.look(row, "channel_outbox", stale.id).await?,
        "pending 0 t 1 t the dispatcher that was sending it went away"
    );
    assert_eq!(
        rows.look("concat_ws(' ', status, locked_by)", "channel_outbox", fresh.id).await?,
        "sending there"
    );
    assert_eq!(reclaim(&rows.worker, "1 minute").await?, NOTHING);

    let again = claim(&rows.worker, "heir", &Capacity::of(10)).await?;
    assert_eq!((again[0].id, again[0].claims, again[0].attempt_count), (stale.id, 2, 0));
    assert!(again[0].is_in_doubt, "what was being sent may have arrived");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_doubt_is_as_old_as_the_last_attempt_and_a_reclaim_says_who_was_gone() -> anyhow::Result<()> {
    let rows = Rows::new().await?;
    let held = rows.held(rows.own, "gone").await?;
    let since = "update channels.channel_outbox set in_doubt_since = '2020-01-01', locked_at = now() - interval '1 hour'";
    execute(&rows.admin, since).await?;
    let told = format!(
        "select concat_ws(' ', id, worker, channel_message_id is not null, correlation_id is not null)
           from channels.reclaim_replies('{}', '1 minute', 10)",
        rows.own.tenant
    );
    assert_eq!(texts(&rows.worker, told).await?, [format!("{} gone t t", held.id)]);
    let is_new = "in_doubt_since > now() - interval '1 minute'";
    assert_eq!(rows.look(is_new, "channel_outbox", held.id).await?, "true");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reclaim_takes_the_oldest_locks_as_many_as_it_may_and_skips_what_is_being_settled()
-> anyhow::Result<()> {
    let rows = Rows::new().await?;
    let mut held = Vec::new();
    for minutes in [2, 4, 3] {
        let reply = rows.held(rows.own, "gone").await?;
        rows.age_lock(reply.id, &format!("{minutes} minutes")).await?;
        held.push(reply);
    }
    let one = format!("select id::text from channels.reclaim_replies('{}', '1 minute', 1)", rows.own.tenant);
    assert_eq!(texts(&rows.worker, one).await?, [held[1].id.to_string()]);
    // A result comes in at this moment: it is not taken away any more.
    let mut settling = rows.worker.begin().await?;
    assert_eq!(settle(&mut *settling, "gone", &[(&held[2], RETRY)]).await?, ["pending"]);
    assert_eq!(reclaim(&rows.worker, "1 minute").await?, [held[0].id]);
    settling.commit().await?;
    assert_eq!(reclaim(&rows.worker, "1 minute").await?, NOTHING);
    let row = "concat_ws(' ', attempt_count, in_doubt_since)";
    assert_eq!(rows.look(row, "channel_outbox", held[2].id).await?, "1");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_and_a_reclaim_touch_the_replies_of_their_tenant_alone() -> anyhow::Result<()> {
    let rows = Rows::new().await?;
    let other = Bot::create(&rows.admin, "other").await?;
    let (ours, theirs) = (rows.reply(rows.own).await?, rows.reply(other).await?);
    // An account of another tenant yields nothing.
    let accounts = format!("array['{}', '{}']::uuid[], array[10, 10]", other.account, rows.own.account);
    let claim =
        format!("select id::text from channels.claim_replies('{}', 'w', 10, {accounts})", rows.own.tenant);
    assert_eq!(texts(&rows.worker, &claim).await?, [ours.to_string()]);
    assert_eq!(rows.look("status", "channel_outbox", theirs).await?, "pending");

    let held = super::rows::claim(&rows.worker, "w", &Capacity::of(10)).await?;
    assert_eq!(held[0].id, theirs);
    rows.age_lock(ours, "3 minutes").await?;
    rows.age_lock(theirs, "2 minutes").await?;
    let chosen = "select tenant_id from channels.tenants_with_stale_replies('1 minute', 10)";
    let chosen: Vec<Uuid> = sqlx::query_scalar(chosen).fetch_all(&rows.worker).await?;
    assert_eq!(chosen, [rows.own.tenant, other.tenant], "the oldest lock comes first");
    let reclaim = format!("select id::text from channels.reclaim_replies('{}', '1 minute')", other.tenant);
    assert_eq!(texts(&rows.worker, &reclaim).await?, [theirs.to_string()]);
    assert_eq!(rows.look("status", "channel_outbox", ours).await?, "sending");
    Ok(())
}
