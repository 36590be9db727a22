//! A private PostgreSQL server.

use std::net::TcpStream;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use tempfile::TempDir;

use crate::process::User;
use crate::{Certificates, Process, free_port, require, wait_until};

const PACKAGE: &str = "postgresql";

/// A PostgreSQL server with its own data directory and port.
#[derive(Debug)]
pub struct Postgres {
    /// Declared before `directory`, so that the server is killed before its directory is removed.
    process: Mutex<Process>,
    directory: TempDir,
    port: u16,
    databases: AtomicU32,
}

impl Postgres {
    /// The server that the tests of this process share while any of them holds it.
    ///
    /// # Panics
    /// When PostgreSQL is not installed or does not start.
    #[must_use]
    pub fn shared() -> Arc<Self> {
        static SHARED: Mutex<Weak<Postgres>> = Mutex::new(Weak::new());
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
    /// When PostgreSQL is not installed or does not start.
    #[must_use]
    pub fn start() -> Self {
        Self::start_filled(|_, _| {})
    }

    /// Starts a server that takes connections by TLS alone.
    ///
    /// # Panics
    /// When PostgreSQL is not installed or does not start.
    #[must_use]
    pub fn start_with_tls(certificates: &Certificates) -> Self {
        Self::start_filled(|user, data| {
            let copies =
                [(certificates.server(), "server.crt"), (certificates.server_key(), "server.key")];
            for (from, to) in copies {
                let copied = user
                    .command(&require("install", "coreutils"))
                    .args(["-m", "600"])
                    .args([from, data.join(to)])
                    .status();
                assert!(copied.expect("install runs").success(), "{to} can be copied");
            }
            let access =
                "local all all scram-sha-256\nhostssl all all 127.0.0.1/32 scram-sha-256\n";
            std::fs::write(data.join("pg_hba.conf"), access).expect("a writable directory");
            std::fs::write(data.join("postgresql.auto.conf"), "ssl = on\n").expect("the same");
        })
    }

    fn start_filled(more: impl FnOnce(&User, &std::path::Path)) -> Self {
        let server = Self::prepare(|user, data| {
            let password = data.with_file_name("password");
            std::fs::write(&password, "leaf").expect("a writable directory");
            let init = user
                .command(&require("initdb", PACKAGE))
                .args(["--username=leaf", "--auth=scram-sha-256", "--encoding=UTF8"])
                .args(["--no-locale", "--no-sync"])
                .arg(format!("--pwfile={}", password.display()))
                .arg(format!("--pgdata={}", data.display()))
                .output()
                .expect("initdb runs");
            assert!(init.status.success(), "initdb: {}", String::from_utf8_lossy(&init.stderr));
            more(user, data);
        });
        server.sql("postgres", "SELECT 1");
        server
    }

    /// Starts a replica that follows this server asynchronously.
    ///
    /// # Panics
    /// When it does not start.
    #[must_use]
    pub fn start_replica(&self) -> Self {
        let server = Self::prepare(|user, data| {
            let copy = user
                .command(&require("pg_basebackup", PACKAGE))
                .args(["--host=127.0.0.1", "--username=leaf", "--write-recovery-conf"])
                .args(["--checkpoint=fast", &format!("--port={}", self.port)])
                .arg(format!("--pgdata={}", data.display()))
                .env("PGPASSWORD", "leaf")
                .output()
                .expect("pg_basebackup runs");
            assert!(copy.status.success(), "{}", String::from_utf8_lossy(&copy.stderr));
        });
        server.sql("postgres", "SELECT 1");
        server
    }

    fn prepare(fill: impl FnOnce(&User, &std::path::Path)) -> Self {
        let directory = tempfile::Builder::new().prefix("leaf-postgres-").tempdir();
        let directory = directory.expect("a temporary directory");
        let user = User::unprivileged();
        let data = directory.path().join("data");
        user.make_directory(&data);
        fill(&user, &data);
        let port = free_port();
        let process = Mutex::new(run(&user, data, port));
        Self { process, directory, port, databases: AtomicU32::new(0) }
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
        self.sql("postgres", &format!("CREATE DATABASE {name}"));
        name
    }

    /// The URL of a database, at this server's port or at that of a proxy before it.
    #[must_use]
    pub fn url(port: u16, database: &str) -> String {
        format!("postgres://leaf:leaf@127.0.0.1:{port}/{database}")
    }

    /// Runs a statement by the command line client and returns what it prints. Waits for a server
    /// that is starting.
    ///
    /// # Panics
    /// When the statement fails.
    pub fn sql(&self, database: &str, statement: &str) -> String {
        wait_until("PostgreSQL answers", Duration::from_secs(60), || {
            // Until somebody listens there is no use in a client.
            if TcpStream::connect(("127.0.0.1", self.port)).is_err() {
                let mut process = self.process.lock().expect("no holder of this lock panics");
                assert!(process.ended().is_none(), "PostgreSQL ended: {}", process.output());
                return None;
            }
            let output = Command::new(require("psql", "postgresql-client"))
                .args(["--no-psqlrc", "--quiet", "--tuples-only", "--no-align"])
                .args(["--set=ON_ERROR_STOP=1", "--command", statement])
                .arg(Self::url(self.port, database))
                .output()
                .expect("the client runs");
            if output.status.success() {
                return Some(String::from_utf8_lossy(&output.stdout).trim().to_owned());
            }
            let error = String::from_utf8_lossy(&output.stderr);
            // psql ends with 2 when it has no connection.
            assert_eq!(output.status.code(), Some(2), "{statement}: {error}");
            let mut process = self.process.lock().expect("no holder of this lock panics");
            assert!(process.ended().is_none(), "PostgreSQL ended: {}", process.output());
            None
        })
    }

    /// Ends the server at once, without a checkpoint: the next start recovers as after a crash.
    ///
    /// # Panics
    /// When it does not end.
    pub fn crash(&self) {
        let mut process = self.process.lock().expect("no holder of this lock panics");
        // Unlike a kill it ends the server's children, too, which a new start would wait for.
        process.signal("QUIT");
        process.wait(Duration::from_secs(30));
    }

    /// Ends the server as a crash would, and starts it again on the same data and port.
    ///
    /// # Panics
    /// When it does not come back.
    pub fn crash_and_restart(&self) {
        self.crash();
        let data = self.directory.path().join("data");
        *self.process.lock().expect("no holder of this lock panics") =
            run(&User::unprivileged(), data, self.port);
        self.sql("postgres", "SELECT 1");
    }

    /// Cuts a replica off from its primary.
    ///
    /// # Panics
    /// When the replica is still connected after 30 s.
    pub fn stop_following(&self) {
        self.sql("postgres", "ALTER SYSTEM SET primary_conninfo = ''");
        self.sql("postgres", "SELECT pg_reload_conf()");
        wait_until("the replica is cut off", Duration::from_secs(30), || {
            (self.sql("postgres", "SELECT count(*) FROM pg_stat_wal_receiver") == "0").then_some(())
        });
    }

    /// Promotes a replica to a primary.
    ///
    /// # Panics
    /// When it does not become one.
    pub fn promote(&self) {
        self.sql("postgres", "SELECT pg_promote()");
        wait_until("the replica is a primary", Duration::from_secs(30), || {
            (self.sql("postgres", "SELECT pg_is_in_recovery()") == "f").then_some(())
        });
    }
}

impl Drop for Postgres {
    /// Stops the server with SIGQUIT, because a server that is killed leaves its shared memory
    /// behind.
    fn drop(&mut self) {
        let process = self.process.get_mut().unwrap_or_else(|poisoned| poisoned.into_inner());
        if process.ended().is_none() {
            process.signal("QUIT");
            process.wait(Duration::from_secs(30));
        }
    }
}

fn run(user: &User, data: PathBuf, port: u16) -> Process {
    let set = |setting: String| ["-c".to_owned(), setting];
    let mut args = vec!["-D".into(), data.display().to_string()];
    args.extend(set(format!("port={port}")));
    args.extend(set("listen_addresses=127.0.0.1".into()));
    args.extend(set(format!("unix_socket_directories={}", data.display())));
    args.extend(set("shared_buffers=32MB".into()));
    args.extend(set("max_connections=60".into()));
    let program = require("postgres", PACKAGE);
    Process::start_as(user, &program.display().to_string(), &args)
}
