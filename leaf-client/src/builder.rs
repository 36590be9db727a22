//! How a client is configured.

use std::fmt;
use std::time::Duration;

use hyper::header::HeaderValue;
use leaf_core::Step;

use crate::client::{LeafClient, Settings};
use crate::endpoint::Place;
use crate::error::{ClientError, ClientErrorKind};
use crate::pool::Pool;
#[cfg(feature = "tls")]
use crate::transport::Certificates;
use crate::transport::{Connecting, Transport};

/// The most servers that can be named.
const MOST: usize = 64;

/// Makes a [`LeafClient`].
#[derive(Clone)]
#[must_use]
pub struct LeafClientBuilder {
    endpoints: Vec<String>,
    zone: Option<String>,
    token: Option<String>,
    #[cfg(feature = "tls")]
    certificates: Certificates,
    settings: Settings,
}

impl LeafClient {
    /// Begins to configure a client.
    pub fn builder() -> LeafClientBuilder {
        LeafClientBuilder {
            endpoints: Vec::new(),
            zone: None,
            token: None,
            #[cfg(feature = "tls")]
            certificates: Certificates::default(),
            settings: Settings {
                deadline: Duration::from_secs(1),
                attempt: Duration::from_millis(500),
                max_lease: Step::new(1_000_000).unwrap_or(Step::MAX),
                refresh: Duration::from_secs(60),
            },
        }
    }
}

impl LeafClientBuilder {
    /// Adds a server by its URL, like `http://leaf-1:8080`. With the feature `grpc` also
    /// `grpc://leaf-1:50051`, with the feature `tls` also `https://leaf-1:8080`, with both also
    /// `grpcs://leaf-1:50051`. All addresses of a name are used; the name is looked up again every
    /// 30 s.
    pub fn endpoint(mut self, url: impl Into<String>) -> Self {
        self.endpoints.push(url.into());
        self
    }

    /// Adds several servers.
    pub fn endpoints<T: Into<String>>(mut self, urls: impl IntoIterator<Item = T>) -> Self {
        self.endpoints.extend(urls.into_iter().map(Into::into));
        self
    }

    /// Sets the zone of this client. Servers with the same `zone` in their configuration are asked
    /// first, others if none of those answers. Default: no zone, all servers are equal.
    pub fn zone(mut self, zone: impl Into<String>) -> Self {
        self.zone = Some(zone.into());
        self
    }

    /// Sets a token, which is sent to all servers as `Authorization: Bearer`: one from their
    /// `tokens_file`, or one of a gateway in front of them. Without TLS it crosses the network
    /// unencrypted.
    pub fn token(mut self, token: impl Into<String>) -> Self {
        self.token = Some(token.into());
        self
    }

    /// Adds certificates of authorities, in PEM: one of them must have issued the certificate of a
    /// server that uses TLS. Default: the authorities that the system trusts.
    ///
    /// # Examples
    /// ```no_run
    /// # async fn connect() -> Result<(), Box<dyn std::error::Error>> {
    /// let client = leaf_client::LeafClient::builder()
    ///     .endpoint("https://leaf-1.internal:8080")
    ///     .tls_authority(std::fs::read("/etc/ssl/internal-ca.pem")?)
    ///     .token(std::fs::read_to_string("/etc/orders/leaf.token")?.trim())
    ///     .build()?;
    /// println!("{}", client.tag("orders").await?.next().await?);
    /// # Ok(()) }
    /// ```
    #[cfg(feature = "tls")]
    pub fn tls_authority(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.certificates.authorities.push(pem.into());
        self
    }

    /// Sets the client's certificate, followed by any intermediate certificates, and its private
    /// key, both in PEM. Servers that ask for a client certificate (`tls.client_ca`) get it.
    #[cfg(feature = "tls")]
    pub fn tls_identity(
        mut self,
        certificate: impl Into<Vec<u8>>,
        key: impl Into<Vec<u8>>,
    ) -> Self {
        self.certificates.own = Some((certificate.into(), key.into()));
        self
    }

    /// How long a caller waits for an id before it gets an error. Default 1 s.
    pub const fn deadline(mut self, deadline: Duration) -> Self {
        self.settings.deadline = deadline;
        self
    }

    /// How long one server may take before the next is asked, at most half of the deadline. Default
    /// 500 ms.
    pub const fn attempt(mut self, attempt: Duration) -> Self {
        self.settings.attempt = attempt;
        self
    }

    /// The most ids of one lease. A client first leases the tag's step, then as many ids as it uses
    /// in about 15 minutes, like a server. When a client dies, the rest of its leases is lost.
    /// Default 1,000,000.
    pub const fn max_lease(mut self, most: Step) -> Self {
        self.settings.max_lease = most;
        self
    }

    /// How often the client asks a server again about each tag in use: whether it still exists, and
    /// for its step. Default 60 s.
    pub const fn refresh(mut self, refresh: Duration) -> Self {
        self.settings.refresh = refresh;
        self
    }

    /// Makes the client. No server is asked yet. Call it in a tokio runtime.
    ///
    /// # Errors
    /// `BadConfig` for an endpoint, a token, a certificate or a duration that cannot be used.
    pub fn build(self) -> Result<LeafClient, ClientError> {
        let bad = |text: String| Err(ClientError::new(ClientErrorKind::BadConfig, text));
        if self.endpoints.is_empty() || self.endpoints.len() > MOST {
            return bad(format!("give 1 to {MOST} endpoints, like http://leaf-1:8080"));
        }
        let mut places = Vec::with_capacity(self.endpoints.len());
        for (number, url) in self.endpoints.iter().enumerate() {
            match Place::parse(url) {
                Ok(place) => places.push(place),
                Err(why) => return bad(format!("endpoint {}: {why}", number + 1)),
            }
        }
        let mut settings = self.settings;
        let spans = [settings.deadline, settings.attempt, settings.refresh];
        let longest = Duration::from_secs(24 * 3600);
        if spans.iter().any(|span| *span < Duration::from_millis(1) || *span > longest) {
            return bad("deadline, attempt and refresh: give 1 ms to 24 h".into());
        }
        let authorization = match &self.token {
            None => None,
            Some(token) => {
                let Ok(mut value) = HeaderValue::from_str(&format!("Bearer {token}")) else {
                    return bad("token: give printable characters".into());
                };
                value.set_sensitive(true);
                Some(value)
            }
        };
        #[cfg(not(feature = "tls"))]
        let connecting = Connecting;
        #[cfg(feature = "tls")]
        let connecting = match Connecting::new(&places, &self.certificates) {
            Ok(connecting) => connecting,
            Err(why) => return bad(why),
        };
        let pool = Pool::new(places, self.zone.clone());
        // Another server must have its turn within the deadline.
        settings.attempt = settings.attempt.min(settings.deadline / 2);
        Ok(LeafClient::open(settings, pool, Transport::new(connecting, authorization)))
    }
}

/// Without the token and the key.
impl fmt::Debug for LeafClientBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeafClientBuilder")
            .field("endpoints", &self.endpoints.len())
            .field("zone", &self.zone)
            .field("deadline", &self.settings.deadline)
            .finish_non_exhaustive()
    }
}
