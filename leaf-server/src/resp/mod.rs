//! Ids over the Redis protocol, for the clients that every language has: `INCR orders` is the next
//! id of a tag.
//!
//! Commands are answered on the threads of the data plane, from the same segments as requests over
//! HTTP. The commands of a connection are answered in order. If one must wait for its ids, the
//! replies before it are sent first, and no other connection is held up.

mod answer;
mod codec;
mod command;
mod commands;
mod connection;
mod info;
mod reply;
mod session;
mod table;
mod task;

use std::sync::Arc;

use self::connection::Connection;
use crate::caller::{Client, Peer};
use crate::node::Node;
use crate::refusal::Face;
use crate::serve::{Control, Keeping, Protocol, Stream};

/// The Redis protocol on a listener.
///
/// The limits on connections are the listener's; what one connection may do is limited in
/// `connection.rs`.
pub(crate) struct Resp {
    pub(crate) node: Arc<Node>,
}

impl Protocol for Resp {
    fn keeping(&self) -> Keeping {
        // Clients keep connections in pools, and take one that was closed for an error.
        self.node.keeping("redis.listen", true)
    }

    fn max_connections(&self) -> usize {
        self.node.live.config().redis.max_connections as usize
    }

    async fn serve(self: Arc<Self>, stream: impl Stream, peer: Peer, control: Arc<Control>) {
        let _connected = self.node.requests.connected(Face::Redis);
        let client = Client::new(Arc::clone(&self.node), Face::Redis, peer);
        let connection = Connection::new(stream, client, control);
        // A client that breaks off is not the server's error.
        let _ = connection.run().await;
    }
}
