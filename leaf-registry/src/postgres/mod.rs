//! Segments and worker ids in PostgreSQL.

mod dialect;
mod errors;

use std::sync::Arc;
use std::time::Duration;

use leaf_segment::StoreError;
use sqlx::postgres::PgConnectOptions;

pub(crate) use dialect::Postgresql;

use crate::StoreOptions;
use crate::sql::connections::ServerPool;
use crate::sql::failover_guard::FailoverGuard;
use crate::sql::fences::SqlFences;
use crate::sql::store::SqlStore;
use crate::sql::url::{Address, POSTGRES, ServerOptions};

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

impl ServerOptions for PgConnectOptions {
    fn address(&self) -> Option<Address> {
        let over_tcp = self.get_socket().is_none() && !self.get_host().starts_with('/');
        over_tcp.then(|| Address { host: self.get_host().into(), port: self.get_port() })
    }

    fn at_host(self, host: &str) -> Self {
        self.host(host)
    }
}
