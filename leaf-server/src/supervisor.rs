//! What the program that started this one wants to hear: signals come in, systemd's notifications
//! go out. As process 1 of a container it also takes in the orphans' ends.

use std::time::Duration;

use anyhow::Result;
use rustix::process::{WaitOptions, getpid, wait};
use sd_notify::NotifyState;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// What an operator wants.
///
/// `Stop` is asked for by the signal that it names, `Reload` by SIGHUP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    Stop(&'static str),
    Reload,
}

/// SIGTERM, SIGQUIT and Ctrl-C stop, SIGHUP reloads.
pub(crate) struct Orders {
    terminate: Signal,
    interrupt: Signal,
    quit: Signal,
    hang_up: Signal,
}

impl Orders {
    /// Takes the signals over. From now on they no longer end the process by themselves.
    pub(crate) fn listen() -> Result<Self> {
        if getpid().is_init() {
            reap()?;
        }
        // Other programs log more, or open their log anew. Here they mean nothing, and must not end
        // the process.
        for ignored in [SignalKind::user_defined1(), SignalKind::user_defined2()] {
            drop(signal(ignored)?);
        }
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            quit: signal(SignalKind::quit())?,
            hang_up: signal(SignalKind::hangup())?,
        })
    }

    /// The next order of any kind.
    pub(crate) async fn next(&mut self) -> Order {
        tokio::select! {
            _ = self.terminate.recv() => Order::Stop("SIGTERM"),
            _ = self.interrupt.recv() => Order::Stop("SIGINT"),
            _ = self.quit.recv() => Order::Stop("SIGQUIT"),
            _ = self.hang_up.recv() => Order::Reload,
        }
    }

    /// The next order to stop: the name of its signal.
    pub(crate) async fn stop(&mut self) -> &'static str {
        loop {
            if let Order::Stop(signal) = self.next().await {
                return signal;
            }
        }
    }
}

/// Processes whose parents have died are handed to process 1, which must ask for their ends.
fn reap() -> Result<()> {
    let mut children = signal(SignalKind::child())?;
    tokio::spawn(async move {
        while children.recv().await.is_some() {
            while let Ok(Some(_)) = wait(WaitOptions::NOHANG) {}
        }
    });
    Ok(())
}

/// Tells systemd, where it wants to hear. A notification that cannot be sent is nobody's problem
/// here.
fn tell(states: &[NotifyState<'_>]) {
    let _ = sd_notify::notify(states);
}

/// The listeners are bound, or a reload has ended.
pub(crate) fn ready() {
    tell(&[NotifyState::Ready]);
}

/// The stop has begun.
pub(crate) fn stopping() {
    tell(&[NotifyState::Stopping, NotifyState::Status("stopping")]);
}

/// A reload has begun. systemd wants the time with it, to tell this reload's end from an earlier
/// one's.
pub(crate) fn reloading() {
    let states = NotifyState::monotonic_usec_now();
    tell(&states.map_or(vec![NotifyState::Reloading], |now| vec![NotifyState::Reloading, now]));
}

/// One line for `systemctl status`.
pub(crate) fn status(text: &str) {
    tell(&[NotifyState::Status(text)]);
}

/// A sign of life for systemd's watchdog.
pub(crate) fn alive() {
    tell(&[NotifyState::Watchdog]);
}

/// How long systemd waits for a sign of life, if it does.
pub(crate) fn watchdog() -> Option<Duration> {
    sd_notify::watchdog_enabled().filter(|limit| !limit.is_zero())
}
