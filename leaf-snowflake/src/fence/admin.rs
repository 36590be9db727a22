//! What an operator does with worker ids: release what a dead node holds, retire a worker id,
//! repair a record.
//!
//! Invariant: every change begins a new term, with a ceiling that is not below what a holder may
//! have issued. A holder learns at its next report that the worker id is no longer its own.

use std::time::Duration;

use leaf_core::{Layout, UnixMillis, WorkerId};
use uuid::Uuid;

use super::rules::{StoreRules, TRIES};
use super::{
    Fence, FenceState, FenceStore, Identity, JavaMirror, JavaReport, Purpose, RecordState, Stored,
    WorkerRecord,
};
use crate::{RegistryError, RegistryErrorKind};

/// How far a holder's clock may be from the operator's.
const OPERATOR_CLOCK_DIFFERENCE: Duration = Duration::from_secs(10);

/// The input of an operator's command: the operator's clock, and the settings of the nodes that
/// limit how far ids may run ahead of the clock.
#[derive(Debug, Clone, Copy)]
pub struct NodeSettings {
    /// The wall clock.
    pub now: UnixMillis,
    /// How ids are composed.
    pub layout: Layout,
    /// How far ahead of a report the ceiling is, as the nodes are configured.
    pub offline_for: Duration,
    /// How often a holder reports, as the nodes are configured.
    pub report_interval: Duration,
    /// How far ids may run ahead of a node's clock, as the nodes are configured.
    pub tolerance: Duration,
    /// If `true`, everything is checked but nothing is written.
    pub dry_run: bool,
}

impl NodeSettings {
    /// An instant above every timestamp that a holder may have issued up to `instant` or up to now,
    /// whichever is later. Adds a report interval, because a holder that is alive in spite of the
    /// command learns of the change at its next report; the tolerance, because ids may run ahead of
    /// the clock; and the possible difference of clocks.
    fn safely_after(&self, instant: UnixMillis) -> UnixMillis {
        let margin = self.report_interval + self.tolerance + OPERATOR_CLOCK_DIFFERENCE;
        instant.max(self.now) + margin
    }
}

/// A command of an operator for one worker id.
#[derive(Debug, Clone, Copy)]
pub(super) enum AdminCommand {
    Release,
    Retire,
    Repair,
}

fn release<V>(
    worker: WorkerId,
    stored: &Stored<V>,
    settings: &NodeSettings,
) -> Result<WorkerRecord, String> {
    let record = match &stored.record {
        RecordState::Written(record) => record,
        RecordState::Absent => return Err("no node holds it".into()),
        RecordState::Newer(_) | RecordState::Damaged(_) => return Err(unreadable(stored)),
    };
    agrees(&stored.mirror)?;
    match record.fence.state {
        FenceState::Held => {}
        FenceState::Released => return Err("it was released already".into()),
        FenceState::Retired => return Err("it is retired".into()),
    }
    let last_report = record.fence.reported_at;
    if last_report > settings.now + OPERATOR_CLOCK_DIFFERENCE {
        return Err(format!(
            "its holder's clock was ahead: it reported at {}; wait until \
             then, or retire the worker id",
            last_report.utc()
        ));
    }
    if last_report + 2 * settings.report_interval > settings.now {
        return Err(format!(
            "its holder, {}, reported at {}, a moment ago: stop that \
             process first; if it is dead, ask again in some seconds",
            record.holder,
            last_report.utc()
        ));
    }
    let mut next = next_record(worker, stored, settings, FenceState::Released)?;
    next.fence.ceiling = settings.safely_after(last_report).min(record.fence.ceiling);
    Ok(next)
}

fn retire<V>(
    worker: WorkerId,
    stored: &Stored<V>,
    settings: &NodeSettings,
) -> Result<WorkerRecord, String> {
    match &stored.record {
        RecordState::Newer(_) | RecordState::Damaged(_) => return Err(unreadable(stored)),
        RecordState::Absent | RecordState::Written(_) => {}
    }
    agrees(&stored.mirror)?;
    next_record(worker, stored, settings, FenceState::Retired)
}

fn repair<V>(
    worker: WorkerId,
    stored: &Stored<V>,
    settings: &NodeSettings,
) -> Result<WorkerRecord, String> {
    if let RecordState::Newer(_) = stored.record {
        return Err(unreadable(stored));
    }
    let damaged = matches!(stored.record, RecordState::Damaged(_))
        || matches!(stored.mirror, JavaMirror::Damaged(_) | JavaMirror::Missing);
    if !damaged {
        return Err("nothing is wrong with its record".into());
    }
    let retired =
        stored.record.written().map(|record| record.fence.state) == Some(FenceState::Retired);
    let state = if retired { FenceState::Retired } else { FenceState::Released };
    let mut next = next_record(worker, stored, settings, state)?;
    // The old ceiling may be unreadable. It was granted before now, so it is `offline_for` ahead of
    // now at most.
    let unknown_ceiling = settings.safely_after(settings.now + settings.offline_for);
    next.fence.ceiling = next.fence.ceiling.max(unknown_ceiling);
    if let JavaMirror::Java(JavaReport { at: Some(report), .. }) = &stored.mirror {
        next.fence.ceiling = next.fence.ceiling.max(settings.safely_after(*report));
    }
    Ok(next)
}

impl<S: FenceStore> StoreRules<S> {
    /// Runs a command: computes the new record from what is stored and, unless it is a dry run,
    /// writes the record. Returns the fence of the new record.
    pub(super) async fn run_command(
        &self,
        command: AdminCommand,
        worker: WorkerId,
        settings: NodeSettings,
    ) -> Result<Fence, RegistryError> {
        let (verb, apply): (_, fn(_, &_, &_) -> _) = match command {
            AdminCommand::Release => ("release", release::<S::Version>),
            AdminCommand::Retire => ("retire", retire),
            AdminCommand::Repair => ("repair", repair),
        };
        let what = format!("{verb} worker id {worker}");
        let refuse = |why: String| self.error(RegistryErrorKind::Refused, &what).because(why);
        let (range, greatest) = (self.store.storable(), settings.layout.max_worker().get());
        let greatest = greatest.min(*range.end());
        if !(*range.start()..=greatest).contains(&worker.get()) {
            return Err(refuse(format!("give a worker id from {} to {greatest}", range.start())));
        }
        for _ in 0..TRIES {
            let stored = self.store.read(worker, Purpose::Replace(settings.now)).await?;
            let nothing =
                stored.record == RecordState::Absent && stored.mirror == JavaMirror::Missing;
            if nothing && !self.store.admin_may_create_record() {
                return Err(refuse("no node has used it".into()));
            }
            let mut record = apply(worker, &stored, &settings).map_err(refuse)?;
            if record.fence.state == FenceState::Retired {
                record.holder = self.store.holder_of_retired(worker, record.holder);
            }
            if settings.dry_run || self.store.replace(worker, &stored, &record).await? {
                return Ok(record.fence);
            }
        }
        Err(self.busy(&what))
    }
}

/// The record of the next term. Its holder is the last holder of the worker id or, if none is
/// known, a name that stands for the operator.
fn next_record<V>(
    worker: WorkerId,
    stored: &Stored<V>,
    settings: &NodeSettings,
    state: FenceState,
) -> Result<WorkerRecord, String> {
    let before = stored.record.written();
    let holder = match (before, &stored.mirror) {
        (Some(record), _) => record.holder.clone(),
        (None, JavaMirror::Java(report)) => {
            Identity::parse(&report.holder).map_err(|error| error.to_string())?
        }
        (None, _) => Identity::of_operator(worker),
    };
    let ceiling = before.map_or(settings.now, |record| record.fence.ceiling);
    let layout = &settings.layout;
    Ok(WorkerRecord {
        address: before.map_or_else(|| holder.clone(), |record| record.address.clone()),
        holder,
        fence: Fence {
            // Without a record, the term is the milliseconds since 1970. That is above every term
            // that a lost record may have had, because a term counts claims.
            term: before.map_or(settings.now.get(), |record| record.fence.term + 1),
            floor: ceiling,
            ceiling,
            reported_at: settings.now,
            instance: Uuid::new_v4(),
            nonce: Uuid::new_v4(),
            layout: before.map_or_else(|| layout.shape(), |record| record.fence.layout.clone()),
            epoch_ms: before.map_or(layout.epoch(), |record| record.fence.epoch_ms),
            workers: before.and_then(|record| record.fence.workers.clone()),
            state,
            unknown: before.map(|record| record.fence.unknown.clone()).unwrap_or_default(),
        },
        unknown: before.map(|record| record.unknown.clone()).unwrap_or_default(),
    })
}

/// Refuses the change unless the mirror agrees: a Java Leaf ignores fences and would continue to
/// issue ids.
fn agrees(mirror: &JavaMirror) -> Result<(), String> {
    match mirror {
        JavaMirror::Agrees => Ok(()),
        JavaMirror::Java(report) => Err(format!(
            "a Java Leaf, {}, has it: stop that one, and let a node claim it",
            report.holder
        )),
        JavaMirror::Missing | JavaMirror::Damaged(_) => Err(mirror.remark().unwrap_or_default()),
    }
}

fn unreadable<V>(stored: &Stored<V>) -> String {
    match &stored.record {
        RecordState::Newer(version) => {
            RegistryErrorKind::NewerFormat { version: *version }.to_string()
        }
        _ => "its record is damaged: repair it first".into(),
    }
}
