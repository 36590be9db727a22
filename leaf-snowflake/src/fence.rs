//! The fence: the one record per worker id that decides who may use which timestamps.
//!
//! Invariant: no holder of epoch `n` ever issues at or above the ceiling that was recorded for `n`
//! when epoch `n + 1` was written, and the holder of `n + 1` issues nothing below it. The only
//! exceptions are a holder that comes back with its own memory of that very epoch, and a clean stop
//! that lowered the ceiling to what was really used.
//!
//! This file is the arithmetic of that promise. It reads no clock and talks to nobody.

use std::time::Duration;

use leaf_core::{UnixMillis, WorkerId};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::{ClaimRequest, Memory, Origin, RegistryError, RegistryErrorKind};

/// The record of one worker id. Written only by compare-and-set, never deleted.
///
/// ```
/// use leaf_snowflake::Fence;
///
/// let text = r#"{"epoch":3,"ceiling":1700000000000,
///     "instance":"67e55044-10b1-426f-9247-bb680e5fe0c8",
///     "nonce":"936da01f-9abd-4d9d-80c7-02af85c822a8",
///     "layout":"t41-w10-s12/1ms","epoch_ms":1288834974657,"state":"held"}"#;
/// let fence = Fence::decode(text)?;
/// assert_eq!(fence.ceiling.get(), 1_700_000_000_000);
/// assert_eq!(Fence::decode(&fence.encode())?, fence);
/// # Ok::<(), leaf_snowflake::RegistryError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fence {
    /// Counts the holders.
    pub epoch: u64,
    /// The holder of this epoch issues nothing at or above this.
    #[serde(with = "unix_millis")]
    pub ceiling: UnixMillis,
    /// Which instance wrote it.
    pub instance: Uuid,
    /// Made new for every write: how a writer whose answer was lost finds its own write.
    pub nonce: Uuid,
    /// The layout's [`shape`](leaf_core::Layout::shape): another one would repeat ids.
    pub layout: String,
    /// The layout's epoch, for the same reason.
    #[serde(with = "unix_millis")]
    pub epoch_ms: UnixMillis,
    /// Whether somebody holds it.
    pub state: FenceState,
}

/// Whether a worker id is in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FenceState {
    /// Somebody holds it, or crashed holding it.
    Held,
    /// Cleanly given back; the ceiling is one past the last timestamp used.
    Released,
    /// Taken out of service by an operator.
    Retired,
}

impl Fence {
    /// The record as text.
    #[must_use]
    pub fn encode(&self) -> String {
        serde_json::to_string(self).expect("no map, no custom serializer: cannot fail")
    }

    /// Reads a record.
    ///
    /// # Errors
    /// `Damaged` for anything that [`Self::encode`] did not write.
    pub fn decode(text: &str) -> Result<Self, RegistryError> {
        serde_json::from_str(text).map_err(|error| {
            RegistryError::new(RegistryErrorKind::Damaged, "read a fence record").because(error)
        })
    }

    /// The first instant that the claimant of `request` may use, were it the next holder of
    /// `worker`.
    ///
    /// # Errors
    /// `OtherLayout`, `Retired`; `Watch` when the record must be looked at again two report
    /// intervals later; `NotYet` when a wait up to [`ClaimRequest::startup_wait`] is enough;
    /// `FloorAhead` or `InUse` when it is not. On any error nothing may be written: a crash loop
    /// must not push its own ceiling.
    pub fn floor_for(
        &self,
        worker: WorkerId,
        request: &ClaimRequest,
    ) -> Result<UnixMillis, RegistryErrorKind> {
        let configured = (request.layout.shape(), request.layout.epoch());
        if (&self.layout, self.epoch_ms) != (&configured.0, configured.1) {
            return Err(RegistryErrorKind::OtherLayout {
                recorded: format!("{} from {}", self.layout, self.epoch_ms),
                configured: format!("{} from {}", configured.0, configured.1),
            });
        }
        if self.state == FenceState::Retired {
            return Err(RegistryErrorKind::Retired);
        }
        let memory = request.memory.as_ref();
        // Whatever the record says, say after a restored backup.
        let issued = request.issued(worker);
        if self.instance == request.instance
            && memory.is_some_and(|memory| memory.origin == Origin::Uncertain)
        {
            match request.watched {
                Some((watched, nonce)) if watched == worker => {
                    if nonce != self.nonce {
                        return Err(self.in_use(Duration::ZERO));
                    }
                }
                _ => {
                    let (nonce, during) = (self.nonce, 2 * request.report_interval);
                    return Err(RegistryErrorKind::Watch { worker, nonce, during });
                }
            }
        }
        let instance = |memory: &&Memory| {
            memory.origin != Origin::Copied
                && !memory.lost
                && memory.worker == worker.get()
                && memory.fence.instance == self.instance
                && self.instance == request.instance
        };
        let own = memory.filter(instance);
        // An earlier attempt of this very claim, whose answer was lost: nothing was issued under
        // it, though perhaps under the lease before.
        if self.nonce == request.nonce {
            let direct = own.is_some_and(|memory| {
                memory.origin == Origin::Own && memory.fence.epoch + 1 == self.epoch
            });
            // Else `next_fence` put its ceiling `offline_for` above its floor or higher.
            let floor = if direct { issued } else { self.ceiling - request.offline_for };
            return request.start_at(floor.max(issued));
        }
        let current = own.is_some_and(|memory| match memory.origin {
            // What was cloned with its file may have gone on reporting since.
            Origin::Uncertain => memory.fence.nonce == self.nonce,
            _ => memory.fence.epoch == self.epoch,
        });
        if current {
            return request.start_at(issued);
        }
        request.start_at(self.ceiling.max(issued)).map_err(|refusal| self.blame(refusal, request))
    }

    const fn in_use(&self, last_report: Duration) -> RegistryErrorKind {
        RegistryErrorKind::InUse { last_report, until: self.ceiling }
    }

    /// A floor that is far ahead because its holder lives is better named so.
    fn blame(&self, refusal: RegistryErrorKind, request: &ClaimRequest) -> RegistryErrorKind {
        // A holder's ceiling is `offline_for` ahead of its last report.
        let last_report = request.now - (self.ceiling - request.offline_for);
        let recent = last_report < 2 * request.report_interval;
        match refusal {
            RegistryErrorKind::FloorAhead { .. } if self.state == FenceState::Held && recent => {
                self.in_use(last_report)
            }
            refusal => refusal,
        }
    }
}

/// [`UnixMillis`] as a plain number.
pub(crate) mod unix_millis {
    use leaf_core::UnixMillis;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(crate) fn serialize<S: Serializer>(at: &UnixMillis, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_u64(at.get())
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<UnixMillis, D::Error> {
        u64::deserialize(from).map(UnixMillis::new)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use leaf_core::Layout;

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
            memory: None,
            least_floor: UnixMillis::EPOCH,
            watched: None,
            offline_for: seconds(600),
            report_interval: seconds(3),
            tolerance: seconds(1),
            startup_wait: seconds(15),
        }
    }

    fn fence(ceiling: UnixMillis) -> Fence {
        Fence { epoch: 7, ceiling, ..request().next_fence(None, NOW) }
    }

    fn with_memory(of: &Fence, local_ceiling: UnixMillis) -> ClaimRequest {
        let memory = Memory {
            worker: 0,
            fence: of.clone(),
            local_ceiling,
            lost: false,
            origin: Origin::Own,
        };
        ClaimRequest { memory: Some(memory), ..request() }
    }

    #[test]
    fn a_stranger_starts_at_the_registry_ceiling() {
        let past = NOW - seconds(5);

        assert_eq!(fence(past).floor_for(WorkerId::new(0), &request()), Ok(past));
    }

    #[test]
    fn a_stranger_waits_or_is_refused_without_a_write() {
        let floor = NOW + seconds(10);
        assert_eq!(
            fence(floor).floor_for(WorkerId::new(0), &request()),
            Err(RegistryErrorKind::NotYet { at: NOW + seconds(9) })
        );

        let floor = NOW + seconds(300);
        assert_eq!(
            fence(floor).floor_for(WorkerId::new(0), &request()),
            Err(RegistryErrorKind::FloorAhead { floor, now: NOW })
        );

        let until = NOW + seconds(599);
        let alive = fence(until).floor_for(WorkerId::new(0), &request());
        assert_eq!(alive, Err(RegistryErrorKind::InUse { last_report: seconds(1), until }));
    }

    #[test]
    fn the_holder_itself_goes_on_at_its_local_ceiling() {
        let fence = fence(NOW + seconds(600));
        let near = NOW + Duration::from_millis(700);

        assert_eq!(fence.floor_for(WorkerId::new(0), &with_memory(&fence, near)), Ok(near));
    }

    #[test]
    fn a_memory_counts_only_for_its_own_epoch_instance_and_file() {
        let fence = fence(NOW + seconds(600));
        let genuine = with_memory(&fence, NOW);
        let change = |change: fn(&mut Memory)| {
            let mut request = genuine.clone();
            change(request.memory.as_mut().unwrap());
            fence.floor_for(WorkerId::new(0), &request)
        };

        assert!(fence.floor_for(WorkerId::new(0), &genuine).is_ok());
        for refused in [
            change(|memory| memory.fence.epoch -= 1),
            change(|memory| memory.fence.instance = Uuid::from_u128(2)),
            change(|memory| memory.worker = 1),
            change(|memory| memory.lost = true),
            change(|memory| memory.origin = Origin::Copied),
        ] {
            assert!(matches!(refused, Err(RegistryErrorKind::InUse { .. })), "{refused:?}");
        }
    }

    /// A clone of the volume, whose original went on and reported.
    #[test]
    fn after_a_reboot_an_old_clone_is_a_stranger() {
        let at_the_clone = fence(NOW + seconds(600));
        let later = Fence { nonce: Uuid::new_v4(), ..at_the_clone.clone() };
        let mut request = with_memory(&at_the_clone, NOW);
        request.memory.as_mut().unwrap().origin = Origin::Uncertain;
        request.watched = Some((WorkerId::new(0), later.nonce));

        let refused = later.floor_for(WorkerId::new(0), &request);

        assert!(matches!(refused, Err(RegistryErrorKind::InUse { .. })), "{refused:?}");
    }

    /// A claim never lowers a ceiling, so the claim's own may be far above its floor.
    #[test]
    fn a_claim_found_again_starts_where_the_lease_before_ended() {
        let before = fence(NOW + seconds(86_400));
        let claim = with_memory(&before, NOW);
        let written = claim.next_fence(Some(&before), NOW);

        assert_eq!(written.floor_for(WorkerId::new(0), &claim), Ok(NOW));
    }

    /// The registry was restored from a backup, or somebody edited it.
    #[test]
    fn a_record_that_went_back_does_not_take_the_floor_along() {
        let back = fence(NOW - seconds(3600));
        let mut request = with_memory(&back, NOW + Duration::from_millis(800));
        for lost in [false, true] {
            request.memory.as_mut().unwrap().lost = lost;
            let floor = back.floor_for(WorkerId::new(0), &request);
            assert_eq!(floor, Ok(NOW + Duration::from_millis(800)));
        }
    }

    #[test]
    fn after_a_reboot_the_record_must_have_been_silent() {
        let fence = fence(NOW + seconds(600));
        let mut request = with_memory(&fence, NOW);
        request.memory.as_mut().unwrap().origin = Origin::Uncertain;
        let floor = |watched: Option<Uuid>| {
            let watched = watched.map(|nonce| (WorkerId::new(0), nonce));
            fence.floor_for(WorkerId::new(0), &ClaimRequest { watched, ..request.clone() })
        };

        let (worker, during) = (WorkerId::new(0), 2 * request.report_interval);
        let watch = RegistryErrorKind::Watch { worker, nonce: fence.nonce, during };
        assert_eq!(floor(None), Err(watch));
        assert_eq!(floor(Some(fence.nonce)), Ok(NOW));
        let mut by_an_earlier_attempt = request.clone();
        by_an_earlier_attempt.nonce = fence.nonce;
        by_an_earlier_attempt.watched = None;
        let watched_too = fence.floor_for(WorkerId::new(0), &by_an_earlier_attempt);
        assert!(matches!(watched_too, Err(RegistryErrorKind::Watch { .. })));
        let written_meanwhile = floor(Some(Uuid::new_v4()));
        assert!(matches!(written_meanwhile, Err(RegistryErrorKind::InUse { .. })));
    }

    #[test]
    fn nothing_below_the_least_floor_is_given() {
        let fence = fence(NOW - seconds(60));
        let mut request = with_memory(&fence, NOW - seconds(60));
        request.least_floor = NOW + Duration::from_millis(300);

        assert_eq!(fence.floor_for(WorkerId::new(0), &request), Ok(request.least_floor));

        request.least_floor = NOW + seconds(60);
        let refused = fence.floor_for(WorkerId::new(0), &request);
        assert!(matches!(refused, Err(RegistryErrorKind::FloorAhead { .. })));
    }

    #[test]
    fn a_released_id_is_free_at_once() {
        let released = Fence { state: FenceState::Released, ..fence(NOW - seconds(1)) };

        assert_eq!(released.floor_for(WorkerId::new(0), &request()), Ok(NOW - seconds(1)));
    }

    #[test]
    fn a_claim_whose_answer_was_lost_is_found_again() {
        let first = request();
        let floor = NOW + Duration::from_millis(800);

        let written = first.next_fence(Some(&fence(NOW)), floor);

        assert_eq!(written.floor_for(WorkerId::new(0), &first), Ok(floor));
        assert_eq!(
            first.next_fence(Some(&written), floor),
            written,
            "the same holder, not another"
        );
        assert!(
            written.floor_for(WorkerId::new(0), &request()).is_err(),
            "another claim is a stranger"
        );
    }

    /// A node that started from its file while the registry was away has issued ids since its
    /// claim was written, although it never saw the answer.
    #[test]
    fn what_was_issued_before_the_answer_came_stays_below_the_floor() {
        let before = fence(NOW);
        let mut claim = with_memory(&before, NOW);
        let written = claim.next_fence(Some(&before), NOW);
        claim.memory.as_mut().unwrap().local_ceiling = NOW + Duration::from_millis(700);

        let floor = written.floor_for(WorkerId::new(0), &claim);

        assert_eq!(floor, Ok(NOW + Duration::from_millis(700)));
    }

    #[test]
    fn a_claim_never_lowers_a_ceiling() {
        let before = fence(NOW + seconds(3600));

        let after = request().next_fence(Some(&before), NOW);

        assert_eq!((after.epoch, after.ceiling), (before.epoch + 1, before.ceiling));
    }

    #[test]
    fn another_layout_or_epoch_is_refused() {
        let epoch = ClaimRequest {
            layout: Layout::LEAF.with_epoch(UnixMillis::new(1_420_041_600_000)),
            ..request()
        };
        let retired = Fence { state: FenceState::Retired, ..fence(NOW) };

        assert!(matches!(
            fence(NOW).floor_for(WorkerId::new(0), &epoch),
            Err(RegistryErrorKind::OtherLayout { .. })
        ));
        assert_eq!(
            retired.floor_for(WorkerId::new(0), &request()),
            Err(RegistryErrorKind::Retired)
        );
    }

    #[test]
    fn a_hand_damaged_record_is_an_error() {
        let good = fence(NOW).encode();
        for damaged in ["", "{}", "null", &good.replace("held", "Held"), &good[..good.len() - 1]] {
            assert_eq!(*Fence::decode(damaged).unwrap_err().kind(), RegistryErrorKind::Damaged);
        }
    }
}
