//! Connections whose peers must accept the data that they are sent.
//!
//! A peer that stops reading would keep its connection, and what is meant for it, for ever: no layer above notices while
//! nothing can be written. So a write that makes no progress for a while is an error, and the connection ends.

use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use axum::serve::Listener;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore},
    time::Sleep,
};

use crate::common::peers::Peer;

/// Accepts connections up to a maximum number.
pub(crate) struct BoundedListener {
    listener: TcpListener,
    write_timeout: Duration,
    capacity: Arc<Semaphore>,
}

impl BoundedListener {
    pub(crate) fn new(listener: TcpListener, write_timeout: Duration, connections_max: usize) -> Self {
        Self { listener, write_timeout, capacity: Arc::new(Semaphore::new(connections_max)) }
    }

    /// Returns the next connection and its permit. Dropping the permit makes room for another connection.
    pub(crate) async fn accept(&mut self) -> (Connection, Option<OwnedSemaphorePermit>) {
        // The semaphore is never closed, so there is always a permit in the end.
        let permit = Arc::clone(&self.capacity).acquire_owned().await.ok();
        let (stream, peer) = Listener::accept(&mut self.listener).await;
        // An event is small and must not wait for the next one.
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!("cannot turn off the delay of small packets: {error}");
        }
        (
            Connection { stream, peer: Peer(peer.ip()), write_timeout: self.write_timeout, stalled: None },
            permit,
        )
    }
}

/// A connection that ends when its peer accepts no data for too long.
pub(crate) struct Connection {
    stream: TcpStream,
    peer: Peer,
    write_timeout: Duration,
    /// Runs from a write that had to wait to the next that made progress.
    stalled: Option<Pin<Box<Sleep>>>,
}

impl Connection {
    pub(crate) fn peer(&self) -> Peer {
        self.peer
    }

    fn wait_at_most<T>(
        &mut self,
        context: &mut Context<'_>,
        written: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.stalled = None;
            return written;
        }
        let timeout = self.write_timeout;
        let stalled = self.stalled.get_or_insert_with(|| Box::pin(tokio::time::sleep(timeout)));
        stalled.as_mut().poll(context).map(|()| {
            metrics::counter!("postrider_connections_stalled_total").increment(1);
            Err(io::Error::new(io::ErrorKind::TimedOut, "the peer does not read what it is sent"))
        })
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.wait_at_most(context, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, pieces);
        self.wait_at_most(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_number_of_connections_is_bounded() -> io::Result<()> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let mut listener = BoundedListener::new(listener, Duration::from_secs(1), 1);
        let _peers = [TcpStream::connect(address).await?, TcpStream::connect(address).await?];
        let (_first, permit) = listener.accept().await;
        assert!(permit.is_some());
        // Both peers have connected. The second connection is not accepted while the first one has the permit.
        tokio::select! {
            biased;
            _ = listener.accept() => panic!("accepted a connection over the limit"),
            () = accept_is_polled() => {}
        }
        drop(permit);
        assert!(listener.accept().await.1.is_some());
        Ok(())
    }

    /// Yields until a waiting connection would have been accepted.
    async fn accept_is_polled() {
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
    }
}
