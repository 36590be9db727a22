//! HTTP/1.1 on two listeners: ids, and health.

mod answer;
mod decode;
mod ids;
mod listener;
mod ops;

use std::sync::atomic::{AtomicBool, Ordering};

use jiff::tz::TimeZone;
use leaf_core::{Health, Layout};
use leaf_segment::{SegmentGenerator, Shards};
use leaf_snowflake::SnowflakeGenerator;

pub(crate) use listener::Listener;

/// What the routes serve from. A mode that is switched off is `None`.
pub(crate) struct Generators {
    segment: Option<Shards<SegmentGenerator>>,
    snowflake: Option<SnowflakeGenerator>,
    layout: Layout,
    time_zone: TimeZone,
    stopping: AtomicBool,
}

impl Generators {
    pub(crate) const fn new(
        segment: Option<Shards<SegmentGenerator>>,
        snowflake: Option<SnowflakeGenerator>,
        layout: Layout,
        time_zone: TimeZone,
    ) -> Self {
        Self { segment, snowflake, layout, time_zone, stopping: AtomicBool::new(false) }
    }

    pub(crate) const fn snowflake(&self) -> Option<&SnowflakeGenerator> {
        self.snowflake.as_ref()
    }

    /// From now on this node says that it is not ready, so that balancers send nothing new.
    pub(crate) fn begin_stop(&self) {
        self.stopping.store(true, Ordering::Relaxed);
    }

    fn stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }

    /// Ends both modes and gives the worker id back.
    pub(crate) async fn close(&self) {
        if let Some(snowflake) = &self.snowflake {
            snowflake.close().await;
        }
        if let Some(segment) = &self.segment {
            segment.close().await;
        }
    }

    /// Whether this node can answer now.
    fn health(&self) -> Health {
        if self.stopping() {
            return Health::NotReady("stopping".into());
        }
        let segment = self.segment.as_ref().map_or(Health::Ready, Shards::health);
        let snowflake = self.snowflake.as_ref().map_or(Health::Ready, SnowflakeGenerator::health);
        segment.and(snowflake)
    }
}
