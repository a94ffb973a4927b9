//! A server that receives, an agent that executes, and tenants whose people write.

use std::thread::JoinHandle;

use postrider_model::{
    channels::Sentinel,
    ids::{ProviderAccountId, TenantId},
    seal::MasterKey,
    tenancy::Role,
};
use postrider_store::{
    Pool,
    channels::{
        executors::{self, Kind, NewExecutor},
        links::{self, NewLink},
    },
    postgres::pool,
    tenancy::accounts,
};
use serde_json::Value;

use super::{
    agent::{Agent, MARK},
    vendors::{Vendor, Webhooked, whsec},
};
use crate::{
    api::{Call, Reply, Tenant, tenant},
    sql::{number, texts},
    world::{MASTER_KEY, Server, World},
};

const SETTINGS: &str = "[outbound]\nallow_private = true\n";

pub struct Stage {
    _world: World,
    pub server: Server,
    pub agent: Agent,
    /// Connections that may do everything.
    pub admin: Pool,
    pub acme: Tenant,
}

/// An account of a tenant at a vendor, whose sender is known.
#[derive(Debug, Clone)]
pub struct Bot {
    pub vendor: Vendor,
    pub tenant: TenantId,
    pub account: ProviderAccountId,
    /// The mark in its secret.
    pub mark: String,
}

impl Stage {
    pub async fn new() -> anyhow::Result<Self> {
        let world = World::new().await?;
        // The sweep of a dispatcher would take up what these tests look at.
        let server = Server::start(&world, "api", SETTINGS)?;
        let admin = world.pool("postgres").await?;
        let acme = tenant(&admin, "acme").await?;
        Ok(Self { _world: world, server, agent: Agent::start()?, admin, acme })
    }

    /// An account of the first tenant, at which the sender is an operator, and the agent executes.
    pub async fn bot(&self, vendor: Vendor) -> anyhow::Result<Bot> {
        self.bot_of(&self.acme, vendor, "own").await
    }

    pub async fn bot_of(&self, tenant: &Tenant, vendor: Vendor, mark: &str) -> anyhow::Result<Bot> {
        let bot = self.stranger(tenant, vendor, mark).await?;
        self.link(&bot, vendor.sender(), Role::Operator).await?;
        self.executes(&bot, &self.executor()).await?;
        Ok(bot)
    }

    /// An account at which nobody is known and nothing executes.
    pub async fn stranger(&self, tenant: &Tenant, vendor: Vendor, mark: &str) -> anyhow::Result<Bot> {
        let mut transaction = pool::begin_as(&self.admin, tenant.id).await?;
        let (settings, secret) = vendor.account(mark);
        let account = accounts::NewAccount {
            tenant: tenant.id,
            workspace: tenant.workspace_id,
            name: &format!("{} {mark}", vendor.name()),
            provider: vendor.name(),
            settings: &settings,
            secret: &secret.into(),
        };
        let account = accounts::create(&mut transaction, &key()?, &account, "a test").await?;
        pool::commit(transaction).await?;
        Ok(Bot { vendor, tenant: tenant.id, account, mark: mark.to_owned() })
    }

    pub async fn link(&self, bot: &Bot, sender_id: &str, role: Role) -> anyhow::Result<()> {
        let mut transaction = pool::begin_as(&self.admin, bot.tenant).await?;
        let user_id = format!("user-{sender_id}");
        let link = NewLink { account: bot.account, sender_id, user_id: &user_id, role };
        links::put(&mut transaction, bot.tenant, &link, "a test").await?;
        Ok(pool::commit(transaction).await?)
    }

    /// The agent, for operators.
    pub fn executor(&self) -> Executed {
        Executed {
            path: "/agent",
            timeout_seconds: 30,
            required_role: Role::Operator,
            sentinel: Sentinel::default(),
        }
    }

    pub async fn executes(&self, bot: &Bot, executed: &Executed) -> anyhow::Result<()> {
        let mut transaction = pool::begin_as(&self.admin, bot.tenant).await?;
        let executor = NewExecutor {
            account: Some(bot.account),
            kind: Kind::Http { url: format!("{}{}", self.agent.url, executed.path) },
            timeout_seconds: executed.timeout_seconds,
            secret: Some(&whsec(MARK).into()),
            required_role: executed.required_role,
            sentinel: &executed.sentinel,
        };
        executors::put(&mut transaction, &key()?, bot.tenant, &executor, "a test").await?;
        Ok(pool::commit(transaction).await?)
    }

    /// A webhook to this account, with these headers.
    pub fn webhook(&self, bot: &Bot, body: &[u8], headers: &[(&str, String)]) -> Call {
        let call = Call::new(&self.server.http_url, "POST", &bot.path()).bytes("application/json", body);
        headers.iter().fold(call, |call, (name, value)| call.header(name, value))
    }

    /// Delivers as the vendor does.
    pub fn deliver(&self, bot: &Bot, webhook: &Webhooked) -> anyhow::Result<Reply> {
        self.webhook(bot, &webhook.body, &webhook.signed(&bot.mark)).send()
    }

    /// Delivers, and does not wait for the answer.
    pub fn delivering(&self, bot: &Bot, webhook: &Webhooked) -> Delivering {
        let call = self.webhook(bot, &webhook.body, &webhook.signed(&bot.mark));
        Delivering(std::thread::spawn(move || call.send()))
    }

    /// Delivers one message, and says what became of it.
    pub fn say(&self, bot: &Bot, n: u32, text: &str) -> anyhow::Result<String> {
        status(&self.deliver(bot, &bot.vendor.message(n, text))?.expect(200)?)
    }

    /// The only text of each row, in the order of messages.
    pub async fn texts(&self, sql: &str) -> anyhow::Result<Vec<String>> {
        Ok(texts(&self.admin, sql).await?)
    }

    pub async fn count(&self, sql: &str) -> anyhow::Result<i64> {
        Ok(number(&self.admin, sql).await?)
    }

    /// The status of each message.
    pub async fn statuses(&self) -> anyhow::Result<Vec<String>> {
        self.texts("select status from channels.channel_messages order by id").await
    }

    /// Invariants: no message is executed without its reply, and no reply exists twice.
    pub async fn check(&self) -> anyhow::Result<()> {
        let lost = self
            .count("select count(*) from channels.channel_messages as m where (status = 'executed') <> exists (select from channels.channel_outbox as o where o.channel_message_id = m.id)")
            .await?;
        anyhow::ensure!(lost == 0, "{lost} messages are executed without a reply, or have one and are not");
        Ok(())
    }
}

impl Bot {
    pub fn path(&self) -> String {
        let (tenant, account) = (self.tenant.0, self.account.0);
        format!("/api/v2/tenants/{tenant}/channels/{}/{account}/webhook", self.vendor.name())
    }
}

/// A delivery that is under way.
pub struct Delivering(JoinHandle<anyhow::Result<Reply>>);

impl Delivering {
    pub fn answer(self) -> anyhow::Result<Reply> {
        self.0.join().map_err(|_| anyhow::anyhow!("the delivery panicked"))?
    }
}

/// How an executor is set up.
#[derive(Debug, Clone)]
pub struct Executed {
    pub path: &'static str,
    pub timeout_seconds: u32,
    pub required_role: Role,
    pub sentinel: Sentinel,
}

/// The status of the only message of an answer.
pub fn status(answer: &Value) -> anyhow::Result<String> {
    let messages = answer["messages"].as_array().filter(|messages| messages.len() == 1);
    let status = messages.and_then(|messages| messages[0]["status"].as_str());
    Ok(status.ok_or_else(|| anyhow::anyhow!("not one message: {answer}"))?.to_owned())
}

fn key() -> anyhow::Result<MasterKey> {
    Ok(MASTER_KEY.parse()?)
}
