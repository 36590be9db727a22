//! What an operator does with worker ids: give back what a dead node held, take one out of service, mend
//! a record.
//!
//! Invariant: every change makes a new epoch with a ceiling that is not below what a holder may have
//! issued. Whoever held the worker id learns at its next report that it is not its own any more.

use std::fmt;
use std::time::Duration;

use futures_core::future::BoxFuture;
use leaf_core::{Layout, UnixMillis, WorkerId};
use leaf_snowflake::{Fence, FenceState, Identity, RegistryError, RegistryErrorKind};
use uuid::Uuid;

use super::{
    FenceStore, FencedRegistry, Found, JavaReport, Mirror, Purpose, Record, Recorded, TRIES,
};

/// How far a holder's clock may be from the operator's.
const CLOCKS: Duration = Duration::from_secs(10);

/// What the configuration of the nodes says, which decides how far their ids may reach.
#[derive(Debug, Clone, Copy)]
pub struct Circumstances {
    /// The wall clock.
    pub now: UnixMillis,
    /// How ids are composed.
    pub layout: Layout,
    /// How far ahead of a report the ceiling is, as the nodes are configured.
    pub offline_for: Duration,
    /// How often a holder reports, as the nodes are configured.
    pub report_interval: Duration,
}

impl Circumstances {
    /// From when on nothing of a holder that reported last at `report` and is dead now is left.
    fn past(&self, report: UnixMillis) -> UnixMillis {
        report.max(self.now) + self.report_interval + CLOCKS
    }
}

/// Administers the worker ids of a registry.
pub trait WorkerAdministration: fmt::Debug + Send + Sync + 'static {
    /// Frees the worker id of a holder that is dead and will not be started again on its data directory,
    /// from shortly after its last report. Returns when that is. A holder that lives after all loses it
    /// at its next report.
    ///
    /// # Errors
    /// `Refused` with the way out, also for a holder that has just reported; `Unavailable`.
    fn release(
        &self,
        worker: WorkerId,
        circumstances: Circumstances,
    ) -> BoxFuture<'_, Result<UnixMillis, RegistryError>>;

    /// Takes a worker id out of service for good. A holder loses it at its next report.
    ///
    /// # Errors
    /// `Unavailable`.
    fn retire(
        &self,
        worker: WorkerId,
        circumstances: Circumstances,
    ) -> BoxFuture<'_, Result<(), RegistryError>>;

    /// Writes a damaged record anew, or puts a worker id that is in no pool back into one. Returns
    /// when it can be used: then every ceiling that somebody may live by has passed.
    ///
    /// # Errors
    /// `Refused` where nothing is to be mended; `Unavailable`.
    fn repair(
        &self,
        worker: WorkerId,
        circumstances: Circumstances,
    ) -> BoxFuture<'_, Result<UnixMillis, RegistryError>>;
}

impl<S: FenceStore> FencedRegistry<S> {
    /// Replaces a record by what `change` makes of what was found.
    async fn administer(
        &self,
        what: &str,
        worker: WorkerId,
        at: &Circumstances,
        change: impl Fn(&Found<S::Token>) -> Result<Record, String>,
    ) -> Result<Fence, RegistryError> {
        let what = format!("{what} worker id {worker}");
        let (range, greatest) = (self.store.range(), at.layout.max_worker().get());
        let greatest = greatest.min(*range.end());
        if !(*range.start()..=greatest).contains(&worker.get()) {
            let why = format!("give a worker id from {} to {greatest}", range.start());
            return Err(self.error(RegistryErrorKind::Refused, &what).because(why));
        }
        for _ in 0..TRIES {
            let found = self.store.read(worker, Purpose::Replace(at.now)).await?;
            let nothing = found.record == Recorded::Absent && found.mirror == Mirror::Missing;
            if nothing && !self.store.has_unused() {
                let error = self.error(RegistryErrorKind::Refused, &what);
                return Err(error.because("nobody has used it"));
            }
            let record = change(&found)
                .map_err(|why| self.error(RegistryErrorKind::Refused, &what).because(why))?;
            if self.store.write(worker, &found, &record).await? {
                return Ok(record.fence);
            }
        }
        Err(self.busy(&what))
    }
}

/// The record of the next epoch, in the name of its last holder.
fn next<T>(
    worker: WorkerId,
    found: &Found<T>,
    at: &Circumstances,
    state: FenceState,
) -> Result<Record, String> {
    let before = found.record.written();
    let name = match (before, &found.mirror) {
        (Some(record), _) => record.holder.to_string(),
        (None, Mirror::Java(report)) => report.holder.clone(),
        // A name of its own: some registries allow each only once.
        (None, _) => format!("operator:{worker}"),
    };
    let holder = Identity::parse(&name).map_err(|error| error.to_string())?;
    Ok(Record {
        address: before.map_or_else(|| holder.clone(), |record| record.address.clone()),
        holder,
        fence: Fence {
            // Above any epoch that a lost record may have had.
            epoch: before.map_or(at.now.get(), |record| record.fence.epoch + 1),
            ceiling: before.map_or(at.now, |record| record.fence.ceiling),
            instance: Uuid::new_v4(),
            nonce: Uuid::new_v4(),
            layout: before.map_or_else(|| at.layout.shape(), |record| record.fence.layout.clone()),
            epoch_ms: before.map_or(at.layout.epoch(), |record| record.fence.epoch_ms),
            state,
        },
    })
}

impl<S: FenceStore> WorkerAdministration for FencedRegistry<S> {
    fn release(
        &self,
        worker: WorkerId,
        at: Circumstances,
    ) -> BoxFuture<'_, Result<UnixMillis, RegistryError>> {
        Box::pin(async move {
            let fence = self.administer("release", worker, &at, |found| {
                in_order(worker, &found.mirror)?;
                let record = match &found.record {
                    Recorded::Written(record) => record,
                    Recorded::Absent => return Err("nobody holds it".into()),
                    Recorded::Damaged(_) => return Err(mend(worker)),
                };
                match record.fence.state {
                    FenceState::Held => {}
                    FenceState::Released => return Err("it was given back already".into()),
                    FenceState::Retired => return Err("it is retired".into()),
                }
                let last_report = record.fence.ceiling - at.offline_for;
                if last_report > at.now + CLOCKS {
                    return Err(format!(
                        "its ceiling {} (Unix ms) is further ahead than offline_for: its holder's clock was, \
                         or its offline_for is another; wait until then, or `leaf worker retire {worker}`",
                        record.fence.ceiling
                    ));
                }
                if last_report + 2 * at.report_interval > at.now {
                    return Err(format!(
                        "its holder, {}, reported at {last_report} (Unix ms), a moment ago: stop that \
                         process first",
                        record.holder
                    ));
                }
                let mut next = next(worker, found, &at, FenceState::Released)?;
                next.fence.ceiling = at.past(last_report).min(record.fence.ceiling);
                Ok(next)
            });
            Ok(fence.await?.ceiling)
        })
    }

    fn retire(
        &self,
        worker: WorkerId,
        at: Circumstances,
    ) -> BoxFuture<'_, Result<(), RegistryError>> {
        Box::pin(async move {
            let retired = self.administer("retire", worker, &at, |found| {
                in_order(worker, &found.mirror)?;
                match &found.record {
                    Recorded::Damaged(_) => Err(mend(worker)),
                    _ => next(worker, found, &at, FenceState::Retired),
                }
            });
            retired.await.map(|_| ())
        })
    }

    fn repair(
        &self,
        worker: WorkerId,
        at: Circumstances,
    ) -> BoxFuture<'_, Result<UnixMillis, RegistryError>> {
        Box::pin(async move {
            let fence = self.administer("repair", worker, &at, |found| {
                let damaged = matches!(found.record, Recorded::Damaged(_))
                    || matches!(found.mirror, Mirror::Damaged(_) | Mirror::Missing);
                if !damaged {
                    return Err("nothing is wrong with its record".into());
                }
                let retired = found.record.written().map(|record| record.fence.state)
                    == Some(FenceState::Retired);
                let state = if retired { FenceState::Retired } else { FenceState::Released };
                let mut next = next(worker, found, &at, state)?;
                // Whoever may live by a ceiling that is not known was given it before now.
                next.fence.ceiling = next.fence.ceiling.max(at.past(at.now + at.offline_for));
                if let Mirror::Java(JavaReport { at: Some(report), .. }) = &found.mirror {
                    next.fence.ceiling = next.fence.ceiling.max(at.past(*report));
                }
                Ok(next)
            });
            Ok(fence.await?.ceiling)
        })
    }
}

/// A Java Leaf knows nothing of a fence: what it holds is its own.
fn in_order(worker: WorkerId, mirror: &Mirror) -> Result<(), String> {
    match mirror {
        Mirror::Agrees => Ok(()),
        Mirror::Java(report) => Err(format!(
            "a Java Leaf, {}, has it: stop that one, and let a node claim it",
            report.holder
        )),
        Mirror::Missing | Mirror::Damaged(_) => Err(mirror.remark(worker).unwrap_or_default()),
    }
}

fn mend(worker: WorkerId) -> String {
    format!("its record is damaged: `leaf worker repair {worker}`")
}
