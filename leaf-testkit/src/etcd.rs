//! A private etcd cluster.

use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use tempfile::TempDir;

use crate::{Process, free_port, require, wait_until};

const PACKAGE: &str = "etcd-server etcd-client";

/// An etcd cluster of one or three members on 127.0.0.1.
#[derive(Debug)]
pub struct Etcd {
    members: Vec<Member>,
    /// The members' data. Declared after `members`, because fields are dropped in the order of
    /// their declaration: the processes are killed before their directory is removed.
    directory: TempDir,
    names: AtomicU32,
}

#[derive(Debug)]
struct Member {
    process: Mutex<Process>,
    client_port: u16,
    args: Vec<String>,
}

impl Etcd {
    /// The single member that the tests of this process share while any of them holds it.
    ///
    /// # Panics
    /// When etcd is not installed or does not start.
    #[must_use]
    pub fn shared() -> Arc<Self> {
        static SHARED: Mutex<Weak<Etcd>> = Mutex::new(Weak::new());
        // A test that panicked in here has said why; the next one tries again.
        let mut shared = SHARED.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        shared.upgrade().unwrap_or_else(|| {
            let server = Arc::new(Self::start(1));
            *shared = Arc::downgrade(&server);
            server
        })
    }

    /// Starts a cluster of `members` members.
    ///
    /// # Panics
    /// When etcd is not installed or does not start.
    #[must_use]
    pub fn start(members: usize) -> Self {
        let directory = tempfile::Builder::new().prefix("leaf-etcd-").tempdir();
        let directory = directory.expect("a temporary directory");
        let ports: Vec<_> = (0..members).map(|_| (free_port(), free_port())).collect();
        let cluster: Vec<_> = ports
            .iter()
            .enumerate()
            .map(|(number, (_, peer))| format!("m{number}=http://127.0.0.1:{peer}"))
            .collect();
        let start = |(number, (client, peer)): (usize, &(u16, u16))| {
            let url = |port: &u16| format!("http://127.0.0.1:{port}");
            let data = directory.path().join(format!("m{number}"));
            let args: Vec<String> = [
                ("name", format!("m{number}")),
                ("data-dir", data.display().to_string()),
                ("listen-client-urls", url(client)),
                ("advertise-client-urls", url(client)),
                ("listen-peer-urls", url(peer)),
                ("initial-advertise-peer-urls", url(peer)),
                ("initial-cluster", cluster.join(",")),
                ("initial-cluster-token", format!("leaf-test-{}", ports[0].1)),
                ("heartbeat-interval", "50".into()),
                ("election-timeout", "500".into()),
                ("quota-backend-bytes", "16777216".into()),
            ]
            .into_iter()
            .map(|(flag, value)| format!("--{flag}={value}"))
            .collect();
            let process = Mutex::new(run(&args));
            Member { process, client_port: *client, args }
        };
        let members = ports.iter().enumerate().map(start).collect();
        let cluster = Self { members, directory, names: AtomicU32::new(0) };
        cluster.wait_for_answer();
        cluster
    }

    /// The ports for clients on 127.0.0.1.
    #[must_use]
    pub fn ports(&self) -> Vec<u16> {
        self.members.iter().map(|member| member.client_port).collect()
    }

    /// An unused name for a cluster of Leaf nodes.
    #[must_use]
    pub fn new_name(&self) -> String {
        format!("leaf{}", self.names.fetch_add(1, Ordering::SeqCst))
    }

    /// Returns the URL of the Leaf cluster `name`, at the members' ports or at the ports of proxies
    /// in front of them.
    #[must_use]
    pub fn url(ports: &[u16], name: &str) -> String {
        let members: Vec<_> = ports.iter().map(|port| format!("127.0.0.1:{port}")).collect();
        format!("etcd://{}/{name}", members.join(","))
    }

    /// Runs the command line client and returns what it prints.
    ///
    /// # Panics
    /// When it fails.
    pub fn ctl(&self, args: &[&str]) -> String {
        self.try_ctl(args).unwrap_or_else(|error| panic!("etcdctl {args:?}: {error}"))
    }

    /// As [`ctl`](Self::ctl), but returns an error if the client fails.
    ///
    /// # Errors
    /// What the client prints when it fails.
    ///
    /// # Panics
    /// When it cannot be run.
    pub fn try_ctl(&self, args: &[&str]) -> Result<String, String> {
        let endpoints: Vec<_> =
            self.ports().iter().map(|port| format!("127.0.0.1:{port}")).collect();
        let output = Command::new(require("etcdctl", PACKAGE))
            .env("ETCDCTL_API", "3")
            .arg(format!("--endpoints={}", endpoints.join(",")))
            .args(["--dial-timeout=1s", "--command-timeout=10s"])
            .args(args)
            .output()
            .expect("the client runs");
        match output.status.success() {
            true => Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned()),
            false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
        }
    }

    /// Kills the member that leads, as a crash would, and returns its number.
    ///
    /// # Panics
    /// When there is no leader.
    pub fn crash_leader(&self) -> usize {
        let leader = self.leader();
        self.crash(leader);
        leader
    }

    /// Stops a member that does not lead: it accepts connections, and answers nothing.
    ///
    /// # Panics
    /// When there is no leader, or no other member.
    pub fn freeze_follower(&self) {
        let leader = self.leader();
        let follower = (0..self.members.len()).find(|member| *member != leader);
        let follower = &self.members[follower.expect("several members")];
        follower.process.lock().expect("no holder of this lock panics").signal("STOP");
    }

    /// The number of the member that leads.
    fn leader(&self) -> usize {
        let status = self.ctl(&["endpoint", "status", "--write-out=fields"]);
        let field = |name: &str| -> Vec<u64> {
            let values = status.lines().filter_map(|line| {
                line.strip_prefix(&format!("\"{name}\" : ")).and_then(|value| value.parse().ok())
            });
            values.collect()
        };
        let leader = field("Leader")[0];
        let number = field("MemberID").iter().position(|member| *member == leader);
        number.unwrap_or_else(|| panic!("no leader: {status}"))
    }

    /// Kills a member, as a crash would.
    ///
    /// # Panics
    /// When there is no such member.
    pub fn crash(&self, member: usize) {
        let mut process =
            self.members[member].process.lock().expect("no holder of this lock panics");
        process.kill();
    }

    /// Starts a member that was killed.
    ///
    /// # Panics
    /// When there is no such member.
    pub fn start_again(&self, member: usize) {
        let member = &self.members[member];
        *member.process.lock().expect("no holder of this lock panics") = run(&member.args);
    }

    /// Kills all members and starts them again on the same data and ports.
    ///
    /// # Panics
    /// When they do not come back.
    pub fn crash_and_restart(&self) {
        for (number, member) in self.members.iter().enumerate() {
            member.process.lock().expect("no holder of this lock panics").kill();
            self.start_again(number);
        }
        self.wait_for_answer();
    }

    /// Saves the state of a cluster of one member.
    ///
    /// # Panics
    /// When that fails.
    #[must_use]
    pub fn snapshot(&self) -> PathBuf {
        let file = self.directory.path().join(format!("snapshot-{}", free_port()));
        self.ctl(&["snapshot", "save", &file.display().to_string()]);
        file
    }

    /// Kills the only member, and starts it again with the state of a snapshot, as a new cluster
    /// with the cluster token `token`.
    ///
    /// # Panics
    /// When that fails, and where there are several members.
    pub fn restore(&self, snapshot: &Path, token: &str) {
        let [member] = &self.members[..] else { panic!("a cluster of one member") };
        self.crash(0);
        let flag = |name: &str| {
            let start = format!("--{name}=");
            member.args.iter().find_map(|arg| arg.strip_prefix(&start)).expect("it has the flag")
        };
        std::fs::remove_dir_all(flag("data-dir")).expect("its data can be removed");
        let mut restore = Command::new(require("etcdctl", PACKAGE));
        restore.env("ETCDCTL_API", "3").args(["snapshot", "restore"]).arg(snapshot);
        for name in ["name", "data-dir", "initial-cluster", "initial-advertise-peer-urls"] {
            restore.arg(format!("--{name}={}", flag(name)));
        }
        restore.arg(format!("--initial-cluster-token={token}"));
        let output = restore.output().expect("the client runs");
        assert!(output.status.success(), "{output:?}");
        self.start_again(0);
        self.wait_for_answer();
    }

    /// The token that the cluster was made with.
    ///
    /// # Panics
    /// Never: each member has it.
    #[must_use]
    pub fn token(&self) -> &str {
        let args = self.members[0].args.iter();
        let mut token = args.filter_map(|arg| arg.strip_prefix("--initial-cluster-token="));
        token.next().expect("it has the flag")
    }

    /// Waits until every member serves.
    ///
    /// # Panics
    /// When one has ended, or it takes longer than a minute.
    pub fn wait_for_answer(&self) {
        wait_until("etcd answers", Duration::from_secs(60), || {
            for member in &self.members {
                let mut process = member.process.lock().expect("no holder of this lock panics");
                assert!(process.ended().is_none(), "etcd ended: {}", process.output());
            }
            // Until all listen there is no use in a client.
            let listens = |port: &u16| TcpStream::connect(("127.0.0.1", *port)).is_ok();
            self.ports().iter().all(listens).then_some(())?;
            self.try_ctl(&["endpoint", "health"]).ok()
        });
    }
}

fn run(args: &[String]) -> Process {
    let program = require("etcd", PACKAGE);
    Process::start(&program.display().to_string(), args, &[])
}
