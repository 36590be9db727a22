//! The meaning of ZooKeeper's errors
//! (<https://zookeeper.apache.org/doc/r3.8.0/zookeeperProgrammers.html#ch_zkErrorHandling>).

use leaf_snowflake::{RegistryError, RegistryErrorKind};
use zookeeper_client::Error;

/// The error of an operation, classified.
pub(super) fn classify(operation: String, error: Error) -> RegistryError {
    RegistryError::new(kind(&error), operation).because(error)
}

/// The kind of registry error for an error of ZooKeeper. An unknown error counts as unavailable: to
/// try again is harmless.
const fn kind(error: &Error) -> RegistryErrorKind {
    match error {
        Error::NoAuth
        | Error::InvalidAcl
        | Error::AuthFailed
        | Error::BadArguments(_)
        | Error::QuotaExceeded
        | Error::Unimplemented => RegistryErrorKind::Refused,
        // A cut connection is also told as `Custom`.
        _ => RegistryErrorKind::Unavailable,
    }
}
