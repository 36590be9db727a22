//! Ids that are given back while everything goes wrong: requests in flight, answers that are lost,
//! failovers and repairs in between.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use leaf_core::IdRange;
use leaf_segment::admin::{Confirm, TagAdmin, TagAdminError};
use leaf_segment::{SegmentConfig, SegmentGenerator, StoreErrorKind, TagStore};
use leaf_testkit::{Fault, FaultProxy, Ledger};

use crate::fixture::{Database, Fixture};
use crate::{create, tag};

/// How long the faults last.
const FAULTS: Duration = Duration::from_secs(4);

/// A process that issues ids and leases ranges.
struct Node {
    segments: SegmentGenerator,
    name: Arc<str>,
    issued: Arc<Issued>,
}

/// What all nodes together issued.
#[derive(Default)]
struct Issued {
    ledger: Ledger,
    ids: Mutex<HashSet<i64>>,
    /// Ids that went back, as the answers said.
    returned: Mutex<Vec<i64>>,
}

impl Node {
    async fn start(store: Arc<dyn TagStore>, name: &str, issued: &Arc<Issued>) -> Arc<Self> {
        let config = SegmentConfig {
            wait: Duration::from_millis(500),
            attempt: Duration::from_millis(500),
            refresh: Duration::from_millis(300),
            ..SegmentConfig::default()
        };
        let segments = SegmentGenerator::open(store, config).await;
        Arc::new(Self { segments, name: name.into(), issued: Arc::clone(issued) })
    }

    fn issue(&self, id: i64) {
        self.issued.ledger.record(&self.name, id);
        self.issued.ids.lock().unwrap().insert(id);
    }

    /// Leases a range, uses its beginning, and gives the end back while others go on.
    async fn lease(self: &Arc<Self>) {
        let Ok(handle) = self.segments.tag("orders").await else { return };
        let Ok(leased) = handle.lease(fastrand::usize(2..40)).await else { return };
        let used_end = fastrand::i64(leased.range.start()..leased.range.end());
        (leased.range.start()..used_end).for_each(|id| self.issue(id));
        let node = Arc::clone(self);
        let give_back = async move {
            tokio::time::sleep(Duration::from_micros(fastrand::u64(0..1500))).await;
            let unused = IdRange::new(used_end, leased.range.end()).unwrap();
            if handle.return_unused(leased.ticket, unused).await.is_ok_and(|returned| returned) {
                node.issued.returned.lock().unwrap().extend(used_end..leased.range.end());
            }
        };
        match fastrand::bool() {
            true => give_back.await,
            false => drop(tokio::spawn(give_back)),
        }
    }

    async fn next(&self) {
        let Ok(handle) = self.segments.tag("orders").await else { return };
        if let Ok(id) = handle.next().await {
            self.issue(id.get());
        }
    }
}

/// G-25: three nodes, two of them behind proxies that break connections in every way; failovers
/// that lose nothing (only the guard's row is edited), and repairs. Ids that were given back are
/// issued again, but once.
pub(crate) async fn ids_that_are_given_back_under_faults_are_issued_once(f: Fixture) {
    create(&*f.store, "orders", 20).await;
    let issued = Arc::<Issued>::default();
    let is_file = matches!(f.database, Database::Sqlite(_));
    let mut proxies = Vec::new();
    let mut nodes = vec![Node::start(f.another().await, "clean", &issued).await];
    for name in ["behind a line", "behind another"] {
        // A file has no line.
        let store = match is_file {
            true => f.another().await,
            false => {
                let (proxy, store) = f.behind_proxy().await;
                proxies.push(proxy);
                store
            }
        };
        nodes.push(Node::start(store, name, &issued).await);
    }
    let stop = Arc::new(AtomicBool::new(false));
    let callers: Vec<_> = nodes
        .iter()
        .flat_map(|node| [Arc::clone(node), Arc::clone(node)])
        .map(|node| {
            let stop = Arc::clone(&stop);
            tokio::spawn(async move {
                while !stop.load(Ordering::Relaxed) {
                    match fastrand::u8(0..4) {
                        0 => node.next().await,
                        _ => node.lease().await,
                    }
                    tokio::time::sleep(Duration::from_micros(fastrand::u64(0..2000))).await;
                }
            })
        })
        .collect();

    let until = tokio::time::Instant::now() + FAULTS;
    for turn in 0_u32.. {
        if tokio::time::Instant::now() > until {
            break;
        }
        if let Some(proxy) = fastrand::choice(&proxies) {
            hurt(proxy).await;
        }
        tokio::time::sleep(Duration::from_millis(150)).await;
        if turn % 4 == 3 {
            let repaired = TagAdmin::new(&*f.store).advance(&tag("orders"), 1, Confirm::No).await;
            // In etcd all others may be faster for a while.
            if let Err(TagAdminError::Store(error)) = &repaired {
                assert_eq!(*error.kind(), StoreErrorKind::Conflict, "{error}");
            } else {
                repaired.unwrap();
            }
        }
        if turn % 6 == 5 && matches!(f.database, Database::Mysql(..) | Database::Postgres(..)) {
            f.sql("UPDATE leaf_guard SET server_uid = 'another' WHERE id < 3").await;
        }
    }
    stop.store(true, Ordering::Relaxed);
    for caller in callers {
        caller.await.unwrap();
    }
    // Whoever comes afterwards gets nothing of what anybody has, also behind what went back last.
    let after = Node::start(f.another().await, "afterwards", &issued).await;
    // A machine that is busy may let the store answer late.
    let handle = async {
        loop {
            match after.segments.tag("orders").await {
                Err(error) if error.retryable() => {}
                found => break found.unwrap(),
            }
        }
    };
    let handle = tokio::time::timeout(Duration::from_secs(20), handle).await.unwrap();
    for _ in 0..500 {
        after.issue(handle.next().await.unwrap().get());
    }
    let (ids, returned) = (issued.ids.lock().unwrap(), issued.returned.lock().unwrap());
    let again = returned.iter().filter(|id| ids.contains(id)).count();
    println!(
        "{} issued, {} went back, {again} of them were issued then",
        ids.len(),
        returned.len()
    );
    assert!(ids.len() > 1000 && again > 50, "{} issued, {again} again", ids.len());
}

/// Lets a line break in one of the ways that it can, for a moment.
async fn hurt(proxy: &FaultProxy) {
    let fault = match fastrand::u8(0..6) {
        0 => Fault::Cut,
        1 => Fault::Reset,
        2 => Fault::SwallowReplies,
        3 => Fault::SwallowAfter(fastrand::u32(0..4)),
        4 => Fault::Delay(Duration::from_millis(30)),
        _ => Fault::BlackHole,
    };
    proxy.set(fault);
    tokio::time::sleep(Duration::from_millis(fastrand::u64(20..200))).await;
    // What was dropped makes the rest of a connection worthless.
    proxy.set(Fault::Cut);
    tokio::time::sleep(Duration::from_millis(10)).await;
    proxy.set(Fault::None);
}
