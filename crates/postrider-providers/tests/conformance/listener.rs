//! Somebody inside: a listener on every address of this machine, who counts whoever comes.

use std::{
    collections::HashMap,
    net::{IpAddr, SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use reqwest::dns::{Addrs, Name, Resolve, Resolving};

/// It never answers. Connections stand in its queue until they are counted.
pub struct Inside {
    listener: TcpListener,
}

impl Inside {
    pub fn start() -> Self {
        // Both families: Linux gives IPv4 to a listener on `::` as well. Without IPv6 there is nothing to listen for.
        let listener = TcpListener::bind("[::]:0").or_else(|_| TcpListener::bind("0.0.0.0:0")).unwrap();
        listener.set_nonblocking(true).unwrap();
        Self { listener }
    }

    pub fn port(&self) -> u16 {
        self.listener.local_addr().unwrap().port()
    }

    /// How many have come since the last time. A connection of our own stands behind all others in the queue.
    pub fn count(&self) -> usize {
        let last = TcpStream::connect(("127.0.0.1", self.port())).unwrap();
        let last = last.local_addr().unwrap();
        let mut count = 0;
        loop {
            match self.listener.accept() {
                Ok((_, peer)) if peer.port() == last.port() => return count,
                Ok(_) => count += 1,
                Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock, "{error}"),
            }
        }
    }
}

/// A name server of an attacker: each name has its lists of addresses, one per question; the last one stays.
pub struct Names {
    known: HashMap<&'static str, Vec<Vec<IpAddr>>>,
    asked: Mutex<HashMap<String, usize>>,
    questions: AtomicUsize,
}

impl Names {
    pub fn new(known: &[(&'static str, &[&[&str]])]) -> Arc<Self> {
        let addresses = |list: &&[&str]| list.iter().map(|address| address.parse().unwrap()).collect();
        let known =
            known.iter().map(|(name, lists)| (*name, lists.iter().map(addresses).collect())).collect();
        Arc::new(Self { known, asked: Mutex::default(), questions: AtomicUsize::new(0) })
    }

    /// How often it was asked since the last time.
    pub fn questions(&self) -> usize {
        self.questions.swap(0, Ordering::SeqCst)
    }
}

impl Resolve for Names {
    fn resolve(&self, name: Name) -> Resolving {
        self.questions.fetch_add(1, Ordering::SeqCst);
        let name = name.as_str().trim_end_matches('.').to_owned();
        let mut asked = self.asked.lock().unwrap();
        let turn = asked.entry(name.clone()).or_default();
        let lists = self.known.get(name.as_str()).unwrap_or_else(|| panic!("nobody knows `{name}`"));
        let found = lists[(*turn).min(lists.len() - 1)].clone();
        *turn += 1;
        let addresses = found.into_iter().map(|ip| SocketAddr::new(ip, 0));
        Box::pin(async move { Ok(Box::new(addresses) as Addrs) })
    }
}
