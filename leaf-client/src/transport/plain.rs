//! Connections to servers, in a build without TLS.

use hyper_util::client::legacy::connect::HttpConnector;

use crate::endpoint::Place;

/// Makes connections to the servers of one name.
pub(super) type Connector = HttpConnector;

/// Makes a [`Connector`] for each name.
#[derive(Debug)]
pub(crate) struct Connecting;

impl Connecting {
    /// The connector for the addresses of one name.
    pub(super) fn connector(&self, _: &Place) -> Connector {
        let mut plain = HttpConnector::new();
        plain.set_nodelay(true);
        plain
    }
}
