//! Distributes new events of campaigns to their readers.
//!
//! One loop per process polls the campaigns that have readers: on a hint of the database, and once a second. It reads each new event
//! once and puts it into the campaign's feed, which all its readers share. Readers hold no connection, and without readers the loop
//! neither listens nor queries. A second loop reads the overviews of tenants with readers of `GET /stream`, each once per interval.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use axum::body::Bytes;
use metrics::{Counter, Gauge};
use postrider_model::ids::{CampaignId, TenantId};
use postrider_store::{
    PgConnection, Pool, StoreError, Transaction,
    campaigns::history::{self, Extent},
    postgres::{
        pool,
        wakeups::{self, Wakeups},
    },
    tenancy::keys::{self, Caller, Credential},
};
use tokio::sync::{Notify, Semaphore, watch};
use tokio_util::sync::CancellationToken;

use super::{
    feed::Feed,
    frame::{self, EndReason},
    news::News,
};
use crate::{
    common::error::{ApiError, ApiResult},
    tenancy::overview::Overviews,
};

/// Poll interval without a hint.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Minimum time between two polls, so that a busy campaign is read in batches.
const LOOK_PAUSE: Duration = Duration::from_millis(10);
/// How often to check that the readers' keys and sessions are still valid. With [`LOOK_EVERY`] and the time that both statements take it must
/// stay below the five seconds after which docs/stream.md says that a stream of a revoked key or session has ended.
const KEYS_EVERY: Duration = Duration::from_secs(2);
const _: () = assert!(KEYS_EVERY.as_millis() + LOOK_EVERY.as_millis() < 5_000);
/// How long to go on listening after the last reader has left.
const LINGER: Duration = Duration::from_secs(10);
/// How often the overview of a tenant is read, for any number of readers.
const OVERVIEW_EVERY: Duration = Duration::from_secs(2);
/// Events per step. Less than a feed holds, so that one step overtakes no reader that is up to date.
const PAGE: i64 = 128;
/// Events of one step of a reader that catches up by itself.
const CATCH_UP_PAGE: i64 = 64;
/// How many readers may ask the database at a time; requests need connections, too.
const CATCH_UPS_MAX: usize = 2;
/// `Retry-After` of a reader over the limit.
const RETRY_AFTER_SECONDS: u64 = 30;

/// Settings of streams.
#[derive(Debug, Clone, Copy)]
pub struct StreamSettings {
    /// Maximum number of readers of this process.
    pub readers_max: usize,
    /// Maximum number of them of one tenant.
    pub readers_per_tenant_max: usize,
    /// Maximum time without a message on a stream.
    pub keep_alive: Duration,
}

/// The readers of one process, and the feeds that they read.
#[derive(Clone)]
pub struct Hub(Arc<Shared>);

struct Shared {
    pool: Pool,
    listen_url: String,
    settings: StreamSettings,
    draining: CancellationToken,
    readers: Mutex<Readers>,
    arrived: Notify,
    overviews: Overviews,
    overview_wanted: Notify,
    catch_ups: Semaphore,
    meters: Meters,
}

/// Metrics of the hub.
pub(super) struct Meters {
    readers: Gauge,
    pub(super) sent: Counter,
    pub(super) too_slow: Counter,
    overviews_read: Counter,
    overviews_late: Counter,
}

#[derive(Default)]
struct Readers {
    count: usize,
    tenants: HashMap<TenantId, Tenant>,
}

/// Feeds, and keys or sessions, of one tenant's readers, with the number of readers of each.
#[derive(Default)]
struct Tenant {
    count: usize,
    feeds: HashMap<CampaignId, (usize, Arc<watch::Sender<Feed>>)>,
    keys: HashMap<Credential, (usize, Arc<AtomicBool>)>,
    /// Number of readers of the tenant's stream, and the news that they share.
    overview_readers: usize,
    news: Arc<watch::Sender<News>>,
}

/// A campaign with readers, and its feed.
type Watched = (CampaignId, Arc<watch::Sender<Feed>>);

impl Tenant {
    /// Wakes all readers.
    fn wake(&self) {
        self.feeds.values().for_each(|(_, feed)| feed.send_modify(|_| {}));
        self.news.send_modify(|_| {});
    }
}

impl Hub {
    /// A hub without readers. Its loop is [`Hub::run`]. `listen_url` must lead to the server itself.
    pub fn new(
        pool: Pool,
        listen_url: &str,
        settings: StreamSettings,
        overviews: Overviews,
        draining: CancellationToken,
    ) -> Result<Self, StoreError> {
        // An invalid URL is refused now, and not when the first reader comes.
        drop(wakeups::listen(listen_url, history::HINT_CHANNEL, draining.clone())?);
        let meters = Meters {
            readers: metrics::gauge!("postrider_stream_readers"),
            sent: metrics::counter!("postrider_stream_events_sent_total"),
            too_slow: metrics::counter!("postrider_stream_readers_too_slow_total"),
            overviews_read: metrics::counter!("postrider_stream_overviews_total", "result" => "read"),
            overviews_late: metrics::counter!("postrider_stream_overviews_total", "result" => "late"),
        };
        Ok(Self(Arc::new(Shared {
            pool,
            listen_url: listen_url.to_owned(),
            settings,
            draining,
            readers: Mutex::default(),
            arrived: Notify::new(),
            overviews,
            overview_wanted: Notify::new(),
            catch_ups: Semaphore::new(CATCH_UPS_MAX),
            meters,
        })))
    }

    /// Serves readers until shutdown, and then ends their streams.
    pub async fn run(self) {
        let draining = &self.0.draining;
        while !draining.is_cancelled() {
            tokio::select! {
                () = draining.cancelled() => break,
                () = self.0.arrived.notified() => {}
            }
            let session = draining.child_token();
            match wakeups::listen(&self.0.listen_url, history::HINT_CHANNEL, session.clone()) {
                Ok((hints, listening)) => {
                    let serving = async {
                        self.serve(hints).await;
                        session.cancel();
                    };
                    let overviews = session.run_until_cancelled(self.read_overviews());
                    tokio::join!(listening, serving, overviews);
                }
                Err(error) => tracing::error!("streams cannot be served: {error}"),
            }
        }
        self.wake_all();
    }

    /// Polls until shutdown, or until there was no reader for a while.
    async fn serve(&self, mut hints: Wakeups) {
        let (mut keys_checked_at, mut busy_at) = (Instant::now(), Instant::now());
        while !self.0.draining.is_cancelled() {
            // Before the poll, so that a hint during the poll is not lost.
            hints.mark_unchanged();
            let began = Instant::now();
            if let Err(error) = self.look().await {
                tracing::warn!("failed to read campaign events; retrying in {LOOK_EVERY:?}: {error}");
            }
            if began.duration_since(keys_checked_at) >= KEYS_EVERY {
                keys_checked_at = began;
                if let Err(error) = self.check_keys().await {
                    tracing::warn!("failed to check the keys and sessions of readers: {error}");
                }
            }
            if self.lock().count > 0 {
                busy_at = Instant::now();
            } else if busy_at.elapsed() > LINGER {
                return;
            }
            tokio::select! {
                () = self.0.draining.cancelled() => {}
                // A poll that took long is not repeated at once: this loop has half of one connection, not all of it.
                () = tokio::time::sleep(began.elapsed().max(LOOK_PAUSE)) => tokio::select! {
                    () = self.0.draining.cancelled() => {}
                    Ok(()) = hints.changed() => {}
                    () = tokio::time::sleep(LOOK_EVERY) => {}
                },
            }
        }
        self.wake_all();
    }

    /// Reads the overviews of tenants with readers, one tenant after the other, each once per interval at most.
    async fn read_overviews(&self) {
        loop {
            let began = Instant::now();
            for (tenant, news) in self.due_overviews() {
                let read = self.0.overviews.read(tenant).await;
                let noted = match read {
                    Ok((overview, marks)) => {
                        self.0.meters.overviews_read.increment(1);
                        note(&news, |news| news.publish(overview, marks))
                    }
                    Err(error) => {
                        self.0.meters.overviews_late.increment(1);
                        tracing::warn!(
                            tenant = %tenant,
                            "failed to read an overview; retrying in {OVERVIEW_EVERY:?}: {error}"
                        );
                        note(&news, News::miss)
                    }
                };
                if let Err(error) = noted {
                    tracing::error!("an overview is not sent: {error}");
                }
            }
            // As in `serve`, this loop leaves the connection to others for half of the time.
            tokio::time::sleep(began.elapsed().max(LOOK_PAUSE)).await;
            let wait = self.next_overview_in();
            tokio::select! {
                () = self.0.overview_wanted.notified() => {}
                () = tokio::time::sleep(wait) => {}
            }
        }
    }

    fn due_overviews(&self) -> Vec<(TenantId, Arc<watch::Sender<News>>)> {
        let readers = self.lock();
        let with_readers = readers.tenants.iter().filter(|(_, tenant)| tenant.overview_readers > 0);
        let due = with_readers.filter(|(_, tenant)| tenant.news.borrow().due_in(OVERVIEW_EVERY).is_zero());
        due.map(|(id, tenant)| (*id, Arc::clone(&tenant.news))).collect()
    }

    /// Time until the overview of some tenant is due.
    fn next_overview_in(&self) -> Duration {
        let readers = self.lock();
        let with_readers = readers.tenants.values().filter(|tenant| tenant.overview_readers > 0);
        let waits = with_readers.map(|tenant| tenant.news.borrow().due_in(OVERVIEW_EVERY));
        waits.min().unwrap_or(OVERVIEW_EVERY)
    }

    /// Reads new events, tenant by tenant. An error at one tenant is returned at the end; the other tenants get their events.
    async fn look(&self) -> ApiResult<()> {
        let mut looked = Ok(());
        for (tenant, watched) in self.watched() {
            // Without a connection no tenant can be read.
            let transaction = pool::begin_as(&self.0.pool, tenant).await?;
            let result = look_at(transaction, tenant, watched).await;
            if !matches!(result, Ok(false)) {
                self.wake_news(tenant);
            }
            looked = looked.and(result.map(|_| ()));
        }
        looked
    }

    /// Ends the streams of keys and sessions that are not active any more; the same way.
    async fn check_keys(&self) -> ApiResult<()> {
        let mut asked = Ok(());
        for (tenant, keys) in self.keys() {
            let transaction = pool::begin_as(&self.0.pool, tenant).await?;
            asked = asked.and(self.check_keys_of(transaction, tenant, &keys).await);
        }
        asked
    }

    async fn check_keys_of(
        &self,
        mut transaction: Transaction,
        tenant: TenantId,
        keys: &HashMap<Credential, Arc<AtomicBool>>,
    ) -> ApiResult<()> {
        let credentials: Vec<Credential> = keys.keys().copied().collect();
        let active = keys::active(&mut transaction, tenant, &credentials).await?;
        pool::commit(transaction).await?;
        let mut any = false;
        for (_, is_out) in keys.iter().filter(|(id, _)| !active.contains(id)) {
            is_out.store(true, Ordering::Relaxed);
            any = true;
        }
        if any {
            self.wake(tenant);
        }
        Ok(())
    }

    /// Registers one more reader of existing campaigns, within the limits. Returns a feed for each campaign, in their order.
    pub(super) fn register(
        &self,
        caller: &Caller,
        extents: &[Extent],
        reads_overview: bool,
    ) -> ApiResult<(ReaderSlot, Vec<watch::Receiver<Feed>>)> {
        let settings = &self.0.settings;
        let mut readers = self.lock();
        if readers.count >= settings.readers_max {
            return Err(ApiError::NoRoom {
                detail: "this process has as many readers as it may have (api.readers_max)",
                is_full: true,
                retry_after: RETRY_AFTER_SECONDS,
            });
        }
        let tenant = readers.tenants.entry(caller.tenant_id).or_default();
        if tenant.count >= settings.readers_per_tenant_max {
            return Err(ApiError::NoRoom {
                detail: "the tenant has as many readers as it may have (api.readers_per_tenant_max)",
                is_full: false,
                retry_after: RETRY_AFTER_SECONDS,
            });
        }
        tenant.count += 1;
        tenant.overview_readers += usize::from(reads_overview);
        let mut feeds = Vec::with_capacity(extents.len());
        for extent in extents {
            let (of_feed, feed) = tenant
                .feeds
                .entry(extent.campaign)
                .or_insert_with(|| (0, Arc::new(watch::Sender::new(Feed::after(extent.newest)))));
            *of_feed += 1;
            feeds.push(feed.subscribe());
        }
        let (of_key, is_out) = tenant.keys.entry(caller.credential()).or_default();
        *of_key += 1;
        let slot = ReaderSlot {
            hub: self.clone(),
            tenant: caller.tenant_id,
            key: caller.credential(),
            campaigns: extents.iter().map(|extent| extent.campaign).collect(),
            reads_overview,
            news: Arc::clone(&tenant.news),
            is_out: Arc::clone(is_out),
        };
        readers.count += 1;
        self.0.meters.readers.set(readers.count as f64);
        drop(readers);
        self.0.arrived.notify_one();
        if reads_overview {
            self.0.overview_wanted.notify_one();
        }
        Ok((slot, feeds))
    }

    fn leave(&self, slot: &ReaderSlot) {
        let mut readers = self.lock();
        readers.count -= 1;
        self.0.meters.readers.set(readers.count as f64);
        let Some(tenant) = readers.tenants.get_mut(&slot.tenant) else { return };
        tenant.count -= 1;
        if tenant.count == 0 {
            readers.tenants.remove(&slot.tenant);
            return;
        }
        tenant.overview_readers -= usize::from(slot.reads_overview);
        for campaign in &slot.campaigns {
            drop_one(&mut tenant.feeds, campaign);
        }
        drop_one(&mut tenant.keys, &slot.key);
    }

    fn watched(&self) -> Vec<(TenantId, Vec<Watched>)> {
        let readers = self.lock();
        let of = |tenant: &Tenant| {
            tenant.feeds.iter().map(|(campaign, (_, feed))| (*campaign, Arc::clone(feed))).collect()
        };
        let with_feeds = readers.tenants.iter().filter(|(_, tenant)| !tenant.feeds.is_empty());
        with_feeds.map(|(id, tenant)| (*id, of(tenant))).collect()
    }

    fn keys(&self) -> Vec<(TenantId, HashMap<Credential, Arc<AtomicBool>>)> {
        let readers = self.lock();
        let of =
            |tenant: &Tenant| tenant.keys.iter().map(|(id, (_, is_out))| (*id, Arc::clone(is_out))).collect();
        readers.tenants.iter().map(|(id, tenant)| (*id, of(tenant))).collect()
    }

    fn wake(&self, tenant: TenantId) {
        if let Some(tenant) = self.lock().tenants.get(&tenant) {
            tenant.wake();
        }
    }

    /// Wakes the readers of the tenant's stream, which look at their feeds.
    fn wake_news(&self, tenant: TenantId) {
        if let Some(tenant) = self.lock().tenants.get(&tenant) {
            tenant.news.send_modify(|_| {});
        }
    }

    fn wake_all(&self) {
        self.lock().tenants.values().for_each(Tenant::wake);
    }

    fn lock(&self) -> MutexGuard<'_, Readers> {
        self.0.readers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn settings(&self) -> StreamSettings {
        self.0.settings
    }

    pub(super) fn meters(&self) -> &Meters {
        &self.0.meters
    }

    pub(super) fn count(&self) -> usize {
        self.lock().count
    }
}

fn drop_one<K: std::hash::Hash + Eq, V>(counted: &mut HashMap<K, (usize, V)>, key: &K) {
    if let Some((count, _)) = counted.get_mut(key) {
        *count -= 1;
        if *count == 0 {
            counted.remove(key);
        }
    }
}

/// Changes the news of a tenant, and wakes its readers if they should learn it at once.
fn note(news: &watch::Sender<News>, change: impl FnOnce(&mut News) -> ApiResult<bool>) -> ApiResult<()> {
    let mut noted = Ok(());
    news.send_if_modified(|news| match change(news) {
        Ok(is_new) => is_new,
        Err(error) => {
            noted = Err(error);
            false
        }
    });
    noted
}

/// Reads the new events of one tenant. Returns whether there were any.
async fn look_at(mut transaction: Transaction, tenant: TenantId, watched: Vec<Watched>) -> ApiResult<bool> {
    let campaigns: Vec<CampaignId> = watched.iter().map(|(campaign, _)| *campaign).collect();
    let extents = history::extents(&mut transaction, tenant, &campaigns).await?;
    let newest: HashMap<CampaignId, i64> =
        extents.into_iter().map(|extent| (extent.campaign, extent.newest)).collect();
    let mut is_new = false;
    for (campaign, feed) in watched {
        let known = feed.borrow().newest();
        match newest.get(&campaign) {
            Some(&newest) if newest > known => {
                is_new = true;
                pull(&mut transaction, tenant, campaign, &feed, newest).await?;
            }
            Some(&newest) if newest == known => {}
            // The campaign is gone, or its history is shorter than it was: an older copy was restored.
            _ => {
                is_new = true;
                feed.send_modify(Feed::break_off);
            }
        }
        feed.send_if_modified(|feed| {
            feed.forget(Instant::now());
            false
        });
    }
    pool::commit(transaction).await?;
    Ok(is_new)
}

/// Reads the new events of one campaign, in steps.
async fn pull(
    connection: &mut PgConnection,
    tenant: TenantId,
    campaign: CampaignId,
    feed: &watch::Sender<Feed>,
    newest: i64,
) -> ApiResult<()> {
    let mut known = feed.borrow().newest();
    while known < newest {
        let events = history::after(connection, tenant, campaign, known, PAGE).await?;
        let Some(last) = events.last() else {
            // All of it was removed before this poll.
            feed.send_modify(|feed| feed.skip_to(newest));
            return Ok(());
        };
        known = last.sequence;
        let frames: Vec<(i64, Bytes)> = events
            .iter()
            .map(|event| Ok((event.sequence, frame::event(event)?)))
            .collect::<ApiResult<_>>()?;
        feed.send_modify(|feed| {
            for (sequence, frame) in frames {
                feed.push(sequence, frame, Instant::now());
            }
        });
    }
    Ok(())
}

/// The registration of one reader. Dropping it makes room for another reader.
pub(super) struct ReaderSlot {
    hub: Hub,
    tenant: TenantId,
    key: Credential,
    campaigns: Vec<CampaignId>,
    reads_overview: bool,
    news: Arc<watch::Sender<News>>,
    is_out: Arc<AtomicBool>,
}

impl ReaderSlot {
    pub(super) fn hub(&self) -> &Hub {
        &self.hub
    }

    /// The news that the readers of the tenant's stream share.
    pub(super) fn news(&self) -> watch::Receiver<News> {
        self.news.subscribe()
    }

    /// Why the server ends the stream: the process ends, or the API key is no longer active.
    pub(super) fn end(&self) -> Option<EndReason> {
        if self.hub.0.draining.is_cancelled() {
            return Some(EndReason::Shutdown);
        }
        self.is_out.load(Ordering::Relaxed).then_some(EndReason::Key)
    }

    /// A page of the events of a campaign after a number, from the database: those that have happened, or none if they were removed.
    pub(super) async fn page_after(
        &self,
        campaign: CampaignId,
        sequence: i64,
    ) -> ApiResult<Vec<(i64, Bytes)>> {
        let shared = &self.hub.0;
        let permit = shared.catch_ups.acquire().await;
        let mut transaction = pool::begin_as(&shared.pool, self.tenant).await?;
        let events = history::after(&mut transaction, self.tenant, campaign, sequence, CATCH_UP_PAGE).await?;
        pool::commit(transaction).await?;
        drop(permit);
        events.iter().map(|event| Ok((event.sequence, frame::event(event)?))).collect()
    }
}

impl Drop for ReaderSlot {
    fn drop(&mut self) {
        let hub = self.hub.clone();
        hub.leave(self);
    }
}
