//! The rules for one worker id: from which timestamp on a node may issue ids, and what it writes.

use std::collections::BTreeMap;
use std::time::Duration;

use leaf_core::{Layout, UnixMillis, WorkerId};
use uuid::Uuid;

use super::floor::{Evidence, RegistryEvidence, Selection, first_timestamp};
use super::*;
use crate::RegistryErrorKind;

mod candidates;
mod claims;
mod floor;
mod lease;

const NOW: UnixMillis = UnixMillis::new(1_800_000_000_000);

fn seconds(n: u64) -> Duration {
    Duration::from_secs(n)
}

fn request() -> ClaimRequest {
    ClaimRequest {
        now: NOW,
        instance: Uuid::from_u128(1),
        nonce: Uuid::new_v4(),
        layout: Layout::LEAF,
        saved: None,
        least_floor: UnixMillis::EPOCH,
        watched: BTreeMap::new(),
        offline_for: seconds(600),
        report_interval: seconds(3),
        tolerance: seconds(1),
        startup_wait: seconds(15),
    }
}

fn fence(ceiling: UnixMillis) -> Fence {
    Fence {
        term: 7,
        ceiling,
        reported_at: ceiling - seconds(600),
        ..request().next_fence(None, NOW)
    }
}

fn record(fence: &Fence) -> WorkerRecord {
    let holder = Identity::parse("a:1").unwrap();
    let unknown = UnknownFields::default();
    WorkerRecord { address: holder.clone(), holder, fence: fence.clone(), unknown }
}

/// The id of an instance that is not the one of [`request`].
const OTHER: Uuid = Uuid::from_u128(2);

/// A fence that another instance wrote by its own claim.
fn of_another(state: FenceState, ceiling: UnixMillis) -> Fence {
    Fence { instance: OTHER, nonce: Uuid::new_v4(), state, ..fence(ceiling) }
}

fn stored(record: RecordState) -> Stored<()> {
    Stored { record, mirror: JavaMirror::Agrees, version: (), failed_over_at: None }
}

fn evidence<'a>(
    stored: &'a Stored<()>,
    policy: &'a ClaimPolicy,
    selection: Selection,
    only_record: bool,
) -> Evidence<'a> {
    Evidence::Registry(RegistryEvidence {
        record: &stored.record,
        mirror: &stored.mirror,
        failed_over_at: stored.failed_over_at,
        policy,
        selection,
        only_record,
    })
}

fn floor_in(
    stored: &Stored<()>,
    request: &ClaimRequest,
    only_record: bool,
) -> Result<UnixMillis, RegistryErrorKind> {
    let policy = ClaimPolicy::default();
    let evidence = evidence(stored, &policy, Selection::Candidate, only_record);
    first_timestamp(WorkerId::new(0), evidence, request)
}

fn floor_of(fence: &Fence, request: &ClaimRequest) -> Result<UnixMillis, RegistryErrorKind> {
    floor_in(&stored(RecordState::Written(record(fence))), request, false)
}

fn with_saved(of: &Fence, local_ceiling: UnixMillis) -> ClaimRequest {
    let saved = SavedLease {
        worker: 0,
        fence: of.clone(),
        local_ceiling,
        lost: false,
        provenance: Provenance::Proven,
    };
    ClaimRequest { saved: Some(saved), ..request() }
}

#[test]
fn a_stranger_starts_at_the_registry_ceiling() {
    let past = NOW - seconds(5);

    assert_eq!(floor_of(&fence(past), &request()), Ok(past));
}

#[test]
fn a_stranger_waits_or_is_refused_without_a_write() {
    let floor = NOW + seconds(10);
    assert_eq!(
        floor_of(&fence(floor), &request()),
        Err(RegistryErrorKind::NotYet { at: NOW + seconds(9) })
    );

    let floor = NOW + seconds(300);
    assert_eq!(
        floor_of(&fence(floor), &request()),
        Err(RegistryErrorKind::FloorAhead { floor, now: NOW })
    );

    let until = NOW + seconds(599);
    let alive = floor_of(&fence(until), &request());
    assert_eq!(alive, Err(RegistryErrorKind::InUse { last_report: Some(seconds(1)), until }));
}

#[test]
fn the_holder_itself_goes_on_at_its_local_ceiling() {
    let fence = fence(NOW + seconds(600));
    let near = NOW + Duration::from_millis(700);

    assert_eq!(floor_of(&fence, &with_saved(&fence, near)), Ok(near));
}

#[test]
fn a_saved_lease_counts_only_for_its_own_term_instance_and_file() {
    let fence = fence(NOW + seconds(600));
    let genuine = with_saved(&fence, NOW);
    let change = |change: fn(&mut SavedLease)| {
        let mut request = genuine.clone();
        change(request.saved.as_mut().unwrap());
        floor_of(&fence, &request)
    };

    assert!(floor_of(&fence, &genuine).is_ok());
    for refused in [
        change(|saved| saved.fence.term -= 1),
        change(|saved| saved.fence.instance = Uuid::from_u128(2)),
        change(|saved| saved.worker = 1),
        change(|saved| saved.lost = true),
        change(|saved| saved.provenance = Provenance::Copied),
    ] {
        assert!(matches!(refused, Err(RegistryErrorKind::InUse { .. })), "{refused:?}");
    }
}

/// This node runs from a clone of the volume, and the original has reported since.
#[test]
fn after_a_reboot_an_old_clone_is_a_stranger() {
    let at_the_clone = fence(NOW + seconds(600));
    let later = Fence { nonce: Uuid::new_v4(), ..at_the_clone.clone() };
    let mut request = with_saved(&at_the_clone, NOW);
    request.saved.as_mut().unwrap().provenance = Provenance::Uncertain;
    request.watched.insert(WorkerId::new(0), later.nonce);

    let refused = floor_of(&later, &request);

    assert!(matches!(refused, Err(RegistryErrorKind::InUse { .. })), "{refused:?}");
}

/// A claim never lowers a ceiling, so the ceiling that it writes may be far above its floor.
#[test]
fn a_claim_found_again_starts_where_the_lease_before_ended() {
    let before = fence(NOW + seconds(86_400));
    let claim = with_saved(&before, NOW);
    let written = claim.next_fence(Some(&before), NOW);

    assert_eq!(floor_of(&written, &claim), Ok(NOW));
}

/// The registry was restored from a backup, or somebody edited it.
#[test]
fn a_record_that_went_back_does_not_take_the_floor_along() {
    let back = fence(NOW - seconds(3600));
    let mut request = with_saved(&back, NOW + Duration::from_millis(800));
    for lost in [false, true] {
        request.saved.as_mut().unwrap().lost = lost;
        let floor = floor_of(&back, &request);
        assert_eq!(floor, Ok(NOW + Duration::from_millis(800)));
    }
}

#[test]
fn after_a_reboot_the_record_must_have_been_silent() {
    let fence = fence(NOW + seconds(600));
    let mut request = with_saved(&fence, NOW);
    request.saved.as_mut().unwrap().provenance = Provenance::Uncertain;
    let floor = |watched: Option<Uuid>| {
        let watched = watched.map(|nonce| (WorkerId::new(0), nonce)).into_iter().collect();
        floor_of(&fence, &ClaimRequest { watched, ..request.clone() })
    };

    let (worker, during) = (WorkerId::new(0), 2 * request.report_interval);
    let watch = RegistryErrorKind::Watch { worker, fingerprint: fence.nonce, during };
    assert_eq!(floor(None), Err(watch));
    assert_eq!(floor(Some(fence.nonce)), Ok(NOW));
    let mut by_an_earlier_attempt = request.clone();
    by_an_earlier_attempt.nonce = fence.nonce;
    by_an_earlier_attempt.watched.clear();
    let watched_too = floor_of(&fence, &by_an_earlier_attempt);
    assert!(matches!(watched_too, Err(RegistryErrorKind::Watch { .. })));
    let written_meanwhile = floor(Some(Uuid::new_v4()));
    assert!(matches!(written_meanwhile, Err(RegistryErrorKind::InUse { .. })));
}

#[test]
fn nothing_below_the_least_floor_is_given() {
    let fence = fence(NOW - seconds(60));
    let mut request = with_saved(&fence, NOW - seconds(60));
    request.least_floor = NOW + Duration::from_millis(300);

    assert_eq!(floor_of(&fence, &request), Ok(request.least_floor));

    request.least_floor = NOW + seconds(60);
    let refused = floor_of(&fence, &request);
    assert!(matches!(refused, Err(RegistryErrorKind::FloorAhead { .. })));
}

#[test]
fn a_released_id_is_free_at_once() {
    let released = Fence { state: FenceState::Released, ..fence(NOW - seconds(1)) };

    assert_eq!(floor_of(&released, &request()), Ok(NOW - seconds(1)));
}

#[test]
fn a_claim_whose_answer_was_lost_is_found_again() {
    let claim = request();
    let floor = NOW + Duration::from_millis(800);

    let written = claim.next_fence(Some(&fence(NOW)), floor);

    assert_eq!(floor_of(&written, &claim), Ok(floor));
    assert_eq!(claim.next_fence(Some(&written), floor), written, "the same holder, not another");
    assert!(floor_of(&written, &request()).is_err(), "another claim is a stranger");
}

/// A node that started from its file while the registry was away has issued ids since its
/// claim was written, although it never saw the answer.
#[test]
fn what_was_issued_before_the_answer_came_stays_below_the_floor() {
    let before = fence(NOW);
    let mut claim = with_saved(&before, NOW);
    let written = claim.next_fence(Some(&before), NOW);
    claim.saved.as_mut().unwrap().local_ceiling = NOW + Duration::from_millis(700);

    let floor = floor_of(&written, &claim);

    assert_eq!(floor, Ok(NOW + Duration::from_millis(700)));
}

#[test]
fn a_claim_never_lowers_a_ceiling() {
    let before = fence(NOW + seconds(3600));

    let after = request().next_fence(Some(&before), NOW);

    assert_eq!((after.term, after.ceiling), (before.term + 1, before.ceiling));
}

#[test]
fn another_layout_or_epoch_is_refused() {
    let epoch = ClaimRequest {
        layout: Layout::LEAF.with_epoch(UnixMillis::new(1_420_041_600_000)),
        ..request()
    };
    let retired = Fence { state: FenceState::Retired, ..fence(NOW) };

    assert!(matches!(floor_of(&fence(NOW), &epoch), Err(RegistryErrorKind::OtherLayout { .. })));
    assert_eq!(floor_of(&retired, &request()), Err(RegistryErrorKind::Retired));
}

#[test]
fn a_record_that_leaf_did_not_write_is_an_error() {
    let good = record(&fence(NOW)).encode();
    let versionless = good.replace(r#""version":1,"#, "");
    for damaged in
        ["", "{}", "null", &versionless, &good.replace("held", "Held"), &good[..good.len() - 1]]
    {
        let state = RecordState::decode(damaged.as_bytes());
        assert!(matches!(state, RecordState::Damaged(_)), "{damaged}: {state:?}");
        assert_eq!(floor_in(&stored(state), &request(), false), Err(RegistryErrorKind::Damaged));
    }
    let RecordState::Damaged(why) = RecordState::decode(versionless.as_bytes()) else { panic!() };
    assert!(why.contains("no format version"), "{why}");
}

/// The durable format, byte for byte: a change of this text is a change of the format.
#[test]
fn version_1_is_written_like_this() {
    let text = r#"{"version":1,"holder":"10.0.0.7:8080","address":"10.0.0.7:8080","fence":{"term":3,"floor":1700000000000,"ceiling":1700000600000,"reported_at":1700000000000,"instance":"67e55044-10b1-426f-9247-bb680e5fe0c8","nonce":"936da01f-9abd-4d9d-80c7-02af85c822a8","layout":"t41-w10-s12/1ms","epoch_ms":1288834974657,"state":"held"}}"#;

    let RecordState::Written(record) = RecordState::decode(text.as_bytes()) else { panic!() };

    assert_eq!((record.fence.term, record.fence.state), (3, FenceState::Held));
    assert_eq!(record.encode(), text);
}

#[test]
fn fields_of_a_later_version_are_kept() {
    let text = record(&fence(NOW)).encode();
    let later =
        text.replacen("{", r#"{"zone":"b","#, 1).replace(r#""term":"#, r#""lane":4,"term":"#);

    let RecordState::Written(mut record) = RecordState::decode(later.as_bytes()) else { panic!() };
    record.fence = request().next_fence(Some(&record.fence), NOW);
    let rewritten = record.encode();

    let RecordState::Written(again) = RecordState::decode(rewritten.as_bytes()) else { panic!() };
    assert_eq!(again.unknown.get("zone"), Some(&"b".into()));
    assert_eq!(again.fence.unknown.get("lane"), Some(&4.into()));
    assert_eq!(again.fence.term, 8);
}

#[test]
fn a_greater_version_is_left_alone() {
    let newer = record(&fence(NOW)).encode().replace(r#""version":1"#, r#""version":2"#);

    let state = RecordState::decode(newer.as_bytes());

    assert_eq!(state, RecordState::Newer(2));
    let refused = floor_in(&stored(state), &request(), false);
    assert_eq!(refused, Err(RegistryErrorKind::NewerFormat { version: 2 }));
}

/// The registry `local`: nobody else can write the record, but the file may be gone.
#[test]
fn the_only_record_needs_no_watching_and_its_loss_costs_the_tolerance() {
    let fence = fence(NOW + seconds(600));
    let mut request = with_saved(&fence, NOW);
    request.saved.as_mut().unwrap().provenance = Provenance::Uncertain;
    let kept = stored(RecordState::Written(record(&fence)));
    assert_eq!(floor_in(&kept, &request, true), Ok(NOW));

    request.saved = None;
    let floor = floor_in(&stored(RecordState::Absent), &request, true);
    assert_eq!(floor, Ok(NOW + request.tolerance));
}

/// Even if every worker id has a record, the error after a failover lets nodes ask again: otherwise
/// they would be refused for good.
#[test]
fn a_full_registry_that_failed_over_is_not_full_for_good() {
    let mut refusals = super::candidates::Refusals::default();
    let until = NOW + seconds(631);
    for worker in 0..4 {
        let held = stored(RecordState::Written(record(&fence(NOW + seconds(600)))));
        let refusal = RegistryErrorKind::FailedOver { until };
        refusals.add(WorkerId::new(worker), &held, refusal, &request());
    }

    assert_eq!(refusals.conclude(), RegistryErrorKind::FailedOver { until });
}

/// A node whose clock is ahead claims a worker id before its holder's ceiling has passed.
#[test]
fn a_lease_that_others_could_claim_at_a_failover_proves_nothing() {
    let at = NOW - seconds(5);
    let evidence = |ceiling| {
        let fence = fence(ceiling);
        let failed_over_at = Some(at);
        let found = Stored { failed_over_at, ..stored(RecordState::Written(record(&fence))) };
        let request = ClaimRequest { tolerance: seconds(60), ..with_saved(&fence, NOW) };
        floor_in(&found, &request, false)
    };

    assert_eq!(evidence(at + seconds(91)), Ok(NOW));
    let refused = evidence(at + seconds(90));
    assert!(matches!(refused, Err(RegistryErrorKind::FailedOver { .. })), "{refused:?}");
}
