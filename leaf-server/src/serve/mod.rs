//! Serves the connections of all protocols: accepts them, gives them to the threads of the data
//! plane, ends silent ones, and lets all of them end when the server stops.
//!
//! A protocol implements [`Protocol`] and only serves a connection; it does not deal with places,
//! sweeps and drains.

pub(crate) mod buffers;
mod control;
mod data_plane;
mod exchange;
mod linger;
mod listener;
mod opening;
mod pressure;
mod tls;

pub(crate) use control::{Control, Order};
pub(crate) use data_plane::DataPlane;
pub(crate) use exchange::{Ended, HEAD_BYTES, UnderWay, Unread, drive, serve_http2};
pub(crate) use linger::linger;
pub(crate) use listener::{Keeping, Listener, Protocol, Share, Stream};
pub(crate) use opening::open;
pub(crate) use pressure::Pressure;
pub(crate) use tls::{Door, Handshake, Tls};
