//! `GET /stream`: the overview of a tenant and the events of several campaigns in one stream.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use axum::{body::Bytes, extract::State, response::Response};
use futures::{Stream, stream};
use jiff::Timestamp;
use postrider_model::ids::CampaignId;
use postrider_store::{campaigns::history, postgres::pool};
use serde::{
    Deserialize, Deserializer, Serialize,
    de::{Error as _, MapAccess, Visitor},
};
use tokio::sync::watch;
use utoipa::{IntoParams, ToSchema};

use super::{
    answer,
    follower::{Follower, Next},
    frame::{self, EndReason},
    hub::ReaderSlot,
    news::{News, Topic},
    number,
    reader::{AGAIN_AFTER, bye, first_retry},
    start,
};
use crate::{
    App,
    common::{
        auth::Viewer,
        body::Query,
        error::{ApiError, ApiResult},
    },
};

/// Maximum number of campaigns of one stream.
const CAMPAIGNS_MAX: usize = 20;
/// Maximum time without an overview on a stream: comments are invisible to scripts, so they would not notice a broken connection.
const OVERVIEW_EVERY: Duration = Duration::from_secs(15);

/// The campaigns of the stream.
#[derive(Debug, Default, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct Following {
    /// A campaign and the sequence of the last event that is known, as `ID:AFTER`; up to 20 times.
    #[param(max_items = 20, value_type = Vec<String>, required = false)]
    campaign: Vec<String>,
}

impl<'de> Deserialize<'de> for Following {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Pairs;

        impl<'de> Visitor<'de> for Pairs {
            type Value = Following;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("campaign=ID:AFTER")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut pairs: A) -> Result<Following, A::Error> {
                let mut campaign = Vec::new();
                while let Some((name, value)) = pairs.next_entry::<String, String>()? {
                    if name != "campaign" {
                        return Err(A::Error::unknown_field(&name, &["campaign"]));
                    }
                    campaign.push(value);
                }
                Ok(Following { campaign })
            }
        }

        deserializer.deserialize_map(Pairs)
    }
}

impl Following {
    /// Each campaign with the number of the last known event.
    fn positions(&self) -> ApiResult<Vec<(CampaignId, i64)>> {
        if self.campaign.len() > CAMPAIGNS_MAX {
            return Err(ApiError::invalid(
                "campaign",
                format!("may be given {CAMPAIGNS_MAX} times; open another stream for the others"),
            ));
        }
        let mut positions: Vec<(CampaignId, i64)> = Vec::with_capacity(self.campaign.len());
        for given in &self.campaign {
            let (id, after) = given.split_once(':').ok_or_else(|| {
                ApiError::invalid(
                    "campaign",
                    "must be the id of a campaign, a colon and the sequence of the last known event",
                )
            })?;
            let after = number("campaign", after)?;
            // A text that is not an id is answered like an unknown id.
            let id = uuid::Uuid::parse_str(id).map_err(|_| ApiError::NotFound("campaign"))?;
            if positions.iter().any(|(known, _)| known.0 == id) {
                return Err(ApiError::invalid("campaign", "names the same campaign twice"));
            }
            positions.push((CampaignId(id), after));
        }
        Ok(positions)
    }
}

/// For the document: one message of the stream, by its fields.
#[derive(ToSchema)]
#[expect(dead_code, reason = "only its schema is used")]
pub(crate) struct TenantStreamMessage {
    /// The kind of the message; comments have none.
    #[schema(nullable = false)]
    event: Option<TenantStreamEvent>,
    /// JSON in one line: a `StreamHello`, `StreamOverview`, `StreamChanged`, `CampaignEvent`, `StreamSnapshotRequired` or `StreamBye`.
    data: String,
    /// Milliseconds to wait before the reader reconnects when the connection ends.
    #[schema(minimum = 0, nullable = false)]
    retry: Option<u32>,
}

/// The kind of a message of a tenant's stream.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[expect(dead_code, reason = "only its schema is used")]
pub(crate) enum TenantStreamEvent {
    /// The first message: `StreamHello`.
    Hello,
    /// The numbers of the tenant: `StreamOverview`.
    Overview,
    /// Lists that have changed: `StreamChanged`.
    Changed,
    /// An event of a campaign: `CampaignEvent`.
    Campaign,
    /// A campaign is no longer in this stream: `StreamSnapshotRequired`.
    SnapshotRequired,
    /// The server closes the stream: `StreamBye`.
    Bye,
}

/// The first message of a tenant's stream.
#[derive(Serialize, ToSchema)]
pub(crate) struct StreamHello {
    /// Time of the server.
    time: Timestamp,
    /// Version of the server.
    version: &'static str,
    /// Build of the dashboard in the server; absent where it has none.
    build: Option<&'static str>,
    /// Milliseconds to wait before the reader reconnects when the connection ends.
    retry: u64,
}

/// Lists that have changed since the last such message. It is a hint: take a list again from time to time anyway.
#[derive(Serialize, ToSchema)]
pub(crate) struct StreamChanged {
    topics: Vec<Topic>,
}

/// Streams the overview of the tenant and the events of campaigns as server-sent events.
///
/// Every message has a name. `hello` is the first one. `overview` has the numbers of `GET /overview`: when they change, and every 15 s
/// at least, so a longer silence is a broken connection. `changed` names lists that have changed. `campaign` is an event of one of the
/// campaigns, as in `GET /campaigns/{id}/events`, in the order of its sequence after AFTER. `snapshot_required` ends one campaign in this
/// stream, which goes on: take `GET /campaigns/{id}/status` and open another stream after its `sequence`. `bye`: the server closes the
/// stream.
#[utoipa::path(
    get,
    path = "/stream",
    operation_id = "stream_tenant",
    tag = "overview",
    params(Following),
    responses(
        (status = 200, description = "The tenant's overview and events, as a stream that does not end by itself", body = TenantStreamMessage, content_type = "text/event-stream"),
        (status = 404, description = "The tenant has no such campaign"),
        (status = 429, description = "Too many requests with this key, or too many readers of this tenant; `Retry-After` says how long to wait"),
        (status = 503, description = "The process has reached its limit of readers, shuts down, or has no database; try again later"),
    ),
)]
pub(crate) async fn stream_tenant(
    State(app): State<App>,
    Viewer(caller): Viewer,
    Query(following): Query<Following>,
) -> ApiResult<Response> {
    let positions = following.positions()?;
    if app.draining.is_cancelled() {
        return Err(ApiError::NotReady("the process is shutting down; try again in a moment".to_owned()));
    }
    let mut extents = Vec::new();
    if !positions.is_empty() {
        let campaigns: Vec<CampaignId> = positions.iter().map(|(campaign, _)| *campaign).collect();
        let mut transaction = pool::begin_as(&app.pool, caller.tenant_id).await?;
        extents = history::extents(&mut transaction, caller.tenant_id, &campaigns).await?;
        pool::commit(transaction).await?;
    }
    let (mut lost, mut followed) = (Vec::new(), Vec::new());
    for (campaign, after) in positions {
        let extent = extents.iter().find(|extent| extent.campaign == campaign);
        let extent = *extent.ok_or(ApiError::NotFound("campaign"))?;
        match start(Some(after), extent) {
            Ok(at) => followed.push((extent, at)),
            Err(reason) => lost.push(frame::snapshot_required(campaign, reason)),
        }
    }
    let extents: Vec<_> = followed.iter().map(|(extent, _)| *extent).collect();
    let (slot, feeds) = app.stream.register(&caller, &extents, true)?;
    let followers = followed
        .into_iter()
        .zip(feeds)
        .map(|((extent, at), feed)| Follower::new(extent.campaign, feed, at, at == extent.newest))
        .collect();
    let retry = first_retry();
    let hello = StreamHello {
        time: Timestamp::now(),
        version: env!("CARGO_PKG_VERSION"),
        build: app.build,
        retry: u64::try_from(retry.as_millis()).unwrap_or(u64::MAX),
    };
    let mut queue = VecDeque::from([frame::hello_tenant(&hello, retry)?]);
    queue.extend(lost);
    let news = slot.news();
    let reader =
        TenantReader { slot, news, followers, queue, seen: None, told_at: Instant::now(), is_over: false };
    Ok(answer(axum::body::Body::from_stream(reader.frames())))
}

/// The reader of a tenant's stream, and its next message.
struct TenantReader {
    slot: ReaderSlot,
    news: watch::Receiver<News>,
    followers: Vec<Follower>,
    /// Messages that are ready.
    queue: VecDeque<Bytes>,
    /// Version of the overview that was sent last.
    seen: Option<u64>,
    /// When an overview was last sent.
    told_at: Instant,
    is_over: bool,
}

impl TenantReader {
    fn frames(self) -> impl Stream<Item = Result<Bytes, std::convert::Infallible>> + Send {
        stream::unfold(self, async |mut reader| {
            let frame = reader.next().await?;
            Some((Ok(frame), reader))
        })
    }

    /// The next message; `None` after the last.
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            if let Some(frame) = self.queue.pop_front() {
                return Some(frame);
            }
            if self.is_over {
                return None;
            }
            if let Some(reason) = self.slot.end() {
                return Some(self.bye(reason));
            }
            // Before the feeds, so that an event that comes meanwhile wakes the reader.
            self.take_news();
            let is_later = self.take_events().await;
            if self.queue.is_empty() && !self.wait(is_later).await {
                return Some(self.bye(EndReason::Shutdown));
            }
        }
    }

    /// Queues the overview if it has changed or was not sent for long, and the lists that have changed.
    fn take_news(&mut self) {
        let silence_max = self.silence_max();
        let news = self.news.borrow_and_update();
        let Some((frame, version)) = news.newest() else { return };
        if self.seen == Some(version) && self.told_at.elapsed() < silence_max {
            return;
        }
        let topics = self.seen.map(|seen| news.changed_since(seen)).unwrap_or_default();
        drop(news);
        self.seen = Some(version);
        self.told_at = Instant::now();
        self.queue.push_back(frame);
        if !topics.is_empty() {
            self.queue.push_back(frame::changed(&StreamChanged { topics }));
        }
    }

    /// Queues the next event of each campaign. Returns whether one of them could not be read.
    async fn take_events(&mut self) -> bool {
        let (mut is_later, mut at) = (false, 0);
        while let Some(follower) = self.followers.get_mut(at) {
            match follower.next(&self.slot).await {
                Next::Event(event) => self.queue.extend(frame::campaign(&event)),
                Next::UpToDate => {}
                Next::Later => is_later = true,
                Next::Over(reason) => {
                    let lost = self.followers.remove(at);
                    self.queue.push_back(frame::snapshot_required(lost.campaign, reason));
                    continue;
                }
            }
            at += 1;
        }
        is_later
    }

    /// Waits for something to send. Returns whether the hub is still there.
    async fn wait(&mut self, is_later: bool) -> bool {
        let left = self.silence_max().saturating_sub(self.told_at.elapsed());
        let left = if is_later { left.min(AGAIN_AFTER) } else { left };
        let news = tokio::time::timeout(left, self.news.changed()).await;
        for follower in &mut self.followers {
            follower.woke();
        }
        if self.seen.is_none() && self.told_at.elapsed() >= self.silence_max() {
            // There is no overview yet, because the database does not answer.
            self.told_at = Instant::now();
            self.queue.push_back(frame::KEEP_ALIVE);
        }
        !matches!(news, Ok(Err(_)))
    }

    fn silence_max(&self) -> Duration {
        self.slot.hub().settings().keep_alive.min(OVERVIEW_EVERY)
    }

    fn bye(&mut self, reason: EndReason) -> Bytes {
        self.is_over = true;
        bye(self.slot.hub(), reason)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn following(query: &str) -> Result<Following, String> {
        serde_urlencoded::from_str(query).map_err(|error: serde_urlencoded::de::Error| error.to_string())
    }

    #[test]
    fn a_campaign_is_an_id_and_a_sequence() {
        let (one, two) = (uuid::Uuid::now_v7(), uuid::Uuid::now_v7());
        let given = following(&format!("campaign={one}:7&campaign={two}%3A0")).unwrap();
        assert_eq!(given.positions().unwrap(), [(CampaignId(one), 7), (CampaignId(two), 0)]);
        assert_eq!(following("").unwrap().positions().unwrap(), []);
        for wrong in
            ["", ":", "x", &format!("{one}"), &format!("{one}:"), &format!("{one}:-1"), &format!("{one}:1:2")]
        {
            assert!(following(&format!("campaign={wrong}")).unwrap().positions().is_err(), "{wrong}");
        }
        assert!(following(&format!("campaign={one}:1&campaign={one}:2")).unwrap().positions().is_err());
        let many = vec![format!("campaign={two}:1"); CAMPAIGNS_MAX + 1].join("&");
        assert!(following(&many).unwrap().positions().is_err());
        assert!(following("after=1").unwrap_err().contains("unknown field `after`"));
    }
}
