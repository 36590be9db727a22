//! Leased ranges: ids that leave this process whole, to be handed out elsewhere.
//!
//! Invariant: a leased range is one allocation in the store, asked for after the call began. So
//! whoever asks for one after the other gets rising ranges, whichever node each comes from. What
//! the holder did not use goes back by compare-and-set, and only from whom the range was leased:
//! the ticket proves it, once.

use std::collections::VecDeque;
use std::fmt;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;

use leaf_core::IdRange;
use tokio::sync::oneshot;

use super::store_client::StoreClient;
use super::tag_state::TagState;
use crate::meaning::Order;
use crate::{SegmentError, SegmentErrorKind, TagHandle};

/// How many leased ranges of a tag are remembered. Only the last ones in the store can go back, so
/// that more are of no use.
const REMEMBERED: usize = 16;

/// A range of ids that is its holder's alone, see [`TagHandle::lease`].
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct LeasedRange {
    /// The ids.
    pub range: IdRange,
    /// Whoever shows it to [`TagHandle::return_unused`] of the same process holds the range. It
    /// cannot be guessed.
    pub ticket: u64,
}

/// Without the ticket.
impl fmt::Debug for LeasedRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeasedRange").field("range", &self.range).finish_non_exhaustive()
    }
}

/// The ranges that were leased last.
#[derive(Debug, Default)]
pub(crate) struct Leased(VecDeque<Entry>);

/// How a tag stood before a range was granted, so that a range that goes back whole leaves no
/// trace: a mark that stayed would be above what the store grants next, where others gave ids back
/// as well.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Before {
    /// End of the last range that had been granted.
    pub(crate) granted_end: Option<i64>,
    /// One past the last id that had been handed out past the buffer.
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
    /// Remembers a range that was granted.
    pub(crate) fn remember(&mut self, range: IdRange, before: Before) -> u64 {
        // Keys of the operating system's random numbers: nobody outside can tell the ticket of a
        // range.
        let ticket = RandomState::new().hash_one((range.start(), range.end()));
        if self.0.len() == REMEMBERED {
            self.0.pop_front();
        }
        self.0.push_back(Entry { leased: LeasedRange { range, ticket }, before });
        ticket
    }

    /// Forgets the range of this ticket, if `unused` is the end of it.
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
    /// Leases `count` ids, to be handed out elsewhere: a range that was allocated in the store for
    /// this call, past the buffer of this handle. Of two calls, one after the other, the second
    /// yields the higher range, also when they go to different nodes.
    ///
    /// # Errors
    /// `StrictOrder` in a tag in strict order; else those of [`Self::take`].
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

    /// Gives the ids of a leased range back that its holder will not use: the end of the range.
    /// Tells whether it went back; `false` leaves a gap. It goes back only where nobody has
    /// allocated from the tag since, and this process remembers the range. A ticket is worth one
    /// call.
    ///
    /// # Errors
    /// `StoreDown` or `StoreRefused`. Then it is not known whether the ids went back; they are
    /// nobody's.
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

/// Takes the ids off what this process was granted, and tells where its mark belongs then; `None`
/// where it may not give them back.
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
