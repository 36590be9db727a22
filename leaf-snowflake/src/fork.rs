//! Whether this is still the process that opened the generator.
//!
//! A forked child has a copy of the sequencer's state and would hand out the same ids. Its process
//! id differs; asking for it costs a system call, so it is asked at most once in 16 us. Forking
//! takes longer than that, so the child's first call falls into a later interval and asks. In the
//! parent an id costs one comparison. Ids for which the clock is not read go by another sign of a
//! fork, see [`crate::ticker`].

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
    /// Guards for the calling process.
    pub(crate) fn new() -> Self {
        Self { pid: std::process::id(), compared: AtomicU64::new(u64::MAX) }
    }

    /// The interval that this instant lies in, if the process ids were not compared in it.
    #[inline]
    pub(crate) fn is_due(&self, now_nanos: u64) -> Option<u64> {
        let interval = now_nanos >> COMPARE_SHIFT;
        (interval != self.compared.load(Ordering::Relaxed)).then_some(interval)
    }

    /// Whether this process is a fork of the one that made the guard, as the system says now.
    pub(crate) fn is_child(&self) -> bool {
        std::process::id() != self.pid
    }

    /// Whether this process is a fork of the one that made the guard; compared once an interval.
    pub(crate) fn compare(&self, interval: u64) -> bool {
        let forked = self.is_child();
        if !forked {
            self.compared.store(interval, Ordering::Relaxed);
        }
        forked
    }
}
