//! A separate wall clock for child processes, by means of libfaketime. The machine's clock stays
//! unchanged.

use std::path::{Path, PathBuf};

use tempfile::TempDir;

/// A wall clock that a test can set while child processes use it. Their monotonic and boot clocks
/// remain those of the machine.
#[derive(Debug)]
pub struct FakeClock {
    directory: TempDir,
    library: PathBuf,
}

impl FakeClock {
    /// A clock that shows the right time.
    ///
    /// # Panics
    /// When libfaketime is not installed; the text says how to install it.
    #[must_use]
    pub fn new() -> Self {
        let clock =
            Self { directory: tempfile::tempdir().expect("a directory"), library: library() };
        clock.set("+0");
        clock
    }

    /// Sets the clock to the right time plus `offset`, in seconds: `-3600`, `+0.005`.
    ///
    /// # Panics
    /// When the file cannot be written.
    pub fn set(&self, offset: &str) {
        // In one step, so that nobody reads half of it.
        let draft = self.directory.path().join("draft");
        std::fs::write(&draft, offset).expect("a writable directory");
        std::fs::rename(draft, self.file()).expect("a writable directory");
    }

    /// Returns the environment variables that make a process use this clock. Call it again for
    /// every process, because it also removes the files of dead processes.
    #[must_use]
    pub fn environment(&self) -> [(&'static str, String); 4] {
        remove_what_the_dead_left();
        [
            ("LD_PRELOAD", self.library.display().to_string()),
            ("FAKETIME_TIMESTAMP_FILE", self.file().display().to_string()),
            ("FAKETIME_NO_CACHE", "1".into()),
            ("FAKETIME_DONT_FAKE_MONOTONIC", "1".into()),
        ]
    }

    fn file(&self) -> PathBuf {
        self.directory.path().join("offset")
    }
}

impl Default for FakeClock {
    fn default() -> Self {
        Self::new()
    }
}

/// Removes the shared-memory files of dead processes. libfaketime names such a file after the
/// process id, and a process exits if its file exists already. A killed process leaves its file
/// behind, and process ids are reused.
fn remove_what_the_dead_left() {
    for file in std::fs::read_dir("/dev/shm").into_iter().flatten().flatten() {
        let name = file.file_name();
        let process = name.to_str().and_then(|name| {
            name.strip_prefix("faketime_shm_").or_else(|| name.strip_prefix("sem.faketime_sem_"))
        });
        if process.is_some_and(|process| !Path::new("/proc").join(process).exists()) {
            // Another test may have been faster.
            let _ = std::fs::remove_file(file.path());
        }
    }
}

fn library() -> PathBuf {
    let multiarch = std::fs::read_dir("/usr/lib").expect("/usr/lib").flatten();
    multiarch
        .map(|entry| entry.path().join("faketime/libfaketimeMT.so.1"))
        .find(|file| file.is_file())
        .expect(
            "libfaketime is not installed: run scripts/test, or\n  \
             apt-get install -y --no-install-recommends libfaketime",
        )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Process;

    #[test]
    fn a_process_starts_where_a_killed_one_had_its_id() {
        // Of a process that is no more.
        let mut gone = Process::start("true", &[], &[]);
        let id = gone.pid();
        while gone.ended().is_none() {}
        let left = Path::new("/dev/shm").join(format!("faketime_shm_{id}"));
        std::fs::write(&left, "").expect("shared memory");
        let clock = FakeClock::new();
        let _environment = clock.environment();
        assert!(!left.exists());
    }

    #[test]
    fn a_killed_process_leaves_nothing_for_the_next() {
        let clock = FakeClock::new();
        let mut process = Process::start("sleep", &["60".into()], &clock.environment());
        let mine = Path::new("/dev/shm").join(format!("faketime_shm_{}", process.pid()));
        crate::wait_until("libfaketime", std::time::Duration::from_secs(10), || {
            mine.exists().then_some(())
        });
        let _environment = clock.environment();
        assert!(mine.exists(), "it lives");
        process.kill();
        assert!(mine.exists(), "or libfaketime removes it itself, and this module need not");
        let _environment = clock.environment();
        assert!(!mine.exists());
    }
}
