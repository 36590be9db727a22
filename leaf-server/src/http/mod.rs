//! HTTP on two listeners: one for ids, one for health and administration.
//!
//! Requests for ids are answered on the threads of the data plane and touch nothing that can block;
//! stores and registry are reached from the control plane alone.

mod body;
mod connection;
mod heads;
mod id_routes;
mod java;
mod ops;
mod outbox;
mod problem;
mod reply;
mod reply_body;
mod routes;
mod v1;

pub(crate) use connection::Http;
pub(crate) use ops::feed::Feed;

#[cfg(test)]
mod openapi;
