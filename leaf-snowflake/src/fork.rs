//! The fork guard: it refuses ids in a forked child of the process that opened the generator.
//!
//! A forked child has a copy of the sequencer's state and would hand out the same ids. The child
//! has another process id. To read the process id costs a system call, so it is read at most once
//! in 16 us. A fork takes longer than 16 us, so the child's first call falls into a later interval
//! and reads the process id. In the parent the check costs one comparison per id. Ids for which the
//! clock is not read have another check, see [`crate::ticker`].

use std::sync::atomic::{AtomicU64, Ordering};

/// Process ids are compared once per 2^14 ns (16,384 ns).
const COMPARE_SHIFT: u32 = 14;

#[derive(Debug)]
pub(crate) struct ForkGuard {
    pid: u32,
    /// The interval in which the process id was compared last.
    compared: AtomicU64,
}

impl ForkGuard {
    /// Creates a guard for the calling process.
    pub(crate) fn new() -> Self {
        Self { pid: std::process::id(), compared: AtomicU64::new(u64::MAX) }
    }

    /// The interval that contains this instant; `None` if the process ids were already compared in
    /// it.
    #[inline]
    pub(crate) fn is_due(&self, now_nanos: u64) -> Option<u64> {
        let interval = now_nanos >> COMPARE_SHIFT;
        (interval != self.compared.load(Ordering::Relaxed)).then_some(interval)
    }

    /// Whether this process is a fork of the one that created the guard. Asks the operating system.
    pub(crate) fn is_child(&self) -> bool {
        std::process::id() != self.pid
    }

    /// Whether this process is a fork of the one that created the guard. If not, records that the
    /// process ids were compared in `interval`.
    pub(crate) fn compare(&self, interval: u64) -> bool {
        let forked = self.is_child();
        if !forked {
            self.compared.store(interval, Ordering::Relaxed);
        }
        forked
    }
}
