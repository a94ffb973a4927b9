//! The stream of a campaign: the memory of idle readers, the time until an event has reached all of them, and the time from
//! its commit to one reader, compared with a bare LISTEN/NOTIFY. The server is a process `postrider serve`.

use std::time::{Duration, Instant};

use anyhow::Context;
use postrider_model::{
    ids::{TenantId, WorkspaceId},
    tenancy::Role,
};
use postrider_store::{
    campaigns::history,
    postgres::pool,
    tenancy::{keys, tenants},
};
use serde_json::json;
use sqlx::{Connection, PgConnection, postgres::PgListener};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    sync::mpsc,
    task::JoinSet,
    time::timeout,
};
use uuid::Uuid;

use crate::{
    machine,
    place::{Database, Place},
    report::{Report, count},
    server::{Server, percentiles},
};

/// Number of concurrent readers.
const READERS: usize = 5000;
const MEMORY_MB_MAX: f64 = 300.0;
/// Bar for the time until one event has reached all readers.
const REACH_ALL_WITHIN: Duration = Duration::from_secs(2);
/// Events that are sent to all readers, one after another.
const EVENTS_TO_ALL: i64 = 10;
/// Events whose time to one reader is measured.
const EVENTS_TO_ONE: i64 = 500;
/// Interval between two events, so that the server handles each separately.
const PACE: Duration = Duration::from_millis(15);
/// Readers that connect at a time.
const CONNECT_AT_ONCE: usize = 64;
const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) async fn measure(place: &Place, report: &mut Report) -> anyhow::Result<()> {
    allow_many_connections()?;
    let database = place.fresh("bench_stream").await?;
    let stage = Stage::make(&database).await?;
    let mut server = Server::start(&database, place.dir()).await?;
    measure_delay(&stage, &server, &database, report).await?;
    measure_many(&stage, &server, report).await?;
    server.stop().await?;
    database.remove().await
}

/// Measures the time from a commit to the only reader.
async fn measure_delay(
    stage: &Stage,
    server: &Server,
    database: &Database<'_>,
    report: &mut Report,
) -> anyhow::Result<()> {
    let mut writer = stage.writer().await?;
    let (sender, mut arrived) = mpsc::unbounded_channel();
    let mut readers = JoinSet::new();
    readers.spawn(read(connect(server, stage).await?, sender));
    let mut delays = Vec::new();
    for _ in 0..EVENTS_TO_ONE {
        let (sequence, committed) = stage.write(&mut writer).await?;
        let (reached, at) = next(&mut arrived).await?;
        anyhow::ensure!(reached == sequence, "event {reached} came instead of {sequence}");
        delays.push(at.saturating_duration_since(committed));
        tokio::time::sleep(PACE).await;
    }
    readers.shutdown().await;
    writer.close().await?;
    report.single("stream, commit to reader, p50 / p99", &percentiles(delays), None);

    let mut listener = PgListener::connect(&database.url("postrider_worker")).await?;
    listener.listen(history::HINT_CHANNEL).await?;
    let mut writer = stage.writer().await?;
    let mut delays = Vec::new();
    for _ in 0..EVENTS_TO_ONE {
        let listening = async {
            listener.recv().await?;
            anyhow::Ok(Instant::now())
        };
        let (written, notified) = tokio::join!(stage.write(&mut writer), listening);
        delays.push(notified?.saturating_duration_since(written?.1));
        tokio::time::sleep(PACE).await;
    }
    writer.close().await?;
    report.single("stream, commit to a bare LISTEN, p50 / p99", &percentiles(delays), None);
    report.note(
        "A delay begins when the writer has received the answer to its COMMIT; a notification that arrives earlier counts as no delay."
            .to_owned(),
    );
    Ok(())
}

/// Measures memory with many readers, and the time until events reach all of them.
async fn measure_many(stage: &Stage, server: &Server, report: &mut Report) -> anyhow::Result<()> {
    let before = machine::memory_mb(server.pid()?)?;
    let (sender, mut arrived) = mpsc::unbounded_channel();
    let mut readers = JoinSet::new();
    for _ in 0..READERS.div_ceil(CONNECT_AT_ONCE) {
        let left = (READERS - readers.len()).min(CONNECT_AT_ONCE);
        let connecting: Vec<_> = (0..left).map(|_| connect(server, stage)).collect();
        for stream in futures::future::try_join_all(connecting).await? {
            readers.spawn(read(stream, sender.clone()));
        }
    }
    let idle = machine::memory_mb(server.pid()?)?;
    let mut writer = stage.writer().await?;
    let mut slowest = Duration::ZERO;
    for _ in 0..EVENTS_TO_ALL {
        let (sequence, committed) = stage.write(&mut writer).await?;
        let mut last = committed;
        for _ in 0..READERS {
            let (reached, at) = next(&mut arrived).await?;
            anyhow::ensure!(reached == sequence, "event {reached} came instead of {sequence}");
            last = last.max(at);
        }
        slowest = slowest.max(last - committed);
    }
    let most = machine::peak_memory_mb(server.pid()?)?;
    anyhow::ensure!(readers.len() == READERS, "readers were lost");
    readers.shutdown().await;
    writer.close().await?;
    let readers = count(READERS as f64);
    report.single(
        &format!("stream, {readers} idle readers of one process: memory"),
        &format!("{idle:.0} MB"),
        Some((&format!("< {MEMORY_MB_MAX} MB"), idle < MEMORY_MB_MAX)),
    );
    report.single(
        &format!("stream, {readers} readers while events come: most memory"),
        &format!("{most:.0} MB"),
        Some((&format!("< {MEMORY_MB_MAX} MB"), most < MEMORY_MB_MAX)),
    );
    report.single(
        &format!("stream, one event to {readers} readers, slowest of {EVENTS_TO_ALL}"),
        &format!("{:.2} s", slowest.as_secs_f64()),
        Some((&format!("< {} s", REACH_ALL_WITHIN.as_secs()), slowest < REACH_ALL_WITHIN)),
    );
    report.note(format!(
        "The serving process had {before:.0} MB before its readers came: {:.0} kB a reader.",
        (idle - before) * 1024.0 / READERS as f64
    ));
    Ok(())
}

/// A tenant with a key, and a campaign whose phase is paused and resumed.
struct Stage {
    url: String,
    tenant: TenantId,
    key: String,
    campaign: Uuid,
}

impl Stage {
    async fn make(database: &Database<'_>) -> anyhow::Result<Self> {
        let admin = pool::connect(&database.url("postgres"), pool::Settings::default()).await?;
        let mut transaction = pool::begin(&admin).await?;
        let (tenant, workspace) = tenants::create(&mut transaction, "bench", "bench").await?;
        pool::act_as(&mut transaction, tenant).await?;
        let (_, secret) =
            keys::create(&mut transaction, tenant, "bench", Role::Viewer, None, "bench").await?;
        let campaign = Self::campaign(&mut transaction, tenant, workspace).await?;
        pool::commit(transaction).await?;
        admin.close().await;
        let stage = Self { url: database.url("postgres"), tenant, key: secret.expose().to_owned(), campaign };
        let mut writer = stage.writer().await?;
        stage.write(&mut writer).await?;
        writer.close().await?;
        Ok(stage)
    }

    async fn campaign(
        connection: &mut PgConnection,
        tenant: TenantId,
        workspace: WorkspaceId,
    ) -> anyhow::Result<Uuid> {
        let id = Uuid::now_v7();
        sqlx::query("select execution.create_campaign($1, $2, $3, 'bench', false, $4, 'bench')")
            .bind(tenant.0)
            .bind(id)
            .bind(workspace.0)
            .bind(json!([{ "id": Uuid::now_v7(), "phase": "only", "kind": "external" }]))
            .execute(connection)
            .await?;
        Ok(id)
    }

    async fn writer(&self) -> anyhow::Result<PgConnection> {
        crate::place::connect(&self.url).await
    }

    /// Writes one event. Returns its sequence and the time at which the commit was answered.
    async fn write(&self, writer: &mut PgConnection) -> anyhow::Result<(i64, Instant)> {
        let mut transaction = writer.begin().await?;
        let sequence = sqlx::query_scalar(
            "select controlled.sequence
               from (select case status when 'not_started' then 'start' when 'in_progress' then 'pause' else 'resume' end
                       from execution.campaign_phases
                      where tenant_id = $1
                        and campaign_id = $2) as phase (next),
                    lateral execution.control_phase($1, $2, 'only', phase.next, null, 'bench') as controlled",
        )
        .bind(self.tenant.0)
        .bind(self.campaign)
        .fetch_one(&mut *transaction)
        .await?;
        transaction.commit().await?;
        Ok((sequence, Instant::now()))
    }
}

/// Connects a reader and waits for the beginning of the stream.
async fn connect(server: &Server, stage: &Stage) -> anyhow::Result<TcpStream> {
    let mut stream = TcpStream::connect(&server.address).await?;
    let request = format!(
        "GET /api/v2/campaigns/{}/events HTTP/1.1\r\nhost: {}\r\nauthorization: Bearer {}\r\n\r\n",
        stage.campaign, server.address, stage.key
    );
    stream.write_all(request.as_bytes()).await?;
    let mut answer = Vec::new();
    // A stream begins with its reconnection time.
    while !String::from_utf8_lossy(&answer).contains("retry: ") {
        let read = timeout(PATIENCE, stream.read_buf(&mut answer)).await.context("no answer")??;
        anyhow::ensure!(read > 0, "refused: {}", String::from_utf8_lossy(&answer));
    }
    Ok(stream)
}

/// Reports the arrival time of every event.
async fn read(mut stream: TcpStream, arrived: mpsc::UnboundedSender<(i64, Instant)>) {
    let mut text = Vec::with_capacity(1024);
    while stream.read_buf(&mut text).await.is_ok_and(|read| read > 0) {
        let at = Instant::now();
        while let Some(end) = text.windows(2).position(|pair| pair == b"\n\n") {
            let message: Vec<u8> = text.drain(..end + 2).collect();
            let message = String::from_utf8_lossy(&message);
            let id = message.lines().find_map(|line| line.strip_prefix("id: ")?.parse().ok());
            if let Some(id) = id {
                let _ = arrived.send((id, at));
            }
        }
    }
}

async fn next(arrived: &mut mpsc::UnboundedReceiver<(i64, Instant)>) -> anyhow::Result<(i64, Instant)> {
    timeout(PATIENCE, arrived.recv())
        .await
        .context("an event did not come")?
        .context("the readers have ended")
}

/// Raises the limit of open files: every connection needs one here and one in the server.
fn allow_many_connections() -> anyhow::Result<()> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit })?;
    let enough = READERS as u64 + 500;
    anyhow::ensure!(
        limit.maximum.is_none_or(|maximum| maximum >= enough),
        "{READERS} readers need {enough} open files, and the limit is {:?}; raise it with `ulimit -Hn`",
        limit.maximum
    );
    Ok(())
}
