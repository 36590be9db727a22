//! Standard error, which may be a pipe that nobody reads.
//!
//! A command that is over in a moment waits until it can write. One that keeps a lease must not: after
//! [`detach`] a thread writes, and what it cannot take any more is dropped.

use std::io::Write;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::Duration;

/// How many texts wait for a reader.
const MOST: usize = 256;
/// How long the end of a program waits for one.
const LAST: Duration = Duration::from_millis(500);

static WRITER: OnceLock<SyncSender<Vec<u8>>> = OnceLock::new();
static WAITING: AtomicUsize = AtomicUsize::new(0);

/// Lets a thread write from now on.
///
/// # Errors
/// The system gave no thread.
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

/// Gives the thread a moment to write what waits.
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
