//! The settings of snowflake mode.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use leaf_core::{Clock, Layout, RELEASED, UnixMillis};

use crate::java_cache::JavaCache;
use crate::peers;
use crate::state_file::StateFile;
use crate::{Identity, PeerRule, Peers, SnowflakeError, SnowflakeErrorKind, SystemClock};

/// Lower bound of `rollback_tolerance`: boot and wall clock are read one after the other, so that
/// tiny differences are normal.
const LEAST_TOLERANCE: Duration = Duration::from_millis(1);
/// Upper bound of `rollback_tolerance`: a larger value would switch off the protection against
/// clock rollbacks.
const LARGEST_TOLERANCE: Duration = Duration::from_secs(60);
/// Lower bound of `report_interval`: with less, the keeper would write to the registry almost
/// without a pause.
const LEAST_INTERVAL: Duration = Duration::from_millis(10);
/// Lower bound of `max_step_forward`: small corrections of the clock must always be followed.
const LEAST_STEP_FORWARD: Duration = Duration::from_secs(1);
/// Upper bound of `wait` and `startup_wait`.
const LONGEST_WAIT: Duration = Duration::from_secs(3600);
/// Upper bound of `offline_for`: after a crash no other node can take the worker id for that long.
const LONGEST_OFFLINE: Duration = Duration::from_secs(7 * 24 * 3600);

/// Settings of a [`SnowflakeGenerator`](crate::SnowflakeGenerator).
///
/// ```
/// use std::time::Duration;
/// use leaf_snowflake::{Identity, SnowflakeConfig};
///
/// let mut config = SnowflakeConfig::new(Identity::parse("10.0.0.7:8080")?);
/// config.rollback_tolerance = Duration::from_millis(5); // the Java Leaf's rule
/// # Ok::<(), leaf_snowflake::IdentityError>(())
/// ```
#[derive(Debug, Clone)]
pub struct SnowflakeConfig {
    /// This node's name in the registry.
    pub identity: Identity,
    /// How ids are composed. Default [`Layout::LEAF`].
    pub layout: Layout,
    /// The file that makes a restart after a crash immediate. Without one (the default) a restarted
    /// node cannot prove that it held its worker id. It takes another one; if it may take no other,
    /// it is refused until its clock is near the old ceiling.
    pub state_file: Option<PathBuf>,
    /// How far the wall clock may fall behind the ids' clock before ids stop. Also how far ahead of
    /// the clock the first ids of a restarted node may be. 1 ms to 60 s, default 1 s; 5 ms is the
    /// Java Leaf's rule.
    pub rollback_tolerance: Duration,
    /// If the wall clock jumps ahead by more than this, the ids' clock does not follow. At least
    /// 1 s, default 1 h.
    pub max_step_forward: Duration,
    /// How long ids flow without the registry: two report intervals to 7 days, default 10 min.
    pub offline_for: Duration,
    /// How often the registry ceiling is raised: at least 10 ms, default 3 s, as the Java Leaf
    /// reports.
    pub report_interval: Duration,
    /// The longest time that a claim waits for a former holder's ceiling to pass: up to 1 h,
    /// default 15 s.
    pub startup_wait: Duration,
    /// How long a caller waits for the next tick or for a higher ceiling: up to 1 h, default 2 s.
    pub wait: Duration,
    /// A tick starts its sequence at a pseudo-random value below this, so that `id % n` spreads
    /// evenly. (A tick that begins because the sequence of the one before was used up starts at 0.)
    /// At most 1/16 of the sequence's range; 0 starts every tick at 0. Default 100.
    pub sequence_start: u64,
    /// The clocks. Default [`SystemClock`].
    pub clock: Arc<dyn Clock>,
    /// If the wall clock shows an earlier time than this, it is certainly wrong, and the generator
    /// claims no worker id. Default [`RELEASED`].
    pub not_before: UnixMillis,
    /// Reads the clocks of the other nodes: before a claim, and before the ids' clock follows a
    /// jump of more than `max_step_forward`. With `None` (the default) the clocks are not compared.
    pub peers: Option<Arc<dyn Peers>>,
    /// The rule that decides whether the peers' clocks agree with this node's clock. Default
    /// [`PeerRule::Majority`].
    pub peer_rule: PeerRule,
    /// How far a peer's clock may differ from this node's clock and still agree with it. The
    /// uncertainty of the round trip is allowed in addition. Default 5 s.
    pub max_offset: Duration,
    /// The cache directory of a Java Leaf on this machine, `{tmpdir}/{leaf.name}/leafconf/{port}`.
    /// The generator reads it at every start, so that it repeats no id of that Java Leaf. (The file
    /// of the original holds no time. Then it is unknown which ids were issued, and the log says
    /// so.) Default `None`.
    pub java_cache: Option<PathBuf>,
}

impl SnowflakeConfig {
    /// Creates settings with this identity and default values.
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
            not_before: RELEASED,
            peers: None,
            peer_rule: PeerRule::default(),
            max_offset: Duration::from_secs(5),
            java_cache: None,
        }
    }

    /// Checks the settings, the files and the clock, and refuses those with which
    /// [`SnowflakeGenerator::open`] would refuse to start. Changes nothing, so that a program can
    /// check its configuration while another process uses the state file.
    ///
    /// # Errors
    /// `BadConfig`, `ClockUnset`, `EndOfTime`, `StateFile`.
    ///
    /// ```
    /// use leaf_core::{Layout, UnixMillis};
    /// use leaf_snowflake::{Identity, SnowflakeConfig};
    ///
    /// let mut config = SnowflakeConfig::new(Identity::parse("10.0.0.7:8080")?);
    /// config.layout = Layout::LEAF.with_epoch(UnixMillis::new(4_000_000_000_000));
    /// assert!(config.check().is_err(), "the epoch is in the future");
    /// # Ok::<(), leaf_snowflake::IdentityError>(())
    /// ```
    ///
    /// [`SnowflakeGenerator::open`]: crate::SnowflakeGenerator::open
    pub fn check(&self) -> Result<(), SnowflakeError> {
        self.check_settings()?;
        self.check_against(self.clock.wall_millis())?;
        if let Some(path) = &self.state_file {
            StateFile::check(path)?;
        }
        if let Some(directory) = &self.java_cache {
            JavaCache::read(directory).map_err(SnowflakeErrorKind::BadConfig)?;
        }
        Ok(())
    }

    /// Compares this node's clock with those of [`Self::peers`], as a claim does. Returns how many
    /// peers agree and how many answered; `None` if there are no peers to ask, or none answers.
    ///
    /// # Errors
    /// `ClockRefused`; `Registry` if the registry cannot list the peers.
    pub async fn compare_clocks(&self) -> Result<Option<(usize, usize)>, SnowflakeError> {
        let Some(peers) = &self.peers else { return Ok(None) };
        let (peers, clock) = (Arc::clone(peers), Arc::clone(&self.clock));
        peers::compare(peers, clock, self.peer_rule, self.max_offset).await
    }

    /// Refuses settings that make no sense.
    pub(crate) fn check_settings(&self) -> Result<(), SnowflakeError> {
        let two_reports = self.report_interval.saturating_mul(2);
        let limits = [
            ("report_interval", self.report_interval, LEAST_INTERVAL, Duration::MAX),
            ("wait", self.wait, Duration::ZERO, LONGEST_WAIT),
            ("startup_wait", self.startup_wait, Duration::ZERO, LONGEST_WAIT),
            ("offline_for", self.offline_for, two_reports, LONGEST_OFFLINE),
            ("max_step_forward", self.max_step_forward, LEAST_STEP_FORWARD, Duration::MAX),
            ("rollback_tolerance", self.rollback_tolerance, LEAST_TOLERANCE, LARGEST_TOLERANCE),
        ];
        for (name, given, least, most) in limits {
            if !(least..=most).contains(&given) {
                let allowed = match most {
                    Duration::MAX => format!("at least {least:?}"),
                    LONGEST_OFFLINE => format!("{least:?} (two report intervals) to {most:?}"),
                    _ => format!("{least:?} to {most:?}"),
                };
                let bad = format!("{name} is {given:?}: give {allowed}");
                return Err(SnowflakeErrorKind::BadConfig(bad).into());
            }
        }
        self.check_against(self.clock.wall_millis()).or_else(|error| match error.kind() {
            // A wrong clock may be the cause, and may be corrected later: the claim checks it again.
            SnowflakeErrorKind::ClockUnset { .. } => Ok(()),
            SnowflakeErrorKind::EndOfTime { end, .. } if *end > self.not_before => Ok(()),
            _ => Err(error),
        })
    }

    /// Refuses a time that the layout cannot represent, or that is before `not_before`.
    pub(crate) fn check_against(&self, now: UnixMillis) -> Result<(), SnowflakeError> {
        let epoch = self.layout.epoch();
        let end = self.layout.end();
        if now >= end {
            Err(SnowflakeErrorKind::EndOfTime { now, end }.into())
        } else if now < self.not_before {
            Err(SnowflakeErrorKind::ClockUnset { now, not_before: self.not_before }.into())
        } else if now < epoch {
            let why = format!(
                "the clock shows {}, before the layout's epoch {}: correct the clock or the epoch",
                now.utc(),
                epoch.utc()
            );
            Err(SnowflakeErrorKind::BadConfig(why).into())
        } else {
            Ok(())
        }
    }
}
