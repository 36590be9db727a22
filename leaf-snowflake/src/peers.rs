//! The comparison of the peers' clocks with this node's clock.
//!
//! A node whose clock is far ahead would push the ceiling of its worker id ahead, and no other node
//! could use that worker id until real time has caught up. So a node reads the clocks of its live
//! peers before it claims: by default more than half of those that answer must agree within
//! `max_offset`. The rule of Meituan's article, the mean, can be chosen instead; one peer that is a
//! day ahead moves a mean, but no majority.
//!
//! A peer reads its clock at some moment between request and response, so the comparison is
//! uncertain by half of that time. This file only compares times; an implementation of [`Peers`]
//! finds the peers and asks them.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_core::future::BoxFuture;
use leaf_core::{Clock, UnixMillis};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::{Identity, RegistryError, RegistryErrorKind, SnowflakeError, SnowflakeErrorKind};

/// Deadline of one request to a peer.
const PATIENCE: Duration = Duration::from_secs(1);
/// Pause before the registry is asked again for the list of peers, after a failure.
const LIST_AGAIN: Duration = Duration::from_millis(100);
/// At most this many peers are asked. They are drawn at random, so that a thousand nodes that start
/// together do not all ask the same ones.
const MOST_ASKED: usize = 32;
/// The resolution of a peer's answer, which is in whole milliseconds.
const RESOLUTION: Duration = Duration::from_millis(1);

/// Lists the other live nodes and reads their clocks.
pub trait Peers: fmt::Debug + Send + Sync + 'static {
    /// The other live nodes; empty when there are none.
    ///
    /// # Errors
    /// The reason why they cannot be listed. Without a list this node claims no worker id.
    fn list(&self) -> BoxFuture<'_, Result<Vec<Identity>, RegistryError>>;

    /// Reads the peer's wall clock; `None` if the peer does not answer.
    fn ask<'a>(&'a self, peer: &'a Identity) -> BoxFuture<'a, Option<UnixMillis>>;
}

/// The rule that decides whether the peers' clocks agree with this node's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PeerRule {
    /// More than half of the peers that answer are within `max_offset` of this node's clock.
    #[default]
    Majority,
    /// The mean of the peers' clocks is within `max_offset` of this node's clock: the rule of
    /// Meituan's article on Leaf.
    Mean,
}

/// The difference between a peer's clock and this node's clock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerClock {
    /// The address at which the peer answers with its clock.
    pub peer: Identity,
    /// This node's clock minus the peer's, in milliseconds.
    pub offset: i64,
    /// How wrong `offset` may be in either direction: half of the round trip, plus 1 ms, because a
    /// peer answers in whole milliseconds.
    pub uncertainty: Duration,
}

/// How many peers agree and how many answered; `None` if nobody did.
pub(crate) type Agreement = Option<(usize, usize)>;

/// Reads the peers' clocks and compares them with this node's clock. Returns how many agree and how
/// many answered; `None` if nobody did. Those agree whose own clock is within `max_offset`, even if
/// the rule is the mean.
///
/// # Errors
/// `ClockRefused` if the rule is not satisfied; the registry's error, if it cannot list the peers.
/// While it is unavailable, the list is requested again, for two seconds in all.
pub(crate) async fn compare(
    peers: Arc<dyn Peers>,
    clock: Arc<dyn Clock>,
    rule: PeerRule,
    max_offset: Duration,
) -> Result<Agreement, SnowflakeError> {
    Ok(judge(rule, max_offset, &read_all(peers, clock).await?)?)
}

/// Asks up to [`MOST_ASKED`] peers, and returns the clocks of those that answer.
///
/// # Errors
/// The errors of [`compare`].
pub(crate) async fn read_all(
    peers: Arc<dyn Peers>,
    clock: Arc<dyn Clock>,
) -> Result<Vec<PeerClock>, RegistryError> {
    let listed = list(&*peers).await?;
    let mut questions = JoinSet::new();
    for peer in fastrand::choose_multiple(listed, MOST_ASKED) {
        let (peers, clock) = (Arc::clone(&peers), Arc::clone(&clock));
        questions.spawn(async move { read(&*peers, &*clock, peer).await });
    }
    Ok(questions.join_all().await.into_iter().flatten().collect())
}

/// Lists the live nodes; while the registry is unavailable, tries again for two seconds in all.
async fn list(peers: &dyn Peers) -> Result<Vec<Identity>, RegistryError> {
    let until = Instant::now() + 2 * PATIENCE;
    loop {
        let operation = "look for live nodes";
        let listed = tokio::time::timeout_at(until, peers.list()).await.unwrap_or_else(|_| {
            let away = RegistryError::new(RegistryErrorKind::Unavailable, operation);
            Err(away.because("no answer in time"))
        });
        match listed {
            Err(error)
                if *error.kind() == RegistryErrorKind::Unavailable
                    && Instant::now() + LIST_AGAIN < until =>
            {
                tokio::time::sleep(LIST_AGAIN).await;
            }
            listed => return listed,
        }
    }
}

async fn read(peers: &dyn Peers, clock: &dyn Clock, peer: Identity) -> Option<PeerClock> {
    let (asked, wall) = (clock.boot(), clock.wall());
    let theirs = tokio::time::timeout(PATIENCE, peers.ask(&peer)).await.ok()??;
    let half = clock.boot().saturating_sub(asked) / 2;
    let own = UnixMillis::from_duration(wall + half);
    let offset = own.get().cast_signed().saturating_sub_unsigned(theirs.get());
    Some(PeerClock { peer, offset, uncertainty: half + RESOLUTION })
}

fn judge(
    rule: PeerRule,
    max_offset: Duration,
    readings: &[PeerClock],
) -> Result<Agreement, SnowflakeErrorKind> {
    let reached = readings.len();
    if reached == 0 {
        return Ok(None);
    }
    let within = |offset: i64, uncertainty: Duration| {
        Duration::from_millis(offset.unsigned_abs()) <= max_offset.saturating_add(uncertainty)
    };
    let agreeing = readings.iter().filter(|r| within(r.offset, r.uncertainty)).count();
    let sum: i128 = readings.iter().map(|reading| i128::from(reading.offset)).sum();
    let mean = (sum / reached as i128) as i64;
    let uncertainty: Duration = readings.iter().map(|reading| reading.uncertainty).sum();
    let fine = match rule {
        PeerRule::Majority => 2 * agreeing > reached,
        PeerRule::Mean => within(mean, uncertainty / reached as u32),
    };
    if fine {
        return Ok(Some((agreeing, reached)));
    }
    let mut offsets: Vec<i64> = readings.iter().map(|reading| reading.offset).collect();
    offsets.sort_unstable();
    let offset = match rule {
        PeerRule::Majority => offsets[reached / 2],
        PeerRule::Mean => mean,
    };
    Err(SnowflakeErrorKind::ClockRefused { offset, agreeing, reached, max_offset })
}

#[cfg(test)]
mod tests {
    use super::*;
    use leaf_core::ManualClock;

    const MAX_OFFSET: Duration = Duration::from_secs(5);

    fn agrees(rule: PeerRule, offsets: &[i64]) -> bool {
        let peer = || Identity::parse("peer").unwrap();
        let reading =
            |offset: &i64| PeerClock { peer: peer(), offset: *offset, uncertainty: RESOLUTION };
        let readings: Vec<_> = offsets.iter().map(reading).collect();
        judge(rule, MAX_OFFSET, &readings).is_ok()
    }

    /// Failure W-13 (docs/failures.md). The majority rule refuses a node whose own clock is wrong,
    /// and lets it go on if only one peer's clock is wrong. The mean rule can decide wrongly in
    /// both cases.
    #[test]
    fn a_majority_is_not_moved_by_one_clock() {
        use PeerRule::{Majority, Mean};
        const MINUTES: i64 = 600_000;
        const DAY: i64 = 86_400_000;

        assert!(agrees(Majority, &[]), "nobody answers: go on");
        assert!(agrees(Majority, &[3, -900, 20]));
        assert!(!agrees(Majority, &[MINUTES, MINUTES, MINUTES, MINUTES]), "ten minutes ahead");
        assert!(!agrees(Majority, &[MINUTES]), "one of two is wrong: no telling which");
        assert!(!agrees(Majority, &[0, MINUTES]), "half is no majority");
        assert!(agrees(Majority, &[0, 10, -DAY]), "one peer is a day ahead");
        assert!(!agrees(Mean, &[0, 10, -DAY]), "the mean is moved by it");
        let balanced = [MINUTES, MINUTES, MINUTES, -3 * MINUTES];
        assert!(agrees(Mean, &balanced), "and hides a clock that is ten minutes off");
        assert!(!agrees(Majority, &balanced));
        assert!(agrees(Majority, &[5000, -5000]), "the bound itself is within");
        assert!(!agrees(Majority, &[5002, -5002]));
    }

    #[test]
    fn the_extremes_do_not_overflow() {
        assert!(!agrees(PeerRule::Mean, &[i64::MAX, i64::MAX]));
        assert!(!agrees(PeerRule::Majority, &[i64::MIN, i64::MAX]));
    }

    #[derive(Debug)]
    struct Slow {
        clock: Arc<ManualClock>,
        round_trip: Duration,
        offset: Duration,
    }

    impl Peers for Slow {
        fn list(&self) -> BoxFuture<'_, Result<Vec<Identity>, RegistryError>> {
            Box::pin(async { Ok(vec![Identity::parse("slow:1").unwrap()]) })
        }

        fn ask<'a>(&'a self, _: &'a Identity) -> BoxFuture<'a, Option<UnixMillis>> {
            let theirs = self.clock.wall_millis() + self.offset;
            self.clock.advance(self.round_trip);
            Box::pin(async move { Some(theirs) })
        }
    }

    #[tokio::test]
    async fn a_slow_answer_is_an_uncertain_one() {
        let clock = Arc::new(ManualClock::at(UnixMillis::new(1_800_000_000_000)));
        let ask = async |round_trip, offset| {
            let peer = Slow { clock: Arc::clone(&clock), round_trip, offset };
            let within = Duration::from_millis(100);
            let compared =
                compare(Arc::new(peer), Arc::clone(&clock) as _, PeerRule::Majority, within);
            compared.await
        };
        let millis = Duration::from_millis;

        let agrees = Some((1, 1));
        assert_eq!(ask(millis(0), millis(100)).await.unwrap(), agrees);
        let within_half = ask(millis(400), millis(300)).await.unwrap();
        assert_eq!(within_half, agrees, "within half the round trip");
        let refused = ask(millis(10), millis(600)).await.unwrap_err();
        let kind = refused.kind();
        assert!(matches!(kind, SnowflakeErrorKind::ClockRefused { offset: -595, .. }), "{kind:?}");
    }

    #[derive(Debug)]
    struct Silent;

    impl Peers for Silent {
        fn list(&self) -> BoxFuture<'_, Result<Vec<Identity>, RegistryError>> {
            Box::pin(async { Ok(vec![Identity::parse("gone:1").unwrap(); 100]) })
        }

        fn ask<'a>(&'a self, _: &'a Identity) -> BoxFuture<'a, Option<UnixMillis>> {
            Box::pin(std::future::pending())
        }
    }

    #[tokio::test(start_paused = true)]
    async fn peers_that_do_not_answer_hold_nobody_up() {
        let clock = Arc::new(ManualClock::at(UnixMillis::EPOCH));
        let started = tokio::time::Instant::now();

        let verdict = compare(Arc::new(Silent), clock, PeerRule::Majority, MAX_OFFSET).await;

        assert_eq!(verdict.unwrap(), None);
        assert!(started.elapsed() <= 2 * PATIENCE);
    }
}
