//! The guard: a process that ends the command where `leaf worker run` cannot, because it is frozen or
//! was killed.
//!
//! It reads lines `PID IS_GROUP MILLIS` from its standard input: what to kill, and from when on. It
//! kills when that moment has come, or when its input ends without `done`.

use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::process::{ChildStdin, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result};
use leaf_core::{Clock as _, UnixMillis};
use leaf_snowflake::SystemClock;
use rustix::process::Pid;
use tokio::io::{AsyncBufReadExt as _, BufReader};

use super::child::{self, Child, MYSELF};

/// How often the guard looks at the clock.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// How much later than `leaf worker run` the guard kills.
const LATER: Duration = Duration::from_millis(150);
/// The last line.
const DONE: &str = "done";

/// What the guard is to kill: a process id, whether it stands for its group, and from when on.
type Order = (Pid, bool, UnixMillis);

/// The guard, as `leaf worker run` sees it.
pub(super) struct Guard {
    process: std::process::Child,
    input: ChildStdin,
    told: Option<Order>,
}

impl Guard {
    /// Starts one.
    pub(super) fn start() -> Result<Self> {
        let mut process = Command::new(MYSELF)
            .args(["worker", "guard"])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            // Ctrl-C is not for it.
            .process_group(0)
            .spawn()
            .context("start the guard")?;
        let input = process.stdin.take().context("the guard's input")?;
        Ok(Self { process, input, told: None })
    }

    /// Starts another one where it was killed.
    pub(super) fn revive(&mut self) -> Result<()> {
        let alive = rustix::process::test_kill_process(pid_of(&self.process)?).is_ok();
        if !alive {
            *self = Self::start()?;
        }
        Ok(())
    }

    /// Tells it what to kill from when on.
    pub(super) fn tell(&mut self, child: &Child, at: UnixMillis) {
        let (pid, group) = child.target();
        let order = (pid, group, at);
        if self.told == Some(order) {
            return;
        }
        let line = format!("{} {group} {}\n", pid.as_raw_pid(), (at + LATER).get());
        // One that is gone is noticed, and replaced.
        if self.input.write_all(line.as_bytes()).is_ok() {
            self.told = Some(order);
        }
    }

    /// The command has ended.
    pub(super) fn dismiss(mut self) {
        let _ = self.input.write_all(DONE.as_bytes());
    }
}

fn pid_of(process: &std::process::Child) -> Result<Pid> {
    i32::try_from(process.id()).ok().and_then(Pid::from_raw).context("a process id")
}

/// Does the guard's work, until its input ends.
///
/// # Errors
/// None.
pub(crate) async fn guard() -> Result<crate::Done> {
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    let mut looks = tokio::time::interval(LOOK_EVERY);
    let mut order: Option<Order> = None;
    loop {
        tokio::select! {
            _ = looks.tick() => match order {
                Some((pid, group, at)) if SystemClock.wall_millis() >= at => child::kill((pid, group)),
                _ => {}
            },
            line = lines.next_line() => match line {
                Ok(Some(line)) if line == DONE => break,
                Ok(Some(line)) => order = read(&line).or(order),
                Ok(None) | Err(_) => {
                    if let Some((pid, group, _)) = order {
                        child::kill((pid, group));
                    }
                    break;
                }
            },
        }
    }
    Ok(String::new().into())
}

/// Reads an order.
fn read(line: &str) -> Option<Order> {
    let mut words = line.split(' ');
    let pid = words.next()?.parse().ok().and_then(Pid::from_raw)?;
    Some((pid, words.next()?.parse().ok()?, UnixMillis::new(words.next()?.parse().ok()?)))
}
