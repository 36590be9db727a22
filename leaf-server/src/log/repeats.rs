//! Limits how often the log repeats a warning or an error. The first one is logged at once, then
//! one line a minute has the number of repetitions: a log that says one thing a thousand times
//! hides the others.
//!
//! Invariant: every warning and error is in the log, or is counted in a line that comes within a
//! minute or at the end of the process, provided that `log.level` admits this module. Two of them
//! count as repetitions if the same place in the code logs them with the same text, whichever
//! requests they belong to.

use std::collections::HashMap;
use std::fmt::{self, Write as _};
use std::sync::{LazyLock, Mutex, MutexGuard};
use std::time::Duration;

use tokio::time::Instant;
use tracing::callsite::Identifier;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

/// How often the number of a line's repetitions is logged.
const EVERY: Duration = Duration::from_secs(60);
/// The most texts that are remembered. Others are logged as often as they come.
const MOST: usize = 512;

/// What was logged within the last minute.
static SEEN: LazyLock<Mutex<HashMap<(Identifier, String), Seen>>> = LazyLock::new(Mutex::default);

/// A line that was logged, and its repetitions.
struct Seen {
    level: Level,
    /// When the line, or the number of its repetitions, was last logged.
    told_at: Instant,
    /// How often the line was repeated since then.
    again: u64,
}

/// Locks the lines that were logged lately.
fn seen() -> MutexGuard<'static, HashMap<(Identifier, String), Seen>> {
    SEEN.lock().expect("no holder of this lock panics")
}

/// A layer that lets an event through unless its line was logged lately; then it counts the event.
pub(super) struct Repeats;

// A layer of its own rather than a filter of another layer: tracing-subscriber 0.3.23 confuses the
// state of its filters if one of them refuses an event as late as in `event_enabled`.
impl<S: Subscriber> Layer<S> for Repeats {
    fn event_enabled(&self, event: &Event<'_>, _: Context<'_, S>) -> bool {
        let metadata = event.metadata();
        if *metadata.level() > Level::WARN || metadata.target() == module_path!() {
            return true;
        }
        // Made before the lock is taken: nothing that others wait for.
        let line = (metadata.callsite(), text(event));
        is_new(&mut seen(), line, *metadata.level(), Instant::now())
    }
}

/// Whether this line must be logged. If it was logged lately, counts the repetition instead.
fn is_new(
    seen: &mut HashMap<(Identifier, String), Seen>,
    line: (Identifier, String),
    level: Level,
    now: Instant,
) -> bool {
    if let Some(known) = seen.get_mut(&line) {
        known.again += 1;
        return false;
    }
    if seen.len() < MOST {
        seen.insert(line, Seen { level, told_at: now, again: 0 });
    }
    true
}

/// Takes the repetitions of lines that were last logged at least `every` ago: the level and text of
/// each line, how often it was repeated, and the time since it was last logged. Removes lines that
/// were not repeated.
fn due(
    seen: &mut HashMap<(Identifier, String), Seen>,
    now: Instant,
    every: Duration,
) -> Vec<(Level, String, u64, Duration)> {
    let mut due = Vec::new();
    seen.retain(|(_, text), known| {
        let since = now.duration_since(known.told_at);
        if since < every {
            return true;
        }
        let again = std::mem::take(&mut known.again);
        if again > 0 {
            known.told_at = now;
            due.push((known.level, text.clone(), again, since));
        }
        again > 0
    });
    due
}

/// Logs how often lines were repeated, each line at most once a minute.
pub(crate) fn tell() {
    tell_after(EVERY);
}

/// Logs all repetitions that are not logged yet, since the process ends.
pub(super) fn tell_all() {
    tell_after(Duration::ZERO);
}

fn tell_after(every: Duration) {
    // The lock is free again before a line is logged.
    let due = due(&mut seen(), Instant::now(), every);
    for (level, text, again, since) in due {
        let times = if again == 1 { "once".to_owned() } else { format!("{again} times") };
        if level == Level::ERROR {
            tracing::error!("{times} more in {since:.0?}: {text}");
        } else {
            tracing::warn!("{times} more in {since:.0?}: {text}");
        }
    }
}

/// An event as one text: its message and its fields.
pub(super) fn text(event: &Event<'_>) -> String {
    let mut text = Text(String::new());
    event.record(&mut text);
    text.0
}

/// Collects the message and the fields of an event.
struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        // A String takes everything.
        let _ = match field.name() {
            "message" => write!(self.0, "{value:?}"),
            name => write!(self.0, " {name}={value:?}"),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracing::subscriber::Interest;
    use tracing::{Callsite, Metadata};

    /// A place of the code that logs.
    fn place() -> Identifier {
        struct Place;
        impl Callsite for Place {
            fn set_interest(&self, _: Interest) {}
            fn metadata(&self) -> &Metadata<'_> {
                unreachable!("nobody asks")
            }
        }
        static PLACE: Place = Place;
        Identifier(&PLACE)
    }

    #[test]
    fn a_line_comes_once_a_minute_with_how_often_it_would_have_come() {
        let (mut seen, begin) = (HashMap::new(), Instant::now());
        let after = |seconds| begin + Duration::from_secs(seconds);
        let mut logs =
            |text: &str, at| is_new(&mut seen, (place(), text.to_owned()), Level::WARN, after(at));
        assert!(logs("away", 0) && logs("other", 0));
        assert!(!logs("away", 1) && !logs("away", 59));
        assert!(due(&mut seen, after(59), EVERY).is_empty());
        let told = due(&mut seen, after(60), EVERY);
        assert_eq!(told, [(Level::WARN, "away".to_owned(), 2, EVERY)]);
        // Each further minute anew, until it does not come again.
        assert!(!is_new(&mut seen, (place(), "away".to_owned()), Level::WARN, after(61)));
        let told = due(&mut seen, after(125), EVERY);
        assert_eq!(told, [(Level::WARN, "away".to_owned(), 1, Duration::from_secs(65))]);
        assert!(due(&mut seen, after(190), EVERY).is_empty());
        assert!(seen.is_empty(), "it is forgotten");
    }

    #[test]
    fn more_texts_than_are_remembered_are_all_logged() {
        let (mut seen, now) = (HashMap::new(), Instant::now());
        for number in 0..2 * MOST {
            assert!(is_new(&mut seen, (place(), number.to_string()), Level::WARN, now));
        }
        assert_eq!(seen.len(), MOST);
    }
}
