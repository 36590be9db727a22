//! The task that keeps a lease: it claims, raises both ceilings ahead of use, watches the clock and
//! gives the worker id back.
//!
//! Invariants: a ceiling in memory rises only after it was written down: the registry ceiling by a
//! confirmed extension, the local ceiling by a synced write, which never exceeds the registry
//! ceiling. When a lease is lost, the state file records it; if the file cannot be written, it is
//! removed. At a clean stop the state file records that the lease is over before the registry does.

mod ceiling;
mod claim;
mod events;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_core::future::BoxFuture;
use leaf_core::sequencer::Sequencer;
use leaf_core::{UnixMillis, WorkerId};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::id_clock::Doubt;
use crate::java_cache::JavaCache;
use crate::lease_chain::LeaseSequencer;
use crate::shared::{Phase, Shared, Trouble};
use crate::state_file::{State, StateFile};
use crate::{
    FenceState, Lease, Provenance, Registry, RegistryError, RegistryErrorKind, Report, SavedLease,
    SnowflakeConfig, SnowflakeError, SnowflakeErrorKind, StateFileError,
};

/// How often the clock is watched and the local ceiling considered.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Deadline of one request to the registry.
const ATTEMPT: Duration = Duration::from_secs(2);
/// Pause between attempts to claim another worker id in place of a lost one.
const CLAIM_AGAIN: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(crate) struct Keeper {
    registry: Registry,
    config: SnowflakeConfig,
    shared: Arc<Shared>,
    /// Shared with the write under way: if the future of `claim` is dropped, the file stays open
    /// and locked until the write ends.
    file: Option<Arc<Mutex<StateFile>>>,
    /// The state as last written, or with changes that the next write persists.
    state: State,
    /// No id is issued below this.
    least_floor: UnixMillis,
    /// The cache files of a Java Leaf on this machine, as they were last read.
    java: Option<JavaCache>,
    /// Whether the file was watched, and no other process was seen to write it.
    file_unshared: bool,
    /// The records that the registry wants to be seen unchanged before it confirms a lease: the
    /// fingerprint of each, and until when it is watched.
    pending_watches: BTreeMap<WorkerId, (Uuid, Instant)>,
    /// The write under way. If its caller stopped waiting for it, the next write first waits until
    /// it has ended.
    writing: Option<JoinHandle<Result<(), StateFileError>>>,
    /// The boot clock at the last look.
    looked_at: Duration,
    /// The setting of the clock that the peers have confirmed, if the clock was set ahead.
    believed: Option<Doubt>,
}

/// A worker id that ids are issued with.
#[derive(Debug)]
pub(crate) struct Held {
    sequencer: Arc<LeaseSequencer>,
    /// `None` while a pending request owns it, or while the node goes on from its state file
    /// because the registry is unavailable.
    lease: Option<Lease>,
}

impl Held {
    pub(crate) fn worker(&self) -> WorkerId {
        self.sequencer.worker()
    }
}

/// A request to the registry that borrows neither the keeper nor the lease.
type PendingRequest = BoxFuture<'static, Answer>;

enum Answer {
    Extended(Lease, Result<(), RegistryError>),
    Claimed(Result<Lease, RegistryError>),
}

/// When a confirmed lease is written into the state file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Persist {
    Now,
    /// With the next raise of the ceiling.
    WithNext,
}

/// Why a lease is over.
enum End {
    Stopped,
    /// This process is a forked child: the lease belongs to the parent process.
    Forked,
    Lost(RegistryError),
    /// The registry granted a lease that does not continue the saved one: another worker id, not
    /// the next term, or a floor above the ids issued so far.
    Moved(Lease),
}

impl Keeper {
    /// Opens and locks the state file.
    ///
    /// # Errors
    /// `StateFile`; `BadConfig` for a Java cache that cannot be read.
    pub(crate) fn new(
        registry: Registry,
        config: SnowflakeConfig,
        shared: Arc<Shared>,
    ) -> Result<Self, SnowflakeError> {
        let (file, state) = match &config.state_file {
            Some(path) => {
                let (file, state) = StateFile::open(path)?;
                (Some(Arc::new(Mutex::new(file))), state)
            }
            None => (None, None),
        };
        let java = JavaCache::of(&config)?;
        let mut least_floor = java.and_then(|cache| cache.floor).unwrap_or(UnixMillis::EPOCH);
        let new = || State { instance: Uuid::new_v4(), ..State::default() };
        let state = state.unwrap_or_else(new);
        if let (true, Some(saved)) = (registry.lives_in_state_file(), &state.saved_lease) {
            // The state file has room for one lease. So each lease starts at or above the end of
            // the last one, whatever its worker id: else a node that gets another worker id, and
            // later the first one again, would repeat ids.
            least_floor = least_floor.max(saved.local_ceiling);
        }
        let copied =
            matches!(&state.saved_lease, Some(SavedLease { provenance: Provenance::Copied, .. }));
        if let (true, Some(path)) = (copied, &config.state_file) {
            tracing::warn!(
                "{} was copied from elsewhere: make sure that no process uses the original",
                path.display()
            );
        }
        Ok(Self {
            registry,
            config,
            shared,
            file,
            state,
            least_floor,
            java,
            file_unshared: false,
            pending_watches: BTreeMap::new(),
            writing: None,
            looked_at: Duration::ZERO,
            believed: None,
        })
    }

    /// Keeps the lease until `stop`, then gives the worker id back. If the lease is lost, claims
    /// another worker id where the registry allows it.
    pub(crate) async fn run(mut self, mut held: Held, stop: CancellationToken) {
        loop {
            let (granted, may_claim) = match self.keep(&mut held, &stop).await {
                End::Stopped => return self.release(held).await,
                End::Forked => return,
                End::Lost(error) => {
                    self.lose(&held, &error.to_string()).await;
                    // After a failover the lease is only in doubt: it is not known that another
                    // node has taken it over. So this node may claim again, even if a takeover
                    // would force it to stop.
                    let failed_over = *error.kind() == RegistryErrorKind::LeaseInDoubt;
                    (None, failed_over || !self.registry.policy().bound)
                }
                End::Moved(lease) => {
                    self.lose(
                        &held,
                        "the registry granted a lease that does not continue this one (another node may have held the \
                         worker id meanwhile)",
                    )
                    .await;
                    // The registry has given it already.
                    (Some(lease), true)
                }
            };
            let replaced = stop.run_until_cancelled(self.replace(granted, may_claim)).await;
            held = match replaced {
                Some(Some(held)) => held,
                Some(None) => return self.shared.end(Phase::Lost),
                None => return self.shared.end(Phase::Closed),
            };
        }
    }

    /// Begins a request that raises the registry ceiling or, if the registry has not confirmed the
    /// lease yet, claims the lease that the state file remembers.
    fn report(&self, held: &mut Held) -> PendingRequest {
        // By the ids' own clock: a wall that jumped ahead must not lock the worker id for years.
        let next_free = held.sequencer.next_free();
        let now = self.shared.clock.now().unwrap_or(UnixMillis::EPOCH).max(next_free);
        let Some(mut lease) = held.lease.take() else {
            return self.confirm(now, next_free);
        };
        let tolerance = self.config.rollback_tolerance;
        let report = Report { now, tolerance, ceiling: now + self.config.offline_for };
        let registry = self.registry.clone();
        Box::pin(async move {
            let answer = tokio::time::timeout(ATTEMPT, registry.extend(&mut lease, report)).await;
            let answer = answer.unwrap_or_else(|_| Err(no_answer("extend the lease")));
            Answer::Extended(lease, answer)
        })
    }

    /// Applies the registry's answer. Returns why the lease is over, if the answer ends it.
    async fn take_answer(
        &mut self,
        held: &mut Held,
        answer: Answer,
        persist: Persist,
    ) -> Option<End> {
        let result = match answer {
            Answer::Extended(lease, result) => {
                let lease = held.lease.insert(lease);
                result.map(|()| lease)
            }
            Answer::Claimed(Ok(lease)) if self.continues(&lease, held.sequencer.next_free()) => {
                Ok(held.lease.insert(lease))
            }
            Answer::Claimed(Ok(lease)) => return Some(End::Moved(lease)),
            Answer::Claimed(Err(error)) => {
                self.watch(error.kind());
                Err(error)
            }
        };
        match result {
            Ok(lease) => {
                self.pending_watches.clear();
                if let Some(saved) = &mut self.state.saved_lease {
                    saved.fence = lease.fence.clone();
                    self.state.pending_claim = None;
                    // Written now, not with the next raise: after a reboot the saved lease counts
                    // only if its nonce is the one in the registry's record.
                    if persist == Persist::Now {
                        self.persist_best_effort().await;
                    }
                }
                self.shared.clear_trouble(Trouble::Registry);
                self.publish(true);
                None
            }
            Err(error) if error.kind().ends_lease() => Some(End::Lost(error)),
            Err(error) => {
                self.shared.set_trouble(Trouble::Registry, error.to_string());
                None
            }
        }
    }

    /// Ends the ids of a lease that is over: taken over, in doubt after a failover, or replaced by
    /// one that does not continue it.
    async fn lose(&mut self, held: &Held, why: &str) {
        let next_free = held.sequencer.close();
        self.shared.lease_lost();
        tracing::error!(worker = %held.worker(), "{why}; the ids of this lease stop");
        self.least_floor = self.least_floor.max(next_free.unwrap_or(UnixMillis::EPOCH));
        let Some(saved) = &mut self.state.saved_lease else { return };
        saved.lost = true;
        let written = self.write(self.state.clone()).await;
        if let Err(error) = &written {
            tracing::warn!("{error}");
        }
        // The file could not be written: remove it, or a start without the registry would go on
        // with this lease beside its new holder. A file that another process has replaced or
        // written stays.
        if let (Err(StateFileError::Io { .. }), Some(file)) = (written, &self.file) {
            file.lock().expect("no holder of this lock panics").abandon();
        }
    }

    /// Replaces the lost worker id: by `granted`, or by a claim that is repeated until it succeeds.
    /// Returns `None` if `may_claim` is `false`.
    async fn replace(&mut self, mut granted: Option<Lease>, may_claim: bool) -> Option<Held> {
        if !may_claim {
            return None;
        }
        loop {
            let claimed = match granted.take() {
                Some(lease) => self.start(Some(lease)).await,
                None => self.claim().await,
            };
            match claimed {
                Ok(held) => {
                    self.shared.clear_trouble(Trouble::Lease);
                    return Some(held);
                }
                Err(error) => {
                    let text = format!("no worker id in place of the lost one yet: {error}");
                    self.shared.set_trouble(Trouble::Lease, text);
                    // The text of `Trouble::Lease` holds this error already.
                    self.shared.note_claim(None);
                    tokio::time::sleep(CLAIM_AGAIN).await;
                }
            }
        }
    }

    /// Gives the worker id back. Writes the state file first: once the registry has released the
    /// worker id, another node may hold it.
    async fn release(mut self, held: Held) {
        let Some(next_free) = held.sequencer.close() else { return };
        self.shared.end(Phase::Closed);
        let Some(saved) = &mut self.state.saved_lease else { return };
        saved.local_ceiling = next_free;
        // If the registry has not confirmed this lease (the node went on from its state file),
        // there is nothing to give back there.
        let Some(lease) = held.lease else {
            return self.persist_best_effort().await.unwrap_or_default();
        };
        saved.fence.state = FenceState::Released;
        saved.fence.ceiling = next_free;
        if self.persist_best_effort().await.is_none() {
            return;
        }
        let tolerance = self.config.rollback_tolerance;
        let last = Report { now: self.shared.clock.wall(), tolerance, ceiling: next_free };
        let release = self.registry.release(lease, last);
        match tokio::time::timeout(ATTEMPT, release).await {
            Ok(Ok(())) => tracing::info!("worker id released"),
            Ok(Err(error)) => tracing::warn!("{error}"),
            Err(_) => tracing::warn!("{}", no_answer("release the worker id")),
        }
    }
}

/// Whether somebody waits for the ceiling to rise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Urgency {
    NobodyWaits,
    CallersWait,
}

fn no_answer(operation: &str) -> RegistryError {
    RegistryError::new(RegistryErrorKind::Unavailable, operation)
        .because(format!("no answer within {ATTEMPT:?}"))
}
