//! The last lines of the log, for operators who look at the dashboard.

use std::collections::VecDeque;
use std::sync::Mutex;

use leaf_core::{Clock as _, SystemClock};
use serde::Serialize;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

use super::repeats::text;

/// How many lines are kept.
const KEPT: usize = 50;
/// The longest text that is kept, in bytes.
const LONGEST: usize = 500;

static LAST: Mutex<VecDeque<Line>> = Mutex::new(VecDeque::new());

/// A line of the log.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Line {
    /// When it was logged, in milliseconds since 1970.
    at: u64,
    level: &'static str,
    text: String,
}

/// The last lines, the newest last.
pub(crate) fn last() -> Vec<Line> {
    LAST.lock().expect("no holder of this lock panics").iter().cloned().collect()
}

/// Keeps lines of the level `info` and above.
pub(super) struct Events;

impl<S: Subscriber> Layer<S> for Events {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let level = *event.metadata().level();
        if level > Level::INFO {
            return;
        }
        let mut text = text(event);
        let end = (0..=LONGEST.min(text.len())).rev().find(|at| text.is_char_boundary(*at));
        text.truncate(end.unwrap_or_default());
        let line = Line { at: SystemClock.wall_millis().get(), level: level.as_str(), text };
        let mut last = LAST.lock().expect("no holder of this lock panics");
        if last.len() == KEPT {
            last.pop_front();
        }
        last.push_back(line);
    }
}
