//! An empty registry of every kind, on its real server.

use std::sync::Arc;
use std::time::Duration;

use leaf_core::{Layout, UnixMillis, WorkerId};
use leaf_registry::{OpenRegistry, RegistryKind, RegistryOptions, RegistryUrl};
use leaf_segment::{StoreError, StoreErrorKind};
use leaf_snowflake::{
    ClaimRequest, Fence, Identity, Lease, NodeSettings, Provenance, Registry, RegistryError,
    RegistryErrorKind, Report, SavedLease, UnknownFields, WorkerRecord,
};
use leaf_testkit::{Etcd, FaultProxy, MariaDb, Postgres, ZooKeeper, patiently};
use tokio::task::spawn_blocking;
use uuid::Uuid;
use zookeeper_client as zk;

pub(crate) const NOW: UnixMillis = UnixMillis::new(1_800_000_000_000);

pub(crate) fn seconds(n: u64) -> Duration {
    Duration::from_secs(n)
}

pub(crate) fn millis(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// The report of a holder at the time `NOW` that wants to issue up to `ceiling`.
pub(crate) fn report(ceiling: UnixMillis) -> Report {
    Report { now: NOW, tolerance: seconds(1), ceiling }
}

/// An empty registry, and what must live as long as it does.
pub(crate) struct Fixture {
    pub(crate) kind: RegistryKind,
    pub(crate) server: Server,
    pub(crate) options: RegistryOptions,
}

#[derive(Clone)]
pub(crate) enum Server {
    Sqlite(Arc<tempfile::TempDir>),
    Mysql(Arc<MariaDb>, String),
    Postgres(Arc<Postgres>, String),
    Etcd(Arc<Etcd>, String),
    ZooKeeper(Arc<ZooKeeper>),
}

pub(crate) async fn sqlite() -> Fixture {
    let server = Server::Sqlite(Arc::new(tempfile::tempdir().unwrap()));
    Fixture::on(server, RegistryKind::Store("sqlite")).await
}

pub(crate) async fn mysql() -> Fixture {
    let server = spawn_blocking(MariaDb::shared).await.unwrap();
    let database = server.new_database();
    Fixture::on(Server::Mysql(server, database), RegistryKind::Mysql).await
}

pub(crate) async fn postgres() -> Fixture {
    let server = spawn_blocking(Postgres::shared).await.unwrap();
    let database = server.new_database();
    Fixture::on(Server::Postgres(server, database), RegistryKind::Store("postgres")).await
}

pub(crate) async fn etcd() -> Fixture {
    let server = spawn_blocking(Etcd::shared).await.unwrap();
    let name = server.new_name();
    Fixture::on(Server::Etcd(server, name), RegistryKind::Store("etcd")).await
}

pub(crate) async fn zk_normal() -> Fixture {
    let server = spawn_blocking(ZooKeeper::shared).await.unwrap();
    Fixture::on(Server::ZooKeeper(server), RegistryKind::ZkNormal).await
}

pub(crate) async fn zk_recycle() -> Fixture {
    let server = spawn_blocking(ZooKeeper::shared).await.unwrap();
    Fixture::on(Server::ZooKeeper(server), RegistryKind::ZkRecycle).await
}

impl Server {
    pub(crate) fn port(&self) -> u16 {
        match self {
            Self::Sqlite(_) => 0,
            Self::Mysql(server, _) => server.port(),
            Self::Postgres(server, _) => server.port(),
            Self::Etcd(server, _) => server.ports()[0],
            Self::ZooKeeper(server) => server.ports()[0],
        }
    }

    /// The URL of this server's registry of kind `kind`, at this port.
    pub(crate) fn url(&self, kind: RegistryKind, port: u16) -> RegistryUrl {
        let url = match self {
            Self::ZooKeeper(_) => {
                let scheme = kind.to_string().replace('_', "-");
                format!("{scheme}://{}", ZooKeeper::address(&[port]))
            }
            Self::Sqlite(directory) => {
                format!("sqlite:{}", directory.path().join("leaf.db").display())
            }
            Self::Mysql(_, database) => MariaDb::url(port, database),
            Self::Postgres(_, database) => Postgres::url(port, database),
            Self::Etcd(_, name) => Etcd::url(&[port], name),
        };
        url.parse().unwrap()
    }
}

fn unreachable(error: &StoreError) -> bool {
    *error.kind() == StoreErrorKind::Unavailable
}

fn unreachable_registry(error: &RegistryError) -> bool {
    *error.kind() == RegistryErrorKind::Unavailable
}

impl Fixture {
    pub(crate) async fn on(server: Server, kind: RegistryKind) -> Self {
        let mut options = RegistryOptions::default();
        if let Server::ZooKeeper(server) = &server {
            options.name = server.new_name();
        }
        // A stranger's worker id is free once its ceiling has passed.
        options.recycle_after = Duration::ZERO;
        let fixture = Self { kind, server, options };
        if let Some(tables) = fixture.open().await.admin {
            patiently(unreachable, async || tables.apply().await).await.unwrap();
        }
        fixture
    }

    /// Another process's registry.
    pub(crate) async fn open(&self) -> OpenRegistry {
        self.open_with(&self.options).await
    }

    pub(crate) async fn open_with(&self, options: &RegistryOptions) -> OpenRegistry {
        let open = self.open_at(self.server.port(), options).await;
        // Connects. Without its tables a database refuses.
        let _ = patiently(unreachable_registry, async || open.registry.peers().await).await;
        open
    }

    async fn open_at(&self, port: u16, options: &RegistryOptions) -> OpenRegistry {
        let url = self.server.url(self.kind, port);
        url.open(std::path::Path::new("."), options).await.unwrap()
    }

    /// A registry behind a proxy.
    pub(crate) async fn behind_proxy(&self) -> (FaultProxy, OpenRegistry) {
        let server = std::net::SocketAddr::from(([127, 0, 0, 1], self.server.port()));
        let proxy = FaultProxy::start(server).await;
        let open = self.open_at(proxy.address().port(), &self.options).await;
        (proxy, open)
    }

    /// A node with a registry of its own.
    pub(crate) async fn node(&self, name: &str) -> Node {
        Node::on(self.open().await, name)
    }

    /// Whether this registry binds each worker id to one node.
    pub(crate) fn bound(&self) -> bool {
        matches!(self.kind, RegistryKind::ZkNormal | RegistryKind::Mysql)
    }

    pub(crate) async fn zookeeper(&self) -> zk::Client {
        let address = ZooKeeper::address(&[self.server.port()]);
        zk::Client::connector().connect(&address).await.unwrap()
    }

    /// `/snowflake/{name}{rest}`.
    pub(crate) fn path(&self, rest: &str) -> String {
        format!("/snowflake/{}{rest}", self.options.name)
    }

    /// Writes a record behind the registry's back; `None` deletes it.
    pub(crate) async fn tamper(&self, worker: WorkerId, content: Option<&str>) {
        match self.server.clone() {
            Server::ZooKeeper(_) => {
                let client = self.zookeeper().await;
                let path = self.path(&format!("/fence/{worker}"));
                match content {
                    Some(content) => {
                        client.set_data(&path, content.as_bytes(), None).await.map(|_| ()).unwrap();
                    }
                    None => client.delete(&path, None).await.unwrap(),
                }
            }
            Server::Etcd(server, name) => {
                let key = format!("/leaf/{name}/workers/{worker}");
                match content {
                    Some(content) => server.ctl(&["put", &key, content]),
                    None => server.ctl(&["del", &key]),
                };
            }
            _ => {
                let statement = match content {
                    Some(content) => format!(
                        "UPDATE leaf_worker_fence SET record = '{content}', nonce = 'x' \
                         WHERE worker_id = {worker}"
                    ),
                    None => format!("DELETE FROM leaf_worker_fence WHERE worker_id = {worker}"),
                };
                self.sql(&statement).await;
            }
        }
    }

    /// Makes a record that was deleted anew.
    pub(crate) async fn make(&self, worker: WorkerId, fence: &Fence) {
        let holder = Identity::parse("b:1").unwrap();
        let (fence, unknown) = (fence.clone(), UnknownFields::default());
        let record = WorkerRecord { address: holder.clone(), holder, fence, unknown };
        let content = record.encode();
        match &self.server {
            Server::ZooKeeper(_) => {
                let options = zk::CreateMode::Persistent.with_acls(zk::Acls::anyone_all());
                let path = self.path(&format!("/fence/{worker}"));
                self.zookeeper().await.create(&path, content.as_bytes(), &options).await.unwrap();
            }
            Server::Etcd(..) => self.tamper(worker, Some(&content)).await,
            _ => {
                let statement = format!(
                    "INSERT INTO leaf_worker_fence (worker_id, nonce, record, seen_at) \
                     VALUES ({worker}, 'y', '{content}', 0)"
                );
                self.sql(&statement).await;
            }
        }
    }

    pub(crate) async fn keep_a_copy(&self, worker: WorkerId) {
        if let Server::Etcd(server, name) = &self.server {
            let record = server.ctl(&[
                "get",
                "--print-value-only",
                &format!("/leaf/{name}/workers/{worker}"),
            ]);
            server.ctl(&["put", &format!("/copy/{name}"), &record]);
            return;
        }
        for table in self.worker_tables() {
            self.sql(&format!("CREATE TABLE copy_of_{table} AS SELECT * FROM {table}")).await;
        }
    }

    pub(crate) async fn put_the_copy_back(&self, worker: WorkerId) {
        if let Server::Etcd(server, name) = &self.server {
            let record = server.ctl(&["get", "--print-value-only", &format!("/copy/{name}")]);
            server.ctl(&["put", &format!("/leaf/{name}/workers/{worker}"), &record]);
            return;
        }
        for table in self.worker_tables() {
            self.sql(&format!("DELETE FROM {table}")).await;
            self.sql(&format!("INSERT INTO {table} SELECT * FROM copy_of_{table}")).await;
        }
    }

    fn worker_tables(&self) -> &'static [&'static str] {
        match self.server {
            Server::Mysql(..) => &["leaf_worker_fence", "leaf_workerid_alloc"],
            _ => &["leaf_worker_fence"],
        }
    }

    /// Runs a statement in the database; returns what MariaDB and PostgreSQL print.
    pub(crate) async fn sql(&self, statement: &str) -> String {
        let statement = statement.to_owned();
        match self.server.clone() {
            Server::Sqlite(directory) => {
                let path = directory.path().join("leaf.db");
                let options = sqlx::sqlite::SqliteConnectOptions::new().filename(path);
                let pool = sqlx::SqlitePool::connect_with(options).await.unwrap();
                sqlx::query(sqlx::AssertSqlSafe(statement)).execute(&pool).await.unwrap();
                pool.close().await;
                String::new()
            }
            Server::Mysql(server, database) => {
                let run = move || server.sql(&format!("USE {database}; {statement}"));
                spawn_blocking(run).await.unwrap()
            }
            Server::Postgres(server, database) => {
                spawn_blocking(move || server.sql(&database, &statement)).await.unwrap()
            }
            Server::Etcd(..) | Server::ZooKeeper(_) => panic!("speaks no SQL"),
        }
    }
}

/// One node: an identity and an instance.
pub(crate) struct Node {
    pub(crate) who: Identity,
    pub(crate) open: OpenRegistry,
    pub(crate) request: ClaimRequest,
}

impl Node {
    pub(crate) fn on(open: OpenRegistry, name: &str) -> Self {
        Self { who: Identity::parse(name).unwrap(), open, request: request() }
    }

    pub(crate) fn registry(&self) -> &Registry {
        &self.open.registry
    }

    /// Claims with this node's own request, made at `now`.
    pub(crate) async fn claim_at(&self, now: UnixMillis) -> Result<Lease, RegistryError> {
        let request = ClaimRequest { now, ..self.request.clone() };
        self.claim_by(&request).await
    }

    pub(crate) async fn claim_by(&self, request: &ClaimRequest) -> Result<Lease, RegistryError> {
        self.registry().claim(&self.who, request).await
    }

    /// A claim that must succeed.
    pub(crate) async fn claim(&self) -> Lease {
        patiently(unreachable_registry, async || self.claim_at(NOW).await).await.unwrap()
    }

    /// The request of this instance after a crash: its state file remembers `lease`.
    pub(crate) fn after_a_crash(&self, lease: &Lease, issued: UnixMillis) -> ClaimRequest {
        let saved = SavedLease {
            worker: lease.worker.get(),
            fence: lease.fence.clone(),
            local_ceiling: issued,
            lost: false,
            provenance: Provenance::Proven,
        };
        ClaimRequest { saved: Some(saved), nonce: Uuid::new_v4(), ..self.request.clone() }
    }
}

/// The claim of a new instance.
pub(crate) fn request() -> ClaimRequest {
    ClaimRequest {
        now: NOW,
        instance: Uuid::new_v4(),
        nonce: Uuid::new_v4(),
        layout: Layout::LEAF,
        saved: None,
        least_floor: UnixMillis::EPOCH,
        watched: Default::default(),
        offline_for: seconds(600),
        report_interval: seconds(3),
        tolerance: seconds(1),
        startup_wait: seconds(15),
    }
}

pub(crate) fn node_settings(now: UnixMillis) -> NodeSettings {
    let (offline_for, report_interval) = (seconds(600), seconds(3));
    NodeSettings {
        now,
        layout: Layout::LEAF,
        offline_for,
        report_interval,
        tolerance: seconds(1),
        dry_run: false,
    }
}

pub(crate) fn kind(result: Result<impl std::fmt::Debug, RegistryError>) -> RegistryErrorKind {
    result.expect_err("the registry must refuse this").kind().clone()
}
