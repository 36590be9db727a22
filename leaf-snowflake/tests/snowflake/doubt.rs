//! A clock that was set ahead a moment ago: the node claims no worker id with it unless a peer
//! confirms it, because a floor in the future could not be lowered again.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures_core::future::BoxFuture;
use leaf_core::{Clock, HealthCode, ManualClock, UnixMillis, WorkerId};
use leaf_snowflake::{
    FenceStore, Identity, MemoryFenceStore, Peers, Purpose, RegistryError, SnowflakeErrorKind,
    SnowflakeGenerator, StoreFault, Stored, StoredWorker, WorkerRecord,
};

use crate::support::*;

const YEAR: std::time::Duration = std::time::Duration::from_secs(365 * 86_400);

/// The clock is a year ahead for two seconds, while the node holds no worker id and no peer
/// confirms the clock. The node claims nothing, and continues as soon as the clock is right.
#[tokio::test(start_paused = true)]
async fn a_clock_that_is_a_year_ahead_for_a_moment_claims_nothing() {
    let cluster = Cluster::new();
    let flakes = SnowflakeGenerator::prepare(Arc::clone(&cluster.store), cluster.config("a"));
    let flakes = flakes.unwrap();
    cluster.store.set_fault(StoreFault::Away);
    assert!(flakes.claim().await.is_err());
    cluster.store.set_fault(StoreFault::None);
    cluster.clock.set_wall(START + YEAR);
    for _ in 0..2 {
        let refused = flakes.claim().await.unwrap_err();
        assert!(matches!(refused.kind(), SnowflakeErrorKind::ClockInDoubt { .. }), "{refused}");
        assert!(refused.retryable());
        assert_eq!(flakes.health().reasons()[1].code, HealthCode::Clock, "{}", flakes.health());
        cluster.pass(seconds(1)).await;
    }
    cluster.clock.set_wall(START + seconds(2));
    flakes.claim().await.unwrap();
    let floor = cluster.workers().await[0].fence.as_ref().unwrap().floor;
    assert!(floor < START + seconds(10), "{floor}");

    // One that stays so is believed.
    let other = SnowflakeGenerator::prepare(Arc::clone(&cluster.store), cluster.config("b"));
    let other = other.unwrap();
    cluster.clock.set_wall(cluster.clock.wall_millis() + seconds(3600));
    assert!(other.claim().await.is_err());
    cluster.pass(seconds(10)).await;
    other.claim().await.unwrap();
}

/// The first peer agrees, then the clock is set a year ahead while the second one is waited for.
#[derive(Debug)]
struct AgreesBefore(Arc<ManualClock>);

impl Peers for AgreesBefore {
    fn list(&self) -> BoxFuture<'_, Result<Vec<Identity>, RegistryError>> {
        Box::pin(async { Ok(["p:1", "p:2"].map(|peer| Identity::parse(peer).unwrap()).into()) })
    }

    fn ask<'a>(&'a self, peer: &'a Identity) -> BoxFuture<'a, Option<UnixMillis>> {
        Box::pin(async move {
            if peer.as_str() == "p:1" {
                return Some(self.0.wall_millis());
            }
            tokio::time::sleep(millis(500)).await;
            self.0.set_wall(START + YEAR);
            None
        })
    }
}

#[tokio::test(start_paused = true)]
async fn peers_confirm_the_clock_as_it_was_before_they_were_asked() {
    let clock = Arc::new(ManualClock::at(START));
    let mut config = config("a", &clock, None);
    config.peers = Some(Arc::new(AgreesBefore(Arc::clone(&clock))));
    let flakes = SnowflakeGenerator::prepare(MemoryFenceStore::default(), config).unwrap();
    let refused = flakes.claim().await.unwrap_err();
    assert!(matches!(refused.kind(), SnowflakeErrorKind::ClockInDoubt { .. }), "{refused}");
}

/// Sets the clock a year ahead while it writes the first claim.
#[derive(Debug)]
struct SetsAhead {
    memory: MemoryFenceStore,
    clock: Arc<ManualClock>,
    done: AtomicBool,
}

impl FenceStore for SetsAhead {
    type Version = <MemoryFenceStore as FenceStore>::Version;

    fn name(&self) -> &'static str {
        "memory"
    }

    async fn list(
        &self,
        purpose: Purpose,
    ) -> Result<Vec<StoredWorker<Self::Version>>, RegistryError> {
        self.memory.list(purpose).await
    }

    async fn read(
        &self,
        worker: WorkerId,
        purpose: Purpose,
    ) -> Result<Stored<Self::Version>, RegistryError> {
        self.memory.read(worker, purpose).await
    }

    async fn replace(
        &self,
        worker: WorkerId,
        read: &Stored<Self::Version>,
        record: &WorkerRecord,
    ) -> Result<bool, RegistryError> {
        if !self.done.swap(true, Ordering::SeqCst) {
            self.clock.set_wall(START + YEAR);
        }
        self.memory.replace(worker, read, record).await
    }
}

#[tokio::test(start_paused = true)]
async fn a_lease_does_not_start_by_a_clock_that_was_set_meanwhile() {
    let clock = Arc::new(ManualClock::at(START));
    let (memory, done) = (MemoryFenceStore::default(), AtomicBool::new(false));
    let store = Arc::new(SetsAhead { memory, clock: Arc::clone(&clock), done });
    let flakes =
        SnowflakeGenerator::prepare(Arc::clone(&store), config("a", &clock, None)).unwrap();
    let refused = flakes.claim().await.unwrap_err();
    assert!(matches!(refused.kind(), SnowflakeErrorKind::ClockInDoubt { .. }), "{refused}");

    clock.set_wall(START + seconds(1));
    flakes.claim().await.unwrap();
    pass(&clock, seconds(10)).await;
    assert!(flakes.try_next().is_ok());
    let stored = store.memory.list(Purpose::Show).await.unwrap();
    assert_eq!(stored.len(), 1, "the claim before was found again");
    let ceiling = stored[0].1.record.written().unwrap().fence.ceiling;
    assert!(ceiling < START + YEAR, "{ceiling}");
}
