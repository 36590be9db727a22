//! TLS of the listeners: which connections are encrypted, and with what.
//!
//! The files are read again while the server runs. Invariant: the certificate, the key and the
//! authorities of clients that are in force belong together. Files that do not fit together change
//! nothing.
//!
//! If clients show certificates, no session is resumed, since rustls would not look at the
//! certificate again. 0-RTT is never offered: if an attacker repeats a request, the id that it
//! takes is lost.

use std::future::poll_fn;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use std::time::Duration;

use arc_swap::ArcSwap;
use leaf_node::config::{Config, ConfigError, Tls as Paths, TlsMode};
use leaf_node::tls::Files;
use leaf_node::tokens::Credential;
use rustls::crypto::ring;
use rustls::server::{Acceptor, NoServerSessionStorage, WebPkiClientVerifier};
use rustls::sign::CertifiedKey;
use rustls::{RootCertStore, ServerConfig};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio_rustls::LazyConfigAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::either::Either;
use x509_cert::der::Decode as _;
use x509_cert::ext::pkix::SubjectAltName;
use x509_cert::ext::pkix::name::GeneralName;

use super::{Control, Order};
use crate::caller::Peer;
use crate::refusal::{Face, words};
use crate::reread::Rereading;

/// How long a handshake may take.
const HANDSHAKE: Duration = Duration::from_secs(5);
/// The first byte of a TLS handshake, the type of its record (RFC 8446, section 5.1). No request
/// over HTTP or the Redis protocol begins with it.
const RECORD: u8 = 22;

/// The bytes of a connection, encrypted or not. The state of TLS, a kilobyte, is in a box, so that
/// an unencrypted connection does not need the room.
pub(crate) type Bytes = Either<TcpStream, Box<TlsStream<TcpStream>>>;

words! {
    /// The result of a handshake, for metrics.
    Handshake:
    Done => "done",
    Failed => "failed",
    TooSlow => "too-slow",
}

/// The certificates of a server.
#[derive(Debug)]
pub(crate) struct Tls {
    paths: Paths,
    current: ArcSwap<Current>,
    /// The reading of the files of certificates.
    pub(crate) files: Rereading,
    handshakes: [[AtomicU64; Handshake::ALL.len()]; Face::ALL.len()],
}

/// The files in force, and the settings made from them.
#[derive(Debug)]
struct Current {
    files: Files,
    /// The settings of each face, which differ in the protocols that they offer.
    configs: [Arc<ServerConfig>; Face::ALL.len()],
    /// When the certificate expires, as the time since 1970.
    end: Duration,
}

/// The protocols that a client may choose from in the handshake (ALPN). gRPC's clients for Go
/// refuse a server that offers none; clients of the Redis protocol offer none.
fn protocols(face: Face) -> Vec<Vec<u8>> {
    match face {
        Face::Http | Face::Ops => vec![b"h2".to_vec(), b"http/1.1".to_vec()],
        #[cfg(feature = "grpc")]
        Face::Grpc => vec![b"h2".to_vec()],
        Face::Redis => Vec::new(),
    }
}

impl Current {
    fn new(files: Files) -> Result<Self, ConfigError> {
        let refuse =
            |key: &str, why: &dyn std::fmt::Display| ConfigError::new(format!("{key}: {why}"));
        let provider = Arc::new(ring::default_provider());
        let chain = files.certificates()?;
        let own = x509_cert::Certificate::from_der(&chain[0]);
        let own = own.map_err(|error| refuse("tls.certificate", &error))?;
        let end = own.tbs_certificate().validity().not_after.to_unix_duration();
        let key = provider.key_provider.load_private_key(files.key()?);
        // The error may repeat what is in the file.
        let key = key.map_err(|_| refuse("tls.key", &"this kind of key cannot be used"))?;
        let certified = CertifiedKey::new(chain, key);
        certified
            .keys_match()
            .map_err(|_| refuse("tls.key", &"it is not the key of tls.certificate"))?;
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(|error| refuse("tls", &error))?;
        let authorities = files.client_authorities()?;
        let shows = authorities.is_some();
        let builder = match authorities {
            None => builder.with_no_client_auth(),
            Some(authorities) => {
                let mut roots = RootCertStore::empty();
                for authority in authorities {
                    roots.add(authority).map_err(|error| refuse("tls.client_ca", &error))?;
                }
                let verifier =
                    WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build();
                let verifier = verifier.map_err(|error| refuse("tls.client_ca", &error))?;
                builder.with_client_cert_verifier(verifier)
            }
        };
        let mut config =
            builder.with_cert_resolver(Arc::new(rustls::sign::SingleCertAndKey::from(certified)));
        if shows {
            config.session_storage = Arc::new(NoServerSessionStorage {});
            config.send_tls13_tickets = 0;
        }
        let configs = std::array::from_fn(|face| {
            let mut config = config.clone();
            config.alpn_protocols = protocols(Face::ALL[face]);
            Arc::new(config)
        });
        Ok(Self { files, configs, end })
    }
}

impl Tls {
    /// Reads the files; `None` if no listener uses TLS.
    ///
    /// # Errors
    /// The files cannot be read, or do not fit together.
    pub(crate) fn open(config: &Config) -> Result<Option<Arc<Self>>, ConfigError> {
        if config.tls_modes().iter().all(|(_, mode)| *mode == TlsMode::Off) {
            return Ok(None);
        }
        let current = Current::new(Files::read(&config.tls)?)?;
        Ok(Some(Arc::new(Self {
            paths: config.tls.clone(),
            current: ArcSwap::from_pointee(current),
            files: Rereading::default(),
            handshakes: Default::default(),
        })))
    }

    /// Reads the files again. Changed ones are used for new connections.
    pub(crate) async fn read_again(self: &Arc<Self>) {
        let this = Arc::clone(self);
        let read = move || match Files::read(&this.paths)? {
            files if files == this.current.load().files => Ok(None),
            files => Current::new(files).map(Some),
        };
        let what = ("tls", "the former certificate stays in force");
        let follow = |newer: Option<Current>| {
            if let Some(newer) = newer {
                self.current.store(Arc::new(newer));
                tracing::info!("tls: took over another certificate, for new connections");
            }
        };
        self.files.again(what, read, follow).await;
    }

    /// When the certificate expires, as the time since 1970.
    pub(crate) fn end(&self) -> Duration {
        self.current.load().end
    }

    /// How many handshakes of a face had this result.
    pub(crate) fn handshakes(&self, face: Face, handshake: Handshake) -> u64 {
        self.handshakes[face as usize][handshake as usize].load(Ordering::Relaxed)
    }
}

/// Lets connections into a listener: unencrypted, or after a TLS handshake, as it is configured.
#[derive(Debug, Clone)]
pub(crate) struct Door {
    face: Face,
    mode: TlsMode,
    /// Always `Some` unless the mode is `Off`.
    tls: Option<Arc<Tls>>,
}

impl Door {
    /// The door of a listener.
    pub(crate) const fn new(face: Face, mode: TlsMode, tls: Option<Arc<Tls>>) -> Self {
        Self { face, mode, tls }
    }

    /// Finds out whether a connection that was just accepted is encrypted; if so, does the
    /// handshake. Returns `None` if the connection ends here.
    pub(super) async fn enter(
        &self,
        stream: TcpStream,
        control: &Control,
        turns: &Semaphore,
    ) -> Option<(Bytes, Peer)> {
        let mut peer = Peer { address: stream.peer_addr().ok(), names: None };
        let Some(tls) = &self.tls else { return Some((Either::Left(stream), peer)) };
        match self.mode {
            TlsMode::Off => return Some((Either::Left(stream), peer)),
            // For as long as the client may be silent.
            TlsMode::Optional => {
                let mut first = [0];
                match control.unless(Order::Finish, stream.peek(&mut first)).await? {
                    Ok(1) if first[0] == RECORD => {}
                    Ok(1) => return Some((Either::Left(stream), peer)),
                    _ => return None,
                }
            }
            TlsMode::Required => {}
        }
        let config = Arc::clone(&tls.current.load().configs[self.face as usize]);
        // On the heap: it is larger than all that a connection without TLS needs.
        let handshake = Box::pin(handshake(stream, config, turns));
        let handshake = tokio::time::timeout(HANDSHAKE, handshake);
        let (ended, stream) = match control.unless(Order::Close, handshake).await? {
            Ok(Ok(stream)) => {
                peer.names = names(&stream);
                (Handshake::Done, Some((Either::Right(Box::new(stream)), peer)))
            }
            Ok(Err(error)) => {
                tracing::debug!("{}: a handshake failed: {error}", self.face.name());
                (Handshake::Failed, None)
            }
            Err(_) => (Handshake::TooSlow, None),
        };
        tls.handshakes[self.face as usize][ended as usize].fetch_add(1, Ordering::Relaxed);
        stream
    }
}

/// The names in the certificate that the client has shown.
fn names(stream: &TlsStream<TcpStream>) -> Option<Box<[Credential]>> {
    let shown = stream.get_ref().1.peer_certificates()?.first()?;
    let certificate = x509_cert::Certificate::from_der(shown).ok()?;
    let (_, names) = certificate.tbs_certificate().get_extension::<SubjectAltName>().ok()??;
    let names = names.0.iter().filter_map(|name| match name {
        GeneralName::DnsName(name) => Some(Credential::Dns(name.as_str().to_ascii_lowercase())),
        GeneralName::UniformResourceIdentifier(uri) => Some(Credential::Uri(uri.as_str().into())),
        _ => None,
    });
    Some(names.collect())
}

/// Does a handshake. Signing takes the processor as long as thirty requests for an id. So the
/// handshake waits for this connection's turn, and between two turns the other connections of the
/// thread run: a crowd of new clients must not hold them up.
async fn handshake<S: AsyncRead + AsyncWrite + Unpin>(
    stream: S,
    config: Arc<ServerConfig>,
    turns: &Semaphore,
) -> io::Result<TlsStream<S>> {
    let hello = LazyConfigAcceptor::new(Acceptor::default(), stream).await?;
    let turn = turns.acquire().await.map_err(io::Error::other)?;
    // This call signs.
    let mut rest = pin!(hello.into_stream(config));
    let begun = poll_fn(|context| Poll::Ready(rest.as_mut().poll(context))).await;
    // Without it the next turn would come before any other task's.
    tokio::task::yield_now().await;
    drop(turn);
    match begun {
        Poll::Ready(ended) => ended,
        Poll::Pending => rest.await,
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::rc::Rc;

    use rustls::server::{ClientHello, ResolvesServerCert};
    use rustls::{ClientConfig, ClientConnection};
    use tokio::io::AsyncWriteExt as _;
    use tokio::task::LocalSet;

    use super::*;

    thread_local! {
        /// What ran, in order: `s` for a signature, `.` for another connection.
        static RAN: RefCell<String> = const { RefCell::new(String::new()) };
    }

    /// Notes when a handshake asks for the certificate, which is when it is about to sign.
    #[derive(Debug)]
    struct Noting(Arc<CertifiedKey>);

    impl ResolvesServerCert for Noting {
        fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
            RAN.with_borrow_mut(|ran| ran.push('s'));
            Some(Arc::clone(&self.0))
        }
    }

    /// The first message of a client.
    fn hello() -> Vec<u8> {
        let client = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(RootCertStore::empty())
            .with_no_client_auth();
        let name = "127.0.0.1".try_into().unwrap();
        let mut client = ClientConnection::new(Arc::new(client), name).unwrap();
        let mut bytes = Vec::new();
        client.write_tls(&mut bytes).unwrap();
        bytes
    }

    #[tokio::test]
    async fn a_crowd_of_new_clients_lets_other_connections_run_in_between() {
        let made = leaf_testkit::Certificates::make();
        let paths = Paths {
            certificate: Some(made.server()),
            key: Some(made.server_key()),
            client_ca: None,
        };
        let files = Files::read(&paths).unwrap();
        let provider = ring::default_provider();
        let key = provider.key_provider.load_private_key(files.key().unwrap()).unwrap();
        let certified = Arc::new(CertifiedKey::new(files.certificates().unwrap(), key));
        let config = ServerConfig::builder_with_provider(Arc::new(provider))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(Noting(certified)));
        let (config, turns) = (Arc::new(config), Rc::new(Semaphore::new(1)));
        let local = LocalSet::new();
        let mut clients = Vec::new();
        for _ in 0..20 {
            let (mut client, server) = tokio::io::duplex(16 * 1024);
            client.write_all(&hello()).await.unwrap();
            clients.push(client);
            let (config, turns) = (Arc::clone(&config), Rc::clone(&turns));
            local.spawn_local(async move { handshake(server, config, &turns).await.map(drop) });
        }
        let another_connection = async {
            while RAN.with_borrow(|ran| ran.matches('s').count()) < 20 {
                RAN.with_borrow_mut(|ran| ran.push('.'));
                tokio::task::yield_now().await;
            }
        };
        let another_connection = local.run_until(another_connection);
        tokio::time::timeout(Duration::from_secs(20), another_connection).await.unwrap();
        let ran = RAN.take();
        assert!(!ran.contains("ss"), "two handshakes in a row: {ran}");
    }
}
