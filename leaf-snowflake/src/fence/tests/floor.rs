//! From when a node may issue ids: each rule at its limit, on both sides.

use super::*;

const MILLI: Duration = Duration::from_millis(1);

/// The floor of worker id 0 under a policy.
fn floor_under(
    policy: &ClaimPolicy,
    selection: Selection,
    stored: &Stored<()>,
    request: &ClaimRequest,
) -> Result<UnixMillis, RegistryErrorKind> {
    first_timestamp(WorkerId::new(0), evidence(stored, policy, selection, false), request)
}

fn written(fence: &Fence) -> Stored<()> {
    stored(RecordState::Written(record(fence)))
}

fn not_yet(at: UnixMillis) -> Result<UnixMillis, RegistryErrorKind> {
    Err(RegistryErrorKind::NotYet { at })
}

fn ahead(floor: UnixMillis) -> Result<UnixMillis, RegistryErrorKind> {
    Err(RegistryErrorKind::FloorAhead { floor, now: NOW })
}

#[test]
fn a_floor_is_used_waited_for_or_refused_by_how_far_ahead_it_is() {
    let floor = |ahead: Duration| {
        first_timestamp(WorkerId::new(0), Evidence::Granted(NOW + ahead), &request())
    };

    assert_eq!(floor(seconds(1)), Ok(NOW + seconds(1)));
    assert_eq!(floor(seconds(1) + MILLI), not_yet(NOW + MILLI));
    assert_eq!(floor(seconds(15)), not_yet(NOW + seconds(14)));
    assert_eq!(floor(seconds(15) + MILLI), ahead(NOW + seconds(15) + MILLI));
}

#[test]
fn a_worker_id_without_a_record_is_free_from_the_beginning() {
    let absent = stored(RecordState::Absent);

    assert_eq!(floor_in(&absent, &request(), false), Ok(UnixMillis::EPOCH));
    // This instance has issued ids with it, or with another one.
    let mut request = with_saved(&fence(NOW), NOW - seconds(1));
    for only_record in [false, true] {
        assert_eq!(floor_in(&absent, &request, only_record), Ok(NOW - seconds(1)));
    }
    request.saved.as_mut().unwrap().worker = 1;
    assert_eq!(floor_in(&absent, &request, false), Ok(UnixMillis::EPOCH));
}

#[test]
fn a_failover_is_over_once_every_ceiling_of_that_time_has_passed() {
    // `offline_for`, the tolerance, and how far clocks may differ.
    let wait = seconds(600 + 1 + 30);
    let floor = |at: UnixMillis, record: RecordState| {
        floor_in(&Stored { failed_over_at: Some(at), ..stored(record) }, &request(), false)
    };
    let old = || RecordState::Written(record(&fence(NOW - seconds(7200))));

    for record in [RecordState::Absent, old()] {
        assert_eq!(floor(NOW - wait, record.clone()), Ok(NOW));
        assert_eq!(floor(NOW - wait - seconds(9), record.clone()), Ok(NOW - seconds(9)));
        let until = NOW + MILLI;
        assert_eq!(floor(until - wait, record), Err(RegistryErrorKind::FailedOver { until }));
    }
}

#[test]
fn only_the_lease_that_was_held_at_a_failover_outlives_it() {
    let at = NOW - seconds(5);
    let held = fence(at + seconds(32));
    let floor = |change: fn(&mut SavedLease)| {
        let mut request = with_saved(&held, NOW);
        change(request.saved.as_mut().unwrap());
        floor_in(&Stored { failed_over_at: Some(at), ..written(&held) }, &request, false)
    };

    assert_eq!(floor(|_| {}), Ok(NOW));
    let changes: [fn(&mut SavedLease); 7] = [
        |saved| saved.worker = 1,
        |saved| saved.lost = true,
        |saved| saved.provenance = Provenance::Uncertain,
        |saved| saved.provenance = Provenance::Copied,
        |saved| saved.fence.term += 1,
        |saved| saved.fence.instance = OTHER,
        |saved| saved.fence.ceiling = saved.fence.ceiling - seconds(1),
    ];
    for (number, change) in changes.into_iter().enumerate() {
        let refused = floor(change);
        let failed_over = matches!(refused, Err(RegistryErrorKind::FailedOver { .. }));
        assert!(failed_over, "change {number}: {refused:?}");
    }
}

#[test]
fn a_worker_id_of_another_instance_rests() {
    let policy = ClaimPolicy { recycle_after: seconds(60), ..ClaimPolicy::default() };
    let bound = ClaimPolicy { bound: true, ..policy.clone() };
    let floor = |policy, selection, state, ceiling: UnixMillis| {
        floor_under(policy, selection, &written(&of_another(state, ceiling)), &request())
    };
    let (held, released) = (FenceState::Held, FenceState::Released);
    let candidate = Selection::Candidate;

    let rested = NOW - seconds(60);
    assert_eq!(floor(&policy, candidate, held, rested), Ok(rested));
    assert_eq!(floor(&policy, candidate, held, rested + MILLI), not_yet(NOW + MILLI));
    assert_eq!(floor(&policy, candidate, held, rested + seconds(15)), not_yet(NOW + seconds(15)));
    let beyond = rested + seconds(15) + MILLI;
    assert_eq!(floor(&policy, candidate, held, beyond), ahead(NOW + seconds(15) + MILLI));
    // Not passed at all: the rest comes on top.
    assert_eq!(floor(&policy, candidate, held, NOW + seconds(10)), ahead(NOW + seconds(70)));
    // Far ahead: what its holder has is told, not when it has rested.
    let until = NOW + seconds(590);
    assert_eq!(floor(&policy, candidate, held, until), ahead(until));

    // What was given back is free at once, unless worker ids belong to identities.
    assert_eq!(floor(&policy, candidate, released, NOW), Ok(NOW));
    assert_eq!(floor(&bound, candidate, released, rested), Ok(rested));
    assert_eq!(floor(&bound, candidate, released, rested + MILLI), not_yet(NOW + MILLI));
    // One's own does not rest.
    for state in [held, released] {
        assert_eq!(floor(&bound, Selection::Assigned, state, NOW), Ok(NOW));
    }
    let own = Fence { state: held, ..fence(NOW) };
    assert_eq!(floor_under(&policy, candidate, &written(&own), &request()), Ok(NOW));
    // Nor does what an earlier attempt of this claim wrote.
    let mut claim = request();
    claim.nonce = Uuid::from_u128(9);
    let mine = Fence { nonce: claim.nonce, floor: NOW, ..of_another(held, NOW) };
    assert_eq!(floor_under(&policy, candidate, &written(&mine), &claim), Ok(NOW));
}

/// The later one of the two waits counts.
#[test]
fn a_wait_for_the_floor_and_a_rest_run_at_the_same_time() {
    let policy = ClaimPolicy { recycle_after: seconds(4), ..ClaimPolicy::default() };
    let held = written(&of_another(FenceState::Held, NOW + seconds(3)));
    let floor = |least_floor| {
        let request = ClaimRequest { least_floor, ..request() };
        floor_under(&policy, Selection::Candidate, &held, &request)
    };

    assert_eq!(floor(UnixMillis::EPOCH), not_yet(NOW + seconds(7)));
    assert_eq!(floor(NOW + seconds(12)), not_yet(NOW + seconds(11)));
}

fn of_java(at: Option<UnixMillis>, record: RecordState) -> (Stored<()>, JavaReport) {
    let report = JavaReport { holder: "java:1".into(), at };
    (Stored { mirror: JavaMirror::Java(report.clone()), ..stored(record) }, report)
}

#[test]
fn ids_start_above_those_of_a_silent_java_leaf() {
    let policy = ClaimPolicy::default();
    let fence = fence(NOW - seconds(3600));
    let floor = |stored: &Stored<()>, watched: Option<Uuid>| {
        let watched = watched.map(|print| (WorkerId::new(0), print)).into_iter().collect();
        let request = ClaimRequest { watched, ..request() };
        floor_under(&policy, Selection::Assigned, stored, &request)
    };

    for record in [RecordState::Absent, RecordState::Written(record(&fence))] {
        let nonce = record.written().map(|record| record.fence.nonce);
        let (stored, report) = of_java(Some(NOW - seconds(9)), record);
        let (worker, fingerprint) = (WorkerId::new(0), report.fingerprint(nonce));
        // At least two of its reports and two of this node's.
        let during = seconds(7);
        let watch = RegistryErrorKind::Watch { worker, fingerprint, during };
        assert_eq!(floor(&stored, None), Err(watch));
        assert_eq!(floor(&stored, Some(fingerprint)), Ok(NOW - seconds(5)));
        let holder = "java:1".into();
        let alive = Err(RegistryErrorKind::JavaAlive { holder });
        assert_eq!(floor(&stored, Some(Uuid::from_u128(3))), alive);
    }
    let (stored, _) = of_java(None, RecordState::Absent);
    let slow = ClaimRequest { report_interval: seconds(5), ..request() };
    let refused = floor_under(&policy, Selection::Assigned, &stored, &slow);
    let ten = seconds(10);
    assert!(matches!(refused, Err(RegistryErrorKind::Watch { during, .. }) if during == ten));
}

/// The fingerprint of a Java record includes the nonce of the fence beside it. The fence is this
/// instance's, and must be watched, since a copy of this volume may write it.
#[test]
fn a_fence_beside_a_watched_java_record_counts_as_watched() {
    let fence = fence(NOW + seconds(60));
    let (stored, report) = of_java(None, RecordState::Written(record(&fence)));
    let mut request = with_saved(&fence, NOW);
    request.saved.as_mut().unwrap().provenance = Provenance::Uncertain;
    request.watched.insert(WorkerId::new(0), report.fingerprint(Some(fence.nonce)));

    let floor = floor_under(&ClaimPolicy::default(), Selection::Assigned, &stored, &request);

    assert_eq!(floor, Ok(NOW));
}

#[test]
fn a_worker_id_of_a_java_leaf_is_given_out_once_no_java_leaf_uses_the_registry() {
    let adopting =
        ClaimPolicy { adopt_java_ids: true, recycle_after: seconds(60), ..ClaimPolicy::default() };
    let at = |at| of_java(Some(at), RecordState::Absent).0;
    let floor = |policy: &ClaimPolicy, at: &Stored<()>| {
        floor_under(policy, Selection::Candidate, at, &request())
    };

    let rested = NOW - seconds(64);
    assert_eq!(floor(&ClaimPolicy::default(), &at(rested)), Err(RegistryErrorKind::JavaHolds));
    let Err(RegistryErrorKind::Watch { worker, fingerprint, .. }) = floor(&adopting, &at(rested))
    else {
        panic!("it is not watched")
    };
    let watched = ClaimRequest { watched: [(worker, fingerprint)].into(), ..request() };
    let adopted = floor_under(&adopting, Selection::Candidate, &at(rested), &watched);
    assert_eq!(adopted, Ok(rested + seconds(4)));
    assert_eq!(floor(&adopting, &at(rested + MILLI)), ahead(NOW + MILLI));
    // It has never reported.
    let silent = of_java(None, RecordState::Absent).0;
    assert!(matches!(floor(&adopting, &silent), Err(RegistryErrorKind::Watch { .. })));
}

#[test]
fn a_java_record_that_is_gone_or_damaged_is_refused() {
    let floor = |mirror| floor_in(&Stored { mirror, ..written(&fence(NOW)) }, &request(), false);

    assert!(matches!(floor(JavaMirror::Missing), Err(RegistryErrorKind::NoWorkerId(_))));
    assert_eq!(floor(JavaMirror::Damaged("?".into())), Err(RegistryErrorKind::Damaged));
}

/// The state file of an instance that has held the worker id of `fence` until `NOW`.
fn with_file(fence: &Fence, provenance: Provenance) -> ClaimRequest {
    let mut request = with_saved(fence, NOW);
    request.saved.as_mut().unwrap().provenance = provenance;
    request
}

/// A fence is watched only if it is this instance's and the state file is uncertain: a copy of the
/// file may write that fence.
#[test]
fn neither_a_fence_of_others_nor_that_of_a_proven_file_is_watched() {
    let past = fence(NOW - seconds(5));
    let (uncertain, proven) = (Provenance::Uncertain, Provenance::Proven);

    let own = floor_of(&past, &with_file(&past, uncertain));
    assert!(matches!(own, Err(RegistryErrorKind::Watch { .. })), "{own:?}");
    assert_eq!(floor_of(&past, &with_file(&past, proven)), Ok(NOW));
    let others = of_another(FenceState::Held, NOW - seconds(5));
    assert_eq!(floor_of(&others, &with_file(&past, uncertain)), Ok(NOW));
}

fn is_in_use(floor: &Result<UnixMillis, RegistryErrorKind>) -> bool {
    matches!(floor, Err(RegistryErrorKind::InUse { .. }))
}

/// The lease may have been extended since the file was written.
#[test]
fn a_proven_lease_is_known_by_its_term() {
    let extended = fence(NOW + seconds(600));
    let mut request = with_file(&extended, Provenance::Proven);
    request.saved.as_mut().unwrap().fence.nonce = Uuid::new_v4();

    assert_eq!(floor_of(&extended, &request), Ok(NOW));
    let of_another = Fence { instance: OTHER, ..extended };
    assert!(is_in_use(&floor_of(&of_another, &request)));
}

/// A nonce other than the file's means that the fence was extended after the file was written. If
/// the file may be a copy, another process that uses the original may have done that.
#[test]
fn an_uncertain_lease_is_known_by_its_nonce() {
    let written = fence(NOW + seconds(600));
    let mut request = with_file(&written, Provenance::Uncertain);
    request.watched.insert(WorkerId::new(0), written.nonce);
    let floor = |change: fn(&mut SavedLease)| {
        let mut request = request.clone();
        change(request.saved.as_mut().unwrap());
        floor_of(&written, &request)
    };

    assert_eq!(floor(|_| {}), Ok(NOW));
    assert!(is_in_use(&floor(|saved| saved.fence.nonce = Uuid::new_v4())));
    assert!(is_in_use(&floor(|saved| saved.fence.instance = OTHER)));
}

/// An attempt of this claim whose answer was lost starts at the floor that it wrote, unless this
/// node held the term directly before: only then did no other holder come between.
#[test]
fn a_claim_found_again_goes_on_where_it_may() {
    let before = fence(NOW - seconds(60));
    let issued = NOW - seconds(30);
    let floor = |change: fn(&mut SavedLease)| {
        let mut claim = with_saved(&before, issued);
        let attempt = claim.next_fence(Some(&before), NOW);
        change(claim.saved.as_mut().unwrap());
        floor_of(&attempt, &claim)
    };

    assert_eq!(floor(|_| {}), Ok(issued));
    let changes: [fn(&mut SavedLease); 4] = [
        |saved| saved.provenance = Provenance::Copied,
        |saved| saved.lost = true,
        |saved| saved.fence.term -= 1,
        |saved| saved.fence.instance = OTHER,
    ];
    for change in changes {
        assert_eq!(floor(change), Ok(NOW));
    }
}

#[test]
fn without_the_registry_only_a_proven_lease_that_lasts_counts() {
    let lasting = fence(NOW + MILLI);
    let floor = |change: fn(&mut ClaimRequest, &mut SavedLease)| {
        let mut request = with_saved(&lasting, NOW - seconds(2));
        let mut saved = request.saved.take().unwrap();
        change(&mut request, &mut saved);
        request.saved = Some(saved);
        first_timestamp(WorkerId::new(0), Evidence::SavedLease, &request)
    };

    assert_eq!(floor(|_, _| {}), Ok(NOW - seconds(2)));
    let changes: [fn(&mut ClaimRequest, &mut SavedLease); 6] = [
        |_, saved| saved.provenance = Provenance::Uncertain,
        |_, saved| saved.lost = true,
        |_, saved| saved.fence.state = FenceState::Released,
        |_, saved| saved.fence.ceiling = NOW,
        |_, saved| saved.fence.ceiling = NOW - MILLI,
        |request, _| request.layout = "t41-w4-s12/1ms".parse().unwrap(),
    ];
    for (number, change) in changes.into_iter().enumerate() {
        assert_eq!(floor(change), Err(RegistryErrorKind::Unavailable), "change {number}");
    }
    let none = first_timestamp(WorkerId::new(0), Evidence::SavedLease, &request());
    assert_eq!(none, Err(RegistryErrorKind::Unavailable));
}

/// What an operator sees of a worker id that another node holds: it is in use if its holder
/// reported within two report intervals.
#[test]
fn a_worker_id_is_in_use_while_its_holder_reports() {
    let until = NOW + seconds(600);
    let refusal = |state, reported_at| {
        let fence = Fence { reported_at, ..of_another(state, until) };
        floor_of(&fence, &request())
    };
    let in_use = |ago| Err(RegistryErrorKind::InUse { last_report: Some(ago), until });
    let held = FenceState::Held;

    assert_eq!(refusal(held, NOW - seconds(6) + MILLI), in_use(seconds(6) - MILLI));
    assert_eq!(refusal(held, NOW - seconds(6)), ahead(until));
    assert_eq!(refusal(FenceState::Released, NOW), ahead(until));
    // By a clock that is a little ahead of this one, or by one that was wrong.
    assert_eq!(refusal(held, NOW + seconds(6)), in_use(Duration::ZERO));
    assert_eq!(refusal(held, NOW + seconds(6) + MILLI), ahead(until));
    // One that can be waited for is waited for.
    let soon = Fence { reported_at: NOW, ..of_another(held, NOW + seconds(2)) };
    assert_eq!(floor_of(&soon, &request()), not_yet(NOW + seconds(2)));
}
