//! A wall clock of one's own for a child process, by libfaketime. The machine's clock stays as it is.

use std::path::PathBuf;

use tempfile::TempDir;

/// A wall clock that can be moved while processes run by it. Their monotonic and boot clocks are
/// the machine's.
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

    /// Moves the clock away from the right time: `-3600`, `+0.005`, in seconds.
    ///
    /// # Panics
    /// When the file cannot be written.
    pub fn set(&self, offset: &str) {
        // In one step, so that nobody reads half of it.
        let draft = self.directory.path().join("draft");
        std::fs::write(&draft, offset).expect("a writable directory");
        std::fs::rename(draft, self.file()).expect("a writable directory");
    }

    /// The environment that makes a process run by this clock.
    #[must_use]
    pub fn environment(&self) -> [(&'static str, String); 4] {
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
