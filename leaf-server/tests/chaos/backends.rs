//! The real servers behind a cluster: a store of segments and a worker registry of any kind, and
//! what is done to them.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use leaf_testkit::{Etcd, Galera, MariaDb, Postgres, ZooKeeper};

/// Which store and which registry a run has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Kinds {
    pub(crate) store: &'static str,
    pub(crate) registry: &'static str,
    /// Whether nodes forget a tag that rests for a second, and give its unused ids back.
    pub(crate) idle: bool,
}

/// The combinations from which the seed chooses. If both are the same database they fail over
/// together.
const KINDS: [(&str, &str); 8] = [
    ("mysql", "zk_recycle"),
    ("postgres", "etcd"),
    ("mysql", "mysql"),
    ("galera", "zk_normal"),
    ("postgres", "postgres"),
    ("etcd", "zk_recycle"),
    ("sqlite", "sqlite"),
    ("mysql", "etcd"),
];

impl Kinds {
    pub(crate) fn of_seed(seed: u64) -> Self {
        let (store, registry) = KINDS[(seed % KINDS.len() as u64) as usize];
        let idle = seed / KINDS.len() as u64 % 2 == 1;
        Self { store, registry, idle }
    }

    /// Whether a worker id belongs to a node's name, so that only its twin can take it over.
    pub(crate) fn bound(self) -> bool {
        matches!(self.registry, "zk_normal" | "mysql")
    }

    /// Whether a failover of the store is one of the registry, too.
    pub(crate) fn together(self) -> bool {
        self.store == self.registry && self.can_fail_over()
    }

    /// Whether the store has a replica that may lack the last writes.
    pub(crate) fn can_fail_over(self) -> bool {
        matches!(self.store, "mysql" | "postgres")
    }
}

/// A database with a replica, and the next one on its way.
enum Pair<D> {
    Whole(Arc<D>, Arc<D>),
    Alone(Arc<D>, JoinHandle<D>),
}

enum Store {
    Mysql(Option<Pair<MariaDb>>, String),
    Postgres(Option<Pair<Postgres>>, String),
    Galera(Galera, String, usize),
    Etcd(Etcd),
    Sqlite(PathBuf),
}

enum Registry {
    /// The registry is on the store's server.
    Store,
    ZooKeeper(ZooKeeper),
    Etcd(Etcd),
}

pub(crate) struct Backends {
    kinds: Kinds,
    store: Store,
    registry: Registry,
    /// Members of the registry that were killed.
    away: Vec<usize>,
}

impl Backends {
    pub(crate) fn start(kinds: Kinds, home: &Path) -> Self {
        let store = match kinds.store {
            "mysql" => {
                let (primary, replica) = MariaDb::start_replicated();
                let name = primary.new_database();
                Store::Mysql(Some(Pair::Whole(Arc::new(primary), Arc::new(replica))), name)
            }
            "postgres" => {
                let primary = Postgres::start();
                let name = primary.new_database();
                let replica = primary.start_replica();
                Store::Postgres(Some(Pair::Whole(Arc::new(primary), Arc::new(replica))), name)
            }
            "galera" => {
                let cluster = Galera::start();
                let name = cluster.new_database();
                Store::Galera(cluster, name, 0)
            }
            "etcd" => Store::Etcd(Etcd::start(1)),
            _ => Store::Sqlite(home.join("leaf.db")),
        };
        let registry = match kinds.registry {
            "zk_recycle" | "zk_normal" => Registry::ZooKeeper(ZooKeeper::start(1)),
            "etcd" => Registry::Etcd(Etcd::start(3)),
            _ => Registry::Store,
        };
        Self { kinds, store, registry, away: Vec::new() }
    }

    /// Where the store is; none for a file.
    pub(crate) fn store_ports(&self) -> Vec<u16> {
        match &self.store {
            Store::Mysql(pair, _) => vec![now(pair).port()],
            Store::Postgres(pair, _) => vec![now(pair).port()],
            Store::Galera(cluster, _, node) => vec![cluster.ports()[*node]],
            Store::Etcd(etcd) => etcd.ports(),
            Store::Sqlite(_) => Vec::new(),
        }
    }

    /// Where the registry is; none where it is the store's server.
    pub(crate) fn registry_ports(&self) -> Vec<u16> {
        match &self.registry {
            Registry::Store => self.store_ports(),
            Registry::ZooKeeper(servers) => servers.ports(),
            Registry::Etcd(servers) => servers.ports(),
        }
    }

    /// The store's URL with other ports in it.
    pub(crate) fn store_url(&self, ports: &[u16]) -> String {
        match &self.store {
            Store::Mysql(_, name) | Store::Galera(_, name, _) => MariaDb::url(ports[0], name),
            Store::Postgres(_, name) => Postgres::url(ports[0], name),
            Store::Etcd(_) => Etcd::url(ports, "chaos"),
            Store::Sqlite(file) => format!("sqlite:{}", file.display()),
        }
    }

    /// The registry's URL, with other ports in it.
    pub(crate) fn registry_url(&self, ports: &[u16]) -> String {
        match &self.registry {
            Registry::Store => self.store_url(ports),
            Registry::ZooKeeper(_) => {
                let scheme = self.kinds.registry.replace('_', "-");
                format!("{scheme}://{}", ZooKeeper::address(ports))
            }
            Registry::Etcd(_) => Etcd::url(ports, "chaos"),
        }
    }

    /// Kills a server and starts it again.
    pub(crate) fn crash_store(&mut self) -> bool {
        match &self.store {
            // The next replica is being copied from it.
            Store::Mysql(Some(Pair::Alone(_, coming)), _) if !coming.is_finished() => return false,
            Store::Postgres(Some(Pair::Alone(_, coming)), _) if !coming.is_finished() => {
                return false;
            }
            Store::Mysql(pair, _) => now(pair).crash_and_restart(),
            Store::Postgres(pair, _) => now(pair).crash_and_restart(),
            Store::Etcd(etcd) => etcd.crash_and_restart(),
            Store::Galera(..) | Store::Sqlite(_) => return false,
        }
        true
    }

    /// Fails over to the replica, which was cut off for `stale` before; in Galera, where every node
    /// has all data, to another node. Returns false if that is not possible or the next replica is
    /// not ready.
    pub(crate) fn fail_over(&mut self, stale: Duration) -> bool {
        match &mut self.store {
            Store::Mysql(pair, _) => promote(
                pair,
                |primary, replica| {
                    replica.sql("STOP SLAVE IO_THREAD");
                    std::thread::sleep(stale);
                    primary.crash();
                    replica.sql("STOP SLAVE; RESET SLAVE ALL; SET GLOBAL read_only = 0");
                },
                |primary| primary.start_replica(),
            ),
            Store::Postgres(pair, _) => promote(
                pair,
                |primary, replica| {
                    replica.stop_following();
                    std::thread::sleep(stale);
                    primary.crash();
                    replica.promote();
                },
                |primary| primary.start_replica(),
            ),
            Store::Galera(cluster, _, node) => {
                // The first time with a crash.
                let next = (*node + 1) % 3;
                if *node == 0 && self.away.is_empty() {
                    cluster.crash(0);
                    self.away.push(0);
                }
                *node = if self.away.contains(&next) { (next + 1) % 3 } else { next };
                true
            }
            Store::Etcd(_) | Store::Sqlite(_) => false,
        }
    }

    /// Stops the registry: all of ZooKeeper, or two of three members of etcd.
    pub(crate) fn stop_registry(&mut self) -> bool {
        match &self.registry {
            Registry::ZooKeeper(servers) => servers.signal("STOP"),
            Registry::Etcd(servers) => {
                for member in 0..2 {
                    servers.crash(member);
                }
            }
            Registry::Store => return false,
        }
        true
    }

    /// Starts what `stop_registry` stopped.
    pub(crate) fn start_registry(&mut self) {
        match &self.registry {
            Registry::ZooKeeper(servers) => servers.signal("CONT"),
            Registry::Etcd(servers) => {
                for member in 0..2 {
                    servers.start_again(member);
                }
            }
            Registry::Store => {}
        }
    }

    /// Kills the registry and starts it again.
    pub(crate) fn crash_registry(&mut self) -> bool {
        match &self.registry {
            Registry::ZooKeeper(servers) => servers.crash_and_restart(),
            Registry::Etcd(servers) => {
                // Whether it leads or not.
                servers.crash(2);
                servers.start_again(2);
                servers.wait_for_answer();
            }
            Registry::Store => return false,
        }
        true
    }

    pub(crate) fn kinds(&self) -> Kinds {
        self.kinds
    }
}

/// The server of a pair that takes writes.
fn now<D>(pair: &Option<Pair<D>>) -> &D {
    match pair.as_ref().expect("put back after every change") {
        Pair::Whole(primary, _) | Pair::Alone(primary, _) => primary,
    }
}

fn promote<D: Send + Sync + 'static>(
    slot: &mut Option<Pair<D>>,
    change: impl FnOnce(&D, &D),
    next: impl FnOnce(&D) -> D + Send + 'static,
) -> bool {
    let mut pair = slot.take().expect("put back after every change");
    if let Pair::Alone(primary, coming) = pair {
        if !coming.is_finished() {
            *slot = Some(Pair::Alone(primary, coming));
            return false;
        }
        pair = Pair::Whole(primary, Arc::new(coming.join().expect("it has said why")));
    }
    let Pair::Whole(primary, replica) = pair else { unreachable!("made whole above") };
    change(&primary, &replica);
    let source = Arc::clone(&replica);
    *slot = Some(Pair::Alone(replica, std::thread::spawn(move || next(&source))));
    true
}
