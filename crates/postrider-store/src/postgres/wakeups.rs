//! Hints that there is work.
//!
//! A notification is a hint; the poll is the guarantee. The listener holds one direct connection that is never in a
//! transaction, and when it loses that connection it reconnects and hints once, because it may have missed hints.

use std::{sync::Arc, time::Duration};

use sqlx::{
    Connection, PgConnection,
    postgres::{PgConnectOptions, PgListener, PgPoolOptions},
};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::{
    Pool, StoreError,
    postgres::{pool, unprepared::unprepared},
};

const RECONNECT_AFTER: Duration = Duration::from_secs(1);
const RECONNECT_AFTER_MAX: Duration = Duration::from_secs(30);

/// The settings that the URL of the listener comes from.
const LISTEN_URL: &str = "database.listen_url (or database.url, where that is not set)";

const CLOSE_WITHIN: Duration = Duration::from_secs(2);

/// Changes whenever there may be work.
pub type Wakeups = watch::Receiver<()>;

/// Sends a hint on a channel that there may be work. Send it after the commit that made the work, and at most a few times a second:
/// NOTIFY makes commits wait for each other.
pub async fn notify(pool: &Pool, channel: &str) -> Result<(), StoreError> {
    notify_as(pool, channel, "").await
}

async fn notify_as(pool: &Pool, channel: &str, from: &str) -> Result<(), StoreError> {
    let mut transaction = pool::begin(pool).await?;
    notify_on(&mut transaction, channel, from).await?;
    pool::commit(transaction).await
}

/// The same, in a transaction of the caller.
pub(crate) async fn notify_on(
    connection: &mut PgConnection,
    channel: &str,
    from: &str,
) -> Result<(), StoreError> {
    sqlx::query!("select pg_notify($1, $2)", channel, from)
        .fetch_one(unprepared(connection))
        .await
        .map_err(StoreError::on("sending the hint"))?;
    Ok(())
}

/// Listens on a channel: the second part must be spawned, and ends after shutdown, once its connection is closed.
/// `url` must lead to the server itself, not to a pooler in transaction mode.
pub fn listen(
    url: &str,
    channel: &'static str,
    shutdown: CancellationToken,
) -> Result<(Wakeups, impl Future<Output = ()> + Send + use<>), StoreError> {
    let waker = Waker::default();
    Ok((waker.subscribe(), listen_for(url, channel, waker, shutdown)?))
}

/// Wakes the listeners in this process, and recognises its own hints when the database returns them.
#[derive(Debug, Clone)]
pub struct Waker {
    sender: watch::Sender<()>,
    name: Arc<str>,
}

impl Default for Waker {
    fn default() -> Self {
        Self { sender: watch::Sender::new(()), name: uuid::Uuid::now_v7().to_string().into() }
    }
}

impl Waker {
    /// Subscribes to the wakeups of this process.
    #[must_use]
    pub fn subscribe(&self) -> Wakeups {
        self.sender.subscribe()
    }

    /// Wakes the listeners in this process.
    pub fn wake(&self) {
        self.sender.send_replace(());
    }

    /// Wakes the listeners in other processes.
    pub async fn wake_others(&self, pool: &Pool, channel: &str) -> Result<(), StoreError> {
        notify_as(pool, channel, &self.name).await
    }
}

/// The same for the subscribers of this waker: other code of this process can wake them without the database.
pub fn listen_for(
    url: &str,
    channel: &'static str,
    waker: Waker,
    shutdown: CancellationToken,
) -> Result<impl Future<Output = ()> + Send + use<>, StoreError> {
    let options = pool::options(url)?;
    Ok(async move {
        let mut pause = RECONNECT_AFTER;
        while !shutdown.is_cancelled() {
            match listen_once(options.clone(), channel, &waker, &shutdown).await {
                Ok(()) => pause = RECONNECT_AFTER,
                Err(error) => tracing::warn!(
                    channel,
                    "failed to listen for hints; the poll goes on: {}",
                    with_cause(&error)
                ),
            }
            tokio::select! {
                () = shutdown.cancelled() => {}
                () = tokio::time::sleep(pause) => pause = (pause * 2).min(RECONNECT_AFTER_MAX),
            }
        }
    })
}

/// A failure and the reason for it, on one line.
fn with_cause(error: &StoreError) -> String {
    match std::error::Error::source(error) {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    }
}

/// Listens until the connection is lost or shutdown comes.
async fn listen_once(
    options: PgConnectOptions,
    channel: &'static str,
    waker: &Waker,
    shutdown: &CancellationToken,
) -> Result<(), StoreError> {
    let failed = StoreError::on("listening for hints");
    // One plain attempt first: the pool would retry a wrong password until its timeout and hide the reason.
    let first = PgConnection::connect_with(&options).await;
    let first = first.map_err(|error| pool::unreachable(&options, &error).with_setting(LISTEN_URL))?;
    let _ = first.close().await;
    let one = PgPoolOptions::new().max_connections(1).connect_with(options).await.map_err(&failed)?;
    let mut listener = PgListener::connect_with(&one).await.map_err(&failed)?;
    listener.listen(channel).await.map_err(&failed)?;
    waker.wake();
    loop {
        tokio::select! {
            () = shutdown.cancelled() => break,
            // `None` when the connection was lost.
            received = listener.try_recv() => match received.map_err(&failed)? {
                Some(notification) if notification.payload() == &*waker.name => {}
                Some(_) => waker.wake(),
                None => break,
            },
        }
    }
    drop(listener);
    // A server that hangs must not delay our end.
    let _ = tokio::time::timeout(CLOSE_WITHIN, one.close()).await;
    Ok(())
}
