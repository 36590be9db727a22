//! The configuration in force, as requests see it. A reload changes its live keys (those that need
//! no restart) while ids are issued.

use std::sync::{Arc, Mutex, MutexGuard};

use arc_swap::{ArcSwap, Guard};
use leaf_core::{Clock as _, SystemClock, UnixMillis};
use leaf_node::config::Config;

/// The configuration in force. A reload changes its live keys.
#[derive(Debug)]
pub(crate) struct Live {
    config: ArcSwap<Config>,
    last_reload: Mutex<LastReload>,
}

/// The result of the last reading of the configuration.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LastReload {
    /// Whether the last reading succeeded.
    pub(crate) successful: bool,
    /// The time of the last reading that succeeded.
    pub(crate) success_at: UnixMillis,
}

impl Live {
    /// The configuration that the server starts with.
    pub(crate) fn new(config: Config) -> Self {
        let config = ArcSwap::from_pointee(config);
        let now = LastReload { successful: true, success_at: SystemClock.wall_millis() };
        Self { config, last_reload: Mutex::new(now) }
    }

    /// The result of the last reading of the configuration.
    pub(crate) fn last_reload(&self) -> LastReload {
        *self.reload()
    }

    fn reload(&self) -> MutexGuard<'_, LastReload> {
        self.last_reload.lock().expect("no holder of this lock panics")
    }

    /// Records that the configuration could not be read.
    pub(crate) fn reload_failed(&self) {
        self.reload().successful = false;
    }

    /// The configuration in force.
    pub(crate) fn config(&self) -> Guard<Arc<Config>> {
        self.config.load()
    }

    /// Puts a configuration into force, and records that it could be read.
    pub(crate) fn follow(&self, config: &Config) {
        self.config.store(Arc::new(config.clone()));
        *self.reload() = LastReload { successful: true, success_at: SystemClock.wall_millis() };
    }
}
