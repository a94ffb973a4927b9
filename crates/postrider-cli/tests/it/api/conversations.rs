//! Material of chat: accounts, links, executors, messages and replies, made with the store's own functions.

use std::time::Duration;

use postrider_model::{
    channels::{InboundMessage, Reply, Sentinel},
    ids::{ChannelMessageId, LinkId, OutboxId, ProviderAccountId, TenantId, WorkspaceId},
    seal::MasterKey,
    tenancy::Role,
};
use postrider_store::{
    Pool,
    channels::{
        executors::{self, Kind, NewExecutor},
        links::{self, NewLink},
        messages::{self, Execution, Receipt, Receiving},
        replies::{self, Capacity, SettledReply, Verdict},
    },
    postgres::pool,
    tenancy::accounts::{self, NewAccount},
};

use crate::world::MASTER_KEY;

/// A secret that signs.
pub const SECRET: &str = "whsec_Y2FuYXJ5LWNhbmFyeS1jYW5hcnktY2FuYXJ5LTM3";

const HOW: Receiving = Receiving { lease: Duration::from_secs(60), max_attempts: 5 };

/// A tenant's account at which people write, with something that executes.
pub struct Conversation {
    pub admin: Pool,
    pub tenant: TenantId,
    pub account: ProviderAccountId,
    provider: String,
}

impl Conversation {
    /// An account of this name at this vendor, and `echo` behind it.
    pub async fn new(
        admin: &Pool,
        tenant: TenantId,
        workspace: WorkspaceId,
        name: &str,
        provider: &str,
    ) -> anyhow::Result<Self> {
        let key: MasterKey = MASTER_KEY.parse()?;
        let mut transaction = pool::begin_as(admin, tenant).await?;
        let new = NewAccount {
            tenant,
            workspace,
            name,
            provider,
            settings: &serde_json::json!({ "url": "https://example.com" }),
            secret: &SECRET.into(),
        };
        let account = accounts::create(&mut transaction, &key, &new, "test").await?;
        pool::commit(transaction).await?;
        Self::at(admin, tenant, account, provider).await
    }

    /// The same at an account that is there.
    pub async fn at(
        admin: &Pool,
        tenant: TenantId,
        account: ProviderAccountId,
        provider: &str,
    ) -> anyhow::Result<Self> {
        let key: MasterKey = MASTER_KEY.parse()?;
        let mut transaction = pool::begin_as(admin, tenant).await?;
        let executor = NewExecutor {
            account: Some(account),
            kind: Kind::Echo,
            timeout_seconds: 30,
            secret: None,
            required_role: Role::Operator,
            sentinel: &Sentinel::default(),
        };
        executors::put(&mut transaction, &key, tenant, &executor, "test").await?;
        pool::commit(transaction).await?;
        Ok(Self { admin: admin.clone(), tenant, account, provider: provider.to_owned() })
    }

    pub async fn link(&self, sender_id: &str, user_id: &str, role: Role) -> anyhow::Result<LinkId> {
        let mut transaction = pool::begin_as(&self.admin, self.tenant).await?;
        let link = NewLink { account: self.account, sender_id, user_id, role };
        let id = links::put(&mut transaction, self.tenant, &link, "test").await?;
        pool::commit(transaction).await?;
        Ok(id)
    }

    /// A sender writes a message.
    pub async fn receive(&self, id: &str, sender: &str, text: &str) -> anyhow::Result<Receipt> {
        let message = InboundMessage {
            provider_message_id: id.to_owned(),
            sender_id: sender.to_owned(),
            recipient_id: format!("room-of-{sender}"),
            thread: Some("thread-1".to_owned()),
            text: text.to_owned(),
        };
        Ok(messages::receive(&self.admin, self.tenant, self.account, &self.provider, message, HOW).await?)
    }

    /// A permitted sender writes a message, which no process has executed yet.
    pub async fn accept(&self, id: &str, sender: &str, text: &str) -> anyhow::Result<Execution> {
        match self.receive(id, sender, text).await? {
            Receipt::Execute(execution) => Ok(*execution),
            other => anyhow::bail!("{other:?}"),
        }
    }

    /// The same, executed: the message, and the reply that is on its way.
    pub async fn answer(
        &self,
        id: &str,
        sender: &str,
        text: &str,
    ) -> anyhow::Result<(ChannelMessageId, OutboxId)> {
        let execution = self.accept(id, sender, text).await?;
        let reply = Reply { text: format!("you said: {text}"), thread: Some("thread-1".to_owned()) };
        anyhow::ensure!(messages::finish(&self.admin, &execution, &reply, HOW.max_attempts).await?);
        let only = messages::MessageFilter { id: Some(execution.message_id), ..Default::default() };
        let mut transaction = pool::begin_as(&self.admin, self.tenant).await?;
        let found = messages::page(&mut transaction, self.tenant, only, None, 1).await?.pop();
        let reply = found.and_then(|message| message.reply_id);
        Ok((execution.message_id, reply.ok_or_else(|| anyhow::anyhow!("no reply"))?))
    }

    /// A reply that was given up.
    pub async fn die(&self, id: &str, sender: &str, error: &str) -> anyhow::Result<OutboxId> {
        let (_, reply) = self.answer(id, sender, "hello").await?;
        settle_all(&self.admin, &Verdict::Dead { error: error.to_owned() }).await?;
        Ok(reply)
    }
}

/// A dispatcher that takes everything that is due, and it all becomes this.
pub async fn settle_all(admin: &Pool, verdict: &Verdict) -> anyhow::Result<()> {
    let capacity = Capacity { limit: 1000, per_account: 1000, ..Capacity::default() };
    let mut settled = Vec::new();
    for share in replies::choose(admin, &capacity).await? {
        let claimed = replies::claim(admin, "hand", &share, capacity.limit).await?;
        settled.extend(claimed.into_iter().map(|reply| reply.settle(verdict.clone())));
    }
    let settled: Vec<&SettledReply> = settled.iter().collect();
    let states = replies::settle(admin, "hand", &settled).await?;
    anyhow::ensure!(states.len() == settled.len(), "{states:?}");
    Ok(())
}
