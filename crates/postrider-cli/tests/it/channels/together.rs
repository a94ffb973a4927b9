//! Many at once: each row goes to one of them.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use sqlx::PgPool;
use tokio::{sync::Barrier, task::JoinSet};
use uuid::Uuid;

use super::rows::{Bot, Capacity, Rows, SENT, acting_for, claim, claim_on, finish, receive, reclaim, settle};
use crate::sql::number;

const WORKERS: usize = 32;

/// Clients of this role, so many at once.
async fn clients(rows: &Rows, role: &str, count: u32) -> anyhow::Result<PgPool> {
    let options = sqlx::postgres::PgPoolOptions::new().max_connections(count);
    Ok(options.connect(&rows.world.url(role)).await?)
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_workers_do_not_claim_the_same_row_twice() -> anyhow::Result<()> {
    let rows = Rows::new().await?;
    let other = Bot::create(&rows.admin, "other").await?;
    rows.fill_due(rows.own, 4_000).await?;
    rows.fill_due(other, 1_000).await?;
    let pool = clients(&rows, "postrider_worker", u32::try_from(WORKERS)?).await?;
    let start = Arc::new(Barrier::new(WORKERS));
    let mut workers = JoinSet::new();
    for at in 0..WORKERS {
        let (pool, admin, start) = (pool.clone(), rows.admin.clone(), start.clone());
        workers.spawn(async move {
            let mut client = pool.acquire().await?;
            start.wait().await;
            let mut taken = Vec::new();
            let mut after = None;
            loop {
                let capacity = Capacity { limit: 25, per_account: 20, accounts: Vec::new(), after };
                let claimed = claim_on(&mut client, &format!("worker {at}"), &capacity).await?;
                taken.extend(claimed.iter().map(|reply| reply.id));
                after = Some(other);
                let left = "select count(*) from channels.channel_outbox where status = 'pending'";
                // Nothing for us may mean that others hold all there is, and have not committed.
                if claimed.is_empty() && number(&admin, left).await? == 0 {
                    return anyhow::Ok(taken);
                }
            }
        });
    }
    let (mut all, mut unique) = (0, BTreeSet::new());
    while let Some(taken) = workers.join_next().await {
        let taken = taken??;
        all += taken.len();
        unique.extend(taken);
    }
    assert_eq!((all, unique.len()), (5_000, 5_000));
    let once = "select count(*) from channels.channel_outbox where status = 'sending' and claims = 1";
    assert_eq!(number(&rows.admin, once).await?, 5_000);
    Ok(())
}

/// Locks are taken away at once here, while results come in: each reply is told as sent by one of its holders.
#[tokio::test(flavor = "multi_thread")]
async fn each_reply_is_sent_by_one_worker_although_others_take_it_away() -> anyhow::Result<()> {
    const REPLIES: usize = 400;
    let rows = Rows::new().await?;
    rows.fill_due(rows.own, REPLIES).await?;
    let left = "select count(*) from channels.channel_outbox where status <> 'sent'";
    let mut workers = JoinSet::new();
    for at in 0..8 {
        let (worker, admin) = (rows.worker.clone(), rows.admin.clone());
        workers.spawn(async move {
            let mut sent = Vec::new();
            while number(&admin, left).await? > 0 {
                let name = format!("worker {}", at % 4);
                let held = claim(&worker, &name, &Capacity::of(10)).await?;
                if at % 2 == 0 {
                    reclaim(&worker, "0").await?;
                }
                for reply in &held {
                    if settle(&worker, &name, &[(reply, SENT)]).await? == ["sent"] {
                        sent.push(reply.id);
                    }
                }
            }
            anyhow::Ok(sent)
        });
    }
    let mut sent: BTreeMap<Uuid, usize> = BTreeMap::new();
    while let Some(of_one) = workers.join_next().await {
        for id in of_one?? {
            *sent.entry(id).or_default() += 1;
        }
    }
    assert_eq!(sent.len(), REPLIES);
    assert!(sent.values().all(|times| *times == 1), "a reply was settled twice");
    Ok(())
}

/// Delivers one message so many times at once, and counts the verdicts.
async fn deliver_at_once(rows: &Rows, times: usize) -> anyhow::Result<BTreeMap<String, usize>> {
    let pool = clients(rows, "postrider_app", u32::try_from(times)?).await?;
    let (start, own) = (Arc::new(Barrier::new(times)), rows.own);
    let mut deliveries = JoinSet::new();
    for _ in 0..times {
        let (pool, start) = (pool.clone(), start.clone());
        deliveries.spawn(async move {
            let mut transaction = acting_for(&pool, own).await?;
            start.wait().await;
            let received = receive(&mut *transaction, own, "ann", "one").await?;
            transaction.commit().await?;
            anyhow::Ok(received.verdict)
        });
    }
    let mut verdicts = BTreeMap::new();
    while let Some(verdict) = deliveries.join_next().await {
        *verdicts.entry(verdict??).or_default() += 1;
    }
    pool.close().await;
    Ok(verdicts)
}

#[tokio::test(flavor = "multi_thread")]
async fn of_64_deliveries_of_one_message_exactly_one_executes_it() -> anyhow::Result<()> {
    let rows = Rows::new().await?;
    let once = |word: &str| BTreeMap::from([("duplicate".to_owned(), 63), (word.to_owned(), 1)]);
    assert_eq!(deliver_at_once(&rows, 64).await?, once("execute"));
    let message = "select id from channels.channel_messages";
    let message: Uuid = sqlx::query_scalar(message).fetch_one(&rows.admin).await?;
    assert_eq!(
        rows.look("concat_ws(' ', deliveries, executions)", "channel_messages", message).await?,
        "64 1"
    );

    // The same when its time is over, and when its reply was kept.
    rows.end_lease(message).await?;
    assert_eq!(deliver_at_once(&rows, 64).await?, once("execute"));
    assert!(rows.fail(rows.own, message, 2, Some("kept")).await?);
    assert_eq!(deliver_at_once(&rows, 64).await?, once("enqueued"));
    assert_eq!(number(&rows.admin, "select count(*) from channels.channel_outbox").await?, 1);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn of_many_who_take_up_finish_and_enqueue_each_message_has_one() -> anyhow::Result<()> {
    const MESSAGES: usize = 30;
    let rows = Rows::new().await?;
    for name in 0..MESSAGES {
        rows.receive(rows.own, &name.to_string()).await?;
    }
    crate::sql::execute(
        &rows.admin,
        "update channels.channel_messages set leased_until = now() - interval '1 minute'",
    )
    .await?;
    let mut sweeps = JoinSet::new();
    for _ in 0..8 {
        let (worker, own) = (rows.worker.clone(), rows.own);
        sweeps.spawn(async move {
            let (mut taken, mut finished) = (Vec::new(), 0);
            loop {
                let take = "select message_id from channels.claim_unfinished_messages($1, 3, '1 hour')";
                let messages: Vec<Uuid> =
                    sqlx::query_scalar(take).bind(own.tenant).fetch_all(&worker).await?;
                if messages.is_empty() {
                    return anyhow::Ok((taken, finished));
                }
                for message in messages {
                    taken.push(message);
                    let mut transaction = acting_for(&worker, own).await?;
                    // The execution that was taken away and the newest one.
                    for execution in [1, 2, 2] {
                        let sql = sqlx::AssertSqlSafe(finish(own, message, execution));
                        finished += usize::from(
                            sqlx::query_scalar::<_, bool>(sql).fetch_one(&mut *transaction).await?,
                        );
                    }
                    transaction.commit().await?;
                }
            }
        });
    }
    let (mut all, mut unique, mut finished) = (0, BTreeSet::new(), 0);
    while let Some(swept) = sweeps.join_next().await {
        let (taken, ended) = swept??;
        all += taken.len();
        finished += ended;
        unique.extend(taken);
    }
    // A claimer that found every row locked returned early; each row was claimed once.
    assert_eq!((all, finished), (unique.len(), unique.len()));
    assert_eq!(unique.len(), MESSAGES);
    let replies = "select count(distinct channel_message_id) from channels.channel_outbox";
    assert_eq!(number(&rows.admin, replies).await?, i64::try_from(MESSAGES)?);
    Ok(())
}
