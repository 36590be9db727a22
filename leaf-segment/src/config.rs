//! The configuration of a generator of segment ids.

use std::sync::Arc;
use std::time::Duration;

use leaf_core::{Clock, Step, SystemClock};
use leaf_shape::keys::KeyRing;

use crate::HighWaterMarks;

/// Settings of a [`SegmentGenerator`](crate::SegmentGenerator).
///
/// ```
/// use std::time::Duration;
/// use leaf_segment::SegmentConfig;
///
/// let config = SegmentConfig { wait: Duration::from_millis(500), ..SegmentConfig::default() };
/// assert_eq!(config.max_step.get(), 1_000_000);
/// ```
#[derive(Debug, Clone)]
pub struct SegmentConfig {
    /// The dynamic step never falls below this, unless the tag's own `min_step` is smaller. Default
    /// 1.
    pub min_step: Step,
    /// The dynamic step grows up to this; a record's own larger step is still honoured. Default
    /// 1,000,000, as in the Java Leaf.
    pub max_step: Step,
    /// The most ids that one call takes. Default 1,000,000.
    pub max_take: Step,
    /// How long a caller waits for a refill before it gets an error. Default 2 s.
    pub wait: Duration,
    /// Deadline of one request to the store. Default 2 s.
    pub attempt: Duration,
    /// How many tags may fetch at the same time. Default 64.
    pub concurrent_fetches: usize,
    /// The high-water marks of the regression guard. Default: in memory, lost when the process
    /// ends. [`HighWaterMarks::open`] keeps them in a file instead.
    pub marks: Arc<HighWaterMarks>,
    /// The secret keys of scrambled ids. Default none.
    pub keys: Arc<KeyRing>,
    /// The clock that decides the period (day, month or year) of numbers, and the date in texts.
    /// Default [`SystemClock`].
    pub clock: Arc<dyn Clock>,
    /// How often the record of each tag in use is read again. Default 60 s, as in the Java Leaf.
    pub refresh: Duration,
    /// A tag of which no id was taken for this long is dropped at one of the next readings of its
    /// record: its unused ids go back to the store, its memory is freed, and a handle that the
    /// program still holds ends with [`Changed`](crate::SegmentErrorKind::Changed). Default never.
    pub idle: Option<Duration>,
}

const MILLION: Step = match Step::new(1_000_000) {
    Ok(step) => step,
    Err(_) => Step::MAX,
};

impl Default for SegmentConfig {
    fn default() -> Self {
        Self {
            min_step: Step::MIN,
            max_step: MILLION,
            max_take: MILLION,
            wait: Duration::from_secs(2),
            attempt: Duration::from_secs(2),
            concurrent_fetches: 64,
            marks: Arc::default(),
            keys: Arc::default(),
            clock: Arc::new(SystemClock),
            refresh: Duration::from_secs(60),
            idle: None,
        }
    }
}
