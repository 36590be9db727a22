//! The resources that this process uses, for the metrics `process_…` that Prometheus expects.

use procfs::process::{LimitValue, Process};

/// The resources that this process uses.
pub(super) struct Usage {
    pub(super) cpu_seconds: f64,
    pub(super) resident_bytes: u64,
    pub(super) virtual_bytes: u64,
    pub(super) threads: i64,
    pub(super) open_files: usize,
    pub(super) most_files: u64,
    /// When the process was started, in seconds since 1970.
    pub(super) started_at_seconds: f64,
}

/// Reads the usage from `/proc`; `None` if a part of it cannot be read.
pub(super) fn look() -> Option<Usage> {
    let process = Process::myself().ok()?;
    let stat = process.stat().ok()?;
    let seconds = |ticks: u64| ticks as f64 / procfs::ticks_per_second() as f64;
    let most_files = process.limits().ok()?.max_open_files.soft_limit;
    Some(Usage {
        cpu_seconds: seconds(stat.utime + stat.stime),
        resident_bytes: stat.rss * procfs::page_size(),
        virtual_bytes: stat.vsize,
        threads: stat.num_threads,
        open_files: process.fd_count().ok()?,
        most_files: match most_files {
            LimitValue::Value(most) => most,
            LimitValue::Unlimited => u64::MAX,
        },
        started_at_seconds: procfs::boot_time_secs().ok()? as f64 + seconds(stat.starttime),
    })
}
