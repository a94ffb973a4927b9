//! Latency of controls and snapshots while a campaign sends at full speed, compared with empty requests.

use std::time::{Duration, Instant};

use anyhow::Context;
use postrider_model::tenancy::Role;
use postrider_store::{postgres::pool, tenancy::keys};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};
use uuid::Uuid;

use super::{CONNECTIONS, Stage, Worker, items_waiting};
use crate::{
    Scale,
    place::{Database, Place},
    report::Report,
    server::{Server, percentiles},
};

/// Requests of each kind.
const REQUESTS: usize = 200;
/// Number of campaigns that are sent one after another.
const CAMPAIGNS: usize = 4;
/// Number of pauses of the sending campaign.
const PAUSES: usize = 10;
const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) async fn measure(place: &Place, scale: Scale, report: &mut Report) -> anyhow::Result<()> {
    let database = place.fresh("bench_controls").await?;
    let stage = Stage::set(&database, scale.audience).await?;
    let key = operator_key(&database, stage).await?;
    let mut server = Server::start(&database, place.dir()).await?;
    let mut client = Client::connect(&server.address, &key).await?;
    // The first campaign is sent first; the others keep the worker busy until the end of the measurement.
    let (run, _) = stage.deploy(&database, "bench").await?;
    let sending = campaign_of(&database, run.0).await?;
    for n in 1..CAMPAIGNS {
        stage.deploy(&database, &format!("bench {n}")).await?;
    }
    let other = checked_campaign(&database, stage).await?;

    let idle = client.time("GET", "/healthz").await?;
    let idle_snapshot = client.time("GET", &format!("/api/v2/campaigns/{sending}/status")).await?;
    let mut worker = Worker::start(&database, CONNECTIONS)?;
    while worker.progress().0.calls == 0 {
        worker.must_run()?;
        tokio::time::sleep(Duration::from_millis(20)).await; // poll interval
    }
    let mut found: [Vec<Duration>; 5] = Default::default();
    for _ in 0..PAUSES {
        found[4].push(client.time("POST", &format!("/api/v2/campaigns/{sending}/phases/only/pause")).await?);
        client.time("POST", &format!("/api/v2/campaigns/{sending}/phases/only/resume")).await?;
    }
    let (before, begun) = worker.progress();
    for n in 0..REQUESTS {
        let control = if n % 2 == 0 { "pause" } else { "resume" };
        let requests = [
            ("GET", "/healthz".to_owned()),
            ("GET", "/api/v2/whoami".to_owned()),
            ("GET", format!("/api/v2/campaigns/{sending}/status")),
            ("POST", format!("/api/v2/campaigns/{other}/phases/check/{control}")),
        ];
        for (times, (method, path)) in found.iter_mut().zip(requests) {
            times.push(client.time(method, &path).await?);
        }
    }
    let (after, ended) = worker.progress();
    anyhow::ensure!(
        items_waiting(&database).await? > 0.0,
        "the worker sent all items before the end of the measurement"
    );
    worker.stop().await?;
    server.stop().await?;

    let [nothing, authenticated, snapshot, control, pause] = found;
    let names = [
        ("while sending: an empty request, p50 / p99", nothing),
        ("while sending: an empty request with a key, p50 / p99", authenticated),
        ("while sending: the snapshot of the campaign, p50 / p99", snapshot),
        ("while sending: a control of another campaign, p50 / p99", control),
        ("while sending: a pause of the campaign itself, with its wait, p50 / p99", pause),
    ];
    for (name, times) in names {
        report.single(name, &percentiles(times), None);
    }
    let rate = (after.calls - before.calls) as f64 / (ended - begun).as_secs_f64();
    report.note(format!(
        "During these requests, one after another, the worker sent {} items per second. Idle, an empty request took {:.1} ms and the first \
         snapshot {:.1} ms.",
        crate::report::count(rate),
        idle.as_secs_f64() * 1000.0,
        idle_snapshot.as_secs_f64() * 1000.0
    ));
    database.remove().await
}

async fn operator_key(database: &Database<'_>, stage: Stage) -> anyhow::Result<String> {
    let admin = pool::connect(&database.url("postgres"), pool::Settings::default()).await?;
    let mut transaction = pool::begin_as(&admin, stage.tenant).await?;
    let (_, secret) =
        keys::create(&mut transaction, stage.tenant, "bench", Role::Operator, None, "bench").await?;
    pool::commit(transaction).await?;
    admin.close().await;
    Ok(secret.expose().to_owned())
}

async fn campaign_of(database: &Database<'_>, run: Uuid) -> anyhow::Result<Uuid> {
    let mut admin = database.admin().await?;
    Ok(sqlx::query_scalar("select campaign_id from execution.campaign_runs where id = $1")
        .bind(run)
        .fetch_one(&mut admin)
        .await?)
}

/// A campaign with an external phase `check` that is in progress.
async fn checked_campaign(database: &Database<'_>, stage: Stage) -> anyhow::Result<Uuid> {
    let admin = pool::connect(&database.url("postgres"), pool::Settings::default()).await?;
    let mut transaction = pool::begin_as(&admin, stage.tenant).await?;
    let id = Uuid::now_v7();
    sqlx::query("select execution.create_campaign($1, $2, $3, 'checked', false, $4, 'bench')")
        .bind(stage.tenant.0)
        .bind(id)
        .bind(stage.workspace.0)
        .bind(serde_json::json!([{ "id": Uuid::now_v7(), "phase": "check", "kind": "external" }]))
        .execute(&mut *transaction)
        .await?;
    sqlx::query("select execution.control_phase($1, $2, 'check', 'start', null, 'bench')")
        .bind(stage.tenant.0)
        .bind(id)
        .execute(&mut *transaction)
        .await?;
    pool::commit(transaction).await?;
    admin.close().await;
    Ok(id)
}

/// A client with one keep-alive connection.
struct Client {
    stream: TcpStream,
    address: String,
    key: String,
}

impl Client {
    async fn connect(address: &str, key: &str) -> anyhow::Result<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, address: address.to_owned(), key: key.to_owned() })
    }

    /// Latency of a request, which must return 200.
    async fn time(&mut self, method: &str, path: &str) -> anyhow::Result<Duration> {
        let request = format!(
            "{method} {path} HTTP/1.1\r\nhost: {}\r\nauthorization: Bearer {}\r\ncontent-length: 0\r\n\r\n",
            self.address, self.key
        );
        let begun = Instant::now();
        self.stream.write_all(request.as_bytes()).await?;
        let mut answer = Vec::new();
        loop {
            let read = timeout(PATIENCE, self.stream.read_buf(&mut answer)).await.context("no answer")??;
            anyhow::ensure!(read > 0, "{method} {path}: the connection was closed");
            if is_whole(&answer) {
                break;
            }
        }
        let took = begun.elapsed();
        anyhow::ensure!(
            answer.starts_with(b"HTTP/1.1 200"),
            "{method} {path}: {}",
            String::from_utf8_lossy(&answer)
        );
        Ok(took)
    }
}

/// Whether the response is complete: the head and a body of the announced length.
fn is_whole(answer: &[u8]) -> bool {
    let Some(end) = answer.windows(4).position(|window| window == b"\r\n\r\n") else { return false };
    let head = String::from_utf8_lossy(&answer[..end]).to_ascii_lowercase();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse::<usize>().ok());
    length.is_some_and(|length| answer.len() >= end + 4 + length)
}
