//! Ids through the client of `leaf-client`, whose server is another process, beside the in-process
//! buffer and a counter that nobody shares. `scripts/bench sdk` runs it.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    missing_docs,
    reason = "a benchmark may panic, and sleeps while others work"
)]

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use leaf_client::{LeafClient, blocking};
use leaf_core::{Step, Tag};
use leaf_segment::{MemoryStore, NewTag, SegmentConfig, SegmentGenerator};
use leaf_testkit::LeafServer;
use tokio::time::Instant;

const SERVER: &str = env!("CARGO_BIN_EXE_leaf-server");
const TAG: &str = "leaf-segment-test";
const ROUNDS: usize = 5;
const ROUND: Duration = Duration::from_millis(500);
/// How many ids a thread takes before it looks whether the round is over.
const BURST: u64 = 1000;

/// Takes so many ids.
type Take = Box<dyn FnMut(u64) + Send>;

/// A way of taking ids that is measured. `make` prepares it for one thread.
struct Contender {
    name: &'static str,
    make: Box<dyn Fn() -> Take>,
    /// Ids a second and thread, with one thread and with two.
    rates: [Vec<f64>; 2],
}

fn contender<F: FnMut() -> i64 + Send + 'static>(
    name: &'static str,
    make: impl Fn() -> F + 'static,
) -> Contender {
    let make = Box::new(move || {
        let mut one = make();
        Box::new(move |count: u64| {
            (0..count).for_each(|_| _ = black_box(one()));
        }) as Take
    });
    Contender { name, make, rates: [Vec::new(), Vec::new()] }
}

/// Ids a second and thread.
fn measure(contender: &Contender, threads: usize) -> f64 {
    let (done, ids) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
    let started = Instant::now();
    let workers: Vec<_> = (0..threads)
        .map(|_| {
            let (mut take, done, ids) = ((contender.make)(), Arc::clone(&done), Arc::clone(&ids));
            std::thread::spawn(move || {
                let mut taken = 0;
                while !done.load(Ordering::Relaxed) {
                    take(BURST);
                    taken += BURST;
                }
                ids.fetch_add(taken, Ordering::Relaxed);
            })
        })
        .collect();
    std::thread::sleep(ROUND);
    done.store(true, Ordering::Relaxed);
    workers.into_iter().for_each(|worker| worker.join().unwrap());
    ids.load(Ordering::Relaxed) as f64 / started.elapsed().as_secs_f64() / threads as f64
}

fn main() {
    let directory = tempfile::tempdir().unwrap();
    let server = LeafServer::start(SERVER, directory.path(), &[], &[]);
    let builder = LeafClient::builder().endpoint(format!("http://{}", server.ids()));
    let client = blocking::LeafClient::open(builder).unwrap();
    let leased = client.tag(TAG).unwrap();
    // In memory, with the longest step that the client may lease.
    let step = Step::new(1_000_000).unwrap();
    let store = MemoryStore::with_tags([NewTag::new(Tag::parse(TAG).unwrap(), step)]);
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let runtime = Arc::new(runtime.unwrap());
    let open = SegmentGenerator::open(Arc::new(store), SegmentConfig::default());
    let segments = runtime.block_on(open);
    let embedded = runtime.block_on(segments.tag(TAG)).unwrap();
    let beside = Arc::clone(&runtime);

    let mut contenders = [
        contender("a counter of one's own", || {
            let mut own = 0_i64;
            move || {
                own = black_box(own) + 1;
                own
            }
        }),
        {
            let embedded = embedded.clone();
            contender("in-process buffer, next", move || {
                let (tag, runtime) = (embedded.clone(), Arc::clone(&runtime));
                move || match tag.try_next() {
                    Some(id) => id.get(),
                    None => runtime.block_on(tag.next()).unwrap().get(),
                }
            })
        },
        contender("in-process buffer, local(64)", move || {
            let (mut local, runtime) = (embedded.local(64), Arc::clone(&beside));
            move || match local.try_next() {
                Some(id) => id.get(),
                None => runtime.block_on(local.next()).unwrap().get(),
            }
        }),
        {
            let leased = leased.clone();
            contender("leaf-client, next", move || {
                let tag = leased.clone();
                move || tag.next().unwrap().get()
            })
        },
        {
            let leased = leased.clone();
            contender("leaf-client, local(64)", move || {
                let mut local = leased.local(64);
                move || local.next().unwrap().get()
            })
        },
        contender("leaf-client, local(1024)", move || {
            let mut local = leased.local(1024);
            move || local.next().unwrap().get()
        }),
        contender("leaf-client, snowflake", move || {
            let snowflake = client.snowflake();
            move || snowflake.next().unwrap().get()
        }),
    ];
    // The step of a lease grows while it is in demand.
    contenders.iter().for_each(|contender| _ = measure(contender, 1));
    for _ in 0..ROUNDS {
        for contender in &mut contenders {
            for threads in [1, 2] {
                let rate = measure(contender, threads);
                contender.rates[threads - 1].push(rate);
            }
        }
    }
    println!("millions of ids a second and thread; {ROUNDS} rounds of {ROUND:?}, medians");
    println!("{:30} {:>10} {:>10}", "", "1 thread", "2 threads");
    for contender in contenders {
        let [one, two] = contender.rates.map(|mut rates| {
            rates.sort_by(f64::total_cmp);
            rates[ROUNDS / 2] / 1e6
        });
        println!("{:30} {one:>10.1} {two:>10.1}", contender.name);
    }
}
