//! An empty store of every kind, on its real server.

use std::sync::Arc;

use leaf_registry::{OpenStore, StoreOptions, StoreUrl};
use leaf_segment::{NewTag, StoreError, StoreErrorKind, TagStore};
use leaf_testkit::{Etcd, FaultProxy, MariaDb, Postgres, patiently};

/// An empty store, and what must live as long as it does.
pub(crate) struct Fixture {
    pub(crate) store: Arc<dyn TagStore>,
    pub(crate) open: OpenStore,
    pub(crate) url: String,
    pub(crate) database: Database,
}

#[derive(Clone)]
pub(crate) enum Database {
    Sqlite(Arc<tempfile::TempDir>),
    Mysql(Arc<MariaDb>, String),
    Postgres(Arc<Postgres>, String),
    Etcd(Arc<Etcd>, String),
}

pub(crate) async fn sqlite() -> Fixture {
    fixture(Database::Sqlite(Arc::new(tempfile::tempdir().unwrap()))).await
}

pub(crate) async fn mysql() -> Fixture {
    let server = tokio::task::spawn_blocking(MariaDb::shared).await.unwrap();
    let database = server.new_database();
    fixture(Database::Mysql(server, database)).await
}

pub(crate) async fn postgres() -> Fixture {
    let server = tokio::task::spawn_blocking(Postgres::shared).await.unwrap();
    let database = server.new_database();
    fixture(Database::Postgres(server, database)).await
}

pub(crate) async fn etcd() -> Fixture {
    let server = tokio::task::spawn_blocking(Etcd::shared).await.unwrap();
    let name = server.new_name();
    fixture(Database::Etcd(server, name)).await
}

pub(crate) async fn fixture(database: Database) -> Fixture {
    let url = database.url(database.port());
    let open = open(&url).await;
    let unreachable = |error: &StoreError| *error.kind() == StoreErrorKind::Unavailable;
    patiently(unreachable, async || open.admin.apply().await).await.unwrap();
    // A new SQLite file has it.
    match open.store.create(&NewTag::sample()).await {
        Err(error) if *error.kind() == StoreErrorKind::TagExists => {}
        made => made.unwrap(),
    }
    Fixture { store: Arc::clone(&open.store), open, url, database }
}

pub(crate) async fn open(url: &str) -> OpenStore {
    let url: StoreUrl = url.parse().unwrap();
    url.open(std::path::Path::new("."), &StoreOptions::default()).await.unwrap()
}

impl Database {
    /// The port of a server; 0 for a file.
    pub(crate) fn port(&self) -> u16 {
        match self {
            Self::Sqlite(_) => 0,
            Self::Mysql(server, _) => server.port(),
            Self::Postgres(server, _) => server.port(),
            Self::Etcd(server, _) => server.ports()[0],
        }
    }

    /// The URL at the server's port, or at that of a proxy before it.
    pub(crate) fn url(&self, port: u16) -> String {
        match self {
            Self::Sqlite(directory) => {
                format!("sqlite:{}", directory.path().join("leaf.db").display())
            }
            Self::Mysql(_, database) => MariaDb::url(port, database),
            Self::Postgres(_, database) => Postgres::url(port, database),
            Self::Etcd(_, name) => Etcd::url(&[port], name),
        }
    }
}

impl Fixture {
    /// A second store on the same database, as another process would open it.
    pub(crate) async fn another(&self) -> Arc<dyn TagStore> {
        open(&self.url).await.store
    }

    /// A store behind a proxy.
    pub(crate) async fn behind_proxy(&self) -> (FaultProxy, Arc<dyn TagStore>) {
        let server = std::net::SocketAddr::from(([127, 0, 0, 1], self.database.port()));
        let proxy = FaultProxy::start(server).await;
        let store = open(&self.database.url(proxy.address().port())).await.store;
        (proxy, store)
    }

    /// Writes a value into a row of a plain tag behind the store's back.
    pub(crate) async fn set(&self, name: &str, column: &str, value: impl Into<serde_json::Value>) {
        self.set_in(("segment", "leaf_alloc"), name, column, value.into()).await;
    }

    /// Writes a text into a row of any other tag.
    pub(crate) async fn set_in_sequences(&self, name: &str, column: &str, text: &str) {
        self.set_in(("sequence", "leaf_sequence"), name, column, text.into()).await;
    }

    async fn set_in(
        &self,
        (folder, table): (&str, &str),
        name: &str,
        column: &str,
        value: serde_json::Value,
    ) {
        if let Database::Etcd(server, cluster) = &self.database {
            let key = format!("/leaf/{cluster}/{folder}/{name}");
            let text = server.ctl(&["get", "--print-value-only", &key]);
            let mut record: serde_json::Value = serde_json::from_str(&text).unwrap();
            record[column] = value;
            server.ctl(&["put", "--", &key, &record.to_string()]);
            return;
        }
        let value = match value {
            serde_json::Value::String(text) => format!("'{text}'"),
            value => value.to_string(),
        };
        self.sql(&format!("UPDATE {table} SET {column} = {value} WHERE biz_tag = '{name}'")).await;
    }

    /// Changes rows of a database behind the store's back.
    pub(crate) async fn sql(&self, statement: &str) {
        let statement = statement.to_owned();
        match self.database.clone() {
            Database::Sqlite(_) => {
                let path = self.url.strip_prefix("sqlite:").unwrap();
                let options = sqlx::sqlite::SqliteConnectOptions::new().filename(path);
                let pool = sqlx::SqlitePool::connect_with(options).await.unwrap();
                sqlx::query(sqlx::AssertSqlSafe(statement)).execute(&pool).await.unwrap();
                pool.close().await;
            }
            Database::Mysql(server, database) => {
                let run = move || server.sql(&format!("USE {database}; {statement}"));
                tokio::task::spawn_blocking(run).await.unwrap();
            }
            Database::Postgres(server, database) => {
                let run = move || server.sql(&database, &statement);
                tokio::task::spawn_blocking(run).await.unwrap();
            }
            Database::Etcd(..) => panic!("etcd speaks no SQL"),
        }
    }
}
