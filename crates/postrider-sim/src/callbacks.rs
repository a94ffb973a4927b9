//! Callbacks: what became of a call or a message, sent to whoever is to hear of it.
//!
//! A report that is not answered with 2xx is sent again, later and later. They go to loopback only, over plain HTTP:
//! the sim must not be a way to reach anything else.

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

/// How many calls and messages may have reports to send; what is more has none.
const WAITING_MAX: usize = 50_000;
/// How many reports are under way at once.
const UNDER_WAY_MAX: usize = 32;
const ATTEMPTS_MAX: u32 = 12;
const PAUSE: Duration = Duration::from_millis(200);
const PAUSE_MAX: Duration = Duration::from_secs(10);
/// How long a receiver may take.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

/// The room for callbacks.
pub struct Callbacks {
    delay: Duration,
    waiting: Arc<Semaphore>,
    under_way: Semaphore,
}

impl Callbacks {
    /// The first of each call goes out after this delay.
    pub fn new(delay: Duration) -> Self {
        let under_way = Semaphore::new(UNDER_WAY_MAX);
        Self { delay, waiting: Arc::new(Semaphore::new(WAITING_MAX)), under_way }
    }
}

/// What is to be reported, and where.
pub struct Callback {
    /// Where to.
    pub url: String,
    /// The name of what was done.
    pub about: String,
    /// One after the other.
    pub reports: Vec<Report>,
}

/// One request of a callback.
pub struct Report {
    /// What the body is.
    pub content_type: &'static str,
    /// The header that proves where it comes from, and its value.
    pub signature: (&'static str, String),
    /// What is reported.
    pub body: String,
}

/// Sends the reports in the background. What is not sent when the sim stops never is.
pub fn send(world: &Arc<World>, callback: Callback) {
    let Ok(room) = Arc::clone(&world.callbacks.waiting).try_acquire_owned() else {
        tracing::warn!("the sim has too many reports to send and leaves some out");
        world.noted.count_callback(false);
        return;
    };
    let world_of_task = Arc::clone(world);
    world.tasks.spawn(async move {
        let world = world_of_task;
        tokio::select! {
            () = report(&world, &callback) => {}
            () = world.shutdown.cancelled() => {}
        }
        drop(room);
    });
}

async fn report(world: &World, callback: &Callback) {
    tokio::time::sleep(world.callbacks.delay).await;
    for report in &callback.reports {
        let taken = deliver(world, &callback.url, report).await;
        world.noted.count_callback(taken);
        if !taken {
            tracing::warn!(about = callback.about, "the sim gave up a report");
        }
    }
}

/// Whether it was taken, sooner or later.
async fn deliver(world: &World, url: &str, report: &Report) -> bool {
    let mut pause = PAUSE;
    for attempt in 1..=ATTEMPTS_MAX {
        let posted = {
            // Closed never, so this cannot fail.
            let _turn = world.callbacks.under_way.acquire().await;
            tokio::time::timeout(ANSWER_WITHIN, post(url, report)).await
        };
        match posted {
            Ok(Ok(status)) if status.is_success() => return true,
            other => tracing::debug!(?other, attempt, "a report was not taken"),
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
    let request = Request::post(target)
        .header(HOST, &url[url::Position::BeforeHost..url::Position::AfterPort])
        .header(CONTENT_TYPE, report.content_type)
        .header(report.signature.0, &report.signature.1)
        .body(Full::new(Bytes::from(report.body.clone())))?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let mut answer = pin!(sender.send_request(request));
    let answer = tokio::select! {
        answer = &mut answer => answer,
        // A connection may end with the answer; then the answer is there already.
        _ = connection => answer.await,
    };
    Ok(answer?.status())
}

async fn connect(url: &Url) -> anyhow::Result<TcpStream> {
    ensure!(url.scheme() == "http", "callbacks of the sim go over http only");
    let host = url.host_str().context("the URL has no host")?.trim_matches(['[', ']']);
    let port = url.port_or_known_default().context("the URL has no port")?;
    let mut addresses = lookup_host((host, port)).await?;
    let address = addresses.find(|address| address.ip().is_loopback());
    Ok(TcpStream::connect(address.context("callbacks of the sim go to loopback only")?).await?)
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
