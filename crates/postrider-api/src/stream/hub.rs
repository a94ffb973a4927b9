//! Brings what happens to all who read it.
//!
//! One loop per process looks at the campaigns that somebody reads: by a hint of the database, and once a second. It takes
//! each new event once and puts it where every reader of the campaign finds it. Readers hold no connection, and while there
//! are none, nothing listens and nothing is asked.

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
use postrider_model::ids::{ApiKeyId, CampaignId, TenantId};
use postrider_store::{
    PgConnection, Pool, StoreError, Transaction,
    history::{self, Extent},
    keys::{self, Caller},
    pool,
    wakeups::{self, Wakeups},
};
use tokio::sync::{Notify, Semaphore, watch};
use tokio_util::sync::CancellationToken;

use super::{feed::Feed, frame};
use crate::error::{ApiError, ApiResult};

/// How often to look without a hint.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Shortest time between two looks, so that a busy campaign is looked at in batches.
const LOOK_PAUSE: Duration = Duration::from_millis(10);
/// How often to check that the readers' keys are still valid. With [`LOOK_EVERY`] and the time that both statements take it must
/// stay below the five seconds after which docs/stream.md says that a stream of a revoked key has ended.
const KEYS_EVERY: Duration = Duration::from_secs(2);
/// How long to go on listening after the last reader has left.
const LINGER: Duration = Duration::from_secs(10);
/// Events per step. Less than a feed holds, so that one step overtakes nobody who is up to date.
const PAGE: i64 = 128;
/// Events of one step of a reader that catches up by itself.
const CATCH_UP_PAGE: i64 = 64;
/// How many readers may ask the database at a time; requests need connections, too.
const CATCH_UPS_MAX: usize = 2;
/// How long to wait when there is no room.
const RETRY_AFTER_SECONDS: u64 = 30;

/// How streams behave.
#[derive(Debug, Clone, Copy)]
pub struct StreamSettings {
    /// Most readers of this process.
    pub readers_max: usize,
    /// Most of them of one tenant.
    pub readers_per_tenant_max: usize,
    /// How long a stream may be silent.
    pub keep_alive: Duration,
}

/// The readers of one process, and what they read.
#[derive(Clone)]
pub struct Hub(Arc<Shared>);

struct Shared {
    pool: Pool,
    listen_url: String,
    settings: StreamSettings,
    draining: CancellationToken,
    readers: Mutex<Readers>,
    arrived: Notify,
    catch_ups: Semaphore,
    meters: Meters,
}

/// What is counted.
pub(super) struct Meters {
    readers: Gauge,
    pub(super) sent: Counter,
    pub(super) too_slow: Counter,
}

#[derive(Default)]
struct Readers {
    count: usize,
    tenants: HashMap<TenantId, Tenant>,
}

/// What is read of one tenant, by how many.
#[derive(Default)]
struct Tenant {
    count: usize,
    feeds: HashMap<CampaignId, (usize, Arc<watch::Sender<Feed>>)>,
    keys: HashMap<ApiKeyId, (usize, Arc<AtomicBool>)>,
}

/// A campaign that somebody reads, and where its events go.
type Watched = (CampaignId, Arc<watch::Sender<Feed>>);

impl Hub {
    /// A hub without readers. Its loop is [`Hub::run`]. `listen_url` must lead to the server itself.
    pub fn new(
        pool: Pool,
        listen_url: &str,
        settings: StreamSettings,
        draining: CancellationToken,
    ) -> Result<Self, StoreError> {
        // What is no URL is refused now, and not when the first reader comes.
        drop(wakeups::listen(listen_url, history::HINT_CHANNEL, draining.clone())?);
        let meters = Meters {
            readers: metrics::gauge!("postrider_stream_readers"),
            sent: metrics::counter!("postrider_stream_events_sent_total"),
            too_slow: metrics::counter!("postrider_stream_readers_too_slow_total"),
        };
        Ok(Self(Arc::new(Shared {
            pool,
            listen_url: listen_url.to_owned(),
            settings,
            draining,
            readers: Mutex::default(),
            arrived: Notify::new(),
            catch_ups: Semaphore::new(CATCH_UPS_MAX),
            meters,
        })))
    }

    /// Serves readers until shutdown, and then sends them away.
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
                    tokio::join!(listening, serving);
                }
                Err(error) => tracing::error!("streams cannot be served: {error}"),
            }
        }
        self.wake_all();
    }

    /// Looks and looks, until shutdown or until nobody has read for a while.
    async fn serve(&self, mut hints: Wakeups) {
        let (mut keys_asked_at, mut busy_at) = (Instant::now(), Instant::now());
        while !self.0.draining.is_cancelled() {
            // Before the look, so that a hint during the look is not lost.
            hints.mark_unchanged();
            let began = Instant::now();
            if let Err(error) = self.look().await {
                tracing::warn!("readers of campaigns wait, the next look is in {LOOK_EVERY:?}: {error}");
            }
            if began.duration_since(keys_asked_at) >= KEYS_EVERY {
                keys_asked_at = began;
                if let Err(error) = self.ask_for_keys().await {
                    tracing::warn!("could not ask whether readers may go on: {error}");
                }
            }
            if self.lock().count > 0 {
                busy_at = Instant::now();
            } else if busy_at.elapsed() > LINGER {
                return;
            }
            tokio::select! {
                () = self.0.draining.cancelled() => {}
                // A look that took long is not repeated at once: this loop has half of one connection, not all of it.
                () = tokio::time::sleep(began.elapsed().max(LOOK_PAUSE)) => tokio::select! {
                    () = self.0.draining.cancelled() => {}
                    Ok(()) = hints.changed() => {}
                    () = tokio::time::sleep(LOOK_EVERY) => {}
                },
            }
        }
        self.wake_all();
    }

    /// Takes what is new, tenant by tenant. What is wrong at one of them is told in the end, and the others have theirs.
    async fn look(&self) -> ApiResult<()> {
        let mut looked = Ok(());
        for (tenant, watched) in self.watched() {
            // Without a connection there is nothing for anybody.
            let transaction = pool::begin_as(&self.0.pool, tenant).await?;
            looked = looked.and(look_at(transaction, tenant, watched).await);
        }
        looked
    }

    /// Sends away whose key does not let in any more; the same way.
    async fn ask_for_keys(&self) -> ApiResult<()> {
        let mut asked = Ok(());
        for (tenant, keys) in self.keys() {
            let transaction = pool::begin_as(&self.0.pool, tenant).await?;
            asked = asked.and(self.ask_for_keys_of(transaction, tenant, &keys).await);
        }
        asked
    }

    async fn ask_for_keys_of(
        &self,
        mut transaction: Transaction,
        tenant: TenantId,
        keys: &HashMap<ApiKeyId, Arc<AtomicBool>>,
    ) -> ApiResult<()> {
        let ids: Vec<ApiKeyId> = keys.keys().copied().collect();
        let active = keys::active(&mut transaction, tenant, &ids).await?;
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

    /// Finds room for one more reader of a campaign that is there.
    pub(super) fn seat(&self, caller: &Caller, extent: Extent) -> ApiResult<Seat> {
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
        let (of_feed, feed) = tenant
            .feeds
            .entry(extent.campaign)
            .or_insert_with(|| (0, Arc::new(watch::Sender::new(Feed::after(extent.newest)))));
        *of_feed += 1;
        let (of_key, is_out) = tenant.keys.entry(caller.key_id).or_default();
        *of_key += 1;
        let seat = Seat {
            hub: self.clone(),
            tenant: caller.tenant_id,
            key: caller.key_id,
            campaign: extent.campaign,
            feed: feed.subscribe(),
            is_out: Arc::clone(is_out),
        };
        readers.count += 1;
        self.0.meters.readers.set(readers.count as f64);
        drop(readers);
        self.0.arrived.notify_one();
        Ok(seat)
    }

    fn leave(&self, seat: &Seat) {
        let mut readers = self.lock();
        readers.count -= 1;
        self.0.meters.readers.set(readers.count as f64);
        let Some(tenant) = readers.tenants.get_mut(&seat.tenant) else { return };
        tenant.count -= 1;
        if tenant.count == 0 {
            readers.tenants.remove(&seat.tenant);
            return;
        }
        drop_one(&mut tenant.feeds, &seat.campaign);
        drop_one(&mut tenant.keys, &seat.key);
    }

    fn watched(&self) -> Vec<(TenantId, Vec<Watched>)> {
        let readers = self.lock();
        let of = |tenant: &Tenant| {
            tenant.feeds.iter().map(|(campaign, (_, feed))| (*campaign, Arc::clone(feed))).collect()
        };
        readers.tenants.iter().map(|(id, tenant)| (*id, of(tenant))).collect()
    }

    fn keys(&self) -> Vec<(TenantId, HashMap<ApiKeyId, Arc<AtomicBool>>)> {
        let readers = self.lock();
        let of =
            |tenant: &Tenant| tenant.keys.iter().map(|(id, (_, is_out))| (*id, Arc::clone(is_out))).collect();
        readers.tenants.iter().map(|(id, tenant)| (*id, of(tenant))).collect()
    }

    fn wake(&self, tenant: TenantId) {
        for (_, feed) in self.lock().tenants.get(&tenant).iter().flat_map(|tenant| tenant.feeds.values()) {
            feed.send_modify(|_| {});
        }
    }

    fn wake_all(&self) {
        for (_, feed) in self.lock().tenants.values().flat_map(|tenant| tenant.feeds.values()) {
            feed.send_modify(|_| {});
        }
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

    pub(super) fn is_draining(&self) -> bool {
        self.0.draining.is_cancelled()
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

/// Takes what is new of one tenant.
async fn look_at(mut transaction: Transaction, tenant: TenantId, watched: Vec<Watched>) -> ApiResult<()> {
    let campaigns: Vec<CampaignId> = watched.iter().map(|(campaign, _)| *campaign).collect();
    let extents = history::extents(&mut transaction, tenant, &campaigns).await?;
    let newest: HashMap<CampaignId, i64> =
        extents.into_iter().map(|extent| (extent.campaign, extent.newest)).collect();
    for (campaign, feed) in watched {
        let known = feed.borrow().newest();
        match newest.get(&campaign) {
            Some(&newest) if newest > known => {
                pull(&mut transaction, tenant, campaign, &feed, newest).await?;
            }
            Some(&newest) if newest == known => {}
            // The campaign is gone, or its history is shorter than it was: somebody has put back an old copy.
            _ => feed.send_modify(Feed::break_off),
        }
        feed.send_if_modified(|feed| {
            feed.forget(Instant::now());
            false
        });
    }
    Ok(pool::commit(transaction).await?)
}

/// Takes the new events of one campaign, in steps.
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
            // All of it was removed before anybody could look.
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

/// One reader's place. Leaving it makes room.
pub(super) struct Seat {
    hub: Hub,
    tenant: TenantId,
    key: ApiKeyId,
    pub(super) campaign: CampaignId,
    pub(super) feed: watch::Receiver<Feed>,
    is_out: Arc<AtomicBool>,
}

impl Seat {
    pub(super) fn hub(&self) -> &Hub {
        &self.hub
    }

    /// Whether the key has stopped to let in.
    pub(super) fn is_out(&self) -> bool {
        self.is_out.load(Ordering::Relaxed)
    }

    /// Some of the events that follow a number, from the database: those that have happened, or none if they were removed.
    pub(super) async fn page_after(&self, sequence: i64) -> ApiResult<Vec<(i64, Bytes)>> {
        let shared = &self.hub.0;
        let permit = shared.catch_ups.acquire().await;
        let mut transaction = pool::begin_as(&shared.pool, self.tenant).await?;
        let events =
            history::after(&mut transaction, self.tenant, self.campaign, sequence, CATCH_UP_PAGE).await?;
        pool::commit(transaction).await?;
        drop(permit);
        events.iter().map(|event| Ok((event.sequence, frame::event(event)?))).collect()
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let hub = self.hub.clone();
        hub.leave(self);
    }
}
