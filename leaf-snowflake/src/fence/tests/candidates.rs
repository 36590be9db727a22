//! The order in which a claim tries worker ids, and the error that a node gets if none is free.

use super::super::candidates::{Candidate, Refusals, in_order, worth_waiting};
use super::*;

fn listed(worker: u32, fence: &Fence) -> StoredWorker<()> {
    (WorkerId::new(worker), stored(RecordState::Written(record(fence))))
}

fn of_java(worker: u32, at: Option<UnixMillis>) -> StoredWorker<()> {
    let mirror = JavaMirror::Java(JavaReport { holder: "java".into(), at });
    (WorkerId::new(worker), Stored { mirror, ..stored(RecordState::Absent) })
}

/// Each worker id in its turn, and whether it counts as the node's own.
fn order(candidates: &[Candidate<()>]) -> Vec<(u32, bool)> {
    candidates.iter().map(|candidate| (candidate.worker.get(), candidate.own)).collect()
}

/// A request of the instance that remembers worker id 3, and records of every kind.
fn every_kind() -> (ClaimRequest, Vec<StoredWorker<()>>) {
    let mut request = with_saved(&fence(NOW), NOW);
    request.saved.as_mut().unwrap().worker = 3;
    let mine = |ceiling| Fence { nonce: Uuid::new_v4(), ..fence(ceiling) };
    let this_claim = Fence { nonce: request.nonce, ..of_another(FenceState::Held, NOW) };
    let soon = NOW + request.tolerance;
    let records = vec![
        listed(0, &of_another(FenceState::Held, NOW + seconds(20))),
        of_java(1, Some(NOW + seconds(10))),
        listed(2, &mine(NOW)),
        listed(3, &mine(NOW)),
        listed(4, &this_claim),
        listed(5, &of_another(FenceState::Released, soon)),
        listed(6, &of_another(FenceState::Released, soon + Duration::from_millis(1))),
        of_java(7, None),
        listed(8, &of_another(FenceState::Released, NOW)),
        listed(1023, &of_another(FenceState::Held, NOW)),
        listed(1024, &this_claim),
    ];
    (request, records)
}

#[test]
fn ones_own_come_first_then_free_ones_then_those_that_others_used() {
    let (request, records) = every_kind();
    let unused = vec![WorkerId::new(9), WorkerId::new(10)];

    let candidates = in_order(&request, false, 0..=1023, records, unused);

    let own = [(4, true), (3, true), (2, true)];
    let free = [(8, false), (5, false), (9, false), (10, false)];
    let used = [(7, false), (1023, false), (6, false), (1, false), (0, false)];
    assert_eq!(order(&candidates), [&own[..], &free, &used].concat());
    let unread: Vec<_> = candidates.iter().filter(|candidate| candidate.stored.is_none()).collect();
    assert_eq!(unread.iter().map(|it| it.worker.get()).collect::<Vec<_>>(), [9, 10]);
}

/// An identity has at most one worker id, and the store says which. Other worker ids that this
/// instance has held are treated like those of other nodes.
#[test]
fn where_worker_ids_belong_to_identities_only_this_claim_is_ones_own() {
    let (request, records) = every_kind();
    let unused = vec![WorkerId::new(9), WorkerId::new(10)];

    let candidates = in_order(&request, true, 0..=1023, records, unused);

    let first: Vec<_> = order(&candidates).into_iter().take(3).collect();
    assert_eq!(first, [(4, true), (9, false), (10, false)]);
    assert!(candidates[1..].iter().all(|candidate| !candidate.own));
}

#[test]
fn what_the_store_cannot_hold_is_no_candidate() {
    let (request, records) = every_kind();

    let candidates = in_order(&request, false, 4..=8, records, Vec::new());

    assert_eq!(order(&candidates).iter().map(|it| it.0).collect::<Vec<_>>(), [4, 8, 5, 7, 6]);
}

/// A restored backup may have lost the record of the worker id that the state file remembers.
#[test]
fn a_remembered_worker_id_without_a_record_comes_before_the_unused_ones() {
    let (request, _) = every_kind();
    let unused = || vec![WorkerId::new(1), WorkerId::new(3)];
    let other = || vec![listed(0, &of_another(FenceState::Released, NOW))];

    let candidates = in_order(&request, false, 0..=1023, other(), unused());
    assert_eq!(order(&candidates), [(3, false), (0, false), (1, false)]);

    let candidates = in_order(&request, true, 0..=1023, other(), unused());
    assert_eq!(order(&candidates), [(1, false), (3, false), (0, false)]);
}

#[test]
fn only_a_worker_id_that_comes_within_the_startup_wait_is_waited_for() {
    let (worker, during) = (WorkerId::new(0), seconds(1));

    assert!(worth_waiting(&RegistryErrorKind::NotYet { at: NOW }));
    assert!(worth_waiting(&RegistryErrorKind::Watch { worker, fingerprint: OTHER, during }));
    assert!(!worth_waiting(&RegistryErrorKind::FloorAhead { floor: NOW, now: NOW }));
    assert!(!worth_waiting(&RegistryErrorKind::FailedOver { until: NOW }));
}

/// The error of a claim after these refusals of worker ids 0, 1 and so on.
fn told(refused: Vec<(Stored<()>, RegistryErrorKind)>) -> RegistryErrorKind {
    let mut refusals = Refusals::default();
    for (worker, (stored, refusal)) in (0..).zip(refused) {
        refusals.add(WorkerId::new(worker), &stored, refusal, &request());
    }
    refusals.conclude()
}

fn held(ceiling: UnixMillis) -> Stored<()> {
    stored(RecordState::Written(record(&of_another(FenceState::Held, ceiling))))
}

#[test]
fn the_earliest_end_of_a_wait_is_told() {
    let not_yet = |n| (held(NOW), RegistryErrorKind::NotYet { at: NOW + seconds(n) });
    let busy = || (held(NOW), RegistryErrorKind::FloorAhead { floor: NOW, now: NOW });

    let first = told(vec![busy(), not_yet(5), not_yet(3), not_yet(4), busy()]);

    assert_eq!(first, RegistryErrorKind::NotYet { at: NOW + seconds(3) });
}

#[test]
fn of_a_watch_and_other_waits_the_first_is_told() {
    let watch = |worker| {
        let (worker, during) = (WorkerId::new(worker), seconds(6));
        RegistryErrorKind::Watch { worker, fingerprint: OTHER, during }
    };
    let not_yet = RegistryErrorKind::NotYet { at: NOW };
    let after = |refusals: [&RegistryErrorKind; 3]| {
        told(refusals.map(|refusal| (held(NOW), refusal.clone())).into())
    };

    assert_eq!(after([&watch(0), &watch(1), &not_yet]), watch(0));
    assert_eq!(after([&not_yet, &watch(0), &watch(1)]), not_yet);
}

#[test]
fn why_no_unused_one_was_given_is_told_before_a_failover() {
    let failed_over = RegistryErrorKind::FailedOver { until: NOW + seconds(631) };
    let ahead = RegistryErrorKind::FloorAhead { floor: NOW + seconds(60), now: NOW };
    let unused = || stored(RecordState::Absent);

    let why = told(vec![(held(NOW), failed_over.clone()), (unused(), ahead.clone())]);
    assert_eq!(why, ahead);
}

/// After one refused unused worker id the other unused ones are not read one by one.
#[test]
fn one_refused_unused_worker_id_stands_for_all_but_the_remembered_one_does_not() {
    let ahead = RegistryErrorKind::FloorAhead { floor: NOW + seconds(60), now: NOW };
    let unused = || stored(RecordState::Absent);
    let mut refusals = Refusals::default();
    let remembering = with_saved(&fence(NOW), NOW);
    refusals.add(WorkerId::new(0), &unused(), ahead.clone(), &remembering);
    assert!(!refusals.unused_is_refused(), "it is refused for what was issued with it");
    refusals.add(WorkerId::new(1), &held(NOW), ahead.clone(), &remembering);
    assert!(!refusals.unused_is_refused(), "a record is not an unused worker id");
    let (_, java) = of_java(2, None);
    refusals.add(WorkerId::new(2), &java, ahead.clone(), &remembering);
    assert!(!refusals.unused_is_refused(), "a Java Leaf has it");
    refusals.add(WorkerId::new(3), &unused(), ahead.clone(), &remembering);
    assert!(refusals.unused_is_refused());
}

#[test]
fn a_full_registry_says_how_many_are_used_and_which_becomes_free_first() {
    let ahead = |floor| RegistryErrorKind::FloorAhead { floor, now: NOW };
    let (_, java) = of_java(0, Some(NOW));
    let retired = stored(RecordState::Written(record(&of_another(FenceState::Retired, NOW))));
    let under_java = Stored { mirror: java.mirror.clone(), ..held(NOW) };
    let free = |at: UnixMillis, worker| {
        format!("the first that may become free is {worker}, once {} has passed", at.utc())
    };
    let mut refusals = Refusals::default();
    let mut add = |worker, stored: &Stored<()>, refusal| {
        refusals.add(WorkerId::new(worker), stored, refusal, &request());
    };
    add(0, &java, RegistryErrorKind::JavaHolds);
    add(1, &retired, RegistryErrorKind::Retired);
    add(2, &under_java, RegistryErrorKind::JavaHolds);
    // The refusal names a later time than its ceiling: the worker id rests.
    add(3, &held(NOW), ahead(NOW + seconds(90)));
    let in_use = RegistryErrorKind::InUse { last_report: None, until: NOW };
    add(4, &held(NOW + seconds(80)), in_use);
    add(5, &held(NOW + seconds(85)), ahead(NOW + seconds(85)));
    refusals.count_refused();
    refusals.count_refused();

    let text = refusals.conclude().to_string();

    assert!(
        text.starts_with("all 8 worker ids are in use, 1 of them held by Java Leafs; "),
        "{text}"
    );
    assert!(text.contains(&free(NOW + seconds(80), 4)), "{text}");

    // What rests is free when the refusal says so, not when its ceiling has passed.
    let text = told(vec![(held(NOW), ahead(NOW + seconds(90)))]).to_string();
    assert!(text.contains(&free(NOW + seconds(90), 0)), "{text}");
    assert!(text.starts_with("all 1 worker ids are in use; "), "{text}");
}
