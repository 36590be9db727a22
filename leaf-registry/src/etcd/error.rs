//! The meaning of etcd's errors (<https://etcd.io/docs/latest/learning/api/>, gRPC status codes).

use std::io;

use etcd_client::Error;
use leaf_segment::{StoreError, StoreErrorKind};

use crate::host_list::HostList;

/// gRPC codes of answers that stay the same until somebody changes something: invalid argument,
/// permission denied, failed precondition, unimplemented.
const REFUSALS: [i32; 4] = [3, 7, 9, 12];

/// The error of an operation on the cluster of this URL, classified.
pub(super) fn classify(operation: String, url: &HostList, error: &Error) -> StoreError {
    let (kind, text) = (kind(error), text(error));
    StoreError::new(kind, operation).because(if text.contains(NO_SPACE) {
        format!(
            "{text}: compact its history, defragment it, and disarm the alarm (etcdctl compact, defrag, alarm disarm); \
             to prevent it, see \"etcd\" in docs/stores.md"
        )
    } else if was_not_sent(error) {
        format!("no connection to {}: {text}", url.hosts().join(", "))
    } else if needs_login(error) && url.login().is_none() {
        format!("{text}: the URL needs user:password@ before the hosts")
    } else {
        text
    })
}

/// An error and its causes.
fn chain(error: &Error) -> impl Iterator<Item = &(dyn std::error::Error + 'static)> {
    // The client's error does not tell its cause.
    let first: Option<&(dyn std::error::Error + 'static)> = match error {
        Error::GRpcStatus(status) => Some(status),
        Error::TransportError(error) => Some(error),
        Error::IoError(error) => Some(error),
        _ => None,
    };
    std::iter::successors(first, |error| error.source())
}

/// True if the request was not sent, because there is no connection to the member: another member
/// may be asked at once, also for a write.
pub(super) fn was_not_sent(error: &Error) -> bool {
    chain(error).any(|cause| cause.is::<tonic::ConnectError>())
}

/// True if another member may answer the next request. A learner, which is no full member yet,
/// refuses most requests.
pub(super) fn is_of_the_member(error: &Error) -> bool {
    kind(error) == StoreErrorKind::Unavailable || text(error).contains("for learner")
}

/// The cause of an error, in words: the client's own text contains internals of its types.
fn text(error: &Error) -> String {
    match chain(error).find_map(|cause| cause.downcast_ref::<io::Error>()) {
        Some(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            return "connection refused: are the members running, and do they listen there?".into();
        }
        Some(error) => return error.to_string(),
        None => {}
    }
    match error {
        Error::GRpcStatus(status) if status.message().is_empty() => {
            status.code().description().into()
        }
        Error::GRpcStatus(status) => status.message().into(),
        error => error.to_string(),
    }
}

/// True if the cluster no longer accepts our login: users or roles have changed since, which
/// invalidates every token.
fn needs_login(error: &Error) -> bool {
    let Error::GRpcStatus(status) = error else { return false };
    let text = status.message();
    status.code() as i32 == UNAUTHENTICATED
        || text.contains("auth store is old")
        || text.contains("user name is empty")
}

/// The text of etcd's error when its database has reached the quota (`--quota-backend-bytes`): etcd
/// then answers reads and refuses writes.
const NO_SPACE: &str = "database space exceeded";

/// The gRPC code of the error for an unknown token.
const UNAUTHENTICATED: i32 = 16;

/// The kind of store error for an error of etcd. A gRPC code that is not among [`REFUSALS`] counts
/// as unavailable: to try again is harmless.
fn kind(error: &Error) -> StoreErrorKind {
    match error {
        // The next request logs in again.
        error if needs_login(error) => StoreErrorKind::Unavailable,
        // Until somebody makes room and disarms the alarm.
        Error::GRpcStatus(status) if status.message().contains(NO_SPACE) => StoreErrorKind::Full,
        Error::GRpcStatus(status) if !REFUSALS.contains(&(status.code() as i32)) => {
            StoreErrorKind::Unavailable
        }
        Error::IoError(_) | Error::TransportError(_) | Error::EndpointError(_) => {
            StoreErrorKind::Unavailable
        }
        _ => StoreErrorKind::Refused,
    }
}
