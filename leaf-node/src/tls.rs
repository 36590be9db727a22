//! The files of the section `tls`, and connections to other nodes, which may be encrypted.

use std::io;
use std::path::Path;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, SignatureScheme};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_util::either::Either;

use crate::config::{Config, ConfigError, Tls, TlsMode};

/// The largest file that is read, in bytes.
const LARGEST: u64 = 1 << 20;

/// The files of the section `tls`, as they stood at one moment.
///
/// Its `Debug` shows nothing of them.
#[derive(PartialEq, Eq)]
pub struct Files {
    certificate: Vec<u8>,
    key: Vec<u8>,
    client_ca: Option<Vec<u8>>,
}

impl std::fmt::Debug for Files {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Files")
    }
}

impl Files {
    /// Reads the files. Blocks.
    ///
    /// # Errors
    /// A file that is needed is not set, cannot be read or has more than 1 MiB; the text names the
    /// key.
    pub fn read(tls: &Tls) -> Result<Self, ConfigError> {
        let client_ca = tls.client_ca.as_deref();
        Ok(Self {
            certificate: read("tls.certificate", tls.certificate.as_deref())?,
            key: read("tls.key", tls.key.as_deref())?,
            client_ca: client_ca.map(|path| read("tls.client_ca", Some(path))).transpose()?,
        })
    }

    /// The server's certificate, and the intermediate certificates up to its authority.
    ///
    /// # Errors
    /// The file holds no certificate.
    pub fn certificates(&self) -> Result<Vec<CertificateDer<'static>>, ConfigError> {
        certificates("tls.certificate", &self.certificate)
    }

    /// The private key.
    ///
    /// # Errors
    /// The file holds no private key. The text repeats nothing of the file.
    pub fn key(&self) -> Result<PrivateKeyDer<'static>, ConfigError> {
        PrivateKeyDer::from_pem_slice(&self.key)
            .map_err(|_| ConfigError::new("tls.key: the file has no private key in PEM"))
    }

    /// The authorities that clients' certificates must be from; `None` if clients need no
    /// certificate.
    ///
    /// # Errors
    /// The file holds no certificate.
    pub fn client_authorities(&self) -> Result<Option<Vec<CertificateDer<'static>>>, ConfigError> {
        self.client_ca.as_deref().map(|pem| certificates("tls.client_ca", pem)).transpose()
    }
}

fn read(key: &str, path: Option<&Path>) -> Result<Vec<u8>, ConfigError> {
    let path = path.ok_or_else(|| ConfigError::new(format!("{key} is not set")))?;
    let refuse = |why: String| ConfigError::new(format!("{key}: {}: {why}", path.display()));
    leaf_registry::read_file(path, LARGEST).map_err(refuse)
}

fn certificates(key: &str, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, ConfigError> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match found {
        Ok(found) if !found.is_empty() => Ok(found),
        _ => Err(ConfigError::new(format!("{key}: the file has no certificate in PEM"))),
    }
}

/// Connects to the other nodes of a cluster. They are assumed to have the same TLS settings for
/// `http.listen` as this configuration.
///
/// The certificate of another node is not verified: the registry has only an address of the node,
/// which may be in no certificate. What the nodes read from each other (the clock and check values
/// of keys) is no secret, and is compared with what other nodes answer. If clients must show a
/// certificate, this node shows its own.
#[derive(Clone)]
pub struct PeerConnector(Option<TlsConnector>);

impl std::fmt::Debug for PeerConnector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("PeerConnector").field(&self.0.is_some()).finish()
    }
}

impl PeerConnector {
    /// Reads the files of `tls` if a client certificate is needed. Blocks meanwhile.
    ///
    /// # Errors
    /// The files cannot be read, or lack a certificate or the key.
    pub fn new(config: &Config) -> Result<Self, ConfigError> {
        if config.http.tls != TlsMode::Required {
            return Ok(Self(None));
        }
        let provider = Arc::new(ring::default_provider());
        let refuse = |error: rustls::Error| ConfigError::new(format!("tls: {error}"));
        let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(refuse)?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(AnyNode(provider)));
        let client = match &config.tls.client_ca {
            None => builder.with_no_client_auth(),
            Some(_) => {
                let files = Files::read(&config.tls)?;
                builder
                    .with_client_auth_cert(files.certificates()?, files.key()?)
                    .map_err(refuse)?
            }
        };
        Ok(Self(Some(TlsConnector::from(Arc::new(client)))))
    }

    /// Connects to the node at `address`, `host:port`. Has no timeout: the caller must set one.
    ///
    /// # Errors
    /// The node cannot be reached, or the handshake fails.
    pub async fn connect(
        &self,
        address: &str,
    ) -> io::Result<Either<TcpStream, Box<TlsStream<TcpStream>>>> {
        let stream = TcpStream::connect(address).await?;
        let Some(connector) = &self.0 else { return Ok(Either::Left(stream)) };
        let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
        let host = host.trim_matches(['[', ']']).to_owned();
        let name = ServerName::try_from(host).map_err(io::Error::other)?;
        Ok(Either::Right(Box::new(connector.connect(name, stream).await?)))
    }
}

/// Accepts any certificate, if the other node proves that it has the private key of it.
#[derive(Debug)]
struct AnyNode(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyNode {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
