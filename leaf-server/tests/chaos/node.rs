//! One server of the cluster, its clock, its disk, and the lines to its database and its registry.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use leaf_testkit::{FakeClock, Fault, FaultProxy, HttpClient, LeafServer};
use tokio::time::Instant;

const SERVER: &str = env!("CARGO_BIN_EXE_leaf-server");

/// How long a node that ended by itself is left alone.
pub(crate) const AGAIN: Duration = Duration::from_secs(1);

/// The address where clients find a node, and which process of which node it is; `None` while the
/// node is down.
pub(crate) type Address = Arc<Mutex<Option<(SocketAddr, (usize, usize))>>>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Link {
    Database,
    Registry,
}

pub(crate) struct Node {
    pub(crate) number: usize,
    server: Option<LeafServer>,
    pub(crate) address: Address,
    home: PathBuf,
    config: PathBuf,
    clock: FakeClock,
    /// When the clock is set right again.
    clock_until: Option<Instant>,
    /// When the node is started again.
    down_until: Option<Instant>,
    frozen_until: Option<Instant>,
    disk_full_until: Option<Instant>,
    /// Until when its log is left unread.
    unread_until: Option<Instant>,
    links: [(Vec<FaultProxy>, Option<Instant>); 2],
    /// How many processes there were, and how often its data directory was lost.
    lives: usize,
    directories: usize,
}

impl Node {
    pub(crate) fn new(
        number: usize,
        home: &Path,
        config: &str,
        database: Vec<FaultProxy>,
        registry: Vec<FaultProxy>,
    ) -> Self {
        let file = home.join(format!("{number}.toml"));
        std::fs::write(&file, config).expect("ours");
        let disk = home.join(number.to_string());
        std::fs::create_dir(&disk).expect("ours");
        let small = "size=4m,mode=755";
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", small, "leaf-chaos"])
            .arg(&disk)
            .status();
        assert!(mounted.is_ok_and(|status| status.success()), "a small disk can be mounted");
        Self {
            number,
            server: None,
            address: Address::default(),
            home: disk,
            config: file,
            clock: FakeClock::new(),
            clock_until: None,
            down_until: None,
            frozen_until: None,
            disk_full_until: None,
            unread_until: None,
            links: [(database, None), (registry, None)],
            lives: 0,
            directories: 0,
        }
    }

    fn data(&self) -> PathBuf {
        self.home.join(self.directories.to_string())
    }

    pub(crate) fn launch(&mut self) {
        // A start waits for its clock: what a wrong one does to a start is tested elsewhere.
        self.clock.set("+0");
        self.clock_until = None;
        let config = self.config.display().to_string();
        let args = ["--config", config.as_str()];
        let environment = self.clock.environment();
        let server = match LeafServer::try_launch(SERVER, &self.data(), &args, &environment) {
            Ok(server) => server,
            Err((status, output)) => {
                self.expect_reason(status, &output);
                return self.down(Instant::now() + AGAIN);
            }
        };
        let place = Some((server.ids(), (self.number, self.lives)));
        *self.address.lock().expect("no holder of this lock panics") = place;
        self.lives += 1;
        self.server = Some(server);
        self.down_until = None;
    }

    /// Its command line for another process.
    pub(crate) fn arguments(&self) -> Vec<String> {
        vec!["--config".into(), self.config.display().to_string()]
    }

    /// Ends faults whose time is over, and starts the server if it must run again.
    pub(crate) fn tick(&mut self, now: Instant, again: Duration) {
        let over = |until: Option<Instant>| until.is_some_and(|until| until <= now);
        if over(self.frozen_until) {
            self.thaw();
        }
        if over(self.clock_until) {
            self.clock.set("+0");
            self.clock_until = None;
        }
        if over(self.disk_full_until) {
            self.free_the_disk();
        }
        if over(self.unread_until) {
            if let Some(server) = &mut self.server {
                let waited = server.process_mut().unread_bytes();
                println!("           node {}: {waited} bytes of its log waited", self.number);
            }
            self.leave_its_log(None);
        }
        for (proxies, until) in &mut self.links {
            if over(*until) {
                proxies.iter().for_each(|proxy| proxy.set(Fault::None));
                *until = None;
            }
        }
        if let Some(server) = &mut self.server
            && let Some(status) = server.process_mut().ended()
        {
            let output = server.output();
            self.expect_reason(status, &output);
            self.down(now + again);
        }
        if over(self.down_until) {
            self.launch();
        }
    }

    /// Asserts that a node ended for a good reason: its disk did not allow a start, or a frozen
    /// process holds the lock of the SQLite file.
    fn expect_reason(&self, status: ExitStatus, output: &str) {
        let last = output.lines().last().unwrap_or_default();
        let reasons = ["No space", "disk", "database is locked"];
        let known = reasons.iter().any(|reason| last.contains(reason));
        let expected = status.code() == Some(1) && known;
        assert!(expected, "node {} ended with {status}: {last}", self.number);
    }

    /// Whether it lost its worker id and does not take another one: an operator has to look.
    pub(crate) fn is_lost(&self) -> bool {
        let output = self.server.as_ref().map(LeafServer::output).unwrap_or_default();
        output.contains("the ids of this lease stop")
    }

    /// Ends all faults.
    pub(crate) fn heal(&mut self) {
        self.thaw();
        self.clock.set("+0");
        self.clock_until = None;
        self.free_the_disk();
        self.leave_its_log(None);
        for (proxies, until) in &mut self.links {
            proxies.iter().for_each(|proxy| proxy.set(Fault::None));
            *until = None;
        }
    }

    pub(crate) fn runs(&self) -> bool {
        self.server.is_some() && self.frozen_until.is_none()
    }

    pub(crate) fn kill(&mut self, away: Duration, lose_data: bool) {
        if let Some(server) = &mut self.server {
            server.kill();
        }
        if lose_data {
            // Room for the next one.
            let _ = std::fs::remove_dir_all(self.data());
            self.directories += 1;
        }
        self.frozen_until = None;
        self.down(Instant::now() + away);
    }

    /// Ends it in order. What takes longer than this is killed, as an init system would.
    pub(crate) fn stop(&mut self, away: Duration) {
        self.thaw();
        if let Some(server) = &mut self.server {
            server.process_mut().signal("TERM");
            std::thread::sleep(Duration::from_millis(300));
            server.kill();
        }
        self.down(Instant::now() + away);
    }

    pub(crate) fn down(&mut self, until: Instant) {
        *self.address.lock().expect("no holder of this lock panics") = None;
        self.server = None;
        self.down_until = Some(until);
    }

    pub(crate) fn freeze(&mut self, length: Duration) {
        if let (Some(server), None) = (&mut self.server, self.frozen_until) {
            server.process_mut().signal("STOP");
            self.frozen_until = Some(Instant::now() + length);
            // The main loop may be waiting for the start of another node, which waits for the lock
            // of the SQLite file that this process holds. So a thread thaws it; the process may
            // have been killed by then.
            let pid = server.pid().to_string();
            std::thread::spawn(move || {
                std::thread::sleep(length);
                let _ = std::process::Command::new("kill").args(["-s", "CONT", &pid]).output();
            });
        }
    }

    fn thaw(&mut self) {
        if let (Some(server), Some(_)) = (&mut self.server, self.frozen_until.take()) {
            server.process_mut().signal("CONT");
        }
    }

    pub(crate) fn set_clock(&mut self, offset: &str, length: Duration) {
        self.clock.set(offset);
        self.clock_until = Some(Instant::now() + length);
    }

    /// Leaves its log unread, which fills the pipe, or reads it again.
    pub(crate) fn leave_its_log(&mut self, unread: Option<Duration>) {
        if let Some(server) = &mut self.server {
            server.process_mut().leave_unread(unread.is_some());
        }
        self.unread_until = unread.map(|length| Instant::now() + length);
    }

    /// Leaves no byte of its disk free.
    pub(crate) fn fill_the_disk(&mut self, length: Duration) {
        use std::io::Write;
        if let Ok(mut file) = std::fs::File::create(self.home.join("filler")) {
            let chunk = [0; 4096];
            while file.write_all(&chunk).is_ok() {}
        }
        self.disk_full_until = Some(Instant::now() + length);
    }

    fn free_the_disk(&mut self) {
        self.disk_full_until = None;
        // It is there only while the disk is full.
        let _ = std::fs::remove_file(self.home.join("filler"));
    }

    pub(crate) fn disturb(&mut self, link: Link, fault: Fault, length: Duration) {
        let (proxies, until) = &mut self.links[link as usize];
        proxies.iter().for_each(|proxy| proxy.set(fault));
        *until = Some(Instant::now() + length);
    }

    /// Sends its database connections, or its registry's, elsewhere.
    pub(crate) fn point(&self, link: Link, ports: &[u16]) {
        for (proxy, port) in self.links[link as usize].0.iter().zip(ports) {
            proxy.point_to(([127, 0, 0, 1], *port).into());
        }
    }

    /// Gives this node a copy of another one's data directory, taken while that is at work.
    pub(crate) fn copy_of(&mut self, other: &Self) -> bool {
        let copied = Command::new("cp").arg("-a").arg(other.data()).arg(self.data()).status();
        copied.is_ok_and(|status| status.success())
    }

    pub(crate) fn is_ready(&self) -> bool {
        self.server.as_ref().is_some_and(|server| {
            let asked = HttpClient::connect(server.ops());
            asked
                .and_then(|mut client| client.request("GET", "/readyz"))
                .is_ok_and(|ready| ready.body == "ready")
        })
    }

    pub(crate) fn describe(&self) -> String {
        match &self.server {
            Some(server) => format!("node {}: {}", self.number, server.output()),
            None => format!("node {} is down", self.number),
        }
    }
}
