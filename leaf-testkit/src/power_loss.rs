//! Simulates a power loss: of a data directory only the last synced content remains, under the last
//! synced names.
//!
//! After `kill -9` the kernel still has unsynced writes. A library (`power_loss.c`) that is
//! preloaded into the process remembers what was synced; after the kill, [`PowerLoss::strike`]
//! restores exactly that. This is stricter than most file systems: nothing that was not synced
//! survives.

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A directory whose unsynced writes can be taken away.
#[derive(Debug)]
pub struct PowerLoss {
    directory: PathBuf,
    shadow: tempfile::TempDir,
}

impl PowerLoss {
    /// Prepares the watch of the files in `directory`, which must exist.
    ///
    /// # Panics
    /// When the library cannot be built (`cc` is missing).
    #[must_use]
    pub fn of(directory: &Path) -> Self {
        let shadow = tempfile::tempdir().expect("a temporary directory");
        let source = shadow.path().join("power_loss.c");
        fs::write(&source, include_str!("power_loss.c")).expect("the source is written");
        fs::create_dir(shadow.path().join("content")).expect("a directory is made");
        let built = Command::new("cc")
            .args(["-O1", "-Wall", "-Werror", "-shared", "-fPIC", "-o"])
            .args([shadow.path().join("power_loss.so"), source])
            .args(["-ldl", "-lpthread"])
            .status()
            .expect("cc starts");
        assert!(built.success(), "power_loss.c is built");
        let directory = directory.canonicalize().expect("the directory exists");
        Self { directory, shadow }
    }

    /// The library to preload into the process whose writes are watched.
    #[must_use]
    pub fn library(&self) -> PathBuf {
        self.shadow.path().join("power_loss.so")
    }

    /// The environment variables that the library needs in the watched process.
    #[must_use]
    pub fn env(&self) -> Vec<(&'static str, String)> {
        let text = |path: PathBuf| path.display().to_string();
        vec![
            ("LEAF_POWER_DIR", text(self.directory.clone())),
            ("LEAF_POWER_SHADOW", text(self.shadow.path().to_owned())),
        ]
    }

    /// Discards everything that was not synced; the process must have been killed before. A file
    /// that survives keeps its inode, unless it had been deleted. Returns the names of the files
    /// that survive.
    ///
    /// # Panics
    /// When a file cannot be read or written.
    pub fn strike(&self) -> Vec<String> {
        let names = fs::read_to_string(self.shadow.path().join("names")).unwrap_or_default();
        let durable: HashMap<&str, u64> = names
            .lines()
            .filter_map(|line| line.split_once(' '))
            .filter_map(|(inode, name)| Some((name, inode.parse().ok()?)))
            .collect();
        let mut now: HashMap<u64, PathBuf> = HashMap::new();
        for entry in fs::read_dir(&self.directory).expect("the directory can be read") {
            let path = entry.expect("an entry").path();
            let is = fs::metadata(&path).expect("a file");
            if is.is_file() {
                // Out of the way, so that names can be swapped.
                let aside = self.shadow.path().join(format!("aside-{}", is.ino()));
                fs::rename(&path, &aside).expect("a file is moved");
                now.insert(is.ino(), aside);
            }
        }
        let mut left = Vec::new();
        for (name, inode) in durable {
            let path = self.directory.join(name);
            if let Some(aside) = now.remove(&inode) {
                fs::rename(aside, &path).expect("a file is moved");
            }
            let content = fs::read(self.shadow.path().join(format!("content/{inode}")));
            fs::write(&path, content.unwrap_or_default()).expect("a file is written");
            left.push(name.to_owned());
        }
        for aside in now.into_values() {
            fs::remove_file(aside).expect("a file is removed");
        }
        left
    }
}
