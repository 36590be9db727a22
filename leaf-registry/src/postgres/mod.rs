//! Segments and worker ids in PostgreSQL.

mod dialect;
mod errors;

use std::sync::Arc;
use std::time::Duration;

use leaf_segment::StoreError;

pub(crate) use dialect::Postgresql;

use crate::StoreOptions;
use crate::sql::connections::ServerPool;
use crate::sql::failover_guard::FailoverGuard;
use crate::sql::fences::SqlFences;
use crate::sql::store::SqlStore;
use crate::sql::url::POSTGRES;

/// Segments at `postgres://user:password@host:port/database`. Connects when it is first used.
pub(crate) fn store(url: &str, options: &StoreOptions) -> Result<SqlStore<Postgresql>, StoreError> {
    let guard = Arc::new(FailoverGuard::new(options.failover_margin));
    Ok(SqlStore::new(ServerPool::new(POSTGRES.options(url)?, &guard, 16), guard))
}

/// Worker ids there.
pub(crate) fn fences(
    url: &str,
    report_interval: Duration,
) -> Result<SqlFences<Postgresql>, StoreError> {
    // No margin: PostgreSQL's statements ask the server for its name themselves, so connections
    // need not be prepared for it.
    let guard = Arc::new(FailoverGuard::new(None));
    // Two connections: a report and a claim may run at the same time.
    let pool = ServerPool::new(POSTGRES.options(url)?, &guard, 2);
    Ok(SqlFences::new(pool, guard, dialect::FENCE_TABLES, report_interval))
}
