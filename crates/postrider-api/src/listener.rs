//! Connections whose peers must take what they are sent.
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

use crate::peers::Peer;

/// Accepts connections, while there is room for them.
pub(crate) struct Door {
    listener: TcpListener,
    write_timeout: Duration,
    room: Arc<Semaphore>,
}

impl Door {
    pub(crate) fn new(listener: TcpListener, write_timeout: Duration, connections_max: usize) -> Self {
        Self { listener, write_timeout, room: Arc::new(Semaphore::new(connections_max)) }
    }

    /// The next connection, and its place among those that there may be. Dropping the place makes room.
    pub(crate) async fn accept(&mut self) -> (Connection, Option<OwnedSemaphorePermit>) {
        // It is never closed, so there is always a place in the end.
        let place = Arc::clone(&self.room).acquire_owned().await.ok();
        let (stream, peer) = Listener::accept(&mut self.listener).await;
        // An event is small and must not wait for the next one.
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!("cannot turn off the delay of small packets: {error}");
        }
        (
            Connection { stream, peer: Peer(peer.ip()), write_timeout: self.write_timeout, stalled: None },
            place,
        )
    }
}

/// A connection that ends when its peer takes nothing for too long.
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
    async fn there_are_no_more_connections_than_there_may_be() -> io::Result<()> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let mut door = Door::new(listener, Duration::from_secs(1), 1);
        let _peers = [TcpStream::connect(address).await?, TcpStream::connect(address).await?];
        let (_first, place) = door.accept().await;
        assert!(place.is_some());
        // Both have come. The second is not let in while the first is there.
        tokio::select! {
            biased;
            _ = door.accept() => panic!("there was no room"),
            () = door_is_tried() => {}
        }
        drop(place);
        assert!(door.accept().await.1.is_some());
        Ok(())
    }

    /// As long as it takes to hear of a connection that waits.
    async fn door_is_tried() {
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
    }
}
