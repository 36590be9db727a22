//! Standard error, which may be a pipe that nobody reads.
//!
//! A short command waits until it can write. A command that holds a lease must not wait: after
//! [`detach`] a thread does the writing, and texts that do not fit into its queue are dropped.

use std::io::Write;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::Duration;

/// The most texts that may wait to be written.
const MOST: usize = 256;
/// How long the end of the program waits for texts to be written.
const LAST: Duration = Duration::from_millis(500);

static WRITER: OnceLock<SyncSender<Vec<u8>>> = OnceLock::new();
static WAITING: AtomicUsize = AtomicUsize::new(0);

/// Starts a thread that does all writing from now on.
///
/// # Errors
/// The thread cannot be started.
pub(crate) fn detach() -> std::io::Result<()> {
    let (texts, to_write) = sync_channel::<Vec<u8>>(MOST);
    std::thread::Builder::new().name("stderr".into()).spawn(move || {
        for text in to_write {
            // There is nobody to tell.
            let _ = std::io::stderr().write_all(&text);
            WAITING.fetch_sub(1, Ordering::SeqCst);
        }
    })?;
    // Called once.
    let _ = WRITER.set(texts);
    Ok(())
}

/// Waits up to [`LAST`] for the thread to write the texts that are left.
#[expect(clippy::disallowed_methods, reason = "the program ends, nothing else runs")]
pub(crate) fn finish() {
    let step = Duration::from_millis(5);
    for _ in 0..LAST.as_millis() / step.as_millis() {
        if WAITING.load(Ordering::SeqCst) == 0 {
            return;
        }
        std::thread::sleep(step);
    }
}

/// Standard error.
pub(crate) struct Stderr;

impl Write for Stderr {
    fn write(&mut self, text: &[u8]) -> std::io::Result<usize> {
        let Some(writer) = WRITER.get() else { return std::io::stderr().write(text) };
        WAITING.fetch_add(1, Ordering::SeqCst);
        if writer.try_send(text.to_vec()).is_err() {
            WAITING.fetch_sub(1, Ordering::SeqCst);
        }
        Ok(text.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
