//! Callbacks: reports about calls and messages, sent to the URL of the receiver.
//!
//! The sim retries a report that is not answered with 2xx, with backoff. It connects to loopback only, over plain HTTP, so
//! that callers cannot use it to reach other hosts.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, ensure};
use bytes::Bytes;
use http_body_util::Full;
use hyper::client::conn::http1;
use hyper::header::{CONTENT_TYPE, HOST};
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::{TcpStream, lookup_host};
use tokio::sync::Semaphore;
use url::Url;

use super::World;

/// Maximum number of calls and messages with unsent reports; the sim sends no reports for more.
const WAITING_MAX: usize = 50_000;
/// Maximum number of concurrent reports.
const UNDER_WAY_MAX: usize = 32;
const ATTEMPTS_MAX: u32 = 12;
const PAUSE: Duration = Duration::from_millis(200);
const PAUSE_MAX: Duration = Duration::from_secs(10);
/// Timeout of one report.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

/// Limits of the callbacks.
pub struct Callbacks {
    delay: Duration,
    waiting: Arc<Semaphore>,
    under_way: Semaphore,
}

impl Callbacks {
    /// The sim sends the first report of each call after this delay.
    pub fn new(delay: Duration) -> Self {
        let under_way = Semaphore::new(UNDER_WAY_MAX);
        Self { delay, waiting: Arc::new(Semaphore::new(WAITING_MAX)), under_way }
    }
}

/// The reports of one call or message, and their receiver.
pub struct Callback {
    /// URL of the receiver.
    pub url: String,
    /// Id of the call or message.
    pub about: String,
    /// Sent one after the other.
    pub reports: Vec<Report>,
}

/// One request of a callback.
#[derive(Clone)]
pub struct Report {
    /// Content type of the body.
    pub content_type: &'static str,
    /// Names and values of the headers that sign it.
    pub signature: Vec<(&'static str, String)>,
    /// Content of the report.
    pub body: String,
}

/// Sends the reports in the background. Reports that are unsent when the sim stops are lost.
pub fn send(world: &Arc<World>, callback: Callback) {
    let Ok(permit) = Arc::clone(&world.callbacks.waiting).try_acquire_owned() else {
        tracing::warn!("the sim drops the reports of a call because too many are unsent");
        world.counters.count_callback(false);
        return;
    };
    let world_of_task = Arc::clone(world);
    world.tasks.spawn(async move {
        let world = world_of_task;
        tokio::select! {
            () = report(&world, &callback) => {}
            () = world.shutdown.cancelled() => {}
        }
        drop(permit);
    });
}

async fn report(world: &World, callback: &Callback) {
    tokio::time::sleep(world.callbacks.delay).await;
    for report in &callback.reports {
        let accepted = deliver(world, &callback.url, report).await;
        world.counters.count_callback(accepted);
        if !accepted {
            tracing::warn!(about = callback.about, "the sim dropped a report after its last attempt");
        }
    }
}

/// Sends a report with retries. Returns whether the receiver accepted it.
async fn deliver(world: &World, url: &str, report: &Report) -> bool {
    let mut pause = PAUSE;
    for attempt in 1..=ATTEMPTS_MAX {
        let posted = {
            // The semaphore is never closed, so this cannot fail.
            let _permit = world.callbacks.under_way.acquire().await;
            tokio::time::timeout(ANSWER_WITHIN, post(url, report)).await
        };
        match posted {
            Ok(Ok(status)) if status.is_success() => return true,
            other => tracing::debug!(?other, attempt, "the receiver did not accept a report"),
        }
        if attempt < ATTEMPTS_MAX {
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }
    false
}

async fn post(url: &str, report: &Report) -> anyhow::Result<StatusCode> {
    let url = Url::parse(url)?;
    let stream = connect(&url).await?;
    let target = &url[url::Position::BeforePath..url::Position::AfterQuery];
    let mut request = Request::post(target)
        .header(HOST, &url[url::Position::BeforeHost..url::Position::AfterPort])
        .header(CONTENT_TYPE, report.content_type);
    for (name, value) in &report.signature {
        request = request.header(*name, value);
    }
    let request = request.body(Full::new(Bytes::from(report.body.clone())))?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let mut answer = pin!(sender.send_request(request));
    let answer = tokio::select! {
        answer = &mut answer => answer,
        // The connection may end with the answer, which then has arrived already.
        _ = connection => answer.await,
    };
    Ok(answer?.status())
}

async fn connect(url: &Url) -> anyhow::Result<TcpStream> {
    ensure!(url.scheme() == "http", "the sim sends callbacks over http only");
    let host = url.host_str().context("the URL has no host")?.trim_matches(['[', ']']);
    let port = url.port_or_known_default().context("the URL has no port")?;
    let mut addresses = lookup_host((host, port)).await?;
    let address = addresses.find(|address| address.ip().is_loopback());
    Ok(TcpStream::connect(address.context("the sim sends callbacks to loopback only")?).await?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn callbacks_stay_on_this_machine() {
        for url in ["https://127.0.0.1:1/a", "http://192.0.2.1/a", "http://[2001:db8::1]/a"] {
            assert!(connect(&Url::parse(url).unwrap()).await.is_err(), "{url}");
        }
    }
}
