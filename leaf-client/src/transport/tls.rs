//! Connections to servers, encrypted if the URL says so.
//!
//! A request goes to an address, but the server's certificate must contain the name that was looked
//! up. So each name has its own connector, and a connection for one name is never used for another.

use std::sync::Arc;

use hyper_rustls::{FixedServerNameResolver, HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::connect::HttpConnector;
use rustls::client::WantsClientCert;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ConfigBuilder, RootCertStore};

use crate::endpoint::{Place, Protocol};

/// Makes connections to the servers of one name.
pub(super) type Connector = HttpsConnector<HttpConnector>;

/// The certificates for TLS, in PEM: of the trusted authorities, and the client's own.
#[derive(Clone, Default)]
pub(crate) struct Certificates {
    /// Certificates of the authorities that are trusted. Empty: those that the system trusts.
    pub(crate) authorities: Vec<Vec<u8>>,
    /// The client's own certificate, followed by any intermediate certificates, and its private
    /// key.
    pub(crate) own: Option<(Vec<u8>, Vec<u8>)>,
}

/// Makes a [`Connector`] for each name.
#[derive(Debug)]
pub(crate) struct Connecting(ClientConfig);

impl Connecting {
    /// Prepares connections to these servers.
    ///
    /// # Errors
    /// One of the servers uses TLS, and the certificates cannot be used. The text contains nothing
    /// of them.
    pub(crate) fn new(places: &[Place], certificates: &Certificates) -> Result<Self, String> {
        if places.iter().any(|place| place.encrypted) {
            return config(certificates).map(Self);
        }
        // Nobody is asked for a certificate.
        Ok(Self(believing(RootCertStore::empty()).with_no_client_auth()))
    }

    /// The connector for the addresses of one name.
    pub(super) fn connector(&self, place: &Place) -> Connector {
        let mut plain = HttpConnector::new();
        plain.set_nodelay(true);
        plain.enforce_http(false);
        let builder = HttpsConnectorBuilder::new().with_tls_config(self.0.clone()).https_or_http();
        let name = place.host().to_owned();
        let builder = match ServerName::try_from(name) {
            Ok(name) => builder.with_server_name_resolver(FixedServerNameResolver::new(name)),
            // The name that is left is the address, which no certificate of such a server has.
            Err(_) => builder,
        };
        match place.protocol {
            Protocol::Http => builder.enable_http1().wrap_connector(plain),
            #[cfg(feature = "grpc")]
            Protocol::Grpc => builder.enable_http2().wrap_connector(plain),
        }
    }
}

fn config(certificates: &Certificates) -> Result<ClientConfig, String> {
    let mut roots = RootCertStore::empty();
    for pem in &certificates.authorities {
        for authority in read(pem, "tls_authority")? {
            roots.add(authority).map_err(|error| format!("tls_authority: {error}"))?;
        }
    }
    if certificates.authorities.is_empty() {
        let found = rustls_native_certs::load_native_certs();
        let (usable, _) = roots.add_parsable_certificates(found.certs);
        if usable == 0 {
            return Err("this system knows no authority of certificates: give tls_authority".into());
        }
    }
    let Some((certificate, key)) = &certificates.own else {
        return Ok(believing(roots).with_no_client_auth());
    };
    let chain = read(certificate, "tls_identity")?;
    let key = PrivateKeyDer::from_pem_slice(key)
        .map_err(|_| "tls_identity: there is no private key in PEM")?;
    // The error may repeat what is in the key.
    let config = believing(roots).with_client_auth_cert(chain, key);
    config.map_err(|_| "tls_identity: the key is not that of the certificate".into())
}

/// Certificates in PEM; at least one.
fn read(pem: &[u8], what: &str) -> Result<Vec<CertificateDer<'static>>, String> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match found {
        Ok(found) if !found.is_empty() => Ok(found),
        _ => Err(format!("{what}: there is no certificate in PEM")),
    }
}

/// Begins a TLS configuration that trusts the certificates of these authorities.
fn believing(roots: RootCertStore) -> ConfigBuilder<ClientConfig, WantsClientCert> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("ring has the versions that rustls has")
        .with_root_certificates(roots)
}
