//! The resolver beside a worker and a provider that keeps its own book: what was in doubt ends as it was.

mod callbacks;
mod late_effects;
mod points;

use std::collections::BTreeMap;

use postrider_model::IdempotencyKey;
use postrider_providers::social::record_key;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::{
    campaigns::stage::Stage,
    http::send,
    sql::{execute, number, texts},
    world::{MASTER_KEY, Server, Sim, World, eventually, postrider, run_with_input},
};

/// Long enough for a busy machine to look before it is over, short enough to wait for.
const QUIET_SECONDS: u32 = 6;
const LEADS: usize = 3;

/// A provider, the channel it is tried on, and how it settles.
const PROVIDERS: [(&str, &str); 6] = [
    ("resend", "email"),
    ("webhook", "email"),
    ("twilio", "voice"),
    ("sim", "voice"),
    ("mastodon", "social"),
    ("bluesky", "social"),
];

/// A tenant with an account at every likeness that the sim plays, and an API that hears its callbacks.
pub struct Scene {
    pub world: World,
    pub sim: Sim,
    pub stage: Stage,
    pub api: Server,
    pub accounts: BTreeMap<&'static str, Uuid>,
}

impl Scene {
    pub async fn new(sim: &[&str]) -> anyhow::Result<Self> {
        let world = World::new().await?;
        let sim = Sim::start(sim)?;
        let stage = Stage::new(&world, "scene").await?;
        let api = Server::start(&world, "api", OUTBOUND)?;
        stage.leads("all", LEADS).await?;
        let mut accounts = BTreeMap::new();
        for (provider, _) in PROVIDERS {
            let (settings, secret) = account(provider, &sim.http_url, &api.http_url);
            accounts.insert(provider, stage.account(&world, provider, provider, &settings, secret).await?);
        }
        execute(
            &stage.admin,
            "update tenancy.provider_accounts set limits = '{\"rate_per_second\": 100000}'",
        )
        .await?;
        Ok(Self { world, sim, stage, api, accounts })
    }

    /// Deploys to every lead through one account.
    pub async fn deploy(&self, provider: &str, channel: &str) -> anyhow::Result<Uuid> {
        self.deploy_with(provider, channel, QUIET_SECONDS).await
    }

    /// The same with another quiet time.
    pub async fn deploy_with(
        &self,
        provider: &str,
        channel: &str,
        quiet_seconds: u32,
    ) -> anyhow::Result<Uuid> {
        let campaign = self.stage.campaign(provider, &[("only", channel, Some("all"), provider)]).await?;
        let quiet = format!(
            "update execution.campaign_phases set quiet_time = interval '{quiet_seconds} seconds' where campaign_id = '{campaign}'"
        );
        execute(&self.stage.admin, quiet).await?;
        self.stage.deploy(campaign, "only").await
    }

    /// A worker, until every item of a run is in doubt.
    pub async fn doubt(&self, runs: &[Uuid]) -> anyhow::Result<()> {
        let mut worker = self.serve("campaigns")?;
        for run in runs {
            eventually("every item was tried", || async {
                Ok(self.stage.items(*run).await?.values().sum::<usize>() == LEADS
                    && !self.is_under_way(*run).await?)
            })
            .await?;
        }
        // Not killed: it may be looking at one of the jobs again, and would leave its lock.
        worker.process.signal("TERM")?;
        anyhow::ensure!(worker.process.wait()?.success(), "the worker did not end well");
        Ok(())
    }

    /// Whether somebody still holds a job of it.
    async fn is_under_way(&self, run: Uuid) -> anyhow::Result<bool> {
        let sql = format!(
            "select count(*) from execution.job_queue where run_id = '{run}' and status in ('queued', 'locked')"
        );
        Ok(number(&self.stage.admin, sql).await? > 0)
    }

    pub fn serve(&self, roles: &str) -> anyhow::Result<Server> {
        let more = "[campaigns]\ncall_timeout_seconds = 3\ncall_within_seconds = 2\nretry_pause_seconds = 1\npoll_interval_ms = 50\n\
                    [resolver]\nretry_pause_seconds = 1\nretry_pause_max_seconds = 1\npoll_interval_ms = 50\n";
        Server::start(&self.world, roles, &format!("{OUTBOUND}{more}"))
    }

    pub fn end_faults(&self) -> anyhow::Result<()> {
        let answer = send(&self.sim.http_url, "DELETE", "/faults/rules", &[], "")?;
        anyhow::ensure!(answer.starts_with("HTTP/1.1 2"), "{answer}");
        Ok(())
    }

    /// How often the provider acted, by key, or by the name of the record.
    pub fn acted(&self) -> anyhow::Result<BTreeMap<String, usize>> {
        let mut acted = BTreeMap::new();
        for receipt in self.sim.receipts()?.into_iter().filter(|receipt| receipt["acted"] == true) {
            let name = receipt["key"].as_str().or(receipt["rkey"].as_str()).unwrap_or("no key");
            *acted.entry(name.to_owned()).or_default() += 1;
        }
        Ok(acted)
    }

    /// How often the provider acted on each item of a run.
    pub async fn acted_in(&self, run: Uuid) -> anyhow::Result<Vec<usize>> {
        let acted = self.acted()?;
        let sql = format!("select idempotency_key from execution.channel_outbox where run_id = '{run}'");
        let keys = texts(&self.stage.admin, sql).await?;
        let times = |key: String| {
            let record = record_key(&IdempotencyKey::from_row(key.clone()));
            acted.get(&key).or(acted.get(&record)).copied().unwrap_or_default()
        };
        Ok(keys.into_iter().map(times).collect())
    }

    /// The actors that settled the items of a run, and their decisions.
    pub async fn settled_by(&self, run: Uuid) -> anyhow::Result<Vec<String>> {
        let sql = format!(
            "select distinct regexp_replace(log.actor, '-.*', '') || ' ' || log.action
               from execution.campaign_audit_log as log
              where log.run_id = '{run}' and log.outbox_id is not null and log.action <> 'item.in_doubt' order by 1"
        );
        Ok(texts(&self.stage.admin, sql).await?)
    }
}

const OUTBOUND: &str = "[outbound]\nallow_private = true\n";

fn account(provider: &str, sim: &str, api: &str) -> (Value, &'static str) {
    let url = format!("{sim}/{provider}");
    match provider {
        "resend" => (json!({ "from": "news@example.com", "url": url }), "re_secret"),
        "webhook" => {
            (json!({ "url": format!("{sim}/hooks/news") }), "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
        }
        "twilio" => {
            let sid = format!("AC{}", "0123456789abcdef".repeat(2));
            (json!({ "account_sid": sid, "from": "+15005550006", "callback_url": api, "url": url }), "token")
        }
        "mastodon" => (json!({ "url": url }), "token"),
        "bluesky" => (json!({ "identifier": "news.example.com", "url": url }), "password"),
        _ => (json!({ "url": sim }), ""),
    }
}

/// Deploys through every provider and lets every answer be lost.
async fn all_in_doubt(scene: &Scene) -> anyhow::Result<Vec<(&'static str, &'static str, Uuid)>> {
    let mut runs = Vec::new();
    for (provider, channel) in PROVIDERS {
        runs.push((provider, channel, scene.deploy(provider, channel).await?));
    }
    let ids: Vec<Uuid> = runs.iter().map(|run| run.2).collect();
    scene.doubt(&ids).await?;
    scene.end_faults()?;
    Ok(runs)
}

fn success(channel: &str) -> String {
    match channel {
        "email" => "sent",
        "voice" => "called",
        _ => "posted",
    }
    .to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_done_call_is_found_and_not_repeated() -> anyhow::Result<()> {
    // It acts, and hangs up.
    let scene = Scene::new(&["--rule", r#"{"fault": "reset"}"#]).await?;
    let runs = all_in_doubt(&scene).await?;
    let _resolver = scene.serve("campaigns,resolver")?;
    for (provider, channel, run) in runs {
        assert_eq!(scene.stage.ended(run).await?, "completed", "{provider}");
        assert_eq!(scene.stage.items(run).await?, [(success(channel), LEADS)].into(), "{provider}");
        assert_eq!(scene.acted_in(run).await?, [1; LEADS], "{provider}");
        let resolved = format!("item.resolved_as_{}", success(channel));
        for line in scene.settled_by(run).await? {
            // A callback that came before its call was given up is there for the resolver.
            let is_known = line == format!("resolver {resolved}")
                || provider == "twilio" && line == format!("callback {resolved}");
            assert!(is_known, "{provider}: {line}");
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_not_done_is_repeated_where_harmless_and_failed_where_known() -> anyhow::Result<()> {
    // It hangs up before it acts.
    let scene = Scene::new(&["--rule", r#"{"fault": "reset_before"}"#]).await?;
    let runs = all_in_doubt(&scene).await?;
    let _resolver = scene.serve("campaigns,resolver")?;
    for (provider, channel, run) in runs {
        let (state, times, by) = match provider {
            // The outcome is unknown, and a second call is not harmless.
            "twilio" => ("in doubt".to_owned(), 0, "resolver item.left_to_a_person".to_owned()),
            "sim" => ("failed".to_owned(), 0, "resolver item.resolved_as_failed".to_owned()),
            _ => (success(channel), 1, format!("resolver item.resolved_as_{}", success(channel))),
        };
        eventually(&format!("{provider} is settled"), || async {
            Ok(scene.settled_by(run).await? == [by.clone()]
                && scene.stage.items(run).await?.get(&state) == Some(&LEADS))
        })
        .await?;
        assert_eq!(scene.acted_in(run).await?, [times; LEADS], "{provider}");
    }
    let listed = scene.world.postrider(&["in-doubt", "list", "--tenant", "scene"])?;
    assert_eq!(listed.stdout.matches("a person").count(), LEADS, "{}", listed.stdout);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repeat_sends_what_was_reserved_after_the_lead_was_imported_with_other_values() -> anyhow::Result<()>
{
    let scene = Scene::new(&["--rule", r#"{"fault": "reset_before"}"#]).await?;
    let run = scene.deploy("resend", "email").await?;
    scene.doubt(&[run]).await?;
    scene.end_faults()?;
    let changed = "update execution.leads
                      set email = 'new-' || email,
                          attributes = attributes || '{\"name\": \"Somebody else\"}'";
    execute(&scene.stage.admin, changed).await?;
    let _server = scene.serve("campaigns,resolver")?;
    assert_eq!(scene.stage.ended(run).await?, "completed");
    assert_eq!(scene.acted_in(run).await?, [1; LEADS]);
    let receipts = scene.sim.receipts()?;
    let acted = || receipts.iter().filter(|receipt| receipt["acted"] == true);
    let mut to: Vec<_> = acted().map(|receipt| receipt["to"].as_str().unwrap_or_default()).collect();
    to.sort_unstable();
    assert_eq!(to, ["all0@example.com", "all1@example.com", "all2@example.com"]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_would_be_another_one_is_not_sent_again() -> anyhow::Result<()> {
    let scene = Scene::new(&["--rule", r#"{"fault": "reset_before"}"#]).await?;
    let run = scene.deploy("resend", "email").await?;
    scene.doubt(&[run]).await?;
    scene.end_faults()?;
    // No statement can do this; a bug could.
    let damage = "set session_replication_role = replica;
                  update execution.channel_outbox set payload = payload || '{\"name\": \"Somebody else\"}';
                  reset session_replication_role";
    execute(&scene.stage.admin, damage).await?;
    let _resolver = scene.serve("resolver")?;
    eventually("they are left to a person", || async {
        Ok(number(&scene.stage.admin, "select count(*) from execution.doubts where is_for_person").await?
            == LEADS as i64)
    })
    .await?;
    let notes = "select distinct note from execution.doubts";
    let notes = texts(&scene.stage.admin, notes).await?;
    assert_eq!(
        notes,
        [
            "the message cannot be rendered as it was, so it must not be sent again; this provider cannot be asked"
        ]
    );
    assert!(scene.acted()?.is_empty());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_resolver_without_the_key_to_an_account_leaves_its_doubts_to_others() -> anyhow::Result<()> {
    let scene = Scene::new(&["--rule", r#"{"fault": "reset"}"#]).await?;
    let run = scene.deploy("sim", "voice").await?;
    scene.doubt(&[run]).await?;
    scene.end_faults()?;
    // As if it had been sealed under another key.
    let broken = "alter table tenancy.provider_accounts disable trigger user; update tenancy.provider_accounts set sealed_secret = '\\x00'";
    let kept: Vec<u8> =
        sqlx::query_scalar("select sealed_secret from tenancy.provider_accounts where provider = 'sim'")
            .fetch_one(&scene.stage.admin)
            .await?;
    execute(&scene.stage.admin, broken).await?;
    let _resolver = scene.serve("campaigns,resolver")?;
    eventually("it was looked at", || async {
        Ok(!texts(&scene.stage.admin, "select note from execution.doubts where note like '%does not open%'")
            .await?
            .is_empty())
    })
    .await?;
    assert_eq!(scene.stage.items(run).await?, [("in doubt".to_owned(), LEADS)].into());
    sqlx::query("update tenancy.provider_accounts set sealed_secret = $1 where provider = 'sim'")
        .bind(kept)
        .execute(&scene.stage.admin)
        .await?;
    assert_eq!(scene.stage.ended(run).await?, "completed");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repeat_sends_nothing_to_a_lead_that_has_unsubscribed_since() -> anyhow::Result<()> {
    let scene = Scene::new(&["--rule", r#"{"fault": "reset_before"}"#]).await?;
    let mut runs = Vec::new();
    for provider in ["resend", "webhook"] {
        runs.push(scene.deploy(provider, "email").await?);
    }
    scene.doubt(&runs).await?;
    scene.end_faults()?;
    execute(
        &scene.stage.admin,
        "update execution.leads set suppressed_at = now(), suppression_reason = 'unsubscribed'",
    )
    .await?;
    let _resolver = scene.serve("resolver")?;
    let left = "select count(*) from execution.doubts where is_for_person and note like 'its reader has unsubscribed%'";
    eventually("they are left to a person", || async {
        Ok(number(&scene.stage.admin, left).await? == 2 * LEADS as i64)
    })
    .await?;
    assert!(scene.acted()?.is_empty());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_account_with_another_secret_is_not_asked_about_the_calls_of_the_old_one() -> anyhow::Result<()> {
    let scene = Scene::new(&["--rule", r#"{"fault": "reset"}"#]).await?;
    let run = scene.deploy("mastodon", "social").await?;
    scene.doubt(&[run]).await?;
    scene.end_faults()?;
    // Another person's token: the provider does not know the key there.
    let mut rotate = postrider();
    rotate.env("POSTRIDER_MASTER_KEY", MASTER_KEY).args(["--database-url", &scene.world.admin_url()]);
    rotate.env("POSTRIDER_OUTBOUND__ALLOW_PRIVATE", "true");
    rotate.args(["accounts", "rotate", "mastodon", "--tenant", "scene"]);
    let rotated = run_with_input(&mut rotate, "another-token")?;
    assert_eq!(rotated.code, 0, "{}", rotated.stderr);
    let _resolver = scene.serve("resolver")?;
    let left =
        "select count(*) from execution.doubts where is_for_person and note like '%secret was changed%'";
    eventually("they are left to a person", || async {
        Ok(number(&scene.stage.admin, left).await? == LEADS as i64)
    })
    .await?;
    assert_eq!(scene.acted_in(run).await?, [1; LEADS]);
    Ok(())
}
