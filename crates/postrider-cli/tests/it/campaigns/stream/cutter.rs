//! A network that breaks: connections pass through here, and are cut after a few bytes of their answer.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

/// Cuts so many connections, and then no more.
pub struct Cutter {
    pub http_url: String,
    cuts: Arc<AtomicUsize>,
    task: tokio::task::JoinHandle<()>,
}

impl Cutter {
    /// In front of a server. Connections are cut within so many bytes of what is answered on them, the spared ones not counted.
    pub async fn start(http_url: &str, cuts_max: usize, spared: u64, bytes_max: u64) -> anyhow::Result<Self> {
        let server = http_url.trim_start_matches("http://").to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let http_url = format!("http://{}", listener.local_addr()?);
        let cuts = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&cuts);
        let task = tokio::spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                connections.spawn(pass(
                    client,
                    server.clone(),
                    Arc::clone(&counted),
                    cuts_max,
                    spared + random() % bytes_max,
                ));
            }
        });
        Ok(Self { http_url, cuts, task })
    }

    pub fn cuts(&self) -> usize {
        self.cuts.load(Ordering::Relaxed)
    }
}

impl Drop for Cutter {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn pass(
    mut client: TcpStream,
    server: String,
    cuts: Arc<AtomicUsize>,
    cuts_max: usize,
    may_pass: u64,
) -> anyhow::Result<()> {
    let mut server = TcpStream::connect(server).await?;
    let (mut from_client, mut to_client) = client.split();
    let (mut from_server, mut to_server) = server.split();
    let answering = async {
        let (mut passed, mut buffer) = (0, [0; 1024]);
        loop {
            let read = from_server.read(&mut buffer).await?;
            if read == 0 {
                return Ok(());
            }
            let left = usize::try_from(may_pass - passed)?;
            // Once enough was cut, everything passes.
            if read >= left
                && cuts
                    .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| (n < cuts_max).then_some(n + 1))
                    .is_ok()
            {
                to_client.write_all(&buffer[..left]).await?;
                to_client.flush().await?;
                return anyhow::Ok(());
            }
            passed = may_pass.min(passed + read as u64);
            to_client.write_all(&buffer[..read]).await?;
        }
    };
    let asking = async {
        tokio::io::copy(&mut from_client, &mut to_server).await?;
        // The client is gone, and so is what it asked for.
        anyhow::Ok(())
    };
    tokio::select! { answered = answering => answered, asked = asking => asked }
}

fn random() -> u64 {
    uuid::Uuid::now_v7().as_u64_pair().1
}
