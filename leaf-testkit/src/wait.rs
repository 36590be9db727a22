//! Waiting for something that another process does.

use std::time::Duration;

use tokio::time::Instant;

/// Asks `ready` every few milliseconds until it yields a value.
///
/// # Panics
/// When `limit` has passed; the text names `what`.
pub fn wait_until<T>(what: &str, limit: Duration, mut ready: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + limit;
    loop {
        if let Some(value) = ready() {
            return value;
        }
        assert!(Instant::now() < deadline, "{what}: not within {limit:?}");
        pause(Duration::from_millis(5));
    }
}

#[expect(clippy::disallowed_methods, reason = "polls another process from a plain test thread")]
fn pause(duration: Duration) {
    std::thread::sleep(duration);
}
