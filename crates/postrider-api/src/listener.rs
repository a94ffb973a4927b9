//! Connections whose peers must take what they are sent.
//!
//! A peer that stops reading would keep its connection, and what is meant for it, for ever: no layer above notices while
//! nothing can be written. So a write that makes no progress for a while is an error, and the connection ends.

use std::{
    io,
    net::SocketAddr,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use axum::serve::Listener;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpListener, TcpStream},
    time::Sleep,
};

/// Accepts connections.
pub(crate) struct Door {
    pub(crate) listener: TcpListener,
    pub(crate) write_timeout: Duration,
}

impl Listener for Door {
    type Io = Connection;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Connection, SocketAddr) {
        let (stream, address) = Listener::accept(&mut self.listener).await;
        // An event is small and must not wait for the next one.
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!("cannot turn off the delay of small packets: {error}");
        }
        (Connection { stream, write_timeout: self.write_timeout, stalled: None }, address)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// A connection that ends when its peer takes nothing for too long.
pub(crate) struct Connection {
    stream: TcpStream,
    write_timeout: Duration,
    /// Runs from a write that had to wait to the next that made progress.
    stalled: Option<Pin<Box<Sleep>>>,
}

impl Connection {
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
