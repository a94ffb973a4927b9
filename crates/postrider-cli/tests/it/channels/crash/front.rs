//! The address that the vendors know: connections go on to whoever receives at the moment, one after the other.

use std::{
    net::SocketAddr,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
};

use anyhow::Context;
use tokio::{
    net::{TcpListener, TcpStream},
    task::{JoinHandle, JoinSet},
};

/// A receiving process, and the number of its connections.
#[derive(Clone)]
struct Behind {
    address: SocketAddr,
    under_way: Arc<AtomicUsize>,
}

pub struct Front {
    pub http_url: String,
    behind: Arc<Mutex<Vec<Behind>>>,
    task: JoinHandle<()>,
}

impl Front {
    pub async fn start() -> anyhow::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let http_url = format!("http://{}", listener.local_addr()?);
        let behind = Arc::new(Mutex::new(Vec::<Behind>::new()));
        let known = Arc::clone(&behind);
        let task = tokio::spawn(async move {
            let mut connections = JoinSet::new();
            let mut turn = 0_usize;
            while let Ok((client, _)) = listener.accept().await {
                turn = turn.wrapping_add(1);
                let next = {
                    let behind = lock(&known);
                    behind.get(turn % behind.len().max(1)).cloned()
                };
                // With nobody there it is closed, as it is when nobody answers.
                if let Some(next) = next {
                    connections.spawn(pass(client, next));
                }
                while connections.try_join_next().is_some() {}
            }
        });
        Ok(Self { http_url, behind, task })
    }

    pub fn add(&self, http_url: &str) -> anyhow::Result<()> {
        let address = http_url.trim_start_matches("http://").parse().context("no address")?;
        lock(&self.behind).push(Behind { address, under_way: Arc::default() });
        Ok(())
    }

    /// How many connections are with somebody at this moment.
    pub fn under_way(&self, http_url: &str) -> usize {
        let behind = lock(&self.behind);
        let one = behind.iter().find(|one| http_url.ends_with(&one.address.to_string()));
        one.map_or(0, |one| one.under_way.load(Ordering::Relaxed))
    }

    pub fn remove(&self, http_url: &str) {
        lock(&self.behind).retain(|one| !http_url.ends_with(&one.address.to_string()));
    }
}

impl Drop for Front {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn pass(mut client: TcpStream, behind: Behind) {
    let Ok(mut server) = TcpStream::connect(behind.address).await else { return };
    behind.under_way.fetch_add(1, Ordering::Relaxed);
    // However it ends, both sides hear of it.
    let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
    behind.under_way.fetch_sub(1, Ordering::Relaxed);
}

fn lock(behind: &Mutex<Vec<Behind>>) -> MutexGuard<'_, Vec<Behind>> {
    behind.lock().unwrap_or_else(PoisonError::into_inner)
}
