//! Outages: from one moment to another, a face turns away whatever comes to it.
//!
//! Every request that it turns away is a receipt, look-ups too, with its time: how hard a provider that is down is knocked
//! at is what they are there to show. Requests under way when an outage begins are finished, and reports about what was
//! done before still go out.

use std::collections::BTreeMap;
use std::sync::{PoisonError, RwLock};

use anyhow::ensure;
use hyper::body::Incoming;
use hyper::{Request, StatusCode};
use serde::{Deserialize, Serialize};

use super::acting::{Face, Wrong, write_down};
use super::answer::{Answer, Cut, json_answer};
use super::http::{Body, read_body};
use super::receipts::{Receipt, now};
use super::{
    World, bluesky, functions, mastodon, messages, resend, slack, telegram, twilio, webhook, whatsapp,
};

/// Every face that can be away, and where its paths begin.
static FACES: [(&str, &Face); 10] = [
    ("/messages", &messages::FACE),
    ("/resend/", &resend::FACE),
    ("/twilio/", &twilio::FACE),
    ("/mastodon/", &mastodon::FACE),
    ("/bluesky/", &bluesky::FACE),
    ("/slack/", &slack::FACE),
    ("/telegram/", &telegram::FACE),
    ("/whatsapp/", &whatsapp::FACE),
    ("/hooks/", &webhook::FACE),
    ("/functions/", &functions::FACE),
];

/// How a face turns away.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Outage {
    /// With 503.
    Unavailable,
    /// With RST.
    Reset,
    /// Without an answer, for as long as the fault `stall` lasts.
    Silence,
}

/// The outages there are now.
#[derive(Default)]
pub struct Outages(RwLock<BTreeMap<String, Outage>>);

impl Outages {
    /// What `PUT /outages` takes.
    pub const EXAMPLE: &'static str = r#"{"slack": "unavailable"}"#;

    /// Replaces them all. What comes from now on meets these.
    pub fn set(&self, named: BTreeMap<String, Outage>) -> anyhow::Result<()> {
        let known = FACES.map(|(_, face)| face.provider);
        for name in named.keys() {
            ensure!(
                known.contains(&name.as_str()),
                "there is no outage of `{name}`; there may be of {}",
                known.join(", ")
            );
        }
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = named;
        Ok(())
    }

    /// The faces that are away, and how.
    pub fn all(&self) -> BTreeMap<String, Outage> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The face that a path belongs to, if it is away.
    pub fn at(&self, path: &str) -> Option<(&'static Face, Outage)> {
        let outages = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let (_, face) = FACES.iter().find(|(start, _)| path.starts_with(start))?;
        outages.get(face.provider).map(|outage| (*face, *outage))
    }
}

/// Reads a request, writes it down, and does nothing.
pub async fn turn_away(
    world: &World,
    face: &Face,
    outage: Outage,
    request: Request<Incoming>,
) -> Result<Answer, Cut> {
    let (head, body) = request.into_parts();
    let (path, method) = (head.uri.path().to_owned(), Some(head.method.to_string()));
    let provider = Some(face.provider.to_owned());
    let mut receipt = Receipt { path, method, provider, outage: Some(outage), ..Receipt::default() };
    (face.note)(world, &head, &mut receipt);
    let body = read_body(body).await;
    receipt.at = now();
    if let Body::Whole(body) = body {
        // For what it writes down: whether the request is good does not matter now.
        let _ = (face.judge)(world, &head, &body, &mut receipt);
    }
    let status = StatusCode::SERVICE_UNAVAILABLE;
    receipt.answered = (outage == Outage::Unavailable).then_some(status.as_u16());
    if !write_down(world, receipt).await {
        return Err(Cut::Silence);
    }
    match outage {
        Outage::Unavailable => {
            Ok(json_answer(status, &(face.say)(&Wrong::new(status, "the sim has an outage"))))
        }
        Outage::Reset => Err(Cut::Reset),
        Outage::Silence => {
            world.wait(world.pace.stall).await;
            Err(Cut::Silence)
        }
    }
}
