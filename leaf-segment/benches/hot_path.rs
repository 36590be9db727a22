//! What an id costs, beside an atomic addition. `cargo bench -p leaf-segment --bench hot_path`
#![allow(clippy::unwrap_used, missing_docs, reason = "a benchmark")]

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use leaf_core::{Step, Tag};
use leaf_segment::blocking::{SegmentGenerator, TagHandle};
use leaf_segment::{MemoryStore, NewTag, SegmentConfig};

const BATCH: usize = 1000;

/// So large a step that a refill is part of the price, but not most of it.
fn generator(tags: usize) -> SegmentGenerator {
    let step = Step::new(1_000_000).unwrap();
    let tag = |n| NewTag::new(Tag::parse(&format!("tag-{n}")).unwrap(), step);
    let store = Arc::new(MemoryStore::with_tags((0..tags).map(tag)));
    SegmentGenerator::open(store, SegmentConfig::default()).unwrap()
}

fn handle() -> (SegmentGenerator, TagHandle) {
    let segments = generator(1);
    let handle = segments.tag("tag-0").unwrap();
    handle.next().unwrap();
    (segments, handle)
}

/// The store in memory has the next segment in microseconds; until then this caller spins.
fn next(handle: &TagHandle) -> i64 {
    loop {
        if let Some(id) = handle.try_next() {
            return id.get();
        }
    }
}

fn one_thread(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("one id, one thread");
    group.throughput(Throughput::Elements(1));
    let counter = AtomicU64::new(0);
    group.bench_function("reference: fetch_add", |b| {
        b.iter(|| black_box(&counter).fetch_add(1, Ordering::AcqRel));
    });
    let (_segments, handle) = handle();
    group.bench_function("try_next", |b| b.iter(|| next(&handle)));
    group.finish();
}

/// With the look-up by name, as a server does it: through one thread's own view of the tags.
fn many_tags(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("one id, look-up included");
    group.throughput(Throughput::Elements(1));
    for count in [1, 100, 10_000] {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_time()
            .build()
            .unwrap();
        let step = Step::new(1_000_000).unwrap();
        let tag = |n| NewTag::new(Tag::parse(&format!("tag-{n}")).unwrap(), step);
        let store = Arc::new(MemoryStore::with_tags((0..count).map(tag)));
        let segments = {
            let _inside = runtime.enter();
            runtime.block_on(leaf_segment::SegmentGenerator::open(store, SegmentConfig::default()))
        };
        let mut tags = segments.known_tags();
        // In no order that a processor could foresee.
        let mut names: Vec<String> = (0..count).map(|n| format!("tag-{n}")).collect();
        fastrand::shuffle(&mut names);
        for name in &names {
            runtime.block_on(tags.get(name).unwrap().next()).unwrap();
        }
        let mut at = 0;
        group.bench_function(format!("{count} tags"), |b| {
            b.iter(|| {
                at = if at + 1 == names.len() { 0 } else { at + 1 };
                let tag = tags.get(&names[at]).unwrap();
                loop {
                    if let Some(id) = tag.try_next() {
                        return id;
                    }
                }
            });
        });
    }
    group.finish();
}

fn batches(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("1,000 ids, one thread");
    group.throughput(Throughput::Elements(BATCH as u64));
    let (_segments, handle) = handle();
    group.bench_function("try_take", |b| {
        b.iter(|| {
            let mut missing = BATCH as u64;
            while missing > 0 {
                let Some(range) = handle.try_take(missing as usize) else { continue };
                missing -= range.len();
                range.iter().for_each(|id| {
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
    let (_segments, handle) = handle();
    group.bench_function("try_next", |b| {
        beside(|| next(&handle), || b.iter(|| next(&handle)));
    });
    group.finish();
}

/// Runs `measured` while another thread does `work` without a pause.
fn beside<T>(work: impl Fn() -> T + Sync, measured: impl FnOnce()) {
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                black_box(work());
            }
        });
        measured();
        done.store(true, Ordering::Relaxed);
    });
}

criterion_group! {
    name = benches;
    config = Criterion::default().measurement_time(Duration::from_secs(2)).sample_size(30);
    targets = one_thread, many_tags, batches, two_threads
}
criterion_main!(benches);
