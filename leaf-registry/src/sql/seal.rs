//! Sealing: from then on nothing is allocated from a tag in this database.
//!
//! Invariant: the row is locked from the reading of its `max_id` to the writing of the seal, so the
//! value that is told is the end of the last range that anybody was granted.

use std::time::Duration;

use leaf_core::Tag;
use leaf_segment::{SEALED, SealError, StoreError, StoreErrorKind};
use tokio::time::Instant;

use super::connections::{Access, WorkError, empty_if_absent, run};
use super::dialect::{Connection, Dialect};
use super::store::{SqlStore, no_row_if_tag_unencodable, operation};
use super::values::{Column, Value};
use crate::import::AFTER_FAILOVER;

/// For how long sealing is tried again after conflicts with allocations on other members of a
/// Galera cluster.
const SEAL_AGAIN_FOR: Duration = Duration::from_secs(10);
/// The longest pause between two tries.
const SEAL_PAUSE: Duration = Duration::from_millis(20);

impl<D: Dialect> SqlStore<D> {
    /// Seals a tag and tells its last `max_id`.
    pub(super) async fn seal(&self, tag: &Tag) -> Result<i64, SealError> {
        let (operation, mut max_id) = (operation::<D>("seal", tag), None);
        let sealed = run(
            &self.connections,
            Access::TransactionThenClose,
            operation.clone(),
            async |connection| self.seal_with_retries(connection, tag, &mut max_id).await,
        );
        match (sealed.await, max_id) {
            (Ok(true), Some(max_id)) => Ok(max_id),
            (Ok(_), _) => {
                let error = StoreError::new(StoreErrorKind::Unavailable, operation);
                Err(error.because(AFTER_FAILOVER).into())
            }
            // If the tag was sealed before, the number that was read is SEALED, which tells
            // nothing.
            (Err(error), max_id) => {
                Err(SealError { error, max_id: max_id.filter(|max_id| *max_id != SEALED) })
            }
        }
    }

    /// Seals a tag. Sets the argument `last_max_id` before the commit, so that the caller knows it
    /// even if the commit's answer is lost. `false` where another server has allocated last.
    async fn try_seal(
        &self,
        connection: &mut Connection<D>,
        tag: &Tag,
        last_max_id: &mut Option<i64>,
    ) -> Result<bool, WorkError> {
        let name = [Value::Tag(tag.as_str())];
        if let Some(begin) = D::BEGIN {
            D::run_text(connection, begin).await?;
        }
        let row = D::fetch(connection, D::ALLOC.lock, &name, &[Column::Int]).await;
        let (mut row, mut table) = (no_row_if_tag_unencodable::<D, _>(row)?, D::ALLOC);
        if row.is_empty() {
            let sequence = D::fetch(connection, D::SEQUENCE.lock, &name, &[Column::Int]).await;
            (row, table) = (empty_if_absent::<D, _>(sequence)?, D::SEQUENCE);
        }
        let Some(before) = row.first().and_then(|row| row.int(0)) else {
            Self::end(connection, "ROLLBACK").await?;
            return Err(WorkError::Refused(StoreErrorKind::UnknownTag));
        };
        let statement = match self.guard.active_margin() {
            Some(_) => table.replace_max_id_guarded,
            None => table.replace_max_id,
        };
        let values = [Value::Int(SEALED), Value::Tag(tag.as_str()), Value::Int(before)];
        let done = D::execute(connection, statement, &values).await?;
        let sealed = before == SEALED || D::affected(&done) > 0;
        if sealed {
            *last_max_id = Some(before);
        }
        Self::end(connection, if sealed { "COMMIT" } else { "ROLLBACK" }).await?;
        Ok(sealed)
    }

    /// Repeats [`Self::try_seal`] after conflicts; nothing is left of a try that lost.
    async fn seal_with_retries(
        &self,
        connection: &mut Connection<D>,
        tag: &Tag,
        last_max_id: &mut Option<i64>,
    ) -> Result<bool, WorkError> {
        if let Some(limit) = D::LIMIT_LOCKS {
            D::run_text(connection, limit).await?;
        }
        let begun = Instant::now();
        loop {
            let error = match self.try_seal(connection, tag, last_max_id).await {
                Err(WorkError::Database(error)) if (D::ERRORS.is_conflict)(&error) => error,
                sealed => return sealed,
            };
            *last_max_id = None;
            if begun.elapsed() > SEAL_AGAIN_FOR {
                return Err(error.into());
            }
            Self::end(connection, "ROLLBACK").await?;
            tokio::time::sleep(SEAL_PAUSE.mul_f64(fastrand::f64())).await;
        }
    }
}
