//! The configuration that requests look at: a reload changes the live keys of it while ids flow.

use std::sync::{Arc, Mutex, MutexGuard};

use arc_swap::{ArcSwap, Guard};
use leaf_core::{Clock as _, SystemClock, UnixMillis};
use leaf_node::config::Config;

/// The configuration that counts now, of which a reload changes the live keys.
#[derive(Debug)]
pub(crate) struct Live {
    config: ArcSwap<Config>,
    last_reload: Mutex<LastReload>,
}

/// How the configuration was read last.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LastReload {
    /// Whether it could be read.
    pub(crate) successful: bool,
    /// When it last could.
    pub(crate) success_at: UnixMillis,
}

impl Live {
    /// The configuration of a start.
    pub(crate) fn new(config: Config) -> Self {
        let config = ArcSwap::from_pointee(config);
        let now = LastReload { successful: true, success_at: SystemClock.wall_millis() };
        Self { config, last_reload: Mutex::new(now) }
    }

    /// How the configuration was read last.
    pub(crate) fn last_reload(&self) -> LastReload {
        *self.reload()
    }

    fn reload(&self) -> MutexGuard<'_, LastReload> {
        self.last_reload.lock().expect("no holder of this lock panics")
    }

    /// The configuration could not be read.
    pub(crate) fn reload_failed(&self) {
        self.reload().successful = false;
    }

    /// The configuration that counts now.
    pub(crate) fn config(&self) -> Guard<Arc<Config>> {
        self.config.load()
    }

    /// Takes over a configuration.
    pub(crate) fn follow(&self, config: &Config) {
        self.config.store(Arc::new(config.clone()));
        *self.reload() = LastReload { successful: true, success_at: SystemClock.wall_millis() };
    }
}
