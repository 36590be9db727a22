//! Collects the answers of an HTTP/1 connection until the connection's task pauses.
//!
//! Answers to requests that came together leave together: one system call instead of one each.
//! Invariant: whenever the task pauses, everything is sent that the socket takes, whatever the task
//! waits for; and at most [`LIMIT`] bytes are collected. So a client that does not read holds up
//! its own answers only.
//!
//! (hyper's own `pipeline_flush` is not used: it holds answers back while any part of a next
//! request is there, and without limit.)

use std::io;
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::heads::Heads;
use crate::serve::{Control, buffers, linger};

/// The most bytes that are collected.
const LIMIT: usize = 32 * 1024;
/// A stream whose writes wait in an [`Outbox`].
///
/// hyper reads from it and writes to it. It shares its state with the outbox, under a lock that is
/// never contended: one task owns both.
pub(super) struct Collected<S>(Arc<Mutex<State<S>>>);

/// Sends what was collected.
pub(super) struct Outbox<S>(Arc<Mutex<State<S>>>);

/// The state that a [`Collected`] and its [`Outbox`] share.
struct State<S> {
    stream: S,
    /// Checks the request heads that the client sends.
    heads: Heads,
    control: Arc<Control>,
    /// The bytes that hyper has written. Those from index `sent` on are not sent yet.
    collected: Vec<u8>,
    /// How many bytes of `collected` have been sent.
    sent: usize,
    /// The error after which nothing can be sent any more; `None` as long as sending works.
    failed: Option<io::ErrorKind>,
}

/// Wraps `stream`: returns the stream for hyper, and the outbox that sends what hyper writes.
pub(super) fn collect<S>(stream: S, control: Arc<Control>) -> (Collected<S>, Outbox<S>) {
    let heads = Heads::default();
    let state = State { stream, heads, control, collected: Vec::new(), sent: 0, failed: None };
    let state = Arc::new(Mutex::new(state));
    (Collected(Arc::clone(&state)), Outbox(state))
}

impl<S: AsyncRead + AsyncWrite + Unpin> Outbox<S> {
    /// After the last answer, goes on reading for a short time what the client sends, so that
    /// closing does not reset the connection.
    pub(super) async fn linger(&self) {
        linger(|context, scratch| Pin::new(&mut lock(&self.0).stream).poll_read(context, scratch))
            .await;
    }

    /// Sends what is collected; called whenever the connection's task pauses. A failure is stored,
    /// and the next write returns it: a write that only collects would not notice that the client
    /// is gone, and a stream of short lines would go on until the buffer is full.
    pub(super) fn send(&self, context: &mut Context<'_>) {
        let mut state = lock(&self.0);
        if let Poll::Ready(Err(error)) = state.poll_send(context) {
            state.failed = Some(error.kind());
        }
    }
}

/// Locks the state.
fn lock<S>(state: &Mutex<State<S>>) -> MutexGuard<'_, State<S>> {
    state.lock().expect("no holder of this lock panics")
}

impl<S: AsyncWrite + Unpin> State<S> {
    /// Sends what is collected, as far as the socket takes it.
    fn poll_send(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.sent < self.collected.len() {
            let rest = &self.collected[self.sent..];
            let sent = ready!(Pin::new(&mut self.stream).poll_write(context, rest))?;
            if sent == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.sent += sent;
        }
        self.collected.clear();
        self.sent = 0;
        buffers::give_back(&mut self.collected);
        // A stream that encrypts may keep some of it.
        Pin::new(&mut self.stream).poll_flush(context)
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Collected<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let mut state = lock(&self.0);
        let before = into.filled().len();
        ready!(Pin::new(&mut state.stream).poll_read(context, into))?;
        if state.heads.read(&into.filled()[before..]).is_err() {
            // The parser takes it; whoever answers the request does not.
            state.control.ambiguous.store(true, Ordering::Relaxed);
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Collected<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let mut state = lock(&self.0);
        if let Some(failed) = state.failed {
            return Poll::Ready(Err(failed.into()));
        }
        if state.collected.len() >= LIMIT {
            ready!(state.poll_send(context))?;
        }
        buffers::provide(&mut state.collected);
        let room = LIMIT - state.collected.len();
        let taken = bytes.len().min(room);
        state.collected.extend_from_slice(&bytes[..taken]);
        Poll::Ready(Ok(taken))
    }

    /// Does nothing: what was written is flushed once the task pauses.
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut state = lock(&self.0);
        ready!(state.poll_send(context))?;
        Pin::new(&mut state.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use tokio::net::TcpStream;

    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    async fn pair() -> (TcpStream, TcpStream) {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        (client, listener.accept().await.unwrap().0)
    }

    #[tokio::test]
    async fn writes_leave_together_when_the_task_pauses() {
        let (mut client, server) = pair().await;
        let (mut stream, outbox) = collect(server, Arc::default());
        for _ in 0..3 {
            stream.write_all(b"answer").await.unwrap();
            stream.flush().await.unwrap();
        }
        let mut read = [0; 64];
        let nothing = client.try_read(&mut read).unwrap_err();
        assert_eq!(nothing.kind(), io::ErrorKind::WouldBlock);

        poll_fn(|context| {
            outbox.send(context);
            Poll::Ready(())
        })
        .await;
        assert_eq!(client.read(&mut read).await.unwrap(), 18);
    }

    #[tokio::test]
    async fn a_client_that_does_not_read_stops_its_answers() {
        let (client, server) = pair().await;
        let (mut stream, outbox) = collect(server, Arc::default());
        let chunk = [0; 8 * 1024];
        let mut written = 0u64;
        // Until neither the socket nor the outbox takes more.
        while poll_fn(|context| {
            outbox.send(context);
            Poll::Ready(Pin::new(&mut stream).poll_write(context, &chunk).is_ready())
        })
        .await
        {
            written += 8 * 1024;
            assert!(written < 1 << 30, "no end");
        }
        assert!(lock(&outbox.0).collected.capacity() <= 2 * LIMIT);
        drop(client);
    }

    #[tokio::test]
    async fn the_end_sends_what_is_left() {
        let (mut client, server) = pair().await;
        let (mut stream, _outbox) = collect(server, Arc::default());
        stream.write_all(b"last words").await.unwrap();
        stream.shutdown().await.unwrap();
        let mut read = String::new();
        client.read_to_string(&mut read).await.unwrap();
        assert_eq!(read, "last words");
    }
}
