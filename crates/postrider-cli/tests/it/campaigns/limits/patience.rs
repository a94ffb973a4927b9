//! A vendor that asks for patience or refuses the account fails no item: the account waits as a whole, and everything else goes on.

use std::{
    io::{BufRead, BufReader, Write},
    net::{TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use postrider_model::{
    ids::{ProviderAccountId, TenantId},
    seal::{MasterKey, Place},
};
use postrider_store::{postgres::pool, tenancy::accounts};
use serde_json::json;
use uuid::Uuid;

use super::{
    account, deploy, jobs, make_due,
    provider::{Answer, Provider},
    vendors::{Kind, Mode, Vendor},
    worker,
};
use crate::{
    campaigns::stage::Stage,
    sql::{execute, texts},
    world::{MASTER_KEY, World, eventually},
};

const VENDORS: [Kind; 4] = [Kind::Resend, Kind::Twilio, Kind::Mastodon, Kind::Bluesky];
/// Fast enough for a test.
fn fast() -> serde_json::Value {
    json!({ "rate_per_second": 500 })
}

/// The account's send jobs have waited, and their time has come.
async fn time_passes(stage: &Stage) -> anyhow::Result<()> {
    execute(&stage.admin, "update execution.account_states set wait_until = now()").await?;
    make_due(stage).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rate_limit_counts_no_attempt_and_fails_no_item() -> anyhow::Result<()> {
    const LEADS: usize = 30;
    let world = World::new().await?;
    let stage = Stage::new(&world, "acme").await?;
    stage.leads("all", LEADS).await?;
    let other = Provider::start(Answer::Accepts)?;
    account(&world, &stage, "other", &other, &json!({})).await?;
    let first = worker(&world, "")?;
    let (mut vendors, mut runs) = (Vec::new(), Vec::new());
    for kind in VENDORS {
        let vendor = Vendor::start(kind, Mode::ActsOn(5))?;
        vendor.account(&world, &stage, &fast()).await?;
        runs.push(vendor.deploy(&stage).await?);
        vendors.push(vendor);
    }
    for (vendor, run) in vendors.iter().zip(&runs) {
        let name = vendor.kind.name();
        eventually("the run waits", || async {
            Ok(jobs(&stage, *run, "status || ' ' || coalesce(waits_for, '') || ' ' || attempts").await?
                == "queued retry_after 0")
        })
        .await?;
        let failed = stage.items(*run).await?.into_iter().filter(|(state, _)| state != "queued");
        assert_eq!(failed.collect::<Vec<_>>().len(), 1, "{name}: only sent ones have ended");
        assert_eq!(vendor.acted().len(), 5, "{name}");
        let (_, wait) = vendor.kind.limited();
        let waits = format!(
            "select (wait_until - now() between interval '{0} seconds' - interval '110 seconds' and interval '{0} seconds')::text
               from execution.account_states join tenancy.provider_accounts as account on account.id = account_id
              where account.name = '{name}'",
            wait.as_secs()
        );
        assert_eq!(stage.ask(&waits).await?, "true", "{name}");
    }
    // Items that wait are not in flight, and none is in doubt.
    let progress = format!(
        "select sum(progress.in_flight)::text from execution.run_progress('{}', array['{}'::uuid]) as progress",
        stage.tenant, runs[0]
    );
    assert_eq!(stage.ask(&progress).await?, "0");
    // Everything else goes on.
    let run = deploy(&stage, "other", None, 10).await?;
    assert_eq!(stage.ended(run).await?, "completed");

    let refused: Vec<usize> = vendors.iter().map(Vendor::refused).collect();
    drop(first);
    stage.no_worker_runs().await?;
    vendors.iter().for_each(|vendor| vendor.set(Mode::Acts));
    time_passes(&stage).await?;
    let _second = worker(&world, "")?;
    for ((vendor, run), refused) in vendors.iter().zip(runs).zip(refused) {
        let name = vendor.kind.name();
        assert_eq!(stage.ended(run).await?, "completed", "{name}");
        let acted = vendor.acted();
        assert_eq!((acted.len(), acted.values().max()), (LEADS, Some(&1)), "{name}");
        assert_eq!(vendor.refused(), refused, "{name}: it was not called meanwhile");
        let ended = stage.items(run).await?;
        assert_eq!((ended.len(), ended.values().sum::<usize>()), (1, LEADS), "{name}: {ended:?}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fault_of_the_account_opens_its_circuit_and_fails_no_list() -> anyhow::Result<()> {
    const LEADS: usize = 20;
    let refuses =
        |status, code: i64| Mode::Refuses(status, json!({ "code": code, "message": "No", "status": 400 }));
    let cases = [
        (Kind::Twilio, refuses("400 Bad Request", 21210)),
        (Kind::Twilio, refuses("400 Bad Request", 21215)),
        (Kind::Twilio, refuses("404 Not Found", 20404)),
        (Kind::Mastodon, Mode::Refuses("404 Not Found", json!({ "error": "Not Found" }))),
        (Kind::Resend, Mode::Refuses("401 Unauthorized", json!({ "name": "missing_api_key" }))),
    ];
    let world = World::new().await?;
    let _workers = [worker(&world, "")?, worker(&world, "")?];
    for (n, (kind, mode)) in cases.into_iter().enumerate() {
        let stage = Stage::new(&world, &format!("tenant {n}")).await?;
        stage.leads("all", LEADS).await?;
        let vendor = Vendor::start(kind, mode)?;
        vendor.account(&world, &stage, &fast()).await?;
        let run = vendor.deploy(&stage).await?;
        eventually("the run waits", || async {
            Ok(jobs(&stage, run, "status || ' ' || coalesce(waits_for, '') || ' ' || attempts").await?
                == "queued circuit 0")
        })
        .await?;
        assert!(!stage.items(run).await?.contains_key("failed"), "case {n}");
        assert_eq!(vendor.acted().len(), 0);
        // It is corrected, and the next probe finds out.
        vendor.set(Mode::Acts);
        let tenant = stage.tenant;
        execute(
            &stage.admin,
            format!(
                "update execution.account_states set circuit_open_until = now() where tenant_id = '{tenant}'"
            ),
        )
        .await?;
        make_due(&stage).await?;
        assert_eq!(stage.ended(run).await?, "completed", "case {n}");
        let acted = vendor.acted();
        assert_eq!((acted.len(), acted.values().max()), (LEADS, Some(&1)), "case {n}");
    }
    Ok(())
}

/// A mail server that counts logins, and takes mails of those who know the password.
struct MailServer {
    port: u16,
    refused: Arc<AtomicUsize>,
    mails: Arc<AtomicUsize>,
}

impl MailServer {
    /// `password` as `AUTH PLAIN` encodes it with its user.
    fn start(password: &'static str) -> anyhow::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let port = listener.local_addr()?.port();
        let (refused, mails) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let counts = (Arc::clone(&refused), Arc::clone(&mails));
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let counts = (Arc::clone(&counts.0), Arc::clone(&counts.1));
                std::thread::spawn(move || serve_mail(stream, password, &counts.0, &counts.1));
            }
        });
        Ok(Self { port, refused, mails })
    }
}

fn serve_mail(
    mut stream: TcpStream,
    password: &str,
    refused: &AtomicUsize,
    mails: &AtomicUsize,
) -> std::io::Result<()> {
    let mut lines = BufReader::new(stream.try_clone()?).lines();
    stream.write_all(b"220 test\r\n")?;
    let mut is_text = false;
    while let Some(line) = lines.next().transpose()? {
        let answer = match line.split(' ').next().unwrap_or_default() {
            "." if is_text => {
                is_text = false;
                mails.fetch_add(1, SeqCst);
                "250 taken\r\n"
            }
            _ if is_text => continue,
            "EHLO" => "250-test\r\n250 AUTH PLAIN\r\n",
            "AUTH" if line.ends_with(password) => "235 welcome\r\n",
            "AUTH" => {
                refused.fetch_add(1, SeqCst);
                "535 5.7.8 wrong password\r\n"
            }
            "DATA" => {
                is_text = true;
                "354 go on\r\n"
            }
            _ => "250 ok\r\n",
        };
        stream.write_all(answer.as_bytes())?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_password_is_never_tried_again_on_its_own() -> anyhow::Result<()> {
    const LEADS: usize = 60;
    // "\0mailer\0right"
    let server = MailServer::start("AG1haWxlcgByaWdodA==")?;
    let world = World::new().await?;
    let stage = Stage::new(&world, "acme").await?;
    stage.leads("all", LEADS).await?;
    let settings = json!({ "host": "127.0.0.1", "port": server.port, "security": "none", "user": "mailer",
                           "from": "news@example.com" });
    let mail = stage.account(&world, "mail", "smtp", &settings, "wrong").await?;
    let workers = [worker(&world, "")?, worker(&world, "")?, worker(&world, "")?];
    let run = deploy(&stage, "mail", None, 5).await?;
    let waits = || async {
        Ok(jobs(&stage, run, "status || ' ' || coalesce(waits_for, '') || ' ' || attempts").await?
            == "queued circuit 0")
    };
    eventually("the whole run waits", waits).await?;
    let tries = server.refused.load(SeqCst);
    assert!((1..=workers.len()).contains(&tries), "the password was tried {tries} times");
    // However often the send jobs come back, and also after a restart.
    drop(workers);
    let worker = worker(&world, "")?;
    let put_off = "select count(*)::text from execution.campaign_audit_log where action = 'job.put_off'";
    for _ in 0..3 {
        let before: u32 = stage.ask(put_off).await?.parse()?;
        make_due(&stage).await?;
        eventually("a send job came back, and waits again", || async {
            Ok(stage.ask(put_off).await?.parse::<u32>()? > before)
        })
        .await?;
    }
    eventually("the whole run waits again", waits).await?;
    assert_eq!(server.refused.load(SeqCst), tries, "the password was tried again");
    assert!(!stage.items(run).await?.contains_key("failed"));
    let note =
        "select note from tenancy.audit_log where action = 'account.circuit_opened' order by id desc limit 1";
    assert!(
        stage.ask(note).await?.starts_with("until its secret is changed: "),
        "{}",
        stage.ask(note).await?
    );

    // A second wrong password is tried once, and the right one sends everything.
    rotate(&world, &stage, mail, "wrong, too").await?;
    eventually("it was tried", || async { Ok(server.refused.load(SeqCst) > tries) }).await?;
    eventually("the whole run waits again", waits).await?;
    assert_eq!(server.refused.load(SeqCst), tries + 1);
    rotate(&world, &stage, mail, "right").await?;
    assert_eq!(stage.ended(run).await?, "completed");
    assert_eq!((server.mails.load(SeqCst), server.refused.load(SeqCst)), (LEADS, tries + 1));
    drop(worker);
    Ok(())
}

async fn rotate(world: &World, stage: &Stage, account: Uuid, secret: &str) -> anyhow::Result<()> {
    let tenant = TenantId(stage.tenant);
    let mut transaction = pool::begin_as(&world.pool("postrider_app").await?, tenant).await?;
    let place = Place { tenant, account: ProviderAccountId(account) };
    let key: MasterKey = MASTER_KEY.parse()?;
    anyhow::ensure!(accounts::rotate(&mut transaction, &key, place, &secret.into(), "a test").await?);
    Ok(pool::commit(transaction).await?)
}

/// The published limits of the vendors, scaled to this.
const QUOTA: usize = 400;
const SPAN: Duration = Duration::from_secs(12);

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_items_keep_the_limit_of_each_vendor_across_three_processes() -> anyhow::Result<()> {
    const LEADS: usize = 1000;
    let world = World::new().await?;
    let stage = Stage::new(&world, "acme").await?;
    stage.leads("all", LEADS).await?;
    let limits = json!({ "rate_per_second": 500, "quota": { "calls": QUOTA, "seconds": SPAN.as_secs() } });
    let (mut vendors, mut runs) = (Vec::new(), Vec::new());
    for kind in VENDORS {
        let vendor = Vendor::start(kind, Mode::Limits(QUOTA, SPAN))?;
        vendor.account(&world, &stage, &limits).await?;
        runs.push(vendor.deploy(&stage).await?);
        vendors.push(vendor);
    }
    let _workers = [worker(&world, "")?, worker(&world, "")?, worker(&world, "")?];
    for (vendor, run) in vendors.iter().zip(runs) {
        let name = vendor.kind.name();
        assert_eq!(stage.ended(run).await?, "completed", "{name}");
        let acted = vendor.acted();
        assert_eq!((acted.len(), acted.values().max()), (LEADS, Some(&1)), "{name}: none twice");
        assert_eq!(vendor.refused(), 0, "{name}: the budget was exceeded");
        let ended = stage.items(run).await?;
        assert_eq!((ended.len(), ended.values().sum::<usize>()), (1, LEADS), "{name}: {ended:?}");
        let failed = format!(
            "select status from execution.channel_outbox where run_id = '{run}' and status = 'failed'"
        );
        assert_eq!(texts(&stage.admin, failed).await?.len(), 0, "{name}");
    }
    Ok(())
}
