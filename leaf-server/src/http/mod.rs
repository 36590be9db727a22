//! HTTP on two listeners: ids, and everything that operators ask.
//!
//! Requests for ids are answered on the threads of the data plane and touch nothing that can block;
//! stores and registry are reached from the control plane alone.

mod body;
mod connection;
mod control;
mod data_plane;
mod heads;
mod ids;
mod java;
mod listener;
mod ops;
mod outbox;
mod problem;
mod reply;
mod reply_body;
mod routes;
mod v1;

pub(crate) use data_plane::DataPlane;
pub(crate) use listener::Listener;

#[cfg(test)]
mod openapi;
