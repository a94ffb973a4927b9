//! Adapters against servers that others wrote, and against the sim at its worst. A reservation is a committed row, so
//! every call here has one.

mod faults;
mod mail;
pub mod server;

use std::{path::PathBuf, sync::Arc, time::Duration};

use anyhow::Context;
use postrider_model::{
    Channel, Message,
    ids::{JobId, OutboxId, ProviderAccountId, TenantId},
};
use postrider_providers::{Account, Adapters, GuardedClient, Limits, Policy, Provider};
use postrider_store::{
    Reservation,
    campaigns::outbox::{self, JobHold, Plan, PlannedItem, Reserved, Window, WindowAnswer},
};
use secrecy::SecretString;
use serde_json::Value;
use uuid::Uuid;

use crate::{
    campaigns::execution::Stage,
    world::{Process, postrider},
};

/// Long for a machine that is busy.
const PATIENT: Limits = Limits { connect: Duration::from_secs(10), total: Duration::from_secs(30) };

/// An account at one of the standard vendors, which may reach the servers of these tests.
fn open(vendor: &str, limits: Limits, settings: &Value, secret: &str) -> anyhow::Result<Arc<dyn Provider>> {
    let client = GuardedClient::new(Policy { allow_private: true }, limits)?;
    let secret = SecretString::from(secret);
    let adapters = Adapters::standard(&client);
    let adapter =
        adapters.get(vendor).with_context(|| format!("no `{vendor}` among {}", adapters.names()))?;
    Ok(adapter.open(&Account { id: ProviderAccountId::new(), settings, secret: &secret })?)
}

/// Reservations, made the only way there is.
async fn reservations(stage: &Stage, count: usize) -> anyhow::Result<Vec<Reservation>> {
    let job = stage.job("adapter test", count).await?;
    let hold = JobHold {
        job_id: JobId(job.job_id),
        tenant_id: TenantId(job.tenant_id),
        attempt: job.attempts,
        channel: Channel::Email,
    };
    let plan = |item: &Uuid| PlannedItem {
        item_id: *item,
        outbox_id: OutboxId(Uuid::now_v7()),
        recipient: None,
        plan: Plan::Call { message_hash: [7; 32], payload: "{}".to_owned() },
    };
    let window = Window::new(hold, 0, job.item_ids.iter().map(plan).collect());
    let pool = stage.world.pool("postrider_worker").await?;
    let answers =
        outbox::Writer::new(pool.clone()).settle_and_reserve("adapter test", &[], &[&window]).await?;
    let Some(WindowAnswer::Items(reserved)) = answers.into_iter().next() else {
        anyhow::bail!("the job is not ours");
    };
    let yours = reserved.into_iter().map(|item| match item {
        Reserved::Yours(reservation) => Ok(reservation),
        Reserved::Already(status) => anyhow::bail!("an item is {status} already"),
    });
    yours.collect()
}

fn email(to: &str) -> Message {
    let text = Some("Hello.\n.\n".to_owned());
    Message::Email { to: to.to_owned(), subject: "Hello".to_owned(), text, html: None }
}

/// `postrider sim` with both of its faces.
struct Sim {
    _process: Process,
    http_url: String,
    smtp_port: u16,
    receipts: PathBuf,
    _home: tempfile::TempDir,
}

impl Sim {
    fn start(args: &[&str]) -> anyhow::Result<Self> {
        let home = tempfile::tempdir()?;
        let receipts = home.path().join("receipts.ndjson");
        let process = Process::start(postrider().arg("sim").arg("--receipts").arg(&receipts).args(args))?;
        let line: Value = serde_json::from_str(&process.wait_for_line("smtp_address")?)?;
        let text = |name: &str| line[name].as_str().map(str::to_owned).with_context(|| format!("no {name}"));
        let smtp_port = text("smtp_address")?.parse::<std::net::SocketAddr>()?.port();
        Ok(Self { http_url: text("http_url")?, smtp_port, receipts, _process: process, _home: home })
    }

    /// Every receipt so far, from its own file.
    fn receipts(&self) -> anyhow::Result<Vec<Value>> {
        let text = std::fs::read_to_string(&self.receipts)?;
        crate::world::whole_lines(&text).map(|line| Ok(serde_json::from_str(line)?)).collect()
    }
}
