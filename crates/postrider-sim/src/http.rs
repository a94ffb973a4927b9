//! The HTTP side of the sim: connections, their limits, and the list of routes.

use std::error::Error as _;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{HeaderMap, Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use super::acting::receive;
use super::answer::{Answer, Cut, not_allowed, problem};
use super::{
    World, bluesky, control, functions, mastodon, messages, outages, resend, slack, telegram, twilio,
    webhook, whatsapp,
};

const BODY_BYTES_MAX: usize = 1024 * 1024;
const HEADERS_MAX: usize = 64;
const HEADER_BYTES_MAX: usize = 16 * 1024;
/// Bytes of a body that are read beyond the limit, so that its client gets the 413 and no reset.
const DISCARD_BYTES_MAX: usize = 16 * BODY_BYTES_MAX;
/// Maximum wait of a shutdown for the requests under way.
const DRAIN_FOR: Duration = Duration::from_secs(2);

/// Every route.
async fn route(world: Arc<World>, request: Request<Incoming>) -> Result<Answer, Cut> {
    let path = request.uri().path().to_owned();
    let method = request.method().clone();
    if let Some((face, outage)) = world.outages.at(&path) {
        return outages::turn_away(&world, face, outage, request).await;
    }
    match path.as_str() {
        "/healthz" if method == Method::GET => Ok(control::health()),
        "/healthz" => Ok(not_allowed("GET")),
        "/receipts" if method == Method::GET => Ok(control::counts(&world, request.uri().query()).await),
        "/receipts" => Ok(not_allowed("GET")),
        "/receipts/all" if method == Method::GET => Ok(control::all_receipts(&world).await),
        "/receipts/all" => Ok(not_allowed("GET")),
        "/faults" if method == Method::GET => Ok(control::rates(&world)),
        "/faults" if method == Method::PUT => Ok(control::set_rates(&world, request).await),
        "/faults" => Ok(not_allowed("GET, PUT")),
        "/faults/rules" if method == Method::GET => Ok(control::rules(&world)),
        "/faults/rules" if method == Method::PUT => Ok(control::set_rules(&world, request).await),
        "/faults/rules" if method == Method::DELETE => Ok(control::clear_rules(&world)),
        "/faults/rules" => Ok(not_allowed("GET, PUT, DELETE")),
        "/outages" if method == Method::GET => Ok(control::outages(&world)),
        "/outages" if method == Method::PUT => Ok(control::set_outages(&world, request).await),
        "/outages" => Ok(not_allowed("GET, PUT")),
        "/callbacks/whatsapp" if method == Method::GET => Ok(control::webhooks(&world)),
        "/callbacks/whatsapp" if method == Method::PUT => Ok(control::set_webhooks(&world, request).await),
        "/callbacks/whatsapp" => Ok(not_allowed("GET, PUT")),
        "/callbacks/resend" if method == Method::GET => Ok(control::resend_webhook(&world)),
        "/callbacks/resend" if method == Method::PUT => {
            Ok(control::set_resend_webhook(&world, request).await)
        }
        "/callbacks/resend" => Ok(not_allowed("GET, PUT")),
        "/callbacks/results" if method == Method::GET => Ok(control::results(&world)),
        "/callbacks/results" if method == Method::PUT => Ok(control::set_results(&world, request).await),
        "/callbacks/results" => Ok(not_allowed("GET, PUT")),
        "/messages" if method == Method::POST => receive(&world, &messages::FACE, request).await,
        "/messages" if method == Method::GET => messages::find(&world, &request).await,
        "/messages" => Ok(not_allowed("GET, POST")),
        "/resend/emails" if method == Method::POST => receive(&world, &resend::FACE, request).await,
        "/resend/emails" => Ok(not_allowed("POST")),
        "/mastodon/api/v1/statuses" if method == Method::POST => {
            receive(&world, &mastodon::FACE, request).await
        }
        "/mastodon/api/v1/statuses" => Ok(not_allowed("POST")),
        "/mastodon/api/v1/accounts/verify_credentials" if method == Method::GET => {
            mastodon::verify_credentials(&world, &request).await
        }
        "/mastodon/api/v1/accounts/verify_credentials" => Ok(not_allowed("GET")),
        "/bluesky/xrpc/com.atproto.server.createSession" if method == Method::POST => {
            bluesky::sign_in(&world, request).await
        }
        "/bluesky/xrpc/com.atproto.server.createSession" => Ok(not_allowed("POST")),
        "/bluesky/xrpc/com.atproto.repo.putRecord" if method == Method::POST => {
            receive(&world, &bluesky::FACE, request).await
        }
        "/bluesky/xrpc/com.atproto.repo.putRecord" => Ok(not_allowed("POST")),
        "/bluesky/xrpc/com.atproto.repo.getRecord" if method == Method::GET => {
            bluesky::find(&world, &request).await
        }
        "/bluesky/xrpc/com.atproto.repo.getRecord" => Ok(not_allowed("GET")),
        "/slack/chat.postMessage" if method == Method::POST => receive(&world, &slack::FACE, request).await,
        "/slack/chat.postMessage" => Ok(not_allowed("POST")),
        "/slack/conversations.history" if [Method::GET, Method::POST].contains(&method) => {
            slack::history(&world, request).await
        }
        "/slack/conversations.history" => Ok(not_allowed("GET, POST")),
        "/slack/conversations.replies" if [Method::GET, Method::POST].contains(&method) => {
            slack::replies(&world, request).await
        }
        "/slack/conversations.replies" => Ok(not_allowed("GET, POST")),
        send if telegram::is_send(send) => match method {
            Method::POST => receive(&world, &telegram::FACE, request).await,
            _ => Ok(not_allowed("POST")),
        },
        messages if whatsapp::is_messages(messages) => match method {
            Method::POST => receive(&world, &whatsapp::FACE, request).await,
            _ => Ok(not_allowed("POST")),
        },
        calls if twilio::is_calls(calls) => match method {
            Method::POST => receive(&world, &twilio::FACE, request).await,
            Method::GET => twilio::list(&world, &request).await,
            _ => Ok(not_allowed("GET, POST")),
        },
        timeline if mastodon::is_timeline(timeline) => match method {
            Method::GET => mastodon::timeline(&world, &request).await,
            _ => Ok(not_allowed("GET")),
        },
        hook if webhook::is_hook(hook) => match method {
            Method::POST => receive(&world, &webhook::FACE, request).await,
            _ => Ok(not_allowed("POST")),
        },
        function if functions::is_function(function) => match method {
            Method::POST => receive(&world, &functions::FACE, request).await,
            _ => Ok(not_allowed("POST")),
        },
        _ => Ok(problem(
            StatusCode::NOT_FOUND,
            "there is no such path; `postrider sim --help` lists the faces, such as /hooks/{name} and /messages",
        )),
    }
}

/// Answers the requests of one connection.
pub async fn serve_connection(world: Arc<World>, stream: TcpStream) {
    // Answers are small; waiting to fill a packet would only add latency.
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(?error, "the sim could not set TCP_NODELAY");
    }
    let shutdown = world.shutdown.clone();
    let service = service_fn(move |request| Box::pin(route(Arc::clone(&world), request)));
    let mut connection = http1::Builder::new()
        .max_headers(HEADERS_MAX)
        .max_header_size(HEADER_BYTES_MAX)
        .serve_connection(TokioIo::new(stream), service);

    let ended = tokio::select! {
        ended = poll_fn(|cx| connection.poll_without_shutdown(cx)) => Some(ended),
        () = shutdown.cancelled() => None,
    };
    let ended = match ended {
        Some(ended) => ended,
        None => {
            Pin::new(&mut connection).graceful_shutdown();
            let rest = poll_fn(|cx| connection.poll_without_shutdown(cx));
            tokio::time::timeout(DRAIN_FOR, rest).await.unwrap_or(Ok(()))
        }
    };
    let Err(error) = ended else { return };
    let Some(cut) = error.source().and_then(|source| source.downcast_ref::<Cut>()) else {
        tracing::debug!(?error, "a connection to the sim broke");
        return;
    };
    if let Err(error) = end_badly(connection.into_parts().io.into_inner(), cut).await {
        tracing::debug!(?error, "a client disconnected before the sim could cut its connection");
    }
}

async fn end_badly(mut stream: TcpStream, cut: &Cut) -> io::Result<()> {
    match cut {
        // With a linger time of zero, close sends RST and drops unsent data.
        Cut::Reset => stream.set_zero_linger(),
        Cut::Half(bytes) => {
            stream.write_all(bytes).await?;
            stream.shutdown().await
        }
        Cut::Silence => Ok(()),
    }
}

/// The body of a request.
pub enum Body {
    /// Complete.
    Whole(Bytes),
    /// More than 1 MiB.
    TooLarge,
    /// Incomplete or malformed.
    Broken,
}

/// The text of a header, if it has one.
pub fn text_of(headers: &HeaderMap, name: &str) -> Option<String> {
    let value = headers.get(name)?.to_str().ok()?;
    (!value.is_empty()).then(|| value.to_owned())
}

/// The first value under a name in a query.
pub fn query_value(query: Option<&str>, name: &str) -> Option<String> {
    let mut pairs = url::form_urlencoded::parse(query?.as_bytes());
    pairs.find(|(key, _)| key == name).map(|(_, value)| value.into_owned())
}

/// Reads a body of bounded size.
pub async fn read_body(mut body: Incoming) -> Body {
    let mut kept = BytesMut::new();
    let mut seen = 0;
    while let Some(frame) = body.frame().await {
        let Ok(frame) = frame else { return Body::Broken };
        let Ok(data) = frame.into_data() else { continue };
        seen += data.len();
        if seen <= BODY_BYTES_MAX {
            kept.extend_from_slice(&data);
        } else if seen > DISCARD_BYTES_MAX {
            return Body::TooLarge;
        }
    }
    if seen <= BODY_BYTES_MAX { Body::Whole(kept.freeze()) } else { Body::TooLarge }
}
