//! Status callbacks: what became of a call, sent to the URL that came with it, signed as Twilio signs.
//!
//! A callback that is not answered with 2xx is sent again, later and later. They go to loopback only, over plain HTTP:
//! the sim must not be a way to reach anything else.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, ensure};
use base64::{Engine, engine::general_purpose::STANDARD};
use bytes::Bytes;
use hmac::{Hmac, KeyInit, Mac};
use http_body_util::Full;
use hyper::client::conn::http1;
use hyper::header::{CONTENT_TYPE, HOST};
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use jiff::Timestamp;
use secrecy::{ExposeSecret, SecretString};
use sha1::Sha1;
use tokio::net::{TcpStream, lookup_host};
use tokio::sync::Semaphore;
use url::Url;

use super::World;
use super::twilio::{Call, rfc_2822};

/// How many calls may have callbacks to send; what is more has none.
const WAITING_MAX: usize = 10_000;
/// How many callbacks are under way at once.
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

/// Something that happens to a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// It began.
    Initiated,
    /// It ended.
    Completed,
}

impl Event {
    /// Its name in `StatusCallbackEvent`, and in `CallStatus`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Initiated => "initiated",
            Self::Completed => "completed",
        }
    }
}

/// What is to be reported, where, and under whose signature.
pub struct Callback {
    /// As it was given: the signature is over these characters.
    pub url: String,
    /// One callback for each, in this order.
    pub events: Vec<Event>,
    /// The call.
    pub call: Call,
    /// The auth token of the account.
    pub token: SecretString,
}

/// Sends the callbacks of a call in the background. What is not sent when the sim stops never is.
pub fn send(world: &Arc<World>, callback: Callback) {
    let Ok(room) = Arc::clone(&world.callbacks.waiting).try_acquire_owned() else {
        tracing::warn!("the sim has too many callbacks to send and leaves those of a call out");
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
    for (nth, event) in callback.events.iter().enumerate() {
        let taken = deliver(world, callback, &parameters(&callback.call, *event, nth)).await;
        world.noted.count_callback(taken);
        if !taken {
            tracing::warn!(call = callback.call.sid, "the sim gave up a status callback");
        }
    }
}

/// Whether it was taken, sooner or later.
async fn deliver(world: &World, callback: &Callback, parameters: &[(&'static str, String)]) -> bool {
    let mut pause = PAUSE;
    for attempt in 1..=ATTEMPTS_MAX {
        let posted = {
            // Closed never, so this cannot fail.
            let _turn = world.callbacks.under_way.acquire().await;
            tokio::time::timeout(ANSWER_WITHIN, post(callback, parameters)).await
        };
        match posted {
            Ok(Ok(status)) if status.is_success() => return true,
            other => tracing::debug!(?other, attempt, "a status callback was not taken"),
        }
        if attempt < ATTEMPTS_MAX {
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }
    false
}

fn parameters(call: &Call, event: Event, nth: usize) -> Vec<(&'static str, String)> {
    let mut parameters = vec![
        ("AccountSid", call.account.clone()),
        ("ApiVersion", "2010-04-01".to_owned()),
        ("CallSid", call.sid.clone()),
        ("CallStatus", event.name().to_owned()),
        ("CallbackSource", "call-progress-events".to_owned()),
        ("Called", call.to.clone()),
        ("Caller", call.from.clone()),
        ("Direction", "outbound-api".to_owned()),
        ("From", call.from.clone()),
        ("SequenceNumber", nth.to_string()),
        ("Timestamp", rfc_2822(Timestamp::now())),
        ("To", call.to.clone()),
    ];
    if event == Event::Completed {
        parameters.push(("CallDuration", "1".to_owned()));
        parameters.push(("Duration", "1".to_owned()));
    }
    parameters
}

/// The URL and every parameter, by name, under the account's auth token.
fn signature(
    url: &str,
    parameters: &[(&'static str, String)],
    token: &SecretString,
) -> anyhow::Result<String> {
    let mut sorted: Vec<_> = parameters.iter().collect();
    sorted.sort();
    let mut signed = Hmac::<Sha1>::new_from_slice(token.expose_secret().as_bytes())?;
    signed.update(url.as_bytes());
    for (name, value) in sorted {
        signed.update(name.as_bytes());
        signed.update(value.as_bytes());
    }
    Ok(STANDARD.encode(signed.finalize().into_bytes()))
}

async fn post(callback: &Callback, parameters: &[(&'static str, String)]) -> anyhow::Result<StatusCode> {
    let url = Url::parse(&callback.url)?;
    let stream = connect(&url).await?;
    let body = url::form_urlencoded::Serializer::new(String::new()).extend_pairs(parameters).finish();
    let target = &url[url::Position::BeforePath..url::Position::AfterQuery];
    let request = Request::post(target)
        .header(HOST, &url[url::Position::BeforeHost..url::Position::AfterPort])
        .header(CONTENT_TYPE, "application/x-www-form-urlencoded; charset=UTF-8")
        .header("x-twilio-signature", signature(&callback.url, parameters, &callback.token)?)
        .body(Full::new(Bytes::from(body)))?;
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
    ensure!(url.scheme() == "http", "status callbacks of the sim go over http only");
    let host = url.host_str().context("the URL has no host")?.trim_matches(['[', ']']);
    let port = url.port_or_known_default().context("the URL has no port")?;
    let mut addresses = lookup_host((host, port)).await?;
    let address = addresses.find(|address| address.ip().is_loopback());
    Ok(TcpStream::connect(address.context("status callbacks of the sim go to loopback only")?).await?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_signature_is_that_of_twilio_s_documentation() {
        // The example of "Validating signatures from Twilio".
        let url = "https://example.com/myapp.php?foo=1&bar=2";
        let parameters = [
            ("CallSid", "CA1234567890ABCDE"),
            ("Caller", "+14158675310"),
            ("Digits", "1234"),
            ("From", "+14158675310"),
            ("To", "+18005551212"),
        ];
        let parameters = parameters.map(|(name, value)| (name, value.to_owned()));
        assert_eq!(signature(url, &parameters, &"12345".into()).unwrap(), "L/OH5YylLD5NRKLltdqwSvS0BnU=");
    }

    #[tokio::test]
    async fn callbacks_stay_on_this_machine() {
        for url in ["https://127.0.0.1:1/a", "http://192.0.2.1/a", "http://[2001:db8::1]/a"] {
            assert!(connect(&Url::parse(url).unwrap()).await.is_err(), "{url}");
        }
    }
}
