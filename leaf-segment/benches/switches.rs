//! Measures how a switch from one segment to the next affects callers, at a constant rate and with
//! a store that takes 50 ms, beside the same load without a switch. Latency counts from when a call
//! was due, so that a late call makes the next ones late, too.
//!
//! `cargo bench -p leaf-segment --bench switches [-- SWITCHES]`, 50 where none is given.
#![allow(clippy::unwrap_used, missing_docs, reason = "a benchmark")]
#![allow(clippy::disallowed_methods, reason = "it measures real time")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use leaf_core::{Step, Tag};
use leaf_segment::{MemoryStore, NewTag, SegmentConfig, SegmentGenerator, TagHandle};

const PER_SECOND: u64 = 500_000;
const STORE: Duration = Duration::from_millis(50);
/// How long a segment lasts.
const SEGMENT: Duration = Duration::from_millis(200);

fn main() {
    let switches = std::env::args().filter_map(|arg| arg.parse().ok()).next().unwrap_or(50u64);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_time()
        .build()
        .unwrap();
    let ids = PER_SECOND * SEGMENT.as_millis() as u64 / 1000;
    println!("{PER_SECOND} ids/s, a store that takes {STORE:?}, {switches} switches");
    for (name, step) in [("no switch", i64::from(i32::MAX)), ("a switch each 200 ms", ids as i64)] {
        let step = Step::new(step).unwrap();
        let histogram = runtime.block_on(async {
            let tag = NewTag::new(Tag::parse("orders").unwrap(), step);
            let store = Arc::new(MemoryStore::with_tags([tag]).slow(STORE));
            let config = SegmentConfig { max_step: step, ..SegmentConfig::default() };
            let segments = SegmentGenerator::open(store, config).await;
            let orders = segments.tag("orders").await.unwrap();
            orders.next().await.unwrap();
            measure(orders, switches * ids).await
        });
        let at = |quantile: f64| Duration::from_nanos(histogram.value_at_quantile(quantile));
        println!(
            "{name:>20}: p50 {:?}, p99 {:?}, p99.9 {:?}, p99.99 {:?}, max {:?}",
            at(0.5),
            at(0.99),
            at(0.999),
            at(0.9999),
            Duration::from_nanos(histogram.max())
        );
    }
}

async fn measure(orders: TagHandle, count: u64) -> Histogram<u64> {
    let mut histogram = Histogram::new(3).unwrap();
    let start = Instant::now();
    for call in 0..count {
        let due = start + Duration::from_nanos(call * 1_000_000_000 / PER_SECOND);
        while Instant::now() < due {
            std::hint::spin_loop();
        }
        orders.next().await.unwrap();
        histogram.record(due.elapsed().as_nanos() as u64).unwrap();
    }
    histogram
}
