//! A `leaf-server` process.

use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, ExitStatus};
use std::time::Duration;

use tokio::time::Instant;

use crate::{HttpClient, Process, Response, require, wait_until};

/// A running server on free ports of 127.0.0.1.
#[derive(Debug)]
pub struct LeafServer {
    process: Process,
    ids: SocketAddr,
    redis: Option<SocketAddr>,
    grpc: Option<SocketAddr>,
    ops: SocketAddr,
}

impl LeafServer {
    /// Starts the binary with a data directory and more arguments, and waits until it is ready.
    ///
    /// # Panics
    /// When it ends or is not ready within 60 s; its output is in the text.
    #[must_use]
    pub fn start(binary: &str, data_dir: &Path, args: &[&str], env: &[(&str, String)]) -> Self {
        let mut server = Self::launch(binary, data_dir, args, env);
        server.wait_ready();
        server
    }

    /// Starts `program`, which runs the server: the last of `args` is the server's binary. Adds the
    /// data directory to its arguments and waits until the server is ready.
    ///
    /// # Panics
    /// When it ends or is not ready within 60 s.
    #[must_use]
    pub fn start_wrapped(program: &str, args: &[&str], data_dir: &Path) -> Self {
        let mut all: Vec<String> = args.iter().map(ToString::to_string).collect();
        all.extend(arguments(data_dir));
        let mut server = Self::listening(Process::start(program, &all, &[]));
        server.wait_ready();
        server
    }

    /// Starts the binary with a data directory and more arguments, and waits until it listens.
    ///
    /// # Panics
    /// When it ends before it listens.
    #[must_use]
    pub fn launch(binary: &str, data_dir: &Path, args: &[&str], env: &[(&str, String)]) -> Self {
        Self::listening(Self::process(binary, data_dir, args, env))
    }

    /// Starts the binary and waits until it listens, or until it ends before that.
    ///
    /// # Errors
    /// Its status and output, when it ends before it listens.
    ///
    /// # Panics
    /// When it does neither within 30 s.
    pub fn try_launch(
        binary: &str,
        data_dir: &Path,
        args: &[&str],
        env: &[(&str, String)],
    ) -> Result<Self, (ExitStatus, String)> {
        Self::try_listening(Self::process(binary, data_dir, args, env))
    }

    /// Makes the tables of a store in MySQL or PostgreSQL, and in them the sample tag.
    ///
    /// # Panics
    /// When either fails.
    pub fn make_tables(binary: &str, url: &str) {
        let directory = std::env::temp_dir();
        let args = ["schema", "--apply", "--segment-store", url];
        let mut schema = Self::process(binary, &directory, &args, &[]);
        let made = schema.wait(Duration::from_secs(30)).success();
        assert!(made, "{}", schema.output());
        Self::make_sample(url);
    }

    /// Makes the sample tag `leaf-segment-test` in the tables of a store in MySQL or PostgreSQL, by
    /// the client of the database.
    ///
    /// # Panics
    /// When that fails.
    pub fn make_sample(url: &str) {
        let insert = "INSERT INTO leaf_alloc (biz_tag, max_id, step, description) \
                      VALUES ('leaf-segment-test', 1, 2000, 'Test leaf Segment Mode Get Id')";
        let output = match url.strip_prefix("mysql://leaf:leaf@127.0.0.1:") {
            Some(place) => {
                let (port, database) = place.split_once('/').expect("port and database");
                Command::new(require("mariadb", "mariadb-client"))
                    .args(["--no-defaults", "--user=leaf", "--password=leaf", "--host=127.0.0.1"])
                    .args(["--port", port, "--execute", insert, database])
                    .output()
            }
            None => Command::new(require("psql", "postgresql-client"))
                .args(["--no-psqlrc", "--quiet", "--set=ON_ERROR_STOP=1", "--command", insert, url])
                .output(),
        };
        let output = output.expect("the client runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    fn listening(process: Process) -> Self {
        Self::try_listening(process)
            .unwrap_or_else(|(status, output)| panic!("leaf-server ended with {status}:\n{output}"))
    }

    fn try_listening(mut process: Process) -> Result<Self, (ExitStatus, String)> {
        let places = wait_until("leaf-server listens", Duration::from_secs(30), || {
            let output = process.output();
            if let Some(status) = process.ended() {
                return Some(Err((status, process.output())));
            }
            // The ops listener is told last.
            let (ids, ops) = (listener(&output, "ids")?, listener(&output, "ops")?);
            Some(Ok((ids, listener(&output, "redis"), listener(&output, "grpc"), ops)))
        });
        let (ids, redis, grpc, ops) = places?;
        Ok(Self { process, ids, redis, grpc, ops })
    }

    /// Starts the binary without waiting until it listens: for starts that are meant to fail.
    #[must_use]
    pub fn process(
        binary: &str,
        data_dir: &Path,
        args: &[&str],
        env: &[(&str, String)],
    ) -> Process {
        let mut all = arguments(data_dir);
        all.extend(args.iter().map(ToString::to_string));
        Process::start(binary, &all, env)
    }

    /// Waits until `/readyz` answers 200.
    ///
    /// # Panics
    /// When it ends or is not ready within 60 s; the text has what it printed.
    pub fn wait_ready(&mut self) {
        let late = Instant::now() + Duration::from_secs(60);
        wait_until("leaf-server is ready", Duration::from_secs(61), || {
            if let Some(status) = self.process.ended() {
                panic!("leaf-server ended with {status}:\n{}", self.process.output());
            }
            let output = || self.process.output();
            assert!(Instant::now() < late, "leaf-server is not ready:\n{}", output());
            let mut client = HttpClient::connect(self.ops).ok()?;
            client.request("GET", "/readyz").ok().filter(|answer| answer.status == 200)
        });
    }

    /// Waits until `/readyz` answers 503 with `text` in the body, and returns the body.
    ///
    /// # Panics
    /// When it does not within 30 s.
    #[must_use]
    pub fn not_ready(&self, text: &str) -> String {
        wait_until(&format!("{text:?} in /readyz"), Duration::from_secs(30), || {
            let mut client = HttpClient::connect(self.ops).ok()?;
            let answer = client.request("GET", "/readyz").ok()?;
            (answer.status == 503 && answer.body.contains(text)).then_some(answer.body)
        })
    }

    /// The address of the HTTP listener for ids.
    #[must_use]
    pub const fn ids(&self) -> SocketAddr {
        self.ids
    }

    /// The address of the listener for the Redis protocol.
    ///
    /// # Panics
    /// When the listener is off.
    #[must_use]
    pub const fn redis(&self) -> SocketAddr {
        self.redis.expect("the listener is on")
    }

    /// The address of the gRPC listener.
    ///
    /// # Panics
    /// When the listener is off, as it is by default.
    #[must_use]
    pub const fn grpc(&self) -> SocketAddr {
        self.grpc.expect("the listener is on")
    }

    /// The address of the ops listener (health and administration).
    #[must_use]
    pub const fn ops(&self) -> SocketAddr {
        self.ops
    }

    /// Its process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// How much memory it uses, in KiB.
    ///
    /// # Panics
    /// When it has ended.
    #[must_use]
    pub fn resident_kib(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid()));
        let status = status.expect("it runs");
        let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let number = resident.and_then(|text| text.split_whitespace().next()?.parse().ok());
        number.expect("a process has memory")
    }

    /// The process.
    pub fn process_mut(&mut self) -> &mut Process {
        &mut self.process
    }

    /// What it has printed so far.
    #[must_use]
    pub fn output(&self) -> String {
        self.process.output()
    }

    /// Sends a GET request to the ids listener, and returns the answer.
    ///
    /// # Panics
    /// When there is no answer.
    #[must_use]
    pub fn get(&self, path: &str) -> Response {
        HttpClient::once(self.ids, "GET", path)
    }

    /// Requests an id, and returns it.
    ///
    /// # Panics
    /// When the answer is not 200 with a number.
    #[must_use]
    pub fn id(&self, path: &str) -> i64 {
        let answer = self.get(path);
        assert_eq!(answer.status, 200, "{path}: {}", answer.body);
        answer.body.parse().unwrap_or_else(|_| panic!("{path}: not an id: {}", answer.body))
    }

    /// Sends a signal, like `HUP`.
    pub fn signal(&self, signal: &str) {
        self.process.signal(signal);
    }

    /// Sends SIGTERM and waits for the end.
    ///
    /// # Panics
    /// When it is still running after 20 s.
    pub fn stop(&mut self) -> ExitStatus {
        self.process.signal("TERM");
        self.process.wait(Duration::from_secs(20))
    }

    /// Kills it at once, as a crash would.
    pub fn kill(&mut self) {
        self.process.kill();
    }
}

/// The arguments that select free ports and this data directory.
fn arguments(data_dir: &Path) -> Vec<String> {
    let free = ["--http-listen", "--redis-listen", "--ops-listen"];
    let free = free.into_iter().flat_map(|flag| [flag, "127.0.0.1:0"]).chain(["--data-dir"]);
    let data_dir = data_dir.display().to_string();
    free.map(String::from).chain([data_dir]).collect()
}

/// The address behind `name` in the start-up text: `  ids        http://127.0.0.1:8080`.
fn listener(output: &str, name: &str) -> Option<SocketAddr> {
    let line = output.lines().find(|line| line.trim_start().starts_with(name))?;
    line.split_once("://")?.1.trim().parse().ok()
}
