//! How the keeper looks at the clock and raises ceilings: each ceiling is written down first.

use super::*;
use crate::id_clock::Look;

/// How far ahead of the clock the local ceiling is written. Less than the default rollback
/// tolerance, so that a restart after a crash need not wait.
const LOCAL_WINDOW: Duration = Duration::from_millis(800);
/// Least distance from the last id to the local ceiling. Small: after each crash ids restart at
/// that ceiling, so a crash loop pushes them ahead by this much each time.
const LEAST_WINDOW: Duration = Duration::from_millis(200);
/// A raise of the local ceiling by less than this is not written while at least this much is left
/// below the ceiling and no caller waits.
const LEAST_RAISE: Duration = Duration::from_millis(200);

impl Keeper {
    /// Begins a look. Returns whether the process was frozen before it: whether the last look began
    /// longer ago than a report interval or two intervals of looks, whichever is longer. Uses the
    /// boot clock, which runs on while the process is stopped or the machine sleeps.
    pub(super) fn was_frozen(&mut self) -> bool {
        let now = self.shared.clock.boot();
        let since = now.saturating_sub(std::mem::replace(&mut self.looked_at, now));
        since > self.config.report_interval.max(2 * LOOK_EVERY)
    }

    /// Looks at the clock, then raises the ceiling, which is computed from `ids_clock`; with `None`
    /// the ceiling stays unchanged.
    pub(super) async fn look(
        &mut self,
        sequencer: &Sequencer,
        urgency: Urgency,
        ids_clock: Option<UnixMillis>,
    ) -> Look {
        let look = self.shared.clock.look(sequencer.next_free());
        match look {
            Look::Fine => self.shared.clear_trouble(Trouble::Clock),
            Look::StillBehind(_) | Look::Unclear => {}
            Look::WentBack(by) => {
                tracing::error!("the clock went back: {by:?} behind the ids; ids stop");
            }
            Look::CaughtUp => tracing::info!("the clock has caught up; ids flow again"),
            Look::FarAhead => {
                let limit = self.config.max_step_forward;
                let text = format!(
                    "the clock jumped ahead by more than {limit:?}: not followed; if it is \
                     right, accept it, or restart this node"
                );
                self.shared.set_trouble(Trouble::Clock, text);
            }
        }
        let Some(ids_clock) = ids_clock else { return look };
        match self.raise(sequencer, urgency, ids_clock).await {
            Ok(()) => self.shared.clear_trouble(Trouble::StateFile),
            Err(error) => self.shared.set_trouble(Trouble::StateFile, error.to_string()),
        }
        look
    }

    /// Raises the sequencer's ceiling, never above the registry ceiling. With a state file: to a
    /// short time ahead of the clock, after the new ceiling was written down. Without one: to the
    /// registry ceiling.
    pub(super) async fn raise(
        &mut self,
        sequencer: &Sequencer,
        urgency: Urgency,
        ids_clock: UnixMillis,
    ) -> Result<(), StateFileError> {
        let Some(saved) = &self.state.saved_lease else { return Ok(()) };
        if self.file.is_none() {
            // Waiting callers are woken only if the ceiling rose: otherwise they and the keeper
            // would wake each other forever.
            if sequencer.raise(saved.fence.ceiling) {
                self.shared.raised.notify_waiters();
            }
            return Ok(());
        }
        // The sequencer rounds a ceiling down to whole ticks: the window must span at least two.
        let ticks = 2 * self.config.layout.tick_length();
        let wanted = (ids_clock + LOCAL_WINDOW.max(ticks))
            .max(sequencer.next_free() + LEAST_WINDOW.max(ticks));
        let ceiling = wanted.min(saved.fence.ceiling);
        // When ids run ahead of the clock, little is left below the ceiling. Then write even a
        // small raise: otherwise callers under load would reach the ceiling before each raise, and
        // wait for the disk.
        let left = saved.local_ceiling - sequencer.next_free().max(ids_clock);
        let least = match urgency {
            Urgency::NobodyWaits if left >= LEAST_RAISE => LEAST_RAISE,
            _ => Duration::from_millis(1),
        };
        if ceiling - saved.local_ceiling < least {
            return Ok(());
        }
        let saved = SavedLease { local_ceiling: ceiling, ..saved.clone() };
        self.write(State { saved_lease: Some(saved), ..self.state.clone() }).await?;
        sequencer.raise(ceiling);
        self.shared.publish_local_ceiling(ceiling);
        self.shared.raised.notify_waiters();
        Ok(())
    }

    /// Writes `state` to the file and, once it is durable, makes it `self.state`.
    pub(super) async fn write(&mut self, state: State) -> Result<(), StateFileError> {
        if let Some(file) = &self.file {
            // An earlier write whose caller stopped waiting must not reach the file after this one.
            if let Some(unfinished) = &mut self.writing {
                let _ = unfinished.await;
            }
            let (file, state) = (Arc::clone(file), state.clone());
            let writing = self.writing.insert(tokio::task::spawn_blocking(move || {
                file.lock().expect("no holder of this lock panics").write(&state)
            }));
            let written = writing.await;
            self.writing = None;
            // Cancelled: the runtime is being shut down.
            written.unwrap_or_else(|error| match error.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                Err(cancelled) => Err(StateFileError::Io {
                    action: "write",
                    path: self.config.state_file.clone().unwrap_or_default(),
                    cause: std::io::Error::other(cancelled),
                }),
            })?;
        }
        self.state = state;
        Ok(())
    }

    /// Writes the current state; logs a failure and returns `None`. Only for writes whose loss can
    /// cost a wait, but never repeat an id.
    pub(super) async fn persist_best_effort(&mut self) -> Option<()> {
        let written = self.write(self.state.clone()).await;
        written.inspect_err(|error| tracing::warn!("{error}")).ok()
    }
}
