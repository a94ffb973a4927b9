//! The routes that tests and operators use: receipts, faults, health.

use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures::stream::{self, TryStreamExt};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::{Request, StatusCode};
use serde_json::json;
use tokio::io::{AsyncReadExt, Take};

use super::World;
use super::answer::{Answer, json_answer, problem, with_type};
use super::faults::{Fault, Rates};
use super::http::{Body, read_body};
use super::outages::{Outage, Outages};
use super::resend;
use super::results::Results;
use super::rules::Rule;
use super::tally::Counts;
use super::whatsapp::{Webhook, Webhooks};

/// Maximum wait of `GET /receipts?received=N`.
const WAIT_MAX: Duration = Duration::from_secs(30);
const CHUNK_BYTES: usize = 64 * 1024;

/// `GET /healthz`.
pub fn health() -> Answer {
    json_answer(StatusCode::OK, &json!({ "status": "ok" }))
}

/// `GET /receipts`: the counts of the receipts on disk, and the counters since the start. With `?received=N`, `?accepted=N`
/// or `?turned_away=N` it answers as soon as the count is reached, at the latest after 30 s, so that a test need not poll.
pub async fn counts(world: &World, query: Option<&str>) -> Answer {
    let Some(enough) = query.map_or(Some(Counts::default()), parse_enough) else {
        return problem(StatusCode::BAD_REQUEST, "the query takes received=N, accepted=N and turned_away=N");
    };
    let there = |counts: &Counts| {
        counts.received >= enough.received
            && counts.accepted >= enough.accepted
            && counts.turned_away >= enough.turned_away
    };
    tokio::select! {
        () = world.ledger.wait_until(there) => {}
        () = tokio::time::sleep(WAIT_MAX) => {}
        () = world.shutdown.cancelled() => {}
    }
    let (mut counts, counters) = (json!(world.ledger.counts()), world.counters.counts());
    if let (Some(counts), serde_json::Value::Object(counters)) = (counts.as_object_mut(), counters) {
        counts.extend(counters);
    }
    json_answer(StatusCode::OK, &counts)
}

/// The counts to wait for.
fn parse_enough(query: &str) -> Option<Counts> {
    let mut enough = Counts::default();
    for pair in query.split('&') {
        match pair.split_once('=')? {
            ("received", n) => enough.received = n.parse().ok()?,
            ("accepted", n) => enough.accepted = n.parse().ok()?,
            ("turned_away", n) => enough.turned_away = n.parse().ok()?,
            _ => return None,
        }
    }
    Some(enough)
}

/// `GET /receipts/all`: every receipt on disk, as NDJSON.
pub async fn all_receipts(world: &World) -> Answer {
    let bytes = world.ledger.bytes();
    let file = match tokio::fs::File::open(world.ledger.path()).await {
        Ok(file) => file,
        Err(error) => {
            tracing::error!(?error, "the sim could not open its receipts file");
            return problem(StatusCode::INTERNAL_SERVER_ERROR, "the receipts file cannot be opened");
        }
    };
    // Lines after this point may not be on disk yet.
    let chunks = stream::try_unfold(file.take(bytes), next_chunk).map_ok(Frame::data);
    with_type(StatusCode::OK, "application/x-ndjson", BodyExt::boxed(StreamBody::new(chunks)))
}

async fn next_chunk(mut file: Take<tokio::fs::File>) -> io::Result<Option<(Bytes, Take<tokio::fs::File>)>> {
    let mut chunk = BytesMut::with_capacity(CHUNK_BYTES);
    let read = file.read_buf(&mut chunk).await?;
    Ok((read > 0).then(|| (chunk.freeze(), file)))
}

/// `GET /faults`: the rates in force.
pub fn rates(world: &World) -> Answer {
    json_answer(StatusCode::OK, &json!(world.sampler.rates()))
}

/// `PUT /faults`: replaces all rates, such as `{"stall": 0.01, "half": 0.02}`; `{}` ends all faults.
pub async fn set_rates(world: &World, request: Request<Incoming>) -> Answer {
    let body = match whole_body(request).await {
        Ok(body) => body,
        Err(answer) => return answer,
    };
    let Ok(named) = serde_json::from_slice::<BTreeMap<String, f64>>(&body) else {
        return problem(
            StatusCode::BAD_REQUEST,
            "expected a JSON object of rates, such as {\"stall\": 0.01}",
        );
    };
    match Rates::new(named) {
        Ok(rates) => {
            tracing::info!(?rates, "the sim has new fault rates");
            world.sampler.set_rates(rates.clone());
            json_answer(StatusCode::OK, &json!(rates))
        }
        Err(error) => {
            let known = Fault::ALL.map(Fault::name);
            json_answer(StatusCode::BAD_REQUEST, &json!({ "error": error.to_string(), "known": known }))
        }
    }
}

/// `GET /faults/rules`: the rules in force, with their remaining `times`.
pub fn rules(world: &World) -> Answer {
    json_answer(StatusCode::OK, &json!(world.rules.all()))
}

/// `PUT /faults/rules`: replaces all rules, such as `[{"to": "a@example.com", "fault": "stall", "times": 1}]`.
pub async fn set_rules(world: &World, request: Request<Incoming>) -> Answer {
    let body = match whole_body(request).await {
        Ok(body) => body,
        Err(answer) => return answer,
    };
    match serde_json::from_slice::<Vec<Rule>>(&body) {
        Ok(rules) => {
            tracing::info!(?rules, "the sim has new fault rules");
            world.rules.set(rules);
            self::rules(world)
        }
        Err(error) => {
            let error = format!("expected a JSON list of rules, such as {}: {error}", Rule::EXAMPLE);
            problem(StatusCode::BAD_REQUEST, &error)
        }
    }
}

/// `DELETE /faults/rules`: removes all rules.
pub fn clear_rules(world: &World) -> Answer {
    world.rules.set(Vec::new());
    rules(world)
}

/// `GET /outages`: the faces with an outage, and its kind.
pub fn outages(world: &World) -> Answer {
    json_answer(StatusCode::OK, &json!(world.outages.all()))
}

/// `PUT /outages`: replaces all outages, such as `{"slack": "unavailable"}`; `{}` ends them all.
pub async fn set_outages(world: &World, request: Request<Incoming>) -> Answer {
    let body = match whole_body(request).await {
        Ok(body) => body,
        Err(answer) => return answer,
    };
    let refused = |error: &str| {
        let error = format!("expected a JSON object of faces, such as {}: {error}", Outages::EXAMPLE);
        problem(StatusCode::BAD_REQUEST, &error)
    };
    let named = match serde_json::from_slice::<BTreeMap<String, Outage>>(&body) {
        Ok(named) => named,
        Err(error) => return refused(&error.to_string()),
    };
    tracing::info!(?named, "the sim has new outages");
    match world.outages.set(named) {
        Ok(()) => outages(world),
        Err(error) => refused(&error.to_string()),
    }
}

/// `GET /callbacks/whatsapp`: the webhooks, without their secrets.
pub fn webhooks(world: &World) -> Answer {
    json_answer(StatusCode::OK, &json!(world.whatsapp.all()))
}

/// `PUT /callbacks/whatsapp`: replaces all webhooks; `[]` removes them.
pub async fn set_webhooks(world: &World, request: Request<Incoming>) -> Answer {
    let body = match whole_body(request).await {
        Ok(body) => body,
        Err(answer) => return answer,
    };
    let input = serde_json::from_slice::<Vec<Webhook>>(&body).map_err(|error| error.to_string());
    match input.and_then(|webhooks| world.whatsapp.set(webhooks)) {
        Ok(()) => webhooks(world),
        Err(error) => {
            let error = format!("expected a JSON list of webhooks, such as {}: {error}", Webhooks::EXAMPLE);
            problem(StatusCode::BAD_REQUEST, &error)
        }
    }
}

/// `GET /callbacks/resend`: the webhook without its secret, or `null`.
pub fn resend_webhook(world: &World) -> Answer {
    json_answer(StatusCode::OK, &json!(world.resend.get()))
}

/// `PUT /callbacks/resend`: replaces the webhook; `null` removes it.
pub async fn set_resend_webhook(world: &World, request: Request<Incoming>) -> Answer {
    let body = match whole_body(request).await {
        Ok(body) => body,
        Err(answer) => return answer,
    };
    let input = serde_json::from_slice(&body).map_err(|error| error.to_string());
    match input.and_then(|webhook| world.resend.set(webhook)) {
        Ok(()) => resend_webhook(world),
        Err(error) => {
            let example = resend::Webhook::EXAMPLE;
            problem(StatusCode::BAD_REQUEST, &format!("expected a webhook, such as {example}: {error}"))
        }
    }
}

/// `GET /callbacks/results`: the rules for the results of calls and mails.
pub fn results(world: &World) -> Answer {
    json_answer(StatusCode::OK, &json!(world.results.all()))
}

/// `PUT /callbacks/results`: replaces all rules; `[]` removes them.
pub async fn set_results(world: &World, request: Request<Incoming>) -> Answer {
    let body = match whole_body(request).await {
        Ok(body) => body,
        Err(answer) => return answer,
    };
    let input = serde_json::from_slice(&body).map_err(|error| error.to_string());
    match input.and_then(|rules| world.results.set(rules)) {
        Ok(()) => results(world),
        Err(error) => {
            let error = format!("expected a JSON list of results, such as {}: {error}", Results::EXAMPLE);
            problem(StatusCode::BAD_REQUEST, &error)
        }
    }
}

async fn whole_body(request: Request<Incoming>) -> Result<Bytes, Answer> {
    match read_body(request.into_body()).await {
        Body::Whole(body) => Ok(body),
        Body::TooLarge => Err(problem(StatusCode::PAYLOAD_TOO_LARGE, "the body is larger than 1 MiB")),
        Body::Broken => Err(problem(StatusCode::BAD_REQUEST, "the body breaks off")),
    }
}
