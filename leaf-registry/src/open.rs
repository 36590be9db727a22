//! Stores and registries that were opened, with their tables.

use std::sync::Arc;

use leaf_segment::TagStore;
use leaf_snowflake::{FenceStore, Registry};

use crate::administration::Administration;
use crate::options::{RegistryKind, RegistryOptions};

/// A store that was opened.
#[derive(Debug, Clone)]
pub struct OpenStore {
    /// The store.
    pub store: Arc<dyn TagStore>,
    /// The store's administration: its tables and risks.
    pub admin: Arc<dyn Administration>,
}

impl OpenStore {
    /// Wraps a store that is also its own [`Administration`].
    pub(crate) fn of(store: impl TagStore + Administration) -> Self {
        let store = Arc::new(store);
        Self { admin: Arc::clone(&store) as _, store }
    }
}

/// A registry that was opened.
///
/// [`RegistryUrl::open`](crate::RegistryUrl::open) opens one. Nothing is claimed, and no server is
/// contacted, before the first call.
#[derive(Debug, Clone)]
pub struct OpenRegistry {
    /// The registry.
    pub registry: Registry,
    /// The registry's administration: its tables and risks; `None` if it has no tables.
    pub admin: Option<Arc<dyn Administration>>,
}

impl OpenRegistry {
    /// A registry without tables.
    pub(crate) fn new(
        store: impl FenceStore,
        kind: RegistryKind,
        options: &RegistryOptions,
    ) -> Self {
        let registry = Registry::new(store, options.policy(kind), options.address.clone());
        Self { registry, admin: None }
    }

    /// A registry in a database.
    pub(crate) fn with_tables(
        store: impl FenceStore + Administration,
        kind: RegistryKind,
        options: &RegistryOptions,
    ) -> Self {
        let store = Arc::new(store);
        let admin = Some(Arc::clone(&store) as _);
        let (policy, address) = (options.policy(kind), options.address.clone());
        Self { registry: Registry::shared(store, policy, address), admin }
    }
}
