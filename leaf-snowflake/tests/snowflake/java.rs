//! A Java Leaf beside this node: its cache file on the same machine, and its reports in the
//! registry.

use std::sync::{Arc, Mutex};

use leaf_core::{Clock, ManualClock, UnixMillis, WorkerId};
use leaf_snowflake::{
    ClaimPolicy, FenceStore, JavaMirror, JavaReport, MemoryFenceStore, Purpose, Registry,
    RegistryError, RegistryErrorKind, SnowflakeGenerator, StoreFault, Stored, StoredWorker,
    WorkerRecord,
};

use crate::support::*;

/// The cache file of a Java Leaf is read at every start, so that a Java Leaf is noticed that ran
/// between two of our starts, or is still alive.
#[tokio::test(start_paused = true)]
async fn every_start_takes_a_java_leaf_into_account() {
    let cluster = Cluster::new();
    let cache = cluster.directory.path().join("leafconf");
    std::fs::create_dir(&cache).unwrap();
    let write = |at: UnixMillis| {
        let text = format!("{{\"workId\":3,\"timestamp\":{}}}", at.get());
        std::fs::write(cache.join("workerID.json"), text).unwrap();
    };
    let start = async || {
        let mut config = cluster.config("a");
        config.java_cache = Some(cache.clone());
        open(&cluster.store, config).await
    };
    write(START - seconds(60));
    let flakes = start().await.unwrap();
    let first = flakes.next().await.unwrap();
    flakes.close().await;
    drop(flakes);

    // Ours, then the Java Leaf, then ours again with the clock a little back.
    write(START + seconds(60));
    let error = start().await.unwrap_err();
    assert!(matches!(registry_error(&error), RegistryErrorKind::FloorAhead { .. }), "{error}");
    cluster.clock.advance(seconds(100));
    let flakes = start().await.unwrap();
    let second = flakes.next().await.unwrap();
    assert!(second > first);
    let second = flakes.layout().decode(second).unwrap();
    assert!(second.timestamp >= START + seconds(64), "above its last report and 4 s");
    flakes.close().await;
    drop(flakes);

    // One that is alive writes again while we wait.
    let now = cluster.clock.wall_millis();
    write(now - seconds(1));
    let (started, ()) = tokio::join!(tokio::time::timeout(seconds(30), start()), async {
        tokio::time::sleep(seconds(2)).await;
        write(now + seconds(2));
    });
    let error = started.expect("a live Java Leaf is told of, not waited for").unwrap_err();
    assert!(matches!(registry_error(&error), RegistryErrorKind::JavaAlive { .. }), "{error}");
}

/// A Java Leaf ran on this machine before: the first start issues nothing at or below its last
/// timestamps.
#[tokio::test(start_paused = true)]
async fn the_first_start_takes_over_from_a_java_leaf() {
    let cluster = Cluster::new();
    let cache = cluster.directory.path().join("leafconf");
    std::fs::create_dir(&cache).unwrap();
    let write = |at: u64| {
        let text = format!("#leaf\nworkerID=3\nmaxTimestamp={at}\n");
        std::fs::write(cache.join("workerID.properties"), text).unwrap();
    };
    let start = async |name: &str| {
        let mut config = cluster.config(name);
        config.java_cache = Some(cache.clone());
        open(&cluster.store, config).await
    };
    // Java issues up to 4 s past its last report.
    write((START - millis(3500)).get());
    let flakes = start("a").await.unwrap();
    let first = flakes.layout().decode(flakes.next().await.unwrap()).unwrap();
    assert_eq!(first.timestamp, START + millis(500));

    write((START + seconds(3600)).get());
    for _start in 0..2 {
        let error = start("b").await.unwrap_err();
        assert!(matches!(registry_error(&error), RegistryErrorKind::FloorAhead { .. }), "{error}");
    }
}

/// A store with records that a Java Leaf also writes to: `java` is its last report, once there is
/// one.
#[derive(Debug, Default)]
struct WithJava {
    memory: MemoryFenceStore,
    java: Mutex<Option<JavaReport>>,
}

impl WithJava {
    fn report(&self, at: UnixMillis) {
        let report = JavaReport { holder: "10.0.0.7:8080".into(), at: Some(at) };
        *self.java.lock().unwrap() = Some(report);
    }

    fn mirrored(&self, worker: WorkerId, stored: Stored<()>) -> Stored<()> {
        let java = self.java.lock().unwrap().clone().filter(|_| worker == WorkerId::new(0));
        let mirror = java.map_or(JavaMirror::Agrees, JavaMirror::Java);
        Stored { mirror, ..stored }
    }
}

impl FenceStore for WithJava {
    type Version = ();

    fn name(&self) -> &'static str {
        "a store with a Java Leaf"
    }

    async fn list(&self, purpose: Purpose) -> Result<Vec<StoredWorker<()>>, RegistryError> {
        let listed = self.memory.list(purpose).await?;
        Ok(listed
            .into_iter()
            .map(|(worker, stored)| (worker, self.mirrored(worker, stored)))
            .collect())
    }

    async fn read(&self, worker: WorkerId, purpose: Purpose) -> Result<Stored<()>, RegistryError> {
        Ok(self.mirrored(worker, self.memory.read(worker, purpose).await?))
    }

    async fn replace(
        &self,
        worker: WorkerId,
        read: &Stored<()>,
        record: &WorkerRecord,
    ) -> Result<bool, RegistryError> {
        let written = self.memory.replace(worker, read, record).await?;
        if worker == WorkerId::new(0) {
            // The claim takes the mirror over.
            *self.java.lock().unwrap() = None;
        }
        Ok(written)
    }
}

/// A node started from its state file while the registry was away, and later finds a Java Leaf's
/// report in its record. It watches the record, and loses the worker id if the Java Leaf is alive.
#[tokio::test(start_paused = true)]
async fn a_node_without_its_registry_hears_of_a_java_leaf() {
    for lives in [true, false] {
        let clock = Arc::new(ManualClock::at(START));
        let home = tempfile::tempdir().unwrap();
        let store = Arc::new(WithJava::default());
        let policy = ClaimPolicy { adopt_java_ids: true, ..ClaimPolicy::default() };
        let registry = Registry::shared(Arc::clone(&store), policy, None);
        let own = || config("a:1", &clock, Some(home.path()));
        let start = async || SnowflakeGenerator::open(registry.clone(), own()).await;
        let java_reports = || store.report(clock.wall_millis() - seconds(5));
        std::thread::scope(|scope| {
            let life = || until_killed(async || start().await.unwrap().next().await.unwrap());
            scope.spawn(life).join().unwrap();
        });
        store.memory.set_fault(StoreFault::Away);
        let flakes = start().await.unwrap();
        assert!(!flakes.view().confirmed);

        java_reports();
        store.memory.set_fault(StoreFault::None);
        pass(&clock, seconds(6)).await;
        flakes.next().await.unwrap();
        if lives {
            java_reports();
        }
        pass(&clock, seconds(10)).await;
        // Where the Java Leaf lives its worker id is left to it, and another one is taken.
        let view = flakes.view();
        assert!(view.confirmed, "{view:?}");
        assert_eq!(view.leases_lost, u64::from(lives), "{view:?}");
        assert_eq!(view.worker, Some(WorkerId::new(u32::from(lives))), "{view:?}");
        flakes.next().await.unwrap();
    }
}
