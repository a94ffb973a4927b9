//! The statements of a message's and a reply's life find what they need through indexes, whatever lies in the tables and whatever the
//! statistics say: what the functions read is counted while they run.

use sqlx::{AssertSqlSafe, PgConnection};
use uuid::Uuid;

use super::rows::{Bot, Capacity, Claimed, Rows, SENT, UNKNOWN, claim_on, finish, receive, settle};
use crate::sql::{acting_as, execute, number, texts};

/// The counts of this session so far: whole tables read, and rows fetched through indexes.
async fn counted(client: &mut PgConnection) -> Result<(Vec<String>, i64), sqlx::Error> {
    let whole = "select relname || ' ' || seq_scan from pg_stat_xact_user_tables \
                  where schemaname = 'channels' and relname in ('channel_messages', 'channel_outbox') order by 1";
    let fetched = "select coalesce(sum(idx_tup_fetch), 0)::bigint from pg_stat_xact_user_tables \
                    where schemaname = 'channels' and relname in ('channel_messages', 'channel_outbox')";
    Ok((texts(&mut *client, whole).await?, number(&mut *client, fetched).await?))
}

/// Calls the steps of a life one after the other, says what each read, and leaves no trace.
struct Life<'a> {
    client: &'a mut PgConnection,
    bot: Bot,
    name: &'static str,
}

impl Life<'_> {
    async fn begin(&mut self, role: &str) -> Result<(), sqlx::Error> {
        execute(&mut *self.client, format!("set local role {role}")).await
    }

    /// Fails when a step read a whole table, or many more rows than it needs.
    async fn looked(&mut self, step: &str, before: (Vec<String>, i64), most: i64) -> anyhow::Result<()> {
        execute(&mut *self.client, "reset role").await?;
        let (whole, fetched) = counted(&mut *self.client).await?;
        anyhow::ensure!(whole == before.0, "{}: {step} read a whole table: {whole:?}", self.name);
        let fetched = fetched - before.1;
        anyhow::ensure!(fetched <= most, "{}: {step} read {fetched} rows", self.name);
        Ok(())
    }

    /// The whole life, as the app and the worker.
    async fn live(&mut self, due_of_others: i32) -> anyhow::Result<()> {
        let bot = self.bot;
        execute(&mut *self.client, format!("begin; {}", acting_as(bot.tenant))).await?;
        let mut before = counted(&mut *self.client).await?;

        self.begin("postrider_app").await?;
        let received = receive(&mut *self.client, bot, "ann", "new").await?;
        anyhow::ensure!(received.verdict == "execute", "{received:?}");
        self.looked("receiving", before, 4).await?;

        before = counted(&mut *self.client).await?;
        self.begin("postrider_app").await?;
        anyhow::ensure!(receive(&mut *self.client, bot, "ann", "new").await?.verdict == "duplicate");
        self.looked("receiving again", before, 4).await?;

        before = counted(&mut *self.client).await?;
        self.begin("postrider_app").await?;
        let end = AssertSqlSafe(finish(bot, received.message_id, 1));
        anyhow::ensure!(sqlx::query_scalar::<_, bool>(end).fetch_one(&mut *self.client).await?);
        self.looked("finishing", before, 8).await?;

        before = counted(&mut *self.client).await?;
        self.begin("postrider_worker").await?;
        // Each account gives one, and each is found by one look.
        let capacity = Capacity { limit: 10, per_account: 1, accounts: vec![], after: None };
        let claimed = claim_on(&mut *self.client, "w", &capacity).await?;
        anyhow::ensure!(claimed.len() == 1 + usize::try_from(due_of_others)?, "{claimed:?}");
        self.looked("claiming", before, 8 * i64::from(1 + due_of_others)).await?;
        let held = claimed.iter().find(|reply| reply.account_id == bot.account).unwrap().clone();

        self.settle_and_report(&held).await?;
        self.sweep().await?;
        execute(&mut *self.client, "rollback").await?;
        Ok(())
    }

    async fn settle_and_report(&mut self, held: &Claimed) -> anyhow::Result<()> {
        let before = counted(&mut *self.client).await?;
        self.begin("postrider_worker").await?;
        anyhow::ensure!(settle(&mut *self.client, "w", &[(held, UNKNOWN)]).await? == ["pending"]);
        anyhow::ensure!(settle(&mut *self.client, "w", &[(held, SENT)]).await?.is_empty());
        self.looked("settling", before, 4).await?;

        let before = counted(&mut *self.client).await?;
        self.begin("postrider_app").await?;
        let report = format!(
            "select channels.record_delivery('{}', '{}', '{}', 'theirs', 'sent', true, null, null)",
            self.bot.tenant, self.bot.account, held.id
        );
        execute(&mut *self.client, report).await?;
        let Bot { tenant, account, .. } = self.bot;
        let recent = format!("select channels.recent_messages('{tenant}', '{account}', 'ann')");
        execute(&mut *self.client, recent).await?;
        self.looked("reporting", before, 4).await
    }

    /// The statements that run every few seconds and find nothing.
    async fn sweep(&mut self) -> anyhow::Result<()> {
        let tenant = self.bot.tenant;
        for sweep in [
            "select channels.tenants_with_stale_replies('1 day', 10)".to_owned(),
            format!("select channels.reclaim_replies('{tenant}', '1 day')"),
            "select channels.tenants_with_expired_leases(false, 10)".to_owned(),
            format!("select channels.claim_unfinished_messages('{tenant}', 10, '1 minute')"),
            "select channels.tenants_with_expired_leases(true, 10)".to_owned(),
            format!(
                "select channels.enqueue_kept_replies('{tenant}', array['{}']::uuid[], 5)",
                Uuid::now_v7()
            ),
            "select channels.tenants_with_old_messages('1000 years')".to_owned(),
            format!("select channels.prune_messages('{tenant}', '1000 years')"),
        ] {
            let before = counted(&mut *self.client).await?;
            self.begin("postrider_worker").await?;
            execute(&mut *self.client, &sweep).await?;
            self.looked(&sweep, before, 4).await?;
        }
        Ok(())
    }
}

/// The life often enough that a session keeps its plans, and once in a new session.
async fn live(
    rows: &Rows,
    session: &mut PgConnection,
    name: &'static str,
    due_of_others: i32,
) -> anyhow::Result<()> {
    for _ in 0..8 {
        Life { client: &mut *session, bot: rows.own, name }.live(due_of_others).await?;
    }
    let mut new_session = rows.admin.acquire().await?;
    Life { client: &mut new_session, bot: rows.own, name }.live(due_of_others).await
}

const NO_AUTOVACUUM: &str = "alter table channels.channel_messages set (autovacuum_enabled = off);
    alter table channels.channel_outbox set (autovacuum_enabled = off)";
/// Nothing is on its way, and everything has its end.
const DRAIN: &str = "update channels.channel_outbox set status = 'sending', locked_at = now(), locked_by = 'w' where status = 'pending';
    update channels.channel_outbox set status = 'sent', locked_at = null, locked_by = null, sent_at = now() where status = 'sending'";
const SENT_LONG_AGO: (&str, &str) = ("status, sent_at", "'sent', now()");
const HELD: (&str, &str) = ("status, locked_at, locked_by", "'sending', now(), 'v'");

#[tokio::test(flavor = "multi_thread")]
async fn a_message_lives_by_indexes_on_empty_and_on_never_analyzed_tables() -> anyhow::Result<()> {
    let rows = Rows::new().await?;
    let other = Bot::create(&rows.admin, "other").await?;
    execute(&rows.admin, NO_AUTOVACUUM).await?;
    let mut session = rows.admin.acquire().await?;
    live(&rows, &mut session, "empty", 0).await?;

    rows.fill(rows.own, 10_000, SENT_LONG_AGO.0, SENT_LONG_AGO.1).await?;
    rows.fill_due(other, 3_000).await?;
    rows.fill(other, 3_000, "next_attempt_at", "now() + interval '1 day'").await?;
    let held = rows.another_account(rows.own, "held").await?;
    rows.fill(held, 500, HELD.0, "'sending', now(), 'v'").await?;
    let never = "select count(*) from pg_class where reltuples = -1 \
                   and oid in ('channels.channel_messages'::regclass, 'channels.channel_outbox'::regclass)";
    assert_eq!(number(&rows.admin, never).await?, 2);
    execute(
        &rows.admin,
        "update channels.channel_outbox set next_attempt_at = 'infinity' where status = 'sending'",
    )
    .await?;
    live(&rows, &mut session, "never analyzed", 1).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_lives_by_indexes_on_drained_tables_and_when_they_fill_again() -> anyhow::Result<()> {
    let rows = Rows::new().await?;
    let other = Bot::create(&rows.admin, "other").await?;
    execute(&rows.admin, NO_AUTOVACUUM).await?;
    rows.fill(other, 8_000, SENT_LONG_AGO.0, SENT_LONG_AGO.1).await?;
    rows.fill_due(other, 8_000).await?;
    execute(&rows.admin, "vacuum analyze").await?;
    let mut session = rows.admin.acquire().await?;
    live(&rows, &mut session, "analyzed", 1).await?;
    // All are sent, and the statistics are of the fullest hour.
    execute(&rows.admin, DRAIN).await?;
    live(&rows, &mut session, "drained", 0).await?;
    // The statistics are of the emptiest hour, and there is a backlog again.
    execute(&rows.admin, "vacuum analyze").await?;
    live(&rows, &mut session, "drained and analyzed", 0).await?;
    rows.fill_due(other, 8_000).await?;
    let held = rows.another_account(other, "held").await?;
    rows.fill(held, 2_000, HELD.0, HELD.1).await?;
    execute(
        &rows.admin,
        "update channels.channel_outbox set next_attempt_at = 'infinity' where status = 'sending'",
    )
    .await?;
    let mut session = rows.admin.acquire().await?;
    live(&rows, &mut session, "filled again", 1).await
}

/// Two accounts of one tenant, of which one waits longer than the other: nobody reads the rows of the first for the second.
#[tokio::test(flavor = "multi_thread")]
async fn a_backlog_that_is_older_is_not_read_for_another_account_of_the_same_tenant() -> anyhow::Result<()> {
    let rows = Rows::new().await?;
    execute(&rows.admin, NO_AUTOVACUUM).await?;
    let older = rows.another_account(rows.own, "older").await?;
    // When the statistics were made, most of the own ones were being sent: so the index of what is on its way looks worse than that
    // of all that is pending.
    let due = |hours: i32| format!("now() - interval '{hours} hours' + at * interval '1 millisecond'");
    let held = format!("{}, {}", HELD.1, due(10));
    rows.fill(rows.own, 12_000, "status, locked_at, locked_by, next_attempt_at", &held).await?;
    rows.fill(rows.own, 3_000, "next_attempt_at", &due(10)).await?;
    rows.fill(older, 3_000, "next_attempt_at", &due(20)).await?;
    execute(&rows.admin, "analyze").await?;
    execute(
        &rows.admin,
        "update channels.channel_outbox set status = 'sent', locked_at = null, locked_by = null, sent_at = now() \
          where status = 'sending'",
    )
    .await?;
    let mut session = rows.admin.acquire().await?;
    for _ in 0..8 {
        execute(&mut *session, "begin").await?;
        let (_, before) = counted(&mut session).await?;
        let capacity = Capacity { limit: 40, per_account: 20, accounts: vec![], after: None };
        assert_eq!(claim_on(&mut session, "w", &capacity).await?.len(), 40);
        let fetched = counted(&mut session).await?.1 - before;
        assert!(fetched <= 2 * 40 + 10, "{fetched} rows were read for 40");
        execute(&mut *session, "rollback").await?;
    }
    Ok(())
}
