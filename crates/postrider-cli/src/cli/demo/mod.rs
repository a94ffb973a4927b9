//! `postrider demo`: demonstrates a campaign in a minute, on its own private cluster and simulated providers.
//!
//! Two workers send a campaign of three phases through simulated providers, which are a separate process and keep their own receipts.
//! The demo kills a worker during its calls, and some providers act and close the connection without a response. The resolver settles
//! the items that this leaves in doubt. At the end the launch certificate of each phase is compared with the receipts.

mod processes;
mod receipts;

use std::{fmt::Write as _, io::IsTerminal, process::ExitCode, time::Duration};

use anyhow::Context;
use clap::Args;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use postrider_api::dashboard;
use postrider_model::ids::{CampaignId, RunId, TenantId};
use postrider_store::{
    Pool,
    campaigns::{
        self,
        runs::{self, Progress},
        send_jobs,
    },
    postgres::pool,
};
use serde_json::json;

use self::{
    processes::{Home, Server, Sim, TIMEOUT, Worker},
    receipts::Receipts,
};
use super::output;
use crate::{config::Config, shutdown};

#[derive(Args)]
pub struct DemoArgs {
    /// Send to this many people
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(100..=1_000_000))]
    people: u32,
}

const PHASES: [&str; 3] = ["mail", "call", "post"];
/// Short, so that the demo does not take ten minutes longer.
const QUIET_TIME_SECONDS: u32 = 5;
/// With at least this many people, the demo pauses and resumes a phase.
const PAUSED_FROM: u32 = 1000;
const POLL_INTERVAL: Duration = Duration::from_millis(100);

pub async fn run(args: DemoArgs, config: &Config) -> anyhow::Result<ExitCode> {
    let interrupted = shutdown::on_signal()?;
    if config.database.url.is_some() || config.database.admin_url.is_some() || config.data_dir.is_some() {
        message!("note       the demo creates its own private cluster; the configured database is not used");
    }
    let home = Home::new()?;
    let mut sim = Sim::start(&home).await?;
    message!(
        "providers  a separate process at {}; it refuses, delays and drops requests, and keeps receipts",
        sim.http_url
    );
    let mut server = Server::start(&home).await?;
    message!("server     {} on a private PostgreSQL in {}", server.http_url, home.path.display());

    let outcome = tokio::select! {
        sent_once = run_phases(&home, &sim, &server, args.people) => sent_once,
        () = interrupted.cancelled() => Err(anyhow::anyhow!("interrupted")),
    };
    if std::io::stdout().is_terminal() && matches!(outcome, Ok(true)) {
        print_next_steps(&home, &server);
        invite(&home).await?;
        interrupted.cancelled().await;
    } else {
        say_how_to_get_the_dashboard();
    }
    // In every case the server stops its cluster before its directory is removed.
    server.stop().await?;
    sim.stop().await?;
    Ok(if outcome? { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Runs the phases. Returns whether nothing was sent twice and nothing is missing.
async fn run_phases(home: &Home, sim: &Sim, server: &Server, people: u32) -> anyhow::Result<bool> {
    prepare(home, sim, server, people).await?;
    let pool = pool::connect(&server.database_url, pool::Settings::default()).await?;
    let tenant = TenantId(server.tenant_id);
    let campaign = find_campaign(&pool, tenant).await?;
    let mut workers = [Worker::start(home, 1).await?, Worker::start(home, 2).await?];
    message!("workers    two processes, {} and {}", workers[0].name, workers[1].name);

    let mut all_good = true;
    let mut certificates = String::new();
    for phase in PHASES {
        home.postrider(&["campaign", "deploy", "spring", "--phase", phase]).await?;
        let run = newest_run(&pool, tenant, campaign, phase).await?;
        let watched = Watched { pool: &pool, tenant, run, phase };
        if phase == "mail" {
            watched.until(|progress| progress.done() * 3 > progress.intended).await?;
            let killed = workers[0].kill().await?;
            message!("killed     {killed} with SIGKILL, during its calls; another worker replaces it");
            workers[0] = Worker::start(home, 3).await?;
            let mut transaction = pool::begin(&pool).await?;
            send_jobs::age_locks(&mut transaction, &killed, Duration::from_secs(6 * 60)).await?;
            pool::commit(transaction).await?;
            message!(
                "           (other workers would recover its jobs after five minutes without a heartbeat; the demo ages the locks)"
            );
        }
        // With fewer people the phase would end before the command begins.
        if phase == "call" && people >= PAUSED_FROM {
            watched.until(|progress| progress.done() * 5 > progress.intended).await?;
            home.postrider(&["campaign", "pause", "spring", "--phase", phase]).await?;
            home.postrider(&["campaign", "resume", "spring", "--phase", phase]).await?;
        }
        let tried = watched
            .until(|progress| {
                progress.done() + progress.in_doubt == progress.intended && progress.in_flight == 0
            })
            .await?;
        if tried.in_doubt > 0 {
            message!(
                "in doubt   {} items may have been called; the resolver queries the provider under the same idempotency keys",
                tried.in_doubt
            );
            watched.until(|progress| progress.in_doubt == 0).await?;
        }
        watched
            .until(|progress| progress.jobs.completed + progress.jobs.dead == progress.jobs.total())
            .await?;
        all_good &= certify(&pool, tenant, run, phase, sim, &mut certificates).await?;
    }
    for worker in &mut workers {
        worker.stop().await?;
    }
    pool.close().await;

    output::line(format_args!(
        "{:<6} {:>8} {:>9} {:>6} {:>7} {:>8} {:>7} | {:>8} {:>10} {:>8}",
        "phase",
        "intended",
        "succeeded",
        "failed",
        "skipped",
        "in doubt",
        "missing",
        "receipts",
        "sent twice",
        "launched"
    ))?;
    output::text(&certificates)?;
    output::line(if all_good {
        "result: every phase is launched, nothing was sent twice, nothing is missing"
    } else {
        "result: FAILED"
    })?;
    Ok(all_good)
}

/// Creates the accounts, the audience and the campaign with the commands of an operator.
async fn prepare(home: &Home, sim: &Sim, server: &Server, people: u32) -> anyhow::Result<()> {
    let url = |face: &str| format!("{}/{face}", sim.http_url);
    let sid = "AC0123456789abcdef0123456789abcdef";
    let accounts = [
        ("mailer", "resend", json!({ "from": "Spring Shop <shop@example.com>", "url": url("resend") })),
        (
            "caller",
            "twilio",
            json!({ "account_sid": sid, "from": "+15005550006", "callback_url": server.http_url, "url": url("twilio") }),
        ),
        ("poster", "bluesky", json!({ "identifier": "shop.example.com", "url": url("bluesky") })),
    ];
    let secret = home.path.join("secret");
    std::fs::write(&secret, "a secret of the demo")?;
    for (name, provider, settings) in accounts {
        let (settings, secret) = (settings.to_string(), secret.to_string_lossy());
        let args = [
            "accounts",
            "add",
            name,
            "--provider",
            provider,
            "--settings",
            &settings,
            "--secret-file",
            &secret,
        ];
        // With the limits of the real providers the demo would take long.
        home.postrider(&[&args[..], &["--limits", r#"{"rate_per_second": 500}"#]].concat()).await?;
    }

    let mut csv = String::from("email,phone,first_name,unsubscribed\n");
    for n in 0..people {
        let unsubscribed = if n % 100 == 99 { "yes" } else { "" };
        writeln!(csv, "customer{n}@example.com,+4917{:08},Customer {n},{unsubscribed}", 10_000_000 + n)?;
    }
    let list = home.path.join("customers.csv");
    std::fs::write(&list, csv)?;
    home.postrider(&["campaign", "import", "--list", "customers", &list.to_string_lossy()]).await?;

    let campaign = home.path.join("spring.toml");
    std::fs::write(&campaign, campaign_file())?;
    home.postrider(&["campaign", "create", &campaign.to_string_lossy()]).await?;
    Ok(())
}

fn campaign_file() -> String {
    let phase = |name: &str, channel: &str, list: &str, account: &str, content: &str| {
        format!(
            "\n[[phase]]\nphase = \"{name}\"\nchannel = \"{channel}\"\n{list}provider_account = \"{account}\"\n\
             quiet_time_seconds = {QUIET_TIME_SECONDS}\nfailure_tolerance = 0.2\n{content}\n"
        )
    };
    let customers = "list = \"customers\"\n";
    let mail = "content.subject = \"Spring has come, {{ first_name }}\"\n\
                content.text = \"Hello {{ first_name }}, everything is in bloom.\"\n\
                content.html = \"<p>Hello <b>{{ first_name }}</b>, everything is in bloom.</p>\"";
    let call = "content.script = \"Hello {{ first_name }}. Spring has come.\"";
    let post = "content.text = \"Spring has come.\"";
    // The demo deploys each phase after the previous one has ended.
    ["name = \"spring\"\nauto_advance = false\n".to_owned()]
        .into_iter()
        .chain([
            phase("mail", "email", customers, "mailer", mail),
            phase("call", "voice", customers, "caller", call),
            phase("post", "social", "", "poster", post),
        ])
        .collect()
}

async fn find_campaign(pool: &Pool, tenant: TenantId) -> anyhow::Result<CampaignId> {
    let mut transaction = pool::begin_as(pool, tenant).await?;
    Ok(campaigns::find(&mut transaction, tenant, "spring").await?.context("the campaign is gone")?.id)
}

async fn newest_run(
    pool: &Pool,
    tenant: TenantId,
    campaign: CampaignId,
    phase: &str,
) -> anyhow::Result<RunId> {
    let mut transaction = pool::begin_as(pool, tenant).await?;
    let phases = campaigns::status(&mut transaction, tenant, campaign).await?;
    let run = phases.into_iter().find(|state| state.phase == phase).and_then(|state| state.run);
    Ok(run.context("the phase was not deployed")?.run.id)
}

/// A run whose progress is shown.
struct Watched<'a> {
    pool: &'a Pool,
    tenant: TenantId,
    run: RunId,
    phase: &'a str,
}

impl Watched<'_> {
    /// Shows progress until the condition is true.
    async fn until(&self, enough: impl Fn(&Progress) -> bool) -> anyhow::Result<Progress> {
        let terminal = std::io::stderr().is_terminal();
        let target = if terminal { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        let style = ProgressStyle::with_template("{prefix:<10} {bar:40} {pos}/{len}  {msg}")?;
        let bar =
            ProgressBar::with_draw_target(None, target).with_style(style).with_prefix(self.phase.to_owned());
        let deadline = tokio::time::Instant::now() + TIMEOUT;
        loop {
            let progress = self.progress().await?;
            bar.set_length(progress.intended.unsigned_abs());
            bar.set_position(progress.done().unsigned_abs());
            bar.set_message(format!("{} in progress, {} in doubt", progress.in_flight, progress.in_doubt));
            if enough(&progress) {
                bar.finish_and_clear();
                message!(
                    "{:<10} {}/{} done, {} in doubt",
                    self.phase,
                    progress.done(),
                    progress.intended,
                    progress.in_doubt
                );
                return Ok(progress);
            }
            // The jobs may end before the items in doubt are settled: the resolver works without the jobs.
            let has_ended = progress.jobs.completed + progress.jobs.dead == progress.jobs.total()
                && progress.in_doubt == 0;
            anyhow::ensure!(
                !has_ended && tokio::time::Instant::now() < deadline,
                "phase {} made no progress: {progress:?}",
                self.phase
            );
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    async fn progress(&self) -> anyhow::Result<Progress> {
        let mut transaction = pool::begin_as(self.pool, self.tenant).await?;
        let mut progress = runs::progress(&mut transaction, self.tenant, &[self.run]).await?;
        progress.remove(&self.run).context("the run is gone")
    }
}

/// The certificate of a run beside the provider's receipts for it.
async fn certify(
    pool: &Pool,
    tenant: TenantId,
    run: RunId,
    phase: &str,
    sim: &Sim,
    certificates: &mut String,
) -> anyhow::Result<bool> {
    let mut transaction = pool::begin_as(pool, tenant).await?;
    let certificate = runs::verify(&mut transaction, tenant, run).await?;
    drop(transaction);
    let channel = match phase {
        "mail" => "email",
        "call" => "voice",
        _ => "social",
    };
    let acted = Receipts::read(&sim.receipts)?.of_channel(channel);
    let twice = acted.values().filter(|count| **count > 1).count();
    let succeeded = certificate.sent + certificate.called + certificate.posted;
    writeln!(
        certificates,
        "{phase:<6} {:>8} {succeeded:>9} {:>6} {:>7} {:>8} {:>7} | {:>8} {twice:>10} {:>8}",
        certificate.intended,
        certificate.failed,
        certificate.skipped,
        certificate.in_doubt,
        certificate.missing,
        acted.len(),
        if certificate.launched { "yes" } else { "no" }
    )?;
    // The provider and the database must agree.
    Ok(certificate.launched && twice == 0 && i64::try_from(acted.len())? == succeeded)
}

fn print_next_steps(home: &Home, server: &Server) {
    let data = home.data_dir();
    message!("");
    message!("The server runs until you press Ctrl-C. Try in another terminal:");
    message!("  postrider --data-dir {} campaign status spring", data.display());
    message!("  postrider --data-dir {} campaign verify spring --phase mail", data.display());
    message!(
        "  psql '{}' -c 'select status, count(*) from execution.channel_outbox group by 1'",
        server.database_url
    );
    message!("  curl {}/metrics", server.http_url);
}

/// Prints an address that signs in to the dashboard, or how to get the dashboard.
async fn invite(home: &Home) -> anyhow::Result<()> {
    if !dashboard::is_embedded() {
        say_how_to_get_the_dashboard();
        return Ok(());
    }
    message!("");
    message!("Open the dashboard within a minute; the address signs in once:");
    message!("  {}", home.output(&["dashboard"]).await?.trim());
    message!("For another address: postrider --data-dir {} dashboard", home.data_dir().display());
    Ok(())
}

fn say_how_to_get_the_dashboard() {
    if !dashboard::is_embedded() {
        message!("dashboard  not part of this program; `make dashboard`, then `make demo` builds it in");
    }
}
