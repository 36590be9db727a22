//! Look-ups of names that a generator does not have in memory: names that are asked for at the same
//! time are looked up together.
//!
//! Invariant: one look-up at a time, of a bounded number of names, so that neither a start with
//! 100,000 tags nor a flood of names becomes a flood of statements; and memory is bounded. After a
//! name that does not exist the look-ups pause, and for [`HOLDS`] the name is refused without a
//! request to the store: a tag that is made meanwhile is found after that time.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use leaf_core::Tag;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::handle::TagHandle;
use crate::store::MOST_RECORDS;
use crate::{SegmentError, SegmentErrorKind};

/// How many tags are read at a time. It leaves room in one statement for the records of their
/// families.
pub(crate) const PAGE: usize = MOST_RECORDS - 16;
/// How long a refusal is repeated without a look at the store.
const HOLDS: Duration = Duration::from_secs(1);
/// How many refused names are remembered.
const MOST_REFUSED: usize = 1000;
/// How many names wait at most.
const MOST_WAITING: usize = 10_000;
/// How long a look-up pauses after each name that yielded no tag: 10,000 such names a second.
pub(crate) const PAUSE: Duration = Duration::from_micros(100);

/// The result of a look-up: the handle of the tag, or why there is none.
pub(crate) type Answer = Result<TagHandle, SegmentError>;

/// The names that wait, and those that were refused a moment ago.
#[derive(Debug, Default)]
pub(crate) struct LookUps(Mutex<Names>);

#[derive(Debug, Default)]
struct Names {
    waiting: HashMap<Tag, Vec<oneshot::Sender<Answer>>>,
    /// The waiting names, in the order of their arrival.
    order: VecDeque<Tag>,
    /// Whether a task is running that looks up the waiting names.
    served: bool,
    refused: HashMap<Tag, (SegmentErrorKind, Instant)>,
}

/// A name, and who waits for it.
pub(crate) struct LookUp {
    pub(crate) tag: Tag,
    pub(crate) callers: Vec<oneshot::Sender<Answer>>,
}

/// The result of [`LookUps::ask`].
pub(crate) enum Asked {
    /// The name was refused recently, or too many names wait: there is no look-up.
    Refused(SegmentErrorKind),
    /// The name waits for a look-up, which sends the answer.
    Waits(oneshot::Receiver<Answer>),
    /// The name waits, and the caller must start the task that looks names up.
    IsFirst(oneshot::Receiver<Answer>),
}

impl LookUps {
    fn names(&self) -> MutexGuard<'_, Names> {
        // What it protects is in order after every statement.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues a name for a look-up, unless it is refused.
    pub(crate) fn ask(&self, tag: &Tag) -> Asked {
        let mut names = self.names();
        if let Some((why, since)) = names.refused.get(tag)
            && since.elapsed() < HOLDS
        {
            return Asked::Refused(why.clone());
        }
        let (caller, answer) = oneshot::channel();
        if let Some(callers) = names.waiting.get_mut(tag) {
            callers.push(caller);
        } else if names.waiting.len() >= MOST_WAITING {
            return Asked::Refused(SegmentErrorKind::TooManyNames);
        } else {
            names.waiting.insert(tag.clone(), vec![caller]);
            names.order.push_back(tag.clone());
        }
        match std::mem::replace(&mut names.served, true) {
            true => Asked::Waits(answer),
            false => Asked::IsFirst(answer),
        }
    }

    /// Takes the names that wait, as many as one look-up has room for. `None` if none waits: then
    /// the next caller of [`Self::ask`] must start the task again.
    pub(crate) fn next(&self) -> Option<Vec<LookUp>> {
        let mut names = self.names();
        let mut taken = Vec::new();
        while taken.len() < PAGE
            && let Some(tag) = names.order.pop_front()
        {
            let Some(mut callers) = names.waiting.remove(&tag) else { continue };
            // Nobody needs what was asked for by those who have left.
            callers.retain(|caller| !caller.is_closed());
            if !callers.is_empty() {
                taken.push(LookUp { tag, callers });
            }
        }
        names.served = !taken.is_empty();
        names.served.then_some(taken)
    }

    /// Drops all waiting names without an answer, because the task has ended.
    pub(crate) fn clear(&self) {
        let mut names = self.names();
        names.served = false;
        names.order.clear();
        let left = std::mem::take(&mut names.waiting);
        drop(names);
        drop(left);
    }

    /// Remembers a refusal: the store lacks the tag, or has it disabled, or its record cannot be
    /// used.
    pub(crate) fn refuse(&self, tag: Tag, why: SegmentErrorKind) {
        let mut names = self.names();
        if names.refused.len() >= MOST_REFUSED {
            names.refused.retain(|_, (_, since)| since.elapsed() < HOLDS);
        }
        if names.refused.len() < MOST_REFUSED {
            names.refused.insert(tag, (why, Instant::now()));
        }
    }

    /// Forgets a refusal, because the tag may exist by now.
    pub(crate) fn forget(&self, tag: &Tag) {
        self.names().refused.remove(tag);
    }
}
