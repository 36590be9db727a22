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

/// Calls `ask` again while it returns a temporary error (`passes`), for a minute at most: on a busy
/// machine a running server may take longer to answer than Leaf waits.
///
/// # Errors
/// The first error that is not temporary, or the last error.
pub async fn patiently<T, E>(
    passes: impl Fn(&E) -> bool,
    mut ask: impl AsyncFnMut() -> Result<T, E>,
) -> Result<T, E> {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let answer = ask().await;
        match &answer {
            Err(error) if passes(error) && Instant::now() < deadline => {}
            _ => return answer,
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[expect(clippy::disallowed_methods, reason = "polls another process from a plain test thread")]
fn pause(duration: Duration) {
    std::thread::sleep(duration);
}
