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

use super::{FenceStore, FencedRegistry, Found, Mirror, Record, Recorded, TRIES};

/// How far past the last report of a dead holder its ids may reach: three reports, and clocks that
/// differ.
const PAST_REPORT: Duration = Duration::from_secs(15);
/// Who the record names while it is nobody's.
const OPERATOR: &str = "operator";

/// What the configuration of the nodes says, which decides how far their ids may reach.
#[derive(Debug, Clone, Copy)]
pub struct Circumstances {
    /// The wall clock.
    pub now: UnixMillis,
    /// How ids are composed.
    pub layout: Layout,
    /// How far ahead of a report the ceiling is.
    pub offline_for: Duration,
}

/// Administers the worker ids of a registry.
pub trait WorkerAdministration: fmt::Debug + Send + Sync + 'static {
    /// Frees the worker id of a holder that does not live any more, from shortly after its last report.
    /// Returns when that is. A holder that lives after all loses it at its next report.
    ///
    /// # Errors
    /// `Refused` with the way out; `Unavailable`.
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
        change: impl Fn(&Found<S::Token>) -> Result<Record, String>,
    ) -> Result<Fence, RegistryError> {
        let what = format!("{what} worker id {worker}");
        for _ in 0..TRIES {
            let found = self.store.read(worker).await?;
            let record = change(&found)
                .map_err(|why| self.error(RegistryErrorKind::Refused, &what).because(why))?;
            if self.store.write(worker, &found, &record).await? {
                return Ok(record.fence);
            }
        }
        Err(self.busy(&what))
    }
}

/// The record of the next epoch, nobody's.
fn next(before: Option<&Record>, at: &Circumstances, state: FenceState) -> Record {
    let operator = || Identity::parse(OPERATOR).expect("visible ASCII");
    Record {
        holder: before.map_or_else(operator, |record| record.holder.clone()),
        address: before.map_or_else(operator, |record| record.address.clone()),
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
    }
}

impl<S: FenceStore> WorkerAdministration for FencedRegistry<S> {
    fn release(
        &self,
        worker: WorkerId,
        at: Circumstances,
    ) -> BoxFuture<'_, Result<UnixMillis, RegistryError>> {
        Box::pin(async move {
            let fence = self.administer("release", worker, |found| {
                refuse_java(&found.mirror)?;
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
                let mut next = next(Some(record), &at, FenceState::Released);
                let last_report = record.fence.ceiling - at.offline_for;
                let ceiling = last_report.max(at.now) + PAST_REPORT;
                next.fence.ceiling = ceiling.min(record.fence.ceiling);
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
            let retired = self.administer("retire", worker, |found| {
                refuse_java(&found.mirror)?;
                match &found.record {
                    Recorded::Damaged(_) => Err(mend(worker)),
                    record => Ok(next(record.written(), &at, FenceState::Retired)),
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
            let fence = self.administer("repair", worker, |found| {
                let damaged = matches!(found.record, Recorded::Damaged(_));
                if !damaged && found.mirror != Mirror::Missing {
                    return Err("nothing is wrong with its record".into());
                }
                let mut next = next(found.record.written(), &at, FenceState::Released);
                // Whoever may live by a ceiling that is not known was given it before now.
                next.fence.ceiling = next.fence.ceiling.max(at.now + at.offline_for);
                if let Mirror::Java(report) = &found.mirror {
                    let past = report.at.map_or(at.now, |at| at + PAST_REPORT);
                    next.fence.ceiling = next.fence.ceiling.max(past);
                }
                Ok(next)
            });
            Ok(fence.await?.ceiling)
        })
    }
}

/// A Java Leaf knows nothing of a fence: what it holds is its own.
fn refuse_java(mirror: &Mirror) -> Result<(), String> {
    match mirror {
        Mirror::Java(report) => Err(format!(
            "a Java Leaf, {}, has it: stop that one, and let a node claim it",
            report.holder
        )),
        Mirror::Agrees | Mirror::Missing => Ok(()),
    }
}

fn mend(worker: WorkerId) -> String {
    format!("its record is damaged: `leaf worker repair {worker}`")
}
