//! Outages: while one is set, a face turns away all requests.
//!
//! Every request that it turns away has a receipt with its time, look-ups too: the receipts show the request rate at a
//! provider that is down. Requests under way when an outage begins are finished, and the sim still sends reports about
//! earlier actions.

use std::collections::BTreeMap;
use std::sync::{PoisonError, RwLock};

use anyhow::ensure;
use hyper::body::Incoming;
use hyper::{Request, StatusCode};
use serde::{Deserialize, Serialize};

use super::acting::{ErrorAnswer, Face, write_receipt};
use super::answer::{Answer, Cut, json_answer};
use super::http::{Body, read_body};
use super::receipts::{Receipt, now};
use super::{
    World, bluesky, functions, mastodon, messages, resend, slack, telegram, twilio, webhook, whatsapp,
};

/// Every face that can have an outage, and the prefix of its paths.
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

/// How a face turns away requests.
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

/// The current outages.
#[derive(Default)]
pub struct Outages(RwLock<BTreeMap<String, Outage>>);

impl Outages {
    /// An example of a body for `PUT /outages`.
    pub const EXAMPLE: &'static str = r#"{"slack": "unavailable"}"#;

    /// Replaces all outages, for the requests from now on.
    pub fn set(&self, named: BTreeMap<String, Outage>) -> anyhow::Result<()> {
        let known = FACES.map(|(_, face)| face.provider);
        for name in named.keys() {
            ensure!(
                known.contains(&name.as_str()),
                "`{name}` cannot have an outage; these faces can: {}",
                known.join(", ")
            );
        }
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = named;
        Ok(())
    }

    /// The faces with an outage, and its kind.
    pub fn all(&self) -> BTreeMap<String, Outage> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The face of a path and its outage, if it has one.
    pub fn at(&self, path: &str) -> Option<(&'static Face, Outage)> {
        let outages = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let (_, face) = FACES.iter().find(|(start, _)| path.starts_with(start))?;
        outages.get(face.provider).map(|outage| (*face, *outage))
    }
}

/// Reads a request, writes its receipt and does not act.
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
    (face.read_head)(world, &head, &mut receipt);
    let body = read_body(body).await;
    receipt.at = now();
    if let Body::Whole(body) = body {
        // For the fields of the receipt only: an outage also turns away invalid requests.
        let _ = (face.validate)(world, &head, &body, &mut receipt);
    }
    let status = StatusCode::SERVICE_UNAVAILABLE;
    receipt.answered = (outage == Outage::Unavailable).then_some(status.as_u16());
    if !write_receipt(world, receipt).await {
        return Err(Cut::Silence);
    }
    match outage {
        Outage::Unavailable => {
            Ok(json_answer(status, &(face.error_body)(&ErrorAnswer::new(status, "the sim has an outage"))))
        }
        Outage::Reset => Err(Cut::Reset),
        Outage::Silence => {
            world.wait(world.pace.stall).await;
            Err(Cut::Silence)
        }
    }
}
