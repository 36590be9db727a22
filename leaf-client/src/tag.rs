//! The handle of a tag, whether its ids are leased, listed or in strict order.

use std::sync::Arc;

use leaf_core::{Id, IdRange, Tag};

use crate::error::{ClientError, ClientErrorKind};
use crate::in_turn::InTurn;
use crate::stock::Stock;

/// A tag, ready to hand out ids. Cheap to clone; keep it instead of asking for the tag again.
#[derive(Debug, Clone)]
pub struct TagHandle {
    pub(crate) tag: Tag,
    pub(crate) ids: TagIds,
}

/// How a handle gets the ids of its tag.
#[derive(Debug, Clone)]
pub(crate) enum TagIds {
    /// In leased ranges.
    Leased(leaf_segment::TagHandle),
    /// In lists ahead of callers.
    Listed(Arc<Stock>),
    /// Only when a caller wants one: ids in strict order.
    InTurn(Arc<InTurn>),
}

impl TagIds {
    /// Ends the handle, unless it uses leased ranges: such a handle ends with its generator.
    pub(crate) fn end(&self, why: ClientErrorKind) {
        match self {
            Self::Leased(_) => {}
            Self::Listed(stock) => stock.end(why),
            Self::InTurn(turns) => turns.end(why),
        }
    }
}

impl TagHandle {
    /// The tag.
    #[must_use]
    pub const fn tag(&self) -> &Tag {
        &self.tag
    }

    /// Takes the next id if one is in memory; never waits. If it returns `None`, ids are being
    /// fetched, so that a later call can succeed. For a tag in strict order it always returns
    /// `None`.
    #[inline]
    #[must_use]
    pub fn try_next(&self) -> Option<Id> {
        match &self.ids {
            TagIds::Leased(handle) => handle.try_next(),
            TagIds::Listed(stock) => stock.try_next(),
            TagIds::InTurn(_) => None,
        }
    }

    /// Takes the next id; at once while the stock lasts, else as soon as a server answers.
    ///
    /// # Errors
    /// `Unavailable` after the client's deadline. At once: `UnknownTag`, `Disabled`, `Changed`
    /// where the tag was made again, `Exhausted`, `Unauthorized`, `Refused`, `WentBack`, `Closed`.
    #[inline]
    pub async fn next(&self) -> Result<Id, ClientError> {
        match self.try_next() {
            Some(id) => Ok(id),
            None => self.next_later().await,
        }
    }

    #[cold]
    async fn next_later(&self) -> Result<Id, ClientError> {
        match &self.ids {
            TagIds::Leased(handle) => Ok(handle.next().await?),
            TagIds::Listed(stock) => stock.next().await,
            TagIds::InTurn(turns) => turns.next().await,
        }
    }

    /// Takes exactly `count` ids, as one or more ranges in increasing order, and waits where it
    /// must. If they are more than a segment holds, a separate range is leased, which may be above
    /// or below the ids that [`Self::next`] returns later.
    ///
    /// # Errors
    /// `BadCount` for 0 or more than the tag allows; `NoRanges` if the ids form no ranges, see
    /// [`Self::take_ids`]; else those of [`Self::next`]. Ids that were taken before an error are
    /// lost, which makes a gap.
    pub async fn take(&self, count: usize) -> Result<Vec<IdRange>, ClientError> {
        match &self.ids {
            TagIds::Leased(handle) => {
                let ranges = handle.take(count).await?.into_ranges();
                Ok(ranges.expect("only a plain tag has leases"))
            }
            TagIds::Listed(_) | TagIds::InTurn(_) => {
                let text = format!(
                    "tag {:?}: its ids are no ranges: take them one by one, or as a list with take_ids",
                    self.tag.as_str()
                );
                Err(ClientError::new(ClientErrorKind::NoRanges, text))
            }
        }
    }

    /// Takes exactly `count` ids as a list, whatever the kind of the tag, and waits where it must.
    /// The ids of a tag in strict order follow each other.
    ///
    /// # Errors
    /// The errors of [`Self::take`], except `NoRanges`.
    pub async fn take_ids(&self, count: usize) -> Result<Vec<Id>, ClientError> {
        match &self.ids {
            TagIds::Leased(handle) => Ok(handle.take(count).await?.collect()),
            TagIds::Listed(stock) => stock.take(count).await,
            TagIds::InTurn(turns) => turns.take(count).await,
        }
    }

    /// Fetches the first ids, so that the first caller need not wait. Takes none.
    ///
    /// # Errors
    /// The errors of [`Self::next`].
    pub async fn warm_up(&self) -> Result<(), ClientError> {
        match &self.ids {
            TagIds::Leased(handle) => Ok(handle.load().await?),
            TagIds::Listed(stock) => stock.load().await,
            TagIds::InTurn(_) => Ok(()),
        }
    }
}
