//! A private MariaDB server.

use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use tempfile::TempDir;

use crate::process::{from_template, is_root};
use crate::{Certificates, Process, free_port, require, wait_until};

const PACKAGE: &str = "mariadb-server-core mariadb-client-core";
/// A small size, because every server's data directory contains the redo log.
const LOG_SIZE: &str = "--innodb-log-file-size=16M";

/// Creates the user of the tests, without those rights of `ALL` that bypass `read_only`.
pub(crate) const LEAF_USER: &str = "CREATE USER leaf@'127.0.0.1' IDENTIFIED BY 'leaf'; \
     GRANT ALL ON *.* TO leaf@'127.0.0.1'; \
     REVOKE SUPER, READ_ONLY ADMIN ON *.* FROM leaf@'127.0.0.1'";

/// A MariaDB server with its own data directory and port.
#[derive(Debug)]
pub struct MariaDb {
    /// Declared before `directory`, so that the server is killed before its directory is removed.
    process: Mutex<Option<Process>>,
    directory: TempDir,
    port: u16,
    /// This server's additional command-line options.
    options: Vec<String>,
    environment: Vec<(&'static str, String)>,
    databases: AtomicU32,
}

impl MariaDb {
    /// The server that the tests of this process share while any of them holds it.
    ///
    /// # Panics
    /// When MariaDB is not installed or does not start.
    #[must_use]
    pub fn shared() -> Arc<Self> {
        static SHARED: Mutex<Weak<MariaDb>> = Mutex::new(Weak::new());
        // A test that panicked in here has said why; the next one tries again.
        let mut shared = SHARED.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        shared.upgrade().unwrap_or_else(|| {
            let server = Arc::new(Self::start());
            *shared = Arc::downgrade(&server);
            server
        })
    }

    /// Starts a server of one's own: for tests that stop or restart it.
    ///
    /// # Panics
    /// When MariaDB is not installed or does not start.
    #[must_use]
    pub fn start() -> Self {
        let server = Self::start_with(Vec::new());
        server.sql(LEAF_USER);
        server
    }

    /// Starts a primary with a replica that acknowledges its writes (semi-synchronous replication,
    /// with default settings except for a timeout of 500 ms).
    ///
    /// # Panics
    /// When MariaDB is not installed or does not start, or does not replicate.
    #[must_use]
    pub fn start_replicated() -> (Self, Self) {
        let (primary, replica) = std::thread::scope(|scope| {
            let replica = scope.spawn(Self::start_member);
            (Self::start_member(), replica.join().expect("it has said why"))
        });
        primary.sql(
            "SET GLOBAL rpl_semi_sync_master_timeout = 500; \
             SET GLOBAL rpl_semi_sync_master_enabled = 1",
        );
        replica.follow(primary.port);
        wait_until("the replica is attached", Duration::from_secs(30), || {
            let clients = primary.sql("SHOW STATUS LIKE 'Rpl_semi_sync_master_clients'");
            clients.ends_with('1').then_some(())
        });
        (primary, replica)
    }

    /// Starts a new replica of this server. This server must write a binary log, as those of
    /// `start_replicated` do.
    ///
    /// # Panics
    /// When MariaDB does not start.
    #[must_use]
    pub fn start_replica(&self) -> Self {
        let replica = Self::start_member();
        replica.follow(self.port);
        replica
    }

    /// Starts a server that writes a binary log from its first start, and whose user accounts are
    /// not replicated.
    fn start_member() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(1);
        let options = [
            format!("--server-id={}", NUMBER.fetch_add(1, Ordering::SeqCst)),
            "--log-bin=bin".into(),
            "--binlog-format=ROW".into(),
            "--gtid-strict-mode=1".into(),
            "--log-slave-updates=1".into(),
            "--sync-binlog=1".into(),
        ];
        let server = Self::start_with(options.to_vec());
        server.sql(&format!(
            "SET sql_log_bin = 0; {LEAF_USER}; \
             CREATE USER repl@'127.0.0.1' IDENTIFIED BY 'repl'; \
             GRANT REPLICATION SLAVE ON *.* TO repl@'127.0.0.1'"
        ));
        server
    }

    fn follow(&self, port: u16) {
        self.sql(&format!(
            "SET GLOBAL read_only = 1; SET GLOBAL rpl_semi_sync_slave_enabled = 1; \
             CHANGE MASTER TO master_host = '127.0.0.1', master_port = {port}, master_user = 'repl', \
             master_password = 'repl', master_use_gtid = slave_pos, master_connect_retry = 1; \
             START SLAVE"
        ));
    }

    /// Starts a server that takes connections by TLS, too.
    ///
    /// # Panics
    /// When MariaDB is not installed or does not start.
    #[must_use]
    pub fn start_with_tls(certificates: &Certificates) -> Self {
        Self::start_with(vec![
            format!("--ssl-cert={}", certificates.server().display()),
            format!("--ssl-key={}", certificates.server_key().display()),
        ])
    }

    fn start_with(options: Vec<String>) -> Self {
        let server = Self::prepare(options, Vec::new());
        server.install();
        server.launch(&[]);
        server.wait_for_answer();
        server
    }

    /// Prepares a server that has no data yet and does not run.
    pub(crate) fn prepare(options: Vec<String>, environment: Vec<(&'static str, String)>) -> Self {
        let directory = tempfile::Builder::new().prefix("leaf-mariadb-").tempdir();
        let directory = directory.expect("a temporary directory");
        // A starting server removes what it takes for leftovers from a shared one.
        std::fs::create_dir(directory.path().join("tmp")).expect("a writable directory");
        Self {
            process: Mutex::new(None),
            directory,
            port: free_port(),
            options,
            environment,
            databases: AtomicU32::new(0),
        }
    }

    /// Creates the server's data.
    pub(crate) fn install(&self) {
        from_template("mariadb", &self.data(), |data| {
            let install = Command::new(require("mariadb-install-db", PACKAGE))
                .args(["--no-defaults", "--auth-root-authentication-method=normal"])
                .args(["--skip-test-db", LOG_SIZE])
                .arg(format!("--datadir={}", data.display()))
                .env("TMPDIR", self.directory.path().join("tmp"))
                .args(as_root())
                .output()
                .expect("mariadb-install-db runs");
            let errors = String::from_utf8_lossy(&install.stderr);
            assert!(install.status.success(), "mariadb-install-db: {errors}");
        });
    }

    /// Starts the server on its data. `more`: options in addition to its own.
    pub(crate) fn launch(&self, more: &[&str]) {
        let options: Vec<String> =
            self.options.iter().cloned().chain(more.iter().map(ToString::to_string)).collect();
        let process = run(self.directory.path(), self.port, &options, &self.environment);
        *self.process.lock().expect("no holder of this lock panics") = Some(process);
    }

    /// Shuts the server down cleanly.
    pub(crate) fn stop(&self) {
        let mut process = self.process.lock().expect("no holder of this lock panics");
        let process = process.as_mut().expect("it runs");
        process.signal("TERM");
        process.wait(Duration::from_secs(60));
    }

    pub(crate) fn data(&self) -> PathBuf {
        self.directory.path().join("data")
    }

    /// The port on 127.0.0.1.
    #[must_use]
    pub const fn port(&self) -> u16 {
        self.port
    }

    /// Makes an empty database and returns its name.
    #[must_use]
    pub fn new_database(&self) -> String {
        let name = format!("leaf{}", self.databases.fetch_add(1, Ordering::SeqCst));
        self.sql(&format!("CREATE DATABASE {name}"));
        name
    }

    /// The URL of a database, at this server's port or at that of a proxy before it.
    #[must_use]
    pub fn url(port: u16, database: &str) -> String {
        format!("mysql://leaf:leaf@127.0.0.1:{port}/{database}")
    }

    /// Runs statements as root by the command line client and returns what it prints.
    ///
    /// # Panics
    /// When a statement fails.
    pub fn sql(&self, statements: &str) -> String {
        self.try_sql(statements).unwrap_or_else(|error| panic!("{statements}: {error}"))
    }

    fn try_sql(&self, statements: &str) -> Result<String, String> {
        let output = Command::new(require("mariadb", PACKAGE))
            .args(["--no-defaults", "--user=root", "--skip-column-names", "--batch"])
            .arg(format!("--socket={}", self.socket().display()))
            .args(["--execute", statements])
            .output()
            .expect("the client runs");
        if output.status.success() {
            Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
        } else {
            Err(String::from_utf8_lossy(&output.stderr).into_owned())
        }
    }

    /// Kills the server, as a crash would, and starts it again on the same data and port.
    ///
    /// # Panics
    /// When it does not come back.
    pub fn crash_and_restart(&self) {
        self.crash();
        self.restart();
    }

    /// Starts the server again after [`Self::crash`], on the same data and port.
    ///
    /// # Panics
    /// When it does not come back.
    pub fn restart(&self) {
        self.launch(&[]);
        self.wait_for_answer();
    }

    /// Kills the server, as a crash would.
    ///
    /// # Panics
    /// Never in practice: no holder of the lock panics.
    pub fn crash(&self) {
        let process = self.process.lock().expect("no holder of this lock panics").take();
        process.expect("it runs").kill();
    }

    pub(crate) fn wait_for_answer(&self) {
        let mut again = true;
        wait_until("MariaDB answers", Duration::from_secs(60), || {
            let mut process = self.process.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            if let Some(status) = process.as_mut().expect("it runs").ended() {
                drop(process);
                let log = std::fs::read_to_string(self.directory.path().join("err.log"));
                let log = log.unwrap_or_default();
                // This assertion failure in trx0purge.cc was seen once in 10.11.19, just after crash recovery. A
                // supervisor would restart the server, and so does this function.
                let crashed = log.contains("InnoDB: Assertion failure in file");
                assert!(crashed && again, "mariadbd ended with {status}: {log}");
                again = false;
                self.launch(&[]);
                return None;
            }
            drop(process);
            // Until somebody listens there is no use in a client.
            UnixStream::connect(self.socket()).ok()?;
            self.try_sql("SELECT 1").ok()
        });
    }

    fn socket(&self) -> PathBuf {
        self.directory.path().join("my.sock")
    }
}

fn run(directory: &Path, port: u16, options: &[String], environment: &[(&str, String)]) -> Process {
    let place = |name: &str| directory.join(name).display().to_string();
    let mut args = vec![
        "--no-defaults".into(),
        format!("--datadir={}", place("data")),
        format!("--socket={}", place("my.sock")),
        format!("--pid-file={}", place("my.pid")),
        format!("--log-error={}", place("err.log")),
        format!("--tmpdir={}", place("tmp")),
        format!("--port={port}"),
        "--bind-address=127.0.0.1".into(),
        "--innodb-flush-log-at-trx-commit=1".into(),
        "--innodb-buffer-pool-size=64M".into(),
        LOG_SIZE.into(),
        "--performance-schema=0".into(),
        "--skip-name-resolve=1".into(),
    ];
    args.extend(options.iter().cloned());
    args.extend(as_root());
    let program = require("mariadbd", PACKAGE);
    Process::start(&program.display().to_string(), &args, environment)
}

/// The option without which the server refuses to run as root; `None` if this process is not root.
fn as_root() -> Option<String> {
    is_root().then(|| "--user=root".into())
}
