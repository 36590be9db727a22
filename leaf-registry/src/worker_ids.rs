//! Code that the stores of worker ids share: it reads worker ids from the names of keys and znodes,
//! and converts the errors of a database to those of a registry.

use leaf_core::WorkerId;
use leaf_segment::{StoreError, StoreErrorKind};
use leaf_snowflake::{RegistryError, RegistryErrorKind};

/// Reads a worker id from the last part of the path of a key or a znode. Only the canonical form
/// counts: `7`, not `007`.
pub(crate) fn worker_id(name: &str) -> Option<WorkerId> {
    name.parse().ok().map(WorkerId::new).filter(|worker| worker.to_string() == name)
}

/// Turns a database's error into one of the registry.
pub(crate) fn translate(error: StoreError) -> RegistryError {
    let kind = match error.kind() {
        // The SQLite file or the state of etcd was replaced: it lacks the lease's record, or has an
        // older one.
        StoreErrorKind::Replaced | StoreErrorKind::WentBack => RegistryErrorKind::Lost,
        // A node may go on from its state file, as without the registry.
        StoreErrorKind::Full => RegistryErrorKind::Unavailable,
        _ if error.retryable() => RegistryErrorKind::Unavailable,
        _ => RegistryErrorKind::Refused,
    };
    let translated = RegistryError::new(kind, error.operation());
    match (error.cause(), error.kind()) {
        (Some(cause), _) => translated.because(cause.to_string()),
        // These say no more than the registry's own kind.
        (None, StoreErrorKind::Unavailable | StoreErrorKind::Refused) => translated,
        (None, kind) => translated.because(kind.to_string()),
    }
}
