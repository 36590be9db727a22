//! Segments and worker ids in PostgreSQL.

mod dialect;
mod errors;

use std::sync::Arc;
use std::time::Duration;

use leaf_segment::StoreError;
use sqlx::postgres::PgConnectOptions;

pub(crate) use dialect::Postgresql;

use crate::backend::Backend;
use crate::sql::connections::ServerPool;
use crate::sql::failover_guard::FailoverGuard;
use crate::sql::fences::SqlFences;
use crate::sql::store::SqlStore;
use crate::sql::url::{self, Address, Parameters, ServerOptions};
use crate::{OpenRegistry, OpenStore, RegistryKind, StoreOptions};

/// Describes PostgreSQL as a store of segments and worker ids.
pub(crate) const BACKEND: Backend = Backend {
    schemes: &["postgres", "postgresql"],
    registry: RegistryKind::Store("postgres"),
    check: |url| POSTGRES.check_url::<PgConnectOptions>(url),
    show: url::redact,
    hosts: url::hosts,
    path: |_| None,
    open: |url, _, options| Box::pin(async move { Ok(OpenStore::of(store(url, options)?)) }),
    open_workers: |url, kind, _, options| {
        Box::pin(async move {
            let workers = fences(url, options.report_interval)?;
            Ok(OpenRegistry::with_tables(workers, kind, options))
        })
    },
};

/// The parameters of a PostgreSQL URL, named as in libpq.
pub(crate) const POSTGRES: Parameters = Parameters {
    database: "PostgreSQL",
    how: "postgres://user:password@host:5432/database",
    mode: "sslmode",
    modes: &["disable", "prefer", "require", "verify-ca", "verify-full"],
    verifying: &["verify-ca", "verify-full"],
    ca: "sslrootcert",
    certificate: "sslcert",
    key: "sslkey",
    others: &[
        "application_name",
        "dbname",
        "host",
        "options",
        "password",
        "port",
        "statement-cache-capacity",
        "user",
    ],
};

/// Segments at `postgres://user:password@host:port/database`. Connects when it is first used.
fn store(url: &str, options: &StoreOptions) -> Result<SqlStore<Postgresql>, StoreError> {
    let guard = Arc::new(FailoverGuard::new(options.failover_margin));
    Ok(SqlStore::new(ServerPool::new(POSTGRES.options(url)?, &guard, 16), guard))
}

/// Worker ids in a PostgreSQL database.
fn fences(url: &str, report_interval: Duration) -> Result<SqlFences<Postgresql>, StoreError> {
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

    fn has_database(&self) -> bool {
        self.get_database().is_some()
    }
}
