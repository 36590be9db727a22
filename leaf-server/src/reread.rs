//! Files that are read again while the server runs, each time on a thread that may block.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use leaf_node::config::ConfigError;

/// The longest wait for the files to be read.
const READ: Duration = Duration::from_secs(10);

/// The reading of one or several files that belong together.
#[derive(Debug, Default)]
pub(crate) struct Rereading {
    /// Why the files could not be used when they were read last.
    trouble: Mutex<Option<String>>,
    /// Locked from the reading of the files until their content is in force. A reload waits for a
    /// regular reading that is under way, and then reads them itself: they may have changed since
    /// that one began.
    turn: tokio::sync::Mutex<()>,
    /// Whether the files are being read. If a disk hangs, only one thread waits for it, not one more
    /// with every reading.
    reading: Arc<AtomicBool>,
}

impl Rereading {
    /// Runs `read` on a thread that may block, and `follow` with its result. Files that cannot be
    /// used, or are not read in time, change nothing, and their error is logged once: `key` names
    /// them, and `stays` is what stays in force.
    pub(crate) async fn again<T: Send + 'static>(
        &self,
        (key, stays): (&str, &str),
        read: impl FnOnce() -> Result<T, ConfigError> + Send + 'static,
        follow: impl FnOnce(T),
    ) {
        let _alone = self.turn.lock().await;
        let mut found = Err(ConfigError::new(format!("{key}: it cannot be read in time")));
        if !self.reading.swap(true, Ordering::AcqRel) {
            let reading = Arc::clone(&self.reading);
            let read = tokio::task::spawn_blocking(move || {
                let read = read();
                reading.store(false, Ordering::Release);
                read
            });
            // Late, it goes on by itself, and what it finds is not used.
            if let Ok(Ok(read)) = tokio::time::timeout(READ, read).await {
                found = read;
            }
        }
        let mut trouble = self.trouble.lock().expect("no holder of this lock panics");
        let error = found.map(follow).err().map(|error| error.to_string());
        if let Some(error) = error.as_ref().filter(|error| trouble.as_ref() != Some(error)) {
            tracing::error!("{error}; {stays}");
        }
        *trouble = error;
    }

    /// Whether the files could be used when they were read last.
    pub(crate) fn last_read_successful(&self) -> bool {
        self.trouble.lock().expect("no holder of this lock panics").is_none()
    }
}
