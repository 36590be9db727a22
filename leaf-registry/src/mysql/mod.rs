//! Segments and worker ids in MySQL and MariaDB, in the tables of the Java programs.

mod dialect;
mod errors;
mod mirror;
mod risks;
mod server_name;

use std::sync::Arc;
use std::time::Duration;

use leaf_segment::StoreError;
use sqlx::mysql::MySqlConnectOptions;

pub(crate) use dialect::Mysql;

use crate::backend::Backend;
use crate::sql::connections::ServerPool;
use crate::sql::failover_guard::FailoverGuard;
use crate::sql::fences::SqlFences;
use crate::sql::store::SqlStore;
use crate::sql::url::{self, Address, Parameters, ServerOptions};
use crate::{OpenRegistry, OpenStore, RegistryKind, StoreOptions};

/// Describes MySQL and MariaDB as a store of segments and worker ids.
pub(crate) const BACKEND: Backend = Backend {
    schemes: &["mysql"],
    registry: RegistryKind::Mysql,
    check: |url| MYSQL.check_url::<MySqlConnectOptions>(url),
    show: url::redact,
    hosts: url::hosts,
    path: |_| None,
    open: |url, _, options| Box::pin(async move { Ok(OpenStore::of(store(url, options)?)) }),
    open_workers: |url, kind, _, options| {
        Box::pin(async move {
            let workers = fences(url, kind == RegistryKind::Mysql, options.report_interval)?;
            Ok(OpenRegistry::with_tables(workers, kind, options))
        })
    },
};

/// The parameters of a MySQL URL, named as in MySQL's own client.
pub(crate) const MYSQL: Parameters = Parameters {
    database: "MySQL",
    how: "mysql://user:password@host:3306/database",
    mode: "ssl-mode",
    modes: &["DISABLED", "PREFERRED", "REQUIRED", "VERIFY_CA", "VERIFY_IDENTITY"],
    verifying: &["VERIFY_CA", "VERIFY_IDENTITY"],
    ca: "ssl-ca",
    certificate: "ssl-cert",
    key: "ssl-key",
    others: &["charset", "collation", "socket", "statement-cache-capacity"],
};

/// Segments at `mysql://user:password@host:port/database`. Connects when it is first used.
fn store(url: &str, options: &StoreOptions) -> Result<SqlStore<Mysql>, StoreError> {
    let guard = Arc::new(FailoverGuard::new(options.failover_margin));
    Ok(SqlStore::new(ServerPool::new(MYSQL.options(url)?, &guard, 16), guard))
}

/// Worker ids in a MySQL or MariaDB database. `mirrored`: with mirrors in `leaf_workerid_alloc`,
/// for Java Leafs.
fn fences(
    url: &str,
    mirrored: bool,
    report_interval: Duration,
) -> Result<SqlFences<Mysql>, StoreError> {
    // This guard never jumps. `server_name::set` sets `@leaf_server` only if the guard has a
    // margin, and the fence statements compare that variable: hence the margin 0.
    let guard = Arc::new(FailoverGuard::new(Some(0)));
    // Two connections: a report and a claim may run at the same time.
    let pool = ServerPool::new(MYSQL.options(url)?, &guard, 2);
    let fences = SqlFences::new(pool, guard, dialect::FENCE_TABLES, report_interval);
    Ok(match mirrored {
        true => fences.mirrored(dialect::MIRRORED_TABLES, mirror::RANGE),
        false => fences,
    })
}

impl ServerOptions for MySqlConnectOptions {
    fn address(&self) -> Option<Address> {
        let over_tcp = self.get_socket().is_none();
        over_tcp.then(|| Address { host: self.get_host().into(), port: self.get_port() })
    }

    fn at_host(self, host: &str) -> Self {
        self.host(host)
    }

    fn has_database(&self) -> bool {
        self.get_database().is_some()
    }
}
