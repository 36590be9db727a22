//! Stores on real servers, and load on them.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use leaf_core::{IdRange, Step, Tag};
use leaf_registry::{OpenStore, StoreOptions, StoreUrl};
use leaf_segment::{NewTag, TagStore};
use leaf_testkit::{MariaDb, Postgres, all_tags};
use tokio::task::spawn_blocking;

pub(crate) fn orders() -> Tag {
    Tag::parse("orders").unwrap()
}

pub(crate) fn step(size: i64) -> Step {
    Step::new(size).unwrap()
}

pub(crate) async fn open(url: &str, failover_margin: Option<i64>) -> OpenStore {
    let url: StoreUrl = url.parse().unwrap();
    url.open(Path::new("."), &StoreOptions { failover_margin }).await.unwrap()
}

pub(crate) async fn create(store: &OpenStore) {
    store.admin.apply().await.unwrap();
    store.store.create(&NewTag::sample()).await.unwrap();
    store.store.create(&NewTag::new(orders(), step(10))).await.unwrap();
}

/// Waits until a tag that was made on another node of the cluster has been replicated to this one.
pub(crate) async fn has_arrived(store: &dyn TagStore) {
    let arrived = async {
        while all_tags(&*store).await.is_ok_and(|tags| tags.is_empty()) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), arrived).await.unwrap();
}

/// The next range, within a minute.
pub(crate) async fn next(store: &dyn TagStore) -> IdRange {
    let deadline = tokio::time::Instant::now() + Duration::from_secs(60);
    loop {
        assert!(tokio::time::Instant::now() < deadline, "no range within a minute");
        let tag = orders();
        let attempt = store.allocate(&tag, step(10), step(10).into());
        match tokio::time::timeout(Duration::from_secs(3), attempt).await {
            Ok(Ok(range)) => return range,
            Ok(Err(error)) => assert!(error.retryable(), "{error}"),
            Err(_) => {}
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

pub(crate) fn overlaps(ranges: &mut [IdRange]) -> bool {
    ranges.sort_by_key(|range| range.start());
    ranges.windows(2).any(|pair| pair[0].overlaps(pair[1]))
}

/// A database on a server, with the means to change it behind the store's back.
pub(crate) enum Server {
    Mysql(Arc<MariaDb>, String),
    Postgres(Arc<Postgres>, String),
}

/// A user of a database.
pub(crate) struct User {
    /// The name in the form that SQL statements need.
    name: String,
    pub(crate) url: String,
}

impl Server {
    pub(crate) async fn both() -> [Self; 2] {
        let mysql = spawn_blocking(MariaDb::shared).await.unwrap();
        let postgres = spawn_blocking(Postgres::shared).await.unwrap();
        let (in_mysql, in_postgres) = (mysql.new_database(), postgres.new_database());
        [Self::Mysql(mysql, in_mysql), Self::Postgres(postgres, in_postgres)]
    }

    pub(crate) fn url(&self) -> String {
        match self {
            Self::Mysql(server, database) => MariaDb::url(server.port(), database),
            Self::Postgres(server, database) => Postgres::url(server.port(), database),
        }
    }

    /// Runs a statement as the administrator.
    pub(crate) async fn sql(&self, statement: &str) -> String {
        let statement = statement.to_owned();
        match self {
            Self::Mysql(server, database) => {
                let (server, database) = (Arc::clone(server), database.clone());
                let run = move || server.sql(&format!("USE {database}; {statement}"));
                spawn_blocking(run).await.unwrap()
            }
            Self::Postgres(server, database) => {
                let (server, database) = (Arc::clone(server), database.clone());
                spawn_blocking(move || server.sql(&database, &statement)).await.unwrap()
            }
        }
    }

    pub(crate) const fn is_mysql(&self) -> bool {
        matches!(self, Self::Mysql(..))
    }

    /// A new user without any right.
    pub(crate) async fn user(&self, name: &str) -> User {
        let (name, password, url) = match self {
            Self::Mysql(_, database) => {
                let name = format!("{name}_{database}");
                (format!("{name}@'127.0.0.1'"), format!("IDENTIFIED BY '{name}'"), name)
            }
            Self::Postgres(_, database) => {
                let name = format!("{name}_{database}");
                (name.clone(), format!("PASSWORD '{name}'"), name)
            }
        };
        self.sql(&format!("CREATE USER {name} {password}")).await;
        let url = self.url().replace("leaf:leaf", &format!("{url}:{url}"));
        User { name, url }
    }

    pub(crate) async fn grant(&self, rights: &str, table: &str, user: &User) {
        self.sql(&format!("GRANT {rights} ON {table} TO {}", user.name)).await;
    }

    pub(crate) async fn revoke(&self, rights: &str, table: &str, user: &User) {
        self.sql(&format!("REVOKE {rights} ON {table} FROM {}", user.name)).await;
    }

    /// Drops a user of MariaDB. Users of PostgreSQL have rights in a database that stays, so they
    /// remain until their server is removed.
    pub(crate) async fn drop_user(&self, user: User) {
        if self.is_mysql() {
            self.sql(&format!("DROP USER {}", user.name)).await;
        }
    }

    /// Changes the guard's row as if another server had allocated last.
    pub(crate) async fn another_server(&self) {
        self.sql("UPDATE leaf_guard SET server_uid = 'another'").await;
    }
}

/// Allocates on several stores at once until told to stop.
pub(crate) fn load(stores: &[Arc<dyn TagStore>]) -> impl AsyncFnOnce() -> Vec<IdRange> + use<> {
    let stop = Arc::new(AtomicBool::new(false));
    let tasks: Vec<_> = stores
        .iter()
        .map(|store| {
            let (store, stop) = (Arc::clone(store), Arc::clone(&stop));
            tokio::spawn(async move {
                let mut ranges = Vec::new();
                while !stop.load(Ordering::SeqCst) {
                    let tag = orders();
                    let attempt = store.allocate(&tag, step(10), step(10).into());
                    match tokio::time::timeout(Duration::from_secs(2), attempt).await {
                        Ok(Ok(range)) => ranges.push(range),
                        Ok(Err(error)) => {
                            assert!(error.retryable(), "{error}");
                            tokio::time::sleep(Duration::from_millis(5)).await;
                        }
                        Err(_) => {}
                    }
                }
                ranges
            })
        })
        .collect();
    async move || {
        stop.store(true, Ordering::SeqCst);
        let mut all = Vec::new();
        for task in tasks {
            all.extend(task.await.unwrap());
        }
        all
    }
}
