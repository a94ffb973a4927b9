//! A database that was restored must not send again what the original has sent; and a database that was not restored must not be taken for
//! one that was.

mod adopting;
mod copies;
mod normal;

use std::{collections::BTreeMap, path::Path};

use anyhow::Context;
use postrider_store::postgres::{migrate, pool};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::{
    campaigns::stage::Stage,
    sql::tenant,
    world::{MASTER_KEY, Output, Server, Sim, eventually, postrider, run, signing_pool},
};

/// The log line of a process that must not send.
const WAITS: &str = "restored copy: sending waits for adopt";

/// A database by its address, and where its processes keep what they know.
struct Site {
    /// With `ROLE` in place of the login.
    url: String,
    witness: tempfile::TempDir,
}

impl Site {
    fn new(url: impl Into<String>) -> anyhow::Result<Self> {
        Ok(Self { url: url.into(), witness: tempfile::tempdir()? })
    }

    /// The database `postgres` of a server whose socket is here.
    fn at(socket_dir: &Path) -> anyhow::Result<Self> {
        Self::new(format!("postgres:///postgres?host={}&user=ROLE", socket_dir.display()))
    }

    /// The same database, with another place for what is known.
    fn elsewhere(&self) -> anyhow::Result<Self> {
        Self::new(self.url.clone())
    }

    fn url(&self, role: &str) -> String {
        self.url.replace("ROLE", role)
    }

    fn config(&self) -> anyhow::Result<tempfile::NamedTempFile> {
        let file = tempfile::NamedTempFile::new()?;
        let config = format!(
            "master_key = '{MASTER_KEY}'\n[database]\nurl = '{}'\napp_url = '{}'\nadmin_url = '{}'\n[http]\nlisten = '127.0.0.1:0'\n\
             [log]\nformat = 'json'\n[outbound]\nallow_private = true\n[witness]\ndir = '{}'\n\
             [campaigns]\nwindow = 4\naccount_concurrency = {AT_ONCE}\npoll_interval_ms = 50\nretry_pause_seconds = 1\n\
             [resolver]\npoll_interval_ms = 50\nretry_pause_seconds = 1\nretry_pause_max_seconds = 1\n",
            self.url("postrider_worker"),
            self.url("postrider_app"),
            self.url("postgres"),
            self.witness.path().join("w").display(),
        );
        std::fs::write(file.path(), config)?;
        Ok(file)
    }

    /// A server with everything that sends campaigns.
    fn serve(&self) -> anyhow::Result<Server> {
        Server::start_with_witness(self.config()?, "api,campaigns,resolver")
    }

    /// A command of an administrator on this machine.
    fn postrider(&self, args: &[&str]) -> anyhow::Result<Output> {
        let config = self.config()?;
        run(postrider().env_remove("POSTRIDER_WITNESS__DIR").arg("--config").arg(config.path()).args(args))
    }

    fn json(&self, args: &[&str]) -> anyhow::Result<Value> {
        let output = self.postrider(&[args, &["--json"]].concat())?;
        anyhow::ensure!(output.code == 0, "{args:?}: {}", output.stderr);
        Ok(serde_json::from_str(&output.stdout)?)
    }

    /// Everything that `doctor` finds.
    fn findings(&self) -> anyhow::Result<Vec<Value>> {
        let output = self.postrider(&["doctor", "--json"])?;
        serde_json::from_str(&output.stdout).with_context(|| output.stderr.clone())
    }

    /// The findings of `doctor` about restored copies, and whether one is a failure.
    fn doctor(&self) -> anyhow::Result<(String, bool)> {
        let output = self.postrider(&["doctor", "--json"])?;
        let findings: Value = serde_json::from_str(&output.stdout).with_context(|| output.stderr.clone())?;
        let finding =
            findings.as_array().context("no list")?.iter().find(|one| one["check"] == "restored copy");
        let finding = finding.context("doctor says nothing about it")?;
        let is_failure = finding["severity"] == "failure";
        assert_eq!(is_failure, output.code != 0, "{}", output.stdout);
        Ok((finding["found"].as_str().unwrap_or_default().to_owned(), is_failure))
    }

    /// Migrated, with a tenant, an account at the sim, and so many leads.
    async fn stage(&self, sim: &Sim, leads: usize) -> anyhow::Result<Stage> {
        migrate::run(&self.url("postgres")).await?;
        let admin = sqlx::PgPool::connect(&self.url("postgres")).await?;
        let (tenant, workspace) = tenant(&admin, "acme").await?;
        let stage = Stage { admin, tenant, workspace };
        let (app, admin_url) = (self.url("postrider_app"), self.url("postgres"));
        let app = signing_pool(&app, &admin_url, pool::Settings::default()).await?;
        stage.account_through(&app, "sim", "sim", &json!({ "url": sim.http_url }), "").await?;
        app.close().await;
        stage.leads("all", leads).await?;
        Ok(stage)
    }

    /// The same tenant in a copy.
    async fn same_stage(&self, stage: &Stage) -> anyhow::Result<Stage> {
        let admin = sqlx::PgPool::connect(&self.url("postgres")).await?;
        Ok(Stage { admin, tenant: stage.tenant, workspace: stage.workspace })
    }
}

/// How often the provider acted under each key, by its own book.
fn calls(sim: &Sim) -> anyhow::Result<BTreeMap<String, usize>> {
    let mut calls = BTreeMap::new();
    for receipt in sim.receipts()? {
        if let (true, Some(key)) = (receipt["acted"] == true, receipt["key"].as_str()) {
            *calls.entry(key.to_owned()).or_default() += 1;
        }
    }
    Ok(calls)
}

/// No key was called twice, and so many were called.
fn assert_called_once(sim: &Sim, people: usize) -> anyhow::Result<()> {
    let calls = calls(sim)?;
    let twice: Vec<_> = calls.iter().filter(|(_, count)| **count > 1).collect();
    assert!(twice.is_empty(), "{} keys were called more than once", twice.len());
    assert_eq!(calls.len(), people);
    Ok(())
}

/// How many items of a run have an end in this database, and how many have no row.
async fn standing(stage: &Stage, run: Uuid) -> anyhow::Result<(usize, usize)> {
    let items = stage.items(run).await?;
    let rows: usize = items.values().sum();
    let intended: usize = stage
        .ask(&format!("select intended::text from execution.campaign_runs where id = '{run}'"))
        .await?
        .parse()?;
    Ok((items.get("sent").copied().unwrap_or_default(), intended - rows))
}

/// How many calls [`slow_sim`] answers.
const ANSWERED: usize = 20;
/// Calls of one process at a time.
const AT_ONCE: usize = 4;

/// A sim that answers the first calls, acts on the next ones, and holds their answers until the test releases them.
fn slow_sim() -> anyhow::Result<Sim> {
    let sim = Sim::start(&[])?;
    sim.hold_after(ANSWERED)?;
    Ok(sim)
}

/// Waits until the provider has answered so many calls, the database has their outcomes, and the calls after them are held.
async fn hold_in_the_middle(sim: &Sim, stage: &Stage, run: Uuid, answered: usize) -> anyhow::Result<()> {
    eventually("the campaign is in the middle", async || {
        Ok(calls(sim)?.len() == answered + AT_ONCE && standing(stage, run).await?.0 == answered)
    })
    .await
}
