//! A TCP proxy that misbehaves on command, to stand between a program and its real server.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// What the proxy does to traffic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Passes everything on.
    None,
    /// Closes every connection, and new ones at once.
    Cut,
    /// Closes every connection with a reset, and new ones at once.
    Reset,
    /// Keeps connections open and passes nothing on, in either direction.
    BlackHole,
    /// Passes everything on after a delay.
    Delay(Duration),
    /// Passes requests on and drops the replies.
    SwallowReplies,
    /// Passes requests on, and this number of replies on each connection; drops the replies after
    /// them.
    SwallowAfter(u32),
    /// Drops requests; still passes on the replies to earlier requests.
    SwallowRequests,
}

/// A proxy on a free port of 127.0.0.1; ends when dropped.
#[derive(Debug)]
pub struct FaultProxy {
    address: SocketAddr,
    upstream: Arc<Mutex<SocketAddr>>,
    fault: watch::Sender<Fault>,
    acceptor: JoinHandle<()>,
    /// The number of open connections.
    open: Arc<AtomicUsize>,
}

/// Counts one open connection until it is dropped.
struct Open(Arc<AtomicUsize>);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl FaultProxy {
    /// Starts a proxy to `upstream`, passing everything on. Call it in a tokio runtime.
    ///
    /// # Panics
    /// When no port is free.
    pub async fn start(upstream: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("a bound socket has an address");
        let (fault, watched) = watch::channel(Fault::None);
        let upstream = Arc::new(Mutex::new(upstream));
        let (current, open) = (Arc::clone(&upstream), Arc::<AtomicUsize>::default());
        let count = Arc::clone(&open);
        let acceptor = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let upstream = *current.lock().expect("no holder of this lock panics");
                count.fetch_add(1, Ordering::SeqCst);
                let (open, watched) = (Open(Arc::clone(&count)), watched.clone());
                tokio::spawn(async move {
                    serve(client, upstream, watched).await;
                    drop(open);
                });
            }
        });
        Self { address, upstream, fault, acceptor, open }
    }

    /// The proxy's address, to connect to instead of the server.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Sends new connections to another server, like an address that moves in a failover.
    ///
    /// # Panics
    /// Never in practice: no holder of the lock panics.
    pub fn point_to(&self, upstream: SocketAddr) {
        *self.upstream.lock().expect("no holder of this lock panics") = upstream;
    }

    /// Closes the open connections, waits until they are closed, and then passes everything on
    /// again.
    ///
    /// # Panics
    /// When they do not end within 10 s.
    pub async fn cut(&self) {
        self.set(Fault::Cut);
        let closed = async {
            while self.open.load(Ordering::SeqCst) > 0 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(10), closed).await.expect("connections end");
        self.set(Fault::None);
    }

    /// Applies `fault` to all connections from now on; [`Fault::None`] ends it.
    pub fn set(&self, fault: Fault) {
        self.fault.send_replace(fault);
    }
}

impl Drop for FaultProxy {
    fn drop(&mut self) {
        self.acceptor.abort();
    }
}

async fn serve(mut client: TcpStream, upstream: SocketAddr, mut fault: watch::Receiver<Fault>) {
    let Ok(mut server) = TcpStream::connect(upstream).await else { return };
    // Both are on this machine: a failure to set it only slows the test.
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let (mut request, mut reply) = (vec![0; 64 * 1024], vec![0; 64 * 1024]);
    let mut replies = 0;
    loop {
        let now = *fault.borrow_and_update();
        let changed = match now {
            Fault::Cut => return,
            Fault::Reset => {
                // Closing with a linger time of zero sends a reset.
                let _ = client.set_zero_linger();
                return;
            }
            Fault::BlackHole => fault.changed().await,
            Fault::None
            | Fault::Delay(_)
            | Fault::SwallowReplies
            | Fault::SwallowRequests
            | Fault::SwallowAfter(_) => {
                tokio::select! {
                    changed = fault.changed() => {
                        replies = 0;
                        changed
                    }
                    read = client.read(&mut request) => {
                        if now == Fault::SwallowRequests && read.as_ref().is_ok_and(|read| *read > 0) {
                            continue;
                        }
                        if !pass_on(read, &request, &mut server, now).await {
                            return;
                        }
                        Ok(())
                    }
                    read = server.read(&mut reply) => {
                        replies += 1;
                        let swallow = match now {
                            Fault::SwallowReplies => true,
                            Fault::SwallowAfter(passed) => replies > passed,
                            _ => false,
                        };
                        if swallow && read.as_ref().is_ok_and(|read| *read > 0) {
                            continue;
                        }
                        if !pass_on(read, &reply, &mut client, now).await {
                            return;
                        }
                        Ok(())
                    }
                }
            }
        };
        // The proxy itself is gone: then so are its connections.
        if changed.is_err() {
            return;
        }
    }
}

/// Writes what was read to the other side; `false` when either side is gone.
async fn pass_on(
    read: std::io::Result<usize>,
    bytes: &[u8],
    to: &mut TcpStream,
    fault: Fault,
) -> bool {
    let Ok(read @ 1..) = read else { return false };
    if let Fault::Delay(delay) = fault {
        tokio::time::sleep(delay).await;
    }
    to.write_all(&bytes[..read]).await.is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::ErrorKind;
    use tokio::time::timeout;

    const SOON: Duration = Duration::from_millis(200);

    /// A server that sends everything back.
    async fn echo() -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                tokio::spawn(async move {
                    let (mut read, mut write) = stream.split();
                    tokio::io::copy(&mut read, &mut write).await
                });
            }
        });
        address
    }

    async fn ask(stream: &mut TcpStream) -> std::io::Result<u8> {
        stream.write_all(b"x").await?;
        stream.read_u8().await
    }

    #[tokio::test]
    async fn does_what_it_is_told_and_recovers() {
        let proxy = FaultProxy::start(echo().await).await;
        let connect = || TcpStream::connect(proxy.address());
        let mut stream = connect().await.unwrap();
        assert_eq!(ask(&mut stream).await.unwrap(), b'x');

        proxy.set(Fault::BlackHole);
        assert!(timeout(SOON, ask(&mut stream)).await.is_err(), "neither answer nor end");
        proxy.set(Fault::None);
        assert_eq!(stream.read_u8().await.unwrap(), b'x', "what was held arrives");

        proxy.set(Fault::SwallowReplies);
        assert!(timeout(SOON, ask(&mut stream)).await.is_err());
        proxy.set(Fault::Delay(SOON));
        let asked = tokio::time::Instant::now();
        assert_eq!(ask(&mut stream).await.unwrap(), b'x', "the reply before this one is lost");
        assert!(asked.elapsed() >= SOON);
        proxy.set(Fault::SwallowRequests);
        assert!(timeout(SOON, ask(&mut stream)).await.is_err(), "it never got there");

        proxy.set(Fault::Cut);
        let ended = stream.read_u8().await.unwrap_err().kind();
        assert_eq!(ended, ErrorKind::UnexpectedEof);
        proxy.set(Fault::None);
        let mut stream = connect().await.unwrap();
        assert_eq!(ask(&mut stream).await.unwrap(), b'x');

        proxy.set(Fault::Reset);
        let ended = stream.read_u8().await.unwrap_err().kind();
        assert_eq!(ended, ErrorKind::ConnectionReset);
    }
}
