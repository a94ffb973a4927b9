//! The vendors' side of what people write: each message is delivered until it is taken, some of them twice.

use std::{
    collections::BTreeSet,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    task::JoinSet,
};

use crate::channels::bots::{MARK, VENDORS, webhook};
use crate::channels::ingress::vendors::Vendor;

/// Every so manieth message that was taken is delivered once more.
const AGAIN: u32 = 5;
/// Every so manieth message is delivered twice at a time.
const TWICE: u32 = 7;
/// How long a vendor waits before it delivers again.
const PAUSE: Duration = Duration::from_millis(100);

/// Which vendor message `n` comes from.
pub fn vendor_of(n: u32) -> Vendor {
    VENDORS[n as usize % VENDORS.len()]
}

struct Shared {
    address: String,
    paths: [(Vendor, String); 3],
    next: AtomicU32,
    /// No more than these.
    is_enough: AtomicBool,
    at_least: u32,
    /// Those that were answered with 200.
    taken: Mutex<BTreeSet<u32>>,
    deliveries: AtomicUsize,
    unanswered: AtomicUsize,
}

pub struct Driver {
    shared: Arc<Shared>,
    clients: JoinSet<()>,
}

/// The messages of the vendors.
#[derive(Debug, Default, Clone)]
pub struct Delivered {
    /// How many messages there were: 0, 1, 2, …
    pub messages: u32,
    pub taken: BTreeSet<u32>,
    pub deliveries: usize,
    /// Deliveries that nobody answered.
    pub unanswered: usize,
}

impl Driver {
    /// Begins to deliver.
    pub fn start(http_url: &str, paths: [(Vendor, String); 3], clients: usize, at_least: u32) -> Self {
        let shared = Arc::new(Shared {
            address: http_url.trim_start_matches("http://").to_owned(),
            paths,
            next: AtomicU32::new(0),
            is_enough: AtomicBool::new(false),
            at_least,
            taken: Mutex::default(),
            deliveries: AtomicUsize::new(0),
            unanswered: AtomicUsize::new(0),
        });
        let mut running = JoinSet::new();
        for _ in 0..clients {
            running.spawn(Arc::clone(&shared).run());
        }
        Self { shared, clients: running }
    }

    /// How many messages were taken so far.
    pub fn taken(&self) -> usize {
        self.shared.taken.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Begins no new message, once there are enough.
    pub fn is_enough(&self) {
        self.shared.is_enough.store(true, Ordering::Relaxed);
    }

    pub fn is_done(&mut self) -> bool {
        while self.clients.try_join_next().is_some() {}
        self.clients.is_empty()
    }

    pub fn delivered(&self) -> Delivered {
        let shared = &self.shared;
        Delivered {
            messages: shared.next.load(Ordering::Relaxed),
            taken: shared.taken.lock().unwrap_or_else(PoisonError::into_inner).clone(),
            deliveries: shared.deliveries.load(Ordering::Relaxed),
            unanswered: shared.unanswered.load(Ordering::Relaxed),
        }
    }
}

impl Shared {
    async fn run(self: Arc<Self>) {
        loop {
            let begun = self.next.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| {
                (n < self.at_least || !self.is_enough.load(Ordering::Relaxed)).then_some(n + 1)
            });
            let Ok(n) = begun else { return };
            if n.is_multiple_of(TWICE) {
                tokio::join!(self.deliver(n), self.deliver(n));
            } else {
                self.deliver(n).await;
            }
            if n.is_multiple_of(AGAIN) {
                self.deliver(n).await;
            }
        }
    }

    /// Delivers until it is answered with 200.
    async fn deliver(&self, n: u32) {
        loop {
            self.deliveries.fetch_add(1, Ordering::Relaxed);
            match self.post(n).await {
                Some(200) => break,
                Some(_) => {}
                None => drop(self.unanswered.fetch_add(1, Ordering::Relaxed)),
            }
            tokio::time::sleep(PAUSE).await; // as a vendor does
        }
        self.taken.lock().unwrap_or_else(PoisonError::into_inner).insert(n);
    }

    async fn post(&self, n: u32) -> Option<u16> {
        let (vendor, path) = self.paths.iter().find(|(vendor, _)| *vendor == vendor_of(n))?;
        let webhook = webhook(*vendor, n);
        let mut request = format!(
            "POST {path} HTTP/1.1\r\nhost: {}\r\nconnection: close\r\ncontent-length: {}\r\n",
            self.address,
            webhook.body.len()
        );
        for (name, value) in webhook.signed(MARK) {
            request.push_str(&format!("{name}: {value}\r\n"));
        }
        request.push_str("\r\n");
        let mut stream = TcpStream::connect(&self.address).await.ok()?;
        stream.write_all(&[request.as_bytes(), &webhook.body].concat()).await.ok()?;
        let mut answer = Vec::new();
        // The bytes before the end count, even after an error.
        let _ = stream.read_to_end(&mut answer).await;
        let answer = String::from_utf8_lossy(&answer);
        let (head, _) = answer.split_once("\r\n\r\n")?;
        head.split(' ').nth(1)?.parse().ok()
    }
}
