//! The configuration that requests look at: a reload changes the live keys of it while ids flow.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::{ArcSwap, Guard};
use leaf_node::config::Config;

/// The configuration that counts now, of which a reload changes the live keys.
#[derive(Debug)]
pub(crate) struct Live {
    config: ArcSwap<Config>,
    /// How often `redis.password` has changed.
    redis_password_number: AtomicU64,
}

impl Live {
    /// The configuration of a start.
    pub(crate) fn new(config: Config) -> Self {
        let config = ArcSwap::from_pointee(config);
        Self { config, redis_password_number: AtomicU64::default() }
    }

    /// The configuration that counts now.
    pub(crate) fn config(&self) -> Guard<Arc<Config>> {
        self.config.load()
    }

    /// Another number for every password of the Redis protocol, and for the time without one: a
    /// connection that has shown the old one must show the new one.
    pub(crate) fn redis_password_number(&self) -> u64 {
        self.redis_password_number.load(Ordering::Acquire)
    }

    /// Takes over a configuration.
    pub(crate) fn follow(&self, config: &Config) {
        let before = self.config.swap(Arc::new(config.clone()));
        if before.redis.password != config.redis.password {
            self.redis_password_number.fetch_add(1, Ordering::Release);
        }
    }
}
