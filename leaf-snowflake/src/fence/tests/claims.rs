//! Which worker id a node takes, over a store in memory.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;
use crate::RegistryError;

/// A store where another writer is faster a few times.
#[derive(Debug, Default)]
struct Contested {
    store: MemoryFenceStore,
    races_to_lose: AtomicUsize,
    /// How many records were read one by one.
    reads: AtomicUsize,
}

impl FenceStore for Contested {
    type Version = ();

    fn name(&self) -> &'static str {
        "memory"
    }

    fn check_identity(&self, who: &Identity) -> Result<(), RegistryErrorKind> {
        match who.as_str() {
            "node:0" => Err(RegistryErrorKind::BadIdentity("0 is nobody".into())),
            _ => Ok(()),
        }
    }

    async fn list(&self, purpose: Purpose) -> Result<Vec<StoredWorker<()>>, RegistryError> {
        self.store.list(purpose).await
    }

    async fn read(&self, worker: WorkerId, purpose: Purpose) -> Result<Stored<()>, RegistryError> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.store.read(worker, purpose).await
    }

    async fn replace(
        &self,
        worker: WorkerId,
        read: &Stored<()>,
        record: &WorkerRecord,
    ) -> Result<bool, RegistryError> {
        let lost = |left: usize| left.checked_sub(1);
        if self.races_to_lose.fetch_update(Ordering::Relaxed, Ordering::Relaxed, lost).is_ok() {
            return Ok(false);
        }
        self.store.replace(worker, read, record).await
    }
}

fn who(number: u128) -> Identity {
    Identity::parse(&format!("node:{number}")).unwrap()
}

/// A claim of an instance that has no state file.
fn of_instance(number: u128) -> ClaimRequest {
    ClaimRequest { instance: Uuid::from_u128(number), ..request() }
}

fn layout_of(workers: &str) -> Layout {
    format!("t41-{workers}-s12/1ms").parse().unwrap()
}

async fn claim(registry: &Registry, request: &ClaimRequest) -> Result<u32, RegistryErrorKind> {
    let claimed = registry.claim(&who(request.instance.as_u128()), request).await;
    claimed.map(|lease| lease.worker.get()).map_err(|error| error.kind().clone())
}

#[tokio::test]
async fn a_worker_range_is_given_out_and_written_down() {
    let store = Arc::new(MemoryFenceStore::default());
    let range = Some("2..3".parse().unwrap());
    let policy = ClaimPolicy { range, ..ClaimPolicy::default() };
    let registry = Registry::shared(Arc::clone(&store), policy, None);

    assert_eq!(claim(&registry, &of_instance(1)).await, Ok(2));
    assert_eq!(claim(&registry, &of_instance(2)).await, Ok(3));
    let full = claim(&registry, &of_instance(3)).await;

    assert!(matches!(full, Err(RegistryErrorKind::NoWorkerId(_))), "{full:?}");
    for view in registry.workers().await.unwrap() {
        assert_eq!(view.fence.unwrap().workers.as_deref(), Some("2..3"));
    }
    let other = Registry::shared(store, ClaimPolicy::default(), None);
    let refused = claim(&other, &of_instance(3)).await;
    let (recorded, configured) = ("2..3".into(), "all".into());
    assert_eq!(refused, Err(RegistryErrorKind::OtherRange { recorded, configured }));
}

#[tokio::test]
async fn a_fixed_worker_id_is_taken_or_refused() {
    let fixed = |worker, range: Option<&str>| {
        let range = range.map(|range| range.parse().unwrap());
        let fixed = Some(WorkerId::new(worker));
        let policy = ClaimPolicy { fixed, range, ..ClaimPolicy::default() };
        Registry::new(MemoryFenceStore::default(), policy, None)
    };

    assert_eq!(claim(&fixed(1023, None), &of_instance(1)).await, Ok(1023));
    assert_eq!(claim(&fixed(5, Some("5..6")), &of_instance(1)).await, Ok(5));
    let (worker, greatest) = (WorkerId::new(1024), WorkerId::new(1023));
    let beyond = claim(&fixed(1024, None), &of_instance(1)).await;
    assert_eq!(beyond, Err(RegistryErrorKind::BeyondLayout { worker, greatest }));
    let (worker, range) = (WorkerId::new(7), "5..6".parse().unwrap());
    let outside = claim(&fixed(7, Some("5..6")), &of_instance(1)).await;
    assert_eq!(outside, Err(RegistryErrorKind::OutsideRange { worker, range }));

    // It belongs to somebody else.
    let registry = fixed(5, None);
    assert_eq!(claim(&registry, &of_instance(1)).await, Ok(5));
    let taken = claim(&registry, &of_instance(2)).await;
    assert!(matches!(taken, Err(RegistryErrorKind::InUse { .. })), "{taken:?}");
}

#[tokio::test]
async fn a_node_whose_name_the_registry_cannot_have_gets_nothing() {
    let store = Arc::new(Contested::default());
    let registry = Registry::shared(Arc::clone(&store), ClaimPolicy::default(), None);

    let refused = claim(&registry, &of_instance(0)).await;

    assert!(matches!(refused, Err(RegistryErrorKind::BadIdentity(_))), "{refused:?}");
    assert!(registry.workers().await.unwrap().is_empty());
}

/// Ids of two layouts may be equal numbers, whatever worker id each has.
#[tokio::test]
async fn a_record_of_another_layout_refuses_every_claim() {
    let store = Arc::new(MemoryFenceStore::default());
    let registry = Registry::shared(store, ClaimPolicy::default(), None);
    assert_eq!(claim(&registry, &of_instance(1)).await, Ok(0));

    let other = ClaimRequest { layout: layout_of("w4"), ..of_instance(2) };
    let refused = claim(&registry, &other).await;

    assert!(matches!(refused, Err(RegistryErrorKind::OtherLayout { .. })), "{refused:?}");
}

/// If a node took another worker id, each restart would use one up.
#[tokio::test]
async fn a_node_waits_for_its_own_worker_id_and_for_no_other() {
    let registry = Registry::new(MemoryFenceStore::default(), ClaimPolicy::default(), None);
    let offline_for = seconds(10);
    let first = ClaimRequest { offline_for, ..of_instance(1) };
    assert_eq!(claim(&registry, &first).await, Ok(0));

    let again = ClaimRequest { nonce: Uuid::new_v4(), ..first };
    let own = claim(&registry, &again).await;
    assert_eq!(own, Err(RegistryErrorKind::NotYet { at: NOW + seconds(9) }));
    let other = ClaimRequest { offline_for, ..of_instance(2) };
    assert_eq!(claim(&registry, &other).await, Ok(1));

    // Its own one is held by far longer than it would wait: another one is taken.
    let patient = Registry::new(MemoryFenceStore::default(), ClaimPolicy::default(), None);
    assert_eq!(claim(&patient, &of_instance(1)).await, Ok(0));
    assert_eq!(claim(&patient, &of_instance(1)).await, Ok(1));
}

#[tokio::test]
async fn a_damaged_record_of_a_fixed_worker_id_says_what_is_wrong() {
    #[derive(Debug)]
    struct Damaged;
    impl FenceStore for Damaged {
        type Version = ();

        fn name(&self) -> &'static str {
            "memory"
        }

        async fn list(&self, _: Purpose) -> Result<Vec<StoredWorker<()>>, RegistryError> {
            Ok(Vec::new())
        }

        async fn read(&self, _: WorkerId, _: Purpose) -> Result<Stored<()>, RegistryError> {
            Ok(stored(RecordState::Damaged("no JSON".into())))
        }

        async fn replace(
            &self,
            _: WorkerId,
            _: &Stored<()>,
            _: &WorkerRecord,
        ) -> Result<bool, RegistryError> {
            panic!("a damaged record is not replaced")
        }
    }
    let policy = ClaimPolicy { fixed: Some(WorkerId::new(5)), ..ClaimPolicy::default() };
    let registry = Registry::new(Damaged, policy, None);

    let error = registry.claim(&who(1), &of_instance(1)).await.unwrap_err();

    assert_eq!(error.kind(), &RegistryErrorKind::Damaged);
    let text = format!("{error}: {:?}", std::error::Error::source(&error).map(ToString::to_string));
    assert!(text.contains("no JSON"), "{text}");
}

/// Nodes that start together try different worker ids after a lost race.
#[tokio::test]
async fn a_node_that_lost_races_takes_any_other_worker_id() {
    let mut taken = HashSet::new();
    for _ in 0..120 {
        let store = Contested { races_to_lose: AtomicUsize::new(6), ..Contested::default() };
        let registry = Registry::new(store, ClaimPolicy::default(), None);
        taken.insert(claim(&registry, &of_instance(1)).await.unwrap());
    }
    // Six lost races: one of 64 worker ids, each as likely. That so few come up is a chance of 10^-18.
    assert!(taken.len() > 32, "{taken:?}");
    assert!(taken.iter().all(|worker| *worker < 64), "{taken:?}");

    // The first attempt is in order, as long as nobody is faster.
    let registry = Registry::new(Contested::default(), ClaimPolicy::default(), None);
    assert_eq!(claim(&registry, &of_instance(1)).await, Ok(0));
}

#[tokio::test]
async fn a_lost_race_does_not_change_which_worker_ids_are_ones_own() {
    for races in 1..=12 {
        for others in [false, true] {
            let store = Arc::new(Contested::default());
            let registry = Registry::shared(Arc::clone(&store), ClaimPolicy::default(), None);
            // This instance has held all of two, or the first of four; they are free.
            let (own, layout) = if others { (1, layout_of("w2")) } else { (2, layout_of("w1")) };
            for worker in 0..own {
                let nonce = Uuid::new_v4();
                let free = Fence { nonce, layout: layout.shape(), ..fence(NOW - seconds(60)) };
                let (absent, free) = (stored(RecordState::Absent), record(&free));
                let written = store.store.replace(WorkerId::new(worker), &absent, &free).await;
                assert!(written.unwrap());
            }
            store.races_to_lose.store(races, Ordering::Relaxed);

            let request = ClaimRequest { layout, ..request() };

            assert_eq!(claim(&registry, &request).await, Ok(0), "after {races} races");
        }
    }
}

/// The reason that forbids one unused worker id forbids them all.
#[tokio::test]
async fn unused_worker_ids_are_not_read_one_by_one_to_be_refused() {
    let store = Arc::new(Contested::default());
    let registry = Registry::shared(Arc::clone(&store), ClaimPolicy::default(), None);
    let least_floor = NOW + seconds(3600);

    let refused = claim(&registry, &ClaimRequest { least_floor, ..of_instance(1) }).await;

    assert_eq!(refused, Err(RegistryErrorKind::FloorAhead { floor: least_floor, now: NOW }));
    assert_eq!(store.reads.load(Ordering::Relaxed), 1);
}
