//! What etcd's answers mean (<https://etcd.io/docs/latest/learning/api/>, gRPC status codes).

use etcd_client::Error;
use leaf_segment::{StoreError, StoreErrorKind};

/// gRPC codes of answers that stay the same until somebody changes something: invalid argument,
/// permission denied, failed precondition, unimplemented, unauthenticated.
const REFUSALS: [i32; 5] = [3, 7, 9, 12, 16];

/// The error of an operation, classified.
pub(super) fn classify(operation: String, error: Error) -> StoreError {
    StoreError::new(kind(&error), operation).because(error)
}

fn kind(error: &Error) -> StoreErrorKind {
    match error {
        Error::GRpcStatus(status) if !REFUSALS.contains(&(status.code() as i32)) => {
            StoreErrorKind::Unavailable
        }
        Error::IoError(_) | Error::TransportError(_) | Error::EndpointError(_) => {
            StoreErrorKind::Unavailable
        }
        _ => StoreErrorKind::Refused,
    }
}
