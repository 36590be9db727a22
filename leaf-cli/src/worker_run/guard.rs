//! The command guard: a process that ends the command where `leaf worker run` cannot, because it is
//! frozen or was killed.
//!
//! It reads lines `PID IS_GROUP MILLIS` from its standard input: what to kill, and at what time
//! (Unix time in ms). It kills at that time, or when its input ends. `leaf worker run` kills the
//! guard once the command has ended.

use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::process::{ChildStdin, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result};
use leaf_core::{Clock as _, UnixMillis};
use leaf_snowflake::SystemClock;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_setfl};
use rustix::io::Errno;
use rustix::pipe::fcntl_setpipe_size;
use rustix::process::Pid;

use super::child::{self, Child, MYSELF};

/// How often the guard looks at the clock.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// How much later than `leaf worker run` the guard kills.
const LATER: Duration = Duration::from_millis(150);

/// An order to the guard: the process id to kill, whether to kill the whole process group of that
/// id, and the time at which to kill.
type Order = (Pid, bool, UnixMillis);

/// Controls the guard process from `leaf worker run`. A process that cannot be started, was killed,
/// or does not read its input is replaced at the next order.
#[derive(Default)]
pub(super) struct Guard(Option<Running>);

struct Running {
    process: std::process::Child,
    input: ChildStdin,
    told: Option<Order>,
}

impl Running {
    fn start() -> Result<Self> {
        let mut process = Command::new(MYSELF)
            .args(["worker", "guard"])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            // Ctrl-C is not for it.
            .process_group(0)
            .spawn()
            .context("start the guard")?;
        let input = process.stdin.take().context("the guard's input")?;
        // Who writes must never wait for one that is frozen. In a page it leaves a hundred orders unread.
        fcntl_setfl(&input, OFlags::NONBLOCK)?;
        let _ = fcntl_setpipe_size(&input, 4096);
        Ok(Self { process, input, told: None })
    }

    /// Sends an order to the guard, unless the guard has it already. Returns `false` if the guard
    /// cannot get it.
    fn tell(&mut self, order: Order) -> bool {
        // It was waited for, where it has ended, as every child is.
        let ended = !matches!(self.process.try_wait(), Ok(None));
        if ended || self.told == Some(order) {
            return !ended;
        }
        let (pid, group, at) = order;
        let line = format!("{} {group} {}\n", pid.as_raw_pid(), at.get());
        self.told = Some(order);
        self.input.write_all(line.as_bytes()).is_ok()
    }
}

impl Guard {
    /// Orders the guard to kill the command from `at` plus [`LATER`] on.
    pub(super) fn tell(&mut self, child: &Child, at: UnixMillis) {
        let (pid, group) = child.target();
        let order = (pid, group, at + LATER);
        if self.0.as_mut().is_some_and(|running| running.tell(order)) {
            return;
        }
        self.dismiss();
        match Running::start() {
            Ok(mut running) => {
                running.tell(order);
                self.0 = Some(running);
            }
            Err(error) => crate::complain(&format_args!("{error:#}; trying again")),
        }
    }

    /// Kills the guard, so that it cannot kill a later process that gets the command's process id.
    pub(super) fn dismiss(&mut self) {
        if let Some(mut running) = self.0.take() {
            // It has ended.
            let _ = running.process.kill();
            let _ = running.process.wait();
        }
    }
}

/// Does the guard's work, until its input ends. It needs no thread and no runtime: the machine may
/// have none left.
///
/// # Errors
/// Its standard input cannot be waited for.
pub(crate) fn guard() -> Result<crate::Done> {
    let input = std::io::stdin();
    fcntl_setfl(&input, OFlags::NONBLOCK)?;
    let every = Timespec::try_from(LOOK_EVERY)?;
    let (mut unread, mut order) = (Vec::new(), None::<Order>);
    loop {
        let mut waited = [PollFd::new(&input, PollFlags::IN)];
        match poll(&mut waited, Some(&every)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        if !waited[0].revents().is_empty() {
            let mut buffer = [0; 512];
            match rustix::io::read(&input, &mut buffer) {
                Ok(0) => break,
                Ok(length) => unread.extend_from_slice(&buffer[..length]),
                Err(Errno::AGAIN | Errno::INTR) => {}
                Err(_) => break,
            }
            while let Some(end) = unread.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = unread.drain(..=end).collect();
                order = read(String::from_utf8_lossy(&line).trim_end()).or(order);
            }
        }
        match order {
            Some((pid, group, at)) if SystemClock.wall_millis() >= at => child::kill((pid, group)),
            _ => {}
        }
    }
    if let Some((pid, group, _)) = order {
        child::kill((pid, group));
    }
    Ok(String::new().into())
}

/// Parses an order; `None` if the line is not one.
fn read(line: &str) -> Option<Order> {
    let mut words = line.split(' ');
    let pid = words.next()?.parse().ok().and_then(Pid::from_raw)?;
    Some((pid, words.next()?.parse().ok()?, UnixMillis::new(words.next()?.parse().ok()?)))
}
