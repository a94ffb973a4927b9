//! Delivery statuses end to end: the sim calls back as the vendors do, and the API and the commands show the results.

mod statuses;
mod storm;

use anyhow::Context;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::{
    api::{
        Stage as Api,
        material::{id, import},
    },
    http::send,
    sql::{execute, number},
    world::{Server, Sim, eventually},
};

const OUTBOUND: &str = "[outbound]\nallow_private = true\n";
pub(super) const WEBHOOK_SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

/// A tenant that calls and mails through the sim, and a worker.
pub struct Scene {
    pub api: Api,
    pub sim: Sim,
    campaigns: &'static str,
    worker: Option<Server>,
}

impl Scene {
    pub async fn new() -> anyhow::Result<Self> {
        Self::with("").await
    }

    /// With more settings of campaigns.
    pub async fn with(campaigns: &'static str) -> anyhow::Result<Self> {
        let limits = "[api]\nrate_per_second = 0\ninvalid_keys_per_second = 0\n";
        let api = Api::with(&format!("{limits}{OUTBOUND}[campaigns]\n{campaigns}")).await?;
        Ok(Self { api, sim: Sim::start(&[])?, campaigns, worker: None })
    }

    /// Starts a worker with a resolver.
    pub fn work(&mut self) -> anyhow::Result<()> {
        let campaigns =
            format!("[campaigns]\npoll_interval_ms = 50\nretry_pause_seconds = 1\n{}", self.campaigns);
        let resolver =
            "[resolver]\npoll_interval_ms = 50\nretry_pause_seconds = 1\nretry_pause_max_seconds = 1\n";
        let more = format!("{OUTBOUND}{campaigns}{resolver}");
        self.worker = Some(Server::start(&self.api.world, "campaigns,resolver", &more)?);
        Ok(())
    }

    /// People on list `people`: `person0@example.org`, `+491700000000`, ….
    pub fn people(&self, count: usize) -> anyhow::Result<()> {
        self.people_on("people", count)
    }

    /// The same people on another list.
    pub fn people_on(&self, list: &str, count: usize) -> anyhow::Result<()> {
        let rows: String = (0..count).map(|n| format!("p{n},{},{}\n", mail(n), phone(n))).collect();
        import(&self.api, &self.api.acme, list, &format!("external_id,email,phone\n{rows}"))?.expect(200)?;
        Ok(())
    }

    /// An account at Twilio's likeness, called `twilio`.
    pub async fn twilio(&self) -> anyhow::Result<String> {
        let settings = json!({
            "account_sid": format!("AC{}", "0123456789abcdef".repeat(2)),
            "from": "+15005550006",
            "callback_url": self.api.server.http_url,
            "machine_detection": true,
            "url": format!("{}/twilio", self.sim.http_url),
        });
        self.account("twilio", &settings, "token").await
    }

    /// An account at Resend's likeness, called `resend`. The sim sends its webhooks to the address of the account.
    pub async fn resend(&self, more: &Value) -> anyhow::Result<String> {
        let mut settings =
            json!({ "from": "news@example.com", "url": format!("{}/resend", self.sim.http_url) });
        for (name, value) in more.as_object().into_iter().flatten() {
            settings[name] = value.clone();
        }
        let secret = json!({ "api_key": "re_1", "webhook_secret": WEBHOOK_SECRET }).to_string();
        let account = self.account("resend", &settings, &secret).await?;
        let url = format!("{}{}", self.api.server.http_url, self.address("resend", &account));
        self.put("/callbacks/resend", &json!({ "url": url, "webhook_secret": WEBHOOK_SECRET }))?;
        Ok(account)
    }

    pub async fn account(&self, provider: &str, settings: &Value, secret: &str) -> anyhow::Result<String> {
        let account =
            json!({ "name": provider, "provider": provider, "settings": settings, "secret": secret });
        let made = self.api.post(&self.api.acme.admin, "/provider-accounts", &account)?.expect(201)?;
        // The limits of the vendors are not tried here.
        let unlimited = "update tenancy.provider_accounts set limits = '{\"rate_per_second\": 100000}'";
        execute(&self.api.admin, unlimited).await?;
        id(&made)
    }

    /// The address for callbacks of an account.
    pub fn address(&self, provider: &str, account: &str) -> String {
        format!("/api/v2/tenants/{}/providers/{provider}/{account}/callback", self.api.acme.id.0)
    }

    /// Tells the sim something.
    pub fn put(&self, path: &str, body: &Value) -> anyhow::Result<()> {
        let answer = send(&self.sim.http_url, "PUT", path, &[], &body.to_string())?;
        anyhow::ensure!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        Ok(())
    }

    /// Starts a campaign to list `people` through an account, and answers with its run.
    pub fn start(&self, name: &str, channel: &str, account: &str) -> anyhow::Result<Uuid> {
        let content = match channel {
            "voice" => json!({ "script": "Hello" }),
            _ => json!({ "subject": "Hello", "text": "Hello" }),
        };
        self.begin(&self.create(name, channel, account, "people", &content)?)
    }

    /// Creates a campaign of one phase.
    pub fn create(
        &self,
        name: &str,
        channel: &str,
        account: &str,
        list: &str,
        content: &Value,
    ) -> anyhow::Result<String> {
        let operator = &self.api.acme.operator;
        let asset = json!({ "name": name, "channel": channel, "content": content });
        let asset = id(&self.api.post(operator, "/assets", &asset)?.expect(201)?)?;
        let phase = json!({
            "phase": "only", "channel": channel, "asset_id": asset, "list": list, "provider_account": account,
        });
        let campaign = json!({ "name": name, "phases": [phase] });
        id(&self.api.post(operator, "/campaigns", &campaign)?.expect(201)?)
    }

    /// Starts a campaign, and answers with its run.
    pub fn begin(&self, campaign: &str) -> anyhow::Result<Uuid> {
        let operator = &self.api.acme.operator;
        let path = format!("/campaigns/{campaign}/phases/only/start");
        self.api.post(operator, &path, &json!({}))?.expect(200)?;
        let runs = self.api.get(operator, &format!("/runs?campaign_id={campaign}"))?.expect(200)?;
        Ok(id(&runs["items"][0])?.parse()?)
    }

    /// Waits until the run has ended and so many items have a final delivery status.
    pub async fn reported(&self, run: Uuid, items: i64) -> anyhow::Result<()> {
        let sql = format!(
            "select count(*) from execution.deliveries as delivery
                    join execution.campaign_runs as run on run.id = delivery.run_id and run.finished_at is not null
              where run.id = '{run}' and delivery.status not in ('accepted', 'ringing', 'answered', 'delayed')"
        );
        eventually("every item has a status", async || {
            Ok(number(&self.api.admin, sql.as_str()).await? == items)
        })
        .await
    }

    /// Waits until the run has ended.
    pub async fn ended(&self, run: Uuid) -> anyhow::Result<()> {
        let sql = format!(
            "select count(*) from execution.campaign_runs where id = '{run}' and finished_at is not null"
        );
        eventually("the run ends", async || Ok(number(&self.api.admin, sql.as_str()).await? == 1)).await
    }

    /// The delivery status of the item to this recipient, as the list of items shows it.
    pub fn delivery(&self, run: Uuid, recipient: &str) -> anyhow::Result<Value> {
        let path = format!("/runs/{run}/items?recipient={}", recipient.replace('+', "%2B"));
        let items = self.api.get(&self.api.acme.viewer, &path)?.expect(200)?;
        let item = items["items"].get(0).context("no item")?;
        Ok(item["delivery"].clone())
    }
}

pub fn mail(n: usize) -> String {
    format!("person{n}@example.org")
}

pub fn phone(n: usize) -> String {
    format!("+4917{n:08}")
}
