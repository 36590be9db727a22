//! What may be chosen about snowflake mode.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use leaf_core::{Clock, Layout};

use crate::{Identity, SystemClock};

/// Settings of a [`SnowflakeGenerator`](crate::SnowflakeGenerator).
///
/// ```
/// use std::time::Duration;
/// use leaf_snowflake::{Identity, SnowflakeConfig};
///
/// let mut config = SnowflakeConfig::new(Identity::parse("10.0.0.7:8080")?);
/// config.rollback_tolerance = Duration::from_millis(5); // Leaf's published rule
/// # Ok::<(), leaf_snowflake::IdentityError>(())
/// ```
#[derive(Debug, Clone)]
pub struct SnowflakeConfig {
    /// Who this node is to the registry.
    pub identity: Identity,
    /// How ids are composed. Default [`Layout::LEAF`].
    pub layout: Layout,
    /// The file that makes a restart after a crash immediate. Without one (the default) a crashed
    /// node waits until its registry ceiling has passed.
    pub state_file: Option<PathBuf>,
    /// How far the wall clock may fall behind the ids before they stop. It is also how far ahead
    /// of the clock a restarted node may begin. Default 1 s; 5 ms is Leaf's rule.
    pub rollback_tolerance: Duration,
    /// A wall clock that jumps ahead by more than this is not followed. Default 1 h.
    pub max_step_forward: Duration,
    /// How long ids flow without the registry. Default 10 min.
    pub offline_for: Duration,
    /// How often the registry ceiling is raised. Default 3 s, as Leaf reports.
    pub report_interval: Duration,
    /// The longest that a claim waits for a former holder's time to pass. Default 15 s.
    pub startup_wait: Duration,
    /// How long a caller waits, for the next millisecond or a ceiling. Default 2 s.
    pub wait: Duration,
    /// A quiet millisecond starts its sequence below this, at most 1/16 of the space; 0 starts at
    /// 0. Default 100.
    pub sequence_start: u64,
    /// The clocks. Default [`SystemClock`].
    pub clock: Arc<dyn Clock>,
}

impl SnowflakeConfig {
    /// The defaults for this node.
    #[must_use]
    pub fn new(identity: Identity) -> Self {
        Self {
            identity,
            layout: Layout::LEAF,
            state_file: None,
            rollback_tolerance: Duration::from_secs(1),
            max_step_forward: Duration::from_secs(3600),
            offline_for: Duration::from_secs(600),
            report_interval: Duration::from_secs(3),
            startup_wait: Duration::from_secs(15),
            wait: Duration::from_secs(2),
            sequence_start: 100,
            clock: Arc::new(SystemClock),
        }
    }
}
