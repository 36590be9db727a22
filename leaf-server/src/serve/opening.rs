//! Reads the first bytes of a connection, which tell its version of HTTP.
//!
//! They are read, not peeked at, so that this works on every stream, also on one that decrypts. The
//! returned stream yields them again.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use hyper::Version;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, ReadBuf};

/// The first bytes of an HTTP/2 connection (RFC 9113, section 3.4); no HTTP/1 request begins with
/// them.
const PREFACE: [u8; 3] = *b"PRI";

/// A stream whose first bytes have been read, and which yields them again.
pub(crate) struct Opened<S> {
    stream: S,
    first: [u8; PREFACE.len()],
    /// The part of `first` that the stream has still to yield.
    unread: std::ops::Range<usize>,
}

/// Reads the first bytes of a connection until they tell the version of HTTP: HTTP/2 if they are
/// its preface. `None` if the client closes, or breaks off, before.
pub(crate) async fn open<S: AsyncRead + Unpin>(mut stream: S) -> Option<(Version, Opened<S>)> {
    let mut first = [0; PREFACE.len()];
    let mut read = 0;
    let version = loop {
        match stream.read(&mut first[read..]).await {
            Ok(length @ 1..) => read += length,
            Ok(0) | Err(_) => return None,
        }
        if first[..read] != PREFACE[..read] {
            break Version::HTTP_11;
        }
        if read == first.len() {
            break Version::HTTP_2;
        }
    };
    Some((version, Opened { stream, first, unread: 0..read }))
}

impl<S: AsyncRead + Unpin> AsyncRead for Opened<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.unread.is_empty() {
            return Pin::new(&mut self.stream).poll_read(context, into);
        }
        let end = self.unread.end.min(self.unread.start + into.remaining());
        into.put_slice(&self.first[self.unread.start..end]);
        self.unread.start = end;
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Opened<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, slices)
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
    use tokio::io::AsyncWriteExt as _;

    #[tokio::test]
    async fn the_first_bytes_tell_the_version_and_are_read_again() {
        for (text, expected) in [
            ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", Some(Version::HTTP_2)),
            ("GET / HTTP/1.1\r\n\r\n", Some(Version::HTTP_11)),
            ("POST / HTTP/1.1\r\n\r\n", Some(Version::HTTP_11)),
            ("x", Some(Version::HTTP_11)),
            ("PR", None),
            ("", None),
        ] {
            for piece in [1, 2, 3, 64] {
                let (mut client, server) = tokio::io::duplex(piece);
                let sent = tokio::spawn(async move {
                    // Nobody reads the rest of a connection that is given up.
                    let _ = client.write_all(text.as_bytes()).await;
                });
                let opened = open(server).await;
                assert_eq!(opened.as_ref().map(|(version, _)| *version), expected, "{text:?}");
                if let Some((_, mut stream)) = opened {
                    let mut read = String::new();
                    stream.read_to_string(&mut read).await.unwrap();
                    assert_eq!(read, text, "in pieces of {piece}");
                }
                sent.await.unwrap();
            }
        }
    }
}
