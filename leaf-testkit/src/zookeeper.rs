//! A private ZooKeeper, alone or an ensemble.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use tempfile::TempDir;

use crate::{Process, free_port, require, wait_until};

const JAR: &str = "/usr/share/java/zookeeper.jar";
const PACKAGE: &str = "zookeeper default-jre-headless";

/// One or three ZooKeeper servers on 127.0.0.1. Sessions may be as short as 1 s.
#[derive(Debug)]
pub struct ZooKeeper {
    members: Vec<Member>,
    /// Declared after `members`, so that the servers are killed before their directory is removed.
    _directory: TempDir,
    names: AtomicU32,
}

#[derive(Debug)]
struct Member {
    process: Mutex<Process>,
    client_port: u16,
    args: Vec<String>,
}

impl ZooKeeper {
    /// The single server that the tests of this process share while any of them holds it.
    ///
    /// # Panics
    /// When ZooKeeper is not installed or does not start.
    #[must_use]
    pub fn shared() -> Arc<Self> {
        static SHARED: Mutex<Weak<ZooKeeper>> = Mutex::new(Weak::new());
        // A test that panicked in here has said why; the next one tries again.
        let mut shared = SHARED.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        shared.upgrade().unwrap_or_else(|| {
            let server = Arc::new(Self::start(1));
            *shared = Arc::downgrade(&server);
            server
        })
    }

    /// Starts an ensemble of `members` servers.
    ///
    /// # Panics
    /// When ZooKeeper is not installed or does not start.
    #[must_use]
    pub fn start(members: usize) -> Self {
        assert!(
            Path::new(JAR).is_file(),
            "{JAR} is not there: run scripts/test, or\n  \
             apt-get install -y --no-install-recommends {PACKAGE}"
        );
        let directory = tempfile::Builder::new().prefix("leaf-zookeeper-").tempdir();
        let directory = directory.expect("a temporary directory");
        let ports: Vec<[u16; 3]> = (0..members).map(|_| [(); 3].map(|()| free_port())).collect();
        let ensemble: String = match members {
            1 => String::new(),
            _ => (ports.iter().enumerate())
                .map(|(number, [_, peer, election])| {
                    format!("server.{}=127.0.0.1:{peer}:{election}\n", number + 1)
                })
                .collect(),
        };
        let start = |(number, [client_port, ..]): (usize, &[u16; 3])| {
            let data = directory.path().join(format!("m{number}"));
            std::fs::create_dir(&data).expect("a writable directory");
            std::fs::write(data.join("myid"), (number + 1).to_string()).expect("ours");
            let file = directory.path().join(format!("m{number}.cfg"));
            let config = format!(
                "tickTime=500\ninitLimit=20\nsyncLimit=10\nminSessionTimeout=1000\n\
                 maxSessionTimeout=60000\ndataDir={}\nclientPort={client_port}\n\
                 clientPortAddress=127.0.0.1\nadmin.enableServer=false\nmaxClientCnxns=0\n\
                 4lw.commands.whitelist=*\n{ensemble}",
                data.display()
            );
            std::fs::write(&file, config).expect("ours");
            let args = [
                "-Xmx128m".to_owned(),
                "-XX:TieredStopAtLevel=1".into(),
                // The tests kill processes, not the machine, and share one disk: a slow sync would
                // end sessions.
                "-Dzookeeper.forceSync=no".into(),
                "-cp".into(),
                format!("/usr/share/java/slf4j-nop.jar:{JAR}"),
                "org.apache.zookeeper.server.quorum.QuorumPeerMain".into(),
                file.display().to_string(),
            ];
            let process = Mutex::new(run(&args));
            Member { process, client_port: *client_port, args: args.into() }
        };
        let members = ports.iter().enumerate().map(start).collect();
        let servers = Self { members, _directory: directory, names: AtomicU32::new(0) };
        servers.wait_for_answer();
        servers
    }

    /// The ports for clients on 127.0.0.1.
    #[must_use]
    pub fn ports(&self) -> Vec<u16> {
        self.members.iter().map(|member| member.client_port).collect()
    }

    /// The connection string of the servers at these ports, or of proxies in front of them.
    #[must_use]
    pub fn address(ports: &[u16]) -> String {
        let hosts: Vec<_> = ports.iter().map(|port| format!("127.0.0.1:{port}")).collect();
        hosts.join(",")
    }

    /// An unused name for a cluster of Leaf nodes.
    #[must_use]
    pub fn new_name(&self) -> String {
        format!("leaf-{}", self.names.fetch_add(1, Ordering::SeqCst))
    }

    /// Kills the server that leads, as a crash would, and returns its number.
    ///
    /// # Panics
    /// When there is no leader.
    pub fn crash_leader(&self) -> usize {
        let leads = |member: &Member| mode(member.client_port).as_deref() == Some("leader");
        let number = self.members.iter().position(leads).expect("one leads");
        self.process(number).kill();
        number
    }

    /// Starts a server that was killed.
    ///
    /// # Panics
    /// When there is no such server.
    pub fn start_again(&self, number: usize) {
        *self.process(number) = run(&self.members[number].args);
    }

    /// Sends every server a signal by name, like `STOP`.
    ///
    /// # Panics
    /// When one of them is gone.
    pub fn signal(&self, signal: &str) {
        for number in 0..self.members.len() {
            self.process(number).signal(signal);
        }
    }

    /// Kills all servers and starts them again on the same data and ports.
    ///
    /// # Panics
    /// When they do not come back.
    pub fn crash_and_restart(&self) {
        for number in 0..self.members.len() {
            self.process(number).kill();
            self.start_again(number);
        }
        self.wait_for_answer();
    }

    fn process(&self, number: usize) -> std::sync::MutexGuard<'_, Process> {
        self.members[number].process.lock().expect("no holder of this lock panics")
    }

    /// Waits until every member serves.
    ///
    /// # Panics
    /// When one has ended, or it takes longer than a minute.
    pub fn wait_for_answer(&self) {
        wait_until("ZooKeeper serves", Duration::from_secs(60), || {
            for number in 0..self.members.len() {
                let mut process = self.process(number);
                assert!(process.ended().is_none(), "ZooKeeper ended: {}", process.output());
            }
            self.members.iter().all(|member| mode(member.client_port).is_some()).then_some(())
        });
    }
}

/// The mode that a server reports: `standalone`, `leader` or `follower`; `None` while it does not
/// serve.
fn mode(port: u16) -> Option<String> {
    let mut connection = TcpStream::connect(("127.0.0.1", port)).ok()?;
    connection.set_read_timeout(Some(Duration::from_secs(1))).ok()?;
    connection.write_all(b"srvr").ok()?;
    let mut answer = String::new();
    connection.read_to_string(&mut answer).ok()?;
    answer.lines().find_map(|line| line.strip_prefix("Mode: ")).map(str::to_owned)
}

fn run(args: &[String]) -> Process {
    let program = require("java", PACKAGE);
    Process::start(&program.display().to_string(), args, &[])
}
