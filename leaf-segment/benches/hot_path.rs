//! What an id costs, beside an atomic addition. `cargo bench -p leaf-segment --bench hot_path`
#![allow(clippy::unwrap_used, missing_docs, reason = "a benchmark")]

use std::fmt::Write as _;
use std::hint::black_box;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use leaf_core::{Id, Step, Tag};
use leaf_segment::admin::TagSpec;
use leaf_segment::{LocalIds, MemoryStore, NewTag, SegmentConfig, SegmentGenerator, TagHandle};
use leaf_shape::keys::KeyRing;
use tokio::runtime::Runtime;

const BATCH: usize = 1000;
/// How many ids a thread takes in one run.
const RUN: usize = 64;

/// Refills run here.
static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.worker_threads(1).enable_all().build().unwrap()
});

/// A generator whose step is so large that refills are a part of the cost, but not most of it.
fn generator(tags: usize) -> SegmentGenerator {
    let step = Step::new(1_000_000).unwrap();
    let tag = |n| NewTag::new(Tag::parse(&format!("tag-{n}")).unwrap(), step);
    let store = Arc::new(MemoryStore::with_tags((0..tags).map(tag)));
    RUNTIME.block_on(SegmentGenerator::open(store, SegmentConfig::default()))
}

fn handle() -> (SegmentGenerator, TagHandle) {
    let segments = generator(1);
    let handle = RUNTIME.block_on(segments.tag("tag-0")).unwrap();
    RUNTIME.block_on(handle.next()).unwrap();
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

/// A counter that nobody shares: what one number costs at least.
fn count(own: &mut u64) -> u64 {
    *own = black_box(*own) + 1;
    *own
}

fn next_local(local: &mut LocalIds) -> i64 {
    loop {
        if let Some(id) = local.try_next() {
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
    group.bench_function("reference: a counter of one's own", |b| {
        let mut own = 0u64;
        b.iter(|| count(&mut own));
    });
    let mut local = handle.local(RUN);
    group.bench_function("local(64)", |b| b.iter(|| next_local(&mut local)));
    group.finish();
}

/// With the look-up by name, as a server does it: through one thread's own view of the tags.
fn many_tags(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("one id, look-up included");
    group.throughput(Throughput::Elements(1));
    for count in [1, 100, 10_000] {
        let step = Step::new(1_000_000).unwrap();
        let tag = |n| NewTag::new(Tag::parse(&format!("tag-{n}")).unwrap(), step);
        let store = Arc::new(MemoryStore::with_tags((0..count).map(tag)));
        let segments = RUNTIME.block_on(SegmentGenerator::open(store, SegmentConfig::default()));
        let mut tags = segments.known_tags();
        // In no order that a processor could foresee.
        let mut names: Vec<String> = (0..count).map(|n| format!("tag-{n}")).collect();
        fastrand::shuffle(&mut names);
        for name in &names {
            RUNTIME.block_on(async { segments.tag(name).await.unwrap().next().await }).unwrap();
        }
        // The last ones stand behind a lock until they are gathered.
        while names.iter().any(|name| tags.get(name).is_none()) {
            RUNTIME.block_on(async { tokio::time::sleep(Duration::from_millis(10)).await });
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
            let mut missing = BATCH;
            while missing > 0 {
                let Some(ids) = handle.try_take(missing) else { continue };
                missing -= ids.len();
                for range in ids.into_ranges().into_iter().flatten() {
                    range.iter().for_each(|id| {
                        black_box(id);
                    });
                }
            }
        });
    });
    group.finish();
}

/// A tag of the kind that a spec describes, and its generator.
fn of_kind(spec: TagSpec) -> (SegmentGenerator, TagHandle) {
    let keys = "1 = 000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";
    let keys = Arc::new(KeyRing::new(keys.parse().unwrap()));
    let spec = TagSpec { step: Some(Step::new(1_000_000).unwrap()), ..spec };
    let new = spec.record(Tag::parse("tag-0").unwrap(), &keys).unwrap();
    let store = Arc::new(MemoryStore::with_tags([new]));
    let config = SegmentConfig { keys, ..SegmentConfig::default() };
    let segments = RUNTIME.block_on(SegmentGenerator::open(store, config));
    let handle = RUNTIME.block_on(segments.tag("tag-0")).unwrap();
    RUNTIME.block_on(handle.next()).unwrap();
    (segments, handle)
}

/// Ids that are made of numbers, one by one and in a list.
fn shapes(criterion: &mut Criterion) {
    for shape in ["plain", "interleave:1/8", "scramble:63", "scramble:53", "scramble:d10"] {
        let spec = TagSpec { shape: shape.parse().unwrap(), ..TagSpec::default() };
        let (_segments, handle) = of_kind(spec);
        let mut group = criterion.benchmark_group("one id by shape");
        group.throughput(Throughput::Elements(1));
        group.bench_function(shape, |b| b.iter(|| next(&handle)));
        group.finish();
        let mut group = criterion.benchmark_group("1,000 ids by shape");
        group.throughput(Throughput::Elements(BATCH as u64));
        group.bench_function(shape, |b| {
            b.iter(|| {
                let mut missing = BATCH;
                while missing > 0 {
                    let Some(ids) = handle.try_take(missing) else { continue };
                    missing -= ids.len();
                    ids.for_each(|id| {
                        black_box(id);
                    });
                }
            });
        });
        group.finish();
    }
}

/// An id as a text, beside its decimal digits.
fn texts(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("one text");
    group.throughput(Throughput::Elements(1));
    let id = Id::new(123_456).unwrap();
    let mut digits = String::with_capacity(64);
    group.bench_function("reference: decimal digits", |b| {
        b.iter(|| {
            digits.clear();
            let _ = write!(digits, "{}", black_box(id));
            digits.len()
        });
    });
    for text in
        ["{n}", "{n:b62}", "{n:012}{luhn}", "ORD-{date:%y%m%d}{n:06}{luhn}", "{n:c32}{mod37}"]
    {
        let spec = TagSpec { text: Some(text.into()), ..TagSpec::default() };
        let (_segments, handle) = of_kind(spec);
        let texts = handle.texts().unwrap();
        group.bench_function(text, |b| b.iter(|| texts.write(black_box(id)).unwrap()));
    }
    group.finish();
}

fn two_threads(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("one id, beside another thread");
    group.throughput(Throughput::Elements(1));
    let counter = AtomicU64::new(0);
    group.bench_function("reference: fetch_add", |b| {
        beside(
            || || counter.fetch_add(1, Ordering::AcqRel),
            || {
                b.iter(|| counter.fetch_add(1, Ordering::AcqRel));
            },
        );
    });
    let (_segments, handle) = handle();
    group.bench_function("try_next", |b| {
        beside(|| || next(&handle), || b.iter(|| next(&handle)));
    });
    group.bench_function("reference: a counter of one's own", |b| {
        let other = || {
            let mut own = 0u64;
            move || count(&mut own)
        };
        let mut own = 0u64;
        beside(other, || b.iter(|| count(&mut own)));
    });
    group.bench_function("local(64)", |b| {
        let other = || {
            let mut local = handle.local(RUN);
            move || next_local(&mut local)
        };
        let mut local = handle.local(RUN);
        beside(other, || b.iter(|| next_local(&mut local)));
    });
    group.finish();
}

/// Runs `measured` while another thread does `work` without a pause.
fn beside<T, W: FnMut() -> T>(work: impl Fn() -> W + Sync, measured: impl FnOnce()) {
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut work = work();
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
    targets = one_thread, many_tags, batches, shapes, texts, two_threads
}
criterion_main!(benches);
