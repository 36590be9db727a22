//! Measures what an id costs, in comparison with an atomic addition, a reading of the clock, and
//! the generator of the crate ferroid, whose clock is an atomic that a thread writes each
//! millisecond for ever.
//! `cargo bench -p leaf-snowflake --bench hot_path`
#![allow(clippy::unwrap_used, missing_docs, reason = "a benchmark")]

use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use ferroid::generator::AtomicSnowflakeGenerator;
use ferroid::time::MonotonicClock;
use leaf_core::{Clock, Layout};
use leaf_snowflake::{
    Identity, MemoryFenceStore, SnowflakeConfig, SnowflakeGenerator, SystemClock,
};
use tokio::runtime::Runtime;

const BATCH: usize = 1000;

ferroid::define_snowflake_id!(WideId, u64, reserved: 1, timestamp: 40, machine_id: 1, sequence: 22);

/// The generator of the crate ferroid, with 40 bits of time, 1 of the worker id and 22 of the
/// sequence.
fn ferroid() -> impl Fn() -> WideId + Sync {
    // From the epoch of Leaf's layout.
    let clock = MonotonicClock::<1>::with_epoch(Duration::from_millis(1_288_834_974_657));
    let generator: AtomicSnowflakeGenerator<WideId, _> = AtomicSnowflakeGenerator::new(1, clock);
    move || generator.next_id(|_| std::hint::spin_loop())
}

/// The keeper runs here.
static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.worker_threads(1).enable_all().build().unwrap()
});

/// A layout of four million ids per millisecond, so that the sequence is never the limit.
fn wide() -> Layout {
    "t40-w1-s22/1ms".parse().unwrap()
}

fn generator(layout: Layout) -> SnowflakeGenerator {
    let mut config = SnowflakeConfig::new(Identity::parse("bench:1").unwrap());
    config.layout = layout;
    let registry = Arc::new(MemoryFenceStore::default());
    RUNTIME.block_on(SnowflakeGenerator::open(registry, config)).unwrap()
}

fn one_thread(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("one id, one thread");
    group.throughput(Throughput::Elements(1));
    let counter = AtomicU64::new(0);
    group.bench_function("reference: fetch_add", |b| {
        b.iter(|| black_box(&counter).fetch_add(1, Ordering::AcqRel));
    });
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    group.bench_function("reference: read the boot clock", |b| b.iter(|| clock.boot()));
    group.bench_function("reference: both", |b| {
        b.iter(|| (clock.boot(), black_box(&counter).fetch_add(1, Ordering::AcqRel)));
    });
    let ferroid = ferroid();
    group.bench_function("reference: ferroid", |b| b.iter(&ferroid));
    let flakes = generator(wide());
    group.bench_function("try_next", |b| b.iter(|| flakes.try_next().unwrap()));
    group.finish();
}

fn batches(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("1,000 ids, one thread");
    group.throughput(Throughput::Elements(BATCH as u64));
    let flakes = generator(wide());
    group.bench_function("try_take", |b| {
        b.iter(|| {
            let mut missing = BATCH;
            while missing > 0 {
                let run = flakes.try_take(missing).unwrap();
                missing -= run.len();
                run.for_each(|id| {
                    black_box(id);
                });
            }
        });
    });
    group.finish();
}

fn two_threads(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("one id, beside another thread");
    group.throughput(Throughput::Elements(1));
    let counter = AtomicU64::new(0);
    group.bench_function("reference: fetch_add", |b| {
        beside(
            || counter.fetch_add(1, Ordering::AcqRel),
            || {
                b.iter(|| counter.fetch_add(1, Ordering::AcqRel));
            },
        );
    });
    let ferroid = ferroid();
    group.bench_function("reference: ferroid", |b| beside(&ferroid, || b.iter(&ferroid)));
    let flakes = generator(wide());
    group.bench_function("try_next", |b| {
        beside(
            || flakes.try_next().unwrap(),
            || {
                b.iter(|| flakes.try_next().unwrap());
            },
        );
    });
    group.finish();
}

/// Runs `measured` while another thread does `work` without a pause.
fn beside<T>(work: impl Fn() -> T + Sync, measured: impl FnOnce()) {
    let done = AtomicU64::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while done.load(Ordering::Relaxed) == 0 {
                black_box(work());
            }
        });
        measured();
        done.store(1, Ordering::Relaxed);
    });
}

criterion_group! {
    name = benches;
    config = Criterion::default().measurement_time(Duration::from_secs(2)).sample_size(30);
    targets = one_thread, batches, two_threads
}
criterion_main!(benches);
