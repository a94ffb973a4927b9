//! Reads the history from the stream of a server, or from the database.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use anyhow::Context;
use postrider_model::ids::{CampaignId, TenantId};
use postrider_providers::remote::{EventStream, Remote, RemoteError};
use postrider_store::{
    Pool,
    campaigns::{
        self,
        history::{self, CampaignEvent},
    },
    postgres::pool,
};

use super::{
    board::{Board, Event, Status},
    display::Display,
};

/// Interval between two queries for new rows.
const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// Pause before a request is repeated, unless the server sends another one.
const RETRY: Duration = Duration::from_secs(2);
/// Maximum number of events per query.
const PAGE: i64 = 256;

/// A history and a position in it. Its futures are cancel safe.
pub struct Source {
    campaign: CampaignId,
    server: Option<Server>,
    rows: Option<(Pool, TenantId)>,
    /// Sequence of the last event that was returned.
    at: i64,
    /// Rows that were read and not returned yet.
    page: VecDeque<CampaignEvent>,
}

struct Server {
    remote: Remote,
    stream: Option<EventStream>,
    retry: Duration,
    request_at: Instant,
}

/// The next update of the history.
pub enum Update {
    /// An event, and its text.
    Event(Event, String),
    /// Events after the position are missing.
    SnapshotRequired,
}

impl Source {
    /// Reads from the server of this installation while it runs, and from the database otherwise.
    pub fn local(campaign: CampaignId, pool: Pool, tenant: TenantId, server: Option<Remote>) -> Self {
        let server = server.map(Server::new);
        Self { campaign, server, rows: Some((pool, tenant)), at: 0, page: VecDeque::new() }
    }

    /// Reads from a server.
    pub fn remote(campaign: CampaignId, remote: Remote) -> Self {
        Self { campaign, server: Some(Server::new(remote)), rows: None, at: 0, page: VecDeque::new() }
    }

    /// Reads the state of all phases.
    pub async fn snapshot(&self) -> anyhow::Result<Board> {
        if let Some((pool, tenant)) = &self.rows {
            let snapshot = campaigns::snapshot(pool, *tenant, self.campaign).await?;
            return Ok(snapshot.context("the campaign is gone")?.into());
        }
        let server = self.server.as_ref().context("there is no server to read from")?;
        let status = server.remote.get(&format!("/api/v2/campaigns/{}/status", self.campaign.0)).await?;
        let status: Status =
            serde_json::from_value(status).context("the server's response is not a status")?;
        Ok(status.into())
    }

    /// Reads a snapshot, and repeats the request until the server is reachable.
    pub async fn snapshot_with_retry(&self, display: &mut Display) -> anyhow::Result<Board> {
        loop {
            match self.snapshot().await {
                Err(error) if matches!(error.downcast_ref(), Some(RemoteError::Away { .. })) => {
                    display.print_once(format!("{error}; trying again"));
                    tokio::time::sleep(RETRY).await;
                }
                other => return other,
            }
        }
    }

    pub fn continue_after(&mut self, sequence: i64) {
        self.at = sequence;
        self.page.clear();
        if let Some(server) = &mut self.server {
            server.stream = None;
        }
    }

    pub fn position(&self) -> i64 {
        self.at
    }

    /// Waits for the next event.
    pub async fn next(&mut self, display: &mut Display) -> anyhow::Result<Update> {
        loop {
            let Some(server) = &mut self.server else { return self.next_row().await };
            match server.next(self.campaign, self.at).await {
                Ok(Some(Received::Event(event, text))) => {
                    self.at = event.sequence;
                    return Ok(Update::Event(event, text));
                }
                Ok(Some(Received::SnapshotRequired)) => return Ok(Update::SnapshotRequired),
                Ok(None) => {}
                Err(error) if self.rows.is_some() => {
                    display.print_once(format!("reading from the database from now on: {error}"));
                    self.server = None;
                }
                Err(error @ RemoteError::Away { .. }) => {
                    display.print_once(format!("{error}; trying again"));
                    server.reconnect_later();
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    async fn next_row(&mut self) -> anyhow::Result<Update> {
        loop {
            if let Some(event) = self.page.pop_front() {
                if event.sequence != self.at + 1 {
                    return Ok(Update::SnapshotRequired);
                }
                self.at = event.sequence;
                let text = serde_json::to_string(&event)?;
                return Ok(Update::Event(serde_json::from_str(&text)?, text));
            }
            let (pool, tenant) = self.rows.as_ref().context("there is nothing to read")?;
            let mut transaction = pool::begin_as(pool, *tenant).await?;
            let page = history::after(&mut transaction, *tenant, self.campaign, self.at, PAGE).await?;
            pool::commit(transaction).await?;
            if page.is_empty() {
                tokio::time::sleep(POLL_INTERVAL).await;
            }
            self.page = page.into();
        }
    }
}

/// A message of a server's stream.
enum Received {
    Event(Event, String),
    SnapshotRequired,
}

impl Server {
    fn new(remote: Remote) -> Self {
        Self { remote, stream: None, retry: RETRY, request_at: Instant::now() }
    }

    /// Closes the stream, and schedules the next request.
    fn reconnect_later(&mut self) {
        self.stream = None;
        self.request_at = Instant::now() + self.retry;
    }

    /// The next event or snapshot request; `None` when the stream has ended and must be requested again.
    async fn next(&mut self, campaign: CampaignId, at: i64) -> Result<Option<Received>, RemoteError> {
        tokio::time::sleep_until(self.request_at.into()).await;
        let stream = match &mut self.stream {
            Some(stream) => stream,
            None => {
                let path = format!("/api/v2/campaigns/{}/events?after={at}", campaign.0);
                let stream = self.remote.stream(&path).await?;
                self.stream.insert(stream)
            }
        };
        loop {
            let Some(message) = stream.next().await? else {
                self.reconnect_later();
                return Ok(None);
            };
            if let Some(retry) = message.retry {
                self.retry = retry;
            }
            match message.event.as_deref() {
                Some("snapshot_required") => {
                    self.reconnect_later();
                    return Ok(Some(Received::SnapshotRequired));
                }
                // The server closes the stream; `retry` holds the pause before the next request.
                Some(_) => {}
                None if message.data.is_empty() => {}
                None => {
                    let event = serde_json::from_str(&message.data)
                        .map_err(|error| RemoteError::Unfit(format!("this is not an event: {error}")))?;
                    return Ok(Some(Received::Event(event, message.data)));
                }
            }
        }
    }
}
