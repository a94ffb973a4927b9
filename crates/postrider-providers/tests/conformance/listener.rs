//! A listener on every address of this machine that counts connections, and a hostile name server.

use std::{
    collections::HashMap,
    net::{IpAddr, SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use reqwest::dns::{Addrs, Name, Resolve, Resolving};

/// A listener that never answers. Connections wait in its queue until they are counted.
pub struct PrivateListener {
    listener: TcpListener,
}

impl PrivateListener {
    pub fn start() -> Self {
        // On Linux a listener on `::` also accepts IPv4.
        let listener = TcpListener::bind("[::]:0").or_else(|_| TcpListener::bind("0.0.0.0:0")).unwrap();
        listener.set_nonblocking(true).unwrap();
        Self { listener }
    }

    pub fn port(&self) -> u16 {
        self.listener.local_addr().unwrap().port()
    }

    /// Number of connections since the last count. A marker connection is behind all others in the queue.
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

/// The name server of an attacker: each name has one list of addresses per resolution; the last one is repeated.
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

    /// Number of resolutions since the last call.
    pub fn questions(&self) -> usize {
        self.questions.swap(0, Ordering::SeqCst)
    }
}

impl Resolve for Names {
    fn resolve(&self, name: Name) -> Resolving {
        self.questions.fetch_add(1, Ordering::SeqCst);
        let name = name.as_str().trim_end_matches('.').to_owned();
        let mut asked = self.asked.lock().unwrap();
        let resolution = asked.entry(name.clone()).or_default();
        let lists = self.known.get(name.as_str()).unwrap_or_else(|| panic!("`{name}` is not known"));
        let found = lists[(*resolution).min(lists.len() - 1)].clone();
        *resolution += 1;
        let addresses = found.into_iter().map(|ip| SocketAddr::new(ip, 0));
        Box::pin(async move { Ok(Box::new(addresses) as Addrs) })
    }
}
