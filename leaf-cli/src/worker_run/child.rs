//! The command: starting it, passing signals on, ending it, and its exit code.
//!
//! The command has its own process group, so that the processes that it starts end with it. At the
//! terminal of a shell it stays in the shell's group, because Ctrl-C would not reach it otherwise;
//! then only the command itself can be ended.

use std::ffi::OsString;
use std::future::poll_fn;
use std::io::{ErrorKind, IsTerminal as _};
use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::task::Poll;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow};
use leaf_core::WorkerId;
use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, WaitOptions, getpid, getppid, kill_process,
    kill_process_group, set_parent_process_death_signal, test_kill_process_group, wait, waitid,
};
use rustix::termios::{tcgetsid, tcsetpgrp};
use tokio::signal::unix::{Signal as Stream, SignalKind, signal};
use tokio::time::Instant;

/// A worker id below this is split into five bits each for data centre and machine.
const SPLIT: u32 = 1024;
/// How long to wait until killed processes are gone.
const GONE: Duration = Duration::from_secs(1);
/// The exit code for a command that was not found, as in shells.
const NOT_FOUND: u8 = 127;
/// The exit code for a command that cannot be started, as in shells.
const NOT_STARTED: u8 = 126;

/// This program, also after its file was replaced by another version.
pub(super) const MYSELF: &str = "/proc/self/exe";

/// The command that `leaf worker run` started.
pub(super) struct Child {
    pid: Pid,
    /// Whether it has a process group of its own.
    has_group: bool,
}

impl Child {
    /// Starts the command with the worker id in its environment.
    pub(super) fn start(command: &[OsString], worker: WorkerId) -> Result<Self> {
        let terminal = std::io::stdin();
        // As the first process of a terminal, in a container, it has no shell to disturb.
        let leads = tcgetsid(&terminal).ok() == Some(getpid());
        let has_group = !terminal.is_terminal() || leads;
        let mut start = Command::new(MYSELF);
        start.args(["worker", "exec", "--parent", &std::process::id().to_string(), "--"]);
        start.args(command).env("LEAF_WORKER_ID", worker.to_string());
        let split = (worker.get() < SPLIT).then(|| (worker.get() / 32, worker.get() % 32));
        for (name, part) in [
            ("LEAF_DATACENTER_ID", split.map(|(datacenter, _)| datacenter)),
            ("LEAF_MACHINE_ID", split.map(|(_, machine)| machine)),
        ] {
            match part {
                Some(part) => start.env(name, part.to_string()),
                None => start.env_remove(name),
            };
        }
        if has_group {
            start.process_group(0);
        }
        let started = start.spawn().context("start the command")?;
        let pid = i32::try_from(started.id()).ok().and_then(Pid::from_raw);
        let pid = pid.context("a process id")?;
        if has_group && terminal.is_terminal() {
            // Else it could not read from it, and Ctrl-C would not reach it.
            let _ = tcsetpgrp(&terminal, pid);
        }
        Ok(Self { pid, has_group })
    }

    /// Waits until the process has stopped just before it becomes the command, see [`exec`].
    /// `false` if it has ended instead.
    pub(super) async fn is_prepared(&self) -> bool {
        let stopped = WaitIdOptions::STOPPED
            | WaitIdOptions::EXITED
            | WaitIdOptions::NOHANG
            | WaitIdOptions::NOWAIT;
        loop {
            match waitid(WaitId::Pid(self.pid), stopped) {
                Ok(None) => tokio::time::sleep(Duration::from_millis(2)).await,
                Ok(Some(status)) => return status.stopped(),
                Err(_) => return false,
            }
        }
    }

    /// Lets the command begin.
    pub(super) fn begin(&self) {
        let _ = kill_process(self.pid, Signal::CONT);
    }

    /// Waits until all processes of the command's group are gone, after they were killed: those on
    /// other processors may take a moment.
    pub(super) async fn group_is_gone(&mut self) {
        let late = Instant::now() + GONE;
        while self.has_group && test_kill_process_group(self.pid).is_ok() && Instant::now() < late {
            tokio::time::sleep(Duration::from_millis(2)).await;
            self.ended();
        }
    }

    /// The process id of the command, and whether it has its own process group.
    pub(super) const fn target(&self) -> (Pid, bool) {
        (self.pid, self.has_group)
    }

    /// Sends a signal to the command. If the command is in the shell's process group, it has
    /// already received the signals that the terminal sends; these are not sent again.
    pub(super) fn pass_on(&self, signal: Signal) {
        let of_terminal = [Signal::INT, Signal::QUIT, Signal::HUP, Signal::WINCH];
        if self.has_group || !of_terminal.contains(&signal) {
            // It may have ended.
            let _ = kill_process(self.pid, signal);
        }
    }

    /// Kills the command, and what it started if it has its own group.
    pub(super) fn kill(&self) {
        kill((self.pid, self.has_group));
    }

    /// The exit code of the command, or `None` while it runs. Kills what is left of its group
    /// first. Also waits for ended processes that a container's first process inherits.
    pub(super) fn ended(&mut self) -> Option<u8> {
        let ended = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        // Before it is waited for: until then nobody else can get its number.
        if self.has_group && matches!(waitid(WaitId::Pid(self.pid), ended), Ok(Some(_))) {
            self.kill();
        }
        let mut code = None;
        while let Ok(Some((pid, status))) = wait(WaitOptions::NOHANG) {
            if pid == self.pid {
                // It may have ended since it was looked at, before what it left behind was killed.
                if self.has_group {
                    self.kill();
                }
                // As shells have it: 128 and the signal that ended it.
                let signal = status.terminating_signal().map(|signal| 128 + signal);
                let status = status.exit_status().or(signal).unwrap_or_default();
                code = Some(u8::try_from(status).unwrap_or(u8::MAX));
            }
        }
        code
    }
}

/// Ends a process, or its group, at once.
pub(super) fn kill((pid, group): (Pid, bool)) {
    let killed =
        if group { kill_process_group(pid, Signal::KILL) } else { kill_process(pid, Signal::KILL) };
    // It has ended.
    let _ = killed;
}

/// Becomes the command, which the kernel kills when the process `parent` ends.
///
/// # Errors
/// The command cannot be started; the exit code is the one that shells return then.
pub(crate) fn exec(parent: i32, command: &[OsString]) -> Result<crate::Done> {
    set_parent_process_death_signal(Some(Signal::KILL)).context("tie the command to leaf")?;
    if getppid().map(Pid::as_raw_pid) != Some(parent) {
        return Err(anyhow!("leaf has ended before the command began"));
    }
    // Until leaf lets it go on: when the guard knows what to kill.
    kill_process(getpid(), Signal::STOP).context("wait for leaf")?;
    let (program, args) = command.split_first().context("a command")?;
    let error = Command::new(program).args(args).exec();
    let code = if error.kind() == ErrorKind::NotFound { NOT_FOUND } else { NOT_STARTED };
    let error = anyhow!("{}: {error}", program.to_string_lossy());
    Err(crate::exit::with(code, error))
}

/// The signals that this process ignores, such as HUP under `nohup`: bit `n - 1` stands for signal
/// `n`.
fn ignored() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

/// The signals that this process gets.
pub(super) struct Signals {
    child: Stream,
    others: Vec<(Signal, Stream)>,
}

impl Signals {
    /// Starts to receive signals.
    pub(super) fn new() -> Result<Self> {
        let of = |kind| signal(SignalKind::from_raw(kind)).context("notice signals");
        let passed = [
            Signal::TERM,
            Signal::INT,
            Signal::HUP,
            Signal::QUIT,
            Signal::USR1,
            Signal::USR2,
            Signal::WINCH,
            Signal::CONT,
        ];
        let ignored = ignored();
        // Such as HUP of `nohup`: the command ignores it, too.
        let is_heard = |signal: &Signal| ignored & 1 << (signal.as_raw() - 1) == 0;
        let others =
            passed.into_iter().filter(is_heard).map(|passed| Ok((passed, of(passed.as_raw())?)));
        Ok(Self { child: of(Signal::CHILD.as_raw())?, others: others.collect::<Result<_>>()? })
    }

    /// Waits for a signal that is for the command; `None`: one of this process's children has
    /// ended.
    pub(super) async fn next(&mut self) -> Option<Signal> {
        poll_fn(|context| {
            for (signal, stream) in &mut self.others {
                if stream.poll_recv(context).is_ready() {
                    return Poll::Ready(Some(*signal));
                }
            }
            self.child.poll_recv(context).map(|_| None)
        })
        .await
    }

    /// Waits for a signal that is to end this process while it has no command yet.
    pub(super) async fn wait_for_an_end(&mut self) {
        loop {
            let ends = [Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT];
            if self.next().await.is_some_and(|signal| ends.contains(&signal)) {
                return;
            }
        }
    }
}
