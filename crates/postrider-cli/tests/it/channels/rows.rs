//! A database in which somebody can write, and what its clients call. Each call is made by the role that may make it: the app
//! receives and operates, the worker dispatches. The superuser only sets the stage, and moves times, so that nothing is waited for.

use sqlx::{AssertSqlSafe, PgConnection, PgExecutor, PgPool, Postgres, Transaction};
use uuid::Uuid;

use crate::{
    sql::{acting_as, execute, tenant, texts},
    world::World,
};

/// No ids.
pub const NOTHING: [Uuid; 0] = [];

/// The database, one tenant with a bot, and the clients of the three who act.
pub struct Rows {
    pub world: World,
    pub admin: PgPool,
    pub app: PgPool,
    pub worker: PgPool,
    pub own: Bot,
}

/// An account at which a person, `ann`, is linked as operator, of a tenant whose messages are echoed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bot {
    pub tenant: Uuid,
    pub workspace: Uuid,
    pub account: Uuid,
}

/// The result of receive_message and claim_unfinished_messages.
#[derive(Debug, Clone, PartialEq, Eq, sqlx::FromRow)]
pub struct Received {
    pub message_id: Uuid,
    pub verdict: String,
    pub execution: i32,
    pub user_id: Option<String>,
    pub role: Option<String>,
    pub correlation_id: Uuid,
}

/// A reply as its holder knows it.
#[derive(Debug, Clone, PartialEq, Eq, sqlx::FromRow)]
pub struct Claimed {
    pub tenant_id: Uuid,
    pub id: Uuid,
    pub account_id: Uuid,
    pub attempt_count: i32,
    pub claims: i32,
    pub is_in_doubt: bool,
    pub provider_message_id: Option<String>,
}

/// The capacity of a dispatcher.
#[derive(Debug, Clone)]
pub struct Capacity {
    pub limit: i32,
    pub per_account: i32,
    pub accounts: Vec<(Bot, i32)>,
    pub after: Option<Bot>,
}

impl Capacity {
    /// For so many, from whomever they are.
    pub fn of(limit: i32) -> Self {
        Self { limit, per_account: limit, accounts: Vec::new(), after: None }
    }
}

/// The result of an attempt, as `settle_replies` takes it.
#[derive(Debug, Clone, Copy)]
pub struct Verdict {
    pub word: &'static str,
    pub message_id: Option<&'static str>,
    pub error: Option<&'static str>,
    pub pause_seconds: f64,
    pub in_doubt: bool,
}

pub const SENT: Verdict =
    Verdict { word: "sent", message_id: Some("theirs"), error: None, pause_seconds: 0.0, in_doubt: false };
pub const RETRY: Verdict = Verdict {
    word: "retry",
    message_id: None,
    error: Some("it failed"),
    pause_seconds: 0.0,
    in_doubt: false,
};
pub const UNKNOWN: Verdict =
    Verdict { word: "retry", message_id: None, error: Some("no answer"), pause_seconds: 0.0, in_doubt: true };
pub const DEAD: Verdict =
    Verdict { word: "dead", message_id: None, error: Some("refused"), pause_seconds: 0.0, in_doubt: false };
pub const RELEASE: Verdict =
    Verdict { word: "release", message_id: None, error: None, pause_seconds: 0.0, in_doubt: false };

impl Rows {
    pub async fn new() -> anyhow::Result<Self> {
        let world = World::new().await?;
        let admin = world.client("postgres").await?;
        let (app, worker) = (world.client("postrider_app").await?, world.client("postrider_worker").await?);
        let own = Bot::create(&admin, "own").await?;
        Ok(Self { world, admin, app, worker, own })
    }

    /// A transaction of the app in the tenant's context.
    pub async fn acting_for(&self, bot: Bot) -> Result<Transaction<'static, Postgres>, sqlx::Error> {
        acting_for(&self.app, bot).await
    }

    /// One question of the app in the tenant's context, committed when it was answered.
    pub async fn ask<T>(&self, bot: Bot, sql: impl Into<String>) -> Result<T, sqlx::Error>
    where
        T: for<'r> sqlx::Decode<'r, Postgres> + sqlx::Type<Postgres> + Send + Unpin,
    {
        let mut transaction = self.acting_for(bot).await?;
        match sqlx::query_scalar(AssertSqlSafe(sql.into())).fetch_one(&mut *transaction).await {
            Ok(answer) => transaction.commit().await.map(|()| answer),
            Err(error) => transaction.rollback().await.and(Err(error)),
        }
    }

    /// Another account of the same tenant, at which nobody is linked.
    pub async fn another_account(&self, bot: Bot, name: &str) -> Result<Bot, sqlx::Error> {
        let other = Bot { account: Uuid::now_v7(), ..bot };
        other.add_account(&self.admin, name).await.map(|()| other)
    }

    /// A delivery of a message of this sender.
    pub async fn receive_from(&self, bot: Bot, sender: &str, name: &str) -> Result<Received, sqlx::Error> {
        let mut transaction = self.acting_for(bot).await?;
        let received = receive(&mut *transaction, bot, sender, name).await?;
        transaction.commit().await.map(|()| received)
    }

    /// A delivery of a message that ann wrote.
    pub async fn receive(&self, bot: Bot, name: &str) -> Result<Received, sqlx::Error> {
        self.receive_from(bot, "ann", name).await
    }

    /// Ends a message with its reply, under this number of execution.
    pub async fn finish(&self, bot: Bot, message: Uuid, execution: i32) -> Result<bool, sqlx::Error> {
        self.ask(bot, finish(bot, message, execution)).await
    }

    /// Says that a message could not be executed, or its reply not enqueued.
    pub async fn fail(
        &self,
        bot: Bot,
        message: Uuid,
        execution: i32,
        reply: Option<&str>,
    ) -> Result<bool, sqlx::Error> {
        let reply = reply.map_or("null".to_owned(), |text| format!("jsonb_build_object('text', '{text}')"));
        let tenant = bot.tenant;
        let sql =
            format!("select channels.fail_message('{tenant}', '{message}', {execution}, {reply}, 'why')");
        self.ask(bot, sql).await
    }

    /// A message that was received and executed; gives its reply.
    pub async fn reply(&self, bot: Bot) -> anyhow::Result<Uuid> {
        let received = self.receive(bot, &Uuid::now_v7().to_string()).await?;
        anyhow::ensure!(received.verdict == "execute", "{received:?}");
        anyhow::ensure!(self.finish(bot, received.message_id, received.execution).await?);
        let reply = format!(
            "select id from channels.channel_outbox where channel_message_id = '{}'",
            received.message_id
        );
        Ok(self.ask(bot, reply).await?)
    }

    /// A reply that this worker holds.
    pub async fn held(&self, bot: Bot, worker: &str) -> anyhow::Result<Claimed> {
        let id = self.reply(bot).await?;
        let mut claimed = claim(&self.worker, worker, &Capacity::of(10)).await?;
        anyhow::ensure!(claimed.len() == 1 && claimed[0].id == id, "the claim took {claimed:?}");
        Ok(claimed.remove(0))
    }

    /// A reply that failed for good.
    pub async fn dead(&self, bot: Bot) -> anyhow::Result<Uuid> {
        let held = self.held(bot, "w").await?;
        anyhow::ensure!(settle(&self.worker, "w", &[(&held, DEAD)]).await? == ["dead"]);
        Ok(held.id)
    }

    /// Many replies in this state, made as only a superuser can. `more` has further columns and their values.
    pub async fn fill(
        &self,
        bot: Bot,
        replies: usize,
        columns: &str,
        values: &str,
    ) -> Result<(), sqlx::Error> {
        let Bot { tenant, account, .. } = bot;
        let sql = format!(
            "begin;
             create temp table made on commit drop as
             select gen_random_uuid() as id, at from generate_series(1, {replies}) as at;
             insert into channels.channel_messages
                    (id, tenant_id, account_id, provider, provider_message_id, sender_id, recipient_id, text, correlation_id, created_at)
             select id, '{tenant}', '{account}', 'sim', id::text, 'bulk', 'room', 'hi', id, now() - interval '2 hours' from made;
             insert into channels.channel_outbox
                    (tenant_id, channel_message_id, account_id, provider, recipient_id, payload, correlation_id, {columns})
             select '{tenant}', id, '{account}', 'sim', 'room', '{{\"text\": \"hi\"}}', id, {values} from made;
             update channels.channel_messages as message set status = 'executed' from made where made.id = message.id;
             commit"
        );
        execute(&self.admin, sql).await
    }

    /// So many that are due, the first one longest.
    pub async fn fill_due(&self, bot: Bot, replies: usize) -> Result<(), sqlx::Error> {
        self.fill(
            bot,
            replies,
            "next_attempt_at",
            "now() - interval '1 hour' + at * interval '1 millisecond'",
        )
        .await
    }

    /// A column of one row, as text; `null` where there is nothing.
    pub async fn look(&self, column: &str, table: &str, id: Uuid) -> Result<String, sqlx::Error> {
        let sql =
            format!("select coalesce(({column})::text, 'null') from channels.{table} where id = '{id}'");
        Ok(texts(&self.admin, sql).await?.join(" "))
    }

    /// The whole row of a reply, to see that it did not change.
    pub async fn reply_row(&self, id: Uuid) -> Result<String, sqlx::Error> {
        self.look("to_jsonb(channel_outbox)", "channel_outbox", id).await
    }

    /// The audit log of a subject, in order.
    pub async fn log_of(&self, subject: String) -> Result<Vec<String>, sqlx::Error> {
        let sql = format!(
            "select concat_ws(' ', action, 'by', actor, note) from tenancy.audit_log where subject = '{subject}' order by id"
        );
        texts(&self.admin, sql).await
    }

    /// Lets the time of a message's execution be over, or a kept reply be due.
    pub async fn end_lease(&self, message: Uuid) -> Result<(), sqlx::Error> {
        let sql = format!(
            "update channels.channel_messages set leased_until = now() - interval '1 second' where id = '{message}'"
        );
        execute(&self.admin, sql).await
    }

    /// Makes a lock older, as if its dispatcher had been silent for so long.
    pub async fn age_lock(&self, reply: Uuid, age: &str) -> Result<(), sqlx::Error> {
        let sql = format!(
            "update channels.channel_outbox set locked_at = now() - interval '{age}' where id = '{reply}'"
        );
        execute(&self.admin, sql).await
    }
}

impl Bot {
    pub async fn create(admin: &PgPool, name: &str) -> anyhow::Result<Self> {
        let (id, workspace) = tenant(admin, name).await?;
        let bot = Self { tenant: id, workspace, account: Uuid::now_v7() };
        bot.add_account(admin, "bot").await?;
        let rows = format!(
            "insert into channels.channel_links (id, tenant_id, account_id, sender_id, user_id, role)
             values (gen_random_uuid(), '{id}', '{account}', 'ann', 'Ann', 'operator');
             insert into channels.channel_executors (id, tenant_id, kind, timeout_seconds, required_role)
             values (gen_random_uuid(), '{id}', 'echo', 30, 'viewer')",
            account = bot.account,
        );
        execute(admin, rows).await?;
        Ok(bot)
    }

    async fn add_account(&self, admin: &PgPool, name: &str) -> Result<(), sqlx::Error> {
        let Self { tenant, workspace, account } = self;
        let account = format!(
            "insert into tenancy.provider_accounts (id, tenant_id, workspace_id, name, provider, sealed_secret)
             values ('{account}', '{tenant}', '{workspace}', '{name}', 'sim', 'sealed')"
        );
        execute(admin, account).await
    }
}

/// A transaction of this client in the tenant's context.
pub async fn acting_for(client: &PgPool, bot: Bot) -> Result<Transaction<'static, Postgres>, sqlx::Error> {
    let mut transaction = client.begin().await?;
    execute(&mut *transaction, acting_as(bot.tenant)).await?;
    Ok(transaction)
}

/// A delivery, in the caller's transaction.
pub async fn receive(
    client: impl PgExecutor<'_>,
    bot: Bot,
    sender: &str,
    name: &str,
) -> Result<Received, sqlx::Error> {
    sqlx::query_as(
        "select * from channels.receive_message($1, $2, $3, $4, $5, $6, 'room', 'thread', 'hi', $7, '1 minute', 5)",
    )
    .bind(bot.tenant)
    .bind(bot.account)
    .bind(Uuid::now_v7())
    .bind(Uuid::now_v7())
    .bind(name)
    .bind(sender)
    .bind(Uuid::now_v7())
    .fetch_one(client)
    .await
}

/// The question that ends a message.
pub fn finish(bot: Bot, message: Uuid, execution: i32) -> String {
    format!(
        "select channels.finish_message('{}', '{message}', {execution}, '{}', '{{\"text\": \"you said hi\"}}', 5)",
        bot.tenant,
        Uuid::now_v7()
    )
}

/// Claims replies as a dispatcher does: chooses accounts, then claims tenant by tenant until there is no capacity left.
pub async fn claim(client: &PgPool, worker: &str, capacity: &Capacity) -> Result<Vec<Claimed>, sqlx::Error> {
    claim_on(&mut *client.acquire().await?, worker, capacity).await
}

/// The same in the caller's session.
pub async fn claim_on(
    client: &mut PgConnection,
    worker: &str,
    capacity: &Capacity,
) -> Result<Vec<Claimed>, sqlx::Error> {
    let full: Vec<Bot> =
        capacity.accounts.iter().filter(|(_, capacity)| *capacity < 1).map(|(bot, _)| *bot).collect();
    let chosen: Vec<(Uuid, Uuid)> =
        sqlx::query_as("select * from channels.accounts_with_due_replies($1, $2, $3, $4, $5)")
            .bind(capacity.limit)
            .bind(full.iter().map(|bot| bot.tenant).collect::<Vec<_>>())
            .bind(full.iter().map(|bot| bot.account).collect::<Vec<_>>())
            .bind(capacity.after.map(|bot| bot.tenant))
            .bind(capacity.after.map(|bot| bot.account))
            .fetch_all(&mut *client)
            .await?;
    let mut claimed: Vec<Claimed> = Vec::new();
    for of_tenant in chosen.chunk_by(|(one, _), (next, _)| one == next) {
        let left = capacity.limit - i32::try_from(claimed.len()).unwrap_or(i32::MAX);
        if left < 1 {
            break;
        }
        let accounts: Vec<Uuid> = of_tenant.iter().map(|(_, account)| *account).collect();
        let capacities: Vec<i32> = accounts
            .iter()
            .map(|account| capacity.accounts.iter().find(|(bot, _)| bot.account == *account))
            .map(|given| given.map_or(capacity.per_account, |(_, capacity)| *capacity))
            .collect();
        let more: Vec<Claimed> = sqlx::query_as(
            "select $1 as tenant_id, id, account_id, attempt_count, claims, in_doubt_since is not null as is_in_doubt,
                    provider_message_id
               from channels.claim_replies($1, $2, $3, $4, $5)",
        )
        .bind(of_tenant[0].0)
        .bind(worker)
        .bind(left)
        .bind(accounts)
        .bind(capacities)
        .fetch_all(&mut *client)
        .await?;
        claimed.extend(more);
    }
    Ok(claimed)
}

/// Settles replies, and gives the state of each; what is not held under that claim any more has none.
pub async fn settle(
    client: impl PgExecutor<'_>,
    worker: &str,
    settled: &[(&Claimed, Verdict)],
) -> Result<Vec<String>, sqlx::Error> {
    let column = |verdict: fn(&Verdict) -> Option<&'static str>| -> Vec<Option<&'static str>> {
        settled.iter().map(|(_, given)| verdict(given)).collect()
    };
    sqlx::query_scalar(
        "select settled.status
           from channels.settle_replies($9, $1, $2, $3, $4, $5, $6,
                                        (select array_agg(make_interval(secs => s) order by at)
                                           from unnest($7) with ordinality as pause (s, at)), $8) as settled
          order by array_position($2, settled.id)",
    )
    .bind(worker)
    .bind(settled.iter().map(|(reply, _)| reply.id).collect::<Vec<_>>())
    .bind(settled.iter().map(|(reply, _)| reply.claims).collect::<Vec<_>>())
    .bind(column(|given| Some(given.word)))
    .bind(column(|given| given.message_id))
    .bind(column(|given| given.error))
    .bind(settled.iter().map(|(_, given)| given.pause_seconds).collect::<Vec<_>>())
    .bind(settled.iter().map(|(_, given)| given.in_doubt).collect::<Vec<_>>())
    .bind(settled.iter().map(|(reply, _)| reply.tenant_id).collect::<Vec<_>>())
    .fetch_all(client)
    .await
}

/// Gives back what was held for longer than this, and says what.
pub async fn reclaim(client: impl PgExecutor<'_>, lock_timeout: &str) -> Result<Vec<Uuid>, sqlx::Error> {
    let sql = format!(
        "select reclaimed.id
           from channels.tenants_with_stale_replies('{lock_timeout}', 100) as chosen,
                channels.reclaim_replies(chosen.tenant_id, '{lock_timeout}') as reclaimed"
    );
    sqlx::query_scalar(AssertSqlSafe(sql)).fetch_all(client).await
}
