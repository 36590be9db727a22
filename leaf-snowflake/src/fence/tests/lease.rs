//! How a lease recognizes its own writes.

use super::*;

const OTHERS_NONCE: Uuid = Uuid::from_u128(99);

fn lease() -> Lease {
    Lease::new(WorkerId::new(0), fence(NOW))
}

/// `fence` after a write with this nonce, which raised the ceiling by a second.
fn extended(fence: &Fence, nonce: Uuid) -> Fence {
    Fence { nonce, ceiling: fence.ceiling + seconds(1), ..fence.clone() }
}

#[test]
fn one_nonce_serves_all_tries_of_a_write() {
    let mut lease = lease();
    let found = lease.fence.clone();

    let next = lease.recognize(&found).unwrap();

    assert_ne!(next, found.nonce);
    assert_eq!(lease.recognize(&found), Some(next), "not confirmed yet");
    lease.confirm(extended(&found, next));
    assert_eq!(lease.fence, extended(&found, next));
    let third = lease.recognize(&lease.fence.clone()).unwrap();
    assert!(third != next && third != found.nonce);
}

#[test]
fn a_write_whose_answer_was_lost_is_recognized_when_it_arrives() {
    let mut lease = lease();
    let found = lease.fence.clone();
    let next = lease.recognize(&found).unwrap();
    let arrived = extended(&found, next);

    let after = lease.recognize(&arrived).unwrap();

    assert_ne!(after, next);
    assert_eq!(lease.fence, arrived);
}

/// A later attempt of the same claim has the lease's nonce, and may have written more than the
/// lease knows.
#[test]
fn the_newest_write_is_taken_as_it_is_stored() {
    let mut lease = lease();
    let stored = Fence { term: 8, ..lease.fence.clone() };

    assert!(lease.recognize(&stored).is_some());

    assert_eq!(lease.fence, stored);
}

#[test]
fn a_registry_that_fell_back_to_an_earlier_write_still_has_this_lease() {
    let mut lease = lease();
    let first = lease.fence.clone();
    let mut written = vec![first.nonce];
    // As many as are remembered, and the newest.
    for _ in 0..300 {
        let next = lease.recognize(&lease.fence.clone()).unwrap();
        lease.confirm(extended(&lease.fence, next));
        written.push(next);
    }
    let newest = lease.fence.clone();

    for nonce in &written {
        assert!(lease.recognize(&Fence { nonce: *nonce, ..first.clone() }).is_some());
    }
    let back = Fence { nonce: written[150], ..first.clone() };
    let next = lease.recognize(&back).unwrap();
    assert_eq!(lease.fence.nonce, newest.nonce, "what is behind is not taken over");
    lease.confirm(extended(&newest, next));
    assert_eq!(lease.recognize(&first), None, "one write too many ago");
    assert!(lease.recognize(&Fence { nonce: written[1], ..first }).is_some());
}

/// The tries of one write, each of which reads the record, count as one.
#[test]
fn however_often_a_write_is_tried_earlier_ones_are_remembered() {
    let mut lease = lease();
    let first = lease.fence.clone();
    let next = lease.recognize(&first).unwrap();
    lease.confirm(extended(&first, next));

    for _ in 0..300 {
        lease.recognize(&lease.fence.clone()).unwrap();
    }

    assert!(lease.recognize(&first).is_some());
}

#[test]
fn what_another_holder_wrote_is_not_recognized() {
    let mut lease = lease();
    let before = lease.fence.clone();

    assert_eq!(lease.recognize(&extended(&before, OTHERS_NONCE)), None);

    assert_eq!(lease.fence, before);
}
