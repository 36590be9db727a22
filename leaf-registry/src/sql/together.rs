//! Allocations that share a transaction, for a database where a commit costs more than the writes
//! in it: the allocations that arrive during one transaction form the next one.
//!
//! Invariant: an allocation is answered only after its transaction's commit was answered. A caller
//! that stopped waiting before its turn is granted nothing.

use std::sync::{Mutex, MutexGuard};

use leaf_core::Tag;
use leaf_segment::store::Expected;
use leaf_segment::{StoreError, StoreErrorKind};
use tokio::sync::oneshot;

use super::connections::{Access, WorkError, run};
use super::dialect::Dialect;
use super::store::{SqlStore, Tried, operation};

/// How many allocations share a transaction at most.
const MOST: usize = 256;

/// The allocations that wait for the next transaction.
#[derive(Debug, Default)]
pub(super) struct Together {
    /// The holder of this lock allocates for all callers that wait.
    turn: tokio::sync::Mutex<()>,
    waiting: Mutex<Vec<Waiting>>,
}

#[derive(Debug)]
struct Waiting {
    tag: Tag,
    amount: i64,
    expected: Expected,
    answer: oneshot::Sender<Result<Tried, StoreError>>,
}

impl Together {
    fn waiting(&self) -> MutexGuard<'_, Vec<Waiting>> {
        self.waiting.lock().expect("no holder of this lock panics")
    }

    /// Takes up to `MOST` waiting allocations, without those whose callers have stopped waiting.
    fn next(&self) -> Vec<Waiting> {
        let mut waiting = self.waiting();
        waiting.retain(|waiting| !waiting.answer.is_closed());
        let most = waiting.len().min(MOST);
        waiting.drain(..most).collect()
    }
}

impl<D: Dialect> SqlStore<D> {
    /// Tries an allocation once, in one transaction with others that wait.
    pub(super) async fn try_together(
        &self,
        tag: &Tag,
        amount: i64,
        expected: Expected,
    ) -> Result<Tried, StoreError> {
        let (answer, mut tried) = oneshot::channel();
        self.together.waiting().push(Waiting { tag: tag.clone(), amount, expected, answer });
        let _turn = self.together.turn.lock().await;
        loop {
            match tried.try_recv() {
                Ok(tried) => return tried,
                Err(oneshot::error::TryRecvError::Empty) => {
                    self.try_all(self.together.next()).await
                }
                // Whoever had the turn was broken off: what became of it nobody knows.
                Err(oneshot::error::TryRecvError::Closed) => {
                    return Err(failed::<D>(StoreErrorKind::Unavailable, tag));
                }
            }
        }
    }

    async fn try_all(&self, all: Vec<Waiting>) {
        if all.len() > 1 {
            let what = format!("allocate {} tags in {}", all.len(), D::NAME);
            let done = run(&self.connections, Access::Write, what, async |connection| {
                let mut tried = Vec::with_capacity(all.len());
                for Waiting { tag, amount, expected, .. } in &all {
                    tried.push(
                        match self.try_allocate(connection, tag, *amount, *expected).await {
                            Ok(tried) => Ok(tried),
                            Err(WorkError::Refused(kind)) => Err(kind),
                            Err(error) => return Err(error),
                        },
                    );
                }
                Ok(tried)
            });
            match done.await {
                Ok(tried) => {
                    for (Waiting { tag, answer, .. }, tried) in all.into_iter().zip(tried) {
                        let _ = answer.send(tried.map_err(|kind| failed::<D>(kind, &tag)));
                    }
                    return;
                }
                Err(error) if error.retryable() => {
                    let cause = error.cause().map(ToString::to_string).unwrap_or_default();
                    for Waiting { tag, answer, .. } in all {
                        let error = failed::<D>(error.kind().clone(), &tag).because(cause.clone());
                        let _ = answer.send(Err(error));
                    }
                    return;
                }
                // It may be the fault of one of them: each finds out by itself.
                Err(_) => {}
            }
        }
        for Waiting { tag, amount, expected, answer } in all {
            let operation = operation::<D>("allocate", &tag);
            let tried = run(&self.connections, Access::Statement, operation, async |connection| {
                self.try_allocate(connection, &tag, amount, expected).await
            });
            let _ = answer.send(tried.await);
        }
    }
}

fn failed<D: Dialect>(kind: StoreErrorKind, tag: &Tag) -> StoreError {
    StoreError::new(kind, operation::<D>("allocate", tag))
}
