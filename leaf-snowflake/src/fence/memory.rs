//! A store in memory: for tests, simulations and examples. Its records are lost at exit.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};

use leaf_core::WorkerId;

use super::{FenceStore, JavaMirror, Purpose, RecordState, Stored, StoredWorker, WorkerRecord};
use crate::{RegistryError, RegistryErrorKind};

/// A [`FenceStore`] without a server: a [`Registry`](super::Registry) applies the same rules to it
/// as to any other.
#[derive(Debug, Default)]
pub struct MemoryFenceStore {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    records: BTreeMap<WorkerId, WorkerRecord>,
    fault: StoreFault,
}

/// How a [`MemoryFenceStore`] misbehaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum StoreFault {
    /// The store works.
    #[default]
    None,
    /// `list`, `read` and `replace` fail with `Unavailable` and do nothing.
    Away,
    /// Every write is done and then fails with `Unavailable`, as if its answer was lost.
    AnswersLost,
}

impl MemoryFenceStore {
    /// Sets the fault of the store from now on.
    pub fn set_fault(&self, fault: StoreFault) {
        self.inner().fault = fault;
    }

    /// Deletes every record, like a store that was restored from an early backup.
    pub fn forget(&self) {
        self.inner().records.clear();
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().expect("no holder of this lock panics")
    }

    /// Locks and returns the records; an error if the fault is [`StoreFault::Away`].
    fn reachable(&self, operation: &str) -> Result<MutexGuard<'_, Inner>, RegistryError> {
        let inner = self.inner();
        match inner.fault {
            StoreFault::Away => Err(unavailable(operation)),
            StoreFault::None | StoreFault::AnswersLost => Ok(inner),
        }
    }
}

fn unavailable(operation: &str) -> RegistryError {
    RegistryError::new(RegistryErrorKind::Unavailable, format!("{operation} in memory"))
}

fn stored(record: Option<&WorkerRecord>) -> Stored<()> {
    let record = record.map_or(RecordState::Absent, |record| RecordState::Written(record.clone()));
    Stored { record, mirror: JavaMirror::Agrees, version: (), failed_over_at: None }
}

impl FenceStore for MemoryFenceStore {
    /// Nothing: `replace` compares the whole record.
    type Version = ();

    fn name(&self) -> &'static str {
        "memory"
    }

    async fn list(&self, _purpose: Purpose) -> Result<Vec<StoredWorker<()>>, RegistryError> {
        let inner = self.reachable("list the worker ids")?;
        let listed = inner.records.iter();
        Ok(listed.map(|(worker, record)| (*worker, stored(Some(record)))).collect())
    }

    async fn read(&self, worker: WorkerId, _purpose: Purpose) -> Result<Stored<()>, RegistryError> {
        let inner = self.reachable("read a worker id")?;
        Ok(stored(inner.records.get(&worker)))
    }

    async fn replace(
        &self,
        worker: WorkerId,
        read: &Stored<()>,
        record: &WorkerRecord,
    ) -> Result<bool, RegistryError> {
        let mut inner = self.reachable("write a worker id")?;
        let unchanged = inner.records.get(&worker) == read.record.written();
        if unchanged {
            inner.records.insert(worker, record.clone());
        }
        match inner.fault {
            StoreFault::AnswersLost => Err(unavailable("write a worker id")),
            StoreFault::None | StoreFault::Away => Ok(unchanged),
        }
    }

    fn replaced(&self, read: &Stored<()>, record: &WorkerRecord) -> Option<Stored<()>> {
        Some(Stored { record: RecordState::Written(record.clone()), ..read.clone() })
    }
}
