//! The failover guard: a store that answers as another server than before jumps ahead.
//!
//! A replica that is promoted may lack the last allocations of its primary. One row,
//! `leaf_guard(id = 1, server_uid)`, names the server that allocated last; every allocation has it as
//! a condition. Whoever meets another server than its own there advances every tag by the margin and
//! writes the new name, in one transaction. This bounds what a failover can lose to the margin; proof
//! is a quorum store.
//!
//! A name that is not there counts as another, too: the replica may not have got it. Only whoever makes
//! the table writes its own name without a jump.
//!
//! This file keeps what the backends share: whether the guard is on, and that one task of a process
//! jumps at a time, for as long as it takes. Their statements are their own.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

use leaf_core::IdRange;
use leaf_segment::{StoreError, StoreErrorKind};
use tokio::sync::Mutex;
use tokio::time::timeout;

/// How long a jump may take: it writes every tag.
const JUMP: Duration = Duration::from_secs(60);
/// A jump is at least so many of a tag's own steps.
pub(crate) const STEPS: i64 = 10;

const UNKNOWN: u8 = 0;
const ON: u8 = 1;
const NO_TABLE: u8 = 2;
/// There is no table for the guard, and the log has told it.
const TOLD: u8 = 3;

const NO_TABLE_TEXT: &str = "the failover guard is off, so that a failover may repeat ids: table \
     leaf_guard is not there, or this user may not SELECT and UPDATE it; make it with `leaf-server \
     schema --apply`, or set segment.failover_guard = false";

/// Whether allocations carry the condition, as the newest connection found it.
#[derive(Debug)]
pub(crate) struct FailoverGuard {
    margin: Option<i64>,
    state: AtomicU8,
    jumping: Arc<Mutex<()>>,
    /// How many jumps have ended well.
    jumps: Arc<AtomicU64>,
}

/// What a connection found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Found {
    /// The table is there, and the server has a name.
    Table,
    /// No table, or not the rights on it.
    NoTable,
}

/// What one try of an allocation came to.
#[derive(Debug)]
pub(crate) enum Tried {
    /// The new `max_id`.
    Granted(i64),
    /// The record does not allow it.
    Refused(StoreErrorKind),
    /// Nothing in the record forbids it: somebody has changed it meanwhile.
    Again,
    /// Another server has allocated last: jump by this margin first, and not on this connection, which
    /// others may be waiting for.
    OtherServer(i64),
}

impl FailoverGuard {
    /// A guard that jumps by `margin`; `None`: never on.
    pub(crate) fn new(margin: Option<i64>) -> Self {
        Self {
            margin,
            state: AtomicU8::new(UNKNOWN),
            jumping: Arc::default(),
            jumps: Arc::default(),
        }
    }

    /// By how much every tag would jump, whether or not the guard is on yet; `None`: it never is.
    pub(crate) const fn wanted(&self) -> Option<i64> {
        self.margin
    }

    /// By how much every tag jumps; `None` while the guard is off.
    pub(crate) fn margin(&self) -> Option<i64> {
        let order = Ordering::Relaxed;
        if self.state.compare_exchange(NO_TABLE, TOLD, order, order).is_ok() {
            tracing::warn!("{NO_TABLE_TEXT}");
        }
        self.margin.filter(|_| self.state.load(order) == ON)
    }

    /// What an operator should know while it is off although it is wanted.
    pub(crate) fn risk(&self) -> Option<String> {
        (self.wanted().is_some() && matches!(self.state.load(Ordering::Relaxed), NO_TABLE | TOLD))
            .then(|| NO_TABLE_TEXT.into())
    }

    /// Takes over what a new connection found.
    pub(crate) fn found(&self, found: Found) {
        let order = Ordering::Relaxed;
        match found {
            Found::Table => self.state.store(ON, order),
            // Once on it stays on: a replica that was promoted may not have got the table yet, and must
            // not be allocated from then.
            Found::NoTable => {
                let _ = self.state.compare_exchange(UNKNOWN, NO_TABLE, order, order);
            }
        }
    }

    /// Draws the conclusion from a try of an allocation of `amount` ids: the range, or none where it is
    /// worth another try, after a jump where another server has allocated last.
    pub(crate) async fn settle<J>(
        &self,
        tried: Tried,
        amount: i64,
        name: &(impl Fn() -> String + Sync),
        jump: impl FnOnce(i64) -> J + Send,
    ) -> Result<Option<IdRange>, StoreError>
    where
        J: Future<Output = Result<(), sqlx::Error>> + Send + 'static,
    {
        match tried {
            Tried::Granted(end) => {
                let range = IdRange::new(end.saturating_sub(amount), end);
                range.map(Some).ok_or_else(|| {
                    let why = format!("the server answered {end} to an addition of {amount}");
                    StoreError::new(StoreErrorKind::BadRecord(why), name())
                })
            }
            Tried::Refused(why) => Err(StoreError::new(why, name())),
            Tried::Again => Ok(None),
            Tried::OtherServer(margin) => match self.run(jump(margin)).await {
                Ok(()) => Ok(None),
                Err(error) => {
                    let what = "advance every tag after a failover";
                    Err(StoreError::new(StoreErrorKind::Unavailable, what).because(error))
                }
            },
        }
    }

    /// Runs a jump in a task of its own: a caller that leaves after its deadline does not undo it.
    async fn run(
        &self,
        jump: impl Future<Output = Result<(), sqlx::Error>> + Send + 'static,
    ) -> Result<(), sqlx::Error> {
        let (jumping, jumps) = (Arc::clone(&self.jumping), Arc::clone(&self.jumps));
        let before = jumps.load(Ordering::SeqCst);
        let task = tokio::spawn(async move {
            let _alone = jumping.lock().await;
            if jumps.load(Ordering::SeqCst) != before {
                // Another caller's jump was this one's, too.
                return Ok(Ok(()));
            }
            let result = timeout(JUMP, jump).await;
            if let Ok(Ok(())) = result {
                jumps.fetch_add(1, Ordering::SeqCst);
            }
            result
        });
        let late =
            || io::Error::new(io::ErrorKind::TimedOut, "the failover guard's jump took long");
        match task.await {
            Ok(Ok(result)) => result,
            Ok(Err(_)) => Err(late().into()),
            Err(panicked) => Err(io::Error::other(panicked).into()),
        }
    }

    /// Tells the operator that the server changed and every tag has jumped.
    pub(crate) fn tell_jump(before: &str, now: &str, margin: i64) {
        tracing::warn!(
            "the database was answered by server {before:?} and now is by {now:?} (a failover?): \
             every tag was advanced by {margin} or more"
        );
    }
}
