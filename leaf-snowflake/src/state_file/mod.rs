//! The state file: what a node must remember to go on at once after a crash.
//!
//! Invariant: at every moment, also after a crash in the middle of a write, the file holds the
//! newest state whose write was confirmed, or a newer one. Two slots are written in turn, each in a
//! page of its own, each with a sequence number and a checksum, each synced before the write
//! counts. The file is completely written before it gets its name, so a file without a valid slot
//! is damaged, never new.
//!
//! It is locked against a second process while it is open. If its inode or machine id is not the
//! one that it was written with, the file is read, but treated as a copy ([`Provenance::Copied`]):
//! another process may be using the original. Two cases are not recognized as copies: old contents
//! that were written back into the file in place, and a volume that was cloned to another host, if
//! the hosts have no machine id. In the second case only boot or device differ, which proves
//! nothing either way ([`Provenance::Uncertain`]).
//!
//! Durable format, version 1: a slot is a page with a head line, see `page.rs`, and the JSON object
//! `{version, instance, saved_lease, pending_claim, written_at}`, where `written_at` is the place
//! of writing (machine, boot, device, inode), not a time. A reader ignores fields that it does not
//! know and keeps them when it rewrites the file.

mod page;
#[cfg(test)]
mod tests;

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use self::page::{SLOT, decode, encode};
use crate::fence::{Unreadable, Versioned};
use crate::{FORMAT_VERSION, Provenance, SavedLease, UnknownFields};

/// An open, locked state file.
#[derive(Debug)]
pub(crate) struct StateFile {
    file: File,
    path: PathBuf,
    origin: Origin,
    /// The origin that stood in the file when it was opened. Writes repeat it until a new lease
    /// replaces the loaded one, so that a start that fails does not turn an uncertain or copied
    /// file into a proven one.
    origin_before: Origin,
    /// The sequence number of the last write.
    sequence: u64,
    /// The contents of the file as this process last read or wrote them.
    known: Vec<u8>,
    /// The offset of the slot and the page of the last write, if that write failed. The slot may
    /// then hold this page, its former contents, or a part of either.
    failed: Option<(usize, [u8; SLOT])>,
}

/// The state that the file saves.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct State {
    /// The id of this state file, the same over restarts; a copy gets a new one.
    pub(crate) instance: Uuid,
    /// The nonce of a claim that was sent and whose answer was not written down yet: it may or may
    /// not have reached the registry.
    pub(crate) pending_claim: Option<Uuid>,
    /// The last lease.
    pub(crate) saved_lease: Option<SavedLease>,
    /// Fields that a later version wrote, kept when the file is rewritten.
    pub(crate) unknown: UnknownFields,
}

/// Identifies a state file and the machine on which it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Origin {
    /// `/etc/machine-id`; `None` where there is none, as in many containers.
    machine: Option<String>,
    /// The kernel's id of this boot.
    #[serde(default)]
    boot: Option<String>,
    /// The device that the file is on. The number means nothing after a reboot.
    #[serde(default)]
    device: Option<u64>,
    inode: u64,
}

impl Origin {
    /// Whether a file that was written at `other` is provably the one at `self`.
    fn provenance(&self, other: &Self) -> Provenance {
        if (&self.machine, self.inode) != (&other.machine, other.inode) {
            Provenance::Copied
        } else if (&self.boot, self.device) != (&other.boot, other.device) {
            Provenance::Uncertain
        } else {
            Provenance::Proven
        }
    }
}

#[derive(Serialize, Deserialize)]
struct Record {
    version: u32,
    instance: Uuid,
    saved_lease: Option<SavedLease>,
    pending_claim: Option<Uuid>,
    /// Where the file was written.
    #[serde(rename = "written_at")]
    origin: Origin,
    #[serde(flatten)]
    unknown: UnknownFields,
}

impl Record {
    /// Converts the record to the state for a process that has opened the file at `here`. A copy
    /// gets a new instance id, because the original may be in use.
    fn state(self, here: &Origin) -> State {
        let provenance = here.provenance(&self.origin);
        let copied = provenance == Provenance::Copied;
        State {
            instance: if copied { Uuid::new_v4() } else { self.instance },
            // Every clone of a volume holds the same pending claim. Two clones would recognize the
            // same record as their own claim, and no watching tells them apart. So the claim is
            // forgotten; its worker id then counts as another node's until its ceiling has passed.
            pending_claim: self.pending_claim.filter(|_| provenance == Provenance::Proven),
            saved_lease: self.saved_lease.map(|saved| SavedLease { provenance, ..saved }),
            unknown: self.unknown,
        }
    }
}

/// Why the state file cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StateFileError {
    /// Another process has the file open, or has written it.
    #[error("{}: another process uses this data directory: stop it, or give this one its own", .0.display())]
    Locked(PathBuf),
    /// A later version of Leaf wrote the file in a format that this version cannot read.
    #[error(
        "{}: the state file has format version {version}, this program reads up to {FORMAT_VERSION}: \
         update this program",
        path.display()
    )]
    NewerFormat {
        /// The file.
        path: PathBuf,
        /// The format version of the file.
        version: u32,
    },
    /// A version of Leaf before 0.1.0 wrote the file.
    #[error(
        "{}: the state file has no format version: a version before 0.1.0 wrote it; remove it once its \
         last ids are in the past",
        .0.display()
    )]
    Unversioned(PathBuf),
    /// The file is truncated, or its content is not a valid state.
    #[error(
        "{}: the state file is damaged: no id is issued from here, ids might repeat; \
         remove it once the clock is known to be right and past all ids that were issued from here, and never put an \
         older copy back",
        .0.display()
    )]
    Damaged(PathBuf),
    /// The file at the path is no longer the one that was opened.
    #[error("{}: the state file was removed or replaced while in use: restart this process", .0.display())]
    Replaced(PathBuf),
    /// The operating system reported an error.
    #[error("{action} {}: {cause}", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The operating system's error. Printed in this error's text and not part of the error
        /// chain, so that a log line contains it only once.
        cause: io::Error,
    },
}

impl StateFileError {
    fn io<'a>(action: &'static str, path: &'a Path) -> impl FnOnce(io::Error) -> Self + 'a {
        move |cause| Self::Io { action, path: path.to_owned(), cause }
    }
}

impl StateFile {
    /// Opens and locks the file; creates it if it does not exist. Returns the saved state, if one
    /// was ever written.
    ///
    /// # Errors
    /// Every [`StateFileError`] but `Replaced`.
    pub(crate) fn open(path: &Path) -> Result<(Self, Option<State>), StateFileError> {
        let file = match open_file(path)? {
            Some(file) => file,
            None => {
                Self::make(path)?;
                let gone = || StateFileError::io("open", path)(io::ErrorKind::NotFound.into());
                open_file(path)?.ok_or_else(gone)?
            }
        };
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(StateFileError::Locked(path.to_owned())),
            Err(TryLockError::Error(error)) => return Err(StateFileError::io("lock", path)(error)),
        }
        let found = file.metadata().map_err(StateFileError::io("look at", path))?;
        let origin = Origin {
            machine: system_id("/etc/machine-id"),
            boot: system_id("/proc/sys/kernel/random/boot_id"),
            device: Some(found.dev()),
            inode: found.ino(),
        };
        let origin_before = origin.clone();
        let mut this = Self {
            file,
            path: path.to_owned(),
            origin,
            origin_before,
            sequence: 0,
            known: Vec::new(),
            failed: None,
        };
        let state = this.read()?;
        Ok((this, state))
    }

    /// Refuses a file that [`Self::open`] refuses, except that it ignores the lock: another process
    /// may have the file open and write to it.
    ///
    /// # Errors
    /// `NewerFormat`, `Unversioned`, `Damaged`, `Io`.
    pub(crate) fn check(path: &Path) -> Result<(), StateFileError> {
        match open_file(path)? {
            Some(file) => newest(&read_pages(&file, path)?, path).map(|_| ()),
            None => Ok(()),
        }
    }

    /// Makes the file under another name and links it in place, so that nobody sees half of it,
    /// and so that only one process makes it if two start at once.
    fn make(path: &Path) -> Result<(), StateFileError> {
        let directory = path.parent().filter(|d| !d.as_os_str().is_empty());
        let directory = directory.unwrap_or(Path::new("."));
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let draft = directory.join(format!(".{name}.{}", uuid::Uuid::new_v4()));
        let made = (|| {
            let file = File::create_new(&draft)?;
            let mut pages = [0; 2 * SLOT];
            pages[..SLOT].copy_from_slice(&encode(0, "").ok_or(io::ErrorKind::InvalidData)?);
            file.write_all_at(&pages, 0)?;
            file.sync_all()?;
            match fs::hard_link(&draft, path) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
                linked => linked,
            }?;
            File::open(directory)?.sync_all()
        })();
        // Whether or not it worked, the draft has no further use.
        let _ = fs::remove_file(&draft);
        made.map_err(StateFileError::io("create", path))
    }

    /// Returns the contents of the file, if they are what this process read or wrote.
    ///
    /// # Errors
    /// `Locked` when another process wrote it; `Io`.
    pub(crate) fn check_untouched(&self) -> Result<Vec<u8>, StateFileError> {
        let mut expected = self.known.clone();
        let pages = read_pages(&self.file, &self.path)?;
        if let (Some((slot, page)), true) = (&self.failed, pages.len() == expected.len()) {
            let range = *slot..*slot + SLOT;
            let found = &pages[range.clone()];
            if found == page || decode(found).is_none() {
                expected[range.clone()].copy_from_slice(&pages[range]);
            }
        }
        if pages == expected { Ok(pages) } else { Err(StateFileError::Locked(self.path.clone())) }
    }

    fn read(&mut self) -> Result<Option<State>, StateFileError> {
        let pages = read_pages(&self.file, &self.path)?;
        let newest = newest(&pages, &self.path)?;
        self.known = pages;
        Ok(newest.map(|(sequence, record)| {
            self.sequence = sequence;
            self.origin_before = record.origin.clone();
            record.state(&self.origin)
        }))
    }

    /// Removes a file that cannot be written, so that no later start uses the lease in it. Many
    /// disks allow that even when they are full. Does nothing if the file is another process's by
    /// now.
    pub(crate) fn abandon(&self) {
        let path = self.path.display();
        if self.check_in_place().and_then(|()| self.check_untouched().map(drop)).is_err() {
            return;
        }
        let removed = fs::remove_file(&self.path).and_then(|()| {
            let directory = self.path.parent().filter(|it| !it.as_os_str().is_empty());
            File::open(directory.unwrap_or(Path::new(".")))?.sync_all()
        });
        match removed {
            Ok(()) => tracing::error!(
                "{path} was removed, since the loss of the worker id could not be written there: restart this process once \
                 the disk takes writes"
            ),
            Err(error) => tracing::error!(
                "the loss of the worker id could not be written, and {path} not be removed ({error}): remove it by hand, \
                 or a start without the registry repeats ids"
            ),
        }
    }

    /// Returns an error unless the file at the path is the one that was opened.
    fn check_in_place(&self) -> Result<(), StateFileError> {
        let at_path = fs::metadata(&self.path).map(|found| found.ino());
        match at_path.ok() == Some(self.origin.inode) {
            true => Ok(()),
            false => Err(StateFileError::Replaced(self.path.clone())),
        }
    }

    /// Writes `state` into the older slot and syncs it: on success it is durable.
    ///
    /// # Errors
    /// `Replaced`, `Locked` and `Io`: the write does not count, and neither does anything that
    /// depends on it.
    pub(crate) fn write(&mut self, state: &State) -> Result<(), StateFileError> {
        let io = |action| StateFileError::io(action, &self.path);
        self.check_in_place()?;
        // The lock may not exclude other hosts: if another process has written since, refuse.
        let found = self.check_untouched()?;
        (self.known, self.failed) = (found, None);
        let record = Record {
            version: FORMAT_VERSION,
            instance: state.instance,
            saved_lease: state.saved_lease.clone(),
            pending_claim: state.pending_claim,
            origin: match &state.saved_lease {
                Some(saved) if saved.provenance != Provenance::Proven => self.origin_before.clone(),
                _ => self.origin.clone(),
            },
            unknown: state.unknown.clone(),
        };
        let text = serde_json::to_string(&record).map_err(io::Error::from);
        let next = self.sequence + 1;
        let page = text
            .and_then(|text| encode(next, &text).ok_or(io::ErrorKind::InvalidData.into()))
            .map_err(io("encode"))?;
        let slot = (next % 2) as usize * SLOT;
        self.failed = Some((slot, page));
        self.file.write_all_at(&page, slot as u64).map_err(io("write"))?;
        self.file.sync_data().map_err(io("sync"))?;
        self.failed = None;
        self.sequence = next;
        self.known[slot..slot + SLOT].copy_from_slice(&page);
        Ok(())
    }
}

/// Opens the file; `None` if it does not exist.
fn open_file(path: &Path) -> Result<Option<File>, StateFileError> {
    if fs::metadata(path).is_ok_and(|found| !found.is_file()) {
        let not_a_file = io::Error::new(io::ErrorKind::InvalidInput, "not a regular file");
        return Err(StateFileError::io("open", path)(not_a_file));
    }
    match OpenOptions::new().read(true).write(true).open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        opened => opened.map(Some).map_err(StateFileError::io("open", path)),
    }
}

/// Reads the file, but at most one byte more than two slots: enough to see that it is too long.
fn read_pages(mut file: &File, path: &Path) -> Result<Vec<u8>, StateFileError> {
    let mut pages = Vec::with_capacity(2 * SLOT);
    file.rewind().map_err(StateFileError::io("read", path))?;
    let mut limited = file.take(2 * SLOT as u64 + 1);
    limited.read_to_end(&mut pages).map_err(StateFileError::io("read", path))?;
    Ok(pages)
}

/// The newest record in the pages of the file at `path`, and its sequence number; `None` where
/// nothing was ever written.
fn newest(pages: &[u8], path: &Path) -> Result<Option<(u64, Record)>, StateFileError> {
    let damaged = || StateFileError::Damaged(path.to_owned());
    // No write changes the length: what is cut off may have been the newer slot.
    if pages.len() != 2 * SLOT {
        return Err(damaged());
    }
    let newest = pages.chunks(SLOT).filter_map(decode).max_by_key(|(sequence, _)| *sequence);
    let (sequence, text) = newest.ok_or_else(damaged)?;
    if text.is_empty() {
        return Ok(None);
    }
    match Versioned::check(text.as_bytes()) {
        Ok(()) => {}
        Err(Unreadable::Newer(version)) => {
            return Err(StateFileError::NewerFormat { path: path.to_owned(), version });
        }
        Err(Unreadable::Unversioned) => return Err(StateFileError::Unversioned(path.to_owned())),
        Err(Unreadable::Damaged(_)) => return Err(damaged()),
    }
    let record = serde_json::from_str(text).map_err(|_| damaged())?;
    Ok(Some((sequence, record)))
}

fn system_id(file: &str) -> Option<String> {
    let text = fs::read_to_string(file).ok()?;
    Some(text.trim().to_owned()).filter(|id| !id.is_empty())
}
