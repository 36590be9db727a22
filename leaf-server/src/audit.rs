//! The audit log: one line of JSON in `audit.log` of the data directory for each change that an
//! authorized caller requests of the ops listener, even if the change is then refused.
//!
//! Invariant: a change is answered only when its line is on the disk or, if that fails, in the
//! program's log. Each line stands alone, even if a crash has cut off the line before it.

use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use serde_json::Value;
use tokio::sync::Mutex;

/// The largest size of the file, in bytes; then another file is begun.
const LARGEST: u64 = 16 << 20;
/// How many older files are kept beside `audit.log`; `audit.log.1` is the youngest of them.
const KEPT: u32 = 4;
/// The longest request body that is written, in bytes. Without a limit a few thousand requests
/// could push all older lines out of the kept files.
pub(crate) const LARGEST_BODY: usize = 2048;
/// The longest time for writing a line to the disk.
const WRITTEN: Duration = Duration::from_secs(5);

/// A change that was requested, and its result: one line of the audit log.
#[derive(Debug, Serialize)]
pub(crate) struct Change {
    /// The time of the answer, in the form of RFC 3339.
    pub(crate) time: String,
    /// The name of the caller, as in the file of tokens.
    pub(crate) caller: String,
    /// The client's address.
    pub(crate) address: Option<String>,
    /// The request's id.
    pub(crate) request: String,
    pub(crate) method: String,
    /// The path with its query, the part behind `?`.
    pub(crate) path: String,
    /// The body, if it is JSON and not longer than [`LARGEST_BODY`].
    pub(crate) body: Option<Value>,
    /// The status of the answer.
    pub(crate) status: u16,
    /// Why the change was refused, or failed; `None` if it succeeded.
    pub(crate) problem: Option<String>,
}

/// The audit log of this node.
#[derive(Debug)]
pub(crate) struct Audit {
    path: PathBuf,
    /// Locked while a line is written, so that lines are written one after the other.
    writing: Arc<Mutex<()>>,
}

impl Audit {
    /// The audit log in a data directory. Its file is made by the first change.
    pub(crate) fn new(data_dir: &Path) -> Arc<Self> {
        Arc::new(Self { path: data_dir.join("audit.log"), writing: Arc::default() })
    }

    /// Writes a line, and waits until it is on the disk. If that fails, logs the line.
    pub(crate) async fn write(self: &Arc<Self>, change: Change) {
        let this = Arc::clone(self);
        let line = serde_json::to_string(&change).unwrap_or_default();
        let told = line.clone();
        let written = async {
            let turn = Arc::clone(&this.writing).lock_owned().await;
            let appended = tokio::task::spawn_blocking(move || {
                // Held to the end, also where nobody waits for it any more.
                let _turn = turn;
                this.append(&line)
            });
            appended.await.map_err(io::Error::other).flatten()
        };
        let why = match tokio::time::timeout(WRITTEN, written).await {
            Ok(Ok(())) => return,
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("the disk does not answer within {WRITTEN:?}"),
        };
        tracing::error!("{} cannot be written: {why}; the line: {told}", self.path.display());
    }

    fn append(&self, line: &str) -> io::Result<()> {
        let found = std::fs::metadata(&self.path).ok();
        if found.as_ref().is_some_and(|found| !found.is_file()) {
            return Err(io::Error::other("it is no regular file"));
        }
        let length = found.map_or(0, |found| found.len());
        if length > 0
            && length + line.len() as u64 >= LARGEST
            && let Err(error) = self.begin_another()
        {
            tracing::error!("{} cannot be moved on: {error}", self.path.display());
        }
        // Opened each time: another program may have moved it away.
        let mut options = OpenOptions::new();
        options.read(true).append(true).create(true).mode(0o600);
        let mut file = options.open(&self.path)?;
        let length = file.metadata()?.len();
        let mut last = [b'\n'];
        if length > 0 {
            file.read_exact_at(&mut last, length - 1)?;
        }
        // A line that was cut off by a crash stays a line of its own.
        let end = if last == *b"\n" { "" } else { "\n" };
        if let Err(error) = file.write_all(format!("{end}{line}\n").as_bytes()) {
            // What is there of it would spoil the next one.
            let _ = file.set_len(length);
            return Err(error);
        }
        file.sync_all()?;
        if length == 0
            && let Some(directory) = self.path.parent()
        {
            std::fs::File::open(directory)?.sync_all()?;
        }
        Ok(())
    }

    /// Renames each file to the next number; the oldest file is lost.
    fn begin_another(&self) -> io::Result<()> {
        let numbered = |number: u32| match number {
            0 => self.path.clone(),
            number => self.path.with_extension(format!("log.{number}")),
        };
        for number in (0..KEPT).rev() {
            match std::fs::rename(numbered(number), numbered(number + 1)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn what_a_crash_cut_off_spoils_no_other_line() {
        let directory = tempfile::tempdir().unwrap();
        let audit = Audit::new(directory.path());
        std::fs::write(directory.path().join("audit.log"), "{\"whole\":1}\n{\"cut").unwrap();
        audit.append("{\"next\":1}").unwrap();
        let text = std::fs::read_to_string(directory.path().join("audit.log")).unwrap();
        assert_eq!(text, "{\"whole\":1}\n{\"cut\n{\"next\":1}\n");
    }

    #[test]
    fn another_file_is_begun_where_one_is_full_and_the_oldest_goes() {
        let directory = tempfile::tempdir().unwrap();
        let audit = Audit::new(directory.path());
        let line = "x".repeat(LARGEST as usize / 3);
        // Two in a file.
        for number in 0..13 {
            audit.append(&format!("{number}{line}")).unwrap();
        }
        let first = |name: &str| {
            let text = std::fs::read_to_string(directory.path().join(name)).unwrap();
            assert!(text.len() as u64 <= LARGEST);
            text.lines().map(|line| line.trim_end_matches('x').to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(first("audit.log"), ["12"]);
        assert_eq!(first("audit.log.1"), ["10", "11"]);
        assert_eq!(first("audit.log.4"), ["4", "5"]);
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 5);
        let mode = std::fs::metadata(directory.path().join("audit.log")).unwrap().permissions();
        assert_eq!(mode.mode() & 0o777, 0o600);
    }
}
