//! Communicates with the supervisor of this program (systemd, say): receives signals, and sends
//! notifications to systemd. As process 1 of a container it also reaps orphaned processes.

use std::time::Duration;

use anyhow::Result;
use rustix::process::{WaitOptions, getpid, wait};
use sd_notify::NotifyState;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// The order that a signal gives to the program.
///
/// `Stop` holds the name of its signal; `Reload` comes from SIGHUP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    Stop(&'static str),
    Reload,
}

/// The signals that the program handles: SIGTERM, SIGQUIT and SIGINT (Ctrl-C) stop it, SIGHUP
/// reloads its configuration.
pub(crate) struct Orders {
    stops: Stops,
    hang_up: Signal,
}

struct Stops {
    terminate: Signal,
    interrupt: Signal,
    quit: Signal,
}

impl Orders {
    /// Installs handlers for the signals, which from now on no longer end the process by default.
    /// As process 1, also begins to reap orphaned processes.
    pub(crate) fn listen() -> Result<Self> {
        if getpid().is_init() {
            reap()?;
        }
        // On SIGUSR1 and SIGUSR2 other programs log more, or reopen their log. Here these signals
        // mean nothing, and must not end the process.
        for ignored in [SignalKind::user_defined1(), SignalKind::user_defined2()] {
            drop(signal(ignored)?);
        }
        let stops = Stops {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            quit: signal(SignalKind::quit())?,
        };
        Ok(Self { stops, hang_up: signal(SignalKind::hangup())? })
    }

    /// Waits for the next order of any kind.
    pub(crate) async fn next(&mut self) -> Order {
        tokio::select! {
            signal = self.stops.next() => Order::Stop(signal),
            _ = self.hang_up.recv() => Order::Reload,
        }
    }

    /// Waits for the next order to stop, and returns the name of its signal. A SIGHUP that arrives
    /// meanwhile is kept for [`Self::next`]: the reload under way may have read the files before
    /// they changed.
    pub(crate) async fn stop(&mut self) -> &'static str {
        self.stops.next().await
    }
}

impl Stops {
    async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
            _ = self.quit.recv() => "SIGQUIT",
        }
    }
}

/// Starts a task that reaps processes. Process 1 becomes the parent of all processes whose parents
/// have died, and must wait for their ends.
fn reap() -> Result<()> {
    let mut children = signal(SignalKind::child())?;
    tokio::spawn(async move {
        while children.recv().await.is_some() {
            while let Ok(Some(_)) = wait(WaitOptions::NOHANG) {}
        }
    });
    Ok(())
}

/// Sends notifications to systemd, if it wants them. Ignores a failure, which does not concern the
/// server.
fn tell(states: &[NotifyState<'_>]) {
    let _ = sd_notify::notify(states);
}

/// Notifies systemd that the listeners are bound, or that a reload has ended.
pub(crate) fn ready() {
    tell(&[NotifyState::Ready]);
}

/// Notifies systemd that the stop has begun.
pub(crate) fn stopping() {
    tell(&[NotifyState::Stopping, NotifyState::Status("stopping")]);
}

/// Notifies systemd that a reload has begun, and when: systemd needs the time to tell the end of
/// this reload from the end of an earlier one.
pub(crate) fn reloading() {
    let states = NotifyState::monotonic_usec_now();
    tell(&states.map_or(vec![NotifyState::Reloading], |now| vec![NotifyState::Reloading, now]));
}

/// Sets the line that `systemctl status` shows.
pub(crate) fn status(text: &str) {
    tell(&[NotifyState::Status(text)]);
}

/// Sends systemd's watchdog a sign of life.
pub(crate) fn alive() {
    tell(&[NotifyState::Watchdog]);
}

/// How long systemd waits for a sign of life; `None` if it does not watch this process.
pub(crate) fn watchdog() -> Option<Duration> {
    sd_notify::watchdog_enabled().filter(|limit| !limit.is_zero())
}

#[cfg(test)]
mod tests {
    use rustix::process::{Signal, kill_process};
    use tokio::time::timeout;

    use super::*;

    #[tokio::test]
    async fn a_reload_that_is_asked_for_during_another_is_not_lost() {
        let mut orders = Orders::listen().unwrap();
        kill_process(getpid(), Signal::HUP).unwrap();

        // What waits for a stop while a reload runs.
        assert!(timeout(Duration::from_millis(300), orders.stop()).await.is_err());

        assert_eq!(timeout(Duration::from_secs(10), orders.next()).await, Ok(Order::Reload));
    }
}
