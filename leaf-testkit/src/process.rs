//! Child processes that never outlive the test.
//!
//! `setpriv --pdeathsig` lets the kernel kill a child when the thread that started it ends. Tests
//! run in threads that end early, so all children are started by one thread that lives as long as
//! the process.

use std::collections::BTreeSet;
use std::hash::{BuildHasher, RandomState};
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use tokio::time::Instant;

use crate::wait_until;

/// A running child; killed when dropped. Its output is collected.
#[derive(Debug)]
pub struct Process {
    child: Child,
    name: String,
    output: Arc<Mutex<Vec<String>>>,
    /// A duplicate of the reading end of the child's standard error.
    errors: OwnedFd,
    /// Whether the child's output is left unread in the pipes.
    unread: Arc<AtomicBool>,
}

impl Process {
    /// Starts `program` with these arguments and environment variables.
    ///
    /// # Panics
    /// When it cannot be started.
    #[must_use]
    pub fn start(program: &str, args: &[String], env: &[(&str, String)]) -> Self {
        Self::start_with(&[], program, args, env)
    }

    /// Starts a program as another user, where this process is root.
    pub(crate) fn start_as(user: &User, program: &str, args: &[String]) -> Self {
        Self::start_with(&user.setpriv(), program, args, &[])
    }

    fn start_with(
        setpriv: &[String],
        program: &str,
        args: &[String],
        env: &[(&str, String)],
    ) -> Self {
        let mut command = Command::new(require("setpriv", "util-linux"));
        command.args(setpriv).args(["--pdeathsig", "KILL", "--", program]).args(args);
        // Leaf tells of variables that it does not know, such as those for the tests.
        let ours = std::env::vars_os().map(|(name, _)| name);
        for name in ours.filter(|name| name.to_string_lossy().starts_with("LEAF_")) {
            command.env_remove(name);
        }
        command.envs(env.iter().map(|(name, value)| (name, value)));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child =
            spawn(command).unwrap_or_else(|error| panic!("{program} does not start: {error}"));
        let (output, unread) = (Arc::default(), Arc::default());
        let errors = child.stderr.take().expect("piped");
        let errors_again = errors.as_fd().try_clone_to_owned().expect("one more descriptor");
        // A page: one that nobody reads is full soon.
        let _ = rustix::pipe::fcntl_setpipe_size(&errors_again, 4096);
        collect(child.stdout.take().expect("piped"), &output, &unread);
        collect(errors, &output, &unread);
        Self { child, name: program.into(), output, errors: errors_again, unread }
    }

    /// If `unread` is set, stops reading the child's output, so that its pipes soon are full;
    /// otherwise reads it again. That simulates a log collector that hangs for a while.
    pub fn leave_unread(&self, unread: bool) {
        self.unread.store(unread, Ordering::SeqCst);
    }

    /// How many bytes of its standard error are unread in the pipe.
    #[must_use]
    pub fn unread_bytes(&self) -> u64 {
        rustix::io::ioctl_fionread(&self.errors).unwrap_or(0)
    }

    /// Its process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// What it has written so far, standard output and error together.
    #[must_use]
    pub fn output(&self) -> String {
        self.output.lock().expect("no holder of this lock panics").join("\n")
    }

    /// Sends a signal by name, like `TERM`.
    ///
    /// # Panics
    /// When there is no such process any more.
    pub fn signal(&self, signal: &str) {
        let sent = Command::new("kill").args(["-s", signal, &self.pid().to_string()]).status();
        assert!(sent.expect("kill runs").success(), "{} is gone\n{}", self.name, self.output());
    }

    /// Its exit status, if it has ended. What it wrote last is in [`output`](Self::output) then.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        let status = self.child.try_wait().expect("a child can be waited for")?;
        self.unread.store(false, Ordering::SeqCst);
        // A process that it started may keep the pipes open.
        let late = Instant::now() + Duration::from_secs(2);
        wait_until("the end of its output", Duration::from_secs(3), || {
            (Arc::strong_count(&self.output) == 1 || Instant::now() > late).then_some(())
        });
        Some(status)
    }

    /// Waits for its end.
    ///
    /// # Panics
    /// When it is still running after `limit`.
    pub fn wait(&mut self, limit: Duration) -> ExitStatus {
        let what = format!("the end of {}", self.name);
        wait_until(&what, limit, || self.ended())
    }

    /// Kills it at once, as a crash would.
    pub fn kill(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The user for servers that refuse to run as root.
#[derive(Debug)]
pub(crate) struct User(Option<(u32, u32)>);

impl User {
    /// Selects `nobody` if this process is root, else the user of this process.
    pub(crate) fn unprivileged() -> Self {
        Self(is_root().then_some((65534, 65534)))
    }

    fn setpriv(&self) -> Vec<String> {
        let Some((user, group)) = self.0 else { return Vec::new() };
        vec![format!("--reuid={user}"), format!("--regid={group}"), "--clear-groups".into()]
    }

    /// A command as this user.
    pub(crate) fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(require("setpriv", "util-linux"));
        command.args(self.setpriv()).arg("--").arg(program);
        command
    }

    /// Makes a directory that only this user may enter, and lets all users enter its parent.
    pub(crate) fn make_directory(&self, path: &Path) {
        use std::os::unix::fs::PermissionsExt;

        let parent = path.parent().expect("not the root");
        std::fs::set_permissions(parent, std::fs::Permissions::from_mode(0o755))
            .expect("the temporary directory is ours");
        std::fs::create_dir(path).expect("a writable directory");
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o700))
            .expect("the directory is ours");
        if let Some((user, group)) = self.0 {
            std::os::unix::fs::chown(path, Some(user), Some(group)).expect("root may do so");
        }
    }
}

/// Fills the data directory `to` of a server. `make` creates the content, in a directory that it
/// gets as its argument and that does not exist yet. If the variable `LEAF_TEST_TEMPLATES` names a
/// directory, `make` runs only once, and every server of every test program gets a copy.
pub(crate) fn from_template(name: &str, to: &Path, make: impl FnOnce(&Path)) {
    let Some(place) = std::env::var_os("LEAF_TEST_TEMPLATES").map(PathBuf::from) else {
        return make(to);
    };
    let template = place.join(name);
    let lock = std::fs::File::create(place.join(format!("{name}.lock")));
    let lock = lock.expect("a writable directory");
    lock.lock().expect("a file that can be locked");
    if !template.exists() {
        // One that was not finished is not used.
        let unfinished = tempfile::tempdir_in(&place).expect("a writable directory");
        let unfinished = unfinished.path().join(name);
        make(&unfinished);
        std::fs::rename(&unfinished, &template).expect("both are ours");
    }
    drop(lock);
    let copied = Command::new("cp").args(["-a", "--sparse=always"]).args([&template, to]).status();
    assert!(copied.expect("cp runs").success(), "{} can be copied", template.display());
}

/// Whether this process is root.
pub(crate) fn is_root() -> bool {
    use std::os::unix::fs::MetadataExt;

    std::fs::metadata("/proc/self").is_ok_and(|me| me.uid() == 0)
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

#[allow(clippy::disallowed_methods, reason = "a thread of its own")]
fn collect(
    from: impl std::io::Read + Send + 'static,
    into: &Arc<Mutex<Vec<String>>>,
    unread: &Arc<AtomicBool>,
) {
    let (into, unread) = (Arc::clone(into), Arc::clone(unread));
    std::thread::spawn(move || {
        for line in BufReader::new(from).lines().map_while(Result::ok) {
            into.lock().expect("no holder of this lock panics").push(line);
            while unread.load(Ordering::SeqCst) {
                std::thread::sleep(Duration::from_millis(10));
            }
        }
    });
}

type Request = (Command, Sender<std::io::Result<Child>>);

fn spawn(command: Command) -> std::io::Result<Child> {
    static SPAWNER: OnceLock<Mutex<Sender<Request>>> = OnceLock::new();
    let spawner = SPAWNER.get_or_init(|| {
        let (requests, inbox) = channel::<Request>();
        std::thread::spawn(move || {
            for (mut command, answer) in inbox {
                // Nobody waits for the answer only if the test has died.
                let _ = answer.send(command.spawn());
            }
        });
        Mutex::new(requests)
    });
    let (answer, result) = channel();
    let requests = spawner.lock().expect("no holder of this lock panics").clone();
    requests.send((command, answer)).expect("the spawner lives as long as the process");
    result.recv().expect("the spawner answers")
}

/// The number that a directory is named after, if any.
fn version_of(directory: &Path) -> Option<u32> {
    directory.file_name()?.to_str()?.parse().ok()
}

/// The path of an installed program.
///
/// # Panics
/// When it is not installed; the text says how to install it.
#[must_use]
pub fn require(program: &str, package: &str) -> PathBuf {
    let path = std::env::var_os("PATH").unwrap_or_default();
    // Debian keeps PostgreSQL's programs of several versions apart; its `psql` in the path is a
    // script that looks for them, and takes five times as long.
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let mut versions: Vec<_> = versions.map(|version| version.path()).collect();
    versions.sort_by_key(|directory| std::cmp::Reverse(version_of(directory)));
    let places = versions.into_iter().map(|version| version.join("bin"));
    let mut places =
        places.chain(std::env::split_paths(&path)).chain(["/usr/sbin".into(), "/sbin".into()]);
    places
        .find_map(|place| {
            let file = place.join(program);
            file.is_file().then_some(file)
        })
        .unwrap_or_else(|| {
            panic!(
                "{program} is not installed: run scripts/test, or\n  \
             apt-get install -y --no-install-recommends {package}"
            )
        })
}

/// A port of the loopback interface that nobody listens on. It is below the system's ephemeral
/// ports, so that no outgoing connection takes it before the server that it is for.
///
/// # Panics
/// When there is none.
#[must_use]
pub fn free_port() -> u16 {
    static GIVEN: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());
    let mut given = GIVEN.lock().expect("no holder of this lock panics");
    for attempt in 0..10_000u64 {
        // Tests run in many processes: each draws at random.
        let random = RandomState::new().hash_one(attempt) % 22_000;
        let port = 10_000 + u16::try_from(random).expect("below 22,000");
        if TcpListener::bind(("127.0.0.1", port)).is_ok() && given.insert(port) {
            return port;
        }
    }
    panic!("no port of 127.0.0.1 is free");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_words_are_read_before_the_end_is_told() {
        for _ in 0..50 {
            let args = ["-c".into(), "echo nothing works >&2; exit 1".into()];
            let mut process = Process::start("sh", &args, &[]);
            while process.ended().is_none() {}
            assert_eq!(process.output(), "nothing works");
        }
    }
}
