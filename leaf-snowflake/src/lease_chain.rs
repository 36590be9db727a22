//! The sequencer of each lease that this process has held, in order.
//!
//! Callers hold a reference to the first lease only and follow the links, so that the hot path
//! needs no counted reference. The chain is as long as the number of leases that the process has
//! lost.

use std::ops::Deref;
use std::sync::{Arc, OnceLock};

use leaf_core::sequencer::Sequencer;

/// The sequencer of one lease, and a link to the lease that replaced it.
///
/// Worker id, floor, ceiling and the next free timestamp and sequence are one object, so that no
/// caller can combine the worker id of an old lease with the timestamps of a new one.
#[derive(Debug)]
pub(crate) struct LeaseSequencer {
    sequencer: Sequencer,
    successor: OnceLock<Arc<Self>>,
}

impl LeaseSequencer {
    pub(crate) const fn new(sequencer: Sequencer) -> Self {
        Self { sequencer, successor: OnceLock::new() }
    }

    /// The lease that replaced this one, if one did.
    #[cold]
    pub(crate) fn successor(&self) -> Option<&Arc<Self>> {
        self.successor.get()
    }

    /// Links the lease that replaces this one. Called at most once, after [`Sequencer::close`].
    pub(crate) fn set_successor(&self, successor: Arc<Self>) {
        // The one keeper calls it, once per lease: there is nothing to overwrite.
        let _ = self.successor.set(successor);
    }
}

impl Deref for LeaseSequencer {
    type Target = Sequencer;

    fn deref(&self) -> &Sequencer {
        &self.sequencer
    }
}
