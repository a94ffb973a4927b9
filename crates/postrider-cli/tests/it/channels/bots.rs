//! Bots at the sim: a tenant with an account at each chat vendor, whose messages are echoed, and the processes that serve it.

use anyhow::Context;
use postrider_model::{
    Limits,
    channels::{InboundMessage, Reply, Sentinel},
    ids::{ProviderAccountId, TenantId, WorkspaceId},
    seal::{MasterKey, Place},
    tenancy::Role,
};
use postrider_store::{
    Pool,
    channels::{
        executors::{self, Kind, NewExecutor},
        links::{self, NewLink},
        messages::{self, Receipt, Receiving},
    },
    postgres::pool,
    tenancy::accounts,
};
use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, PgPool};
use uuid::Uuid;

use super::ingress::vendors::{Vendor, Webhooked, whatsapp};
use crate::{
    http::{get, send},
    sql::{execute, number, tenant},
    world::{MASTER_KEY, PATIENCE, Process, Sim, World, eventually, postrider},
};

/// The vendors that the sim plays.
pub const VENDORS: [Vendor; 3] = [Vendor::Slack, Vendor::Telegram, Vendor::Whatsapp];
/// The mark in the secrets of the accounts.
pub const MARK: &str = "proof";
/// Looks often, so that what a test has changed by hand is soon seen.
pub const OFTEN: &str = "poll_interval_seconds = 0.05\n";

/// A tenant, and the database it is in.
pub struct Bots {
    pub world: World,
    pub admin: PgPool,
    pub tenant: TenantId,
    pub workspace: WorkspaceId,
    app: Pool,
    accounts: Vec<(Vendor, ProviderAccountId)>,
}

/// A reply as its row has it.
#[derive(Debug, Clone, PartialEq, sqlx::FromRow)]
pub struct Row {
    pub id: Uuid,
    pub channel_message_id: Uuid,
    pub correlation_id: Uuid,
    pub status: String,
    pub attempt_count: i32,
    pub max_attempts: i32,
    pub claims: i32,
    pub is_in_doubt: bool,
    /// From its last change to its next attempt.
    pub waits_seconds: f64,
    pub last_error: Option<String>,
    pub provider_message_id: Option<String>,
    pub delivery_status: Option<String>,
}

impl Bots {
    /// With an account at each face of the sim at this address.
    pub async fn new(sim_url: &str) -> anyhow::Result<Self> {
        let world = World::new().await?;
        let admin = world.client("postgres").await?;
        let (tenant, workspace) = tenant(&admin, "acme").await?;
        let app = world.pool("postrider_app").await?;
        let (tenant, workspace) = (TenantId(tenant), WorkspaceId(workspace));
        let mut bots = Self { world, admin, tenant, workspace, app, accounts: Vec::new() };
        for vendor in VENDORS {
            bots.open(vendor, &format!("{sim_url}/{}", vendor.name())).await?;
        }
        let mut transaction = pool::begin_as(&bots.app, tenant).await?;
        let executor = NewExecutor {
            account: None,
            kind: Kind::Echo,
            timeout_seconds: 30,
            secret: None,
            required_role: Role::Viewer,
            sentinel: &Sentinel::default(),
        };
        executors::put(&mut transaction, &key()?, tenant, &executor, "a test").await?;
        pool::commit(transaction).await?;
        Ok(bots)
    }

    /// An account at a vendor, at this address. Its sender is linked.
    async fn open(&mut self, vendor: Vendor, url: &str) -> anyhow::Result<()> {
        let (mut settings, secret) = vendor.account(MARK);
        settings["url"] = json!(url);
        let account = accounts::NewAccount {
            tenant: self.tenant,
            workspace: self.workspace,
            name: vendor.name(),
            provider: vendor.name(),
            settings: &settings,
            secret: &secret.into(),
        };
        let mut transaction = pool::begin_as(&self.app, self.tenant).await?;
        let account = accounts::create(&mut transaction, &key()?, &account, "a test").await?;
        if vendor == Vendor::Slack {
            // As of an app in Slack's marketplace, or tests would wait for minutes. `look_ups.rs` tests the limit of the others.
            let limits = Limits { look_ups_per_minute: Some(60_000), ..Limits::default() };
            anyhow::ensure!(
                accounts::limit(&mut transaction, self.tenant, account, &limits, "a test").await?
            );
        }
        let link = NewLink { account, sender_id: vendor.sender(), user_id: "ada", role: Role::Operator };
        links::put(&mut transaction, self.tenant, &link, "a test").await?;
        pool::commit(transaction).await?;
        self.accounts.push((vendor, account));
        Ok(())
    }

    pub fn account(&self, vendor: Vendor) -> ProviderAccountId {
        self.accounts.iter().find(|(known, _)| *known == vendor).unwrap().1
    }

    /// Where the vendor delivers.
    pub fn path(&self, vendor: Vendor) -> String {
        let (tenant, account) = (self.tenant.0, self.account(vendor).0);
        format!("/api/v2/tenants/{tenant}/channels/{}/{account}/webhook", vendor.name())
    }

    /// Puts the reply to message `n` into the outbox, as an execution that has ended does; nobody is told.
    pub async fn reply(&self, vendor: Vendor, n: u32) -> anyhow::Result<Uuid> {
        self.reply_with(vendor, n, 5).await
    }

    /// One that may be tried so often.
    pub async fn reply_with(&self, vendor: Vendor, n: u32, max_attempts: i32) -> anyhow::Result<Uuid> {
        let (recipient_id, thread) = place(vendor, n);
        let message = InboundMessage {
            provider_message_id: format!("message {n}"),
            sender_id: vendor.sender().to_owned(),
            recipient_id,
            thread,
            text: text(vendor, n),
        };
        let how = Receiving { lease: PATIENCE * 2, max_attempts };
        let (account, reply) =
            (self.account(vendor), Reply { text: text(vendor, n), thread: message.thread.clone() });
        match messages::receive(&self.app, self.tenant, account, vendor.name(), message, how).await? {
            Receipt::Execute(execution) => {
                anyhow::ensure!(messages::finish(&self.app, &execution, &reply, max_attempts).await?);
                let sql = "select id from channels.channel_outbox where channel_message_id = $1";
                Ok(sqlx::query_scalar(sql).bind(execution.message_id.0).fetch_one(&self.admin).await?)
            }
            other => anyhow::bail!("{other:?}"),
        }
    }

    pub async fn row(&self, reply: Uuid) -> anyhow::Result<Row> {
        let sql =
            "select id, channel_message_id, correlation_id, status, attempt_count, max_attempts, claims,
                          in_doubt_since is not null as is_in_doubt,
                          extract(epoch from next_attempt_at - updated_at)::float8 as waits_seconds,
                          last_error, provider_message_id, delivery_status
                     from channels.channel_outbox where id = $1";
        Ok(sqlx::query_as(sql).bind(reply).fetch_one(&self.admin).await?)
    }

    /// Waits until a reply is so.
    pub async fn until(&self, reply: Uuid, what: &str, is: impl Fn(&Row) -> bool) -> anyhow::Result<Row> {
        let reached = eventually(what, async || Ok(is(&self.row(reply).await?))).await;
        let row = self.row(reply).await?;
        reached.with_context(|| format!("{row:?}"))?;
        Ok(row)
    }

    /// Waits until a reply has this status.
    pub async fn ends(&self, reply: Uuid, status: &str) -> anyhow::Result<Row> {
        self.until(reply, &format!("the reply is {status}"), |row| row.status == status).await
    }

    pub async fn count(&self, sql: &str) -> anyhow::Result<i64> {
        Ok(number(&self.admin, sql).await?)
    }

    /// Makes what waits due, as if its time had come; also the time to tell about what is in doubt.
    pub async fn make_due(&self) -> anyhow::Result<()> {
        let sql = "update channels.channel_outbox
                      set next_attempt_at = now(), in_doubt_since = in_doubt_since - interval '5 minutes'
                    where status = 'pending'";
        Ok(execute(&self.admin, sql).await?)
    }

    /// Ages the locks of dispatchers and the leases of executions as five minutes would.
    pub async fn age(&self) -> anyhow::Result<()> {
        let sql = "update channels.channel_outbox set locked_at = locked_at - interval '5 minutes' where status = 'sending';
                   update channels.channel_messages set leased_until = leased_until - interval '5 minutes'
                    where leased_until is not null";
        Ok(execute(&self.admin, sql).await?)
    }

    /// Waits until the server has noticed that no dispatcher is there: a COMMIT may still be on its way.
    pub async fn no_dispatcher_runs(&self) -> anyhow::Result<()> {
        let sql = "select count(*) from pg_stat_activity
                    where datname = current_database() and usename = 'postrider_worker'
                      -- Who only serves HTTP listens for hints by this login, and dispatches nothing.
                      and query not ilike 'listen %'";
        eventually("every connection of the dead is gone", async || Ok(self.count(sql).await? == 0)).await
    }

    pub async fn rotate(&self, vendor: Vendor, secret: &str) -> anyhow::Result<()> {
        let mut transaction = pool::begin_as(&self.app, self.tenant).await?;
        let place = Place { tenant: self.tenant, account: self.account(vendor) };
        let known = accounts::rotate(&mut transaction, &key()?, place, &secret.into(), "a test").await?;
        anyhow::ensure!(known, "there is no such account");
        Ok(pool::commit(transaction).await?)
    }

    /// An operator sends a dead reply again.
    pub async fn requeue(&self, reply: Uuid) -> anyhow::Result<()> {
        let mut transaction = pool::begin_as(&self.app, self.tenant).await?;
        let sql = "select count(*) from channels.requeue_replies($1, $2, null, null, null, null, null, 1, 'a test')";
        let requeued: i64 =
            sqlx::query_scalar(sql).bind(self.tenant.0).bind(reply).fetch_one(&mut *transaction).await?;
        anyhow::ensure!(requeued == 1, "{reply} is not dead");
        Ok(pool::commit(transaction).await?)
    }

    pub async fn remove(&self, vendor: Vendor) -> anyhow::Result<()> {
        let mut transaction = pool::begin_as(&self.app, self.tenant).await?;
        anyhow::ensure!(
            accounts::remove(&mut transaction, self.tenant, self.account(vendor), "a test").await?
        );
        Ok(pool::commit(transaction).await?)
    }

    /// The sim tells this server what became of WhatsApp's messages.
    pub fn report_to(&self, sim: &Sim, http_url: &str) -> anyhow::Result<()> {
        let url = format!("{http_url}{}", self.path(Vendor::Whatsapp));
        control(sim, "/callbacks/whatsapp", &json!([{ "url": url, "app_secret": format!("app-{MARK}") }]))
    }

    /// The log line that must exist about a reply, with this message.
    pub fn told(&self, serving: &Serving, message: &str, row: &Row) -> anyhow::Result<Value> {
        let lines = serving.process.lines();
        let mut of_the_reply = lines.iter().filter(|line| line.contains(&row.id.to_string()));
        let line = of_the_reply.rfind(|line| line.contains(message));
        let line: Value =
            serde_json::from_str(line.with_context(|| format!("nothing like `{message}` about {row:?}"))?)?;
        for (field, expected) in [
            ("correlation_id", row.correlation_id),
            ("channel_message_id", row.channel_message_id),
            ("outbox_id", row.id),
        ] {
            anyhow::ensure!(line[field] == expected.to_string(), "{field} is not {expected}: {line}");
        }
        Ok(line)
    }
}

/// Part of a configuration: how replies are sent.
pub fn outbox(settings: &str) -> String {
    format!("[outbound]\nallow_private = true\n[channels.outbox]\n{settings}")
}

/// A process on a database.
pub struct Serving {
    pub process: Process,
    pub http_url: String,
    _config: tempfile::NamedTempFile,
}

impl Serving {
    /// With these settings of the outbox.
    pub fn start(world: &World, roles: &str, settings: &str) -> anyhow::Result<Self> {
        let (process, config) = launch(world, roles, settings, &[])?;
        Self::of(process, config)
    }

    /// With these settings in its environment.
    pub fn with(world: &World, roles: &str, environment: &[(&str, &str)]) -> anyhow::Result<Self> {
        let (process, config) = launch(world, roles, OFTEN, environment)?;
        Self::of(process, config)
    }

    /// Waits until a process serves.
    pub fn of(process: Process, config: tempfile::NamedTempFile) -> anyhow::Result<Self> {
        let line: Value = serde_json::from_str(&process.wait_for_line("postrider is serving at ")?)?;
        let http_url = line["message"].as_str().and_then(|message| message.split(' ').next_back());
        let http_url = http_url.context("no address")?.to_owned();
        Ok(Self { process, http_url, _config: config })
    }

    /// Lets it finish, and checks that it ends well.
    pub fn stop(mut self) -> anyhow::Result<()> {
        self.process.signal("TERM")?;
        let status = tokio::task::block_in_place(|| self.process.wait())?;
        anyhow::ensure!(status.success(), "{status}: {}", self.process.lines().join("\n"));
        Ok(())
    }

    /// The sum of a metric over all series with these labels; nothing when there is none.
    pub fn metric(&self, name: &str, labels: &[&str]) -> anyhow::Result<Option<f64>> {
        let answer = get(&self.http_url, "/metrics")?;
        anyhow::ensure!(answer.status == 200, "{}", answer.body);
        let values: Vec<f64> = answer
            .body
            .lines()
            .filter(|line| {
                line.strip_prefix(name).is_some_and(|rest| rest.starts_with([' ', '{']))
                    && labels.iter().all(|label| line.contains(label))
            })
            .filter_map(|line| line.rsplit(' ').next()?.parse().ok())
            .collect();
        Ok((!values.is_empty()).then(|| values.iter().sum()))
    }
}

/// Starts a process, whether or not it will ever serve.
pub fn launch(
    world: &World,
    roles: &str,
    settings: &str,
    environment: &[(&str, &str)],
) -> anyhow::Result<(Process, tempfile::NamedTempFile)> {
    let config = world.config(&outbox(settings))?;
    let mut command = postrider();
    command.envs(environment.iter().copied());
    let process =
        Process::start(command.arg("--config").arg(config.path()).args(["serve", "--roles", roles]))?;
    Ok((process, config))
}

/// Tells the sim something.
pub fn control(sim: &Sim, path: &str, what: &Value) -> anyhow::Result<()> {
    let answer = send(&sim.http_url, "PUT", path, &[], &what.to_string())?;
    anyhow::ensure!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    Ok(())
}

/// A fault that strikes the next messages to this vendor.
pub fn strike(sim: &Sim, vendor: Vendor, fault: &str, times: u32) -> anyhow::Result<()> {
    control(
        sim,
        "/faults/rules",
        &json!([{ "provider": vendor.name(), "fault": fault, "times": times, "on": "send" }]),
    )
}

/// The requests that the sim received for message `n`, in order.
pub fn received(sim: &Sim, vendor: Vendor, n: u32) -> anyhow::Result<Vec<Value>> {
    let text = text(vendor, n);
    Ok(sim.receipts()?.into_iter().filter(|receipt| receipt["text"] == text).collect())
}

/// How often the sim did what message `n` asked for.
pub fn acted(sim: &Sim, vendor: Vendor, n: u32) -> anyhow::Result<usize> {
    Ok(received(sim, vendor, n)?.iter().filter(|receipt| receipt["acted"] == true).count())
}

/// How often the sim was asked what it had done.
pub fn lookups(sim: &Sim) -> anyhow::Result<u64> {
    let counts = get(&sim.http_url, "/receipts")?.json()?;
    counts["lookups"].as_u64().with_context(|| counts.to_string())
}

/// The text of message `n`, and so of its echo: no other message has this text.
pub fn text(vendor: Vendor, n: u32) -> String {
    format!("{} says {n}.", vendor.name())
}

/// Where the reply to message `n` goes. Conversations are many and short, and some have threads.
pub fn place(vendor: Vendor, n: u32) -> (String, Option<String>) {
    match vendor {
        Vendor::Slack => {
            (format!("C{:04}", n % 500), n.is_multiple_of(3).then(|| "1515449522.000016".to_owned()))
        }
        Vendor::Telegram => ((1000 + n % 500).to_string(), None),
        _ => (vendor.sender().to_owned(), None),
    }
}

/// The delivery of message `n`.
pub fn webhook(vendor: Vendor, n: u32) -> Webhooked {
    let ((to, thread), text, sender) = (place(vendor, n), text(vendor, n), vendor.sender());
    let body = match vendor {
        Vendor::Slack => json!({
            "type": "event_callback",
            "event": { "type": "message", "channel": to, "user": sender, "text": text,
                       "ts": format!("1700000000.{n:06}"), "thread_ts": thread },
        }),
        Vendor::Telegram => json!({
            "update_id": n,
            "message": { "message_id": n, "date": 1_441_645_532, "text": text,
                         "chat": { "id": to.parse::<i64>().unwrap(), "type": "private" },
                         "from": { "id": sender.parse::<i64>().unwrap(), "is_bot": false } },
        }),
        _ => whatsapp(
            &json!({ "messages": [{ "from": sender, "id": format!("wamid.{n}"), "timestamp": "1504902988",
                                              "type": "text", "text": { "body": text } }] }),
        ),
    };
    Webhooked { vendor, id: format!("message {n}"), body: body.to_string().into_bytes() }
}

/// Delivers message `n` as its vendor does, and says with which status it was answered; none if it was not.
pub fn deliver(bots: &Bots, http_url: &str, vendor: Vendor, n: u32) -> Option<u16> {
    let webhook = webhook(vendor, n);
    let headers = webhook.signed(MARK);
    let headers: Vec<(&str, &str)> = headers.iter().map(|(name, value)| (*name, value.as_str())).collect();
    let body = String::from_utf8(webhook.body).ok()?;
    let answer = send(http_url, "POST", &bots.path(vendor), &headers, &body).ok()?;
    answer.split(' ').nth(1)?.parse().ok()
}

/// Every row of a table as text, to see whether anything changed.
pub async fn snapshot(admin: &PgPool, table: &str) -> anyhow::Result<Vec<String>> {
    let sql = format!("select row_to_json(kept)::text from {table} as kept order by id");
    Ok(sqlx::query_scalar(AssertSqlSafe(sql)).fetch_all(admin).await?)
}

fn key() -> anyhow::Result<MasterKey> {
    Ok(MASTER_KEY.parse()?)
}
