//! Leased ranges: whole ranges of ids that are handed out outside of this process.
//!
//! Invariant: a leased range is one allocation in the store, which begins after the call began. So
//! a client that leases one range after the other gets rising ranges, whichever nodes they come
//! from. Unused ids go back by compare-and-set, and only from the holder of the range, who must
//! show the ticket. A ticket can be used once.

use std::collections::VecDeque;
use std::fmt;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;

use leaf_core::IdRange;
use leaf_shape::Order;
use tokio::sync::oneshot;

use super::store_client::StoreClient;
use super::tag_state::TagState;
use crate::{SegmentError, SegmentErrorKind, TagHandle};

/// How many leased ranges of a tag are remembered. Only ranges at the end of what the store has
/// granted can go back: it is useless to remember more.
const REMEMBERED: usize = 16;

/// A range of ids that only its holder may hand out, see [`TagHandle::lease`].
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct LeasedRange {
    /// The ids.
    pub range: IdRange,
    /// The secret by which [`TagHandle::return_unused`], in the same process, recognizes the holder
    /// of the range. It cannot be guessed.
    pub ticket: u64,
}

/// Shows the range, and not the ticket, which is secret.
impl fmt::Debug for LeasedRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeasedRange").field("range", &self.range).finish_non_exhaustive()
    }
}

/// The ranges that were leased last.
#[derive(Debug, Default)]
pub(crate) struct Leased(VecDeque<Entry>);

/// The state of a tag before a range was granted. It is restored when the whole range goes back: a
/// mark that stayed up could be above the store's next range, if other nodes gave ids back as well.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Before {
    /// End of the last range that had been granted.
    pub(crate) granted_end: Option<i64>,
    /// One past the highest id that had been handed out without the buffer.
    pub(crate) direct_end: Option<i64>,
    /// The high-water mark.
    pub(crate) mark: Option<i64>,
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    leased: LeasedRange,
    before: Before,
}

impl Leased {
    /// Remembers a leased range, and returns its ticket.
    pub(crate) fn remember(&mut self, range: IdRange, before: Before) -> u64 {
        // The hash keys are random numbers of the operating system: nobody outside can compute the
        // ticket of a range.
        let ticket = RandomState::new().hash_one((range.start(), range.end()));
        if self.0.len() == REMEMBERED {
            self.0.pop_front();
        }
        self.0.push_back(Entry { leased: LeasedRange { range, ticket }, before });
        ticket
    }

    /// Removes and returns the range of this ticket, if `unused` is the end of it.
    fn redeem(&mut self, ticket: u64, unused: IdRange) -> Option<Entry> {
        let is_tail =
            |range: IdRange| range.end() == unused.end() && range.start() <= unused.start();
        let at = self
            .0
            .iter()
            .position(|entry| entry.leased.ticket == ticket && is_tail(entry.leased.range))?;
        self.0.remove(at)
    }
}

impl TagHandle {
    /// Leases `count` ids, to be handed out elsewhere: a range that is allocated in the store for
    /// this call, without the buffer of this handle. Of two successive calls the second one gets
    /// the higher range, even if they go to different nodes.
    ///
    /// # Errors
    /// `StrictOrder` in a tag in strict order; `NoRanges` if its ids form no ranges; else those of
    /// [`Self::take`].
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use leaf_core::IdRange;
    /// # use leaf_segment::{MemoryStore, NewTag, SegmentConfig, SegmentGenerator};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let store = Arc::new(MemoryStore::with_tags([NewTag::sample()]));
    /// # let segments = SegmentGenerator::open(store, SegmentConfig::default()).await;
    /// let orders = segments.tag("leaf-segment-test").await?;
    /// let leased = orders.lease(1000).await?;
    /// assert_eq!(leased.range.to_string(), "[1, 1001)");
    ///
    /// // 400 were used. Nobody allocated since, so the rest can go back.
    /// let unused = IdRange::new(401, 1001).ok_or("a range")?;
    /// assert!(orders.return_unused(leased.ticket, unused).await?);
    /// assert_eq!(orders.lease(1000).await?.range.start(), 401);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn lease(&self, count: usize) -> Result<LeasedRange, SegmentError> {
        if self.meaning().order == Order::Strict {
            return Err(SegmentError::new(SegmentErrorKind::StrictOrder, self.tag().as_str()));
        }
        self.check_ranges()?;
        let step = self.check_count(count)?;
        let direct = self.fetch(step, self.deadline()).await?;
        let ticket = self
            .state
            .control()
            .leased
            .get_or_insert_default()
            .remember(direct.range, direct.before);
        Ok(LeasedRange { range: direct.range, ticket })
    }

    /// Gives back the ids of a leased range that its holder will not use: the end of the range.
    /// Returns whether they went back; `false` leaves a gap. They go back only if nobody has
    /// allocated from the tag since, and this process remembers the range. A ticket is valid for
    /// one call.
    ///
    /// # Errors
    /// `StoreDown`, `StoreRefused` or `Deadline`. Then it is unknown whether the ids went back, and
    /// nobody may use them.
    pub async fn return_unused(&self, ticket: u64, unused: IdRange) -> Result<bool, SegmentError> {
        // A task of its own: a caller that leaves must not break off a request half-way.
        let (answer, returned) = oneshot::channel();
        let state = Arc::clone(&self.state);
        self.state.store_client.spawn(async move {
            // The caller may have left.
            let _ = answer.send(give_back(&state, ticket, unused).await);
        });
        match tokio::time::timeout_at(self.deadline(), returned).await {
            Ok(Ok(returned)) => returned,
            // The generator was closed.
            Ok(Err(_)) => Ok(false),
            Err(_) => Err(self.state.deadline_error()),
        }
    }
}

async fn give_back(
    state: &Arc<TagState>,
    ticket: u64,
    unused: IdRange,
) -> Result<bool, SegmentError> {
    // No request may be on its way while the mark sinks that its answer is judged by.
    let _turn = state.fetch_turn.lock().await;
    let Some(issued_end) = forget(state, ticket, unused) else { return Ok(false) };
    let StoreClient { store, config, permits, .. } = &*state.store_client;
    if let Err(error) = config.marks.lower(&state.tag, unused.end(), issued_end).await {
        tracing::warn!(tag = ?state.tag.as_str(), "{error}; a leased range stays taken");
        return Ok(false);
    }
    let _permit = permits.acquire().await.expect("the semaphore is never closed");
    let request = store.give_back(&state.tag, state.generation(), unused);
    let returned = state.store_client.ask("give back a leased range", request).await;
    returned.map_err(|error| SegmentError::of_store(&state.tag, error.into()))
}

/// Subtracts the ids from what this process was granted, and returns the value to which the mark
/// must be lowered; `None` if they may not be given back.
fn forget(state: &TagState, ticket: u64, unused: IdRange) -> Option<i64> {
    let mut control = state.control();
    let entry = control.leased.as_mut()?.redeem(ticket, unused)?;
    // Else something was granted since, or the record cannot be trusted.
    let is_last = control.granted_end == Some(unused.end());
    let sound = control.ended.is_none() && !control.suspect();
    if !is_last || !sound {
        return None;
    }
    let used = unused.start() > entry.leased.range.start();
    let end = Some(unused.start());
    let now = match used {
        true => Before { granted_end: end, direct_end: end, mark: end },
        false => entry.before,
    };
    (control.granted_end, control.direct_end) = (now.granted_end, now.direct_end);
    Some(now.mark.unwrap_or(0))
}
