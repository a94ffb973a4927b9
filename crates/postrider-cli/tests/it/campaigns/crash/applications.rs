//! Applications that send single messages in transactions of their own, beside a row of their own, and crash around the COMMIT.

use std::{sync::Arc, time::Duration};

use anyhow::Context;
use postrider_testkit::crash::SeededRandom;
use sqlx::{Connection, PgConnection, PgPool};
use tokio::{sync::Semaphore, task::JoinHandle};
use uuid::Uuid;

use super::setup::Setup;
use crate::{
    sql::{execute, number, texts},
    world::PATIENCE,
};

/// Applications at a time.
const APPLICATIONS: usize = 16;
const LOGIN: &str = "application";

/// The end of a transaction that has an order and its message.
enum End {
    Commit,
    RollBack,
    /// It dies before the COMMIT.
    Die,
    /// It sends the COMMIT and dies before the answer.
    DieAtCommit,
}

/// Running applications.
pub struct Applications {
    /// One for each message that may be sent.
    permits: Arc<Semaphore>,
    left: usize,
    tasks: Vec<JoinHandle<anyhow::Result<()>>>,
}

impl Applications {
    pub async fn start(setup: &Setup, messages: usize, seed: u64) -> anyhow::Result<Self> {
        let permits = Arc::new(Semaphore::new(0));
        let mut tasks = Vec::new();
        if messages > 0 {
            let tables = format!(
                "create role {LOGIN} login in role postrider_publish;
                 create table public.orders (key text primary key);
                 grant select, insert on public.orders to {LOGIN}"
            );
            execute(&setup.admin, tables).await?;
            for number in 0..APPLICATIONS {
                let application = Application {
                    url: setup.postgres.url(LOGIN),
                    tenant: setup.tenant(),
                    number,
                    random: SeededRandom(seed.wrapping_add(number as u64)),
                };
                let share = messages / APPLICATIONS + usize::from(number < messages % APPLICATIONS);
                tasks.push(tokio::spawn(application.run(share, Arc::clone(&permits))));
            }
        }
        Ok(Self { permits, left: messages, tasks })
    }

    /// Lets so many more messages be sent.
    pub fn go_on(&mut self, messages: usize) {
        let messages = messages.min(self.left);
        self.left -= messages;
        self.permits.add_permits(messages);
    }

    /// Waits until every message was sent.
    pub async fn finish(&mut self) -> anyhow::Result<()> {
        self.go_on(usize::MAX);
        for task in self.tasks.drain(..) {
            task.await??;
        }
        Ok(())
    }
}

struct Application {
    url: String,
    tenant: Uuid,
    number: usize,
    random: SeededRandom,
}

impl Application {
    async fn run(mut self, messages: usize, permits: Arc<Semaphore>) -> anyhow::Result<()> {
        for n in 0..messages {
            permits.acquire().await?.forget();
            let key = format!("order-{}-{n}", self.number);
            let mut end = match self.random.below(10) {
                0 | 1 => End::RollBack,
                2 => End::Die,
                3 => End::DieAtCommit,
                _ => End::Commit,
            };
            // An application that does not know whether it committed does the same again, with the same key.
            let tries = async {
                while !self.try_once(&key, &end).await.unwrap_or(false) {
                    end = End::Commit;
                    tokio::time::sleep(Duration::from_millis(20)).await; // the database may be down
                }
            };
            tokio::time::timeout(PATIENCE, tries).await.with_context(|| format!("{key} was never sent"))?;
        }
        Ok(())
    }

    /// Returns whether the application is done with this key.
    async fn try_once(&self, key: &str, end: &End) -> anyhow::Result<bool> {
        let mut connection = PgConnection::connect(&self.url).await?;
        let sql = format!(
            "begin;
             insert into public.orders (key) values ('{key}') on conflict do nothing;
             select execution.send_message('{}', 'email', 'sim', '{key}@example.com', '{key}',
                                           p_content => '{{\"subject\": \"Order {{{{ number }}}}\", \"text\": \"Thank you\"}}',
                                           p_variables => '{{\"number\": \"{key}\"}}')",
            self.tenant
        );
        execute(&mut connection, sql).await?;
        match end {
            End::Commit => {
                execute(&mut connection, "commit").await?;
                Ok(true)
            }
            End::RollBack => {
                execute(&mut connection, "rollback").await?;
                Ok(true)
            }
            End::Die => Ok(true),
            End::DieAtCommit => {
                // The first poll sends it.
                let commit = execute(&mut connection, "commit");
                let _ = tokio::time::timeout(Duration::ZERO, commit).await;
                // Half of the applications try again when they are restarted.
                Ok(self.number.is_multiple_of(2))
            }
        }
    }
}

/// Messages that nothing has put into a run.
pub async fn waiting(setup: &Setup) -> anyhow::Result<i64> {
    Ok(number(&setup.admin, "select count(*) from execution.messages where run_id is null").await?)
}

/// Orders without a message, messages without an order, and messages that were neither sent nor are in doubt. The key of a message is the
/// one of its order.
pub async fn violations(admin: &PgPool) -> anyhow::Result<Vec<String>> {
    let is_there = number(admin, "select count(*) from pg_tables where tablename = 'orders'").await? > 0;
    if !is_there {
        return Ok(Vec::new());
    }
    let sql = "select coalesce(own.key, message.key) || case
                          when message.id is null then ': an order without its message'
                          when own.key is null then ': a message without its order'
                          when item.id is null then ': a message without an item'
                          else ': a message whose item says ' || item.status
                      end
                 from public.orders as own
                      full join execution.messages as message on message.key = own.key
                      left join execution.channel_outbox as item
                        on item.recipient_id = message.id
                       and item.idempotency_key = encode(sha256(convert_to('message|' || message.id, 'UTF8')), 'hex')
                where message.id is null or own.key is null or item.id is null or item.status = 'skipped'
                   or item.status = 'queued' and item.in_doubt_since is null
                order by 1";
    Ok(texts(admin, sql).await?)
}

/// Single messages, and those that have ended.
pub async fn counts(admin: &PgPool) -> anyhow::Result<(usize, usize)> {
    let all = number(admin, "select count(*) from execution.messages").await?;
    let ended = "select count(*) from execution.messages as message
                        join execution.channel_outbox as item on item.recipient_id = message.id and item.status <> 'queued'";
    Ok((usize::try_from(all)?, usize::try_from(number(admin, ended).await?)?))
}
