//! A registry of worker ids that was opened, with its tables.

use std::sync::Arc;

use leaf_snowflake::{ClaimPolicy, FenceStore, Identity, Registry};

use crate::Administration;

/// A registry that was opened.
///
/// [`RegistryPlace::open`](crate::RegistryPlace::open) opens one that is kept in a server or a
/// file; the others need no place. Nothing is claimed, and no server is contacted, before the first
/// call.
#[derive(Debug, Clone)]
pub struct OpenRegistry {
    /// The registry.
    pub registry: Registry,
    /// Its tables and risks; `None` where it has none.
    pub admin: Option<Arc<dyn Administration>>,
}

impl OpenRegistry {
    /// A registry without tables.
    pub(crate) fn new(
        store: impl FenceStore,
        policy: ClaimPolicy,
        address: Option<Identity>,
    ) -> Self {
        Self { registry: Registry::new(store, policy, address), admin: None }
    }

    /// A registry in a database.
    pub(crate) fn with_tables(
        store: impl FenceStore + Administration,
        policy: ClaimPolicy,
        address: Option<Identity>,
    ) -> Self {
        let store = Arc::new(store);
        let admin = Some(Arc::clone(&store) as _);
        Self { registry: Registry::shared(store, policy, address), admin }
    }
}
