//! The fixtures of a crash run: a Postgres of its own, a provider, tenants with lists, and campaigns, which are deployed until the faults end.

use std::{
    collections::BTreeSet,
    io::Write,
    path::Path,
    process::{Command, Stdio},
    sync::Arc,
};

use anyhow::Context;
use postrider_store::postgres::pool;
use postrider_testkit::crash::{Launch, SeededRandom};
use serde_json::{Value, json};
use sqlx::PgPool;
use uuid::Uuid;

use super::{
    plan::{Plan, Route},
    provider::Provider,
};
use crate::{
    campaigns::stage::Stage,
    postgres::Postgres,
    sql::{execute, number, tenant, texts},
    world::{MASTER_KEY, Process, postrider, run, signing_pool},
};

/// Items of one run. Small jobs, so that a fault hits many of them at different points.
const RUN_ITEMS: usize = 1000;
const JOB_ITEMS: usize = 50;
/// Limits of a worker, and so the maximum of reserved items without a settlement.
const JOBS: usize = 6;
const WINDOW: usize = 8;
pub const IN_FLIGHT_MAX: usize = JOBS * WINDOW;

/// A run that settles doubts is in a hurry: a call begins and ends soon, and after the quiet time nothing arrives any more.
const CALL_SECONDS: u64 = 3;
const CALL_WITHIN_SECONDS: u64 = 2;
pub const QUIET_SECONDS: u64 = 10;

/// The variable with the setup that a process belongs to.
pub const SETUP: &str = "CRASH_SETUP";

pub struct Setup {
    pub postgres: Postgres,
    pub provider: Provider,
    pub admin: PgPool,
    config: tempfile::NamedTempFile,
    /// Receives the callbacks of providers. No fault hits it.
    callbacks: Option<(Process, String)>,
    roles: &'static str,
    routes: &'static [Route],
    stages: Vec<Stage>,
    runs: usize,
    pub intended: usize,
}

impl Setup {
    pub async fn new(plan: &Plan) -> anyhow::Result<Self> {
        let postgres = Postgres::start().await?;
        let url = postgres.url("postgres");
        let migrated = run(postrider().args(["--database-url", &url, "migrate"]))?;
        anyhow::ensure!(migrated.code == 0, "{}", migrated.stderr);
        let options = sqlx::postgres::PgPoolOptions::new().max_connections(4);
        let admin = options.connect(&url).await?;
        // Attempts end jobs that kill their workers. Here the test kills them, hundreds of times.
        execute(&admin, "alter table execution.job_queue alter column max_attempts set default 100000")
            .await?;
        watch(&url)?;
        let provider = Provider::start(&plan.faults, &url)?;
        let config = config(&postgres, plan)?;
        let callbacks = if plan.settles { Some(listen(config.path(), &url)?) } else { None };
        let roles = if plan.settles { "campaigns,resolver" } else { "campaigns" };
        let (stages, routes) = (Vec::new(), plan.routes);
        let mut setup = Self {
            postgres,
            provider,
            admin,
            config,
            callbacks,
            roles,
            routes,
            stages,
            runs: 0,
            intended: 0,
        };
        for name in ["north", "south"] {
            let stage = setup.stage(name).await?;
            setup.stages.push(stage);
        }
        Ok(setup)
    }

    async fn stage(&self, name: &str) -> anyhow::Result<Stage> {
        let (tenant, workspace) = tenant(&self.admin, name).await?;
        let stage = Stage { admin: self.admin.clone(), tenant, workspace };
        let app = signing_pool(
            &self.postgres.url("postrider_app"),
            &self.postgres.url("postgres"),
            pool::Settings::default(),
        )
        .await?;
        let accounts: BTreeSet<&str> = self.routes.iter().map(|(_, account)| *account).collect();
        for account in accounts {
            let (settings, secret) = self.account(account)?;
            stage.account_through(&app, account, account, &settings, secret).await?;
        }
        app.close().await;
        if self.callbacks.is_some() {
            // The vendors' own limits would make this run last a day.
            let limits = "update tenancy.provider_accounts set limits = '{\"rate_per_second\": 100000}'";
            execute(&self.admin, limits).await?;
        }
        stage.leads("all", RUN_ITEMS).await?;
        Ok(stage)
    }

    /// An account at the sim's likeness of a provider.
    fn account(&self, provider: &str) -> anyhow::Result<(Value, &'static str)> {
        let sim = &self.provider.http_url;
        let callbacks = self.callbacks.as_ref().map(|(_, url)| url.as_str()).unwrap_or_default();
        let url = |face: &str| format!("{sim}{face}");
        Ok(match provider {
            "sim" => (json!({ "url": sim }), ""),
            "smtp" => {
                let port = self.provider.smtp_port;
                let server = json!({ "host": "127.0.0.1", "port": port, "security": "none", "from": "news@example.com" });
                (server, "")
            }
            "resend" => (json!({ "from": "news@example.com", "url": url("/resend") }), "re_secret"),
            "twilio" => {
                let sid = format!("AC{}", "0123456789abcdef".repeat(2));
                let (from, url) = ("+15005550006", url("/twilio"));
                (json!({ "account_sid": sid, "from": from, "callback_url": callbacks, "url": url }), "token")
            }
            "mastodon" => (json!({ "url": url("/mastodon") }), "token"),
            "bluesky" => (json!({ "identifier": "news.example.com", "url": url("/bluesky") }), "password"),
            "webhook" => (json!({ "url": url("/hooks/news") }), "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"),
            other => anyhow::bail!("there is no account for {other}"),
        })
    }

    /// How workers are started.
    pub fn workers(&self) -> Launch {
        let (config, url) = (self.config.path().to_owned(), self.postgres.url("postgres"));
        let roles = self.roles;
        launch(move || {
            let mut command = postrider();
            command.env(SETUP, &url);
            command.arg("--config").arg(&config).args(["serve", "--roles", roles]);
            command
        })
    }

    /// Deploys until so many items have no row yet.
    pub async fn keep_busy(&mut self, waiting_min: usize) -> anyhow::Result<()> {
        while self.waiting().await? < waiting_min {
            self.deploy().await?;
        }
        Ok(())
    }

    /// One run, of the next tenant, on the next channel.
    pub async fn deploy(&mut self) -> anyhow::Result<()> {
        let (channel, account) = self.routes[self.runs % self.routes.len()];
        let stage = &self.stages[self.runs % self.stages.len()];
        let name = format!("run {}", self.runs);
        let campaign = stage.campaign(&name, &[("only", channel, Some("all"), account)]).await?;
        let sql = format!(
            "update execution.campaign_phases set quiet_time = interval '{QUIET_SECONDS} seconds' where campaign_id = '{campaign}'"
        );
        execute(&self.admin, sql).await?;
        stage
            .ask(&format!("select execution.deploy_campaign(tenancy.current_tenant_id(), '{campaign}', p_job_size => {JOB_ITEMS})::text"))
            .await?;
        self.runs += 1;
        self.intended += RUN_ITEMS;
        Ok(())
    }

    /// The tenant whose applications send single messages.
    pub fn tenant(&self) -> Uuid {
        self.stages[0].tenant
    }

    /// Items without a row.
    pub async fn waiting(&self) -> anyhow::Result<usize> {
        let sql = "select coalesce((select sum(intended) from execution.campaign_runs), 0)::bigint
                          - (select count(*) from execution.channel_outbox)";
        Ok(number(&self.admin, sql).await?.max(0) as usize)
    }

    /// The holders of send jobs.
    pub async fn holders(&self) -> anyhow::Result<Vec<String>> {
        Ok(texts(&self.admin, "select distinct locked_by from execution.job_queue where status = 'locked'")
            .await?)
    }

    /// Rows that a worker has reserved and not settled.
    pub async fn left_by(&self, worker: &str) -> anyhow::Result<usize> {
        let sql = format!(
            "select count(*) from execution.channel_outbox
              where status = 'queued' and in_doubt_since is null and reserved_by = '{worker}'"
        );
        Ok(number(&self.admin, sql).await? as usize)
    }

    /// Ages the locks of the silent workers as five minutes would. One that is being used at this moment is left
    /// alone, as the sweep would.
    pub async fn age_locks_of(&self, silent: &[String]) -> anyhow::Result<()> {
        self.age_locks("locked_by = any ($1)", silent).await
    }

    /// The same for whoever did not keep a lock fresh although it beats every second: a claim whose answer was lost.
    pub async fn age_forgotten_locks(&self) -> anyhow::Result<()> {
        self.age_locks("locked_at < now() - interval '10 seconds' or locked_by = any ($1)", &[]).await
    }

    async fn age_locks(&self, whose: &str, names: &[String]) -> anyhow::Result<()> {
        let sql = format!(
            "update execution.job_queue set locked_at = locked_at - interval '6 minutes'
              where id in (select id from execution.job_queue
                            where status = 'locked' and locked_at > now() - interval '5 minutes' and ({whose})
                              for update skip locked)"
        );
        sqlx::query(sqlx::AssertSqlSafe(sql)).bind(names).execute(&self.admin).await?;
        Ok(())
    }

    /// How often a job was taken away from this worker.
    pub async fn taken_from(&self, worker: &str) -> anyhow::Result<usize> {
        let sql = format!(
            "select count(*) from execution.campaign_audit_log where action = 'job.requeued' and note like '% from {worker}'"
        );
        Ok(number(&self.admin, sql).await? as usize)
    }

    /// Ends one connection of a worker, and says whether there was one.
    pub async fn cut(&self, random: &mut SeededRandom) -> anyhow::Result<bool> {
        let sql = "select pid::text from pg_stat_activity
                    where application_name like 'postrider%' and usename = 'postrider_worker' order by pid";
        let pids = texts(&self.admin, sql).await?;
        if pids.is_empty() {
            return Ok(false);
        }
        let pid = &pids[random.below(pids.len())];
        let ended =
            format!("select count(*) from (select pg_terminate_backend({pid}) as ended) as cut where ended");
        Ok(number(&self.admin, ended).await? == 1)
    }

    /// Stops Postgres at once and starts it again.
    pub async fn crash(&mut self) -> anyhow::Result<()> {
        self.postgres.crash()?;
        self.postgres.start_again().await
    }

    /// Jobs that are not at rest: at work, about to be, or put off although items are missing.
    pub async fn restless(&self) -> anyhow::Result<i64> {
        let sql = "select count(*) from execution.job_queue as job
                    where status in ('queued', 'locked')
                       or status = 'failed'
                          and cardinality(item_ids) > (select count(*) from execution.channel_outbox where job_id = job.id)";
        Ok(number(&self.admin, sql).await?)
    }

    /// Jobs that were put off come at once where items are missing or this is the last time, and not again where they
    /// wait for evidence.
    pub async fn make_due(&self) -> anyhow::Result<()> {
        let sql = "update execution.job_queue as job
                      set run_after = case
                              when cardinality(item_ids) > (select count(*) from execution.channel_outbox where job_id = job.id)
                                   or attempts + 1 >= max_attempts
                              then now()
                              else now() + interval '1 day'
                          end
                    where id in (select id from execution.job_queue where status = 'failed' for update skip locked)";
        Ok(execute(&self.admin, sql).await?)
    }

    /// The next attempt of every job is its last. The database refuses this change in normal operation: the items and limits of a send job
    /// never change.
    pub async fn make_the_next_attempt_the_last(&self) -> anyhow::Result<()> {
        let sql = "begin;
                   set local session_replication_role = replica;
                   update execution.job_queue set max_attempts = attempts + 1, run_after = now()
                    where status not in ('completed', 'dead');
                   commit";
        Ok(execute(&self.admin, sql).await?)
    }

    /// Doubts that are not for a person.
    pub async fn open_doubts(&self) -> anyhow::Result<i64> {
        let sql = "select count(*) from execution.doubts where not is_for_person and provider <> 'smtp'";
        Ok(number(&self.admin, sql).await?)
    }

    pub async fn open_runs(&self) -> anyhow::Result<i64> {
        let sql = "select count(*) from execution.campaign_runs where status in ('queued', 'running')";
        Ok(number(&self.admin, sql).await?)
    }
}

/// How a campaign worker is started. Its start is repeated, because Postgres crashes.
pub fn launch(command: impl Fn() -> Command + Send + Sync + 'static) -> Launch {
    let named_by = Some(("the campaign worker is running", "worker"));
    Launch { command: Arc::new(command), named_by, repeats: true }
}

/// Kills the processes of a setup when this process has ended, however it ended: a worker without its database would wait for
/// ever. They are known by the directory of that database in their environment, which no other setup has.
fn watch(url: &str) -> anyhow::Result<()> {
    let place =
        url.split(['?', '&']).find(|part| part.starts_with("host=")).context("the URL names no place")?;
    let script = r#"
        while kill -0 "$1" 2>/dev/null; do sleep 0.3; done
        for process in /proc/[0-9]*; do
            grep -qsaF "$2" "$process/environ" && kill -KILL "${process#/proc/}"
        done
    "#;
    let mut watchdog = Command::new("setsid");
    watchdog.args(["sh", "-c", script, "watchdog", &std::process::id().to_string(), place]);
    watchdog.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
    Ok(())
}

/// Serves the API alone, and says where.
fn listen(config: &Path, url: &str) -> anyhow::Result<(Process, String)> {
    let mut command = postrider();
    command.env(SETUP, url);
    command.arg("--config").arg(config).args(["serve", "--roles", "api"]);
    let process = Process::start(&mut command)?;
    let line = process.wait_for_line("postrider is serving at")?;
    let at = line.find("http://").with_context(|| line.clone())?;
    let end = line[at..].find('"').map_or(line.len(), |length| at + length);
    let url = line[at..end].to_owned();
    Ok((process, url))
}

fn config(postgres: &Postgres, plan: &Plan) -> anyhow::Result<tempfile::NamedTempFile> {
    let mut file = tempfile::NamedTempFile::new()?;
    let (call, within) = if plan.settles { (CALL_SECONDS, CALL_WITHIN_SECONDS) } else { (60, 120) };
    write!(
        file,
        "master_key = '{MASTER_KEY}'
         [database]
         url = '{}'
         app_url = '{}'
         [http]
         listen = '127.0.0.1:0'
         [log]
         format = 'json'
         [outbound]
         allow_private = true
         [campaigns]
         jobs_max = {JOBS}
         jobs_per_tenant_max = {}
         window = {WINDOW}
         call_timeout_seconds = {call}
         call_within_seconds = {within}
         circuit_after = 1000000
         retry_pause_seconds = 30
         heartbeat_interval_seconds = 1
         poll_interval_ms = 50
         [resolver]
         concurrency = 64
         account_concurrency = 32
         retry_pause_seconds = 1
         retry_pause_max_seconds = 4
         poll_interval_ms = 100",
        postgres.url("postrider_worker"),
        postgres.url("postrider_app"),
        JOBS - 2,
    )?;
    Ok(file)
}
